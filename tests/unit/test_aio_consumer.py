"""The consumer of coroutines: what is taken is given once, whatever is cancelled; the group is a fake."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from fastlog._segment import pack
from fastlog.aio import Consumer
from fastlog.aio import consumer as aio_consumer
from fastlog.consumer import connector
from fastlog.consumer._delivery import GroupMessage
from fastlog.consumer.feed import Phase
from fastlog.consumer.stream import NoMessage
from fastlog.errors import (
    ClosedError,
    ConfigError,
    ConsumerTimeout,
    CoordinationError,
    DecodeError,
    OwnershipLostError,
    StateError,
    UnsupportedFeatureError,
)
from tests.harness.fake_broker import FakeBroker
from tests.harness.reading import source_of
from tests.harness.timing import PATIENCE, sooner_than
from tests.unit.test_consumer import FakeGroup

T = TypeVar("T")
LINES = [b"line %04d" % number for number in range(2000)]


@pytest.fixture(autouse=True)
def fake_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every consumer gets a fake group, and none is left."""
    monkeypatch.setattr(connector, "Group", FakeGroup)
    yield
    left = list(connector._live)
    for consumer in left:
        consumer.shutdown()
    assert not left


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        fake.logs["t", 0] = pack(LINES)
        yield fake


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 2 * PATIENCE))


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


def consumer(**fields: Any) -> Consumer:
    return Consumer("zk:1", group_id="g", **{"topics": "t", "local": "off", **fields})


def own(broker: FakeBroker, number: int = 0, topic: str = "t") -> None:
    FakeGroup.last.own(source_of(number, topic), 0, broker.port)


def test_messages_and_batches_in_their_order(broker: FakeBroker) -> None:
    """Both iterations, and poll, see one sequence; what was given counts when the next is asked for."""

    async def main() -> None:
        async with consumer(fetch_bytes=5000) as made:
            own(broker)
            found: list[bytes] = []
            async for message in made:
                assert (message.topic, message.source) == ("t", source_of())
                found.append(message.payload)
                if len(found) == 700:
                    break
            assert made.offsets == {source_of(): message.offset}
            async for batch in made.batches(64):
                assert 1 <= len(batch) <= 64
                found += batch
                if len(found) >= 1900:
                    break
            assert made.offsets == {source_of(): batch.offset}
            assert made.done(batch)
            assert made.offsets == {source_of(): batch.next_offset}
            while len(found) < 2000:
                polled = await made.poll(PATIENCE)
                assert not isinstance(polled, NoMessage)
                found.append(polled.payload)
            assert found == LINES
            assert await made.poll() in (NoMessage.AT_END, NoMessage.NO_DATA)
            assert made.offsets == {source_of(): len(broker.logs["t", 0])}

    run(main())


def test_a_wait_ends_with_the_next_message_and_holds_up_no_other_task(broker: FakeBroker) -> None:
    async def main() -> None:
        broker.logs["t", 0] = b""
        async with consumer() as made:
            own(broker)
            waiting = [asyncio.create_task(anext(made)) for _ in range(3)]
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in waiting)
            broker.logs["t", 0] = pack(LINES[:3])
            found = [(await task).payload for task in waiting]
            assert sorted(found) == LINES[:3]

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_wait_that_is_cancelled_anywhere_takes_nothing(broker: FakeBroker, seed: int) -> None:
    """Tasks that ask are cancelled after any number of turns, while messages come in small pieces."""
    chance = random.Random(seed)

    async def main() -> None:
        whole = broker.logs["t", 0]
        piece = len(whole) // len(LINES) * 25
        broker.logs["t", 0] = b""
        async with consumer(fetch_bytes=300) as made:
            own(broker)
            found: list[bytes] = []
            batches = made.batches(3)

            async def one() -> None:
                if chance.random() < 0.5:
                    found.append((await anext(made)).payload)
                else:
                    found.extend(await anext(batches))

            cancelled = 0
            while len(found) < 1000:
                if chance.random() < 0.3 and len(broker.logs["t", 0]) < len(whole):
                    broker.logs["t", 0] = whole[: len(broker.logs["t", 0]) + piece]
                tasks = [asyncio.create_task(one()) for _ in range(chance.randrange(1, 4))]
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0 if chance.random() < 0.8 else 0.002)
                for task in tasks:
                    if chance.random() < 0.4:
                        cancelled += task.cancel()
                broker.logs["t", 0] = whole[: len(broker.logs["t", 0]) + piece]
                await asyncio.gather(*tasks, return_exceptions=True)
            assert cancelled > 5
            assert sorted(found) == LINES[: len(found)]

    run(main())


def test_waiting_with_a_time_limit_loses_no_message(broker: FakeBroker) -> None:
    """``wait_for`` and ``timeout`` cancel; so do those who give up for good."""

    async def main() -> None:
        broker.logs["t", 0] = b""
        async with consumer() as made:
            own(broker)
            found = []
            grown = 0
            while len(found) < 100:
                try:
                    async with asyncio.timeout(0.001):
                        found.append((await anext(made)).payload)
                except TimeoutError:
                    grown += 5
                    broker.logs["t", 0] = pack(LINES[:grown])
            assert found == LINES[:100]

    run(main())


def test_a_silence_ends_in_the_error_of_the_settings(broker: FakeBroker) -> None:
    """The iteration can be used on after it."""

    async def main() -> None:
        async with consumer(consumer_timeout_ms=50) as made:
            with pytest.raises(ConsumerTimeout, match=r"no message within 0\.05 s: no partition is assigned"):
                await anext(made)
            assert await made.poll(0.01) is NoMessage.NOT_ASSIGNED
            own(broker)
            batches = made.batches(5000)
            found: list[bytes] = []
            while len(found) < len(LINES):  # a slow machine is silent in between, too
                with pytest.raises(ConsumerTimeout) as caught:
                    async for batch in batches:
                        found += batch
            assert found == LINES
            assert caught.value.reason in (NoMessage.AT_END, NoMessage.NO_DATA)
            broker.logs["t", 0] += pack([b"more"])
            more = await made.poll(PATIENCE)
            assert not isinstance(more, NoMessage) and more.payload == b"more"

    run(main())


def test_a_slow_program_leaves_messages_with_the_broker(broker: FakeBroker) -> None:
    async def main() -> None:
        async with consumer(fetch_bytes=400, queued_chunks=2) as made:
            own(broker)
            first = await anext(made)
            await asyncio.sleep(0.2)
            (state,) = made.partitions.values()
            assert state.queued <= 2
            assert state.position is not None
            assert state.position < 4 * 400
            found = [first.payload]
            async for message in made:
                found.append(message.payload)
                if len(found) == len(LINES):
                    break
            assert found == LINES

    run(main())


def test_a_busy_iteration_leaves_turns_to_others(broker: FakeBroker) -> None:
    async def main() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with consumer() as made:
            own(broker)
            await anext(made)
            task = asyncio.create_task(other())
            left = len(LINES) - 1
            async for _ in made:
                left -= 1
                if not left:
                    break
            assert turns > 4
            task.cancel()

    run(main())


@pytest.mark.parametrize(("polls", "in_a_row"), [(False, 5), (True, 6)])
def test_others_have_a_turn_after_so_many_messages_in_a_row(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, polls: bool, in_a_row: int
) -> None:
    """Not after each: a turn of the loop costs more than a message."""
    monkeypatch.setattr(aio_consumer, "_TAKEN_IN_A_ROW", 5)

    async def main() -> None:
        found: list[bool] = []

        async def other() -> None:
            while True:
                found.append(False)
                await asyncio.sleep(0)

        async with consumer() as made:
            own(broker)
            await anext(made)
            task = asyncio.create_task(other())
            for _ in range(20):
                message = await (made.poll() if polls else anext(made))
                found.append(isinstance(message, GroupMessage))
            task.cancel()
        runs = [len(list(run)) for is_message, run in itertools.groupby(found) if is_message]
        assert runs[1:-1] == [in_a_row] * len(runs[1:-1]) and len(runs) > 2

    run(main())


def test_several_tasks_acknowledge_what_they_have_done(broker: FakeBroker) -> None:
    """Each message comes to one of them, and only ``done`` counts."""

    async def main() -> None:
        async with consumer(acknowledge=True) as made:
            own(broker)
            found: list[bytes] = []
            last = 0

            async def work() -> None:
                nonlocal last
                while len(found) < len(LINES):
                    message = await made.poll(0.05)
                    if not isinstance(message, NoMessage):
                        found.append(message.payload)
                        last = max(last, message.next_offset)
                        await asyncio.sleep(0)

            await asyncio.gather(*(work() for _ in range(10)))
            assert sorted(found) == LINES
            assert made.offsets == {source_of(): 0}
            await made.commit_offsets({source_of(): last})
            assert FakeGroup.last.commits[-1] == ({source_of(): last}, True)

    run(main())


def test_several_topics_and_filters(broker: FakeBroker) -> None:
    broker.logs["u", 0] = pack([b"u"] * 10)

    async def main() -> None:
        async with consumer(topics=["t", "u"]) as made:
            own(broker)
            own(broker, 0, "u")
            topics = [(await anext(made)).topic for _ in range(len(LINES) + 10)]
            assert (topics.count("t"), topics.count("u")) == (len(LINES), 10)
        async with Consumer("zk:1", group_id="g", whitelist="t|u", local="off") as made:
            own(broker)
            assert (await anext(made)).payload == LINES[0]
            assert FakeGroup.last.subscription.pattern

    run(main())
    for wrong in ({}, {"topics": "t", "whitelist": "t"}, {"whitelist": "t", "blacklist": "u"}):
        with pytest.raises(ConfigError, match="one of"):
            Consumer("zk:1", group_id="g", **wrong)


def test_streams_take_turns_and_a_silence_is_that_of_the_one_that_may_go_on(broker: FakeBroker) -> None:
    async def main() -> None:
        broker.logs["u", 0] = pack(LINES)
        async with consumer(topics=["t", "u", "v"]) as made:
            assert await made.poll() is NoMessage.NOT_ASSIGNED
            for topic in ("t", "u"):
                own(broker, 0, topic)
            await until(lambda: all(made.partitions[source_of(0, topic)].queued for topic in ("t", "u")))
            found = [(await anext(made)).topic for _ in range(20)]
            assert found.count("t") == found.count("u") == 10
            while isinstance(await made.poll(0.1), GroupMessage):
                pass
            await until(lambda: all(state.phase is Phase.AT_END for state in made.partitions.values()))
            for _ in range(3):
                assert await made.poll() is NoMessage.NOT_ASSIGNED, "the third topic has no partition yet"

    run(main())


def test_a_lease_that_holds_again_is_seen_though_nobody_tells(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio_consumer, "_LOOK_AGAIN_SECONDS", 4 * PATIENCE)

    async def main() -> None:
        broker.logs["t", 0] = b""
        async with consumer() as made:
            own(broker)
            await until(lambda: made.partitions[source_of()].phase is Phase.AT_END)
            lease = made._consumer._lease
            lease.drop()
            waiting = asyncio.create_task(anext(made))
            broker.logs["t", 0] = pack(LINES[:1])
            await until(lambda: made.partitions[source_of()].queued)
            await asyncio.sleep(0.02)
            assert not waiting.done()
            lease.extend(lease.now())
            assert (await waiting).payload == LINES[0]

    run(main())


def test_a_decoder_that_fails_costs_one_message(broker: FakeBroker) -> None:
    def decode(payload: bytes) -> int:
        if payload == LINES[1]:
            raise ValueError(payload)
        return int(payload[5:])

    async def main() -> None:
        async with consumer(decoder=decode) as made:
            own(broker)
            assert (await anext(made)).value == 0
            with pytest.raises(DecodeError):
                await anext(made)
            assert (await anext(made)).value == 2

    run(main())


def test_the_end_ends_every_iteration(broker: FakeBroker) -> None:
    async def main() -> None:
        broker.logs["t", 0] = b""
        made = consumer()
        await made.start()
        own(broker)

        async def read() -> list[bytes]:
            return [message.payload async for message in made]

        async def read_batches() -> list[bytes]:
            return [payload async for batch in made.batches() for payload in batch]

        tasks = [asyncio.create_task(read()), asyncio.create_task(read_batches())]
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(made.close())
        await asyncio.sleep(0)
        closing.cancel()
        with sooner_than(PATIENCE):
            assert await asyncio.gather(*tasks) == [[], []]
            await made.close()
        assert await made.poll() is NoMessage.ENDED
        assert FakeGroup.last.stops == 1
        with pytest.raises(ClosedError):
            await made.commit_offsets()

    run(main())


@pytest.mark.parametrize("is_end", [True, False], ids=["the end", "an error"])
def test_who_waits_learns_at_once(monkeypatch: pytest.MonkeyPatch, is_end: bool) -> None:
    """Of the end, and of a topic that cannot be read: not when it would look again by itself."""
    monkeypatch.setattr(aio_consumer, "_LOOK_AGAIN_SECONDS", 2 * PATIENCE)

    async def main() -> None:
        async with consumer() as made:
            waiting = asyncio.create_task(made.poll(2 * PATIENCE))
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            with sooner_than(PATIENCE):
                if is_end:
                    await made.close()
                    assert await waiting is NoMessage.ENDED
                else:
                    FakeGroup.last.options["on_refused"]("t", UnsupportedFeatureError("of another kind"))
                    with pytest.raises(UnsupportedFeatureError, match="of another kind"):
                        await waiting

    run(main())


def test_joining_that_fails_or_is_cancelled(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the other consumer; a start that was cancelled can be waited for again."""
    release = threading.Event()
    begin = FakeGroup.start

    def slowly(group: FakeGroup) -> None:
        release.wait(PATIENCE)
        begin(group)

    async def main() -> None:
        made = consumer()
        with pytest.raises(StateError, match="has not joined"):
            await anext(made)
        monkeypatch.setattr(FakeGroup, "failure", CoordinationError("no ZooKeeper"))
        with pytest.raises(CoordinationError):
            async with consumer():
                pass
        monkeypatch.setattr(FakeGroup, "failure", None)
        monkeypatch.setattr(FakeGroup, "start", slowly)
        starting = asyncio.create_task(made.start())
        entering = asyncio.create_task(consumer().__aenter__())
        await asyncio.sleep(0.05)
        starting.cancel()
        entering.cancel()
        await asyncio.gather(starting, entering, return_exceptions=True)
        release.set()
        await made.start()
        own(broker)
        await made.close()
        deadline = time.monotonic() + PATIENCE
        while connector._live and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    run(main())


def test_a_wait_for_partitions_goes_on_until_its_time_is_over(broker: FakeBroker, monkeypatch: Any) -> None:
    """In slices: its thread is free soon after it was cancelled."""

    async def main() -> None:
        async with consumer() as made:
            slices: list[float] = []

            def waits(seconds: float) -> bool:
                slices.append(seconds)
                return len(slices) == 3

            monkeypatch.setattr(made._consumer, "wait_assigned", waits)
            assert await made.wait_assigned(PATIENCE)
            assert len(slices) == 3 and 0 < slices[0] == slices[1] == slices[2] < PATIENCE

    run(main())


def test_offsets_are_committed_and_moved_in_threads(broker: FakeBroker) -> None:
    async def main() -> None:
        async with consumer() as made:
            own(broker)
            assert await made.wait_assigned(0.3) is False  # so says the fake for short times
            first = await anext(made)
            await anext(made)
            await made.commit_offsets()
            assert made.committed == {source_of(): first.next_offset}
            await made.seek(source_of(), 0)
            assert (await anext(made)).payload == LINES[0]
            await made.seek_to_time(source_of(), 0)
            assert (await made.lag(PATIENCE))[source_of()] is not None
            with pytest.raises(OwnershipLostError):
                await made.seek(source_of(1), 0)
            assert made.owned
            assert made.error is None
            assert made.jumps == ()
            assert repr(made).startswith("<aio.Consumer g_")
            assert made.consumer_id.startswith("g_")
            assert made.state is FakeGroup.last.state

    run(main())


def test_it_belongs_to_one_loop(broker: FakeBroker) -> None:
    made = consumer()
    run(made.start())
    for wrong in (made.start(), made.poll(0)):
        with pytest.raises(StateError, match="another event loop"):
            run(wrong)
    made._consumer.shutdown()


def test_what_a_partition_gave_is_not_handed_out_once_it_is_given_up(broker: FakeBroker) -> None:
    async def main() -> None:
        async with consumer() as made:
            own(broker)
            await anext(made)
            FakeGroup.last.readers.release([source_of()])
            assert await made.poll(0.1) is NoMessage.NOT_ASSIGNED

    run(main())

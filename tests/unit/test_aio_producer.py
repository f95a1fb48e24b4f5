"""The producer of coroutines: nothing waits in the loop's thread, and a cancelled await neither loses nor doubles."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

import fastlog
from fastlog.aio import Producer
from fastlog.aio import producer as aio_producer
from fastlog.aio.threads import Threads
from fastlog.errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    DeliveryError,
    ForkedError,
    InvalidMessageError,
    InvalidTopicError,
    MessageTooLargeError,
    QueueFullError,
    StateError,
    TransportError,
    WrongPartitionError,
)
from fastlog.producer import Crc32Partitioner
from fastlog.producer.link import Link
from fastlog.producer.waiting import OneShotEvent
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker, stalled, stored
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE, sooner_than

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 2 * PATIENCE))


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


def test_sends_are_queued_and_flushed_in_their_order() -> None:
    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address) as producer:
            for number in range(1000):
                await producer.send("t", b"%d" % number)
            await producer.send("t", [b"a", b"b"])
            await producer.flush()
            assert stored(broker) == [*(b"%d" % number for number in range(1000)), b"a", b"b"]
            await producer.send("t", b"last")
        assert stored(broker)[-1] == b"last"
        assert producer.stats().delivered == 1003

    with FakeBroker() as broker:
        run(main(broker))


def test_an_acknowledgement_can_be_awaited() -> None:
    """Its offset is that of the message; it waits for no batch to fill, and many tasks share requests."""

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address, queue_time_ms=60_000) as producer:
            (first,) = await producer.send_and_wait("t", b"0")
            assert (first.topic, first.partition, first.offset, first.messages) == ("t", 0, 0, 1)
            assert [one.messages for one in await producer.send_and_wait("t", [b"1", b"2"])] in ([2], [1, 1])
            assert await producer.send_and_wait("t", []) == ()
            requests = broker.seen["ProduceAckRequest"]
            found = await asyncio.gather(*(producer.send_and_wait("t", b"%d" % number) for number in range(3, 500)))
            assert len({delivery.offset for (delivery,) in found}) == len(found)
            assert broker.seen["ProduceAckRequest"] - requests < 100
        assert sorted(map(int, stored(broker))) == [*range(500)]

    with FakeBroker() as broker:
        run(main(broker))


@pytest.mark.parametrize("refused", range(-1, 4))
def test_an_acknowledgement_is_that_of_all_its_messages(refused: int) -> None:
    """They go to different partitions, of which any may refuse them."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and request.partition == refused:
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 2, refused))
        return None

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address) as producer:
            values, keys = [b"%d" % number for number in range(20)], [str(number) for number in range(20)]
            if refused < 0:
                found = await producer.send_and_wait("t", values, keys=keys)
                assert sum(delivery.messages for delivery in found) == 20
                assert {delivery.partition for delivery in found} == set(range(4))
            else:
                with pytest.raises(InvalidMessageError):
                    await producer.send_and_wait("t", values, keys=keys)

    with FakeBroker(partitions=4, hook=hook) as broker:
        run(main(broker))


def test_keys_and_partitions_choose_as_in_the_other_producer() -> None:
    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address) as producer:
            assert await producer.partitions("t") == [(0, number) for number in range(8)]
            for key in ("a", "b", "c"):
                (delivery,) = await producer.send_and_wait("t", b"x", key=key)
                assert delivery.partition == Crc32Partitioner().partition(key, 8)
            for partition in (5, (0, 5), 5):
                (delivery,) = await producer.send_and_wait("t", b"x", partition=partition)
                assert delivery.partition == 5
            (delivery,) = await producer.send_and_wait("t", b"x", partition=-1)
            with pytest.raises(WrongPartitionError):
                await producer.send("t", b"x", partition=8)

    with FakeBroker(partitions=8) as broker:
        run(main(broker))


def test_a_full_queue_makes_tasks_wait_in_turn_while_the_loop_goes_on() -> None:
    release = threading.Event()

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address, queue_messages=10, in_flight_bytes=1, batch_messages=1) as producer:
            sent: list[int] = []

            async def one(number: int) -> None:
                await producer.send("t", b"%d" % number)
                sent.append(number)

            await producer.send("t", b"first")
            tasks = []
            for number in range(200):
                tasks.append(asyncio.create_task(one(number)))
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)
            held = len(sent)
            assert held < 50, "the queue is not bounded"
            assert producer.stats().queued <= 11
            with pytest.raises(TransportError, match="not delivered within"):
                await producer.flush(0.05)
            release.set()
            await asyncio.gather(*tasks)
            assert sent == list(range(200))
        assert stored(broker) == [b"first", *(b"%d" % number for number in range(200))]

    with FakeBroker(hook=stalled(release)) as broker:
        run(main(broker))


def test_a_send_goes_behind_those_that_wait_though_there_is_room_before_they_are_woken() -> None:
    release = threading.Event()

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address, queue_messages=1, in_flight_bytes=1, batch_messages=1) as producer:
            await producer.send("t", b"on its way")
            await until(lambda: broker.seen["ProduceAckRequest"])
            await producer.send("t", b"queued")
            waiting = asyncio.create_task(producer.send("t", b"waits"))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            release.set()
            deadline = time.monotonic() + PATIENCE
            while producer.stats().queued and time.monotonic() < deadline:
                time.sleep(0.002)  # the loop has no turn in which it could wake the task
            await producer.send("t", b"comes behind")
            await waiting
        assert stored(broker) == [b"on its way", b"queued", b"waits", b"comes behind"]

    with FakeBroker(hook=stalled(release)) as broker:
        run(main(broker))


def test_whoever_waits_for_room_is_woken_when_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look from time to time would make every message of a full queue late."""
    monkeypatch.setattr(aio_producer, "_LOOK_AGAIN_SECONDS", 4 * PATIENCE)
    release = threading.Event()

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address, queue_messages=1, in_flight_bytes=1, batch_messages=1) as producer:
            await producer.send("t", b"on its way")
            await until(lambda: broker.seen["ProduceAckRequest"])
            await producer.send("t", b"queued")
            waiting = [asyncio.create_task(producer.send("t", b"%d" % number)) for number in range(5)]
            await asyncio.sleep(0.01)
            release.set()
            await asyncio.gather(*waiting)

    with FakeBroker(hook=stalled(release)) as broker:
        run(main(broker))
    assert len(stored(broker)) == 7


def test_who_waits_for_room_waits_for_no_batch_to_fill() -> None:
    """Nor for its time, which may be longer than anybody waits."""

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address, queue_messages=3, queue_time_ms=3_600_000) as producer:
            for number in range(10):
                await producer.send("t", b"%d" % number)
        assert stored(broker) == [b"%d" % number for number in range(10)]

    with FakeBroker() as broker:
        run(main(broker))


def test_a_flush_asks_again_where_messages_went_to_another_broker_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    request_flush, asked = Link.request_flush, 0

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address) as producer:
            await producer.send("t", b"x")

            def counted(link: Link) -> OneShotEvent:
                nonlocal asked
                asked += 1
                producer._ledger.moves += asked < 3
                return request_flush(link)

            with monkeypatch.context() as patch:
                patch.setattr(Link, "request_flush", counted)
                await producer.flush()
            assert asked == 3

    with FakeBroker() as broker:
        run(main(broker))


@pytest.mark.parametrize("policy", ["raise", "drop", "block"])
def test_a_full_queue_does_what_the_settings_say(policy: str) -> None:
    release = threading.Event()

    async def main(broker: FakeBroker) -> None:
        options: dict[str, Any] = {"queue_full": policy}
        if policy == "block":
            options["enqueue_timeout_ms"] = 50
        async with Producer(
            broker.address, queue_messages=2, in_flight_bytes=1, batch_messages=1, **options
        ) as producer:
            for _ in range(2):  # the second time, nothing is taken out of the queue any more
                with pytest.raises(QueueFullError) if policy != "drop" else contextlib.nullcontext():
                    for _ in range(100):
                        await producer.send("t", b"x")
                await until(lambda: broker.seen["ProduceAckRequest"])
            assert producer.stats().dropped == (200 - producer.stats().accepted if policy == "drop" else 0)
            with pytest.raises(QueueFullError):
                await producer.send_and_wait("t", b"x")
            release.set()
            await producer.flush()
            accepted = producer.stats().accepted
            assert accepted == len(stored(broker)) < 100
            assert await producer.send_and_wait("t", b"x")

    with FakeBroker(hook=stalled(release)) as broker:
        run(main(broker))


def test_waiting_for_the_first_answer_of_a_broker_stops_no_other_task() -> None:
    """It is asked once for all who send to the topic meanwhile; who is cancelled then has sent nothing."""
    release = threading.Event()
    asked = threading.Event()

    def hook(request: rq.Request) -> None:
        if isinstance(request, rq.MetadataRequest):
            asked.set()
            release.wait(60)

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address) as producer:
            tasks = [asyncio.create_task(producer.send_and_wait("t", b"%d" % number)) for number in range(50)]
            await until(asked.is_set)
            for task in tasks[::2]:
                task.cancel()
            turns = 0
            while turns < 100:
                await asyncio.sleep(0)
                turns += 1
            release.set()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(one, asyncio.CancelledError) for one in found] == [True, False] * 25
        assert sorted(stored(broker)) == sorted(b"%d" % number for number in range(1, 50, 2))
        assert broker.seen["MetadataRequest"] <= 3

    with FakeBroker(hook=hook) as broker:
        run(main(broker))


class Questions:
    """Holds a broker's first answer about topics back until the loop has gone on."""

    def __init__(self) -> None:
        self.went_on: list[bool] = []
        self._asked, self._turned = threading.Event(), threading.Event()

    def hook(self, request: rq.Request) -> None:
        if isinstance(request, rq.MetadataRequest) and not self._asked.is_set():
            self._asked.set()
            self.went_on.append(self._turned.wait(PATIENCE))

    async def sent(self, sending: Coroutine[Any, Any, None]) -> None:
        """Send, and let the answer come once the loop has had a turn meanwhile."""
        task = asyncio.create_task(sending)
        await until(self._asked.is_set)
        self._turned.set()
        await task
        assert self.went_on == [True]


@pytest.mark.parametrize("choice", [{}, {"key": b"k"}, {"partition": 0}, {"partition": (0, 1)}, {"partition": -1}])
def test_the_loop_goes_on_while_a_broker_is_asked(choice: dict[str, Any]) -> None:
    questions = Questions()

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address, connect_timeout_ms=60_000) as producer:
            await questions.sent(producer.send("t", b"x", **choice))

    with FakeBroker(partitions=2, hook=questions.hook) as broker:
        run(main(broker))
        assert len(broker.sets) == 1


@pytest.mark.parametrize("choice", [{}, {"key": b"k"}, {"partition": 0}, {"partition": (0, 1)}])
def test_the_loop_goes_on_while_a_broker_is_asked_again_that_has_refused(choice: dict[str, Any]) -> None:
    questions = Questions()

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address, connect_timeout_ms=60_000) as producer:
            broker.refused["t"] = InvalidTopicError.code
            with pytest.raises(InvalidTopicError):
                await producer.send("t", b"refused", **choice)
            broker.refused.clear()
            broker.hook = questions.hook
            await questions.sent(producer.send("t", b"stored", **choice))
        assert len(broker.sets) == 1

    with FakeBroker(partitions=2) as broker:
        run(main(broker))


def test_the_loop_goes_on_while_a_broker_is_asked_for_keys_alone() -> None:
    """One that was away when something without a key was sent."""
    questions = Questions()
    away = FakeBroker(partitions=2, hook=questions.hook)
    away.port = unused_port()

    async def main(broker: FakeBroker) -> None:
        brokers = f"{broker.address},127.0.0.1:{away.port}"
        async with Producer(brokers, connect_timeout_ms=60_000) as producer:
            await producer.send("t", b"x")
            with away:
                await questions.sent(producer.send("t", b"x", key=b"k"))

    with FakeBroker(partitions=2) as broker:
        run(main(broker))


def test_a_send_that_is_cancelled_while_it_waits_for_room_has_sent_nothing() -> None:
    release = threading.Event()

    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address, queue_messages=5, in_flight_bytes=1, batch_messages=1) as producer:
            await producer.send("t", b"first")
            tasks = [asyncio.create_task(producer.send("t", b"%d" % number)) for number in range(100)]
            await asyncio.sleep(0.05)
            pending = [number for number, task in enumerate(tasks) if not task.done()]
            assert len(pending) > 50
            gone = set(pending[::2])
            for number in gone:
                tasks[number].cancel()
            release.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert {number for number, task in enumerate(tasks) if task.cancelled()} == gone
        left = [b"%d" % number for number in range(100) if number not in gone]
        assert stored(broker) == [b"first", *left]

    with FakeBroker(hook=stalled(release)) as broker:
        run(main(broker))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_cancelled_at_any_moment_arrives_at_most_once_and_what_returned_exactly_once(seed: int) -> None:
    """Tasks are cancelled after any number of turns of the loop, at every await that there is."""
    chance = random.Random(seed)

    async def main(broker: FakeBroker) -> None:
        returned: set[bytes] = set()
        begun: set[bytes] = set()
        async with Producer(broker.address, queue_messages=20, batch_messages=3) as producer:

            async def one(number: int) -> None:
                for kind, call in ((b"s", producer.send), (b"w", producer.send_and_wait)):
                    payload = kind + b"%d" % number
                    begun.add(payload)
                    await call("t", payload)
                    returned.add(payload)
                await producer.flush()

            for start in range(0, 300, 30):
                tasks = [asyncio.create_task(one(number)) for number in range(start, start + 30)]
                for _ in range(chance.randrange(60)):
                    await asyncio.sleep(0 if chance.random() < 0.9 else 0.001)
                    chance.choice(tasks).cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            assert await producer.send_and_wait("t", b"usable")
        found = stored(broker)
        assert len(found) == len(set(found))
        assert returned <= set(found) <= begun | {b"usable"}

    with FakeBroker() as broker:
        run(main(broker))


def test_errors_are_those_of_the_other_producer() -> None:
    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address, max_message_bytes=100) as producer:
            for topic, value, options, error in [
                ("t", b"x" * 101, {}, MessageTooLargeError),
                ("t", [b"x", b"x" * 101], {}, MessageTooLargeError),
                ("t", "text", {}, ArgumentError),
                ("a/b", b"x", {}, InvalidTopicError),
                (7, b"x", {}, ArgumentError),
                ("t", b"x", {"partition": "one"}, ArgumentError),
            ]:
                for call in (producer.send, producer.send_and_wait):
                    with pytest.raises(error):
                        await call(topic, value, **options)
        assert stored(broker) == []
        for call in (producer.send, producer.send_and_wait):
            with pytest.raises(ClosedError):
                await call("t", b"x")
            with pytest.raises(ClosedError):
                await call("new", b"x")
        with pytest.raises(ClosedError):
            await producer.flush()
        with pytest.raises(ClosedError):
            async with producer:
                pass
        await producer.close()

    with FakeBroker() as broker:
        run(main(broker))


def test_handlers_are_refused() -> None:
    for name, handler in (("event", "kafka.producer.async.DefaultEventHandler"), ("callback", "logging.Handler")):
        fields: Any = {f"{name}_handler_class": handler}
        with pytest.raises(ConfigError, match="handlers may wait, and a coroutine must not"):
            Producer("localhost:1", producer_type="async", **fields)


def test_a_broker_that_cannot_be_reached_is_an_error_of_each_send() -> None:
    """All who wait for the same answer get it at once."""

    async def main() -> None:
        producer = Producer(f"127.0.0.1:{unused_port()}", connect_timeout_ms=200)
        with sooner_than(10):
            found = await asyncio.gather(*(producer.send("t", b"x") for _ in range(100)), return_exceptions=True)
        assert all(isinstance(one, TransportError) for one in found)
        await producer.close()

    run(main())


def test_messages_go_on_when_a_broker_is_back() -> None:
    async def main(first: FakeBroker) -> None:
        async with Producer(first.address) as producer:
            await producer.send_and_wait("t", b"before")
            await asyncio.to_thread(first.__exit__)
            waiting = asyncio.create_task(producer.send_and_wait("t", b"while away"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            second = FakeBroker()
            second.port = first.port
            with second:
                await waiting
                await producer.send_and_wait("t", b"after")
                assert list(dict.fromkeys(stored(second))) == [b"while away", b"after"]
                await producer.close()

    first = FakeBroker()
    first.port = unused_port()
    first.__enter__()
    run(main(first))


@pytest.mark.slow
def test_what_failed_without_anybody_waiting_is_raised_by_the_next_flush() -> None:
    """Of a send, and of a wait that was cancelled; once."""
    release = threading.Event()

    async def main(broker: FakeBroker) -> None:
        producer = Producer(broker.address, delivery_timeout_ms=100, socket_timeout_ms=100)
        waiting = asyncio.create_task(producer.send_and_wait("t", b"x"))
        await until(lambda: broker.seen["ProduceAckRequest"])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(DeliveryError, match="1 message was"):
            await producer.flush()
        with pytest.raises(TransportError):
            await producer.send_and_wait("t", b"y")
        await producer.send("t", b"z")
        with pytest.raises(DeliveryError, match="1 message was"):
            await producer.close()
        release.set()

    with FakeBroker(hook=stalled(release)) as broker:
        try:
            run(main(broker))
        finally:
            release.set()


def test_a_flush_says_what_failed_though_all_is_over_when_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads are quicker than the loop, which has not been told yet."""
    release, request_flush = threading.Event(), Link.request_flush

    def patient(link: Link) -> OneShotEvent:
        event = request_flush(link)
        assert event.wait(PATIENCE)
        return event

    async def main(broker: FakeBroker) -> None:
        producer = Producer(broker.address, delivery_timeout_ms=100, socket_timeout_ms=100)
        waiting = asyncio.create_task(producer.send_and_wait("t", b"x"))
        await until(lambda: broker.seen["ProduceAckRequest"])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        monkeypatch.setattr(Link, "request_flush", patient)
        with pytest.raises(DeliveryError, match="1 message was"):
            await producer.flush()
        release.set()
        await producer.close()

    with FakeBroker(hook=stalled(release)) as broker:
        try:
            run(main(broker))
        finally:
            release.set()


@pytest.mark.slow
def test_closing_is_bounded_and_goes_on_when_it_is_cancelled() -> None:
    release = threading.Event()

    async def main(broker: FakeBroker) -> None:
        producer = Producer(broker.address)
        await producer.send("t", b"x")
        closing = asyncio.create_task(producer.close(0.3))
        await asyncio.sleep(0.05)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with sooner_than(10), pytest.raises(DeliveryError, match="1 message was"):
            await producer.close()

    with FakeBroker(hook=stalled(release)) as broker:
        try:
            run(main(broker))
        finally:
            release.set()


def test_an_error_in_the_block_is_the_one_that_is_raised() -> None:
    async def main(broker: FakeBroker) -> None:
        with pytest.raises(KeyError):
            async with Producer(broker.address) as producer:
                await producer.send("t", b"x")
                raise KeyError
        assert stored(broker) == [b"x"]

    with FakeBroker() as broker:
        run(main(broker))


def test_a_task_that_only_sends_leaves_turns_to_others() -> None:
    async def main(broker: FakeBroker) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with Producer(broker.address, queue_messages=100_000) as producer:
            await producer.send("t", b"x")
            task = asyncio.create_task(other())
            for _ in range(5000):
                await producer.send("t", b"x")
            assert turns > 10
            task.cancel()

    with FakeBroker() as broker:
        run(main(broker))


@pytest.mark.parametrize(("partition", "in_a_row"), [(None, 6), (0, 4)])
def test_others_have_a_turn_after_so_many_sends_in_a_row(
    monkeypatch: pytest.MonkeyPatch, partition: int | None, in_a_row: int
) -> None:
    """Not after each; those that take a longer way count twice."""
    monkeypatch.setattr(aio_producer, "_SENDS_IN_A_ROW", 6)

    async def main(broker: FakeBroker) -> None:
        found: list[bool] = []

        async def other() -> None:
            while True:
                found.append(False)
                await asyncio.sleep(0)

        async with Producer(broker.address) as producer:
            await producer.send("t", b"x", partition=partition)
            task = asyncio.create_task(other())
            for _ in range(30):
                await producer.send("t", b"x", partition=partition)
                found.append(True)
            task.cancel()
        runs = [len(list(run)) for is_send, run in itertools.groupby(found) if is_send]
        assert runs[1:-1] == [in_a_row] * len(runs[1:-1]) and len(runs) > 2

    with FakeBroker() as broker:
        run(main(broker))


def test_it_belongs_to_one_loop_and_one_process() -> None:
    with FakeBroker() as broker:
        producer = Producer(broker.address)
        run(producer.send("t", b"x"))
        for call in (producer.send("t", b"x"), producer.flush()):
            with pytest.raises(StateError, match="another event loop"):
                run(call)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child = Producer.__new__(Producer)
                vars(child).update(vars(producer))
                child._threads = type(producer._threads)("Producer")
                try:
                    asyncio.run(child.send("t", b"x"))
                except ForkedError:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        producer._producer.close()
        assert stored(broker) == [b"x"]


def test_whoever_looks_and_then_waits_misses_no_wake_up_in_between() -> None:
    """And one from before it looked does not count."""

    async def main() -> None:
        threads = Threads("test")
        threads.begin_to_look()
        threads.wake()
        await asyncio.wait_for(threads.wait(10 * PATIENCE), PATIENCE)
        threads.begin_to_look()
        waiting = asyncio.create_task(threads.wait(10 * PATIENCE))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        threads.wake()
        await asyncio.wait_for(waiting, PATIENCE)

    run(main())


def test_a_wait_that_has_ended_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy program waits thousands of times a second."""
    timers: list[asyncio.TimerHandle] = []

    async def main() -> None:
        threads = Threads("test")
        call_later = threads.loop().call_later
        monkeypatch.setattr(
            threads.loop(), "call_later", lambda *asked: timers.append(call_later(*asked)) or timers[-1]
        )
        for _ in range(2):
            threads.begin_to_look()
            waiting = asyncio.create_task(threads.wait(10 * PATIENCE))
            await asyncio.sleep(0)
            threads.wake()
            await waiting

    run(main())
    assert [timer.cancelled() for timer in timers] == [True, True]


def test_a_loop_that_is_closed_is_told_nothing() -> None:
    """A sending thread that is late must not fail for it."""
    threads = Threads("test")

    async def main() -> None:
        threads.loop()

    asyncio.run(main())
    threads.call(lambda: None)
    threads.wake()


def test_no_thread_is_made_for_a_message() -> None:
    async def main(broker: FakeBroker) -> None:
        async with Producer(broker.address) as producer:
            await producer.send_and_wait("t", b"x")
            await producer.flush()
            before = threading.active_count()
            await asyncio.gather(*(producer.send_and_wait("t", b"x") for _ in range(500)))
            for _ in range(500):
                await producer.send("t", b"x")
            assert threading.active_count() <= before

    with FakeBroker() as broker:
        run(main(broker))


def test_the_package_gives_it_when_it_is_used() -> None:
    assert fastlog.aio.Producer is Producer

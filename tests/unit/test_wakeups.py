"""Who waits is woken by what it waits for, and by nothing else.

Heartbeats and retries are hours apart here: a wake-up that is lost is a client that waits until its time is over, and a
loop that turns without a reason never stands still.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log._shared_memory import FIRST_PROCESSOR, FLUSHER, STAGE_FLUSHER, STAGE_PROCESSORS
from fastlog.workers._flusher import make_flusher_loop
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.processor import Processor
from tests.harness.shared_log import SharedLog, in_child
from tests.harness.single_steps import seen_between_instructions, single_steps
from tests.harness.timing import PATIENCE
from tests.harness.workers import Workers, drain, is_silent, reset

GOOD = raw.entry(b"good")
LONG_MS = 10_000_000
MEGABYTE = 1 << 20


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Workers]:
    """Two processors and a flusher that flushes nothing before somebody wants it."""
    with Workers(tmp_path, processors=2, partitions=4, fetch_max_wait_ms=LONG_MS) as running:
        yield running


def held(topic: str, offset: int, wait_ms: int = LONG_MS, partition: int = 0, least: int = 1) -> bytes:
    body = raw.held_fetch_body(topic, partition, offset, 1000, wait_ms, least)
    return raw.own_frame(raw.HELD_FETCH, body, correlation=7)


def acked(acks: int = raw.APPENDED, topic: str = "t", partition: int = 0, messages: bytes = GOOD) -> bytes:
    return raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, partition, messages, acks), correlation=7)


def wait_taken(workers: Workers, client: raw.RawClient) -> None:
    """Returns once the processor has received what the client sent, and looked at it."""
    client.wait_received()
    workers.wait_still()


# -- who is woken ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("producer", [0, 1])
@pytest.mark.parametrize("acks", [raw.APPENDED, raw.FLUSHED])
def test_a_held_fetch_by_an_append_of_any_processor(two: Workers, producer: int, acks: int) -> None:
    """Again and again: the second wait begins where the first one ended."""
    with two.connect(0) as reader, two.connect(producer) as writer:
        assert writer.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        for number in range(1, 12):
            reader.send_raw(held("t", number * 14))
            if number % 4 == 1:
                wait_taken(two, reader)
                assert is_silent(reader)
            assert writer.produce_ack("t", 0, GOOD, acks).error == 0
            assert raw.decode_held(reader.recv_own()[1]).messages == GOOD


@pytest.mark.parametrize("maker", ["produce", "create topic"])
@pytest.mark.parametrize("writer_at", [0, 1])
def test_a_held_fetch_of_a_topic_that_is_made(two: Workers, maker: str, writer_at: int) -> None:
    with two.connect(0) as reader, two.connect(1 - writer_at) as other, two.connect(writer_at) as writer:
        for client in (reader, other):
            client.send_raw(held("t", 0, partition=2))
            wait_taken(two, client)
        if maker == "create topic":
            assert writer.create_topic("t", 4)[0] == 0
            two.wait_still()
            assert is_silent(reader)
        writer.produce("t", 2, GOOD)
        for client in (reader, other):
            assert raw.decode_held(client.recv_own()[1]).messages == GOOD


def test_who_waits_for_what_a_flusher_flushed_and_did_not_show(tmp_path: Path) -> None:
    """It was killed between the two ends; for the next one there is nothing left to flush, and something to show.

    A producer is not told before readers are: it may ask for what it has sent.
    """
    with Workers(tmp_path, flusher=False, fetch_max_wait_ms=LONG_MS) as workers, ExitStack() as stack:
        reader, producer = (stack.enter_context(workers.connect()) for _ in range(2))
        producer.send_raw(acked(raw.FLUSHED))
        wait_taken(workers, producer)
        dying = make_partition_flusher(workers.arena, 64, 0, 0)
        assert in_child(lambda: flush_now(dying, 0), "flush.flushed@1=kill") == -signal.SIGKILL
        view = workers.arena.view(0)
        assert (view.visible_end, view.flushed_end) == (0, 14)
        reader.send_raw(held("t", 0))
        wait_taken(workers, reader)
        assert is_silent(reader)
        assert is_silent(producer)
        assert flush_now(make_partition_flusher(workers.arena, 64, 0, 0), 0) == 0
        assert raw.decode_held(reader.recv_own()[1]).messages == GOOD
        assert producer.recv_own()[1].error == 0


def test_a_held_fetch_of_several_bytes_by_the_append_that_completes_them(two: Workers) -> None:
    with two.connect(0) as reader, two.connect(1) as writer:
        assert writer.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        reader.send_raw(held("t", 14, least=3 * 14))
        for _ in range(2):
            writer.produce("t", 0, GOOD)
            wait_taken(two, writer)
            assert is_silent(reader)
        writer.produce("t", 0, GOOD)
        assert raw.decode_held(reader.recv_own()[1]).messages == GOOD * 3


def test_producers_that_wait_for_one_flush(two: Workers) -> None:
    """On both processors, several on each; what one of them sends behind it is answered, too."""
    with ExitStack() as stack:
        clients = [stack.enter_context(two.connect(number % 2)) for number in range(8)]
        assert clients[0].produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        for _ in range(10):
            for client in clients:
                client.send_raw(acked(raw.FLUSHED) + raw.offsets_frame("t", 0, raw.EARLIEST, 1))
            for client in clients:
                assert client.recv_own()[1].error == 0
                assert raw.decode_offsets(client.recv_answer().body) == [0]


def test_an_empty_set_that_waits_for_the_flush_of_what_is_there(two: Workers) -> None:
    with two.connect(0) as client:
        assert client.produce_ack("t", 0, GOOD).error == 0
        assert client.produce_ack("t", 0, b"", raw.FLUSHED) == (0, 0, 14, 14)
        assert client.fetch("t", 0, 0).body == GOOD


def test_a_producer_that_finds_the_log_locked(two: Workers) -> None:
    """By the other processor, which takes its time to write; the one that waits is woken by the unlock, every time."""
    with two.connect(0) as slow, two.connect(1) as quick:
        assert slow.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        for number in range(5):
            _files.arm("append.after_lock@1=slow:60", "test")
            slow.send_raw(acked())
            wait_until("it has the lock", lambda: two.arena.cell(two.processors[0].number)[4])
            begun = two.count("lock_waits")
            quick.send_raw(acked())
            assert quick.recv_own()[1].error == 0
            assert slow.recv_own()[1].error == 0
            assert two.count("lock_waits") >= begun
            assert slow.log_end("t", 0) == 14 * (1 + 2 * (number + 1))


@pytest.mark.parametrize("request_bytes", [acked(topic="b"), raw.own_frame(raw.CREATE_TOPIC, raw.place("b", 1))])
def test_a_creation_that_finds_another_one_under_way(two: Workers, request_bytes: bytes) -> None:
    _files.arm("create.directory@1=slow:60", "test")
    with two.connect(0) as slow, two.connect(1) as quick:
        slow.send_raw(acked(topic="a"))
        wait_until("it makes the directory", lambda: not two.arena.create_lock() or two.arena.create_unlock())
        quick.send_raw(request_bytes)
        assert quick.recv_own()[1].error == 0
        assert slow.recv_own()[1].error == 0


def test_connections_that_wait_for_room(tmp_path: Path) -> None:
    """On every processor, in any order, until everything is in; the bound holds all the time."""
    with Workers(tmp_path, processors=2, flush_interval_messages=10) as workers, ExitStack() as stack:
        clients = [stack.enter_context(workers.connect(number % 2)) for number in range(6)]
        for client in clients:
            client.send_raw(raw.produce_frame("t", 0, GOOD) * 200 + acked())
        for client in clients:
            assert client.recv_own()[1].error == 0
        clients[0].wait_visible("t", 0, 6 * 201 * 14)


@pytest.mark.parametrize(("settings", "count"), [({"flush_interval_messages": 10}, 5), ({"flush_bytes": 140}, 5)])
def test_the_flusher_by_half_of_what_may_be_unflushed(tmp_path: Path, settings: dict[str, int], count: int) -> None:
    """One message less wakes nobody."""
    with Workers(tmp_path, **settings) as workers, workers.connect() as client:
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        for _ in range(count - 1):
            assert client.produce_ack("t", 0, GOOD).error == 0
        workers.wait_still()
        assert workers.arena.view(0).flushed_end == 14
        client.produce("t", 0, GOOD)
        wait_until("it is flushed", lambda: workers.arena.view(0).flushed_end == (count + 1) * 14)


def test_the_flusher_by_the_first_byte_that_grows_old(tmp_path: Path) -> None:
    """Nobody asks for it, and it is not sooner than that; the same again after it was flushed."""
    with Workers(tmp_path, flush_interval_ms=200) as workers, workers.connect() as client:
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        for number in range(2, 5):
            begun = time.monotonic()
            assert client.produce_ack("t", 0, GOOD).error == 0
            wait_until("it is flushed", lambda: workers.arena.view(0).flushed_end == number * 14)  # noqa: B023
            assert time.monotonic() - begun > 0.1
        workers.wait_still()


@single_steps
def test_a_flusher_that_is_woken_by_a_reader_sees_why(tmp_path: Path) -> None:
    """It looks as soon as it is woken, whatever the processor has still to do: what is not flushed then never is."""
    log = SharedLog(tmp_path)
    log.append(GOOD)
    flush_now(log.flusher, 0)
    log.append(GOOD)
    processor = Processor(tmp_path, arena=log.arena, number=FIRST_PROCESSOR + 1, heartbeat_ms=LONG_MS, runs=False)
    flusher = make_flusher_loop(log.arena, 64, 0, 0, 0, -1, LONG_MS)
    flushing = threading.Thread(target=flusher.run, args=(2, 2, os.getppid()))
    flushing.start()
    ends: list[int] = []
    woken, answered = select.poll(), select.poll()
    woken.register(log.arena.eventfd(FLUSHER), select.POLLIN)
    with processor.connect() as reader:
        answered.register(reader, select.POLLIN)
        reader.sendall(raw.fetch_frame("t", 0, 0, 1000))

        def look() -> None:
            while woken.poll(0):
                time.sleep(0.05)
            if answered.poll(0) and not log.arena.stopping:
                deadline = time.monotonic() + PATIENCE
                while log.arena.view(0).flushed_end < 28 and time.monotonic() < deadline:
                    time.sleep(0.01)
                ends.append(log.arena.view(0).flushed_end)
                log.arena.set_stopping(STAGE_PROCESSORS)  # which wakes the flusher, too

        try:
            seen_between_instructions(lambda: processor.loop.run(os.getppid()), look)
            assert reader.recv(1000).endswith(GOOD)
            assert ends == [28]
        finally:
            log.arena.set_stopping(STAGE_FLUSHER)
            flushing.join(PATIENCE)
            processor.close()


def test_the_flusher_when_a_flush_could_not_be_done(two: Workers) -> None:
    """Out of descriptors: it tries again by itself, and who waits for it is woken then."""
    with two.connect(0) as client:
        assert client.produce_ack("t", 0, GOOD).error == 0
        _files.arm("open@1-3=EMFILE", "test")
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        assert two.flushes()["flushes_without_files"] == 3
    two.wait_still()


def test_who_waits_when_a_flush_fails(two: Workers) -> None:
    """Producers are told; a held fetch goes on waiting, for whatever comes, and ends in time."""
    with two.connect(0) as first, two.connect(1) as second, two.connect(1) as reader:
        assert first.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        _files.arm("fdatasync@1=EIO", "test")
        reader.send_raw(held("t", 14, wait_ms=500))
        wait_taken(two, reader)
        first.send_raw(acked(raw.FLUSHED) * 3)
        second.send_raw(acked(raw.FLUSHED) * 3)
        for client in (first, second):
            for _ in range(3):
                assert client.recv_own()[1].error == 101
        assert raw.decode_held(reader.recv_own()[1]) == (0, 14, 0, b"")
    two.wait_still()


def test_processors_by_retention(two: Workers) -> None:
    """They close what is gone, though nobody asks them for anything; a reader in the middle keeps what it reads."""
    with two.connect(0) as client, two.connect(1) as other:
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        assert other.fetch("t", 0, 0).body == GOOD
        opened = two.held()
        assert opened["t-0/00000000000000000000.kafka"] == 3  # two processors and the flusher
        two.wait_still()
        roll(two)
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        two.arena.publish_retention(0, 1, 14)
        two.arena.retention_done()
        wait_until("they are closed", lambda: two.held()["t-0/00000000000000000000.kafka"] <= 1)
        assert client.fetch("t", 0, 0).error == 1
        assert other.fetch("t", 0, 14).body == GOOD


def roll(workers: Workers) -> None:
    """Begin a new segment, as the keeper does."""
    from fastlog.log._append import Appender, roll_now
    from fastlog.log._segments import SegmentFiles
    from fastlog.log._shared_memory import KEEPER

    assert roll_now(Appender(workers.arena, SegmentFiles(workers.arena, 4), KEEPER), 0)


def test_a_stop_wakes_everybody(tmp_path: Path) -> None:
    """Held fetches are answered, and what is unflushed is flushed; no loop waits for its heartbeat."""
    with Workers(tmp_path, processors=2, fetch_max_wait_ms=LONG_MS) as workers, ExitStack() as stack:
        clients = [stack.enter_context(workers.connect(number % 2)) for number in range(4)]
        assert clients[0].produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        for client in clients:
            client.send_raw(held("t", 14) + held("nobody", 0) + acked())
            wait_taken(workers, client)
        workers.stop()
        for client in clients:
            answers = drain(client)
            # what the others appended meanwhile may be flushed, and be in the first of them
            size = 4 + int.from_bytes(answers[:4], "big")
            assert (size - 26) % len(GOOD) == 0
            assert len(answers) == size + 26 + 30
        view = workers.arena.view(0)
        assert (view.flushed_end, view.log_end) == (5 * 14, 5 * 14)
        assert [processor.results for processor in workers.processors] == [[0], [0]]


# -- waits end when they are due ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["t", "nobody"])
@pytest.mark.parametrize("wait_ms", [0, 1, 80])
def test_a_held_fetch_ends_when_its_time_is_over(two: Workers, topic: str, wait_ms: int) -> None:
    with two.connect(0) as client:
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        begun = time.monotonic()
        client.send_raw(held(topic, 14 if topic == "t" else 0, wait_ms))
        assert client.recv_own()[1].error == 0
        assert time.monotonic() - begun >= wait_ms / 1000
    two.wait_still()


@pytest.mark.parametrize("waits", [(LONG_MS, 200, 100, 150, LONG_MS), (400, 450, LONG_MS)])
def test_the_first_of_several_waits_ends_first(two: Workers, waits: tuple[int, ...]) -> None:
    """Whatever the order in which they came."""
    with ExitStack() as stack:
        clients = [stack.enter_context(two.connect(0)) for _ in waits]
        assert clients[0].produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        for client, wait_ms in zip(clients, waits, strict=True):
            client.send_raw(held("t", 14, wait_ms))
            client.wait_received()
        for number in sorted(range(len(waits)), key=waits.__getitem__):
            if waits[number] != LONG_MS:
                assert raw.decode_held(clients[number].recv_own()[1]) == (0, 14, 0, b"")
        two.wait_still()
        assert all(is_silent(client) for client, wait_ms in zip(clients, waits, strict=True) if wait_ms == LONG_MS)


def test_the_next_wait_of_a_connection_has_its_own_time(two: Workers) -> None:
    """It began when the one before it was answered, which might have waited for much longer."""
    with two.connect(0) as client, two.connect(1) as writer:
        assert writer.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        client.send_raw(held("t", 14) + held("t", 28, 80))
        wait_taken(two, client)
        writer.produce("t", 0, GOOD)
        assert raw.decode_held(client.recv_own()[1]) == (0, 28, 0, GOOD)
        assert raw.decode_held(client.recv_own()[1]) == (0, 28, 0, b"")


def test_how_busy_a_processor_is_is_the_time_that_it_does_not_wait(tmp_path: Path) -> None:
    """A disk that takes its time keeps it from waiting; afterwards it has nothing else to do."""
    with Workers(tmp_path, heartbeat_ms=100) as workers, workers.connect() as client:

        def busy_permille() -> int:
            return workers.arena.cell(FIRST_PROCESSOR)[2]

        assert client.produce_ack("t", 0, GOOD).error == 0
        loop = workers.processors[0].loop
        turns = loop.turns
        wait_until("it has rested for more than a second", lambda: loop.turns > turns + 14)
        assert busy_permille() < 400
        _files.arm("pwrite@1=slow:1500", "test")
        client.send_raw(acked())
        wait_until("it works", lambda: busy_permille() >= 600, pause=0.001)
        assert client.recv_own()[1].error == 0
        wait_until("it rests", lambda: busy_permille() < 400)


# -- what waits costs nothing ------------------------------------------------------------------------------------------


def nothing(_: Workers, client: raw.RawClient) -> None:
    """Only connected."""


def sends_half(_: Workers, client: raw.RawClient) -> None:
    client.send_raw(acked()[:-1])


def is_deaf(workers: Workers, client: raw.RawClient) -> None:
    """Asks for more than fits into the sockets."""
    client.send_raw(raw.fetch_frame("large", 0, 0, 16 * MEGABYTE) * 4)


def holds(_: Workers, client: raw.RawClient) -> None:
    client.send_raw(held("t", 14) + acked())


def holds_nothing(_: Workers, client: raw.RawClient) -> None:
    client.send_raw(held("nobody", 0) + acked())


def holds_and_ends(workers: Workers, client: raw.RawClient) -> None:
    """A held fetch is answered, and the produce behind it, when the client says that it sends no more."""
    client.send_raw(held("t", 14))
    wait_taken(workers, client)
    client.finish_sending()


def waits_for_room(workers: Workers, client: raw.RawClient) -> None:
    client.send_raw(raw.produce_frame("full", 0, GOOD) * 50 + acked(raw.FLUSHED, "full"))


def waits_for_room_and_ends(workers: Workers, client: raw.RawClient) -> None:
    waits_for_room(workers, client)
    client.wait_received()
    client.finish_sending()


def waits_for_room_and_resets(workers: Workers, client: raw.RawClient) -> None:
    """What it sent stays and is written; nobody can be told that there is nobody."""
    waits_for_room(workers, client)
    client.wait_received()
    reset(client)


def waits_for_memory(_: Workers, client: raw.RawClient) -> None:
    client.send_raw(raw.produce_frame("t", 0, raw.entry(bytes(900_000)))[:400_000])


STATES = {function.__name__: function for function in (
    nothing, sends_half, is_deaf, holds, holds_nothing, holds_and_ends, waits_for_room, waits_for_room_and_ends,
    waits_for_room_and_resets, waits_for_memory,
)}  # fmt: skip


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Workers]:
    """A partition that takes nothing more, since nobody flushes, and memory for less than one large request."""
    with Workers(
        tmp_path,
        flusher=False,
        flush_interval_messages_by_topic={"full": 10},
        fetch_max_wait_ms=LONG_MS,
        request_memory_bytes=MEGABYTE // 4,
        max_message_bytes=MEGABYTE,
    ) as running:
        yield running
        running.start_flusher()


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_connection_that_waits_turns_no_loop(
    crowded: Workers, state: Callable[[Workers, raw.RawClient], None]
) -> None:
    """Nor do five of them; and whoever else is there is served."""
    with crowded.connect() as other, ExitStack() as stack:
        for _ in range(4 if state is is_deaf else 0):
            assert other.produce_ack("large", 0, raw.entry(bytes(900_000)) * 4).error == 0
        assert other.produce_ack("t", 0, GOOD).error == 0
        flush_all(crowded)
        for _ in range(5):
            client = stack.enter_context(crowded.connect())
            state(crowded, client)
            if state in (nothing, sends_half, holds, holds_nothing, waits_for_room):
                client.wait_received()
        crowded.wait_still()
        assert other.produce_ack("t", 0, GOOD).error == 0
        assert other.offsets("t", 0, raw.EARLIEST) == [0]
        crowded.wait_still()


def flush_all(workers: Workers) -> None:
    """Flush what is there, once: there is no flusher."""
    from fastlog.log._flush import flush_now, make_partition_flusher

    flusher = make_partition_flusher(workers.arena, 64, 0, 0)
    for index in range(workers.arena.slot_count):
        assert flush_now(flusher, index) == 0


def test_an_idle_broker_does_not_turn(two: Workers) -> None:
    with two.connect(0) as first, two.connect(1) as second:
        for client in (first, second):
            assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
            assert client.fetch("t", 0, 0, 14).body == GOOD
        two.wait_still()


def test_a_turn_for_every_request_and_no_more(two: Workers) -> None:
    """One that is answered at once costs one turn, not one to answer and one to find nothing to do."""
    with two.connect(0) as client:
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        two.wait_still()
        before = two.turns()
        for _ in range(100):
            assert client.offsets("t", 0, raw.EARLIEST) == [0]
        two.wait_still()
        assert two.turns() - before <= 110


def far(client: raw.RawClient) -> None:
    """Read so little, so early, that many such answers are visible behind it."""
    assert client.fetch("t", 0, 0, len(GOOD)).error == 0
    assert client.multifetch([("t", 0, 0, len(GOOD))])[0].error == 0
    assert client.held_fetch("t", 0, 0, len(GOOD)).error == 0


NEAR: dict[str, Callable[[raw.RawClient], object]] = {
    "fetch": lambda client: client.fetch("t", 0, 0),
    "multifetch": lambda client: client.multifetch([("t", 0, 0, 1 << 20)]),
    "held fetch": lambda client: client.held_fetch("t", 0, 0),
}


@pytest.mark.parametrize("read", NEAR.values(), ids=NEAR)
def test_a_reader_that_comes_near_the_visible_end_has_the_next_flush_begin(
    read: Callable[[raw.RawClient], object], tmp_path: Path
) -> None:
    """Though nobody waits at that end yet: it would wait for all that was appended while it read up to there."""
    with Workers(tmp_path) as workers, workers.connect() as client:
        assert client.produce_ack("t", 0, GOOD * 50, raw.FLUSHED).error == 0
        assert client.produce_ack("t", 0, GOOD).error == 0
        workers.wait_still()
        far(client)
        workers.wait_still()
        assert workers.arena.view(0).visible_offset == 50 * len(GOOD)
        read(client)
        wait_until("it is flushed", lambda: workers.arena.view(0).visible_offset == 51 * len(GOOD))

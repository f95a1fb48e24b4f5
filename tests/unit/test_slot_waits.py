"""A fetch of today's protocol waits for many partitions, and none of them costs anything while it stands still.

Heartbeats are hours apart here, and nothing is flushed that nobody asks for: a move that nobody tells of is a client
that waits.
"""

from __future__ import annotations

import random
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fastlog import record_batches
from fastlog.log import _files
from fastlog.log._append import end_life
from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log._shared_memory import FLUSHER
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.log.recovery import recover_partition
from fastlog.log.slots import SlotView
from fastlog.record_batches import Record
from fastlog.segment_files import partition_directory_name
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.broker import wait_until
from tests.harness.shared_log import SharedLog, in_child
from tests.harness.workers import Workers, is_silent, reset

LONG_MS = 10_000_000
IDLE, BUSY = "idle", "busy"
PARTITIONS = 100
UNKNOWN_TOPIC = 3
SPARE = 16
"""Slots that only partitions take which come back into service."""
ONE = record_batches.build([Record(None, b"x" * 50, 1000)])


def started(directory: Path, **settings: Any) -> Workers:
    topics = {IDLE: PARTITIONS, BUSY: 4}
    settings = {"slots": 300, "partitions_by_topic": topics, "fetch_max_wait_ms": LONG_MS} | settings
    return Workers(directory, **settings)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with started(tmp_path) as running:
        with Client(running) as client:
            client.make(IDLE, BUSY)
        for view in running.arena.views():  # that they are new is flushed, too
            assert flush_now(make_partition_flusher(running.arena, 64, 0, 0), view.index) == 0
        yield running


class Client:
    """A connection that speaks today's protocol."""

    def __init__(self, workers: Workers, processor: int = 0) -> None:
        self.workers = workers
        self.raw: raw.RawClient = workers.connect(processor)
        today.asked(self.raw.socket, today.API_VERSIONS, 0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def make(self, *topics: str) -> None:
        fields = {
            "topics": [{"topic_id": None, "name": topic} for topic in topics],
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": False,
        }
        made = today.asked(self.raw.socket, today.METADATA, 12, **fields).topics
        assert [topic.error_code for topic in made] == [0] * len(topics)

    def send_produce(self, topic: str, partition: int, acks: int = -1) -> None:
        self.raw.socket.sendall(today.request(today.PRODUCE, 9, today.produced((topic, partition, ONE), acks=acks)))

    def produced(self) -> int:
        """The error code of the answer to a produce."""
        _, answer = today.decoded(today.PRODUCE, 9, today.answer_of(self.raw.socket))
        return int(answer.responses[0].partition_responses[0].error_code)

    def produce(self, topic: str, partition: int, acks: int = -1) -> None:
        self.send_produce(topic, partition, acks)
        assert self.produced() == 0

    def hold(self, *parts: tuple[str, int, int], max_wait: int = LONG_MS, min_bytes: int = 1) -> None:
        """Begin a fetch, and return when it waits."""
        fields = today.fetched(*parts, max_wait=max_wait, min_bytes=min_bytes)
        self.raw.socket.sendall(today.request(today.FETCH, 12, fields))
        self.raw.wait_received()
        self.workers.wait_still()
        assert is_silent(self.raw)

    def fetched(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Of each part that has records or an error: its error code, and the bytes of its records."""
        _, answer = today.decoded(today.FETCH, 12, today.answer_of(self.raw.socket))
        return {
            (topic.topic, part.partition_index): (part.error_code, len(part.records or b""))
            for topic in answer.responses
            for part in topic.partitions
            if part.error_code or part.records
        }


def every_idle() -> list[tuple[str, int, int]]:
    return [(IDLE, partition, 0) for partition in range(PARTITIONS)]


# -- what stands still -------------------------------------------------------------------------------------------------


def test_what_stands_still_is_looked_at_once(workers: Workers) -> None:
    """However many wait for it, and however often another partition moves; the one that moves is looked at again."""
    with ExitStack() as stack:
        waiting = [stack.enter_context(Client(workers)) for _ in range(5)]
        writer = stack.enter_context(Client(workers))
        for client in waiting:
            client.hold(*every_idle())
        assert workers.count("fetch_looks") == 5 * PARTITIONS
        for number in range(30):
            writer.produce(BUSY, number % 2)
        workers.wait_still()
        assert workers.count("fetch_looks") == 5 * PARTITIONS
        writer.produce(IDLE, 70)
        for client in waiting:
            assert client.fetched() == {(IDLE, 70): (0, len(ONE))}
        assert workers.count("fetch_looks") == 5 * PARTITIONS + 5


def test_answers_that_wait_for_flushes_of_different_partitions(workers: Workers) -> None:
    """Of two that wait for flushes each is answered when its own partition is flushed, whichever comes first."""
    with Client(workers) as one, Client(workers) as other, Client(workers) as reader:
        reader.hold((BUSY, 0, 0), (BUSY, 1, 0), min_bytes=2 * len(ONE))
        _files.arm("fdatasync@1=slow:60", "test")
        for number, client in enumerate((one, other)):
            client.send_produce(BUSY, number)
        for client in (one, other):
            assert client.produced() == 0
        assert reader.fetched() == {(BUSY, 0): (0, len(ONE)), (BUSY, 1): (0, len(ONE))}


def test_parts_that_are_enough_together(workers: Workers) -> None:
    """What is there is counted again with what comes, and what stands still is not looked at."""
    with Client(workers) as reader, Client(workers) as writer:
        reader.hold(*every_idle(), min_bytes=3 * len(ONE))
        looks = workers.count("fetch_looks")
        for number, partition in enumerate((5, 90), 1):
            writer.produce(IDLE, partition)
            workers.wait_still()
            assert is_silent(reader.raw)
            # the part that has moved, and those that have something
            looks += number
            assert workers.count("fetch_looks") == looks
        writer.produce(IDLE, 5)
        assert reader.fetched() == {(IDLE, 5): (0, 2 * len(ONE)), (IDLE, 90): (0, len(ONE))}
        workers.wait_still()
        assert workers.held()["pins"] == 0


@pytest.mark.parametrize("count", [511, 512, 513, 1200])
def test_more_parts_than_one_turn_looks_at(workers: Workers, count: int) -> None:
    """One that moves is seen, whichever it is; the same one may be named again and again."""
    with Client(workers) as reader, Client(workers) as writer:
        reader.hold(*[(IDLE, number % 7, 0) for number in range(count)])
        looks = workers.count("fetch_looks")
        assert looks == count
        writer.produce(IDLE, 3)
        assert reader.fetched() == {(IDLE, 3): (0, len(ONE))}
        assert workers.count("fetch_looks") == looks + len(range(3, count, 7))


# -- moves that are told of late, or by nobody -------------------------------------------------------------------------


def test_a_move_between_the_look_and_the_wait(tmp_path: Path) -> None:
    """The partition is flushed after it was looked at, and before the fetch has said that it waits."""
    with started(tmp_path, processors=2) as workers, Client(workers) as reader, Client(workers, 1) as writer:
        writer.make(BUSY)
        for turn in range(3):
            _files.arm("wait.hold@2=slow:200", "test")
            parts = today.fetched((BUSY, 0, 0), (BUSY, 1, turn), max_wait=LONG_MS)
            reader.raw.socket.sendall(today.request(today.FETCH, 12, parts))
            wait_until("it looks", lambda held=turn + 1: workers.count("held_fetches") == held)
            writer.produce(BUSY, 1)
            assert reader.fetched() == {(BUSY, 1): (0, len(ONE))}


def test_every_process_that_waits_is_told_of_a_move(tmp_path: Path) -> None:
    with started(tmp_path, processors=2) as workers, Client(workers) as one, Client(workers, 1) as other:
        one.make(BUSY)
        other.hold((BUSY, 0, 0))
        one.send_produce(BUSY, 0)
        assert one.produced() == 0
        assert other.fetched() == {(BUSY, 0): (0, len(ONE))}


def slot_of(workers: Workers, topic: str, partition: int) -> int:
    return next(view.index for view in workers.arena.views() if (view.topic, view.partition) == (topic, partition))


def test_who_dies_before_it_tells(tmp_path: Path) -> None:
    """A flusher that was killed when its flush was visible; as soon as it is known that it died, all is looked at."""
    with started(tmp_path, flusher=False) as workers, Client(workers) as reader, Client(workers) as writer:
        writer.make(IDLE, BUSY)
        reader.hold(*every_idle(), (BUSY, 0, 0))
        writer.produce(BUSY, 0, acks=1)
        writer.send_produce(BUSY, 0, acks=-1)
        wait_until("both are appended", lambda: workers.count("appends") == 2)
        index = slot_of(workers, BUSY, 0)
        dying = make_partition_flusher(workers.arena, 64, 0, 0)
        assert in_child(lambda: flush_now(dying, index), "flush.published@1=kill") == -signal.SIGKILL
        assert workers.arena.view(index).visible_offset == 2
        workers.wait_still()
        assert is_silent(reader.raw)
        workers.arena.end_incarnation(FLUSHER)
        workers.arena.wake_all()
        assert reader.fetched() == {(BUSY, 0): (0, 2 * len(ONE))}
        assert writer.produced() == 0


def test_a_flush_of_nothing_leaves_the_wish_for_the_next_one(workers: Workers) -> None:
    """Who waits has asked for a flush of what comes; one that finds nothing to do is not it."""
    with Client(workers) as reader, Client(workers) as writer:
        reader.hold((BUSY, 0, 0))
        assert flush_now(make_partition_flusher(workers.arena, 64, 0, 0), slot_of(workers, BUSY, 0)) == 0
        writer.produce(BUSY, 0, acks=1)
        assert reader.fetched() == {(BUSY, 0): (0, len(ONE))}


def test_a_partition_that_goes_while_it_is_waited_for(workers: Workers) -> None:
    with Client(workers) as reader:
        reader.hold(*every_idle())
        log = SharedLog.over(workers.arena)
        assert workers.arena.create_lock()
        assert end_life(log.appender, slot_of(workers, IDLE, 42))
        workers.arena.create_unlock()
        assert reader.fetched() == {(IDLE, 42): (UNKNOWN_TOPIC, 0)}


def test_who_waited_for_a_partition_that_lives_in_another_slot_waits_there_alone(workers: Workers) -> None:
    """Its former slot becomes another partition's, and what moves there is no news to them."""
    with ExitStack() as stack:
        first, second, other, writer = (stack.enter_context(Client(workers)) for _ in range(4))
        for client in (first, second):
            client.hold((BUSY, 0, 0))
        former = workers.arena.view(slot_of(workers, BUSY, 0))
        move_to_another_slot(workers, former)
        workers.wait_still()
        assert slot_of(workers, BUSY, 0) != former.index
        assert is_silent(first.raw) and is_silent(second.raw)
        workers.arena.wake_all()
        wait_until("all are past it", lambda: workers.arena.is_past(former.index))
        assert workers.arena.create_lock()
        workers.arena.free(former.index)
        workers.arena.create_unlock()
        writer.make("other")
        assert slot_of(workers, "other", 0) == former.index
        other.hold(("other", 0, 0))
        looks = workers.count("fetch_looks")
        writer.produce("other", 0)
        assert other.fetched() == {("other", 0): (0, len(ONE))}
        workers.wait_still()
        assert workers.count("fetch_looks") == looks + 1
        writer.produce(BUSY, 0, acks=1)
        for client in (first, second):
            assert client.fetched() == {(BUSY, 0): (0, len(ONE))}


def move_to_another_slot(workers: Workers, view: SlotView) -> None:
    """What a keeper does with a partition that comes back into service."""
    manager = LogManager(workers.processors[0].config, workers.arena)
    assert workers.arena.create_lock()
    assert end_life(SharedLog.over(workers.arena).appender, view.index, True)
    folder = workers.directory / partition_directory_name(view.topic, view.partition)
    found = recover_partition(folder, view.topic, view.partition, clean_end=None, files=FileOps(), least=0)
    manager.put_back(view, found)
    workers.arena.succeed(view.index)
    workers.arena.create_unlock()


def test_requests_begin_with_another_part_each_time_and_keep_no_descriptor(workers: Workers) -> None:
    """Where one batch is all that may be in an answer; however many came before, more is sent where it may be."""
    with Client(workers) as client:
        for partition in (0, 1, 0):
            client.produce(BUSY, partition)
        parts = (BUSY, 0, 0), (BUSY, 1, 0)
        found = []
        for number in range(20):
            fields = today.fetched(*parts, max_bytes=1 if number % 2 else len(ONE))
            client.raw.socket.sendall(today.request(today.FETCH, 12, fields))
            found.append(client.fetched())
        assert found == [{(BUSY, 0): (0, len(ONE))}, {(BUSY, 1): (0, len(ONE))}] * 10
        client.raw.socket.sendall(today.request(today.FETCH, 12, today.fetched(*parts)))
        assert client.fetched() == {(BUSY, 0): (0, 2 * len(ONE)), (BUSY, 1): (0, len(ONE))}


def test_a_partition_that_moves_between_the_look_and_the_wait(tmp_path: Path) -> None:
    """It comes back into service in another slot, and nothing moves in the one that was looked at any more."""
    with started(tmp_path, processors=2) as workers, Client(workers) as reader, Client(workers, 1) as writer:
        writer.make(BUSY)
        former = workers.arena.view(slot_of(workers, BUSY, 0))
        _files.arm("wait.hold@1=slow:300", "test")
        parts = today.fetched((BUSY, 0, 0), max_wait=LONG_MS)
        reader.raw.socket.sendall(today.request(today.FETCH, 12, parts))
        wait_until("it looks", lambda: workers.count("held_fetches") == 1)
        move_to_another_slot(workers, former)
        writer.produce(BUSY, 0)
        assert reader.fetched() == {(BUSY, 0): (0, len(ONE))}


def test_where_an_offset_was_found_is_forgotten_with_the_partition(workers: Workers) -> None:
    """A thread walked there. The next topic in its slot has other batches, and the same offsets."""
    with Client(workers) as client:
        topic = IDLE
        slot = slot_of(workers, topic, 0)
        for payload in (b"x" * 20, b"y" * 90):
            batch = record_batches.build([Record(None, payload, 1000)])
            assert slot_of(workers, topic, 0) == slot
            for _ in range(3):
                fields = today.produced((topic, 0, batch), acks=-1)
                client.raw.socket.sendall(today.request(today.PRODUCE, 9, fields))
                assert client.produced() == 0
            steps = workers.processors[0].loop.job_steps
            _files.arm("pread@1=EAGAIN", "test")
            client.raw.socket.sendall(today.request(today.FETCH, 12, today.fetched((topic, 0, 1))))
            assert client.fetched() == {(topic, 0): (0, 2 * len(batch))}
            assert workers.processors[0].loop.job_steps == steps + 1
            assert workers.processors[0].loop.held["pins"] == 0
            if topic == IDLE:
                leave(workers, slot)
                topic = "next"
                client.make(topic)


def leave(workers: Workers, slot: int) -> None:
    """What a keeper does with a partition whose topic is deleted."""
    view = workers.arena.view(slot)
    assert workers.arena.create_lock()
    assert end_life(SharedLog.over(workers.arena).appender, slot)
    workers.arena.create_unlock()
    workers.arena.wake_all()
    wait_until("all are past it", lambda: workers.arena.is_past(slot))
    folder = workers.directory / partition_directory_name(view.topic, view.partition)
    folder.rename(workers.directory / "gone")
    assert workers.arena.create_lock()
    workers.arena.free(slot)
    workers.arena.create_unlock()


def test_a_partition_that_begins_later_wakes_who_waits(workers: Workers) -> None:
    """The start of its log is a part of the answer. There is nothing to send, so that it waits on."""
    with Client(workers) as reader, Client(workers) as writer:
        writer.produce(BUSY, 0)
        reader.hold((BUSY, 0, 1))
        looks = workers.count("fetch_looks")
        workers.arena.publish_start(slot_of(workers, BUSY, 0), 1)
        wait_until("it was looked at", lambda: workers.count("fetch_looks") == looks + 1)
        assert is_silent(reader.raw)
        writer.produce(BUSY, 0)
        assert reader.fetched() == {(BUSY, 0): (0, len(ONE))}


@pytest.mark.parametrize("leave", [raw.RawClient.close, reset])
def test_who_has_gone_is_not_looked_for(workers: Workers, leave: Callable[[raw.RawClient], None]) -> None:
    """Their waits go with them, in any order, and those of others stay."""
    with ExitStack() as stack:
        clients = [Client(workers) for _ in range(6)]
        stays = stack.enter_context(Client(workers))
        writer = stack.enter_context(Client(workers))
        stays.hold(*every_idle())
        for number, client in enumerate(clients):
            client.hold((IDLE, 3, 0), (IDLE, 4 + number, 0))
        for number in (0, 5, 2, 1, 4, 3):
            leave(clients[number].raw)
        wait_until("they have gone", lambda: workers.processors[0].open_connections == 2)
        writer.produce(IDLE, 3)
        assert stays.fetched() == {(IDLE, 3): (0, len(ONE))}


def test_who_waits_for_nothing_takes_nobody_along(workers: Workers) -> None:
    """A connection that comes and goes without a wait of its own, while others wait for the first slot."""
    first = workers.arena.views()[0]
    assert first.index == 0
    with Client(workers) as waits, Client(workers) as writer:
        waits.hold((first.topic, first.partition, 0))
        Client(workers).raw.close()
        wait_until("it has gone", lambda: workers.processors[0].open_connections == 2)
        writer.produce(first.topic, first.partition)
        assert waits.fetched() == {(first.topic, first.partition): (0, len(ONE))}


def test_a_flush_that_began_before_an_append_is_not_its_own(workers: Workers) -> None:
    """Who is woken by it waits for the next one of the same partition, beside others, and is answered once."""
    with Client(workers) as one, Client(workers) as other, Client(workers) as reader:
        reader.hold((BUSY, 0, 0), min_bytes=6 * len(ONE))
        for turn in range(2):
            _files.arm("fdatasync@1=slow:150,fdatasync@2=slow:150", "test")
            appends = workers.count("appends")
            one.send_produce(BUSY, 0)
            wait_until("it is appended", lambda count=appends + 1: workers.count("appends") == count)
            time.sleep(0.05)  # the flush is on its way
            other.send_produce(BUSY, 0)
            assert one.produced() == 0 and other.produced() == 0
            one.produce(BUSY, 0)
            assert workers.arena.view(slot_of(workers, BUSY, 0)).visible_offset == 3 * (turn + 1)
        assert reader.fetched() == {(BUSY, 0): (0, 6 * len(ONE))}


# -- the words of several processes ------------------------------------------------------------------------------------


def test_a_process_takes_its_own_words_alone(tmp_path: Path) -> None:
    """Where the slots fill their words to the last bit, another process's begin right behind them.

    That process stands still while this one is woken and looks, and finds its words as they were left.
    """
    settings = {"slots": 64 - SPARE, "partitions_by_topic": {IDLE: 64 - SPARE}, "fetch_max_wait_ms": LONG_MS}
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(tmp_path, processors=2, **settings))  # type: ignore[arg-type]
        writer, early = (stack.enter_context(Client(workers)) for _ in range(2))
        writer.make(IDLE)
        for partition in range(64 - 2 * SPARE, 64 - SPARE):
            move_to_another_slot(workers, workers.arena.view(slot_of(workers, IDLE, partition)))
        assert workers.arena.slot_count == workers.arena.slots == 64
        late, stops = (stack.enter_context(Client(workers, 1)) for _ in range(2))
        early.hold((IDLE, 5, 0))
        late.hold((IDLE, 5, 0))
        held = workers.count("held_fetches")
        _files.arm("wait.hold@1=slow:500", "test")
        stops.raw.socket.sendall(today.request(today.FETCH, 12, today.fetched((IDLE, 9, 0), max_wait=LONG_MS)))
        wait_until("it stands still", lambda: workers.count("held_fetches") == held + 1)
        writer.produce(IDLE, 5)
        for reader in (early, late):
            assert reader.fetched() == {(IDLE, 5): (0, len(ONE))}


# -- times -------------------------------------------------------------------------------------------------------------


def test_each_ends_when_its_own_time_is_over(workers: Workers) -> None:
    """Many, in any order, while some leave before: none before its time, and none long after."""
    rng = random.Random(7)
    times = [40 + 10 * number for number in range(40)]
    rng.shuffle(times)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(workers)) for _ in times]
        began = []
        for client, wait_ms in zip(clients, times, strict=True):
            frame = today.request(today.FETCH, 12, today.fetched((IDLE, 0, 0), max_wait=wait_ms))
            began.append(time.monotonic())
            client.raw.socket.sendall(frame)
        for number in range(0, len(clients), 3):
            clients[number].raw.close()
        left = {client.raw.socket: number for number, client in enumerate(clients) if number % 3}
        order = []
        while left:
            for ready in select.select(list(left), [], [], 10)[0]:
                number = left.pop(ready)
                assert time.monotonic() - began[number] >= times[number] / 1000
                assert clients[number].fetched() == {}
                order.append(times[number])
        workers.wait_still()
        assert sorted(order) == sorted(times[number] for number in range(len(times)) if number % 3)

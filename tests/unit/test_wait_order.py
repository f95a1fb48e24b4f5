"""What happens between the look that found nothing and the word that somebody waits is not missed.

One process stands at the point between the two, another does just then what it would have been woken for. Heartbeats
and retries are hours apart, so what is missed there stays missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastlog.log import _files
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.workers import Workers

GOOD = raw.entry(b"good")
LONG_MS = 10_000_000
STANDS_MS = 250
"""What the others do meanwhile takes a hundredth of it; on a machine that takes longer the test proves less."""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path, processors=2, partitions=4, fetch_max_wait_ms=LONG_MS) as running:
        with running.connect(1) as client:
            assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        yield running


def own(kind: int, body: bytes) -> bytes:
    return raw.own_frame(kind, body, correlation=2)


def acked(topic: str, acks: int = raw.APPENDED) -> bytes:
    return own(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 0, GOOD, acks))


def meanwhile(
    workers: Workers, point: str, request: bytes, work: Callable[[raw.RawClient], object]
) -> tuple[raw.RawClient, raw.RawClient]:
    """Send a request to processor 0, which stands at the point for a while; do something at processor 1 just then."""
    first, second = workers.connect(0), workers.connect(1)
    assert second.offsets("t", 0, raw.EARLIEST) == [0]
    _files.arm(f"{point}@1=slow:{STANDS_MS}", "test")
    before = workers.count("received_bytes")
    first.send_raw(request)
    wait_until("it is received", lambda: workers.count("received_bytes") >= before + len(request), pause=0)
    time.sleep(0.02)
    work(second)
    return first, second


def test_a_flush_between_the_append_and_its_acknowledgement(workers: Workers) -> None:
    """The other producer's flush has flushed both."""
    first, second = meanwhile(
        workers, "wait.ack", acked("t", raw.FLUSHED), lambda other: other.produce_ack("t", 0, GOOD, raw.FLUSHED)
    )
    with first, second:
        assert first.recv_own()[1].error == 0
        assert workers.arena.view(0).flushed_end == 3 * 14


@pytest.mark.parametrize("acks", [raw.APPENDED, raw.FLUSHED])
def test_an_append_or_a_flush_between_the_look_and_the_wait_of_a_held_fetch(workers: Workers, acks: int) -> None:
    """An append alone has asked for no flush: the one that waits asks for it."""
    body = raw.held_fetch_body("t", 0, 14, 100, LONG_MS, 1)
    first, second = meanwhile(
        workers, "wait.hold", own(raw.HELD_FETCH, body), lambda other: other.produce_ack("t", 0, GOOD, acks)
    )
    with first, second:
        assert raw.decode_held(first.recv_own()[1]).messages == GOOD


def test_a_partition_that_is_made_between_the_look_and_the_wait_of_a_held_fetch(workers: Workers) -> None:
    body = raw.held_fetch_body("new", 0, 0, 100, LONG_MS, 1)
    first, second = meanwhile(
        workers, "wait.hold_nobody", own(raw.HELD_FETCH, body), lambda other: other.produce_ack("new", 0, GOOD)
    )
    with first, second:
        assert raw.decode_held(first.recv_own()[1]).messages == GOOD


def test_an_unlock_between_an_append_that_was_refused_and_its_wait(workers: Workers) -> None:
    """The lock is held by the other processor and free again before this one says that it waits for it."""
    with workers.connect(0) as first, workers.connect(1) as second:
        assert first.offsets("t", 0, raw.EARLIEST) == [0]
        _files.arm(f"append.after_lock@1=slow:{STANDS_MS // 4},wait.append@1=slow:{STANDS_MS}", "test")
        second.send_raw(acked("t"))
        wait_until("it has the lock", lambda: workers.arena.cell(workers.processors[1].number)[4])
        first.send_raw(acked("t"))
        assert second.recv_own()[1].error == 0
        assert first.recv_own()[1].error == 0
        assert workers.count("lock_waits") >= 1


def test_a_flush_between_an_append_without_room_and_its_wait(tmp_path: Path) -> None:
    with (
        Workers(tmp_path, processors=2, flusher=False, flush_interval_messages=4) as workers,
        workers.connect(0) as first,
    ):
        for _ in range(4):
            assert first.produce_ack("t", 0, GOOD).error == 0
        _files.arm(f"wait.append@1=slow:{STANDS_MS}", "test")
        first.send_raw(acked("t"))
        first.wait_received()
        time.sleep(0.02)
        workers.start_flusher()
        assert first.recv_own()[1].error == 0


@pytest.mark.parametrize(
    "request_bytes", [acked("b"), own(raw.CREATE_TOPIC, raw.place("b", 1))], ids=["produce", "own"]
)
def test_a_creation_that_ends_between_the_look_and_the_wait_of_the_next(workers: Workers, request_bytes: bytes) -> None:
    """Nobody is woken by it, and there is none after it."""
    with workers.connect(0) as first, workers.connect(1) as second:
        _files.arm(f"create.directory@1=slow:{STANDS_MS // 4},wait.create@1=slow:{STANDS_MS}", "test")
        second.send_raw(acked("a"))
        wait_until("it makes the directory", lambda: (workers.directory / "a-0").exists() or creates(workers))
        first.send_raw(request_bytes)
        assert second.recv_own()[1].error == 0
        assert first.recv_own()[1].error == 0


def creates(workers: Workers) -> bool:
    """Whether somebody has the lock of creation."""
    if workers.arena.create_lock():
        workers.arena.create_unlock()
        return False
    return True


def test_an_append_between_the_flusher_s_look_and_the_end_of_its_mark(workers: Workers) -> None:
    """It has found the partition flushed and takes its mark away: what came meanwhile is marked again."""
    with workers.connect(0) as first:
        workers.wait_still()
        _files.arm(f"wait.flusher@1=slow:{STANDS_MS}", "test")
        workers.arena.demand_flush(0)
        first.send_raw(acked("t", raw.FLUSHED) * 2)
        for _ in range(2):
            assert first.recv_own()[1].error == 0

"""The flusher over several log directories: a disk that does not answer keeps nobody waiting but what lies on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.log._append import Appender, append_bytes
from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR, FLUSHER, STAGE_FLUSHER
from fastlog.log.slots import SlotSpec
from tests.harness import raw_client as raw
from tests.harness.shared_log import DONE, LIMITS, SharedLog, in_child, message, start_flusher, stop, wait, wait_until
from tests.harness.workers import Workers

ENTRY = message(12)
FOR_EVER = "slow:600000"
THREADS = 2
"""Of each directory, in ``start_flusher``."""


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Pids that are killed at the end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        stop(pid)


def flushed(log: SharedLog, *slots: int) -> int:
    return sum(log.view(slot).flushed_end == 12 for slot in slots)


def syncing(log: SharedLog, directory: int) -> int:
    """How many partitions of a directory have begun a sync of which nobody knows yet what came of it."""
    path = log.roots[directory] / ".fastlog-flushing"
    return sum(path.read_bytes()[1:]) if path.exists() else 0


def test_syncs_that_do_not_come_back_take_no_thread_of_another_directory(tmp_path: Path, children: list[int]) -> None:
    log = SharedLog(tmp_path, partitions=12, directories=2, flush_messages=2)
    children.append(start_flusher(log.arena, f"fdatasync@1-{THREADS}={FOR_EVER}"))
    for slot in range(0, 12, 2):
        assert log.append(ENTRY, slot=slot) == DONE
    wait_until(lambda: syncing(log, 0) == THREADS)
    beat = log.arena.cell(FLUSHER)[1]
    for slot in range(1, 12, 2):
        assert log.append(ENTRY, slot=slot) == DONE
    # the mark is left a moment before the call: one that overtook it may have got the fault
    wait_until(lambda: flushed(log, *range(1, 12, 2)) >= 5)
    assert flushed(log, *range(0, 12, 2)) < 6
    wait_until(lambda: log.arena.cell(FLUSHER)[1] > beat)


def test_a_new_partition_is_looked_at_though_nothing_is_appended(tmp_path: Path, children: list[int]) -> None:
    """Its name is to be on the disk: not only when everything is looked at, which is once in a heartbeat."""
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 2, 16)
    log = SharedLog.over(arena)

    def add(topic: str) -> int:
        folder = tmp_path / f"{topic}-0"
        folder.mkdir()
        (folder / f"{0:020}.kafka").touch()
        limits: Any = {**LIMITS, "flush_messages": 1}
        return arena.add(SlotSpec(topic, 0, 0, 0, 1, segments=[(0, 1, 0)], log_end=0, durable=False, **limits))

    assert add("old") == 0
    children.append(start_flusher(arena, heartbeat_ms=600_000))
    assert log.append(ENTRY) == DONE
    wait_until(lambda: flushed(log, 0))
    assert add("new") == 1
    assert log.view(1).dir_synced_tail == 0
    assert log.append(ENTRY) == DONE
    wait_until(lambda: log.view(1).dir_synced_tail == 1)


def threads_of(pid: int) -> list[str]:
    return [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]


def test_more_threads_sync_while_more_partitions_wait(tmp_path: Path, children: list[int]) -> None:
    """Two syncs do not come back: a third thread does the rest, and the other directory has its own."""
    log = SharedLog(tmp_path, partitions=12, directories=2, flush_messages=2)
    children.append(start_flusher(log.arena, f"fdatasync@1-2={FOR_EVER}", threads=(1, 3)))
    for slot in range(0, 12, 2):
        assert log.append(ENTRY, slot=slot) == DONE
    wait_until(lambda: flushed(log, *range(0, 12, 2)) == 4)
    assert len(threads_of(children[0])) == 1 + 3 + 1
    assert log.append(ENTRY, slot=1) == DONE
    wait_until(lambda: flushed(log, 1) == 1)
    assert len(threads_of(children[0])) == 1 + 3 + 1


def test_there_are_no_more_threads_than_most(tmp_path: Path, children: list[int]) -> None:
    log = SharedLog(tmp_path, partitions=6, flush_messages=2)
    children.append(start_flusher(log.arena, f"fdatasync@1-3={FOR_EVER}", threads=(1, 3), heartbeat_ms=20))
    for slot in range(6):
        assert log.append(ENTRY, slot=slot) == DONE
    wait_until(lambda: syncing(log, 0) == 3)
    beat = log.arena.cell(FLUSHER)[1]
    wait_until(lambda: log.arena.cell(FLUSHER)[1] > beat + 200_000_000)  # ten turns
    assert (flushed(log, *range(6)), len(threads_of(children[0]))) == (0, 1 + 3)


def test_what_a_dead_flusher_had_in_hand_is_written_again_by_directory(tmp_path: Path, children: list[int]) -> None:
    """Each reads and writes the disk under a lock of the process."""
    log = SharedLog(tmp_path, partitions=2, directories=2)
    for slot in range(2):
        log.append(ENTRY, slot=slot)
        assert in_child(lambda slot=slot: log.flush(slot), "flush.before_sync@1=kill") == -9  # type: ignore[misc]
    children.append(start_flusher(log.arena, f"flush.rewrite@1={FOR_EVER}"))
    wait_until(lambda: flushed(log, 0, 1) == 1)


def killed_with_the_lock(log: SharedLog, slot: int) -> None:
    """The flusher dies while it holds an append lock, and has written bytes that nobody will publish."""
    appender = Appender(log.arena, SegmentFiles(log.arena, 16), FLUSHER)
    assert in_child(lambda: append_bytes(appender, slot, message(40), 1), "append.mid_write@1=kill") == -9
    assert log.arena.cell(FLUSHER)[4] == 1 + slot


def test_the_lock_of_a_dead_flusher_is_taken_over(tmp_path: Path, children: list[int]) -> None:
    """Nobody else wants it; what was written under it and not published goes."""
    log = SharedLog(tmp_path, partitions=2, directories=2)
    assert log.append(ENTRY, slot=1) == DONE
    killed_with_the_lock(log, 1)
    children.append(start_flusher(log.arena))
    wait_until(lambda: log.counter("repairs", FLUSHER) == 1)
    wait_until(lambda: log.arena.cell(FLUSHER)[4] == 0)
    assert log.stored(1) == ENTRY


def test_a_repair_on_a_disk_that_does_not_answer_delays_no_other_directory(tmp_path: Path, children: list[int]) -> None:
    log = SharedLog(tmp_path, partitions=2, directories=2, flush_messages=2)
    killed_with_the_lock(log, 0)
    started = time.monotonic_ns()
    children.append(start_flusher(log.arena, f"repair.inside@1={FOR_EVER}"))
    assert log.append(ENTRY, slot=1) == DONE
    wait_until(lambda: flushed(log, 1) == 1)
    wait_until(lambda: log.arena.cell(FLUSHER)[1] > started)
    assert log.stored(0) != b"", "not cut yet"


def test_a_lock_that_somebody_else_has_taken_over_is_left_to_him(tmp_path: Path, children: list[int]) -> None:
    log = SharedLog(tmp_path, partitions=1)
    killed_with_the_lock(log, 0)
    assert log.append(ENTRY) == DONE
    children.append(start_flusher(log.arena))
    wait_until(lambda: log.arena.cell(FLUSHER)[4] == 0)
    assert log.stored() == ENTRY


def test_the_last_flush_takes_every_directory(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, partitions=30, directories=3)
    for slot in range(30):
        log.append(ENTRY, slot=slot)
    log.arena.set_stopping(STAGE_FLUSHER)
    assert wait(start_flusher(log.arena)) == 0
    assert flushed(log, *range(30)) == 30
    assert [syncing(log, directory) for directory in range(3)] == [0, 0, 0]


@pytest.mark.slow
def test_a_segment_that_nobody_writes_to_is_closed_after_two_seconds(tmp_path: Path) -> None:
    """And opened again for the next flush. The processor keeps its own."""
    segment = "t-0/00000000000000000000.kafka"
    with Workers(tmp_path, heartbeat_ms=250) as workers, workers.connect() as client:
        for _ in range(2):
            assert client.produce_ack("t", 0, raw.entry(b"x"), raw.FLUSHED).error == 0
            assert workers.held()[segment] == 2
            wait_until(lambda: workers.held()[segment] == 1, what="it is closed")

"""What an appender says of itself in its cell, and which descriptors it keeps."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.log._append import roll_now
from fastlog.log._shared_memory import FIRST_PROCESSOR
from tests.harness.descriptors import open_descriptors
from tests.harness.shared_log import DONE, SharedLog, in_child, message
from tests.harness.single_steps import seen_between_instructions, single_steps
from tests.harness.stopped import stopped_at
from tests.harness.timing import undisturbed

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(12)


# -- waiting for a disk ------------------------------------------------------------------------------------------------


def append(log: SharedLog) -> object:
    return log.append(ENTRY)


def roll(log: SharedLog) -> object:
    return roll_now(log.appender, 0)


@pytest.mark.parametrize(
    ("work", "stop", "waits"),
    [
        (append, "append.after_lock", False),
        (append, "pwrite@1=stop", True),
        (append, "append.after_write", False),
        (append, "append.unlocked", False),
        (roll, "open@1=stop", True),
        (roll, "roll.created", True),
        (roll, "append.before_unlock", False),
    ],
)
def test_whoever_may_wait_for_a_disk_says_since_when(
    work: Callable[[SharedLog], object], stop: str, waits: bool, memory: Path
) -> None:
    """So nobody takes it for one that hangs; and not a moment longer than it does."""
    log = SharedLog(memory)
    log.append(ENTRY)
    assert log.arena.disk_since(FIRST_PROCESSOR) == 0
    before = time.monotonic_ns()
    with stopped_at(stop, lambda: work(log)) as process:
        since = log.arena.disk_since(FIRST_PROCESSOR)
        assert (before <= since <= time.monotonic_ns()) if waits else since == 0
        process.go_on()
    assert log.arena.disk_since(FIRST_PROCESSOR) == 0


def test_a_repair_is_a_wait_for_the_disk_too(memory: Path) -> None:
    log = SharedLog(memory)
    assert in_child(lambda: log.append(ENTRY), "append.mid_write@1=kill") == -9
    log.arena.clear_cell(FIRST_PROCESSOR, os.getpid(), 1)
    with stopped_at("repair.inside,repair.done", lambda: log.append(ENTRY)) as process:
        assert log.arena.disk_since(FIRST_PROCESSOR) > 0
        process.go_on_to_next()
        assert log.arena.disk_since(FIRST_PROCESSOR) == 0
        assert process.go_on() == DONE


def test_a_dead_process_waits_for_no_disk(memory: Path) -> None:
    """Its successor begins its cell afresh, but for what it has to finish."""
    log = SharedLog(memory, partitions=3)
    assert in_child(lambda: log.append(ENTRY, slot=2), "pwrite@1=kill") == -9
    assert log.arena.disk_since(FIRST_PROCESSOR) > 0
    assert log.arena.cell(FIRST_PROCESSOR)[4] == 3
    log.arena.clear_cell(FIRST_PROCESSOR, 7, 11)
    assert log.arena.disk_since(FIRST_PROCESSOR) == 0
    assert log.arena.cell(FIRST_PROCESSOR) == (7, 11, 0, 0, 3)


@single_steps
def test_a_successor_is_never_seen_with_what_its_predecessor_waited_for(memory: Path) -> None:
    """The watchdog asks a pid since when it waits: an answer of the dead one's would let a new one hang for longer."""
    log = SharedLog(memory)
    assert in_child(lambda: log.append(ENTRY), "pwrite@1=kill") == -9
    waited = log.arena.disk_since(FIRST_PROCESSOR)

    def look() -> tuple[int, int]:
        return log.arena.cell(FIRST_PROCESSOR)[0], log.arena.disk_since(FIRST_PROCESSOR)

    seen = seen_between_instructions(lambda: log.arena.clear_cell(FIRST_PROCESSOR, 7, 11), look)
    assert seen == [(0, waited), (0, 0), (7, 0)]


def test_a_call_that_took_long_is_a_sign_of_life_and_a_short_one_is_none(memory: Path) -> None:
    """On a slow disk one turn of a loop has many calls; on a fast one the loop says so itself."""
    log = SharedLog(memory)
    log.arena.clear_cell(FIRST_PROCESSOR, os.getpid(), 1)

    def quick() -> int:
        log.arena.clear_cell(FIRST_PROCESSOR, os.getpid(), 1)
        log.append(ENTRY)
        return log.arena.cell(FIRST_PROCESSOR)[1]

    assert undisturbed(0.1, quick) == 1
    begun = time.monotonic_ns()
    _files.arm("pwrite@1=slow:110", "test")
    assert log.append(ENTRY) == DONE
    assert log.arena.cell(FIRST_PROCESSOR)[1] >= begun + 110_000_000


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_the_lock_that_is_held_is_named(slot: int, memory: Path) -> None:
    log = SharedLog(memory, partitions=3)
    held = []
    with stopped_at(
        "append.after_lock,append.before_unlock,append.unlocked", lambda: log.append(ENTRY, slot=slot)
    ) as it:
        for more in (True, True, False):
            held.append(log.arena.cell(FIRST_PROCESSOR)[4])
            if more:
                it.go_on_to_next()
        it.go_on()
    assert held == [slot + 1, slot + 1, 0]


# -- descriptors -------------------------------------------------------------------------------------------------------


def open_partitions(log: SharedLog) -> set[int]:
    """The partitions of which a segment is open."""
    names = [Path(name) for name in open_descriptors().values() if name.startswith(f"{log.directory}/t-")]
    return {int(name.parent.name.removeprefix("t-")) for name in names}


@pytest.mark.parametrize(("capacity", "kept"), [(1, 4), (4, 4), (5, 5), (20, 20)])
def test_as_many_segments_stay_open_as_agreed_and_four_at_least(capacity: int, kept: int, memory: Path) -> None:
    log = SharedLog(memory, partitions=24, capacity=capacity)
    for slot in range(24):
        assert log.append(ENTRY, slot=slot) == DONE
        assert log.files.open_count == min(slot + 1, kept)
    assert len(open_partitions(log)) == kept
    for slot in reversed(range(24)):
        assert log.append(ENTRY, slot=slot) == DONE
    assert log.files.open_count == kept
    assert all(log.stored(slot) == ENTRY * 2 for slot in range(24))


def test_the_segment_that_was_used_last_stays_the_longest(memory: Path) -> None:
    """Of those whose bytes are flushed the one goes that was not used for the longest time."""
    log = SharedLog(memory, partitions=10, capacity=4)
    for slot in range(4):
        log.append(ENTRY, slot=slot)
    log.append(ENTRY, slot=0)
    log.append(ENTRY, slot=2)
    for slot in range(4):
        assert log.flush(slot) == 0
    log.flusher = None  # type: ignore[assignment]  # it has its own open
    gone = []
    for slot in range(4, 8):
        before = open_partitions(log)
        log.append(ENTRY, slot=slot)
        gone += before - open_partitions(log)
    assert gone == [1, 3, 0, 2]


def test_a_segment_with_unflushed_bytes_goes_only_when_there_is_no_other(memory: Path) -> None:
    """The oldest of them then; one whose bytes are flushed to the last goes first, one with a single more does not."""
    log = SharedLog(memory, partitions=10, capacity=4)
    for slot in range(4):
        log.append(ENTRY, slot=slot)
    for slot in (1, 2):
        assert log.flush(slot) == 0
    log.append(message(9), slot=2)
    log.flusher = None  # type: ignore[assignment]
    gone = []
    for slot in range(4, 7):
        before = open_partitions(log)
        log.append(ENTRY, slot=slot)
        gone += before - open_partitions(log)
    assert gone == [1, 0, 3]


def test_many_segments_are_told_apart(memory: Path) -> None:
    """By partition and number, however they are kept: each gets its own bytes."""
    log = SharedLog(memory, partitions=6, segment_bytes=5, capacity=16)
    for number, slot in itertools.product(range(8), range(6)):
        assert log.append(message(12, b"%d" % slot), slot=slot) == DONE
        assert len(log.bases(slot)) == number + 1
    for slot in range(6):
        assert log.stored(slot) == message(12, b"%d" % slot) * 8
        assert all(path.stat().st_size == 12 for path in log.folder(slot).glob("*.kafka"))

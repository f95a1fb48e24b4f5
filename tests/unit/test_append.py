"""Appending: rolls, bounds, failed writes, and repair after an owner that died at each named point."""

from __future__ import annotations

import errno
import itertools
import os
import time
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.log._append import roll_now
from fastlog.log._arena import STATE_READ_ONLY
from tests.harness.descriptors import open_descriptors
from tests.harness.shared_log import (
    BUSY,
    DONE,
    FAILED,
    FULL,
    OFFLINE,
    SharedLog,
    in_child,
    message,
    start,
    start_flusher,
    stop,
    wait,
    wait_until,
)
from tests.harness.timing import sooner_than, undisturbed

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(12)


# -- rolling -----------------------------------------------------------------------------------------------------------


def test_a_segment_rolls_before_the_append_that_finds_it_above_the_limit(tmp_path: Path) -> None:
    """0.7's vector: entries of 12 bytes and a limit of 100 begin segments at 0, 108 and 216."""
    log = SharedLog(tmp_path, segment_bytes=100)
    for _ in range(20):
        assert log.append(ENTRY) == DONE
    assert log.bases() == [0, 108, 216]
    assert log.view().log_end == 240
    assert [path.stat().st_size for path in sorted(log.folder().glob("*.kafka"))] == [108, 108, 24]


def test_a_thousand_entries_fill_a_hundred_segments(tmp_path: Path) -> None:
    """0.7's vector: a limit of ten entries less a few bytes gives exactly 100 segments of 10."""
    log = SharedLog(tmp_path, segment_bytes=10 * (len(ENTRY) - 1), table_entries=128)
    for _ in range(1000):
        assert log.append(ENTRY) == DONE
    assert log.bases() == list(range(0, 12_000, 120))


def test_an_aged_segment_rolls_and_an_empty_one_does_not(tmp_path: Path) -> None:
    directories = itertools.count()

    def two_appends() -> tuple[SharedLog, list[int]]:
        directory = tmp_path / str(next(directories))
        directory.mkdir()
        log = SharedLog(directory, roll_ms=40)
        time.sleep(0.08)  # age counts from the first append, not from the making
        assert [log.append(ENTRY), log.append(ENTRY)] == [DONE, DONE]
        return log, log.bases()

    log, bases = undisturbed(0.08 + 0.04, two_appends)
    assert bases == [0]
    time.sleep(0.08)
    assert log.append(ENTRY) == DONE
    assert log.bases() == [0, 24]


def test_append_times_are_those_of_the_appends(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, segment_bytes=10)
    before = time.time_ns() // 1_000_000 - 10
    log.append(ENTRY)
    log.append(ENTRY)
    for item in log.segments():
        assert before <= item.first_ms <= item.last_ms <= time.time_ns() // 1_000_000


def test_a_full_table_makes_segments_longer(tmp_path: Path) -> None:
    """No append is lost or refused because a partition has as many segments as it can."""
    log = SharedLog(tmp_path, segment_bytes=5, table_entries=16)
    for _ in range(30):
        assert log.append(ENTRY) == DONE
    assert len(log.bases()) == 16
    assert not roll_now(log.appender, 0)
    assert log.stored() == ENTRY * 30


def test_an_empty_file_in_the_place_of_the_next_segment_is_adopted(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, segment_bytes=5)
    log.append(ENTRY)
    log.path(12).touch()
    assert log.append(ENTRY) == DONE
    assert log.bases() == [0, 12]


def test_a_file_with_bytes_in_the_place_of_the_next_segment_is_never_touched(tmp_path: Path) -> None:
    """Z-6: 0.7 deletes it. Here the partition takes no more appends, the rest of it is served, the state says why."""
    log = SharedLog(tmp_path, segment_bytes=5)
    log.append(ENTRY)
    log.flush()
    log.path(12).write_bytes(b"somebody's")
    assert log.try_append(ENTRY)[::3] == (FAILED, errno.EEXIST)
    assert log.append(ENTRY) == OFFLINE
    assert log.path(12).read_bytes() == b"somebody's"
    assert log.view().flushed_end == log.view().log_end == 12
    assert "name of the next segment" in log.arena.describe_state(log.view().state)


def test_no_offset_passes_63_bits(tmp_path: Path) -> None:
    base = 2**63 - 1 - 20
    log = SharedLog(tmp_path, base=base)
    assert log.append(ENTRY) == DONE
    assert log.try_append(ENTRY)[::3] == (FAILED, errno.EFBIG)
    assert log.view().log_end == base + 12
    assert log.path(base).stat().st_size == 12


@pytest.mark.parametrize(
    ("error", "tried", "why"),
    [
        *[(passing, BUSY, "ok") for passing in ("EMFILE", "ENFILE", "ENOMEM")],
        ("EIO", OFFLINE, "read-only: repair after a dead process failed (Input/output error)"),
    ],
)
def test_a_half_made_roll_that_cannot_be_opened(error: str, tried: int, why: str, tmp_path: Path) -> None:
    """It is looked at again when there are descriptors and memory; what the disk refuses has the disk's own reason."""
    log = SharedLog(tmp_path, segment_bytes=5)
    log.append(ENTRY)
    assert in_child(lambda: log.append(ENTRY), "roll.created@1=kill") == -9
    _files.arm(f"open@1={error}", "test")
    assert log.append(ENTRY) == tried
    assert log.arena.describe_state(log.view().state) == why
    if tried == BUSY:
        assert log.append(ENTRY) == DONE
        assert log.bases() == [0, 12]


def test_a_death_in_the_middle_of_a_write_is_in_the_one_that_is_meant(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    assert in_child(lambda: [log.append(message(40)) for _ in range(3)], "append.mid_write@2=kill") == -9
    assert log.path(0).stat().st_size == 40 + 20


@pytest.mark.parametrize("way", ["new", "adopted", "repaired"])
def test_the_lowest_descriptor_is_as_good_as_any(way: str, tmp_path: Path) -> None:
    """As a segment gets it in a process without a standard input."""
    log = SharedLog(tmp_path, segment_bytes=5)
    log.append(ENTRY)
    if way == "adopted":
        log.path(12).touch()
    if way == "repaired":
        assert in_child(lambda: log.append(ENTRY), "roll.created@1=kill") == -9

    def work() -> None:
        os.close(0)
        assert log.append(ENTRY) == DONE
        assert [fd for fd, name in open_descriptors().items() if name == str(log.path(12))] == [0]

    assert in_child(work) == 0
    assert log.bases() == [0, 12]
    assert log.stored() == ENTRY * 2


def test_an_asked_for_roll_needs_bytes_and_a_partition_in_service(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    assert roll_now(log.appender, 0)
    assert log.bases() == [0]
    log.append(ENTRY)
    assert roll_now(log.appender, 0)
    assert roll_now(log.appender, 0)
    assert log.bases() == [0, 12]
    log.append(ENTRY)
    _files.arm("fdatasync@1=EIO", "test")
    assert log.flush() == errno.EIO
    assert not roll_now(log.appender, 0)
    assert log.bases() == [0, 12]


# -- the bound ---------------------------------------------------------------------------------------------------------


def test_exactly_m_messages_are_admitted(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, flush_messages=10)
    for _ in range(9):
        assert log.append(ENTRY) == DONE
    assert log.append(ENTRY * 2, 2) == FULL
    assert log.append(ENTRY) == DONE
    assert log.append(ENTRY) == FULL
    assert log.flush() == 0
    assert log.append(ENTRY) == DONE
    assert log.stored() == ENTRY * 11


def test_exactly_b_bytes_are_admitted(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, flush_bytes=36)
    for _ in range(3):
        assert log.append(ENTRY) == DONE
    assert log.append(ENTRY) == FULL


def test_a_flushed_partition_admits_one_request_of_any_size(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, flush_messages=5, flush_bytes=50)
    for turn in range(3):
        assert log.append(ENTRY * 100, 100) == DONE
        assert log.append(ENTRY) == FULL
        assert log.flush() == 0
        assert log.view().flushed_end == 1200 * (turn + 1)


def test_an_append_waits_when_the_oldest_byte_is_twice_s_old(tmp_path: Path) -> None:
    directories = itertools.count()

    def two_appends() -> tuple[SharedLog, list[int]]:
        directory = tmp_path / str(next(directories))
        directory.mkdir()
        log = SharedLog(directory, flush_ns=20_000_000)
        return log, [log.append(ENTRY), log.append(ENTRY)]

    log, found = undisturbed(0.04, two_appends)
    assert found == [DONE, DONE]
    time.sleep(0.05)
    assert log.append(ENTRY) == FULL
    assert log.flush() == 0
    assert log.append(ENTRY) == DONE

    def after_a_rest() -> list[int]:
        assert log.flush() == 0
        time.sleep(0.05)
        return [log.append(ENTRY), log.append(ENTRY)]

    assert undisturbed(0.05 + 0.04, after_a_rest) == [DONE, DONE], "no byte is as old as the last flush"


@pytest.mark.slow
def test_a_flush_that_comes_to_nothing_makes_no_byte_younger(tmp_path: Path) -> None:
    """A flusher without descriptors, or one that hangs, does not let appends pass twice S."""
    log = SharedLog(tmp_path, flush_ns=40_000_000)
    assert log.append(ENTRY) == DONE
    _files.arm("open@1-=EMFILE", "test")
    for _ in range(10):
        assert log.flush() == errno.EMFILE
        time.sleep(0.01)
    _files.arm("", "test")
    assert log.append(ENTRY) == FULL
    pid = start(log.flush, "fdatasync@1=slow:1500")
    time.sleep(0.02)
    assert log.append(ENTRY) == FULL
    assert wait(pid) == 0
    assert log.append(ENTRY) == DONE


def test_an_append_that_waits_is_a_reason_to_flush(tmp_path: Path) -> None:
    """40 of 100 messages are no reason to flush before S; somebody who waits with 70 more is one."""
    log = SharedLog(tmp_path, flush_messages=100)
    flusher = start_flusher(log.arena)
    try:
        assert log.append(ENTRY * 40, 40) == DONE
        wait_until(lambda: log.append(ENTRY * 70, 70) == DONE)
    finally:
        stop(flusher)


# -- failed writes -----------------------------------------------------------------------------------------------------


def test_a_short_write_goes_on_from_where_it_stopped(tmp_path: Path) -> None:
    """Z-1: 0.7 writes the whole buffer again from its start."""
    log = SharedLog(tmp_path)
    _files.arm("pwrite@1-3=short", "test")
    data = message(5000, b"abcdefg")
    assert log.append(data) == DONE
    assert log.stored() == data


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EDQUOT", "EFBIG"])
def test_a_failed_write_is_cut_back_before_anything_else_is_appended(error: str, tmp_path: Path) -> None:
    """I-6: half of the set is in the file when the disk is full; the next append stands behind the last whole one."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    _files.arm(f"pwrite@1=short,pwrite@2={error}", "test")
    assert log.try_append(message(5000))[::3] == (FAILED, getattr(errno, error))
    assert log.stored() == ENTRY
    assert log.append(ENTRY) == DONE
    assert log.stored() == ENTRY * 2
    assert log.view().state == 0


def test_a_write_that_cannot_be_cut_back_ends_appends(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    log.flush()
    _files.arm("pwrite@1=short,pwrite@2=EIO,ftruncate@1=EIO", "test")
    assert log.append(message(5000)) == FAILED
    assert log.append(ENTRY) == OFFLINE
    assert log.view().log_end == log.view().flushed_end == 12
    assert "cutting back" in log.arena.describe_state(log.view().state)


def test_a_roll_without_room_fails_one_request_and_the_next_tries_again(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, segment_bytes=5)
    log.append(ENTRY)
    _files.arm("open@1=ENOSPC", "test")
    assert log.try_append(ENTRY)[::3] == (FAILED, errno.ENOSPC)
    assert log.append(ENTRY) == DONE
    assert log.bases() == [0, 12]


def test_a_roll_without_descriptors_takes_one_from_an_idle_segment(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, partitions=2, segment_bytes=5)
    log.append(ENTRY)
    log.append(ENTRY, slot=1)
    log.flush(1)
    _files.arm("open@1=EMFILE", "test")
    assert log.append(ENTRY) == DONE
    assert log.bases() == [0, 12]


def test_an_empty_set_is_no_append(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        SharedLog(tmp_path).append(b"")


# -- owners that die ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "published"),
    [
        ("append.after_lock", False),
        ("append.mid_write", False),
        ("append.after_write", False),
        ("append.before_unlock", True),
    ],
)
def test_an_owner_that_dies_leaves_what_it_published_and_no_more(point: str, published: bool, tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert in_child(lambda: log.append(message(40, b"c")), f"{point}@1=kill") == -9
    assert log.append(ENTRY) == DONE
    assert log.stored() == ENTRY + (message(40, b"c") if published else b"") + ENTRY
    assert log.counter("repairs") == 1
    assert log.view().log_end == len(log.stored())
    assert log.flush() == 0


def test_a_half_made_roll_is_finished_by_whoever_comes_next(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, segment_bytes=5)
    log.append(ENTRY)
    assert in_child(lambda: log.append(message(40, b"c")), "roll.created@1=kill") == -9
    assert log.bases() == [0]
    assert log.path(12).stat().st_size == 0
    assert log.append(ENTRY) == DONE
    assert log.bases() == [0, 12]
    assert log.stored() == ENTRY * 2


def test_a_half_made_roll_in_a_place_that_holds_bytes_is_refused(tmp_path: Path) -> None:
    log = SharedLog(tmp_path, segment_bytes=5)
    log.append(ENTRY)
    assert in_child(lambda: log.append(ENTRY), "roll.created@1=kill") == -9
    log.path(12).write_bytes(b"somebody's")
    assert log.append(ENTRY) == OFFLINE
    assert log.path(12).read_bytes() == b"somebody's"
    assert "name of the next segment" in log.arena.describe_state(log.view().state)


def test_repairers_that_die_too_change_nothing(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert in_child(lambda: log.append(message(40)), "append.mid_write@1=kill") == -9
    for _ in range(5):
        assert in_child(lambda: log.append(ENTRY), "repair.inside@1=kill") == -9
    assert log.append(ENTRY) == DONE
    assert log.stored() == ENTRY * 2


def test_a_repair_without_descriptors_is_tried_again(tmp_path: Path) -> None:
    """Nothing is appended behind half a message meanwhile, and the partition stays in service."""
    log = SharedLog(tmp_path)
    assert in_child(lambda: log.append(message(40)), "append.mid_write@1=kill") == -9
    assert log.path(0).stat().st_size == 20
    _files.arm("open@1-4=EMFILE", "test")
    for _ in range(4):
        assert log.append(ENTRY) == BUSY
    assert log.append(ENTRY) == DONE
    assert log.stored() == ENTRY
    assert log.view().state == 0


def test_a_failed_repair_ends_appends_and_says_why(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    log.flush()
    assert in_child(lambda: log.append(message(40)), "append.mid_write@1=kill") == -9
    _files.arm("ftruncate@1=EIO", "test")
    assert log.append(ENTRY) == OFFLINE
    assert log.append(ENTRY) == OFFLINE
    assert log.view().state & STATE_READ_ONLY
    assert "repair" in log.arena.describe_state(log.view().state)
    assert log.view().flushed_end == 12


def test_repair_never_makes_a_file_longer(tmp_path: Path) -> None:
    """A file that somebody cut is damage; zeros behind its end would hide that."""
    log = SharedLog(tmp_path)
    log.append(ENTRY * 3, 3)
    assert in_child(lambda: log.append(ENTRY), "append.after_lock@1=kill") == -9
    log.path(0).write_bytes(ENTRY)
    assert log.append(ENTRY) == OFFLINE
    assert log.stored() == ENTRY


def test_a_held_lock_is_never_waited_for(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)

    def hold() -> None:
        while log.append(ENTRY) == BUSY:  # when we have it just then
            pass

    pid = start(hold, "pwrite@1=slow:60000")
    try:
        wait_until(lambda: log.append(message(20)) == BUSY)
        with sooner_than(50):
            assert log.append(message(20)) == BUSY
    finally:
        stop(pid)
    assert log.append(ENTRY) == DONE
    assert log.stored()[-12:] == ENTRY


def test_a_published_segment_without_bytes_needs_no_repair_of_its_name(tmp_path: Path) -> None:
    """The owner dies right after a roll was published: the new segment is the active one, and stays it."""
    log = SharedLog(tmp_path, segment_bytes=5)
    log.append(ENTRY)
    assert in_child(lambda: log.append(message(40)), "append.mid_write@1=kill") == -9
    assert log.bases() == [0, 12]
    assert log.append(ENTRY) == DONE
    assert log.bases() == [0, 12]
    assert log.stored() == ENTRY * 2

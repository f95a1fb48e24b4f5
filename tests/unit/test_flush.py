"""Flushing: visible is durable, a failed flush is final, a dead flusher's work is checked, and when a flush is due."""

from __future__ import annotations

import errno
import os
import resource
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.log._append import roll_now
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY
from fastlog.log._flush import flush_now, make_partition_flusher, release_now, run_ahead_now
from fastlog.log._shared_memory import FIRST_PROCESSOR, FLUSH_BUCKETS_US, FLUSHER, STAGE_FLUSHER
from tests.harness.descriptors import open_descriptors
from tests.harness.shared_log import (
    DONE,
    FAILED,
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

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(12)
RESERVED = 1 << 20


def reserved(path: Path) -> int:
    """Bytes of blocks that a file has behind its end, rounding left out."""
    status = path.stat()
    behind = status.st_blocks * 512 - status.st_size
    return behind if behind > 64 << 10 else 0


# -- what is visible ---------------------------------------------------------------------------------------------------


def test_what_is_appended_is_visible_after_a_flush_and_not_before(tmp_path: Path) -> None:
    """S19: the paper's rule."""
    log = SharedLog(tmp_path)
    log.append(ENTRY * 3, 3)
    assert log.view().flushed_end == 0
    assert log.flush() == 0
    assert (log.view().flushed_end, log.view().flushed_messages) == (36, 3)


def test_who_sees_a_flush_finds_it_counted(tmp_path: Path) -> None:
    """A flusher that is held up right behind it has counted it before anybody could see what it came to."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    _files.arm("mark@2=slow:500", "test")  # the mark is taken away again when the watermark has moved
    flushing = threading.Thread(target=log.flush)
    flushing.start()
    wait_until(lambda: log.view().flushed_end == 12)
    assert (log.counter("flushes", FLUSHER), log.counter("flushed_bytes", FLUSHER)) == (1, 12)
    assert log.counter("flush_ns", FLUSHER) > 0
    flushing.join()


def test_how_long_each_flush_took_is_counted(tmp_path: Path) -> None:
    """A flush of 60 ms is among those of up to 100 ms, and in no other bucket."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    _files.arm("fdatasync@1=slow:60", "test")
    assert log.flush() == 0
    names = [f"flushes_within_{us}_us" for us in FLUSH_BUCKETS_US]
    took_us = log.counter("flush_ns", FLUSHER) / 1000
    (expected,) = [us for us in FLUSH_BUCKETS_US if took_us <= us][:1]
    assert expected >= 100_000
    assert {name: log.counter(name, FLUSHER) for name in names} == {
        name: int(name == f"flushes_within_{expected}_us") for name in names
    }


@pytest.mark.parametrize("call", ["fdatasync@1", "fdatasync@2", "fdatasync@3", "fsync@1", "fsync@2", "fsync@3"])
def test_the_watermark_passes_a_roll_after_every_sync_it_needs(call: str, tmp_path: Path) -> None:
    """I-5, I-8: the old segment, the new ones, directory and parent; with one of them failed, nothing moves."""
    log = SharedLog(tmp_path, segment_bytes=5, durable=False)
    for _ in range(3):
        log.append(ENTRY)
    _files.arm(f"{call}=EIO", "test")
    assert log.flush() == errno.EIO
    assert log.view().flushed_end == 0
    assert log.view().state


def test_three_segments_need_three_syncs_and_a_new_partition_three_of_directories(tmp_path: Path) -> None:
    """The other side of the test above: one call more is never made. The partition's own is synced again for a mark."""
    log = SharedLog(tmp_path, segment_bytes=5, durable=False)
    for _ in range(3):
        log.append(ENTRY)
    _files.arm("fdatasync@4-=EIO,fsync@4-=EIO", "test")
    assert log.flush() == 0
    assert log.view().flushed_end == 36
    assert log.flush() == 0  # nothing is unflushed: nothing is synced


def test_a_new_segment_is_durable_before_its_base_is_passed(tmp_path: Path) -> None:
    """Also when the old one was flushed to its end long before."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert log.flush() == 0
    assert roll_now(log.appender, 0)
    log.append(ENTRY)
    _files.arm("fsync@1=EIO", "test")
    assert log.flush() == errno.EIO
    assert log.view().flushed_end == 12


def test_a_failed_flush_is_never_tried_again(tmp_path: Path) -> None:
    """The kernel reports it once and marks the pages clean: a second call would lie."""
    log = SharedLog(tmp_path, partitions=2)
    log.append(ENTRY)
    log.flush()
    log.append(ENTRY)
    log.append(ENTRY, slot=1)
    _files.arm("fdatasync@1=EIO", "test")
    assert log.flush() == errno.EIO
    for _ in range(3):
        assert log.flush() == errno.EIO
    assert log.append(ENTRY) == OFFLINE
    view = log.view()
    assert (view.flushed_end, view.log_end) == (12, 24)
    assert not view.state & STATE_OFFLINE  # reads up to the watermark go on
    assert log.arena.describe_state(view.state) == "read-only: a flush failed (Input/output error)"
    assert log.flush(1) == 0  # other partitions are not concerned


def failed_cut(log: SharedLog) -> str:
    """An append of which a part stays in the file; the reason that is told then."""
    _files.arm("pwrite@1=short,pwrite@2=EIO,ftruncate@1=EIO", "test")
    assert log.append(ENTRY) == FAILED
    assert len(log.stored()) > log.view().log_end
    return "cutting back a failed write failed"


def failed_repair(log: SharedLog) -> str:
    assert in_child(lambda: log.append(ENTRY), "append.mid_write@1=kill") == -9
    assert len(log.stored()) > log.view().log_end
    _files.arm("ftruncate@1=EIO", "test")
    assert log.append(ENTRY) == OFFLINE
    return "repair after a dead process failed"


def foreign_file(log: SharedLog) -> str:
    log.append(ENTRY * 4, 4)
    log.path(log.view().log_end).write_bytes(b"not ours")
    assert log.append(ENTRY) == FAILED
    return "a file with the name of the next segment already holds bytes"


OUT_OF_SERVICE = pytest.mark.parametrize("leave", [failed_cut, failed_repair, foreign_file])


@OUT_OF_SERVICE
def test_what_was_appended_before_a_failure_is_flushed(leave: Callable[[SharedLog], str], tmp_path: Path) -> None:
    """A partition that takes no more appends still shows all it acknowledged, and nothing of what failed."""
    log = SharedLog(tmp_path, segment_bytes=60)
    log.append(ENTRY * 2, 2)
    reason = leave(log)
    end = log.view().log_end
    assert end >= 24
    assert log.flush() == 0
    assert (log.view().flushed_end, log.view().log_end) == (end, end)
    assert log.append(ENTRY) == OFFLINE
    assert log.arena.describe_state(log.view().state).startswith(f"read-only: {reason}")
    assert log.flush() == 0


@OUT_OF_SERVICE
def test_a_failed_flush_is_final_out_of_service_too(leave: Callable[[SharedLog], str], tmp_path: Path) -> None:
    """The state tells the first reason, and that a flush failed since."""
    log = SharedLog(tmp_path, segment_bytes=60)
    log.append(ENTRY * 2, 2)
    reason = leave(log)
    _files.arm("fdatasync@1=EIO", "test")
    for _ in range(3):
        assert log.flush() == errno.EIO
    assert log.view().flushed_end == 0
    told = log.arena.describe_state(log.view().state)
    assert reason in told
    assert told.endswith(", then a flush failed")


@OUT_OF_SERVICE
@pytest.mark.slow
def test_the_flusher_does_not_wait_with_a_partition_that_left_service(
    leave: Callable[[SharedLog], str], tmp_path: Path, children: list[int]
) -> None:
    """Long before S is over, and without anybody who asks for it."""
    log = SharedLog(tmp_path, segment_bytes=60)
    log.append(ENTRY * 2, 2)
    children.append(start_flusher(log.arena))
    leave(log)
    wait_until(lambda: log.view().flushed_end == log.view().log_end, what="flushed")


def test_a_partition_that_was_found_damaged_is_not_flushed(tmp_path: Path) -> None:
    """Recovery has decided what of it is whole; nothing else becomes visible."""
    log = SharedLog(tmp_path, state=STATE_READ_ONLY, durable=False)
    assert log.append(ENTRY) == OFFLINE
    assert log.flush() == errno.EIO


@pytest.mark.parametrize(
    "faults",
    [
        "open@1=EMFILE",
        "open@1=ENFILE",
        "open@1=ENOMEM",
        "open@2=EMFILE",
        "open@3=ENOMEM",
        "open@4=EMFILE",
        "open@5=ENFILE",
        "open@6=EMFILE",
    ],
)
def test_being_out_of_descriptors_is_no_failed_flush(faults: str, tmp_path: Path) -> None:
    log = SharedLog(tmp_path, durable=False)
    log.append(ENTRY)
    _files.arm(faults, "test")
    assert log.flush() in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    assert (log.view().flushed_end, log.view().state) == (0, 0)
    assert log.flush() == 0
    assert log.view().flushed_end == 12
    assert log.counter("rewritten_bytes", FLUSHER) == 0


# -- a flusher that died -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["flush.before_sync", "flush.after_sync"])
def test_a_successor_writes_again_what_a_dead_flusher_had_in_hand(point: str, tmp_path: Path) -> None:
    """Nobody knows whether its sync failed, so its pages are made dirty and synced anew."""
    log = SharedLog(tmp_path, segment_bytes=5000)
    log.append(ENTRY)
    log.flush()
    for _ in range(3):
        log.append(message(4000))
    stored = log.stored()
    assert in_child(log.flush, f"{point}@1=kill") == -9
    assert log.view().flushed_end == 12
    log.append(ENTRY)
    successor = make_partition_flusher(log.arena, 64, 0, 0)
    assert flush_now(successor, 0) == 0
    assert log.view().flushed_end == len(stored) + 12
    assert log.counter("rewritten_bytes", FLUSHER) == len(stored)
    assert log.stored() == stored + ENTRY
    log.append(ENTRY)
    assert flush_now(successor, 0) == 0
    assert log.counter("rewritten_bytes", FLUSHER) == len(stored)


def test_a_successor_without_descriptors_or_lock_tries_again(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    _files.arm("open@1-3=EMFILE", "test")
    for _ in range(3):
        assert log.flush() == errno.EMFILE
        assert (log.view().state, log.view().flushed_end) == (0, 0)
    assert log.flush() == 0
    assert log.counter("rewritten_bytes", FLUSHER) == 12


def test_a_mark_that_the_disk_refuses_is_a_failed_flush(tmp_path: Path) -> None:
    """A start could not tell which partitions may have lost what a crash took: nothing is synced without it."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    _files.arm("mark@1=EIO", "test")
    assert log.flush() == errno.EIO
    assert log.view().flushed_end == 0
    assert log.arena.describe_state(log.view().state) == "read-only: a flush failed (Input/output error)"


@pytest.mark.parametrize(("length", "result"), [(4061, 0), (4062, errno.EIO)])
def test_a_mark_has_its_whole_name_or_none(length: int, result: int, tmp_path: Path) -> None:
    """In a log directory so deep that one byte more is no path: a name that is cut short would name another offset."""
    deep = f"{tmp_path}/{'d' * 200}"
    while len(deep) + 201 < length - 1:
        deep += f"/{'d' * 200}"
    directory = Path(f"{deep}/{'d' * (length - len(deep) - 1)}")
    directory.mkdir(parents=True)
    log = SharedLog(directory)
    log.append(ENTRY)
    assert log.flush() == result
    marks = [path.name for path in log.folder().iterdir() if path.name.startswith(".flushed-")]
    assert marks == ([] if result else [f".flushed-{0:020}"])


def test_what_a_dead_flusher_had_synced_is_shown_by_the_next_one(tmp_path: Path) -> None:
    """It died between the two ends: nothing is left to sync, and nobody would look at the partition again."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert in_child(log.flush, "flush.flushed@1=kill") == -9
    assert (log.view().flushed_end, log.view().visible_end) == (12, 0)
    log.arena.wait_for_end(0, FIRST_PROCESSOR)
    assert log.flush() == 0
    assert log.view().visible_end == 12
    assert select.select([log.arena.eventfd(FIRST_PROCESSOR)], [], [], 0)[0]


def held_by(log: SharedLog, faults: str) -> int:
    """The pid of a process that holds the append lock, with these faults."""
    pid = start(lambda: log.append(ENTRY), faults)
    wait_until(lambda: log.arena.cell(FIRST_PROCESSOR)[4] == 1)
    return pid


def test_a_successor_waits_for_an_append_that_is_under_way(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    pid = held_by(log, "append.after_write@1=slow:300")
    result = log.flush()
    while result == errno.EBUSY:  # the machine took longer than a successor waits
        result = log.flush()
    assert (result, wait(pid)) == (0, 0)
    assert log.view().flushed_end == 24
    assert log.counter("rewritten_bytes", FLUSHER) == 24


@pytest.mark.slow
def test_a_successor_without_the_append_lock_tries_again(tmp_path: Path, children: list[int]) -> None:
    """It gives up for now after two seconds; nothing is in doubt that was not before."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    children.append(held_by(log, "append.after_write@1=stop"))
    assert log.flush() == errno.EBUSY
    assert (log.view().flushed_end, log.view().state) == (0, 0)
    stop(children.pop())
    assert log.flush() == 0
    assert log.view().flushed_end == 12


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_a_successor_without_room_tries_again(error: str, tmp_path: Path) -> None:
    """A file system that copies on write wants room even for the same bytes in their place."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    _files.arm(f"pwrite@1-2={error}", "test")
    for _ in range(2):
        assert log.flush() == getattr(errno, error)
        assert (log.view().state, log.view().flushed_end) == (0, 0)
    assert log.flush() == 0
    assert log.counter("rewritten_bytes", FLUSHER) == 12


def test_bytes_that_changed_are_never_shown(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    log.flush()
    log.append(message(200))
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    data = bytearray(log.stored())
    data[100] ^= 1
    log.path(0).write_bytes(data)
    assert log.flush() == errno.EIO
    assert log.view().flushed_end == 12
    assert "could not be read back" in log.arena.describe_state(log.view().state)
    assert log.flush() == errno.EIO


@pytest.mark.parametrize("faults", ["pread@1=EIO", "pread@2=EIO", ""])
def test_bytes_that_cannot_be_read_back_are_never_shown(faults: str, tmp_path: Path) -> None:
    """Because the disk refuses them, those of the second segment too, or because the file has become shorter."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert roll_now(log.appender, 0)
    log.append(ENTRY)
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    if not faults:
        os.truncate(log.path(12), 11)
    _files.arm(faults, "test")
    assert log.flush() == errno.EIO
    _files.arm("", "test")
    assert log.view().flushed_end == 0
    assert "could not be read back" in log.arena.describe_state(log.view().state)
    assert log.flush() == errno.EIO


def test_a_message_longer_than_the_window_is_checked_too(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(message(9 << 20))
    log.append(ENTRY)
    assert in_child(log.flush, "flush.before_sync@1=kill") == -9
    assert log.flush() == 0
    assert log.view().flushed_end == (9 << 20) + 12


# -- reserved space ----------------------------------------------------------------------------------------------------


def test_reserved_space_is_given_back_by_an_idle_partition(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    flusher = make_partition_flusher(log.arena, 64, RESERVED, 0)
    log.append(ENTRY)
    run_ahead_now(flusher, 0)
    assert reserved(log.path(0)) > 0
    assert flush_now(flusher, 0) == 0
    log.append(ENTRY)
    release_now(flusher, 0)
    assert reserved(log.path(0)) == 0
    assert log.stored() == ENTRY * 2


@pytest.mark.parametrize(("more", "reserves"), [(0, True), (1, False)])
def test_a_disk_that_is_nearly_full_reserves_nothing(more: int, reserves: bool, tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    space = os.statvfs(tmp_path)
    percent = space.f_bavail * 100 // space.f_blocks + more
    run_ahead_now(make_partition_flusher(log.arena, 64, RESERVED, 0), 0, percent)
    assert (reserved(log.path(0)) > 0) is reserves


@pytest.mark.parametrize(("error", "tries_again"), [("EOPNOTSUPP", False), ("EINVAL", False), ("ENOSPC", True)])
def test_a_file_system_that_cannot_reserve_is_asked_once(error: str, tries_again: bool, tmp_path: Path) -> None:
    """In each log directory, and by all of its partitions; one that has no room just now is asked again."""
    log = SharedLog(tmp_path, partitions=4, directories=2)
    flusher = make_partition_flusher(log.arena, 64, RESERVED, 0)
    for slot in range(4):
        log.append(ENTRY, slot=slot)
    _files.arm(f"fallocate@1={error}", "test")
    for slot in (0, 2, 1, 3, 0):
        run_ahead_now(flusher, slot)
    assert [reserved(log.path(0, slot)) > 0 for slot in range(4)] == [tries_again, True, tries_again, True]


def test_what_cannot_be_opened_is_not_reserved(tmp_path: Path) -> None:
    """It is only to be faster: the next look tries again, and the partition takes no harm."""
    log = SharedLog(tmp_path)
    flusher = make_partition_flusher(log.arena, 64, RESERVED, 0)
    log.append(ENTRY)
    _files.arm("open@1=EMFILE", "test")
    run_ahead_now(flusher, 0)
    assert (reserved(log.path(0)), log.view().state) == (0, 0)
    run_ahead_now(flusher, 0)
    assert reserved(log.path(0)) > 0


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_reserved_space_of_a_sealed_segment_is_given_back(flushed: bool, ahead: bool, tmp_path: Path) -> None:
    """Whether the roll finds it flushed or not, and whoever looks at the new segment first."""
    log = SharedLog(tmp_path)
    flusher = make_partition_flusher(log.arena, 64, RESERVED, 0)
    log.append(ENTRY)
    run_ahead_now(flusher, 0)
    if flushed:
        assert flush_now(flusher, 0) == 0
    assert roll_now(log.appender, 0)
    log.append(ENTRY)
    if ahead:
        run_ahead_now(flusher, 0)
    assert flush_now(flusher, 0) == 0
    assert reserved(log.path(0)) == 0
    assert log.path(0).stat().st_size == 12
    assert log.view().flushed_end == 24


def test_a_successor_gives_back_what_a_dead_flusher_reserved(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    run_ahead_now(make_partition_flusher(log.arena, 64, RESERVED, 0), 0)
    assert reserved(log.path(0)) > 0
    assert log.flush() == 0
    release_now(log.flusher, 0)
    assert reserved(log.path(0)) == 0


def test_space_is_given_back_only_with_the_append_lock(tmp_path: Path) -> None:
    """Between reading the end and cutting to it, an append would be lost."""
    log = SharedLog(tmp_path)
    flusher = make_partition_flusher(log.arena, 64, RESERVED, 0)
    log.append(ENTRY)
    run_ahead_now(flusher, 0)
    flush_now(flusher, 0)
    assert in_child(lambda: log.append(message(40)), "append.mid_write@1=kill") == -9
    release_now(flusher, 0)  # takes the lock over, and so repairs
    assert log.stored() == ENTRY
    assert log.append(ENTRY) == DONE


def test_space_is_given_back_when_whoever_held_the_append_lock_is_gone(tmp_path: Path, children: list[int]) -> None:
    """Until then the segment stays open: what is closed is not looked at again."""
    log = SharedLog(tmp_path)
    flusher = make_partition_flusher(log.arena, 64, RESERVED, 0)
    log.append(ENTRY)
    run_ahead_now(flusher, 0)
    assert flush_now(flusher, 0) == 0
    children.append(held_by(log, "append.after_lock@1=stop"))
    release_now(flusher, 0)
    assert reserved(log.path(0)) > 0
    stop(children.pop())
    release_now(flusher, 0)
    assert reserved(log.path(0)) == 0
    assert log.stored() == ENTRY


# -- writing back early ------------------------------------------------------------------------------------------------


def test_pages_are_written_back_once_and_in_large_pieces(tmp_path: Path) -> None:
    """What was flushed, or asked for before, is not asked for again; a segment that has been left neither."""
    log = SharedLog(tmp_path)
    flusher = make_partition_flusher(log.arena, 64, 0, 3000)
    asked = []
    _files.record(str(tmp_path / "record"))
    for size in (2000, 985, 15, 2999, 5000):
        log.append(message(size))
        run_ahead_now(flusher, 0)
    assert flush_now(flusher, 0) == 0
    log.append(message(4000))
    assert roll_now(log.appender, 0)
    log.append(message(2999))
    run_ahead_now(flusher, 0)  # the older one still has to be synced
    assert flush_now(flusher, 0) == 0
    log.append(message(3000))
    run_ahead_now(flusher, 0)
    _files.record(None)
    for line in (tmp_path / "record").read_text().splitlines():
        _pid, number, position, size, result, path, _ = line.split("\t")
        if int(number) == _files.OPS["sync_file_range"]:
            assert result == "0"
            asked.append((int(Path(path).stem), int(position), int(size)))
    assert asked == [(0, 0, 3000), (0, 3000, 7999), (14999, 2999, 3000)]


# -- the loop: when a flush is due -------------------------------------------------------------------------------------


@pytest.fixture
def children() -> Iterator[list[int]]:
    """Pids that are killed at the end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        stop(pid)


def test_half_of_m_or_b_is_due_at_once_and_less_is_not(tmp_path: Path, children: list[int]) -> None:
    log = SharedLog(tmp_path, partitions=3, flush_messages=10, flush_bytes=1200)
    children.append(start_flusher(log.arena))
    assert log.append(ENTRY * 4, 4, 0) == DONE
    assert log.append(ENTRY * 5, 5, 1) == DONE
    assert log.append(message(600), 1, 2) == DONE
    wait_until(lambda: log.view(1).flushed_end == 60)
    wait_until(lambda: log.view(2).flushed_end == 600)
    time.sleep(0.05)
    assert log.view(0).flushed_end == 0
    assert log.append(ENTRY, 1, 0) == DONE
    wait_until(lambda: log.view(0).flushed_end == 60)


@pytest.mark.slow
def test_a_byte_is_flushed_when_it_is_s_old(tmp_path: Path, children: list[int]) -> None:
    """0.7 keeps an override of 100 ms with a tick of 50 ms; here nothing ticks."""
    log = SharedLog(tmp_path, flush_ns=100_000_000)
    children.append(start_flusher(log.arena))
    for turn in range(1, 4):
        assert log.append(ENTRY) == DONE
        assert wait_until(lambda turn=turn: log.view().flushed_end == 12 * turn) > 0.09  # type: ignore[misc]


def test_somebody_who_waits_makes_a_flush_due(tmp_path: Path, children: list[int]) -> None:
    log = SharedLog(tmp_path)
    children.append(start_flusher(log.arena))
    for turn in range(1, 6):
        assert log.append(ENTRY) == DONE
        log.arena.demand_flush(0)
        wait_until(lambda turn=turn: log.view().flushed_end == 12 * turn)  # type: ignore[misc]


def test_a_new_flusher_looks_at_everything(tmp_path: Path, children: list[int]) -> None:
    """What its predecessor had in hand is checked and flushed without anybody asking."""
    log = SharedLog(tmp_path, partitions=3, flush_ns=50_000_000)
    for slot in range(3):
        log.append(ENTRY, slot=slot)
    assert in_child(lambda: log.flush(1), "flush.after_sync@1=kill") == -9
    children.append(start_flusher(log.arena))
    for slot in range(3):
        wait_until(lambda slot=slot: log.view(slot).flushed_end == 12)  # type: ignore[misc]
    assert log.counter("rewritten_bytes", FLUSHER) == 12


def test_the_last_flush_takes_everything_and_leaves_a_failed_partition(tmp_path: Path) -> None:
    """Stage 2 of the stop: one disk error keeps nobody waiting, and the arena says what was not flushed."""
    log = SharedLog(tmp_path, partitions=20)
    for slot in range(20):
        log.append(ENTRY, slot=slot)
    pid = start_flusher(log.arena, "fdatasync@7=EIO")
    time.sleep(0.02)
    log.arena.set_stopping(STAGE_FLUSHER)
    assert wait(pid) == 0
    views = log.arena.views()
    assert sorted(view.flushed_end for view in views) == [0] + [12] * 19
    assert [view.flushed_end for view in views if view.state] == [0]


@pytest.mark.slow
def test_a_flusher_with_few_descriptors_flushes_many_partitions(tmp_path: Path, children: list[int]) -> None:
    log = SharedLog(tmp_path, partitions=60, flush_ns=30_000_000)  # 30 ms

    def prepare() -> None:
        taken = set(open_descriptors())
        free = [number for number in range(len(taken) + 12) if number not in taken][:12]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, free[-1] + 1))

    children.append(start_flusher(log.arena, descriptors=4, prepare=prepare))
    for turn in range(1, 4):
        for slot in range(60):
            assert log.append(ENTRY, slot=slot) == DONE
        wait_until(lambda turn=turn: all(view.flushed_end == 12 * turn for view in log.arena.views()))  # type: ignore[misc]


# -- the page cache ----------------------------------------------------------------------------------------------------


def cached(path: Path, position: int) -> bool:
    """Whether the page there can be had without waiting for the disk."""
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], position, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False


FORGET_TRIES = 30
"""Telling the kernel to forget is advice: it keeps pages that another core has in hand just then."""


def forgets(path: Path) -> bool:
    """Whether the kernel forgets the pages of a new file when it is told to; one in memory has no other place."""
    with path.open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return not cached(path, 0)


def test_only_the_newest_flushed_bytes_stay_cached_when_told_so(tmp_path: Path) -> None:
    """Over two segments; what was there before, and what is not flushed, is left alone."""
    may_forget = any(forgets(tmp_path / "probe") for _ in range(FORGET_TRIES))
    forgotten = [forgotten_by_flush(tmp_path / "0")]
    while may_forget and forgotten[-1] != [True, True] and len(forgotten) < FORGET_TRIES:
        forgotten.append(forgotten_by_flush(tmp_path / str(len(forgotten))))
    assert forgotten[-1] == [may_forget, may_forget], forgotten


def forgotten_by_flush(directory: Path) -> list[bool]:
    """Of each segment, whether its flushed bytes of long ago are gone from memory; checks that all others are not."""
    directory.mkdir()
    log = SharedLog(directory)
    flusher = make_partition_flusher(log.arena, 64, 0, 0, 2 << 20)
    log.append(message(1 << 20))
    assert log.flush() == 0
    log.append(message(4 << 20))
    assert roll_now(log.appender, 0)
    log.append(message(4 << 20))
    assert flush_now(flusher, 0) == 0
    first, second = log.path(0), log.path(log.bases()[1])
    assert cached(first, 4096)
    forgotten = [not cached(first, 3 << 20), not cached(second, 4096)]
    assert cached(second, (4 << 20) - 4096)
    log.append(message(4 << 20))
    assert cached(second, (8 << 20) - 4096)
    assert log.stored().count(message(4 << 20)) == 3
    return forgotten


@pytest.mark.parametrize("keep", [-1, 1 << 30])
def test_pages_stay_where_the_kernel_decides(tmp_path: Path, keep: int) -> None:
    log = SharedLog(tmp_path)
    flusher = make_partition_flusher(log.arena, 64, 0, 0, keep)
    for _ in range(2):
        log.append(message(4 << 20))
        assert flush_now(flusher, 0) == 0
    assert cached(log.path(0), 4096)

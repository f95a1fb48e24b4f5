"""Each disk call of an append, a roll, a flush and what goes with them fails once: what the same partition does then.

It goes on, or it takes no more appends and says why. Whichever it is: what was acknowledged is there, in order and
once, and nothing else; what is visible was synced; a start afterwards finds all of it; no descriptor is left open.
"""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.log._append import append_sets, roll_now
from fastlog.log._flush import flush_now, make_partition_flusher, release_now, run_ahead_now
from fastlog.log._segments import locate_offset
from fastlog.log._shared_memory import FLUSHER
from fastlog.log.recovery import recover_partition
from tests.harness.calls import recorded_calls
from tests.harness.descriptors import open_descriptors
from tests.harness.logs import QuickFiles
from tests.harness.manual_clock import ManualClock
from tests.harness.shared_log import BUSY, DONE, FAILED, OFFLINE, SharedLog, in_child, message

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(12)
CALLS = ["open", "pwrite", "ftruncate", "fdatasync", "fsync", "rename", "mark", "fallocate", "sync_file_range"]
ERRORS = ["EIO", "ENOSPC", "EMFILE", "EACCES"]
MOST_CALLS = 60
CUT = "cutting back a failed write failed"  # what came before is flushed and shown


class Life:
    """A log in use: remembers what was acknowledged and what was shown, and compares with both after each step."""

    def __init__(self, directory: Path) -> None:
        self.log = SharedLog(directory, segment_bytes=40, durable=False)
        self.flusher = make_partition_flusher(self.log.arena, 8, 1 << 20, 1, 0)
        self.acknowledged = b""
        self.visible = 0
        self.statuses: list[int] = []
        self.flushes: list[int] = []
        self._numbers = itertools.count()

    def append(self, sizes: list[int]) -> None:
        data = [message(size, b"%d" % (next(self._numbers) % 10)) for size in sizes]
        status, offsets, end, error = append_sets(self.log.appender, 0, [(one, 1) for one in data])
        assert (status == FAILED) == bool(error)
        self.acknowledged += b"".join(data[: len(offsets)])
        self.statuses.append(status)
        self.check()
        assert end == len(self.acknowledged) or status in (BUSY, OFFLINE)

    def flush(self) -> None:
        self.flushes.append(flush_now(self.flusher, 0))
        if self.flushes[-1] == 0:
            assert self.log.view().flushed_end == len(self.acknowledged)
            assert self.log.view().flushed_messages == self.log.view().appended_messages
        self.check()

    def check(self) -> None:
        view = self.log.view()
        assert view.log_end == len(self.acknowledged)
        assert self.visible <= view.flushed_end <= view.log_end
        self.visible = view.flushed_end
        stored = self.log.stored()
        assert stored[: len(self.acknowledged)] == self.acknowledged
        if not view.state:
            assert stored == self.acknowledged
        if self.visible:
            assert locate_offset(self.log.arena, 0, 0) is not None

    def live(self) -> None:
        """Everything that a partition goes through."""
        self.append([12])
        self.flush()
        self.append([12, 20, 12])
        self.append([30])
        run_ahead_now(self.flusher, 0)
        self.flush()
        self.append([12])
        run_ahead_now(self.flusher, 0)
        roll_now(self.log.appender, 0)
        self.check()
        self.append([12, 12])
        self.flush()
        release_now(self.flusher, 0)
        self.append([50, 50])
        self.flush()
        self.check()

    def close(self) -> None:
        release_now(self.flusher, 0)
        self.log.files.close_unused()


def open_below(directory: Path) -> set[str]:
    """What this process has open of a log directory, the directory itself included."""
    names = {Path(name) for name in open_descriptors().values() if name.startswith(str(directory))}
    return {str(name.relative_to(directory)) for name in names}


def start_again(directory: Path, acknowledged: bytes) -> None:
    """A start writes again what memory holds, as the marks ask for."""
    result = recover_partition(
        directory / "t-0", "t", 0, clean_end=None, files=QuickFiles(), clock=ManualClock(1), in_doubt=True
    )
    assert (result.state, result.log_end) == ("ok", len(acknowledged)), result.reason


def ends_service(call: str, error: str) -> bool:
    """Whether a partition may leave service when this call fails so.

    A sync that failed may have lost bytes. What the flusher cannot open, or move, for a reason that does not pass by
    itself, it cannot sync. All else fails one request, or costs time.
    """
    if call in ("fdatasync", "fsync"):
        return True
    return call == "open" or (call in ("rename", "mark") and error in ("EIO", "EACCES"))


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_one_call_that_fails_costs_no_acknowledged_byte(call: str, error: str, memory: Path) -> None:
    outcomes = []
    for number in range(1, MOST_CALLS):
        directory = memory / str(number)
        directory.mkdir()
        life = Life(directory)
        _files.arm(f"{call}@{number}={error}", "test")
        with recorded_calls(memory) as calls:
            life.live()
        reached = [one.name for one in calls if one.result == -getattr(errno, error)] == [call]
        _files.arm("", "test")
        out = bool(life.log.view().state)
        shows_all = not out or life.log.arena.describe_state(life.log.view().state).startswith(f"read-only: {CUT}")
        assert not out or ends_service(call, error), (number, life.log.arena.describe_state(life.log.view().state))
        life.append([12])
        life.flush()
        assert life.statuses[-1] == (OFFLINE if out else DONE)
        assert life.flushes[-1] == (0 if shows_all else errno.EIO)
        assert life.log.counter("flush_failures", FLUSHER) == (not shows_all)
        if shows_all:
            assert life.visible == len(life.acknowledged)
        if not out:
            assert set(life.statuses) <= {DONE, FAILED}
            assert life.statuses.count(FAILED) <= 1
            assert sum(map(bool, life.flushes)) <= 1
        life.close()
        assert open_below(directory) <= {".fastlog-flushing"}
        start_again(directory, life.acknowledged)
        outcomes.append((out, FAILED in life.statuses, any(life.flushes)))
        if not reached:
            break
    else:
        raise AssertionError("more calls than expected")
    assert len(outcomes) >= 2
    if call == "open" and error == "EMFILE":
        assert not any(out for out, _, _ in outcomes)
    if call in ("fdatasync", "fsync") and error != "EMFILE":
        assert all(out for out, _, _ in outcomes[:-1])
    if call == "pwrite":
        assert all(failed for _, failed, _ in outcomes[:-1])


def test_a_file_in_the_way_of_a_roll_is_not_held_open(memory: Path) -> None:
    """Whether an append meets it, or whoever repairs after one that died there."""
    for number, dies in enumerate([False, True]):
        directory = memory / str(number)
        directory.mkdir()
        log = SharedLog(directory, segment_bytes=5)
        log.append(ENTRY)
        if dies:
            assert in_child(lambda log=log: log.append(ENTRY), "roll.created@1=kill") == -9  # type: ignore[misc]
        log.path(12).write_bytes(b"somebody's")
        assert log.append(ENTRY) == (OFFLINE if dies else FAILED)
        assert log.append(ENTRY) == OFFLINE
        log.files.close_unused()
        assert open_below(directory) == set()
        assert log.flush() == 0
        assert log.path(12).read_bytes() == b"somebody's"


def test_an_error_in_a_place_that_others_use_is_that_of_one_request(memory: Path) -> None:
    """Another partition, and the same one in another process, know nothing of it."""
    log = SharedLog(memory, partitions=2)
    _files.arm("pwrite@1=short,pwrite@2=ENOSPC", "test")
    assert log.append(message(50)) == FAILED
    assert log.append(ENTRY, slot=1) == DONE
    assert in_child(lambda: log.append(ENTRY)) == DONE
    assert log.append(ENTRY) == DONE
    assert (log.stored(0), log.stored(1)) == (ENTRY * 2, ENTRY)
    assert log.counter("appends") == 3
    for slot in (0, 1):
        assert log.flush(slot) == 0
    assert log.counter("flushes", FLUSHER) == 2
    assert log.counter("flushed_bytes", FLUSHER) == 36


@pytest.mark.parametrize(
    ("faults", "counted"),
    [
        ("", "flushes"),
        ("fdatasync@1=EIO", "flush_failures"),
        ("mark@1=ENOSPC", "flushes_without_room"),
        ("mark@1=EDQUOT", "flushes_without_room"),
        ("mark@1=EFBIG", "flushes_without_room"),
        ("rename@1=ENOSPC", "flushes_without_room"),
        ("open@1=EMFILE", "flushes_without_files"),
        ("open@1=ENFILE", "flushes_without_files"),
        ("open@2=ENOMEM", "flushes_without_files"),
        ("open@3=EMFILE", "flushes_without_files"),
    ],
)
def test_what_a_flush_comes_to_is_counted_once(faults: str, counted: str, memory: Path) -> None:
    log = SharedLog(memory, segment_bytes=5)
    log.append(ENTRY)
    assert log.flush() == 0
    log.append(ENTRY)
    successor = make_partition_flusher(log.arena, 8, 0, 0)
    before = log.arena.counters(FLUSHER)
    _files.arm(faults, "test")
    assert bool(flush_now(successor, 0)) == bool(faults)
    after = log.arena.counters(FLUSHER)
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    changed.pop("flush_ns", None)
    timed = [name for name in changed if name.startswith("flushes_within_")]
    assert len(timed) == (0 if faults else 1) and all(changed.pop(name) == 1 for name in timed)
    assert changed == {counted: 1} | ({} if faults else {"flushed_bytes": 12})
    _files.arm("", "test")
    assert flush_now(successor, 0) == (errno.EIO if counted == "flush_failures" else 0)
    assert log.counter("rewritten_bytes", FLUSHER) == 0
    assert log.view().flushed_end == (12 if counted == "flush_failures" else 24)

"""A sync whose end nobody knows leaves a mark, and only then recovery does not believe memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.log import _files
from fastlog.log._arena import FIRST_PROCESSOR, Arena
from fastlog.log.files import FaultyFileOps, FileOps
from fastlog.log.flush_marks import MAX_BYTES, FlushMarks
from fastlog.log.manager import LogManager
from fastlog.segment_files import FLUSH_MARKS_NAME
from tests.harness import logs
from tests.harness.shared_log import SharedLog, in_child, message

ENTRY = message(12)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """What a test arms ends with it."""
    yield
    _files.arm("", "test")


def in_doubt(directory: Path) -> bool:
    """What the next start would think, without leaving that start's own mark."""
    path = directory / FLUSH_MARKS_NAME
    return path.exists() and any(path.read_bytes())


def load(directory: Path, files: FileOps) -> None:
    config = BrokerConfig.from_properties({"log.dir": str(directory)})
    arena = Arena([str(directory)], FIRST_PROCESSOR + 1, config.max_partitions, config.segments_per_partition)
    LogManager(config, arena, files).load([{}])


def test_a_start_is_in_doubt_until_it_is_settled(tmp_path: Path) -> None:
    first = FlushMarks(tmp_path, FileOps())
    assert not first.in_doubt
    assert FlushMarks(tmp_path, FileOps()).in_doubt, "the first one was not settled"
    first.settle(3)
    assert (tmp_path / FLUSH_MARKS_NAME).read_bytes() == bytes(4)
    assert not FlushMarks(tmp_path, FileOps()).in_doubt


@pytest.mark.parametrize("found", ["directory", "unreadable", "too long"])
def test_marks_that_say_nothing_are_doubts(found: str, tmp_path: Path) -> None:
    files = FaultyFileOps()
    path = tmp_path / FLUSH_MARKS_NAME
    if found == "directory":
        path.mkdir()
        with pytest.raises(IsADirectoryError):
            FlushMarks(tmp_path, files)
        return
    path.touch()
    if found == "unreadable":
        files.fail("read", 1)
    else:
        os.truncate(path, MAX_BYTES + 1)
    assert FlushMarks(tmp_path, files).in_doubt


def test_a_start_that_cannot_leave_its_mark_ends(tmp_path: Path) -> None:
    files = FaultyFileOps()
    files.fail("write", 1, errno.ENOSPC)
    with pytest.raises(OSError, match=FLUSH_MARKS_NAME):
        load(tmp_path, files)


@pytest.mark.parametrize("slot", [0, 2])
@pytest.mark.parametrize(
    ("faults", "doubted"),
    [
        ("", False),
        ("flush.before_sync@1=kill", True),
        ("flush.after_sync@1=kill", True),
        ("fdatasync@1=EIO", True),
        ("fsync@1=EIO", True),
    ],
)
def test_a_flush_leaves_its_mark_until_it_has_succeeded(slot: int, faults: str, doubted: bool, tmp_path: Path) -> None:
    log = SharedLog(tmp_path, partitions=3, durable=False)
    log.append(ENTRY, slot=slot)
    in_child(lambda: log.flush(slot), faults)
    assert in_doubt(tmp_path) == doubted
    assert not doubted or (tmp_path / FLUSH_MARKS_NAME).read_bytes() == bytes(1 + slot) + b"\1"


def test_a_successor_of_a_killed_flusher_settles_what_it_left(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    assert in_child(log.flush, "flush.after_sync@1=kill") == -9
    assert in_doubt(tmp_path)
    assert log.flush() == 0
    assert not in_doubt(tmp_path)


def test_nothing_is_synced_without_a_mark(tmp_path: Path) -> None:
    """A full disk is waited for; anything else is a failed flush."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    _files.arm("mark@1=ENOSPC,mark@2=EMFILE,fdatasync@1=EIO", "test")
    assert [log.flush(), log.flush()] == [errno.ENOSPC, errno.EMFILE]
    assert (log.view().state, log.view().high_watermark) == (0, 0)
    _files.arm("", "test")
    assert log.flush() == 0
    log.append(ENTRY)
    _files.arm("mark@1=EIO,fdatasync@1=ENODEV", "test")
    assert log.flush() == errno.EIO
    assert log.view().state
    assert log.view().high_watermark == len(ENTRY)


def test_a_mark_that_stays_only_costs_time(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    _files.arm("mark@2=EIO", "test")
    assert log.flush() == 0
    assert log.view().high_watermark == len(ENTRY)
    assert in_doubt(tmp_path)


@pytest.mark.parametrize("failed", [0, 1, 3, 4])
def test_a_start_whose_sync_failed_is_remembered(failed: int, tmp_path: Path) -> None:
    """The kernel tells it once: the next start drops what memory holds before it reads.

    The second sync is that of the tail which was set aside.
    """
    logs.write_segments(tmp_path / "t-0", [ENTRY * 3 + b"torn"])
    logs.write_segments(tmp_path / "u-0", [ENTRY])
    files = FaultyFileOps()
    if failed:
        files.fail("fdatasync", failed)
    load(tmp_path, files)
    assert not files.calls["fadvise"]
    assert in_doubt(tmp_path) == bool(failed)
    files = FaultyFileOps()
    load(tmp_path, files)
    assert files.calls["fadvise"] == (2 if failed else 0)
    assert not in_doubt(tmp_path)

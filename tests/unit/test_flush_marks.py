"""A sync whose end nobody knows leaves a mark, and then recovery writes again what memory holds."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.log import _files
from fastlog.log._arena import Arena
from fastlog.log._flush import make_partition_flusher
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.check import check_partition
from fastlog.log.files import FileOps
from fastlog.log.flush_marks import MAX_BYTES, FlushMarks
from fastlog.log.manager import LogManager
from fastlog.log.repair import keep_span
from fastlog.segment_files import FLUSH_MARKS_NAME
from tests.harness import logs
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.shared_log import SharedLog, in_child, message

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(12)


def in_doubt(directory: Path) -> bool:
    """What the next start would think, without leaving that start's own mark."""
    path = directory / FLUSH_MARKS_NAME
    return path.exists() and (not path.read_bytes() or any(path.read_bytes()))


def load(directories: Path | list[Path], files: FileOps) -> None:
    """What a broker's start does with these log directories."""
    paths = [str(path) for path in (directories if isinstance(directories, list) else [directories])]
    config = BrokerConfig.from_properties({"log.dir": ",".join(paths)})
    arena = Arena(paths, FIRST_PROCESSOR + 1, config.max_partitions, config.segments_per_partition)
    LogManager(config, arena, files).load([{} for _ in paths])


def test_a_start_is_in_doubt_until_it_is_settled(tmp_path: Path) -> None:
    first = FlushMarks(tmp_path, FileOps())
    assert not first.in_doubt
    assert FlushMarks(tmp_path, FileOps()).in_doubt, "the first one was not settled"
    first.settle(3)
    assert (tmp_path / FLUSH_MARKS_NAME).read_bytes() == bytes(4)
    assert not FlushMarks(tmp_path, FileOps()).in_doubt


@pytest.mark.parametrize("found", ["unreadable", "too long"])
def test_marks_that_say_nothing_are_doubts_and_made_anew(found: str, tmp_path: Path) -> None:
    files = FaultyFileOps()
    path = tmp_path / FLUSH_MARKS_NAME
    path.write_bytes(bytes(3))
    if found == "unreadable":
        files.fail("read", 1)
    else:
        os.truncate(path, MAX_BYTES + 1)
    assert FlushMarks(tmp_path, files).in_doubt
    assert path.read_bytes() == b"\1"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("before", [None, bytes(5)])
def test_a_full_disk_does_not_keep_a_broker_from_starting(error: int, before: bytes | None, tmp_path: Path) -> None:
    """Retention may be what makes room. An empty file, for which none is needed, is a mark too."""
    logs.write_segments(tmp_path / "t-0", [ENTRY])
    if before is not None:
        (tmp_path / FLUSH_MARKS_NAME).write_bytes(before)
    files = FaultyFileOps()
    files.fail("write", 1, error)
    files.fail("write", 2, error)
    load(tmp_path, files)
    assert (tmp_path / FLUSH_MARKS_NAME).read_bytes() == b""
    again = AgainFiles()
    load(tmp_path, again)
    assert again.names == ["t-0"]
    assert not in_doubt(tmp_path)


def full_for_marks() -> FaultyFileOps:
    """A disk that copies on write and is full: neither a byte in its place nor a shorter file."""
    files = FaultyFileOps()
    files.fail("write", 1, errno.ENOSPC)
    files.fail("open", 3, errno.ENOSPC)
    return files


def test_where_not_even_an_empty_mark_has_room_nothing_is_synced(tmp_path: Path) -> None:
    """A sync that failed would leave no trace: what was flushed is read, and what a clean stop left is all served."""
    for topic in "tu":
        bases = logs.write_segments(tmp_path / f"{topic}-0", [ENTRY] * 3)
        logs.write_side_file(tmp_path / f"{topic}-0", bases[1])
        (tmp_path / f"{topic}-0" / f".flushed-{bases[2]:020}").touch()
    (tmp_path / FLUSH_MARKS_NAME).write_bytes(bytes(5))
    files = full_for_marks()
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 8, 64)
    LogManager(BrokerConfig.from_properties({"log.dir": str(tmp_path)}), arena, files).load([{"u-0": bases[3]}])
    states = {view.topic: (arena.describe_state(view.state), view.flushed_end) for view in arena.views()}
    assert states == {"t": ("read-only: the disk was full at start", bases[2]), "u": ("ok", bases[3])}
    assert files.calls["fdatasync"] == 0
    load(tmp_path, FileOps())
    assert not in_doubt(tmp_path)


def test_marks_that_are_there_are_good_enough_on_a_full_disk(tmp_path: Path) -> None:
    logs.write_segments(tmp_path / "t-0", [ENTRY])
    (tmp_path / FLUSH_MARKS_NAME).write_bytes(b"\0\1")
    marks = FlushMarks(tmp_path, full_for_marks())
    assert (marks.in_doubt, marks.no_room) == (True, False)
    assert (tmp_path / FLUSH_MARKS_NAME).read_bytes() == b"\0\1"


def test_a_repair_does_not_begin_where_its_mark_has_no_room(tmp_path: Path) -> None:
    logs.write_segments(tmp_path / "t-0", [ENTRY + b"torn"])
    (tmp_path / FLUSH_MARKS_NAME).write_bytes(bytes(2))
    report = check_partition(tmp_path / "t-0", FileOps())
    with pytest.raises(OSError, match=f"No space left.*{FLUSH_MARKS_NAME}"):
        keep_span(report, report.choices[0], full_for_marks(), 1)
    assert logs.segment_path(tmp_path / "t-0", 0).read_bytes() == ENTRY + b"torn"


def test_a_sync_that_fails_beside_a_full_disk_is_remembered(tmp_path: Path) -> None:
    logs.write_segments(tmp_path / "t-0", [ENTRY])
    files = FaultyFileOps()
    files.fail("write", 1, errno.ENOSPC)
    files.fail("fdatasync", 1)
    load(tmp_path, files)
    again = AgainFiles()
    load(tmp_path, again)
    assert again.names == ["t-0"]


@pytest.mark.parametrize("in_doubt", [False, True])
def test_without_a_side_file_sealed_segments_are_made_durable_too(in_doubt: bool, tmp_path: Path) -> None:
    """Nothing says that they were, and they are below the watermark from now on."""
    logs.write_segments(tmp_path / "t-0", [ENTRY] * 4)
    if in_doubt:
        (tmp_path / FLUSH_MARKS_NAME).write_bytes(b"\1")
    files = AgainFiles()
    load(tmp_path, files)
    assert files.names == ["t-0"] * 4 * in_doubt
    assert files.calls["fdatasync"] >= 4


def test_a_start_that_cannot_leave_its_mark_ends(tmp_path: Path) -> None:
    files = FaultyFileOps()
    files.fail("write", 1)
    with pytest.raises(OSError, match=FLUSH_MARKS_NAME):
        load(tmp_path, files)


def test_a_start_that_can_leave_no_mark_at_all_ends(tmp_path: Path) -> None:
    """No room for a byte, and then not the disk's room is the trouble."""
    files = full_for_marks()
    files.fail("open", 3, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        load(tmp_path, files)


def test_a_directory_in_the_place_of_the_marks_ends_a_start(tmp_path: Path) -> None:
    (tmp_path / FLUSH_MARKS_NAME).mkdir()
    with pytest.raises(IsADirectoryError, match=FLUSH_MARKS_NAME):
        load(tmp_path, FileOps())


@pytest.mark.parametrize("call", ["write", "ftruncate"])
def test_a_start_that_cannot_settle_goes_on(call: str, tmp_path: Path) -> None:
    files = FaultyFileOps()
    files.fail(call, 2 if call == "write" else 1)
    load(tmp_path, files)
    assert in_doubt(tmp_path) == (call == "write")


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
    assert (log.view().state, log.view().flushed_end) == (0, 0)
    _files.arm("", "test")
    assert log.flush() == 0
    log.append(ENTRY)
    _files.arm("mark@1=EIO,fdatasync@1=ENODEV", "test")
    assert log.flush() == errno.EIO
    assert log.view().state
    assert log.view().flushed_end == len(ENTRY)


def test_a_mark_that_stays_only_costs_time(tmp_path: Path) -> None:
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    _files.arm("mark@2=EIO", "test")
    assert log.flush() == 0
    assert log.view().flushed_end == len(ENTRY)
    assert in_doubt(tmp_path)


@pytest.mark.parametrize("failed", [0, 1, 3, 4])
def test_a_start_whose_sync_failed_is_remembered(failed: int, tmp_path: Path) -> None:
    """The kernel tells it once: the next start writes again what memory holds.

    The second sync is that of the quarantined tail.
    """
    logs.write_segments(tmp_path / "t-0", [ENTRY * 3 + b"torn"])
    logs.write_segments(tmp_path / "u-0", [ENTRY])
    files = FaultyFileOps()
    if failed:
        files.fail("fdatasync", failed)
    load(tmp_path, files)
    assert in_doubt(tmp_path) == bool(failed)
    again = AgainFiles()
    load(tmp_path, again)
    assert again.names == (["t-0", "u-0"] if failed else [])
    assert not in_doubt(tmp_path)


class AgainFiles(FaultyFileOps):
    """Notes which partitions are written again."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def write_again(self, fd: int, position: int) -> None:
        self.names.append(Path(f"/proc/self/fd/{fd}").readlink().parent.name)
        super().write_again(fd, position)


def gap(directory: Path) -> None:
    logs.write_segments(directory, [ENTRY, ENTRY, ENTRY])
    (directory / f"{len(ENTRY):020}.kafka").unlink()


def short(directory: Path) -> None:
    logs.write_segments(directory, [ENTRY])
    logs.write_side_file(directory, 100)


def unknown(directory: Path) -> None:
    logs.write_segments(directory, [ENTRY])
    logs.write_side_file(directory, 0, log_format="kafka-9")


def unreadable(directory: Path) -> None:
    logs.write_segments(directory, [ENTRY])
    (directory / f"{len(ENTRY):020}.kafka").mkdir()


@pytest.mark.parametrize("damage", [gap, short, unknown, unreadable])
def test_doubts_stay_until_every_partition_is_beyond_them(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """What is not served was not looked at, so nothing was written again there."""
    logs.write_segments(tmp_path / "a-0", [ENTRY])
    damage(tmp_path / "t-0")
    load(tmp_path, FileOps())
    assert not in_doubt(tmp_path), "damage alone says nothing of flushes"
    (tmp_path / FLUSH_MARKS_NAME).write_bytes(b"\0\1")
    for _ in range(2):
        files = AgainFiles()
        load(tmp_path, files)
        assert "a-0" in files.names
        assert in_doubt(tmp_path)
    shutil.rmtree(tmp_path / "t-0")
    load(tmp_path, FileOps())
    assert not in_doubt(tmp_path)


def test_a_doubt_is_one_of_all_log_directories(tmp_path: Path) -> None:
    """Pages go with a partition that is moved to another directory."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    logs.write_segments(second / "t-0", [ENTRY])
    (first / FLUSH_MARKS_NAME).write_bytes(b"\0\1")
    files = AgainFiles()
    load([first, second], files)
    assert files.names == ["t-0"]
    assert not in_doubt(first)
    assert not in_doubt(second)


def test_a_flusher_does_without_a_log_directory_that_is_gone(tmp_path: Path) -> None:
    """Its partitions fail, each with its own reason; those of the others are none of its business."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)
    make_partition_flusher(Arena([str(tmp_path / "gone"), str(tmp_path)], FIRST_PROCESSOR + 8, 1, 8), 64, 0, 0)
    _files.arm("open@1=EMFILE,open@2=EROFS", "test")
    assert [log.flush(), log.flush()] == [errno.EMFILE, errno.EROFS]
    assert log.view().state


def test_a_repair_whose_sync_fails_is_remembered(tmp_path: Path) -> None:
    logs.write_segments(tmp_path / "t-0", [ENTRY * 3 + b"torn"])
    report = check_partition(tmp_path / "t-0", FileOps())
    files = FaultyFileOps()
    files.fail("fdatasync", 2)
    with pytest.raises(OSError, match="00000"):
        keep_span(report, report.choices[0], files, 1)
    assert in_doubt(tmp_path)
    (tmp_path / FLUSH_MARKS_NAME).unlink()
    (tmp_path / "t-0" / f"{0:020}.kafka").write_bytes(ENTRY * 3 + b"torn")
    keep_span(report, report.choices[0], FileOps(), 2)
    assert not in_doubt(tmp_path)
    (tmp_path / FLUSH_MARKS_NAME).write_bytes(b"\0\1")
    (tmp_path / "t-0" / f"{0:020}.kafka").write_bytes(ENTRY * 3 + b"torn")
    keep_span(report, report.choices[0], FileOps(), 3)
    assert in_doubt(tmp_path), "what was in doubt before still is"


def test_a_limit_of_file_sizes_is_a_disk_that_is_full(tmp_path: Path) -> None:
    """What ``fastlog.testing`` fills a disk with: a flush that comes due meanwhile waits, and the partition goes on."""
    log = SharedLog(tmp_path)
    log.append(ENTRY)

    def flush() -> int:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        assert log.flush() == errno.EFBIG
        assert (log.view().state, log.view().flushed_end) == (0, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        return log.flush()

    assert in_child(flush) == 0
    assert (log.view().state, log.view().flushed_end) == (0, len(ENTRY))

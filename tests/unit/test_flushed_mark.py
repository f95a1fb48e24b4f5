"""The flushed mark: moved before the watermark, and what a gap means above it and below it."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.log.check import check_partition
from fastlog.log.files import FileOps
from fastlog.log.flushed_mark import flushed_mark_name, flushed_marks, put_flushed_mark
from fastlog.log.recovery import RecoveredPartition, recover_partition
from fastlog.segment_files import MAX_OFFSET
from tests.harness import logs, raw_format
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.manual_clock import ManualClock
from tests.harness.shared_log import SharedLog, in_child, message

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(20)
PART = raw_format.entry(b"one of five") * 5
ENTRY_BYTES = len(PART) // 5
TORN = raw_format.entry(b"cut short")[:-3]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


def marks(directory: Path) -> list[int]:
    return flushed_marks(path.name for path in directory.iterdir())


def recover(directory: Path, files: FileOps | None = None) -> RecoveredPartition:
    files = files or logs.QuickFiles()
    return recover_partition(directory, "t", 0, clean_end=None, files=files, clock=ManualClock())


# -- the flusher -------------------------------------------------------------------------------------------------------


def rolled(tmp_path: Path) -> SharedLog:
    """Flushed up to 40, with a mark; then a roll at 60 and another at 120, and an end at 140, that are not."""
    log = SharedLog(tmp_path, segment_bytes=50)
    for _ in range(2):
        log.append(ENTRY)
    assert log.flush() == 0
    assert marks(log.folder()) == [0]
    for _ in range(5):
        log.append(ENTRY)
    assert log.bases() == [0, 60, 120]
    return log


def test_it_names_the_newest_segment_once_that_is_flushed(tmp_path: Path) -> None:
    log = rolled(tmp_path)
    assert marks(log.folder()) == [0]
    assert log.flush() == 0
    assert (marks(log.folder()), log.view().flushed_end) == ([120], 140)


def test_a_flush_that_fails_before_it_leaves_it(tmp_path: Path) -> None:
    log = rolled(tmp_path)
    _files.arm("fdatasync@2=EIO", "test")
    assert log.flush() == errno.EIO
    assert (marks(log.folder()), log.view().flushed_end) == ([0], 40)


@pytest.mark.parametrize(("fault", "named"), [("rename@1=EIO", 0), ("fsync@1=EIO", 0), ("fsync@2=EIO", 120)])
def test_the_watermark_waits_for_it_and_for_its_name(fault: str, named: int, tmp_path: Path) -> None:
    """And it waits for the names of the segments: of two new names, a power loss may leave either one alone."""
    log = rolled(tmp_path)
    _files.arm(fault, "test")
    assert log.flush() == errno.EIO
    assert log.view().state
    assert (marks(log.folder()), log.view().flushed_end) == ([named], 40)


def test_a_flush_that_was_put_off_behind_it_syncs_its_name(tmp_path: Path) -> None:
    """Without a descriptor for the directory the mark is moved and may not be durable: the next flush sees to that."""
    moved = 0
    for number in range(1, 9):
        place = tmp_path / str(number)
        place.mkdir()
        log = rolled(place)
        _files.arm(f"open@{number}=EMFILE", "test")
        if log.flush() and marks(log.folder()) == [120]:
            moved += 1
            _files.arm("fsync@1=EIO", "test")
            assert log.flush() == errno.EIO
            assert log.view().flushed_end == 40
        _files.arm("", "test")
    assert moved


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_a_disk_without_room_for_it_is_tried_again(error: str, tmp_path: Path) -> None:
    log = rolled(tmp_path)
    _files.arm(f"rename@1={error}", "test")
    assert log.flush() != 0
    assert (log.view().state, log.view().flushed_end) == (0, 40)
    assert log.flush() == 0
    assert (marks(log.folder()), log.view().flushed_end) == ([120], 140)


@pytest.mark.parametrize("point", ["rename@1=kill", "flush.after_sync@1=kill"])
def test_a_successor_of_a_dead_flusher_moves_it(point: str, tmp_path: Path) -> None:
    """Also when the dead one had moved it and told nobody."""
    log = rolled(tmp_path)
    if point.startswith("flush"):
        (log.folder() / flushed_mark_name(0)).rename(log.folder() / flushed_mark_name(120))
    assert in_child(lambda: log.flush(), point) == -9
    assert log.flush() == 0
    assert (marks(log.folder()), log.view().flushed_end) == ([120], 140)


# -- recovery ----------------------------------------------------------------------------------------------------------


def test_what_the_power_took_between_rolls_is_no_damage(directory: Path, tmp_path: Path) -> None:
    """Of segments behind the watermark any may be missing or short: nothing visible is lost, and no hand is needed."""
    bases = [number * len(PART) for number in range(5)]
    for number, (flushed, *states) in enumerate(itertools.product([0, 1], [0, 3, 5], *[["gone", 0, 2, 5]] * 3)):
        place = tmp_path / str(number) / "t-0"
        place.mkdir(parents=True)
        watermark = bases[flushed] + 2 * ENTRY_BYTES
        logs.write_side_file(place, 0)
        put_flushed_mark(place, [], bases[flushed], FileOps())
        for base in bases[: flushed + 1]:
            logs.segment_path(place, base).write_bytes(PART)
        for base, state in zip(bases[flushed + 1 :], states, strict=False):
            if state != "gone":
                logs.segment_path(place, base).write_bytes(PART[: int(state) * ENTRY_BYTES])
        left = logs.contents(place)
        result = recover(place)
        assert result.state == "ok", (flushed, states, result.reason)
        assert result.log_end >= watermark
        assert not logs.lost_bytes(left, logs.contents(place))
        assert marks(place) == [result.segments[-1].base]


def test_a_segment_that_is_missing_below_it_is_damage(tmp_path: Path) -> None:
    """Whichever of those that were flushed is gone, the one that the mark names too: no offset is given out again."""
    bases = [number * len(PART) for number in range(4)]
    for mark, gone in [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)]:
        place = tmp_path / f"{mark}-{gone}" / "t-0"
        logs.write_segments(place, [PART] * 4)
        logs.write_side_file(place, 0)
        put_flushed_mark(place, [], bases[mark], FileOps())
        logs.segment_path(place, bases[gone]).unlink()
        before = logs.contents(place)
        result = recover(place)
        assert (result.state, result.log_end) == ("read-only", bases[gone]), (mark, gone)
        assert "nothing was cut" in result.reason
        assert logs.contents(place) == before
        assert check_partition(place, FileOps()).problems
        assert marks(place) == [bases[mark]]


def test_unlinks_that_became_durable_out_of_order_are_damage(directory: Path) -> None:
    """An older side file beside them says nothing of what was flushed since: a whole segment before a gap is none."""
    logs.write_segments(directory, [PART])
    logs.write_segments(directory, [PART] * 3, base=3 * len(PART))
    logs.write_side_file(directory, 2 * ENTRY_BYTES)
    before = logs.contents(directory)
    result = recover(directory)
    assert (result.state, result.log_end) == ("read-only", len(PART))
    assert "gap between segments" in result.reason
    assert logs.contents(directory) == before


def test_without_one_a_torn_end_before_a_gap_is_proof_enough(directory: Path) -> None:
    logs.write_segments(directory, [PART])
    logs.segment_path(directory, 0).write_bytes(PART + TORN)
    logs.segment_path(directory, 2 * len(PART)).write_bytes(PART)
    logs.write_side_file(directory, 0)
    result = recover(directory)
    assert (result.state, result.log_end) == ("ok", len(PART))


def test_nothing_is_taken_out_before_it_is_sure_that_nothing_else_is_wrong(directory: Path) -> None:
    """What says that nothing was cut says the truth: the segments behind the gap stand where they stood."""
    logs.write_segments(directory, [PART])
    logs.segment_path(directory, 0).write_bytes(PART + TORN)
    logs.segment_path(directory, 2 * len(PART)).write_bytes(PART)
    put_flushed_mark(directory, [], 0, FileOps())
    logs.write_side_file(directory, 0)
    before = logs.contents(directory)
    files = FaultyFileOps()
    files.fail("write", 1, errno.EIO)
    result = recover(directory, files)
    assert result.state == "read-only"
    assert "nothing was cut" in result.reason
    assert logs.contents(directory) == before


def test_two_names_for_one_offset_are_damage_whichever_is_empty(directory: Path) -> None:
    for number, name in enumerate(("0.kafka", "00000000000000000000.kafka")):
        place = directory.with_name(f"t-{number}")
        place.mkdir()
        for each in ("0.kafka", "00000000000000000000.kafka"):
            (place / each).write_bytes(b"" if each == name else PART)
        logs.write_side_file(place, 0)
        before = logs.contents(place)
        result = recover(place)
        assert (result.state, logs.contents(place)) == ("offline", before), name
        assert "overlap" in result.reason


def test_it_counts_like_a_checkpoint(directory: Path) -> None:
    """Without a side file, too: what is below is not read again, and a log that ends before it is damaged."""
    bases = logs.write_segments(directory, [PART] * 3)
    put_flushed_mark(directory, [], bases[2], FileOps())
    files = FaultyFileOps()
    assert recover(directory, files).state == "ok"
    assert files.calls["fdatasync"] == 1
    logs.segment_path(directory, bases[2]).unlink()
    logs.segment_path(directory, bases[1]).write_bytes(PART[:-ENTRY_BYTES])
    result = recover(directory)
    assert (result.state, result.log_end) == ("read-only", bases[2] - ENTRY_BYTES)
    assert f"expected at least {bases[2]}" in result.reason
    logs.segment_path(directory, bases[0]).unlink()
    logs.segment_path(directory, bases[1]).unlink()
    assert "all segments are missing" in recover(directory).reason


@pytest.mark.parametrize("name", ["", "0", "x" * 20, "9" * 20, "0" * 21, "-" + "0" * 19])
def test_other_names_are_no_marks(name: str) -> None:
    assert flushed_marks([f".flushed-{name}", ".flushed", "flushed-" + "0" * 20]) == []


def test_a_mark_may_name_every_offset_that_there_is() -> None:
    """And none beyond."""
    names = [flushed_mark_name(base) for base in (MAX_OFFSET + 1, MAX_OFFSET, 0)]
    assert flushed_marks(names) == [0, MAX_OFFSET]


def test_of_several_marks_the_highest_counts_and_one_stays(directory: Path) -> None:
    bases = logs.write_segments(directory, [PART] * 3)
    for base in bases[:2]:
        (directory / flushed_mark_name(base)).touch()
    assert recover(directory).state == "ok"
    assert marks(directory) == [bases[2]]


def test_a_start_moves_it_when_the_names_of_the_segments_are_durable(directory: Path) -> None:
    """The broker before was killed behind a roll: its new segment may have a name in memory only."""
    bases = logs.write_segments(directory, [PART] * 2)
    put_flushed_mark(directory, [], bases[0], FileOps())
    files = logs.QuickFaultyFiles()
    assert recover(directory, files).state == "ok"
    assert marks(directory) == [bases[1]]
    (moved,) = [place for place, call in enumerate(files.order) if call[0] == "rename"]
    synced = [place for place, call in enumerate(files.order) if call == ("fsync_dir", directory.name)]
    assert synced[0] < moved < synced[-1]

"""What the side file of a topic of record batches says of its files, and what a start makes of it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log.files import FileOps
from fastlog.log.formats import record_batches
from fastlog.log.side_file import SideFile, read_side_file, write_side_file
from fastlog.segment_files import SegmentFile
from fastlog.workers.child import Shared
from fastlog.workers.keeper import Keeper
from tests.harness.shared_log import DONE
from tests.harness.stored_batches import batch
from tests.unit.test_record_batch_log import BatchLog, some_batches

pytestmark = pytest.mark.usefixtures("no_faults")

READ_ONLY = 1


def kept(log: BatchLog) -> SideFile:
    """Flush all, and what the keeper writes down then."""
    assert flush_now(make_partition_flusher(log.arena, 64, 0, 0), log.view.index) == 0
    Keeper(Shared(log.config, log.arena, (), (), (), 64))._look(final=True)
    return said(log)


def said(log: BatchLog) -> SideFile:
    side = read_side_file(log.folder, FileOps())
    assert side is not None
    return side


def filled(directory: Path, count: int = 60) -> BatchLog:
    log = BatchLog(directory, **{"log.file.size": "20000"})
    for data in some_batches(count):
        assert log.append(data)[0] == DONE
    assert len(log.segments()) >= 3
    return log


def test_the_keeper_writes_down_what_is_sealed_and_which_file_the_checkpoint_lies_in(tmp_path: Path) -> None:
    log = filled(tmp_path)
    side = kept(log)
    segments = log.segments()
    assert side.checkpoint == log.view.log_offset
    assert side.inode == (segments[-1].base, segments[-1].path.stat().st_ino)
    followers = [one.base for one in segments[1:]]
    assert side.sealed == {one.base: (one.size, end) for one, end in zip(segments, followers, strict=False)}


def test_what_is_not_flushed_is_not_said_to_be_sealed(tmp_path: Path) -> None:
    """The checkpoint lies before it, in a segment that may have been sealed since."""
    log = BatchLog(tmp_path, **{"log.file.size": "20000"})
    assert log.append(batch(b"flushed"))[0] == DONE
    assert kept(log).inode == (0, (log.folder / f"{0:020}.log").stat().st_ino)
    for data in some_batches(60):
        log.append(data)
    Keeper(Shared(log.config, log.arena, (), (), (), 64))._look(final=True)
    side = said(log)
    assert (side.checkpoint, side.sealed) == (1, {})
    assert side.inode == (0, (log.folder / f"{0:020}.log").stat().st_ino)


def test_sealed_segments_that_are_as_they_were_are_not_opened_for_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path)
    kept(log)
    segments, end = log.segments(), log.view.log_offset
    looked: list[int] = []
    look = record_batches.RecordBatches.end_offset

    def noted(self: record_batches.RecordBatches, segment: SegmentFile) -> int:
        looked.append(segment.base)
        return look(self, segment)

    monkeypatch.setattr(record_batches.RecordBatches, "end_offset", noted)
    log.restart(clean=True)
    assert (log.view.log_offset, log.view.state) == (end, 0)
    assert set(looked) == {segments[-1].base}
    # one of another size is looked at, and what it lost is missed
    shorter = segments[0]
    os.truncate(shorter.path, shorter.size - 1)
    looked.clear()
    log.restart()
    assert shorter.base in looked
    assert log.view.state & READ_ONLY


@pytest.mark.parametrize("window", [100, record_batches.WINDOW_BYTES])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("gap", [0, 1, 1 << 40])
def test_offsets_above_the_checkpoint_have_no_gaps(
    gap: int, is_known: bool, window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stored none. Without a side file they may be another one's, which compacted the log."""
    monkeypatch.setattr(record_batches, "WINDOW_BYTES", window)
    log = BatchLog(tmp_path)
    for data in some_batches(4):
        log.append(data)
    side = kept(log)
    end = log.view.log_offset
    (segment,) = log.segments()
    with segment.path.open("ab") as file:
        file.write(batch(b"one", b"two", base=end) + batch(b"three", base=end + 2 + gap))
    if not is_known:
        (log.folder / "fastlog.json").unlink()
    else:
        assert said(log) == side
    log.restart()
    is_cut = gap > 0 and is_known
    assert log.view.log_offset == (end + 2 if is_cut else end + 3 + gap)
    assert log.view.state == 0
    assert bool(list(log.folder.glob("*.truncated*"))) is is_cut


def test_a_segment_above_the_checkpoint_begins_with_its_own_offset(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    for data in some_batches(4):
        log.append(data)
    kept(log)
    end = log.view.log_offset
    (log.folder / f"{end:020}.log").write_bytes(batch(b"x", base=end + 5))
    log.restart()
    assert log.view.log_offset == end
    assert list(log.folder.glob("*.truncated*"))


def renewed(path: Path) -> None:
    """Another file with the same bytes."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


@pytest.mark.parametrize("is_renewed", [True, False])
def test_the_checkpoint_of_other_files_does_not_count(
    is_renewed: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that came back from elsewhere with fewer records is served. Of the same file they are missed."""
    log = BatchLog(tmp_path)
    for data in some_batches(6):
        log.append(data)
    side = kept(log)
    for mark in log.folder.glob(".flushed*"):
        mark.unlink()
    (segment,) = log.segments()
    last = log.batches()[-1]
    os.truncate(segment.path, segment.size - len(last.data))
    if is_renewed:
        renewed(segment.path)
    log.restart()
    assert bool(log.view.state & READ_ONLY) is not is_renewed
    assert log.view.log_offset == last.base
    assert ("side file of other files" in caplog.text) is is_renewed
    assert log.view.created_ms == side.created_ms > 0


@pytest.mark.parametrize("inode", [None, (1 << 40, 1)])
def test_where_the_inode_is_not_known_the_checkpoint_counts(inode: tuple[int, int] | None, tmp_path: Path) -> None:
    """In files of before, and where the segment is not there at all."""
    log = BatchLog(tmp_path)
    for data in some_batches(6):
        log.append(data)
    side = kept(log)
    write_side_file(log.folder, replace(side, inode=inode), FileOps())
    (segment,) = log.segments()
    os.truncate(segment.path, segment.size - len(log.batches()[-1].data))
    renewed(segment.path)
    log.restart()
    assert log.view.state & READ_ONLY

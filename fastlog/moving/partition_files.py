"""The directory of one partition, made of another's: its segments as they are, and what stands beside them.

The record bytes are never written again: each segment that holds some is sealed, and an empty one behind them takes
what comes next. So a file that shares its bytes with the one it came from stays what that one is.
"""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from pathlib import Path

from fastlog.log import producer_snapshots
from fastlog.log.files import FileOps
from fastlog.log.flushed_mark import put_flushed_mark
from fastlog.log.formats import log_format
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.kafka_files import write_epochs, write_metadata
from fastlog.log.side_file import SideFile, write_side_file
from fastlog.moving.log_survey import Survey
from fastlog.moving.staging import COPY, Staging
from fastlog.moving.stored_records import LOG_SUFFIX
from fastlog.segment_files import SegmentFile, partition_directory_name, segment_name

Epochs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class MovedPartition:
    """A partition that is to stand elsewhere."""

    topic: str
    partition: int
    topic_id: bytes
    directory: Path
    segments: list[SegmentFile]
    """The segments that are taken, in their order."""
    survey: Survey
    log_start: int
    epochs: Epochs

    @property
    def name(self) -> str:
        """The name of the partition's directory."""
        return partition_directory_name(self.topic, self.partition)

    @property
    def begins_inside(self) -> bool:
        """Whether its first record stands behind the beginning of its first segment."""
        return self.log_start > self.segments[0].base


def make_partition(staging: Staging, moved: MovedPartition, way: str, files: FileOps, *, for_fastlog: bool) -> str:
    """Make the directory of a partition below ``staging``; returns how its segments came there, "" where none did.

    Raises:
        OSError: the disk refused.
    """
    directory, end = staging.path / moved.name, moved.survey.end
    files.mkdir(directory)
    held = [segment for segment in moved.segments if segment.size]
    done = ""
    for number, segment in enumerate(held):
        target = directory / segment_name(segment.base, LOG_SUFFIX)
        done = staging.take(segment.path, target, way)
        if number + 1 < len(held):  # that of the last one may lack what is written when it is sealed
            _take_indexes(staging, segment.path, target)
    newest = directory / segment_name(end, LOG_SUFFIX)
    staging.write(newest, b"")
    sealed = [SegmentFile(each.base, directory / segment_name(each.base, LOG_SUFFIX), each.size) for each in held]
    _settle_indexes([*sealed, SegmentFile(end, newest, 0)], files)
    if moved.survey.is_numbered:
        _take_producers(staging, moved, directory, sealed, files)
    write_metadata(directory, moved.topic_id, files)
    write_epochs(directory, moved.epochs, files)
    if for_fastlog:
        _write_side_file(directory, sealed, newest, end, not moved.survey.is_numbered, files)
    files.fsync_dir(directory)
    return done


def make_own_partition(
    staging: Staging, name: str, topic_id: bytes, data: bytes, end: int, files: FileOps, *, for_fastlog: bool
) -> None:
    """Make the directory of a partition whose records are written here: ``data``, up to the offset ``end``.

    Raises:
        OSError: the disk refused.
    """
    directory = staging.path / name
    files.mkdir(directory)
    path = directory / segment_name(0, LOG_SUFFIX)
    staging.write(path, data)
    _settle_indexes([SegmentFile(0, path, len(data))], files)
    write_metadata(directory, topic_id, files)
    write_epochs(directory, [(0, 0)], files)
    if for_fastlog:
        _write_side_file(directory, [], path, end, True, files)
    files.fsync_dir(directory)


def _take_indexes(staging: Staging, source: Path, target: Path) -> None:
    """Those that are there; what is missing or wrong in them is made anew."""
    for suffix in log_format(RECORD_BATCHES).companions:
        path = source.with_suffix(suffix)
        if path.is_file() and not path.is_symlink():
            staging.take(path, target.with_suffix(suffix), COPY)


def _settle_indexes(segments: list[SegmentFile], files: FileOps) -> None:
    """Make those that are missing or wrong.

    Raises:
        OSError: one could not be; a broker would go on without it, and nobody who moves a house wants to find that.
    """
    made = log_format(RECORD_BATCHES)
    made.settle_indexes(files, segments, is_clean=True)
    for segment in segments:
        for suffix in made.companions:
            path = segment.path.with_suffix(suffix)
            if not path.exists():
                raise OSError(errno.EIO, "the index could not be written", str(path))


def _take_producers(
    staging: Staging, moved: MovedPartition, directory: Path, sealed: list[SegmentFile], files: FileOps
) -> None:
    """A snapshot at the log's end of the producers that have numbered their batches."""
    end = moved.survey.end
    for offset in producer_snapshots.listed(moved.directory, files):
        name = segment_name(offset, producer_snapshots.SNAPSHOT_SUFFIX)
        if offset <= end:
            data = files.read_file(moved.directory / name, producer_snapshots.MAX_BYTES)
            if producer_snapshots.parse(data) is not None:
                staging.write(directory / name, data)
    now_ms = time.time_ns() // 1_000_000
    known = producer_snapshots.learn(directory, log_format(RECORD_BATCHES), sealed, end, 0, now_ms, files, tail_bytes=0)
    producer_snapshots.write(directory, end, known.table, files)


def _write_side_file(
    directory: Path, sealed: list[SegmentFile], newest: Path, end: int, unnumbered: bool, files: FileOps
) -> None:
    """What spares the first start a scan: all of it was read, and is durable."""
    ends = [*(each.base for each in sealed[1:]), end]
    base = int(newest.stem)
    side = SideFile(
        time.time_ns() // 1_000_000,
        RECORD_BATCHES,
        checkpoint=end,
        unnumbered=unnumbered,
        sealed={each.base: (each.size, following) for each, following in zip(sealed, ends, strict=False)},
        inode=(base, newest.stat().st_ino),
    )
    write_side_file(directory, side, files)
    put_flushed_mark(directory, [], base, files)

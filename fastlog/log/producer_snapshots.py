"""What is kept on the disk of producers that number their batches: ``<20-digit offset>.snapshot``, as Kafka has them.

    position  width  meaning
    0         2      version, 1
    2         4      CRC-32C of all that follows
    6         4      how many entries follow
    10        46     an entry: id 8, epoch 2, last number 4, last offset 8, records of the last batch less one 4,
                     time 8, epoch of the coordinator 4, first offset of the open transaction 8; -1: there is none

A snapshot speaks of all batches below the offset in its name; what is above is learned from their heads. It is made of
the one before it and of the heads since, so it needs no lock, and one that is lost or damaged is made again from an
older one, or from all heads. An entry knows its producer's last batch alone. So a start reads some heads below the
snapshot too: what was under way when the broker ended, up to five batches of each producer, comes again now.

Source: Apache Kafka 4.2 (ProducerStateManager). There the time is that of the last batch, here when it came.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fastlog._crc32c import crc32c
from fastlog.log import _index
from fastlog.log._producer_table import ProducerTable, SnapshotEntry
from fastlog.log.files import FileOps
from fastlog.log.formats import LogFormat, format_number
from fastlog.segment_files import SegmentFile, parse_segment_name, segment_name

SNAPSHOT_SUFFIX = ".snapshot"
KEPT = 2
"""The newest one, and one before it, should that be damaged."""
TAIL_BYTES = 16 << 20
"""So much of the log's end is looked at, at least, for the last batches of its producers."""
MAX_BYTES = 1 << 30
_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_INDEX_ENTRY = struct.Struct(">ii")

log = logging.getLogger(__name__)

Place = tuple[int, int]
"""The number of a segment, and a position in its file."""


class Learned(NamedTuple):
    """The producers of a log, as its newest usable snapshot and the bytes behind it have them."""

    table: ProducerTable
    snapshot: int | None
    """The offset of the snapshot that it stands on."""


def encode(entries: Iterable[SnapshotEntry]) -> bytes:
    """Return a snapshot's bytes."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    data = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEAD.pack(_VERSION, crc32c(data)) + data


def parse(data: bytes) -> list[SnapshotEntry] | None:
    """Return what a snapshot says; None when it is damaged, or of another version."""
    start = _HEAD.size + _COUNT.size
    if len(data) < start or (len(data) - start) % _ENTRY.size:
        return None
    if _HEAD.unpack_from(data) != (_VERSION, crc32c(memoryview(data)[_HEAD.size :])):
        return None
    if _COUNT.unpack_from(data, _HEAD.size)[0] != (len(data) - start) // _ENTRY.size:
        return None
    return [SnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[start:])]


def listed(directory: Path, files: FileOps) -> list[int]:
    """Return the offsets of the snapshots in a directory, lowest first.

    Raises:
        OSError: it cannot be read.
    """
    found = (parse_segment_name(item.name, SNAPSHOT_SUFFIX) for item in files.listdir(directory))
    return sorted(offset for offset in found if offset is not None)


def drop_above(directory: Path, end: int, files: FileOps) -> None:
    """Durably remove the snapshots that speak of more than a log has: its next batches get those offsets.

    Raises:
        OSError: one may still be there.
    """
    above = [offset for offset in listed(directory, files) if offset > end]
    for offset in above:
        files.unlink(_path(directory, offset))
    if above:
        files.fsync_dir(directory)


def learn(
    directory: Path,
    made: LogFormat,
    segments: Sequence[SegmentFile],
    end: int,
    unnumbered_below: int,
    now_ms: int,
    files: FileOps,
    *,
    tail_bytes: int = TAIL_BYTES,
    turn: Callable[[], None] = lambda: None,
) -> Learned:
    """Return what is known of the producers of a log at ``end``, where the last of ``segments`` ends as well.

    ``unnumbered_below``: no batch below this offset was numbered by its producer. ``tail_bytes`` is for who wants to
    know the last five batches of each, and not the last one alone. ``turn`` is called now and then.

    Raises:
        OSError: a segment cannot be read.
    """
    entries, snapshot = _newest(directory, end, files)
    table = ProducerTable(entries)
    start = (0, 0)
    if unnumbered_below > (snapshot or 0):
        start = _place(made, segments, unnumbered_below)
    elif snapshot is not None:
        start = _place(made, segments, snapshot)
        if entries and tail_bytes and not table.has_open:
            start = min(start, _tail(made, segments, tail_bytes, files))
    newer = ProducerTable()
    for number in range(start[0], len(segments)):
        turn()
        segment = segments[number]
        with files.open(segment.path, os.O_RDONLY) as fd:
            seen_ms = min(os.fstat(fd).st_mtime_ns // 1_000_000, now_ms)
            begin = start[1] if number == start[0] else 0
            into = table if table.has_open else newer
            reached = into.replay(fd, format_number(made.name), begin, segment.size, seen_ms)
        if reached < segment.size:
            log.warning("producers not read path=%s position=%d: what is no batch stands there", segment.path, reached)
    table.update(newer)
    return Learned(table, snapshot)


def write(directory: Path, offset: int, table: ProducerTable, files: FileOps, *, keep: int = -1) -> None:
    """Put a snapshot in place, durably, and let those go that it makes needless, but for that of one offset.

    Raises:
        OSError: it may not be there; others are.
    """
    files.replace_file(_path(directory, offset), encode(table.entries()), "snapshot_file.write")
    files.fsync_dir(directory)
    for old in listed(directory, files)[:-KEPT]:
        if old != keep:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(_path(directory, old))


def _path(directory: Path, offset: int) -> Path:
    return directory / segment_name(offset, SNAPSHOT_SUFFIX)


def _newest(directory: Path, end: int, files: FileOps) -> tuple[list[SnapshotEntry], int | None]:
    """What the newest snapshot says that is whole and speaks of no more than there is, and its offset."""
    for offset in reversed([offset for offset in listed(directory, files) if offset <= end]):
        path = _path(directory, offset)
        try:
            entries = parse(files.read_file(path, MAX_BYTES))
            reason = "it is damaged"
        except OSError as error:
            entries, reason = None, error.strerror or str(error)
        if entries is not None:
            return entries, offset
        log.warning("producer snapshot not used path=%s reason=%s: an older one or the log is read", path, reason)
    return [], None


def _place(made: LogFormat, segments: Sequence[SegmentFile], offset: int) -> Place:
    """Where the batch of an offset begins, or the first one behind it."""
    number = bisect_right([segment.base for segment in segments], offset) - 1
    if number < 0:
        return 0, 0
    return number, min(max(made.position(segments[number], offset), 0), segments[number].size)


def _tail(made: LogFormat, segments: Sequence[SegmentFile], tail_bytes: int, files: FileOps) -> Place:
    """Where a batch begins from which the log has ``tail_bytes``, or few more if an index knows of one."""
    number = len(segments) - 1
    while number > 0 and segments[number].size < tail_bytes:
        tail_bytes -= segments[number].size
        number -= 1
    segment = segments[number]
    target = segment.size - tail_bytes
    if target <= 0:
        return number, 0
    try:
        index = files.read_file(segment.path.with_suffix(".index"), MAX_BYTES)
        rows = list(_INDEX_ENTRY.iter_unpack(memoryview(index)[: len(index) // _INDEX_ENTRY.size * _INDEX_ENTRY.size]))
        found = bisect_right(rows, target, key=lambda row: row[1]) - 1
        if found < 0:
            return number, 0
        last, position = rows[found]
        with files.open(segment.path, os.O_RDONLY) as fd:
            if _index.ends_with(fd, format_number(made.name), position, segment.size, segment.base + last):
                return number, position
    except OSError as error:
        log.warning("index not read path=%s reason=%s", segment.path, error.strerror)
    return number, 0

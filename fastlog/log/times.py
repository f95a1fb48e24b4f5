"""From a time to the first record that has it or a later one, in a log of record batches.

Segments are asked by their largest times, the segment by its time index, and what is left is a walk over batches. Times
need not grow with offsets: the answer is the record with the smallest offset among those that are not before the time.

Source: Apache Kafka 4.2 (LogSegment.findOffsetByTimestamp, ListOffsets).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fastlog.errors import LogError
from fastlog.log import _index
from fastlog.log.files import FileOps
from fastlog.log.formats import format_number
from fastlog.log.formats.record_batches import RECORD_BATCHES, RecordBatches
from fastlog.log.index_files import TIME_ENTRY_BYTES, TIME_SUFFIX
from fastlog.log.slots import Segment
from fastlog.message import DEFAULT_LIMITS, DeepLimits
from fastlog.record_batches import HEADER_BYTES, BatchHeader, records
from fastlog.segment_files import SegmentFile, read_fully, segment_name

STEP_BYTES = 4 << 20
"""Bytes of a log that one step walks over."""


class TimedOffset(NamedTuple):
    """A record's time in ms, its offset, and the leader epoch in which it was appended."""

    timestamp: int
    offset: int
    leader_epoch: int


class TimeLookup:
    """One look-up, in bounded steps; for one thread.

    Args:
        directory: the partition's.
        segments: those that are held, oldest first.
        visible: offset and position of the visible end: nothing behind it is found.
        time_ms: the time that is looked for; None: the largest one.
        log_start: nothing before this offset is found.
        limits: for what is decompressed.
    """

    def __init__(
        self,
        directory: Path,
        segments: Sequence[Segment],
        visible: tuple[int, int],
        time_ms: int | None,
        log_start: int = 0,
        limits: DeepLimits = DEFAULT_LIMITS,
    ) -> None:
        self._directory = directory
        below = sum(following.base <= log_start for following in segments[1:])
        self._segments = list(segments[below:])
        self._log_start = log_start
        self._visible_offset, self._visible_end = visible
        self._limits = limits
        self._files = FileOps()
        self._number = format_number(RECORD_BATCHES)
        self._work = self._largest() if time_ms is None else self._first(time_ms)
        self.found: TimedOffset | None = None

    def step(self) -> bool:
        """Do a part of the work; whether it is done, and ``found`` says what came of it.

        Raises:
            OSError: a file cannot be read; ENOENT when retention was quicker.
            FastlogError: a batch is damaged.
        """
        try:
            next(self._work)
        except StopIteration:
            return True
        return False

    def _first(self, time_ms: int) -> Iterator[None]:
        """Look for the first record that is not before a time."""
        for number, segment in enumerate(self._segments):
            if segment.start >= self._visible_end:
                return
            end = self._end_of(number)
            if segment.last_ms and segment.last_ms < time_ms and number + 1 < len(self._segments):
                continue  # a sealed segment's is that of all its records
            yield
            file = SegmentFile(segment.base, self._directory / segment_name(segment.base, ".log"), end)
            with self._files.open(file.path, os.O_RDONLY) as fd:
                position = max(self._floor(file, time_ms), self._begin(file))
                while position < end:
                    position, size = _index.walk_times(fd, self._number, position, end, time_ms, STEP_BYTES)
                    yield
                    if size:
                        self.found = self._in_batch(fd, position, size, time_ms)
                        if self.found is not None:
                            return
                        position += size  # its head promised what it does not hold
                    elif not self._is_entry(fd, position, end):
                        break

    def _largest(self) -> Iterator[None]:
        """Look for the first record that has the largest time of all."""
        best: TimedOffset | None = None
        for number, segment in enumerate(self._segments):
            end = self._end_of(number)
            if segment.start >= self._visible_end or not end:
                break
            if best is not None and segment.last_ms and segment.last_ms <= best.timestamp:
                continue
            file = SegmentFile(segment.base, self._directory / segment_name(segment.base, ".log"), end)
            with self._files.open(file.path, os.O_RDONLY) as fd:
                largest, at, position = -1, (0, 0), self._begin(file)
                while position < end:
                    # to the next batch whose largest time is above all before it
                    position, size = _index.walk_times(fd, self._number, position, end, largest + 1, STEP_BYTES)
                    yield
                    if size:
                        header = BatchHeader.parse(self._read(fd, position, HEADER_BYTES))
                        if header.base_offset < self._log_start:  # its largest time may be that of a record before it
                            best = self._largest_in(fd, position, size)
                            largest = -1 if best is None else best.timestamp
                        else:
                            largest, at = header.max_timestamp, (position, size)
                        position += size
                    elif not self._is_entry(fd, position, end):
                        break
                if at[1] and (best is None or largest > best.timestamp):
                    best = self._in_batch(fd, *at, largest) or best
            yield
        self.found = best

    def _begin(self, file: SegmentFile) -> int:
        """Where the first batch of a segment's file begins that is not wholly before the log start."""
        return RecordBatches().position(file, self._log_start) if self._log_start > file.base else 0

    def _end_of(self, number: int) -> int:
        """How many bytes of a segment's file are visible."""
        segment = self._segments[number]
        following = self._segments[number + 1].start if number + 1 < len(self._segments) else self._visible_end
        return max(min(following, self._visible_end) - segment.start, 0)

    def _floor(self, file: SegmentFile, time_ms: int) -> int:
        """A position before which all records are older, by the time index; 0 where it says nothing."""
        path = file.path.with_suffix(TIME_SUFFIX)
        try:
            with self._files.open(path, os.O_RDONLY) as fd:
                low, high = 0, self._files.size(fd) // TIME_ENTRY_BYTES
                before: int | None = None
                while low < high:
                    middle = (low + high) // 2
                    entry = self._read(fd, middle * TIME_ENTRY_BYTES, TIME_ENTRY_BYTES)
                    largest = int.from_bytes(entry[:8], "big", signed=True)
                    if largest and largest < time_ms:
                        low, before = middle + 1, int.from_bytes(entry[8:], "big")
                    else:
                        high = middle
        except OSError:
            return 0
        if before is None:
            return 0
        # all up to this offset were older; what it says is checked by whoever walks from there
        position = RecordBatches().position(file, file.base + before)
        return position if position < file.size else 0

    def _in_batch(self, fd: int, position: int, size: int, time_ms: int) -> TimedOffset | None:
        """The first record of a batch that is not before a time."""
        return next((found for found in self._records(fd, position, size) if found.timestamp >= time_ms), None)

    def _largest_in(self, fd: int, position: int, size: int) -> TimedOffset | None:
        """The first record of a batch that has the largest time."""
        return max(self._records(fd, position, size), key=lambda found: found.timestamp, default=None)

    def _records(self, fd: int, position: int, size: int) -> Iterator[TimedOffset]:
        """The records of a batch that clients can read."""
        data = self._read(fd, position, size)
        epoch = BatchHeader.parse(data).leader_epoch
        for record in records(data, self._limits):
            if self._log_start <= record.offset < self._visible_offset:
                yield TimedOffset(record.timestamp, record.offset, epoch)

    def _is_entry(self, fd: int, position: int, end: int) -> bool:
        """Whether a walk that ended here ended because of its length."""
        following = _index.boundary(fd, self._number, position, position + 1, end, 1)
        return following > position

    def _read(self, fd: int, position: int, count: int) -> bytes:
        view = memoryview(bytearray(count))
        if read_fully(fd, view, position, self._files.read_into) < count:
            raise LogError("the file ends inside a batch", found=position)
        return bytes(view)

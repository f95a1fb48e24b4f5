"""Partitions of record batches in their segment files, without a broker: fastlog's, or Apache Kafka's."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fastlog._record_batch import BATCHES_OK, BATCHES_TAIL, scan_batches
from fastlog.consumer.chunks import RecordChunk
from fastlog.consumer.fetched import NumpyBatch
from fastlog.consumer.record_index import indexed_position
from fastlog.errors import CorruptLogError, DecompressionLimitError, InvalidFetchSizeError, InvalidMessageError
from fastlog.message import DEFAULT_LIMITS
from fastlog.record_batches import CONTROL, HEAD, HEADER_BYTES, LENGTH_AT, LENGTH_COUNTS_FROM, MAGIC
from fastlog.scanning.bases import FolderSource
from fastlog.scanning.columns import arrow_of
from fastlog.scanning.parts import Bounds, Part
from fastlog.segment_files import MAX_OFFSET, SegmentFile, list_segments, read_fully, split_directory_name

SUFFIX, INDEX_SUFFIX = ".log", ".index"
_HEADS_BYTES = 64 * 1024


class _Piece(NamedTuple):
    """A segment, and the offset behind its last batch. Only the newest one may end inside a batch."""

    segment: SegmentFile
    end: int
    is_newest: bool


class RecordFolders(FolderSource[_Piece]):
    """The directories of partitions.

    A file is read as far as whole batches go: of a partition that a broker is writing to, those that are not flushed
    too. Records that clients have had the broker delete are in it until their segment goes, and those of transactions
    that were aborted are.
    """

    of_records = True

    def parts(self, bounds: Bounds) -> list[Part]:
        """One for each segment.

        Raises:
            CorruptLogError: a batch is damaged in which a time was looked for.
            OSError: a directory or a file cannot be read.
        """
        found = []
        for folder in self._folders:
            topic, partition = split_directory_name(folder.name) or ("", -1)  # which is why it is one of them
            if not bounds.has(partition):
                continue
            segments = list_segments(folder, SUFFIX)
            first, last = 0, MAX_OFFSET
            if bounds.since_ms is not None:
                first = _at_time(segments, bounds.since_ms)
            if bounds.until_ms is not None:
                last = _at_time(segments, bounds.until_ms + 1)
            pieces = self._segments[topic, partition] = [
                _Piece(segment, following.base, False) for segment, following in pairwise(segments)
            ]
            pieces += [_Piece(segment, _end_of(segment), True) for segment in segments[-1:]]
            for segment, end, _ in pieces:
                part = Part(topic, partition, max(segment.base, first), min(end, last))
                cut = bounds.cut(part) if part.start < part.end else None
                if cut is not None:
                    found.append(cut)
        return sorted(found)

    def batches(
        self, parts: Sequence[Part], columns: Sequence[str], topics: Sequence[str], *, window_bytes: int | None = None
    ) -> Generator[tuple[int, Any]]:
        """By windows of a few MiB.

        Raises:
            CorruptLogError: a batch is damaged; what is before it came first.
        """
        wanted = self.schema(columns, topics)
        for part in parts:
            pieces = self._segments[part.topic, part.partition]
            piece = pieces[bisect_right(pieces, part.start, key=lambda piece: piece.segment.base) - 1]
            found = self._arrays(part, piece, window_bytes or self._window_bytes)
            # Damage at the end of the file is no end of it: what is wanted up to there is read until it is reached.
            yield from arrow_of(found, part if part.end < piece.end else part._replace(end=MAX_OFFSET), wanted, topics)

    def _arrays(self, part: Part, piece: _Piece, window_bytes: int) -> Iterator[NumpyBatch]:
        segment, is_newest = piece.segment, piece.is_newest
        at = part.start
        buffer = memoryview(bytearray(max(HEADER_BYTES, min(window_bytes, segment.size))))
        with segment.path.open("rb", buffering=0) as file:
            position = _position_of(segment, file.fileno(), at)
            while position < segment.size:
                data = buffer[: read_fully(file.fileno(), buffer[: segment.size - position], position)]
                is_last = position + len(data) >= segment.size
                scan = scan_batches(data, at)
                needed = 0 if scan.valid_bytes or scan.status != BATCHES_TAIL else _told_bytes(data)
                if len(buffer) < needed <= segment.size - position:  # one that was cut gives no more
                    buffer = memoryview(bytearray(needed))
                    continue
                if scan.valid_bytes:
                    yield from _arrays_in(RecordChunk(at, data, scan).whole(), part, segment)
                    at = scan.next_offset
                position += scan.valid_bytes
                if scan.valid_bytes and (scan.status == BATCHES_OK or (scan.status == BATCHES_TAIL and not is_last)):
                    continue
                if is_newest and scan.status in (BATCHES_OK, BATCHES_TAIL):
                    return  # it ends inside a batch, or was cut since
                raise CorruptLogError(
                    f"{segment.path}: no whole and valid batch at position {position}: fastlog fsck says what is there"
                )


def _arrays_in(chunk: RecordChunk, part: Part, segment: SegmentFile) -> Iterator[NumpyBatch]:
    at = chunk.offset
    while at < chunk.end:
        try:
            batch = chunk.rest(at).arrays(part.topic, part.partition, DEFAULT_LIMITS)
        except DecompressionLimitError:
            raise
        except (InvalidMessageError, InvalidFetchSizeError) as error:
            raise CorruptLogError(f"{segment.path}: {error}") from error
        at = batch.next_offset
        yield batch


def _told_bytes(data: memoryview) -> int:
    """How long the batch says it is that begins there; 0 where its length is not there."""
    if len(data) < HEADER_BYTES:
        return 0
    return LENGTH_COUNTS_FROM + int.from_bytes(data[LENGTH_AT:LENGTH_COUNTS_FROM], "big", signed=True)


class _Head(NamedTuple):
    """A batch as far as its header tells, which nobody has checked."""

    position: int
    base: int
    size: int
    attributes: int
    last_delta: int
    max_timestamp: int

    @property
    def next_offset(self) -> int:
        """The offset behind the batch's last record."""
        return self.base + self.last_delta + 1


def _heads(fd: int, size: int, position: int = 0) -> Iterator[_Head]:
    """The batches from one on that are whole by their lengths."""
    window = memoryview(bytearray(_HEADS_BYTES))
    came = begun = 0
    while position <= size - HEADER_BYTES:
        if not begun <= position <= begun + came - HEADER_BYTES:
            begun, came = position, read_fully(fd, window, position)
            if came < HEADER_BYTES:
                return
        base, length, magic, attributes, last_delta, max_timestamp = HEAD.unpack_from(window, position - begun)
        head = _Head(position, base, LENGTH_COUNTS_FROM + length, attributes, last_delta, max_timestamp)
        if magic != MAGIC or not HEADER_BYTES <= head.size <= size - position or base < 0 or last_delta < 0:
            return
        yield head
        position += head.size


def _position_of(segment: SegmentFile, fd: int, offset: int) -> int:
    """Where the batch begins that has an offset, or is the first behind it; where batches end, if there is none."""
    position = _near(segment, fd, offset)
    for head in _heads(fd, segment.size, position):
        position = head.position
        if head.next_offset > offset:
            break
        position += head.size
    return position


def _near(segment: SegmentFile, fd: int, offset: int) -> int:
    """Where a batch begins that is not behind an offset, as the segment's index has it: 0 where that is no help."""
    try:
        data = segment.path.with_suffix(INDEX_SUFFIX).read_bytes()
    except OSError:
        return 0
    position = indexed_position(data, segment.base, offset)
    head = next(_heads(fd, segment.size, position), None)
    return position if head is not None and segment.base <= head.base <= offset else 0


def _end_of(segment: SegmentFile) -> int:
    """The offset behind the last batch that is whole by its length."""
    end = segment.base
    with segment.path.open("rb", buffering=0) as file:
        for head in _heads(file.fileno(), segment.size, _near(segment, file.fileno(), MAX_OFFSET)):
            end = head.next_offset
    return end


def _at_time(segments: Sequence[SegmentFile], time_ms: int) -> int:
    """The offset of the first record with that time or a later one; behind all of them where none is."""
    for segment in segments:
        with segment.path.open("rb", buffering=0) as file:
            for head in _heads(file.fileno(), segment.size):
                if head.max_timestamp < time_ms or head.attributes & CONTROL:
                    continue
                data = memoryview(bytearray(head.size))
                read_fully(file.fileno(), data, head.position)
                chunk = RecordChunk(head.base, data, scan_batches(data, head.base))
                for batch in _arrays_in(chunk, Part("", 0, 0, 0), segment):
                    assert batch.timestamps is not None
                    late = (batch.timestamps >= time_ms).nonzero()[0]
                    if len(late):
                        return int(batch.offsets[late[0]])
    return MAX_OFFSET

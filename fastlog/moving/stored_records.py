"""Batches and records as Apache Kafka stores them, compaction included: what ``record_batches`` refuses of a client.

Compaction leaves batches with fewer records than offsets, or with none, and gaps between batches. Offsets and counts
are taken as they stand there; checksums are checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fastlog import batch_codecs
from fastlog._crc32c import crc32c
from fastlog.errors import CorruptLogError, InvalidMessageError
from fastlog.log.files import FileOps
from fastlog.record_batches import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_COUNTS_FROM,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
)
from fastlog.segment_files import WINDOW_BYTES, SegmentFile, list_segments, read_fully

MOST_INFLATED_BYTES = 1 << 30
LOG_SUFFIX = ".log"


class StoredBatch(NamedTuple):
    """A batch whose checksum is right, where it stands, and its bytes; those are None where it is a long one."""

    path: Path
    position: int
    header: BatchHeader
    data: memoryview | None


class StoredRecord(NamedTuple):
    """The key and the value of a record; None for null."""

    key: bytes | None
    value: bytes | None


def segments_of(directory: Path) -> list[SegmentFile]:
    """The segments of a partition's directory, in order.

    Raises:
        OSError: it cannot be read.
    """
    return list_segments(directory, LOG_SUFFIX)


def batches_of(segment: SegmentFile, files: FileOps, *, whole: bool = False) -> Iterator[StoredBatch]:
    """Yield the batches of a segment's file, each checked; ``data`` is good until the next one is asked for.

    ``whole``: with the bytes of long ones as well.

    Raises:
        CorruptLogError: on reaching what is no batch, or is another one than its producer sent.
        OSError: it cannot be read.
    """
    with files.open(segment.path, os.O_RDONLY) as fd:
        buffer = memoryview(bytearray(min(WINDOW_BYTES, max(segment.size, 1))))
        position = start = filled = 0  # of the next batch; where the buffer begins, and what it holds
        while position < segment.size:
            view = buffer[position - start : filled]
            size = _size_of(segment, position, view)
            if size is not None and size <= len(view):
                yield _checked(segment, position, view[:size])
                position += size
                continue
            if position > start or not filled:
                start, filled = position, read_fully(fd, buffer[: segment.size - position], position, files.read_into)
                if filled:
                    continue
            if size is None or size > segment.size - position:
                raise _damaged(segment, position, "a batch that is cut short")
            if whole:
                long = memoryview(bytearray(size))
                read_fully(fd, long, position, files.read_into)
                yield _checked(segment, position, long)
            else:
                yield _checked_long(segment, fd, position, size, buffer, files)
            position = start = position + size
            filled = 0


def _size_of(segment: SegmentFile, position: int, view: memoryview) -> int | None:
    """The bytes of the batch that begins here; None where its head is not all there."""
    if len(view) <= MAGIC_AT:
        return None
    magic = view[MAGIC_AT]
    if magic in (0, 1):
        reason = f"messages of magic {magic}, from before Kafka 0.11"
        raise OldFormatError(reason, path=str(segment.path), position=position)
    if magic != MAGIC:
        raise _damaged(segment, position, f"an unknown magic byte, {magic}")
    size = LENGTH_COUNTS_FROM + int.from_bytes(view[LENGTH_AT:LENGTH_COUNTS_FROM], "big")
    if size < HEADER_BYTES:
        raise _damaged(segment, position, "an impossible length")
    return size if len(view) >= HEADER_BYTES else None


def _checked(segment: SegmentFile, position: int, data: memoryview) -> StoredBatch:
    header = _header(segment, position, data)
    if crc32c(data[ATTRIBUTES_AT:]) != header.crc:
        raise _damaged(segment, position, "a wrong checksum")
    return StoredBatch(segment.path, position, header, data)


def _checked_long(
    segment: SegmentFile, fd: int, position: int, size: int, buffer: memoryview, files: FileOps
) -> StoredBatch:
    """One that is longer than the buffer, which is read through it."""
    header = _header(segment, position, buffer)
    crc, at = 0, ATTRIBUTES_AT
    while at < size:
        came = read_fully(fd, buffer[: size - at], position + at, files.read_into)
        if not came:
            raise _damaged(segment, position, "a batch that is cut short")
        crc = crc32c(buffer[:came], crc)
        at += came
    if crc != header.crc:
        raise _damaged(segment, position, "a wrong checksum")
    return StoredBatch(segment.path, position, header, None)


def _header(segment: SegmentFile, position: int, data: memoryview) -> BatchHeader:
    header = BatchHeader.parse(data)
    if header.base_offset < segment.base or header.last_offset_delta < 0:
        raise _damaged(segment, position, "offsets that do not follow those before them")
    return header


class OldFormatError(CorruptLogError):
    """Messages as they were before Kafka 0.11: nothing is wrong with them, but they are no record batches."""


def _damaged(segment: SegmentFile, position: int, what: str) -> CorruptLogError:
    return CorruptLogError(what, path=str(segment.path), position=position)


def records_of(batch: StoredBatch) -> Iterator[StoredRecord]:
    """Yield the records of a batch that was read ``whole``, a control batch's as well.

    Raises:
        CorruptLogError: they are damaged, or cannot be decompressed.
    """
    assert batch.data is not None
    payload = bytes(batch.data[HEADER_BYTES:])
    try:
        if batch.header.codec:
            payload = batch_codecs.decompress(batch.header.codec, payload, MOST_INFLATED_BYTES)
        at = 0
        for _ in range(batch.header.record_count):
            size, begin = _varint(payload, at)
            at = begin + size
            yield _record(payload[begin:at])
    except (InvalidMessageError, IndexError) as error:
        raise CorruptLogError(
            f"records that cannot be read: {error}", path=str(batch.path), position=batch.position
        ) from error


def _record(data: bytes) -> StoredRecord:
    at = 1
    for _ in range(2):  # its time, its offset
        _, at = _varint(data, at)
    fields: list[bytes | None] = []
    for _ in range(2):
        size, at = _varint(data, at)
        if size > len(data) - at:
            raise IndexError("a field that is longer than its record")
        fields.append(None if size < 0 else data[at : at + size])
        at += max(size, 0)
    return StoredRecord(*fields)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    bits = shift = 0
    while True:
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (bits >> 1) ^ -(bits & 1), at
        shift += 7

"""The log of record batches as recovery, fsck and tools see it; ``_batches`` is what processors and the flusher see.

Source: Apache Kafka 4.2 (DefaultRecordBatch, LogSegment).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastlog import record_batches
from fastlog._crc32c import crc32c
from fastlog.errors import InvalidMessageError, MissingCodecError
from fastlog.log import _index, index_files
from fastlog.log.files import FileOps
from fastlog.log.formats import _batches
from fastlog.log.formats._table import numbers
from fastlog.log.formats.base import (
    ANY_OFFSET,
    CANDIDATE_COST_BYTES,
    DeepFindings,
    DumpedEntry,
    FileScan,
    SearchBudget,
    count_found,
)
from fastlog.log.slots import IndexState
from fastlog.record_batches import BatchHeader
from fastlog.segment_files import MAX_OFFSET, WINDOW_BYTES, SegmentFile, read_fully

RECORD_BATCHES = "record-batches"
HEAD_BYTES = 61
CRC_START = 21
"""What the checksum covers begins here."""

WHOLE, CUT = 0, 1
STATUS_TEXT = {
    WHOLE: "the end of the bytes",
    CUT: "a batch that is cut short",
    16: "an impossible length",
    17: "an unknown magic byte",
    18: "a wrong checksum",
    24: "offsets that do not follow those before them",
}
_WRONG_CRC, _WRONG_OFFSET = 18, 24

_POSSIBLE_START = re.compile(rb"(?=[\x00-\x7f][\x00-\xff]{7}[\x00-\x7f][\x00-\xff]{7}\x02[\x00-\xff]{4}\x00)")
"""Where a batch may begin: offset and length are not negative, magic 2, no attribute in the upper byte."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_TIME_NAMES = {"create": "CreateTime", "append": "LogAppendTime"}
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_MARKER_KEY, _MARKER_VALUE = struct.Struct(">hh"), struct.Struct(">hi")
"""Of the record that ends a transaction: version and kind; version and the coordinator's epoch."""


class RecordBatches:
    """Batches of magic 2 as they came, with their offsets in them; an offset is the number of a record."""

    name = RECORD_BATCHES
    suffix = ".log"
    is_dense = True
    companions = (index_files.OFFSET_SUFFIX, index_files.TIME_SUFFIX)
    has_epochs = True
    is_sequenced = True
    is_for_kafka07 = False

    @property
    def _number(self) -> int:
        return numbers()[self.name]

    def end_offset(self, segment: SegmentFile) -> int:
        """Return the offset behind the last whole batch of a segment, by its head."""
        _, _, next_offset = self._seek(segment, MAX_OFFSET)
        return max(next_offset, segment.base)

    def position(self, segment: SegmentFile, offset: int) -> int:
        """Return where in a segment's file the batch of an offset begins, which may lie outside of it."""
        if offset < segment.base:
            return offset - segment.base
        status, position, next_offset = self._seek(segment, offset)
        is_behind = status == "end" and offset > max(next_offset, segment.base)
        return position + 1 if is_behind else position

    def _seek(self, segment: SegmentFile, offset: int) -> tuple[str, int, int]:
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            index_fd = -1
            try:
                index_fd = os.open(segment.path.with_suffix(".index"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                index_fd = -1
            try:
                return _index.seek(fd, index_fd, self._number, segment.base, segment.size, offset)
            finally:
                if index_fd >= 0:
                    os.close(index_fd)
        finally:
            os.close(fd)

    def settle_indexes(
        self, files: FileOps, segments: Sequence[SegmentFile], *, is_clean: bool, durable: int = 0
    ) -> IndexState:
        """Make the indexes of a recovered log what they should be; see ``LogFormat``."""
        return index_files.settle(files, segments, self._number, is_clean=is_clean, durable=durable)

    def largest_ms(self, files: FileOps, segment: SegmentFile) -> int | None:
        """Return the largest time of a sealed segment's records, which its time index ends with."""
        return index_files.last_time(files, segment)

    def first_boundary(self, path: Path, start: int, target: int, end: int, most_bytes: int) -> int:
        """Return the first boundary between batches at or behind position ``target``; see ``LogFormat``."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _index.boundary(fd, self._number, start, target, end, most_bytes)
        finally:
            os.close(fd)

    def is_entry(self, path: Path, position: int, end: int) -> bool:
        """Whether a whole and valid batch begins at a position and ends at ``end`` at the latest."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self._check_entry(FileOps(), fd, position, end)[0] == WHOLE
        finally:
            os.close(fd)

    def scan(
        self,
        files: FileOps,
        fd: int,
        start: int,
        end: int,
        deep: DeepFindings | None = None,
        *,
        follows: int | None = None,
    ) -> FileScan:
        """Return how far ``[start, end)`` of an open segment is whole and valid.

        Checks lengths, magic, checksums, and that offsets follow one another; memory stays bounded whatever the bytes
        claim. With ``follows`` there may be no gap between them.
        """
        is_dense = follows is not None
        position, count, compressed, status = start, 0, 0, WHOLE
        next_offset = 0 if follows is None else follows
        buffer = memoryview(bytearray(min(WINDOW_BYTES, max(end - start, 0))))
        while position < end:
            came = read_fully(fd, buffer[: min(len(buffer), end - position)], position, files.read_into)
            if next_offset == ANY_OFFSET:
                first = _batches.read_head(buffer[:came])
                next_offset = 0 if first is None else first[1]
            valid, records, wrapped, next_offset, status = _batches.scan_stored(buffer[:came], next_offset, is_dense)
            if deep is not None:
                self._look_inside(buffer[:valid], position, deep)
            position, count, compressed = position + valid, count + records, compressed + wrapped
            if status == CUT and not valid and came == len(buffer):  # it is longer than what is read at once
                head = _batches.read_head(buffer[:came])
                if head is not None and (head[1] != next_offset if is_dense else head[1] < next_offset):
                    status = _WRONG_OFFSET
                    break
                status, size, next_offset = self._check_entry(files, fd, position, end)
                if status != WHOLE or head is None:
                    break
                if deep is not None:
                    self._look_inside(memoryview(self._read(files, fd, position, size)), position, deep)
                position, count = position + size, count + head[4]
            elif (status == CUT and not valid) or status not in (WHOLE, CUT) or came == 0:
                break
        return FileScan(position, count, compressed, 0, status, STATUS_TEXT.get(status, "bytes that are no batch"))

    def find_entry(self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget) -> int | None:
        """Return where the first whole and valid batch behind a damaged one begins, or None.

        The length of the damaged one is believed first; if no batch stands behind it, every position is tried.
        """
        head = _batches.read_head(self._read(files, fd, damaged, min(HEAD_BYTES, end - damaged)))
        if head is not None and damaged + head[0] <= end:
            behind = damaged + head[0]
            if behind == end:
                return None
            if self._check_entry(files, fd, behind, end)[0] == WHOLE:
                return behind
        position = damaged + 1
        while end - position >= HEAD_BYTES:
            chunk = self._read(files, fd, position, min(WINDOW_BYTES, end - position))
            if len(chunk) < HEAD_BYTES or not budget.take(len(chunk)):
                return None
            for match in _POSSIBLE_START.finditer(chunk, 0, len(chunk)):
                start = match.start()
                head = _batches.read_head(chunk[start : start + HEAD_BYTES])
                if head is None or position + start + head[0] > end:
                    continue
                if not budget.take(CANDIDATE_COST_BYTES + head[0]):
                    return None
                if self._check_entry(files, fd, position + start, end)[0] == WHOLE:
                    return position + start
            position += len(chunk) - HEAD_BYTES + 1
        return None

    def count_entries(
        self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget, first_may_be_valid: bool = False
    ) -> int:
        """Return how many records of whole and valid batches there are from the damaged one on, within the budget."""
        return count_found(self, files, fd, damaged, end, budget, first_may_be_valid)

    def dump(
        self, files: FileOps, fd: int, segment: SegmentFile, deep: DeepFindings | None = None
    ) -> Iterator[DumpedEntry]:
        """Yield every batch, in the words of Apache Kafka's dump tool; see ``LogFormat``.

        With ``deep`` its records follow, with their keys and values; those of a control batch are told in words.

        Source: Apache Kafka 4.2 (DumpLogSegments).
        """
        position = 0
        while position + HEAD_BYTES <= segment.size:
            data = self._read(files, fd, position, HEAD_BYTES)
            head = _batches.read_head(data)
            if head is None or position + head[0] > segment.size:
                return
            valid = self._check_entry(files, fd, position, segment.size)[0] == WHOLE
            start, position = position, position + head[0]
            batch = BatchHeader.parse(data)
            fields = _batch_fields(batch, start)
            yield DumpedEntry(head[1], head[2], position, valid, None, _batch_line(fields, valid), fields)
            if deep is not None and valid:
                payload = self._read(files, fd, start + HEAD_BYTES, head[0] - HEAD_BYTES)
                yield from self._dump_records(data + payload, batch, position, deep)

    def _dump_records(self, data: bytes, batch: BatchHeader, end: int, deep: DeepFindings) -> Iterator[DumpedEntry]:
        """The records of a valid batch that ends at position ``end``, as far as they can be read."""
        if batch.record_count != batch.last_offset_delta + 1:
            return
        is_control = bool(batch.attributes & record_batches.CONTROL)
        try:
            for key, value, timestamp, headers, offset in record_batches.records(data, deep.limits):
                sequence = _sequence(batch, offset - batch.base_offset)
                fields = {
                    "timestamp": timestamp,
                    "key_size": -1 if key is None else len(key),
                    "value_size": -1 if value is None else len(value),
                    "sequence": sequence,
                    "headers": len(headers),
                }
                names = ",".join(name.decode("utf-8", "replace") for name, _ in headers)
                text = (
                    f"| offset: {offset} {_TIME_NAMES[_time_type(batch)]}: {timestamp} keySize: {fields['key_size']}"
                    f" valueSize: {fields['value_size']} sequence: {sequence} headerKeys: [{names}]"
                )
                if is_control:
                    text, key, value = text + _marker(key, value), None, None
                yield DumpedEntry(offset, offset + 1, end, True, value, text, fields, inside=True, key=key)
        except (InvalidMessageError, MissingCodecError) as error:
            deep.damaged_wrappers.append((end - len(data), str(error)))

    def _look_inside(self, batches: memoryview, position: int, deep: DeepFindings) -> None:
        """Check the records of whole batches that begin at a position, and count them.

        Those of a batch with fewer records than offsets are not: compaction took some, and only it may.
        """
        at = 0
        while at < len(batches):
            header = BatchHeader.parse(batches, at)
            deep.messages += header.record_count
            if header.record_count == header.last_offset_delta + 1:
                try:
                    record_batches.check_deep(batches[at : at + header.size_bytes], deep.limits)
                except (InvalidMessageError, MissingCodecError) as error:
                    deep.damaged_wrappers.append((position + at, str(error)))
            at += header.size_bytes

    def _read(self, files: FileOps, fd: int, position: int, count: int) -> bytes:
        view = memoryview(bytearray(max(count, 0)))
        return bytes(view[: read_fully(fd, view, position, files.read_into)])

    def _check_entry(self, files: FileOps, fd: int, position: int, end: int) -> tuple[int, int, int]:
        """Status, bytes and next offset of the one batch at a position, read piece by piece."""
        data = self._read(files, fd, position, min(HEAD_BYTES, end - position))
        if len(data) < HEAD_BYTES:
            return CUT, 0, 0
        head = _batches.read_head(data)
        if head is None:
            return 17 if data[16] != 2 else 16, 0, 0
        size, next_offset = head[0], head[2]
        if size > end - position:
            return CUT, size, 0
        crc = crc32c(data[CRC_START:])
        at, batch_end = position + HEAD_BYTES, position + size
        buffer = memoryview(bytearray(min(WINDOW_BYTES, max(batch_end - at, 1))))
        while at < batch_end:
            came = read_fully(fd, buffer[: min(len(buffer), batch_end - at)], at, files.read_into)
            if came == 0:
                return CUT, size, 0
            crc = crc32c(buffer[:came], crc)
            at += came
        return (WHOLE if crc == int.from_bytes(data[17:21], "big") else _WRONG_CRC), size, next_offset


def _batch_fields(batch: BatchHeader, position: int) -> dict[str, Any]:
    codec = batch.attributes & record_batches.CODEC_MASK
    has_horizon = batch.attributes & record_batches.DELETE_HORIZON
    return {
        "last_offset": batch.base_offset + batch.last_offset_delta,
        "count": batch.record_count,
        "codec": CODECS[codec] if codec < len(CODECS) else f"unknown({codec})",
        "timestamp_type": _time_type(batch),
        "max_timestamp": batch.max_timestamp,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": _sequence(batch, batch.last_offset_delta),
        "leader_epoch": batch.leader_epoch,
        "transactional": bool(batch.attributes & record_batches.TRANSACTIONAL),
        "control": bool(batch.attributes & record_batches.CONTROL),
        "delete_horizon": batch.base_timestamp if has_horizon else None,
        "position": position,
        "size": batch.size_bytes,
        "magic": batch.magic,
        "crc": batch.crc,
        "base_offset": batch.base_offset,
    }


def _batch_line(found: Mapping[str, Any], valid: bool) -> str:
    horizon = "OptionalLong.empty" if found["delete_horizon"] is None else f"OptionalLong[{found['delete_horizon']}]"
    words = {
        "baseOffset": found["base_offset"],
        "lastOffset": found["last_offset"],
        "count": found["count"],
        "baseSequence": found["base_sequence"],
        "lastSequence": found["last_sequence"],
        "producerId": found["producer_id"],
        "producerEpoch": found["producer_epoch"],
        "partitionLeaderEpoch": found["leader_epoch"],
        "isTransactional": str(found["transactional"]).lower(),
        "isControl": str(found["control"]).lower(),
        "deleteHorizonMs": horizon,
        "position": found["position"],
        _TIME_NAMES[found["timestamp_type"]]: found["max_timestamp"],
        "size": found["size"],
        "magic": found["magic"],
        "compresscodec": found["codec"],
        "crc": found["crc"],
        "isvalid": str(valid).lower(),
    }
    return " ".join(f"{name}: {value}" for name, value in words.items())


def _time_type(batch: BatchHeader) -> str:
    return "append" if batch.attributes & record_batches.LOG_APPEND_TIME else "create"


def _sequence(batch: BatchHeader, delta: int) -> int:
    """The number of a record; behind the largest comes 0."""
    if batch.base_sequence == record_batches.NO_SEQUENCE:
        return record_batches.NO_SEQUENCE
    return (batch.base_sequence + delta) & 0x7FFFFFFF


def _marker(key: bytes | None, value: bytes | None) -> str:
    """What the record of a control batch says; of a transaction, how it ended."""
    if key is None or len(key) < _MARKER_KEY.size:
        return ""
    _, kind = _MARKER_KEY.unpack_from(key)
    if kind not in _MARKERS:
        return f" controlType: {kind}"
    epoch = _MARKER_VALUE.unpack_from(value)[1] if value is not None and len(value) >= _MARKER_VALUE.size else -1
    return f" endTxnMarker: {_MARKERS[kind]} coordinatorEpoch: {epoch}"

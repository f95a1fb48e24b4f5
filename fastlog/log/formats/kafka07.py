"""The log of Kafka 0.7 as recovery, fsck and tools see it; ``_kafka07`` is what processors and the flusher see.

Source: Kafka 0.7.2 (message format, ``Log``, ``FileMessageSet``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from fastlog import _segment, message
from fastlog._crc import crc32
from fastlog._segment import (
    LENGTH_BYTES,
    SCAN_CODEC,
    SCAN_CRC,
    SCAN_MAGIC,
    SCAN_OK,
    SCAN_SIZE,
    SCAN_TAIL,
    SCAN_TOO_LARGE,
)
from fastlog.errors import InvalidFetchSizeError, InvalidMessageError, MissingCodecError
from fastlog.log.files import FileOps
from fastlog.log.formats.base import (
    CANDIDATE_COST_BYTES,
    DeepFindings,
    DumpedEntry,
    FileScan,
    SearchBudget,
    count_found,
)
from fastlog.log.slots import IndexState
from fastlog.message import HEADER_BYTES, count_deep
from fastlog.segment_files import (
    KAFKA_0_7,
    SEGMENT_SUFFIX,
    WINDOW_BYTES,
    Entry,
    SegmentFile,
    Window,
    first_boundary,
    read_fully,
    walk,
    windows,
)

# An entry up to this size is checked in one buffer, a larger one piece by piece: what a damaged length claims costs
# time, never memory.
MAX_BUFFERED_ENTRY_BYTES = 4 * WINDOW_BYTES

COMPRESSED_STARTS = (b"\x1f\x8b\x08", b"\x82SNAPPY")

STATUS_TEXT = {
    SCAN_OK: "the end of the bytes",
    SCAN_TAIL: "a message that is cut short",
    SCAN_SIZE: "an impossible length",
    SCAN_MAGIC: "an unknown magic byte",
    SCAN_CODEC: "an unknown codec or a reserved attribute bit",
    SCAN_CRC: "a wrong checksum",
}

# as DumpLogSegments writes them
CODEC_NAMES = {0: "NoCompressionCodec", 1: "GZIPCompressionCodec", 2: "SnappyCompressionCodec"}

_MIN_ENTRY_BYTES = HEADER_BYTES[0]
_BLOCK_BYTES = 65536
_ZEROS = bytes(_BLOCK_BYTES + _MIN_ENTRY_BYTES)
_NO_ENTRY = 0, 0
"""Bytes and codec where no whole entry is: nobody looks at them."""


class Kafka07:
    """The log of Kafka 0.7: entries of magic 0 and 1 as they came; an offset is a byte position in the stream."""

    name = KAFKA_0_7
    suffix = SEGMENT_SUFFIX
    is_dense = False
    companions: tuple[str, ...] = ()
    has_epochs = False
    is_sequenced = False
    is_for_kafka07 = True

    def settle_indexes(
        self, files: FileOps, segments: Sequence[SegmentFile], *, is_clean: bool, durable: int = 0
    ) -> IndexState:
        """There are none: an offset is a position."""
        return IndexState()

    def largest_ms(self, files: FileOps, segment: SegmentFile) -> int | None:
        """None: messages of 0.7 have no times."""
        return None

    def end_offset(self, segment: SegmentFile) -> int:
        """Return the offset behind a segment's bytes."""
        return segment.base + segment.size

    def position(self, segment: SegmentFile, offset: int) -> int:
        """Return where in a segment's file the entry of an offset begins, which may lie outside of it."""
        return offset - segment.base

    def first_boundary(self, path: Path, start: int, target: int, end: int, most_bytes: int) -> int:
        """Return the first boundary between messages at or behind position ``target``; see ``LogFormat``."""
        return first_boundary(path, start, target, end, most_bytes)

    def is_entry(self, path: Path, position: int, end: int) -> bool:
        """Whether a whole and valid message begins at a position and ends at ``end`` at the latest."""
        return next(iter(walk(path, 0, position, end)), None) is not None

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

        Checks length, magic, attributes and checksum of top-level entries; an entry that ends exactly at ``end`` is
        whole. With ``deep``, wrappers are opened and what is found goes there; it does not end the scan. Memory stays
        bounded whatever the bytes claim, but a wrapper that is opened is held as a whole.
        """
        position, count, wrappers, suspicious = start, 0, 0, 0
        while True:
            status = SCAN_OK
            for window in windows(fd, position, end, max_entry_bytes=MAX_BUFFERED_ENTRY_BYTES, read=files.read_into):
                position = window.position + len(window.entries)
                count += window.count
                wrappers += window.wrappers
                suspicious += window.suspicious
                status = window.status
                if deep is not None:
                    self._look_inside(window, deep)
            if status != SCAN_TOO_LARGE:
                return FileScan(position, count, wrappers, suspicious, status, STATUS_TEXT[status])
            status, entry_bytes, codec = self._check_entry(files, fd, position, end)
            if status != SCAN_OK:
                return FileScan(position, count, wrappers, suspicious, status, STATUS_TEXT[status])
            if deep is not None:
                view = memoryview(self._read(files, fd, position, entry_bytes))
                result = _segment.scan(view)
                self._look_inside(
                    Window(position, view, result.count, result.wrappers, result.suspicious, result.status), deep
                )
            position += entry_bytes
            count += 1
            wrappers += 1 if codec else 0

    def find_entry(self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget) -> int | None:
        """Return where the first whole and valid entry behind the damaged one at ``damaged`` begins, or None.

        The length of the damaged entry is believed first; if no entry stands behind it, every position is tried.
        """
        head = self._read(files, fd, damaged, min(LENGTH_BYTES, end - damaged))
        next_position = damaged + LENGTH_BYTES + int.from_bytes(head, "big", signed=True)
        if len(head) == LENGTH_BYTES and damaged + LENGTH_BYTES < next_position <= end:
            if next_position == end:
                return None
            if self._check_entry(files, fd, next_position, end)[0] == SCAN_OK:
                return next_position
        position = damaged + 1
        while end - position >= _MIN_ENTRY_BYTES:
            chunk = self._read(files, fd, position, min(WINDOW_BYTES, end - position))
            if len(chunk) < _MIN_ENTRY_BYTES or not budget.take(len(chunk)):
                return None
            found = self._search(files, fd, chunk, position, end, budget)
            if found is not None or budget.exhausted:
                return found
            position += len(chunk) - _MIN_ENTRY_BYTES + 1
        return None

    def count_entries(
        self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget, first_may_be_valid: bool = False
    ) -> int:
        """Return how many whole and valid entries can be found from the damaged one on, as far as the budget goes."""
        return count_found(self, files, fd, damaged, end, budget, first_may_be_valid)

    def dump(
        self, files: FileOps, fd: int, segment: SegmentFile, deep: DeepFindings | None = None
    ) -> Iterator[DumpedEntry]:
        """Yield every entry, in the words of DumpLogSegments; see ``LogFormat``.

        Source: Kafka 0.7.2 (FileMessageSet's iterator), which ends at a length below 5 or past the end of the file.
        """
        base, position = segment.base, 0
        while position < segment.size:
            for window in windows(fd, position, segment.size, read=files.read_into):
                for fields in _segment.entries(window.entries, base + window.position):
                    yield from self._dump_entry(Entry(*fields), base, True, deep)
                position = window.position + len(window.entries)
            size = LENGTH_BYTES + int.from_bytes(self._read(files, fd, position, LENGTH_BYTES), "big", signed=True)
            if not _MIN_ENTRY_BYTES <= size <= segment.size - position:
                return
            data = self._read(files, fd, position, size)
            if len(data) < size:
                return
            magic = data[LENGTH_BYTES]
            attributes = data[LENGTH_BYTES + 1] if magic == 1 else 0
            stored, payload = (data[6:10], data[10:]) if magic == 1 else (data[5:9], data[9:])
            valid = magic < 2 and attributes in CODEC_NAMES and crc32(payload) == int.from_bytes(stored, "big")
            entry = Entry(base + position, base + position + size, magic, attributes, payload)
            position += size
            yield from self._dump_entry(entry, base, valid, deep)

    def _dump_entry(self, entry: Entry, base: int, valid: bool, deep: DeepFindings | None) -> Iterator[DumpedEntry]:
        end = entry.next_offset - base
        yield _dumped(entry, end, valid=valid)
        if deep is None or not valid or not entry.attributes:
            return
        data = message.Message(entry.payload, entry.magic, entry.attributes).encode()
        try:
            for inner, next_offset in message.deep(data, entry.offset, deep.limits):
                found = Entry(entry.offset, next_offset, inner.magic, inner.attributes, inner.payload)
                yield _dumped(found, end, inside=True)
        except (InvalidMessageError, InvalidFetchSizeError, MissingCodecError) as error:
            deep.damaged_wrappers.append((entry.offset - base, str(error)))

    def _look_inside(self, window: Window, deep: DeepFindings) -> None:
        """Open the wrappers of a window of valid entries, and find its suspicious ones."""
        view = window.entries
        deep.messages += window.count - window.wrappers
        if window.suspicious:
            for offset, _, _, attributes, payload in _segment.entries(view, window.position):
                if not attributes and payload.startswith(COMPRESSED_STARTS):
                    deep.suspicious.append(offset)
        position = 0
        while window.wrappers and (found := _segment.find_wrapper(view, position)) is not None:
            position, payload_start, _ = found
            start = payload_start - HEADER_BYTES[1]
            try:
                deep.messages += count_deep(view[start:position], deep.limits)
            except (InvalidMessageError, MissingCodecError) as error:
                deep.damaged_wrappers.append((window.position + start, str(error)))

    def _read(self, files: FileOps, fd: int, position: int, count: int) -> bytes:
        view = memoryview(bytearray(count))
        return bytes(view[: read_fully(fd, view, position, files.read_into)])

    def _search(
        self, files: FileOps, fd: int, chunk: bytes, position: int, end: int, budget: SearchBudget
    ) -> int | None:
        """The file position of the first whole and valid entry that begins in a chunk read at ``position``."""
        pattern = _entry_start(min((end - position) >> 24, 127))
        view = memoryview(chunk)
        for block in range(0, len(chunk), _BLOCK_BYTES):
            if chunk.startswith(_ZEROS, block):
                continue  # the search would stop at every byte of reserved space that was never written
            for match in pattern.finditer(chunk, block, min(block + _BLOCK_BYTES + _MIN_ENTRY_BYTES, len(chunk))):
                start = match.start()
                size = LENGTH_BYTES + int.from_bytes(view[start : start + LENGTH_BYTES], "big")
                if position + start + size > end:
                    continue
                if not budget.take(CANDIDATE_COST_BYTES + size):
                    return None
                if start + size <= len(chunk):
                    status = _segment.scan(view[start : start + size]).status
                else:
                    status = self._check_entry(files, fd, position + start, end)[0]
                if status == SCAN_OK:
                    return position + start
        return None

    def _check_entry(self, files: FileOps, fd: int, position: int, end: int) -> tuple[int, int, int]:
        """Status, bytes and codec of the one entry at a position, read piece by piece."""
        head = self._read(files, fd, position, min(_MIN_ENTRY_BYTES + 1, end - position))
        if len(head) < _MIN_ENTRY_BYTES:
            return SCAN_TAIL, *_NO_ENTRY
        size = LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES], "big", signed=True)
        magic = head[4]
        if size < _MIN_ENTRY_BYTES or (magic == 1 and size < _MIN_ENTRY_BYTES + 1):
            return SCAN_SIZE, *_NO_ENTRY
        if size > end - position:
            return SCAN_TAIL, *_NO_ENTRY
        if magic > 1:
            return SCAN_MAGIC, *_NO_ENTRY
        codec = head[5] if magic else 0
        if codec > 2:
            return SCAN_CODEC, *_NO_ENTRY
        stored = int.from_bytes(head[5 + magic : 9 + magic], "big")
        crc = 0
        at, entry_end = position + _MIN_ENTRY_BYTES + magic, position + size
        buffer = memoryview(bytearray(min(WINDOW_BYTES, entry_end - at)))
        while at < entry_end:
            came = read_fully(fd, buffer[: min(len(buffer), entry_end - at)], at, files.read_into)
            if came == 0:
                return SCAN_TAIL, *_NO_ENTRY
            crc = crc32(buffer[:came], crc)
            at += came
        return (SCAN_OK if crc == stored else SCAN_CRC), size, codec


def _dumped(entry: Entry, end: int, *, valid: bool = True, inside: bool = False) -> DumpedEntry:
    codec = entry.attributes & 3
    name = CODEC_NAMES.get(codec, f"unknown({codec})")
    return DumpedEntry(
        entry.offset,
        entry.next_offset,
        end,
        valid,
        entry.payload,
        f"offset: {entry.offset} isvalid: {str(valid).lower()} payloadsize: {len(entry.payload)}"
        f" magic: {entry.magic} compresscodec: {name}",
        {"magic": entry.magic, "codec": codec, "size": len(entry.payload)},
        inside,
    )


@cache
def _entry_start(highest_first_byte: int) -> re.Pattern[bytes]:
    """Matches one byte where an entry may begin: a length from 5 up, then magic 0, or magic 1 and a known codec."""
    larger = b"|[\\x01-\\x%02x]" % highest_first_byte if highest_first_byte else b""
    return re.compile(rb"(?:\x00(?!\x00\x00[\x00-\x04])" + larger + rb")(?=[\x00-\xff]{3}(?:\x00|\x01[\x00-\x02]))")

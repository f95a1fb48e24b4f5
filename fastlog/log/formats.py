"""One small object per log format: how its bytes are checked, counted, searched after damage, and addressed.

A partition records its format when it is created, in its side file. Everything that depends on what the bytes mean goes
through the object found in ``FORMATS``; a format that is not there is named, and its files are left alone. A later
format adds its object here, with another file suffix.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, Protocol

from fastlog import _segment
from fastlog._crc import crc32
from fastlog._segment import SCAN_CODEC, SCAN_CRC, SCAN_MAGIC, SCAN_OK, SCAN_SIZE, SCAN_TAIL, SCAN_TOO_LARGE
from fastlog.errors import InvalidMessageError, LogError, MissingCodecError, OffsetOutOfRangeError
from fastlog.log.files import FileOps
from fastlog.message import DEFAULT_LIMITS, HEADER_BYTES, DeepLimits, count_deep
from fastlog.segment_files import KAFKA_0_7, LENGTH_BYTES, SEGMENT_SUFFIX, WINDOW_BYTES, Window, read_fully, windows

# An entry up to this size is checked in one buffer, a larger one piece by piece: what a damaged length claims costs
# time, never memory.
MAX_BUFFERED_ENTRY_BYTES = 4 * WINDOW_BYTES

COMPRESSED_STARTS = (b"\x1f\x8b\x08", b"\x82SNAPPY")

_MIN_ENTRY_BYTES = 9
_BLOCK_BYTES = 65536
_ZEROS = bytes(_BLOCK_BYTES + _MIN_ENTRY_BYTES)
_CANDIDATE_COST_BYTES = 512

STATUS_TEXT = {
    SCAN_OK: "the end of the bytes",
    SCAN_TAIL: "a message that is cut short",
    SCAN_SIZE: "an impossible length",
    SCAN_MAGIC: "an unknown magic byte",
    SCAN_CODEC: "an unknown codec or a reserved attribute bit",
    SCAN_CRC: "a wrong checksum",
}


class FileScan(NamedTuple):
    """How far a file is whole and valid: ``end`` is a position, the counts are of the entries before it."""

    end: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    wrappers: int
    suspicious: int
    status: int

    @property
    def found(self) -> str:
        """What stands at ``end``, in words."""
        return STATUS_TEXT[self.status]


class SearchBudget:
    """What a search behind damage may cost, in bytes looked at; ``exhausted`` says that it was not enough.

    Hostile bytes can look like the beginning of a message everywhere, each time with megabytes to check.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.bytes_left = limit_bytes
        self.exhausted = False

    def take(self, count: int) -> bool:
        """Use up so many bytes; False when they are not there any more."""
        if self.bytes_left is not None:
            self.bytes_left -= count
            self.exhausted = self.exhausted or self.bytes_left < 0
        return not self.exhausted


@dataclass(slots=True)
class DeepFindings:
    """What a deep scan adds: positions, with the reason where a compressed set does not hold what it should.

    ``suspicious``: plain messages that begin like compressed data; the codec bit may be lost, which no checksum sees.
    """

    limits: DeepLimits = DEFAULT_LIMITS
    damaged_wrappers: list[tuple[int, str]] = field(default_factory=list)
    suspicious: list[int] = field(default_factory=list)
    messages: int = 0


class LogFormat(Protocol):
    """What recovery, fsck and the handlers ask of a format; implementations hold no state and serve any process."""

    @property
    def name(self) -> str:
        """The name in the side file."""

    @property
    def suffix(self) -> str:
        """The end of its segments' file names."""

    def scan(self, files: FileOps, fd: int, start: int, end: int, deep: DeepFindings | None = None) -> FileScan:
        """Return how far ``[start, end)`` of an open segment is whole and valid; ``start`` is where an entry begins."""

    def find_entry(self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget) -> int | None:
        """Return where the first whole and valid entry behind a damaged one begins, or None."""

    def count_entries(
        self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget, first_may_be_valid: bool = False
    ) -> int:
        """Return how many whole and valid entries can be found behind a damaged one."""

    def validate(self, data: bytes | memoryview, limits: DeepLimits = DEFAULT_LIMITS) -> int:
        """Return the number of messages in a produced set, checked at every depth; raise when it is not valid."""

    def locate(self, bases: Sequence[int], offset: int) -> tuple[int, int]:
        """Return the index of the segment that holds an offset, and the position in its file."""


class Kafka07:
    """The log of Kafka 0.7: entries of magic 0 and 1 as they came; an offset is a byte position in the stream."""

    name = KAFKA_0_7
    suffix = SEGMENT_SUFFIX

    def scan(self, files: FileOps, fd: int, start: int, end: int, deep: DeepFindings | None = None) -> FileScan:
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
                return FileScan(position, count, wrappers, suspicious, status)
            status, entry_bytes, codec = self._check_entry(files, fd, position, end)
            if status != SCAN_OK:
                return FileScan(position, count, wrappers, suspicious, status)
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
        count = 0
        position: int | None = damaged
        if not first_may_be_valid:
            position = self.find_entry(files, fd, damaged, end, budget)
        while position is not None:
            found = self.scan(files, fd, position, end)
            count += found.count
            if found.end >= end or not budget.take(found.end - position):
                break
            position = self.find_entry(files, fd, found.end, end, budget)
        return count

    def validate(self, data: bytes | memoryview, limits: DeepLimits = DEFAULT_LIMITS) -> int:
        """Return the number of messages in a produced set, those inside wrappers counted and the wrappers not.

        Raises:
            InvalidMessageError, InflateLimitError, MissingCodecError: as for ``message.count_deep``.
        """
        return count_deep(data, limits)

    def locate(self, bases: Sequence[int], offset: int) -> tuple[int, int]:
        """Return the index of the segment that holds an offset, and the position in its file.

        ``bases`` are the segments' base offsets in order. The caller knows where the log ends.

        Raises:
            OffsetOutOfRangeError: the offset lies before the first segment.
        """
        index = bisect_right(bases, offset) - 1
        if index < 0:
            raise OffsetOutOfRangeError(
                f"offset {offset} lies before {bases[0] if bases else 'a log without segments'}"
            )
        return index, offset - bases[index]

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
                if not budget.take(_CANDIDATE_COST_BYTES + size):
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
            return SCAN_TAIL, 0, 0
        size = LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES], "big", signed=True)
        magic = head[4]
        if size < _MIN_ENTRY_BYTES or (magic == 1 and size < _MIN_ENTRY_BYTES + 1):
            return SCAN_SIZE, 0, 0
        if size > end - position:
            return SCAN_TAIL, 0, 0
        if magic > 1:
            return SCAN_MAGIC, 0, 0
        codec = head[5] if magic else 0
        if codec > 2:
            return SCAN_CODEC, 0, 0
        stored = int.from_bytes(head[5 + magic : 9 + magic], "big")
        crc = 0
        at, entry_end = position + _MIN_ENTRY_BYTES + magic, position + size
        buffer = memoryview(bytearray(min(WINDOW_BYTES, entry_end - at)))
        while at < entry_end:
            came = read_fully(fd, buffer[: min(len(buffer), entry_end - at)], at, files.read_into)
            if came == 0:
                return SCAN_TAIL, 0, 0
            crc = crc32(buffer[:came], crc)
            at += came
        return (SCAN_OK if crc == stored else SCAN_CRC), size, codec


@cache
def _entry_start(highest_first_byte: int) -> re.Pattern[bytes]:
    """Matches one byte where an entry may begin: a length from 5 up, then magic 0, or magic 1 and a known codec."""
    larger = b"|[\\x01-\\x%02x]" % highest_first_byte if highest_first_byte else b""
    return re.compile(rb"(?:\x00(?!\x00\x00[\x00-\x04])" + larger + rb")(?=[\x00-\xff]{3}(?:\x00|\x01[\x00-\x02]))")


FORMATS: dict[str, LogFormat] = {KAFKA_0_7: Kafka07()}


def log_format(name: str) -> LogFormat:
    """Return the object of a format.

    Raises:
        LogError: this version does not know the format.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise LogError(f"unknown log format, known are {', '.join(FORMATS)}", found=name) from None

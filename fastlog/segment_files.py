"""Names, formats and the walk of segment files: what the broker and clients that read files themselves both know.

Nothing here writes. A partition lives in a directory ``<topic>-<partition>``; its segments are files
``<base offset>.kafka`` that hold exactly the bytes of the wire. The base offset is the offset of the file's first byte,
so ``offset = base offset + position``. ``docs/format.md`` shows the bytes.

Source: Kafka 0.7.2 (log/Log, log/LogManager, message/FileMessageSet).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fastlog import _segment
from fastlog._segment import LENGTH_BYTES, SCAN_OK, SCAN_TAIL, SCAN_TOO_LARGE
from fastlog.topics import valid_topic

KAFKA_0_7 = "kafka-0.7"
SEGMENT_SUFFIX = ".kafka"
SIDE_FILE_NAME = "fastlog.json"
CLEAN_MARKER_NAME = ".kafka_cleanshutdown"
LOCK_NAME = ".lock"
CREATORS_NAME = ".fastlog-creators"
FLUSH_MARKS_NAME = ".fastlog-flushing"
META_PROPERTIES_NAME = "meta.properties"
LOG_STARTS_NAME = "log-start-offset-checkpoint"
MOVING_NAME = ".fastlog-moving"
FLUSHED_MARK_PREFIX = ".flushed-"

WALK_WINDOW_BYTES = 256 * 1024
WINDOW_BYTES = 4 * 1024 * 1024
MAX_ENTRY_BYTES = LENGTH_BYTES + 2**31 - 1  # what a length field can say
MAX_OFFSET = 2**63 - 1
MAX_PARTITION = 2**31 - 1

ReadInto = Callable[[int, memoryview, int], int]

_PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]*", re.ASCII)


class SegmentFile(NamedTuple):
    """One segment of a partition: where its bytes begin in the stream, its path, and its size when it was listed."""

    base: int
    path: Path
    size: int


class Entry(NamedTuple):
    """One whole and valid top-level entry of a segment file."""

    offset: int
    next_offset: int
    magic: int
    attributes: int
    payload: bytes


class Window(NamedTuple):
    """Whole and valid entries at one place of a file; ``entries`` is good until the next window is asked for.

    ``status`` is that of ``_segment.scan``: anything but ``SCAN_OK`` says why the walk ends behind these entries. It
    stands in the last window only.
    """

    position: int
    entries: memoryview
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    wrappers: int
    suspicious: int
    status: int


def segment_name(base: int, suffix: str = SEGMENT_SUFFIX) -> str:
    """Return the file name of the segment that begins at this offset: 20 digits, as 0.7 writes them."""
    return f"{base:020}{suffix}"


def parse_segment_name(name: str, suffix: str = SEGMENT_SUFFIX) -> int | None:
    """Return the base offset in a segment's file name, however many digits it has; None for any other name."""
    digits = name.removesuffix(suffix)
    if digits == name or not (digits.isascii() and digits.isdigit()) or len(digits.lstrip("0")) > 19:
        return None
    base = int(digits)
    return base if base <= MAX_OFFSET else None


def partition_directory_name(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def split_directory_name(name: str) -> tuple[str, int] | None:
    """Return topic and partition of a partition's directory, split at the last ``-``; None for any other name.

    A number with leading zeros is no partition: two directories would stand for one partition.
    """
    topic, dash, number = name.rpartition("-")
    if not dash or not _PARTITION_NUMBER.fullmatch(number) or len(number) > 10 or int(number) > MAX_PARTITION:
        return None
    if valid_topic(topic, partition=int(number)) is not None:
        return None
    return topic, int(number)


def list_segments(directory: Path, suffix: str = SEGMENT_SUFFIX) -> list[SegmentFile]:
    """Return the segments of a partition's directory, lowest base offset first.

    Only regular files count; those that vanish meanwhile are left out. The newest may be growing.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    with os.scandir(directory) as listing:
        for item in listing:
            base = parse_segment_name(item.name, suffix)
            if base is None:
                continue
            try:
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                found.append(SegmentFile(base, directory / item.name, status.st_size))
    return sorted(found)


def read_into(fd: int, view: memoryview, position: int) -> int:
    """Read into ``view`` from a place of the file; return how many bytes came, 0 at its end."""
    return os.preadv(fd, [view], position)


def read_fully(fd: int, view: memoryview, position: int, read: ReadInto = read_into) -> int:
    """Fill ``view`` from a place of the file, going on after short reads; fewer bytes come only at its end."""
    filled = 0
    while filled < len(view):
        came = read(fd, view[filled:], position + filled)
        if came <= 0:
            break
        filled += came
    return filled


def windows(
    fd: int,
    start: int,
    end: int,
    *,
    max_entry_bytes: int = MAX_ENTRY_BYTES,
    window_bytes: int = WINDOW_BYTES,
    read: ReadInto = read_into,
) -> Iterator[Window]:
    """Yield the entries of ``[start, end)`` of an open file, a window of about ``window_bytes`` at a time.

    ``start`` must be where an entry begins. The walk ends at ``end``, at the end of the file, or before the first entry
    that is not whole and valid; an entry longer than ``max_entry_bytes`` ends it with ``SCAN_TOO_LARGE``. Memory is one
    window, or one entry where that is larger; a length field is believed only as far as the file reaches.
    """
    buffer = memoryview(bytearray(min(window_bytes, max(end - start, 0))))
    position = start
    while position < end:
        wanted = min(len(buffer), end - position)
        came = read_fully(fd, buffer[:wanted], position, read)
        if came < wanted:
            end = position + came
        result = _segment.scan(buffer[:came])
        valid = result.valid_bytes
        next_position = position + valid
        cut_by_window = result.status == SCAN_TAIL and position + came < end
        status = SCAN_OK if cut_by_window else result.status
        if valid or status != SCAN_OK:
            yield Window(position, buffer[:valid], result.count, result.wrappers, result.suspicious, status)
        if status != SCAN_OK:
            return
        if cut_by_window and not valid:
            size = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], "big")
            if size > end - position or size > max_entry_bytes:
                status = SCAN_TAIL if size > end - position else SCAN_TOO_LARGE
                yield Window(position, buffer[:0], 0, 0, 0, status)
                return
            buffer = memoryview(bytearray(size))
        elif len(buffer) > window_bytes:
            buffer = memoryview(bytearray(window_bytes))
        position = next_position


def walk(path: Path, base: int, start: int = 0, end: int | None = None) -> Iterator[Entry]:
    """Yield the whole and valid top-level entries of a segment file, from position ``start`` to ``end`` or its end.

    Wrappers stay closed. The walk ends quietly before the first entry that is cut or damaged: compare the last
    ``next_offset`` with where the file ends. Safe while the broker appends.

    Raises:
        OSError: the file cannot be opened or read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        for window in windows(fd, start, size if end is None else min(end, size)):
            for fields in _segment.entries(window.entries, base + window.position):
                yield Entry(*fields)
    finally:
        os.close(fd)


def first_boundary(path: Path, start: int, target: int, end: int, most_bytes: int) -> int:
    """Return the first message boundary at or behind position ``target``, walking lengths from the boundary ``start``.

    Checksums are not looked at. The walk ends early, and returns the boundary it reached, at ``end``, before an entry
    that cannot be one, and once it has passed ``most_bytes``.

    Raises:
        OSError: the file cannot be opened or read.
    """
    position = start
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        buffer = memoryview(bytearray(min(WALK_WINDOW_BYTES, max(end - start, 0))))
        while position < target and position - start < most_bytes:
            came = read_fully(fd, buffer[: min(len(buffer), end - position)], position)
            reached = _segment.skip_to(buffer[:came], target - position)
            if reached == 0 and came >= LENGTH_BYTES:
                # an entry longer than the window: its length says where it ends
                size = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], "big")
                reached = size if came < size <= end - position else 0
            if reached == 0:
                break
            position += reached
    finally:
        os.close(fd)
    return position

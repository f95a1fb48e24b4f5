"""The index files of a log of record batches at its start: believed, cut or made anew.

``_index`` says what they hold. They are a help, so nothing about them keeps a partition from being served.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from fastlog.log import _index
from fastlog.log.files import FileOps
from fastlog.log.slots import IndexState
from fastlog.segment_files import SegmentFile, parse_segment_name

OFFSET_SUFFIX, TIME_SUFFIX = ".index", ".timeindex"
OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES = 8, 12

log = logging.getLogger(__name__)


def settle(
    files: FileOps, segments: Sequence[SegmentFile], format_number: int, *, is_clean: bool, durable: int = 0
) -> IndexState:
    """Make the indexes of a log's segments right, and return what its end says of them; see ``LogFormat``.

    That of the newest segment is made anew, unless it stands there as it should; so are those of sealed ones that are
    missing, whose last entry names no batch of their segment, or that may have lost bytes with the power.
    """
    state = IndexState()
    bases = {segment.base for segment in segments}
    directory = segments[-1].path.parent
    for item in files.listdir(directory):
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
            base = parse_segment_name(item.name, suffix)
            if base is not None and base not in bases:
                _remove(directory / item.name)
    for number, segment in enumerate(segments):
        is_newest = segment is segments[-1]
        is_durable = not is_newest and (is_clean or segments[number + 1].base <= durable)
        try:
            if is_durable and _is_right(files, segment, format_number):
                continue
            state = _rebuild(files, segment, format_number, is_sealed=not is_newest, keep=is_clean)
        except OSError as error:
            log.warning("index not made path=%s reason=%s: look-ups in it take longer", segment.path, error.strerror)
            state = IndexState()
    return state


def last_time(files: FileOps, segment: SegmentFile) -> int | None:
    """Return the time that a segment's time index ends with; None when there is none, or none that records have."""
    try:
        with files.open(segment.path.with_suffix(TIME_SUFFIX), os.O_RDONLY) as fd:
            entry = memoryview(bytearray(TIME_ENTRY_BYTES))
            size = files.size(fd) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES
            if not size or files.read_into(fd, entry, size - TIME_ENTRY_BYTES) != TIME_ENTRY_BYTES:
                return None
    except OSError:
        return None
    found = int.from_bytes(entry[:8], "big", signed=True)
    return found if found >= 0 else None


def _is_right(files: FileOps, segment: SegmentFile, format_number: int) -> bool:
    """Whether a sealed segment's index names, with its last entry, a batch of it."""
    path = segment.path.with_suffix(OFFSET_SUFFIX)
    try:
        size = path.lstat().st_size
        with files.open(path, os.O_RDONLY) as fd:
            entry = memoryview(bytearray(OFFSET_ENTRY_BYTES))
            whole = size % OFFSET_ENTRY_BYTES == 0
            if size and (not whole or files.read_into(fd, entry, size - OFFSET_ENTRY_BYTES) != OFFSET_ENTRY_BYTES):
                return False
        if not segment.path.with_suffix(TIME_SUFFIX).exists():
            return False
    except OSError:
        return False
    if not size:
        return segment.size <= 2 * _index.INTERVAL  # else it should have had an entry
    last, position = segment.base + int.from_bytes(entry[:4], "big"), int.from_bytes(entry[4:], "big")
    with files.open(segment.path, os.O_RDONLY) as fd:
        return position < segment.size and _index.ends_with(fd, format_number, position, segment.size, last)


def _rebuild(files: FileOps, segment: SegmentFile, format_number: int, *, is_sealed: bool, keep: bool) -> IndexState:
    """Write both indexes of a segment, unless they stand there already byte for byte and may be kept."""
    with files.open(segment.path, os.O_RDONLY) as fd:
        offsets, times, state = _index.entries(fd, format_number, segment.base, segment.size, is_sealed)
    for suffix, wanted in ((OFFSET_SUFFIX, offsets), (TIME_SUFFIX, times)):
        path = segment.path.with_suffix(suffix)
        if keep and _read(files, path, len(wanted) + 1) == wanted:
            continue
        files.replace_file(path, wanted, "index_file.write")
    return IndexState(*state)


def _read(files: FileOps, path: Path, most_bytes: int) -> bytes | None:
    try:
        return files.read_file(path, most_bytes)
    except OSError:
        return None


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        log.warning("index of no segment left path=%s reason=%s", path, error.strerror)

"""Bytes and files that leave a log without being deleted: they get a name that no reader takes for a segment.

``<segment>.<unix ms>.truncated``: what followed the last whole message when recovery or fsck cut a log.
``<segment>.<unix ms>.bad``: a file that fsck took out of a log. Nothing of fastlog ever removes either.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fastlog.log.files import FileOps
from fastlog.segment_files import WINDOW_BYTES, read_fully

TRUNCATED = "truncated"
BAD = "bad"


def quarantine_span(files: FileOps, fd: int, path: Path, start: int, end: int, now_ms: int) -> Path:
    """Copy ``[start, end)`` of an open segment to a file of its own; return its path once it would survive power loss.

    Raises:
        OSError: for example on a full disk; the segment is as it was.
    """
    temporary = path.with_name(f"{path.name}.{TRUNCATED}.tmp")
    target = _free_name(path, TRUNCATED, now_ms)
    try:
        with files.open_temporary(temporary) as copy:
            copy_span(files, fd, start, end, copy)
            files.fdatasync(copy)
        files.rename(temporary, target)
    except OSError:
        # a copy without its name is worth nothing, and on a full disk its room is
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise
    files.fsync_dir(path.parent)
    return target


def quarantine_file(files: FileOps, path: Path, kind: str, now_ms: int) -> Path:
    """Give a whole file a name outside the log and return it; durable after ``fsync_dir`` of its directory."""
    target = _free_name(path, kind, now_ms)
    files.rename(path, target)
    return target


def copy_span(files: FileOps, fd: int, start: int, end: int, copy: int) -> None:
    """Write ``[start, end)`` of one open file to the front of another, with little memory."""
    buffer = memoryview(bytearray(min(WINDOW_BYTES, end - start)))
    position = start
    while position < end:
        came = read_fully(fd, buffer[: min(len(buffer), end - position)], position, files.read_into)
        if came == 0:
            return
        files.write_all(copy, buffer[:came], position - start)
        position += came


def _free_name(path: Path, kind: str, now_ms: int) -> Path:
    # renaming replaces silently: two cuts in one millisecond must not lose the first one's bytes
    while True:
        target = path.with_name(f"{path.name}.{now_ms}.{kind}")
        if not os.path.lexists(target):
            return target
        now_ms += 1

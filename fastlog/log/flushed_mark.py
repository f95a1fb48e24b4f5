"""The flushed mark of a partition: an empty file ``.flushed-<base offset>`` that names a segment by its 20 digits.

It says that everything below that offset was flushed, and that the segment's own name is durable. The flusher renames
it after it has synced the segments and their directory, and syncs that again; only then the high watermark passes the
base. So a gap that a start finds above the mark was never visible to anybody: the power went between a roll and its
flush. Any other gap is damage. A partition without a mark was never flushed by this version, or its mark was taken
away; nothing is concluded from that.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fastlog.log.files import FileOps
from fastlog.segment_files import FLUSHED_MARK_PREFIX, MAX_OFFSET

_NAME = re.compile(rf"{re.escape(FLUSHED_MARK_PREFIX)}([0-9]{{20}})", re.ASCII)


def flushed_mark_name(base: int) -> str:
    """The name of the mark when it names the segment that begins at ``base``."""
    return f"{FLUSHED_MARK_PREFIX}{base:020}"


def flushed_marks(names: Iterable[str]) -> list[int]:
    """The base offsets that marks among these file names name, lowest first; the last one counts."""
    found = (_NAME.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in found if match is not None and int(match[1]) <= MAX_OFFSET)


def put_flushed_mark(directory: Path, found: list[int], base: int, files: FileOps) -> None:
    """Let the partition's one mark name ``base``; durable after ``fsync_dir``. ``found`` are those that are there.

    Raises:
        OSError: what was there still is.
    """
    if base not in found:
        if found:
            files.rename(directory / flushed_mark_name(found[-1]), directory / flushed_mark_name(base))
            found = found[:-1]
        else:
            with files.open(directory / flushed_mark_name(base), os.O_WRONLY | os.O_CREAT):
                pass
    remove_flushed_marks(directory, [other for other in found if other != base], files)


def remove_flushed_marks(directory: Path, found: list[int], files: FileOps) -> None:
    """Take marks away; durable after ``fsync_dir``."""
    for base in found:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(directory / flushed_mark_name(base))

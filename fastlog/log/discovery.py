"""What lies in log directories: partitions, things that are none, and whether segments follow one another.

Reads names and sizes only.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fastlog.errors import LogError, RecoveryError
from fastlog.escaping import printable
from fastlog.log.deletion import is_deletions_own
from fastlog.log.formats import LogFormat
from fastlog.segment_files import (
    CLEAN_MARKER_NAME,
    CREATORS_NAME,
    FLUSH_MARKS_NAME,
    LOCK_NAME,
    LOG_STARTS_NAME,
    META_PROPERTIES_NAME,
    MOVING_NAME,
    SegmentFile,
    segment_name,
    split_directory_name,
)

OWN_NAMES = frozenset(
    {
        LOCK_NAME,
        CLEAN_MARKER_NAME,
        CLEAN_MARKER_NAME + ".tmp",
        CREATORS_NAME,
        CREATORS_NAME + ".tmp",
        FLUSH_MARKS_NAME,
        META_PROPERTIES_NAME,
        META_PROPERTIES_NAME + ".tmp",
        LOG_STARTS_NAME,
        LOG_STARTS_NAME + ".tmp",
    }
)


class FoundPartition(NamedTuple):
    """A partition's directory; ``dir_index`` counts the log directories."""

    dir_index: int
    directory: Path
    topic: str
    partition: int


def scan_log_dirs(directories: Sequence[Path]) -> tuple[list[FoundPartition], list[str]]:
    """Return the partitions in the log directories, and a line for each thing that is none and was passed over.

    Source: Kafka 0.7.2 (LogManager), which does not start when a directory has another name.

    Raises:
        RecoveryError: a log directory itself cannot be read.
    """
    found: list[FoundPartition] = []
    warnings: list[str] = []
    known: dict[tuple[int, int], Path] = {}
    for index, log_directory in enumerate(directories):
        try:
            with os.scandir(log_directory) as listing:
                # links last: of two names for one directory the real one counts
                items = sorted(
                    (item for item in listing if item.name not in OWN_NAMES and not is_deletions_own(item.name)),
                    key=lambda i: (i.is_symlink(), i.name),
                )
        except OSError as error:
            raise RecoveryError(
                f"the log directory cannot be read: {error.strerror}", path=str(log_directory)
            ) from error
        for item in items:
            path = log_directory / item.name
            name = split_directory_name(item.name)
            try:
                if not item.is_dir():
                    warnings.append(f"skipped path={shown(path)}: not a directory")
                    continue
                status = item.stat()
            except OSError as error:
                if name is None or error.errno == errno.ELOOP:
                    warnings.append(f"skipped path={shown(path)}: {error.strerror}")
                else:  # recovery finds out what is wrong with it: a partition that is passed over would be a new one
                    found.append(FoundPartition(index, path, *name))
                continue
            if name is None:
                warnings.append(f"skipped path={shown(path)}: the name is not <topic>-<partition>")
                continue
            first = known.setdefault((status.st_dev, status.st_ino), path)
            if first is not path:
                warnings.append(f"skipped path={shown(path)}: the same directory as {shown(first)}")
                continue
            found.append(FoundPartition(index, path, *name))
    return found, warnings


def refuse_unfinished(log_directory: Path) -> None:
    """Raise ``LogError`` where an import has not come to its end: what lies there looks like less than there was."""
    if os.path.lexists(log_directory / MOVING_NAME):
        raise LogError("an import into it has not come to its end: run fastlog import again", path=str(log_directory))


def segment_problems(
    segments: Sequence[SegmentFile], log_format: LogFormat, end_of: Callable[[SegmentFile], int] | None = None
) -> Iterator[tuple[int, str, str]]:
    """Yield the index of each segment that the next one does not follow exactly, ``gap`` or ``overlap``, and why.

    ``end_of`` tells the offset behind a segment; None: its format does, from its bytes.
    """
    for index, (one, following) in enumerate(itertools.pairwise(segments)):
        end = (end_of or log_format.end_offset)(one)
        # two names of different width for one offset are an overlap even when one of the files is empty
        if end != following.base or one.base == following.base:
            kind = "gap" if end < following.base else "overlap"
            yield (
                index,
                kind,
                f"{kind} between segments: {shown(one.path)} ends at offset {end}, found {following.path.name}, "
                f"expected {segment_name(end, log_format.suffix)}",
            )


def shown(path: Path) -> str:
    """A path for one line of text: control characters and bytes that are no text are escaped."""
    return printable(str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))

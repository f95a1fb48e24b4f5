"""The indexes of a segment of record batches, for recovery and tools; ``_index.pyx`` says what the files hold."""

from typing import Final

INTERVAL: Final[int]
"""Bytes of the log between two entries, at least."""

def seek(fd: int, index_fd: int, format_number: int, base: int, end: int, offset: int) -> tuple[str, int, int]:
    """Find the entry that holds an offset in an open segment of ``end`` bytes: ``(status, position, next offset)``.

    ``found`` with its position; ``end`` or ``damaged`` with the place where the walk ended. The next offset is the one
    behind the entries before it, 0 where none was walked. ``index_fd`` -1: there is no index.

    Raises:
        OSError: the file cannot be read.
    """

def boundary(fd: int, format_number: int, start: int, target: int, end: int, most_bytes: int) -> int:
    """Return the first position at or behind ``target`` where an entry begins, walking from one at ``start``.

    Less far where the walk ends early: at ``end``, before what can be no entry, and once it has passed ``most_bytes``.

    Raises:
        OSError: the file cannot be read.
    """

def entries(
    fd: int, format_number: int, base: int, end: int, is_sealed: bool
) -> tuple[bytes, bytes, tuple[int, int, int, int, int, int]]:
    """Return what belongs into the indexes of an open segment of ``end`` bytes, as appends make them.

    ``(.index, .timeindex, fields of IndexState)``. Ends before what is no entry. Of a sealed one, the time index ends
    with the largest time.

    Raises:
        OSError: the file cannot be read.
    """

def ends_with(fd: int, format_number: int, position: int, end: int, last_offset: int) -> bool:
    """Whether an entry begins at a position of an open segment of ``end`` bytes whose last offset is this.

    Raises:
        OSError: the file cannot be read.
    """

def walk_times(fd: int, format_number: int, start: int, end: int, time_ms: int, most_bytes: int) -> tuple[int, int]:
    """Walk from an entry at ``start`` of an open segment to the first whose largest time is not before this one.

    ``(position, bytes of it)``; the bytes are 0 where it ended without it: at ``end``, before what is no entry, or
    behind ``most_bytes``.

    Raises:
        OSError: the file cannot be read.
    """

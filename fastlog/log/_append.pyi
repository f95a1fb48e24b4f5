"""Appending: lock, admit, roll, write, publish, unlock. The only code that moves a log end."""

from collections.abc import Sequence

from typing_extensions import Buffer

from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles

class Appender:
    """Appends for one process and one thread; ``process`` is the place of that process in the arena's list."""

    def __init__(self, arena: Arena, files: SegmentFiles, process: int) -> None: ...
    def take_over(self) -> None:
        """At the start of a process: finish the append during which a predecessor in its place died, if any."""

def roll_now(appender: Appender, slot: int, wait_ms: int = 1000) -> bool:
    """Begin a new segment if the active one holds bytes; True when the active segment is empty afterwards."""

def end_life(appender: Appender, slot: int, returns: bool = False) -> bool:
    """End the life of a slot and tell everybody; the caller holds the creation lock.

    From here on nothing is appended, and nobody finds the partition who looks for it; who has found it before reads on
    until ``Arena.is_past``. Its name is for the caller to keep until its files have gone. With ``returns``, those who
    look for it find it on, and read what is visible; the caller lets it live again (``Arena.succeed``, ``revive``).

    Returns:
        False when somebody holds the append lock: nothing has changed, try again.
    """

def append_bytes(
    appender: Appender, slot: int, data: Buffer, count: int, life: int | None = None
) -> tuple[int, int, int, int]:
    """Append one checked message set: ``(status, first offset, next offset, errno)``; status 0 is done, 1 another
    process holds the lock, 2 the bound of unflushed data is reached, 3 the write failed, 4 it takes none, 5 it was
    deleted. ``life`` is the one of the slot that they are for, None: the present one."""

def append_batch(
    appender: Appender, slot: int, data: bytearray, count: int, largest_ms: int, life: int | None = None
) -> tuple[int, int, int, int]:
    """Append one checked record batch of ``count`` records, whose base offset and leader epoch are stored in ``data``;
    the same as ``append_bytes`` gives."""

def append_sets(appender: Appender, slot: int, sets: Sequence[tuple[bytes, int]]) -> tuple[int, list[int], int, int]:
    """Append checked message sets, each with its count of messages, in one turn at the lock, as a processor does with
    requests that came together: ``(status, offsets of those that were written, next offset, errno)``; for tests."""

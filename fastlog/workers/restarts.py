"""How often each process of a broker was replaced."""

from __future__ import annotations

import mmap

_BEFORE_THE_FIRST = 1  # the mirror's number is -1


class Restarts:
    """A word for each process, in memory that the supervisor makes before the first fork.

    The supervisor alone writes, whole words; whoever reads sees the count of a moment ago.
    """

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def count(self, number: int) -> None:
        """Say that a process was started again, by its number; that of the mirror is one as well."""
        self._words[_BEFORE_THE_FIRST + number] += 1

    def of(self, number: int) -> int:
        """How often this process was started again."""
        return self._words[_BEFORE_THE_FIRST + number]

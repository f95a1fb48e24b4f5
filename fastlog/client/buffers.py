"""Memory for what is received, taken again once nobody looks at it: a fresh megabyte costs more than its contents."""

from __future__ import annotations

from collections import deque

_LEAST_KEPT = 2  # one is looked at while the next is filled
_MOST_KEPT_BYTES = 16 * 2**20  # of one buffer, and of all where there are more than those
_LEAST_SHARE = 4


class Buffers:
    """Hands out byte arrays of at least a size. For one thread.

    One that was handed out before comes again only when no view of it is left: what a user still holds, as an array
    or as a slice of one, never changes.
    """

    def __init__(self) -> None:
        self._kept: deque[bytearray] = deque()
        self._kept_bytes = 0

    def take(self, size: int) -> bytearray:
        """A byte array of ``size`` bytes or somewhat more; what it holds is left from before."""
        for buffer in self._kept:
            if size <= len(buffer) <= _LEAST_SHARE * size and _unseen(buffer):
                return buffer
        buffer = bytearray(size)
        if size <= _MOST_KEPT_BYTES:
            self._kept.append(buffer)
            self._kept_bytes += size
            while self._kept_bytes > _MOST_KEPT_BYTES and len(self._kept) > _LEAST_KEPT:
                self._drop_oldest()
        return buffer

    def rest(self) -> None:
        """Free all kept buffers but the few that small amounts need."""
        while len(self._kept) > _LEAST_KEPT:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._kept_bytes -= len(self._kept.popleft())


def _unseen(buffer: bytearray) -> bool:
    """Whether no view of it is left: with one, it cannot change its size."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True

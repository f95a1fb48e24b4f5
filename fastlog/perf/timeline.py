"""Throughput over time: messages a second between looks at a counter."""

from __future__ import annotations


class Timeline:
    """Rates of a counter that is looked at from time to time."""

    def __init__(self, start: float, every: float) -> None:
        """``start``: a moment of the monotonic clock; ``every``: seconds for one point."""
        self.points: list[tuple[float, float]] = []
        """(seconds since the start, messages a second since the point before)."""
        self._start = self._last = start
        self._every = every
        self._count = 0

    def look(self, now: float, count: int, *, last: bool = False) -> None:
        """Add a point when one is due, or, as the ``last``, for what is left."""
        elapsed = now - self._last
        if elapsed <= 0 or (elapsed < self._every and not last) or (last and count == self._count and self.points):
            return
        self.points.append((round(now - self._start, 4), round((count - self._count) / elapsed, 1)))
        self._last, self._count = now, count

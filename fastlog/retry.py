"""How long to wait before something that failed is tried again."""

from __future__ import annotations


def pause_after(failures: int, least: float, most: float) -> float:
    """The pause after so many failures in a row, one or more, as ``Backoff`` has it: for who counts them anyway."""
    return min(most, least * 2.0 ** min(failures - 1, 30))


class Backoff:
    """Pauses between tries, each twice as long as the one before, from ``least`` up to ``most`` seconds.

    ``jitter``: by up to this share of it a pause is shortened at random, so that many do not come back at once. For one
    thread.
    """

    def __init__(self, least: float, most: float, jitter: float = 0.0) -> None:
        self._least = least
        self._most = most
        self._jitter = jitter
        self.seconds = least
        """The next pause, before it is shortened."""

    @property
    def is_first(self) -> bool:
        """Whether the next pause is as short as the first one."""
        return self.seconds == self._least

    def next(self) -> float:
        """Seconds to wait now; the pause after this one is longer."""
        pause, self.seconds = self.seconds, min(2 * self.seconds, self._most)
        if not self._jitter:
            return pause
        import random  # 5 ms that the start of a process does not need

        return pause * random.uniform(1 - self._jitter, 1)

    def reset(self) -> None:
        """It has worked: the next failure is a first one again."""
        self.seconds = self._least

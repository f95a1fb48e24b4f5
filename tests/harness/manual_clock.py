"""Time that tests move by hand."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until it is told to move; ``sleep`` moves it and returns at once."""

    def __init__(self, now_ms: int = 1_000_000_000_000) -> None:
        self._wall_ns = now_ms * 1_000_000
        self._monotonic_ns = 0

    def now_ms(self) -> int:
        """The wall time set by hand."""
        return self._wall_ns // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds moved forward since the clock was made."""
        return self._monotonic_ns

    def sleep(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        self.advance_ms(seconds * 1000)

    def advance_ms(self, milliseconds: float) -> None:
        """Move both clocks forward; a negative step is refused, as the monotonic clock never goes back."""
        if milliseconds < 0:
            raise ValueError("the clock cannot go back; use set_wall_ms for a jump of the wall clock")
        step = round(milliseconds * 1_000_000)
        self._wall_ns += step
        self._monotonic_ns += step

    def set_wall_ms(self, now_ms: int) -> None:
        """Let the wall clock jump, as an administrator or NTP does; the monotonic clock does not notice."""
        self._wall_ns = now_ms * 1_000_000

"""Where time comes from, so that tests can move it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that depends on time asks for; every method is safe from any thread."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, for times that are stored or shown."""

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back, for intervals within one process."""

    def sleep(self, seconds: float) -> None:
        """Block for ``seconds``."""


class SystemClock:
    """The clocks of the machine, for everything but tests."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds of the monotonic clock."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Block for ``seconds``."""
        time.sleep(seconds)

"""Time that a test moves: for loops of one thread that ask ``time`` for the time and wait in ``select.poll``.

Descriptors are real. Waiting for them lets what is planned for that time happen, one after the other and each at its
moment, so that a test of ten seconds takes milliseconds and comes out the same on every machine.
"""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable

MOST_WAITS = 100_000


class VirtualTime:
    """Stands for the modules ``time`` and ``select`` in the code under test; ``passed`` counts from its making."""

    POLLIN, POLLOUT, POLLERR, POLLHUP = select.POLLIN, select.POLLOUT, select.POLLERR, select.POLLHUP

    def __init__(self) -> None:
        self.begun = self.now = float(int(time.monotonic()) + 1)  # whole, so that differences are exact
        self.waits: list[float] = []
        """How long each wait in ``poll`` was asked to be, in seconds."""
        self._planned: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return self.now - self.begun

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Plan something for ``seconds`` from now."""
        self.at(self.passed + seconds, action)

    def at(self, passed: float, action: Callable[[], object]) -> None:
        """Plan something for a moment, which has not come yet."""
        heapq.heappush(self._planned, (self.begun + passed, next(self._numbers), action))

    def advance(self, seconds: float) -> None:
        """Let time pass, and happen what is planned in it."""
        self.wait(seconds, lambda: False)

    def wait(self, seconds: float | None, ready: Callable[[], object]) -> None:
        """Let time pass until something is ready, at most so many seconds (None: as long as anything is planned)."""
        until = None if seconds is None else self.now + max(seconds, 0.0)
        while not ready():
            if not self._planned or (until is not None and self._planned[0][0] > until):
                assert until is not None, "it waits for something that nobody has planned"
                self.now = max(self.now, until)
                return
            due, _, action = heapq.heappop(self._planned)
            self.now = max(self.now, due)
            action()

    # -- what the code under test calls ------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """As ``time.monotonic``."""
        return self.now

    def monotonic_ns(self) -> int:
        """As ``time.monotonic_ns``."""
        return round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        """As ``time.sleep``; counted as a wait."""
        self.waits.append(seconds)
        assert len(self.waits) < MOST_WAITS, "it spins"
        self.advance(seconds)

    def poll(self) -> _Poll:
        """As ``select.poll``."""
        return _Poll(self)


class _Poll:
    """Real descriptors, waited for in virtual time."""

    def __init__(self, machine: VirtualTime) -> None:
        self._machine = machine
        self._real = select.poll()

    def register(self, fd: int, events: int) -> None:
        """As that of ``select.poll``."""
        self._real.register(fd, events)

    def unregister(self, fd: int) -> None:
        """As that of ``select.poll``."""
        self._real.unregister(fd)

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        """As that of ``select.poll``."""
        seconds = None if milliseconds is None or milliseconds < 0 else milliseconds / 1000
        self._machine.waits.append(-1.0 if seconds is None else seconds)
        assert len(self._machine.waits) < MOST_WAITS, "it spins"
        found: list[tuple[int, int]] = []

        def ready() -> bool:
            found[:] = self._real.poll(0)
            return bool(found)

        self._machine.wait(seconds, ready)
        return found

"""Which old segments go: by age, by size, or by a policy of the user's own; the keeper carries it out.

Source: Kafka 0.7.2 (``LogManager.cleanupLogs``), with append times instead of file times.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastlog.errors import ConfigError


class HeldSegment(NamedTuple):
    """One segment as a policy sees it: first offset, flushed bytes, times of first and last append (last 0: empty)."""

    base: int
    size: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a policy is asked about: one partition, its settings, its segments oldest first (the last one is active)."""

    topic: str
    partition: int
    segments: Sequence[HeldSegment]
    now_ms: int
    retention_ms: int
    retention_bytes: int | None


Policy = Callable[[Held], int]
"""Returns how many of the oldest segments to drop, 0 to ``len(held.segments)``."""


def by_age_and_size(held: Held) -> int:
    """0.7's rules: segments whose last append is older than the time, then the oldest while at least the size stays."""
    drop = 0
    for segment in held.segments:
        if not segment.last_ms or held.now_ms - segment.last_ms <= held.retention_ms:
            break
        drop += 1
    if held.retention_bytes is not None:
        surplus = sum(segment.size for segment in held.segments[drop:]) - held.retention_bytes
        for segment in held.segments[drop:]:
            if not segment.size or surplus - segment.size < 0:
                break
            surplus -= segment.size
            drop += 1
    return drop


PLAUSIBLE_MS = 1_577_836_800_000
"""2020. A clock that shows less has not been set: the machine has no battery for it, or has not asked for the time."""
AHEAD_MS = 60_000
"""So much may a message's time be ahead of the clock; more, and the clock was wrong when it was appended."""


class BelievedTimes:
    """When segments got their last message, also of those that a wrong clock put into the far past or the future.

    Such a segment counts as old as it is known here: from the first question on, or from the keeper's next start. So a
    clock that was a year ahead holds nothing for a year, and one that stood at 1970 drops nothing that is new.
    """

    def __init__(self) -> None:
        self._first_asked: dict[tuple[int, int], int] = {}

    def last_ms(self, segment: tuple[int, int], last_ms: int, now_ms: int) -> int:
        """The time to go by for a segment, by slot and index, whose last append is said to be at ``last_ms``."""
        if now_ms < PLAUSIBLE_MS or PLAUSIBLE_MS <= last_ms <= now_ms + AHEAD_MS:
            return last_ms
        return min(self._first_asked.setdefault(segment, now_ms), now_ms)

    def forget(self, slot: int, head: int) -> None:
        """Segments of a slot below an index are gone."""
        for segment in [item for item in self._first_asked if item[0] == slot and item[1] < head]:
            del self._first_asked[segment]


class SteadyClock:
    """The time that retention goes by: the wall clock, but never ahead of what has really passed since it was made.

    A clock that jumps forward must not delete data. Time that the machine was suspended has really passed. Only a clock
    that had not been set yet is followed, once, to the first time that can be one.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, passed_ns: Callable[[], int] | None = None) -> None:
        self._wall_ns = wall_ns
        self._passed_ns = passed_ns or (lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        self._ahead_ns = self._wall_ns() - self._passed_ns()
        self._is_set = self._wall_ns() >= PLAUSIBLE_MS * 1_000_000

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        self._look()
        return min(self._wall_ns(), self._passed_ns() + self._ahead_ns) // 1_000_000

    def jump_ms(self) -> int:
        """How far the wall clock is ahead of the steady one; negative when it was set back."""
        self._look()
        return (self._wall_ns() - self._passed_ns() - self._ahead_ns) // 1_000_000

    def _look(self) -> None:
        if not self._is_set and (wall_ns := self._wall_ns()) >= PLAUSIBLE_MS * 1_000_000:
            self._ahead_ns = wall_ns - self._passed_ns()
            self._is_set = True


def load_policy(dotted: str) -> Policy:
    """Return the callable named ``module:callable``, or 0.7's rules for an empty name.

    Raises:
        ConfigError: it cannot be imported or called.
    """
    if not dotted:
        return by_age_and_size
    module_name, _, attribute = dotted.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"log.retention.policy: cannot load {dotted}: {error}") from error
    if not callable(found):
        raise ConfigError(f"log.retention.policy: {dotted} cannot be called")
    return found

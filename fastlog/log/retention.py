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


class SteadyClock:
    """The time that retention goes by: the wall clock, but never ahead of what has really passed since it was made.

    A clock that jumps forward must not delete data. Time that the machine was suspended has really passed.
    """

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, passed_ns: Callable[[], int] | None = None) -> None:
        self._wall_ns = wall_ns
        self._passed_ns = passed_ns or (lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        self._ahead_ns = self._wall_ns() - self._passed_ns()

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return min(self._wall_ns(), self._passed_ns() + self._ahead_ns) // 1_000_000

    def jump_ms(self) -> int:
        """How far the wall clock is ahead of the steady one; negative when it was set back."""
        return (self._wall_ns() - self._passed_ns() - self._ahead_ns) // 1_000_000


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

"""What every measurement finds, of producers as of consumers."""

from __future__ import annotations

from dataclasses import dataclass

MEGABYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How much went through in how long; with ``complete`` False what there was when it stopped."""

    complete: bool
    started_ms: int
    """Milliseconds since 1970, as ``ended_ms``."""
    ended_ms: int
    messages: int
    payload_bytes: int
    seconds: float
    """Until the last message had come, or was visible; when not complete, until it stopped."""
    notes: tuple[str, ...] = ()
    timeline: tuple[tuple[float, float], ...] = ()
    """(seconds since the start, messages a second since the point before), of what was received or handed over."""

    @property
    def messages_per_second(self) -> float:
        """Messages a second, over ``seconds``."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0

    @property
    def mb_per_second(self) -> float:
        """Payload bytes over ``seconds``, in units of 1,048,576."""
        return self.payload_bytes / MEGABYTE / self.seconds if self.seconds > 0 else 0.0

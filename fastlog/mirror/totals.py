"""What a mirror has done with a source."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Counts:
    """What was done with one topic since the start. Written under the source's lock."""

    entries: int = 0
    bytes: int = 0
    left_out: int = 0


@dataclass
class Totals:
    """The same for all topics, with what was sent more than once."""

    entries: int = 0
    bytes: int = 0
    left_out: int = 0
    repeated: int = 0
    doubtful: int = 0
    by_topic: dict[str, Counts] = field(default_factory=dict)

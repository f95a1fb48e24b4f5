"""What a scan is made of: parts of partitions, and where they come from."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fastlog.segment_files import MAX_OFFSET

Offsets = int | Mapping[int, int] | None


class Part(NamedTuple):
    """Offsets of one partition, from ``start`` up to before ``end``, that are read in their order."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What is wanted. Offsets are those of all partitions, or by partition; times are ms since 1970."""

    partitions: frozenset[int] | None = None
    start: Offsets = None
    end: Offsets = None
    since_ms: int | None = None
    until_ms: int | None = None

    def has(self, partition: int) -> bool:
        """Whether anything of this partition is."""
        return self.partitions is None or partition in self.partitions

    def cut(self, part: Part) -> Part | None:
        """What of the part lies within the offsets; None: nothing."""
        start = max(part.start, _of(self.start, part.partition, 0))
        end = min(part.end, _of(self.end, part.partition, MAX_OFFSET))
        return part._replace(start=start, end=end) if start < end else None


class ScanSource(Protocol):
    """Where a scan reads. One for each kind of topic and way to it; what its batches look like is its own to say."""

    @property
    def unit(self) -> str:
        """What offsets count: bytes or records."""

    def parts(self, bounds: Bounds) -> list[Part]:
        """What there is now within the bounds; later readers get exactly that."""

    def columns(self) -> Sequence[str]:
        """The names of all columns that the source has."""

    def schema(self, columns: Sequence[str], topics: Sequence[str]) -> Any:
        """The Arrow schema of a batch with these columns."""

    def batches(
        self, parts: Sequence[Part], columns: Sequence[str], topics: Sequence[str], *, window_bytes: int | None = None
    ) -> Generator[tuple[int, Any]]:
        """The messages of the parts, one part after the other: how many offsets it went on, and an Arrow record batch.

        Parts are those of ``parts``, or lie within them. ``window_bytes``: what is read at once, in place of what the
        source was made with. What the source opens is closed when the iterator ends or is closed.
        """


def _of(offsets: Offsets, partition: int, default: int) -> int:
    if isinstance(offsets, Mapping):
        return offsets.get(partition, default)
    return default if offsets is None else offsets

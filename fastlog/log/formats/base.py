"""What recovery, fsck, the keeper and tools ask of a log format, and what they get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fastlog.log.files import FileOps
from fastlog.log.slots import IndexState
from fastlog.message import DEFAULT_LIMITS, DeepLimits
from fastlog.segment_files import SegmentFile

ANY_OFFSET = -1
CANDIDATE_COST_BYTES = 512
"""What a place costs of a ``SearchBudget`` that looks like the beginning of an entry, besides the bytes checked."""


class FileScan(NamedTuple):
    """How far a file is whole and valid: ``end`` is a position, the counts are of the entries before it."""

    end: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    wrappers: int
    suspicious: int
    status: int
    found: str
    """What stands at ``end``, in words; ``status`` is the format's own number for it."""


class SearchBudget:
    """What a search behind damage may cost, in bytes looked at; ``exhausted`` says that it was not enough.

    Hostile bytes can look like the beginning of a message everywhere, each time with megabytes to check.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.bytes_left = limit_bytes
        self.exhausted = False

    def take(self, count: int) -> bool:
        """Consume ``count`` bytes of the budget; False when it has fewer left."""
        if self.bytes_left is not None:
            self.bytes_left -= count
            self.exhausted = self.exhausted or self.bytes_left < 0
        return not self.exhausted


@dataclass(slots=True)
class DeepFindings:
    """What a deep scan adds: positions, with the reason where a compressed set does not hold what it should.

    ``suspicious``: plain messages that begin like compressed data; the codec bit may be lost, which no checksum sees.
    """

    limits: DeepLimits = DEFAULT_LIMITS
    damaged_wrappers: list[tuple[int, str]] = field(default_factory=list)
    suspicious: list[int] = field(default_factory=list)
    messages: int = 0


class DumpedEntry(NamedTuple):
    """One entry as it stands in a file, for a person to look at: its length is right, the rest need not be.

    One that stands ``inside`` of another has the offset of that one, and ``end`` as well.
    """

    offset: int
    next_offset: int
    end: int
    """The position in the file behind the entry."""
    valid: bool
    payload: bytes | None
    """None: it has none, or what it holds is shown as entries inside of it."""
    text: str
    """Its line, in the words of the tool that people know the format by."""
    fields: Mapping[str, Any]
    """What the format says of it, for a JSON object."""
    inside: bool = False
    key: bytes | None = None


class LogFormat(Protocol):
    """One log format; implementations hold no state and serve any process."""

    @property
    def name(self) -> str:
        """The format's name in the side file."""

    @property
    def suffix(self) -> str:
        """The end of its segments' file names."""

    @property
    def is_dense(self) -> bool:
        """Whether offsets count messages. Else they are positions in the partition's stream, and stay so for ever."""

    @property
    def is_for_kafka07(self) -> bool:
        """Whether clients of Kafka 0.7, and fastlog's own, can read and write such a log."""

    @property
    def has_epochs(self) -> bool:
        """Whether the leader's epoch stands in what is appended."""

    @property
    def is_sequenced(self) -> bool:
        """Whether producers may number what is appended, and have it stored once."""

    @property
    def companions(self) -> tuple[str, ...]:
        """The ends of the names of the other files that each segment has; they can be lost."""

    def settle_indexes(
        self, files: FileOps, segments: Sequence[SegmentFile], *, is_clean: bool, durable: int = 0
    ) -> IndexState:
        """Make the indexes of a log's segments what they should be, and return what its end says of them.

        ``segments`` are those that are served, with the bytes that are; what stands behind them in the directory goes.
        ``is_clean``: they are as a clean stop left them; else those of the segments that lie below the offset
        ``durable`` have been synced, and of others any bytes may have been lost with the power. Indexes that cannot be
        written are left out, and that is said.
        """

    def largest_ms(self, files: FileOps, segment: SegmentFile) -> int | None:
        """Return the largest time of a sealed segment's messages, where that can be known without reading them."""

    def end_offset(self, segment: SegmentFile) -> int:
        """Return the offset behind a segment's bytes: that of the next message."""

    def position(self, segment: SegmentFile, offset: int) -> int:
        """Return where in a segment's file the entry of an offset begins, which may lie outside of it."""

    def first_boundary(self, path: Path, start: int, target: int, end: int, most_bytes: int) -> int:
        """Return the first boundary between entries at or behind position ``target``, walking from one at ``start``.

        Only lengths are looked at. Less far where the walk ends early: at ``end``, before what can be no entry, and
        once it has passed ``most_bytes``.

        Raises:
            OSError: the file cannot be read.
        """

    def is_entry(self, path: Path, position: int, end: int) -> bool:
        """Whether a whole and valid entry begins at a position and ends at ``end`` at the latest.

        Raises:
            OSError: the file cannot be read.
        """

    def scan(
        self,
        files: FileOps,
        fd: int,
        start: int,
        end: int,
        deep: DeepFindings | None = None,
        *,
        follows: int | None = None,
    ) -> FileScan:
        """Return how far ``[start, end)`` of an open segment is whole and valid; ``start`` is where an entry begins.

        With ``follows`` the first entry has that offset, or ``ANY_OFFSET``, and each of the others the one behind its
        predecessor; where offsets are positions they always have.
        """

    def find_entry(self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget) -> int | None:
        """Return where the first whole and valid entry behind a damaged one begins, or None."""

    def count_entries(
        self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget, first_may_be_valid: bool = False
    ) -> int:
        """Return how many whole and valid entries can be found behind a damaged one."""

    def dump(
        self, files: FileOps, fd: int, segment: SegmentFile, deep: DeepFindings | None = None
    ) -> Iterator[DumpedEntry]:
        """Yield every entry of an open segment, going on behind one that is not valid as far as its length is right.

        With ``deep``, what is inside of an entry follows it, and one that does not open is in ``deep.damaged_wrappers``
        when the next one is yielded. Bytes behind the last entry are none of an entry.
        """


def count_found(
    made: LogFormat, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget, first_may_be_valid: bool
) -> int:
    """As ``LogFormat.count_entries``, by the format's own search and scan."""
    count = 0
    position: int | None = damaged
    if not first_may_be_valid:
        position = made.find_entry(files, fd, damaged, end, budget)
    while position is not None:
        found = made.scan(files, fd, position, end)
        count += found.count
        if found.end >= end or not budget.take(found.end - position):
            break
        position = made.find_entry(files, fd, found.end, end, budget)
    return count

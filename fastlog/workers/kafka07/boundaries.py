"""Where messages begin between two offsets of a log, found by walking lengths through its segments.

Such places never change, so some of those that a walk passed are kept: the next one begins near to where it goes. Who
plans a large job asks more than once, and the next job asks the same again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastlog.log.formats import LogFormat
from fastlog.log.slots import Segment
from fastlog.segment_files import SegmentFile, segment_name

MAX_WALK_BYTES = 64 << 20
"""One request walks so far, about 20 ms, so that no other one waits for long."""
PEEK_BYTES = 1 << 20
MARK_BYTES = 1 << 20
"""Distance of the places that are kept."""
MAX_MARKS = 1 << 18
_FINER = 16  # what was answered is often asked for again, so it may lie closer to others
_NEAR_BYTES = 8 << 20


class KnownBoundaries:
    """Message boundaries of logs, at most ``most`` of all logs together; for one thread.

    The log that was asked for longest ago is forgotten first.
    """

    def __init__(self, most: int = MAX_MARKS) -> None:
        self._most = most
        self._count = 0
        self._marks: OrderedDict[tuple[int, int], array[int]] = OrderedDict()

    def below(self, log: tuple[int, int], offset: int) -> int | None:
        """The last known boundary at or before an offset; None: none is known."""
        marks = self._marks.get(log)
        if marks is None:
            return None
        self._marks.move_to_end(log)
        place = bisect_right(marks, offset)
        return marks[place - 1] if place else None

    def between(self, log: tuple[int, int], first: int, last: int) -> int | None:
        """The first one from ``first`` to ``last``."""
        marks = self._marks.get(log, ())
        place = bisect_left(marks, first)
        return marks[place] if place < len(marks) and marks[place] <= last else None

    def add(self, log: tuple[int, int], offset: int, apart: int) -> None:
        """Keep one, unless there is one nearer than ``apart`` bytes."""
        marks = self._marks.setdefault(log, array("q"))
        self._marks.move_to_end(log)
        place = bisect_left(marks, offset)
        if (place and offset - marks[place - 1] < apart) or (place < len(marks) and marks[place] - offset < apart):
            return
        marks.insert(place, offset)
        self._count += 1
        while self._count > self._most:
            _, oldest = self._marks.popitem(last=False)
            self._count -= len(oldest)


class Stream:
    """Offsets of a partition as positions in its stream, and back, as its segments and its format say."""

    def __init__(self, segments: Sequence[Segment], directory: Path, log_format: LogFormat) -> None:
        """``segments`` are those that the broker holds, oldest first."""
        self.format = log_format
        self.first_offset = segments[0].base
        self.files: dict[int, Path] = {}
        """Segment files by the offset that they begin with."""
        self._starts = [item.start for item in segments]
        self._segments: list[SegmentFile] = []
        for item in segments:
            path = self.files[item.start] = directory / segment_name(item.base, log_format.suffix)
            self._segments.append(SegmentFile(item.base, path, 0))

    def position(self, offset: int) -> int:
        """Where the message of an offset begins; the offset is at or behind the first one."""
        at = bisect_right(self._segments, offset, key=lambda item: item.base) - 1
        return self._starts[at] + self.format.position(self._segments[at], offset)

    def offset(self, position: int) -> int:
        """The offset of the message that begins at a position."""
        at = bisect_right(self._starts, position) - 1
        return self.format.end_offset(self._segments[at]._replace(size=position - self._starts[at]))


class Walk:
    """The search of one request through one log."""

    def __init__(
        self, log: tuple[int, int], end: int, files: Mapping[int, Path], log_format: LogFormat, known: KnownBoundaries
    ) -> None:
        """``log`` is topic and partition, ``end`` where its visible part ends, ``files`` are by where they begin.

        All of them, and what is asked and answered, are positions in the partition's stream.
        """
        self._end = end
        self._log = log
        self._files = files
        self._format = log_format
        self._bases = sorted(files)
        self._known_boundaries = known
        self._room = MAX_WALK_BYTES
        self._at = 0
        self._sure = True
        """Every message between a segment's beginning and this place was passed, so it is a boundary for certain."""

    def boundaries(self, start: int, end: int, step: int, limit: int) -> Sequence[int]:
        """Message boundaries in [start, end], at least ``step`` apart but for the last one, and not much more.

        The first is the first that there is. The last one may be nearer: it is ``end`` where that is a boundary, or how
        far one request walks; whoever wants more asks again from there.
        """
        points: list[int] = []
        target = start
        self._at = self._known(start, start)
        if start - self._at > _NEAR_BYTES and self._is_message(start):
            self._at, self._sure = start, False  # then nothing before it has to be walked
        while len(points) < limit and target <= end and self._room > 0:
            passed = (
                self._known_boundaries.between(self._log, target, min(target + step // _FINER, end)) if points else None
            )
            if passed is not None:
                self._at, self._sure = passed, True
            else:
                self._go(target)
            if self._at < target:
                break  # the walk ended early: at its limit, or before something that is no message
            if self._at > end:
                return points
            points.append(self._at)
            if self._sure:
                self._known_boundaries.add(self._log, self._at, MARK_BYTES // _FINER)
            target = self._at + step
        if points and len(points) < limit:
            last = self._last(end)
            if last > points[-1]:
                points.append(last)
        return points

    def _last(self, end: int) -> int:
        """``end`` where that is a boundary; else how far the walk came before it."""
        if end == self._end:
            return end
        before = self._at
        self._go(end)
        return self._at if self._at <= end else before

    def _known(self, offset: int, otherwise: int) -> int:
        """The last place at or before an offset that is a boundary for certain."""
        place = bisect_right(self._bases, offset)
        found = self._bases[place - 1] if place else otherwise
        return max(found, self._known_boundaries.below(self._log, offset) or found)

    def _go(self, target: int) -> None:
        """On to the first boundary from ``target`` on; less far when the walk ends before."""
        known = self._known(target, self._at)
        if known > self._at:
            self._at, self._sure = known, True
        while self._at < target and self._room > 0:
            place = bisect_right(self._bases, self._at)
            base = self._bases[place - 1]
            stop = min([self._end, *self._bases[place : place + 1]])
            wanted = min(target, stop, self._at + MARK_BYTES)
            if wanted <= self._at:
                return
            reached = base + self._format.first_boundary(
                self._files[base], self._at - base, wanted - base, stop - base, self._room
            )
            self._room -= reached - self._at
            self._at = reached
            if reached < wanted:
                return
            if self._sure:
                self._known_boundaries.add(self._log, reached, MARK_BYTES)

    def _is_message(self, offset: int) -> bool:
        """Whether a whole message starts at ``offset``."""
        place = bisect_right(self._bases, offset)
        base = self._bases[place - 1]
        stop = min([self._end, *self._bases[place : place + 1]])
        end = min(stop - base, offset - base + PEEK_BYTES)
        return self._format.is_entry(self._files[base], offset - base, end)

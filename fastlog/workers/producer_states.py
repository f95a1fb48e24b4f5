"""What the keeper does for idempotent producers: snapshots, and a word when too many of them are forgotten."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

from fastlog.log import producer_snapshots
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import KEEPER
from fastlog.log.files import FileOps
from fastlog.log.flush_marks import NO_ROOM
from fastlog.log.formats import FORMATS, format_name
from fastlog.log.slots import Segment, SlotView
from fastlog.segment_files import SegmentFile, list_segments, segment_name

SNAPSHOT_BYTES = 64 << 20
"""Appended since the last snapshot when another one is due: a start reads the heads in as many."""
FORGOTTEN_SECONDS = 60.0
"""Between two lines about producers whose state gave way too early."""

log = logging.getLogger(__name__)


class ProducerStates:
    """For the keeper; of different partitions, several of its threads at once."""

    def __init__(
        self, arena: Arena, directory: Callable[[SlotView], Path], expiry_ms: int, files: FileOps | None = None
    ) -> None:
        self._arena = arena
        self._directory = directory
        self._expiry_ms = expiry_ms
        self._files = files or FileOps()
        self._written: dict[int, int] = {}  # slot: the offset of the last snapshot that is durable
        self._at: dict[int, tuple[int, int]] = {}  # slot: position and segments at that checkpoint
        self._unnumbered: dict[int, int] = {}  # slot: the offset below which its side file says that none is numbered
        self._forgotten = 0  # producers, as last reported
        self._told_at = -FORGOTTEN_SECONDS

    def forget(self, index: int) -> None:
        """Another partition may live in a slot."""
        self._written.pop(index, None)
        self._at.pop(index, None)
        self._unnumbered.pop(index, None)

    def unnumbered_below(self, index: int, offset: int) -> None:
        """The side file of a slot's partition says so."""
        self._unnumbered[index] = offset

    def are_there(self, view: SlotView) -> bool:
        """Whether producers have numbered batches of a partition: asked behind ``view``, of all that it speaks of."""
        return FORMATS[str(format_name(view.format))].is_sequenced and self._arena.sequenced(view.index)

    def checkpoint(self, view: SlotView, final: bool) -> None:
        """At a checkpoint: write what is known, if a start would read much without it, at a roll and at a stop."""
        position, tail = self._at.get(view.index, (-SNAPSHOT_BYTES, 0))
        if (final or view.flushed_end - position >= SNAPSHOT_BYTES or view.table_tail != tail) and self.write(
            view
        ) is None:
            self._at[view.index] = view.flushed_end, view.table_tail

    def write(self, view: SlotView) -> OSError | None:
        """Write down, durably, what is known at the flushed end and where its segment begins; why not, if that failed.

        Of the snapshot before and the heads of batches since, so that nobody waits for it. The one where the segment
        begins is what Apache Kafka goes by when it makes that segment's indexes anew: it drops later ones then.
        """
        if self._written.get(view.index) == view.flushed_offset:
            return None
        directory, rows = self._directory(view), self._arena.segments(view.index)
        active = next(row for row in reversed(rows) if row.start <= view.flushed_end)
        try:
            if active.base not in producer_snapshots.listed(directory, self._files):
                self._write(view, rows, active.start, active.base, active.base)
            if view.flushed_offset != active.base:
                self._write(view, rows, view.flushed_end, view.flushed_offset, active.base)
        except OSError as error:
            log.warning("producer snapshot not written path=%s reason=%s: tried again", directory, error)
            return error
        self._written[view.index] = view.flushed_offset
        return None

    def _write(self, view: SlotView, rows: Sequence[Segment], end: int, offset: int, base: int) -> None:
        """Write what is known at an offset, that of a position of the log; the one at ``base`` is kept beside it."""
        directory, now_ms = self._directory(view), time.time_ns() // 1_000_000
        made = FORMATS[str(format_name(view.format))]
        # those that are on their way out are perhaps in no snapshot yet
        segments = [item for item in list_segments(directory, made.suffix) if item.base < rows[0].base]
        for row, following in zip_longest(rows, rows[1:]):
            if row.start <= end and row.base <= offset:
                size = min(end, following.start if following is not None else end) - row.start
                segments.append(SegmentFile(row.base, directory / segment_name(row.base, made.suffix), size))
        known = producer_snapshots.learn(
            directory,
            made,
            segments,
            offset,
            self._unnumbered.get(view.index, 0),
            now_ms,
            self._files,
            tail_bytes=0,
            turn=lambda: self._arena.beat(KEEPER),
        )
        known.table.forget_before(now_ms - self._expiry_ms)
        producer_snapshots.write(directory, offset, known.table, self._files, keep=base)

    def outlive(self, view: SlotView, start: int) -> bool:
        """Whether what is known of producers outlives the segments before ``start``; on a full disk these go anyway."""
        if not self.are_there(view) or self._written.get(view.index, -1) >= start:
            return True
        error = self.write(view)
        if error is None or error.errno not in NO_ROOM:
            return error is None
        log.warning(
            "segments dropped and no room for a producer snapshot topic=%r partition=%d: if the broker starts before "
            "there is, what producers send again may be stored twice",
            view.topic,
            view.partition,
        )
        return True

    def tell_of_forgotten(self, now: float) -> None:
        """A line, once a minute at most, when state of producers gives way although they may send again."""
        name = "producers_forgotten_early"
        count = sum(self._arena.counters(process)[name] for process in range(self._arena.processes))
        if count > self._forgotten and now >= self._told_at + FORGOTTEN_SECONDS:
            log.warning(
                "idempotent producers forgotten within two minutes of their last batch count=%d: more of them write to "
                "a partition than there is room for; what they send again may be stored twice",
                count - self._forgotten,
            )
            self._forgotten, self._told_at = count, now

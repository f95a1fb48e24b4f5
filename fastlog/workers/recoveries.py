"""The way back into service for partitions that a disk has put out of it, while all others serve.

A disk that failed a sync or a write may be well again in a second. Then the keeper ends the life of the partition's
slot, in a way that leaves its visible part readable; when the flusher has no job of it in hand, a thread recovers its
files as a start would, with nothing below the flushed end in question; and the partition returns in another slot.
Where that fails it stays as it was, and it is tried again later. What was found damaged at the start is for a person
to look at.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastlog import logs
from fastlog.errors import LogError
from fastlog.log import _files, parallel
from fastlog.log._append import Appender, end_life
from fastlog.log._arena import STATE_NO_FLUSH, WHY_NAME, WHY_START, Arena
from fastlog.log._shared_memory import FLUSHER, KEEPER
from fastlog.log.files import FileOps
from fastlog.log.flush_marks import clear_mark
from fastlog.log.formats import format_name
from fastlog.log.manager import LogManager
from fastlog.log.recovered import RecoveredPartition
from fastlog.log.recovery import recover_partition
from fastlog.log.slots import SlotView
from fastlog.segment_files import partition_directory_name
from fastlog.workers.disk_probe import write_unnamed

log = logging.getLogger(__name__)

MOST_SECONDS = 60.0
"""The longest wait between two tries; it doubles with each that fails."""
MOST_AT_ONCE = 16
"""Partitions that are recovered at once: as many as there are spare slots."""
TURN_SECONDS = 0.01
_FOR_A_PERSON = (WHY_START, WHY_NAME)


@dataclass(slots=True)
class _Work:
    """Partitions of one log directory that are recovered together, and the thread that waits for its disk."""

    directory: int
    views: list[SlotView]
    is_out: bool = False
    """Those whose slots are no longer alive."""
    results: list[RecoveredPartition] | None = None
    problem: str = ""
    thread: threading.Thread | None = None
    waits_for: dict[int, int] = field(default_factory=dict)


class Recoveries:
    """Recovers partitions that failed while the broker runs; used by the keeper's main thread alone."""

    def __init__(
        self, arena: Arena, appender: Appender, manager: LogManager, files: FileOps, retry_seconds: float
    ) -> None:
        """``retry_seconds``: when a partition is tried first; 0: never."""
        self._arena = arena
        self._appender = appender
        self._manager = manager
        self._files = files
        self._tries: dict[tuple[str, int], tuple[float, float]] = {}  # partition: when to try it, how long to wait then
        self._retry_seconds = retry_seconds
        self._work: _Work | None = None

    def consider(self, view: SlotView) -> None:
        """A partition is out of service: have it tried, if it may come back by itself."""
        why = (view.state >> 8) & 0xFF
        flushed = view.flushed_end == view.log_end or view.state & STATE_NO_FLUSH
        pause = self._retry_seconds
        if pause and why not in _FOR_A_PERSON and flushed and format_name(view.format) is not None:
            self._tries.setdefault((view.topic, view.partition), (time.monotonic() + pause, pause))

    def turn(self) -> float | None:
        """Do what can be done now; in how many seconds there is more, None: when it is asked to consider something."""
        if self._work is None:
            self._work = self._left_over() or self._next()
        work = self._work
        if work is None:
            now = time.monotonic()
            # what is due already waits for a deletion, which a disk may hold up for long
            return max(TURN_SECONDS, min((due for due, _ in self._tries.values()), default=now + MOST_SECONDS) - now)
        if work.thread is not None and work.thread.is_alive():
            return TURN_SECONDS
        work.thread = None
        if work.problem:
            self._put_off(work.views, work.problem)
            self._work = None
        elif not work.is_out:
            self._take_out(work)
        elif work.results is None:
            if all(self._arena.seen(FLUSHER) >= change for change in work.waits_for.values()):
                self._begin(work, self._recover)
        elif self._bring_back(work, work.results):
            self._work = None
        return TURN_SECONDS

    def _left_over(self) -> _Work | None:
        """The work that a former keeper began and did not finish."""
        rows = self._arena.returning()
        if not rows:
            return None
        directory = rows[0].directory
        views = [self._arena.shown_view(row.index) for row in rows if row.directory == directory][:MOST_AT_ONCE]
        change = self._arena.change_count
        work = _Work(directory, [view for view in views if view is not None], is_out=True)
        work.waits_for = {view.index: change for view in work.views}
        return work

    def _next(self) -> _Work | None:
        """Partitions whose time has come, if there are; first their disk is tried."""
        now = time.monotonic()
        if all(due > now for due, _ in self._tries.values()) or self._arena.leaving():
            return None  # the spare slots are for one lot at a time
        out = {(view.topic, view.partition): view for view in self._arena.views() if view.state}
        for place in self._tries.keys() - out.keys():
            del self._tries[place]
        due = [out[place] for place, (when, _) in self._tries.items() if when <= now]
        if not due:
            return None
        chosen = [view for view in due if view.directory == due[0].directory][:MOST_AT_ONCE]
        work = _Work(due[0].directory, chosen)
        self._begin(work, self._try_disk)
        return work

    def _begin(self, work: _Work, what: Callable[[_Work], None]) -> None:
        work.thread = threading.Thread(target=what, args=(work,), name="fastlog-recovery", daemon=True)
        work.thread.start()

    def _try_disk(self, work: _Work) -> None:
        try:
            write_unnamed(self._arena.log_dirs[work.directory])
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # reads and syncs may go well on a full one
                work.problem = error.strerror or str(error)

    def _take_out(self, work: _Work) -> None:
        """End the lives of the partitions whose append locks are free; the others stay for the next try."""
        if not self._arena.create_lock():
            self._arena.wait_for_creation(KEEPER)
            return
        taken = []
        try:
            for view in work.views:
                now = self._arena.live_view(view.index)
                if now is not None and now.life == view.life and end_life(self._appender, view.index, True):
                    work.waits_for[view.index] = self._arena.change_count
                    taken.append(now)
        finally:
            self._arena.create_unlock()
        work.views = taken
        work.is_out = True

    def _recover(self, work: _Work) -> None:
        def recover(view: SlotView) -> RecoveredPartition:
            return recover_partition(
                self._directory(view),
                view.topic,
                view.partition,
                clean_end=None,
                files=self._files,
                in_doubt=True,
                least=view.flushed_offset,
                log_start=view.kept_start,
            )

        work.results = parallel.for_each([(view.directory, view) for view in work.views], recover)
        _files.reach("return.recovered")

    def _bring_back(self, work: _Work, results: list[RecoveredPartition]) -> bool:
        """Let them live again: elsewhere when they are well, else where they were; False when the lock is taken."""
        if not self._arena.create_lock():
            self._arena.wait_for_creation(KEEPER)
            return False
        try:
            for view, found in zip(work.views, results, strict=True):
                problem = found.reason or self._back(view, found)
                if problem:
                    self._arena.revive(view.index)
                    self._put_off([view], problem)
        finally:
            self._arena.create_unlock()
        return True

    def _back(self, view: SlotView, found: RecoveredPartition) -> str:
        """Let a partition live in another slot; why it cannot, empty: it does."""
        place = view.topic, view.partition
        if all((item.topic, item.partition) != place for item in self._arena.views()):
            # else a former keeper has died behind this
            try:
                self._manager.put_back(view, replace(found, created_ms=view.created_ms))
            except LogError as error:
                return str(error)
        _files.reach("return.added")
        self._arena.succeed(view.index)
        self._tries.pop(place, None)
        clear_mark(Path(self._arena.log_dirs[view.directory]), view.index, self._files)
        log.warning(
            "back in service topic=%r partition=%d offset=%d lost_bytes=%d, after: %s",
            *place,
            found.log_end,
            found.truncated_bytes,
            self._arena.describe_state(view.state),
        )
        return ""

    def _put_off(self, views: list[SlotView], problem: str) -> None:
        now = time.monotonic()
        for view in views:
            _, pause = self._tries.get((view.topic, view.partition), (0.0, self._retry_seconds or MOST_SECONDS))
            self._tries[view.topic, view.partition] = now + pause, min(2 * pause, max(MOST_SECONDS, pause))
            line = "stays out of service topic=%r partition=%d path=%s reason=%s: tried again in %d s"
            extra = logs.about("stays out", view.topic, view.partition)
            log.warning(line, view.topic, view.partition, self._directory(view), problem, pause, extra=extra)

    def _directory(self, view: SlotView) -> Path:
        return Path(self._arena.log_dirs[view.directory], partition_directory_name(view.topic, view.partition))

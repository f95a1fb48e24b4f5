"""The keeper's part of deleting topics: from a marker in a log directory until the last file has gone.

Nobody waits for it but who asked. Every step can be done twice, so that the next keeper, or the next start, goes on
where this one was killed: what is done stands in the arena (whose life has ended) and in the log directories (see
``log.deletion``).
"""

from __future__ import annotations

import itertools
import logging
import time
from pathlib import Path

from fastlog import logs
from fastlog.log import _files, deletion
from fastlog.log._append import Appender, end_life
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import KEEPER
from fastlog.log.files import FileOps
from fastlog.log.slots import Leaving
from fastlog.workers.log_starts import LogStarts

log = logging.getLogger(__name__)

REMOVE_SECONDS = 0.2
"""How long files are removed at a stretch: there is other work."""
TURN_SECONDS = 0.005
"""How often it is checked whether every process has let go of a partition."""
RETRY_SECONDS = 1.0
"""Until the next try after the disk refused a removal."""
REMOVE_RETRY_SECONDS = 10.0
"""The same for what is only to be removed: nobody waits for it."""


class Deletions:
    """For one thread of the keeper, which looks at no partition while it is in ``turn``."""

    def __init__(self, arena: Arena, appender: Appender, files: FileOps, starts: LogStarts) -> None:
        self._arena = arena
        self._appender = appender
        self._files = files
        self._starts = starts
        self._directories = [Path(path) for path in arena.log_dirs]
        self._wanted_seen = -1
        self._markers: set[str] = set()
        self._to_remove: list[Path] | None = None  # None: not looked yet
        self._not_before = self._remove_not_before = 0.0
        self._took_over = False

    def turn(self) -> float | None:
        """Do what can be done now; in how many seconds there is more, None: when it is woken."""
        now = time.monotonic()
        if now < self._not_before:
            return self._not_before - now
        try:
            self._take_over()
            self._read_markers()
            if self._markers:
                self._end_lives()
            if self._markers or self._arena.leaving():
                self._put_away()
            if self._markers or self._arena.leaving():
                return TURN_SECONDS
        except OSError as error:
            line = "a topic cannot be deleted now path=%s reason=%s: tried again"
            log.error(line, error.filename, error.strerror, extra=logs.about("deletion", error.errno))
            self._not_before = now + RETRY_SECONDS
            return RETRY_SECONDS
        if now < self._remove_not_before:
            return self._remove_not_before - now
        try:
            return self._remove()
        except OSError as error:
            line = "what is left of a deleted topic cannot be removed path=%s reason=%s: tried again"
            log.error(line, error.filename, error.strerror, extra=logs.about("removal", error.errno))
            self._remove_not_before = now + REMOVE_RETRY_SECONDS
            return REMOVE_RETRY_SECONDS

    def _take_over(self) -> None:
        """Hold the creation lock once, so that ended lives that a dead keeper has not announced are announced.

        Without that nobody would ever be past them. Where another process holds it, that one has done so.
        """
        if not self._took_over:
            if self._arena.create_lock():
                self._arena.create_unlock()
            self._took_over = True

    def _read_markers(self) -> None:
        wanted = self._arena.deletions_wanted
        if wanted != self._wanted_seen:
            self._markers = deletion.find_markers(self._directories, self._files)
            self._wanted_seen = wanted

    def _end_lives(self) -> None:
        """Let no partition of a topic that is to go be found or appended to any more, where the locks are free."""
        going = [view for view in self._arena.views() if deletion.marker_name(view.topic) in self._markers]
        if not going:
            return
        if not self._arena.create_lock():
            self._arena.wait_for_creation(KEEPER)
            return
        try:
            for view in going:
                end_life(self._appender, view.index)
        finally:
            self._arena.create_unlock()

    def _put_away(self) -> None:
        """Take the directories of topics away at which nobody looks any more; then their names are free."""
        alive = {view.topic for view in self._arena.views()} | {row.topic for row in self._arena.returning()}
        gone = sorted(self._arena.leaving(), key=lambda row: row.topic)
        done = []
        for topic, group in itertools.groupby(gone, key=lambda row: row.topic):
            rows = list(group)
            if deletion.marker_name(topic) not in self._markers:
                rows = [row for row in rows if self._arena.is_past(row.index)]  # it is alive elsewhere, or was put away
            elif topic in alive or not all(self._arena.is_past(row.index) for row in rows):
                continue
            if rows:
                done.append((topic, rows))
        idle = self._markers - {deletion.marker_name(topic) for topic in alive.union(row.topic for row in gone)}
        if idle:  # of what a former keeper finished, or of two that came for one topic
            deletion.withdraw(idle, self._directories, self._files)
            self._markers -= idle
            self._arena.wake_creators()
        for topic, rows in done:
            if deletion.marker_name(topic) in self._markers:
                self._fulfil(topic, rows)
            if not self._free(rows):
                return

    def _fulfil(self, topic: str, rows: list[Leaving]) -> None:
        _files.reach("delete.past")
        marker = deletion.marker_name(topic)
        self._to_remove = None  # it is looked for what there is then
        deletion.put_away_topics([marker], self._directories, self._files, lambda: self._arena.beat(KEEPER))
        self._starts.forget(topic)
        _files.reach("delete.done")
        deletion.withdraw([marker], self._directories, self._files)
        self._markers.discard(marker)
        _files.reach("delete.settled")
        log.info("deleted topic=%r partitions=%d", topic, len(rows))

    def _free(self, rows: list[Leaving]) -> bool:
        if not self._arena.create_lock():
            self._arena.wait_for_creation(KEEPER)
            return False
        try:
            for row in rows:
                self._arena.free(row.index)
        finally:
            self._arena.create_unlock()
        return True

    def _remove(self) -> float | None:
        """Remove files for at most one turn's time; when to go on, None: all are gone."""
        if self._to_remove is None:
            self._to_remove = deletion.find_put_away(self._directories, self._files)
        enough = time.monotonic() + REMOVE_SECONDS
        while self._to_remove:
            path = self._to_remove.pop()
            try:
                is_gone = deletion.remove_put_away(path, self._files, lambda: time.monotonic() >= enough)
            except OSError:
                self._to_remove.insert(0, path)  # the others come first
                raise
            if not is_gone:
                self._to_remove.append(path)
                return 0.0
            self._arena.beat(KEEPER)
        return None

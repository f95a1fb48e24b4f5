"""The keeper's part of deleting records: what is wanted in the arena is written down, and then the log begins there.

Who wants it waits until it is written down, and may die meanwhile; a keeper that is killed between any two steps leaves
it to the next one, which looks at all slots at first. What stands in the files is known here, so that a write changes
nothing but what it is for.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from fastlog import logs
from fastlog.log import _files
from fastlog.log._arena import Arena
from fastlog.log.files import FileOps
from fastlog.log.log_starts import Starts, read_log_starts, write_log_starts
from fastlog.log.manager import LogManager

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Until the next try after the disk refused a write."""


class LogStarts:
    """Moves log starts forward and records them, durable before they are visible; used by one thread of the keeper."""

    def __init__(self, arena: Arena, manager: LogManager, files: FileOps) -> None:
        self._arena = arena
        self._manager = manager
        self._files = files
        self._directories = [Path(path) for path in arena.log_dirs]
        self._written: dict[int, Starts] = {}  # by log directory, where that is known
        self._wanted_seen = -1
        self._not_before = 0.0
        self.moved: set[int] = set()
        """Slots whose logs begin later now: the keeper takes them from here, and drops segments."""

    def turn(self) -> float | None:
        """Do what can be done now; in how many seconds there is more, None: when it is woken."""
        now = time.monotonic()
        if now < self._not_before:
            return self._not_before - now
        wanted = self._arena.starts_wanted
        if wanted == self._wanted_seen:
            return None
        by_directory: dict[int, dict[int, tuple[tuple[str, int], int]]] = {}
        for index in self._arena.unkept_starts():
            view = self._arena.live_view(index)
            if view is not None and not view.state:  # what is damaged is kept whole for a person to look at
                start = min(view.wanted_start, view.visible_offset, view.flushed_offset)
                by_directory.setdefault(view.directory, {})[index] = (view.topic, view.partition), start
        try:
            for directory, starts in by_directory.items():
                self._keep(directory, dict(starts.values()))
                _files.reach("starts.kept")
                for index, (_, start) in starts.items():
                    self._arena.publish_start(index, start)
                    self.moved.add(index)
                _files.reach("starts.published")
        except OSError as error:
            line = "log starts not written down path=%s reason=%s: tried again"
            log.error(line, error.filename, error.strerror, extra=logs.about("log starts", error.errno))
            self._not_before = now + RETRY_SECONDS
            return RETRY_SECONDS
        self._wanted_seen = wanted
        return None

    def forget(self, topic: str) -> None:
        """A topic is to go, and the next one of its name begins at 0.

        Raises:
            OSError: a file cannot be read or written.
        """
        for directory in range(len(self._directories)):
            if any(place[0] == topic for place in self._known(directory)):
                self._keep(directory, {}, without=topic)

    def _known(self, directory: int) -> Starts:
        if directory not in self._written:
            self._written[directory] = read_log_starts(self._directories[directory], self._files)
        return self._written[directory]

    def _keep(self, directory: int, more: Starts, without: str | None = None) -> None:
        """Write down starts beside those that are; of partitions that have gone there is nothing to be known."""
        starts = {}
        for (topic, partition), start in self._known(directory).items():
            view = self._manager.slot(topic, partition)
            if topic != without and view is not None and view.directory == directory:
                starts[topic, partition] = start
        starts |= more
        if starts != self._known(directory):
            del self._written[directory]  # until it is known what came of it
            write_log_starts(self._directories[directory], starts, self._files)
            self._written[directory] = starts

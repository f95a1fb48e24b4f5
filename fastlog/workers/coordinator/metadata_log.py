"""The coordinator's side of ``__fastlog_metadata``: changes are appended, flushed, and only then count as done."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from fastlog.config import BrokerConfig
from fastlog.errors import LogError
from fastlog.log import _files, metadata
from fastlog.log._append import Appender, append_batch
from fastlog.log._arena import COORDINATOR, STATE_OFFLINE, STATE_READ_ONLY, Arena, SlotView
from fastlog.log._segments import SegmentFiles
from fastlog.log.files import FileOps
from fastlog.log.formats import log_format
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.log.metadata import Change, Metadata
from fastlog.segment_files import partition_directory_name, segment_name
from fastlog.workers.coordinator.loop import Step, Until, Wait

RESERVED_BYTES = 1 << 20
"""Kept free on the disk behind the log's end, so that a full disk can still delete."""
FLUSH_SECONDS = 30.0
"""What a change waits for its flush; a disk that takes longer is as good as one that refuses."""
PAUSE_SECONDS = 0.005
"""Between two tries at a lock that somebody else has."""
_APPENDED, _BUSY, _FULL, _FAILED = range(4)

Work = Generator[Wait, Any, None]


class MetadataLog:
    """The log and its state. The loop's thread calls what is public; ``Step`` runs on the worker's."""

    def __init__(self, config: BrokerConfig, arena: Arena, files: FileOps | None = None) -> None:
        self.state = Metadata()
        self._arena = arena
        self._files = files or FileOps()
        self._directories = [Path(path) for path in arena.log_dirs]
        self._manager = LogManager(config, arena, self._files)  # the worker's
        self._settings = config.for_topic(metadata.TOPIC)._replace(flush_interval_ms=50)
        self._segment_files = SegmentFiles(arena, 16)
        self._appender = Appender(arena, self._segment_files, COORDINATOR)

    def take_over(self) -> Work:
        """At start: finish what a predecessor was appending, and read what stands in the log, flushed before."""
        yield Step(self._appender.take_over)
        view = yield Step(self._find)
        if view is not None:
            yield from self._flushed(view, view.log_offset)
            self.state = yield Step(lambda: metadata.read_metadata(self._directories, self._files))

    def write(self, changes: Sequence[Change], *, needs_room: bool = True) -> Work:
        """Append changes and take them into the state; returns once they are flushed.

        ``needs_room``: not without the reserve being there again afterwards. What gives room back does without.

        Raises:
            OSError, LogError: the disk refused, or the log is out of service.
        """
        following = -1
        while following < 0:
            view, following = yield Step(lambda: self._append(changes, needs_room))
            if following < 0:
                yield Until(lambda: False, time.monotonic() + PAUSE_SECONDS)
        for change in changes:
            self.state.apply(change)
        yield from self._flushed(view, following)

    # -- the worker's thread -------------------------------------------------------------------------------------------

    def _find(self) -> SlotView | None:
        return self._manager.slot(metadata.TOPIC, 0)

    def _append(self, changes: Sequence[Change], needs_room: bool) -> tuple[SlotView | None, int]:
        """The slot and the offset behind the changes; -1: try again."""
        try:
            index = self._manager.create_partition(
                metadata.TOPIC,
                0,
                count=1,
                format_name=RECORD_BATCHES,
                topic_id=metadata.TOPIC_ID,
                settings=self._settings,
            )
        except CreationBusyError:
            return None, -1
        view = self._arena.view(index)
        data, count = metadata.encode(changes, time.time_ns() // 1_000_000)
        self._reserve(view, len(data), needs_room)
        status, _first, following, error = append_batch(self._appender, index, bytearray(data), count, -1, view.life)
        _files.reach("metadata.appended")
        if status in (_BUSY, _FULL):
            return None, -1
        if status == _FAILED:
            raise OSError(error, os.strerror(error), metadata.TOPIC)
        if status != _APPENDED:
            raise LogError(f"{metadata.TOPIC} is out of service: {self._arena.describe_state(view.state)}")
        return view, following

    def _reserve(self, view: SlotView, size: int, needs_room: bool) -> None:
        segment = self._arena.segments(view.index)[-1]
        name = segment_name(segment.base, log_format(RECORD_BATCHES).suffix)
        directory = self._directories[view.directory] / partition_directory_name(metadata.TOPIC, 0)
        try:
            with self._files.open(directory / name, os.O_RDWR) as fd:
                _files.preallocate(fd, view.log_end - segment.start, size + RESERVED_BYTES)
        except OSError as error:
            if needs_room or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    # -- the loop's thread ---------------------------------------------------------------------------------------------

    def _flushed(self, view: SlotView, offset: int) -> Work:
        """Wait until all before this offset is flushed."""
        problem = ""

        def is_flushed() -> bool:
            nonlocal problem
            self._arena.wait_for_end(view.index, COORDINATOR)
            now = self._arena.live_view(view.index)
            if now is None or now.life != view.life:
                problem = "it has gone"
            elif now.visible_offset < offset and now.state & (STATE_OFFLINE | STATE_READ_ONLY):
                problem = self._arena.describe_state(now.state)
            return bool(problem) or (now is not None and now.visible_offset >= offset)

        self._arena.demand_flush(view.index)
        done = yield Until(is_flushed, time.monotonic() + FLUSH_SECONDS)
        if problem or not done:
            raise LogError(f"{metadata.TOPIC} is not flushed: {problem or 'the disk takes too long'}")

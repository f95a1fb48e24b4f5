"""The coordinator's side of ``__fastlog_metadata``: changes are appended, flushed, and only then count as done."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from fastlog.config import BrokerConfig
from fastlog.errors import FastlogError, LogError
from fastlog.log import _files, metadata
from fastlog.log._append import Appender, append_batch, roll_now
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
SHORT_BYTES = 1 << 20
"""As long as it is no longer than this, or than twice its state, the log goes on."""
FLUSH_SECONDS = 30.0
"""What a change waits for its flush; a disk that takes longer is as good as one that refuses."""
PAUSE_SECONDS = 0.005
"""Between two tries at a lock that somebody else has."""
_APPENDED, _BUSY, _FULL, _FAILED = range(4)

Work = Generator[Wait, Any, None]

log = logging.getLogger(__name__)


class MetadataLog:
    """The log and its state. The loop's thread calls what is public; ``Step`` runs on the worker's."""

    def __init__(self, config: BrokerConfig, arena: Arena, files: FileOps | None = None) -> None:
        self.state = Metadata()
        self._arena = arena
        self._files = files or FileOps()
        self._directories = [Path(path) for path in arena.log_dirs]
        self._manager = LogManager(config, arena, self._files)  # the worker's
        self._manager_of_loop = LogManager(config, arena, self._files)
        self._settings = config.for_topic(metadata.TOPIC)._replace(flush_interval_ms=50)
        self._segment_files = SegmentFiles(arena, 16)
        self._appender = Appender(arena, self._segment_files, COORDINATOR)
        self._writing = 0  # changes that may be in the log and are not in the state yet
        self._begins_anew = False
        self._state_bytes = 0  # of the last snapshot

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
        while self._begins_anew:
            yield Until(lambda: not self._begins_anew, time.monotonic() + FLUSH_SECONDS)
        following = -1
        self._writing += 1
        try:
            while following < 0:
                view, following = yield Step(lambda: self._append(changes, needs_room))
                if following < 0:
                    yield Until(lambda: False, time.monotonic() + PAUSE_SECONDS)
            for change in changes:
                self.state.apply(change)
        finally:
            self._writing -= 1
        yield from self._flushed(view, following)

    @property
    def is_long(self) -> bool:
        """Whether it is time to begin anew."""
        view = self._manager_of_loop.slot(metadata.TOPIC, 0)
        if view is None or view.state or self._begins_anew:
            return False
        size = view.log_end - self._arena.segments(view.index)[-1].start  # the last one that began anew, most often
        return size > max(SHORT_BYTES, 2 * self._state_bytes)

    def begin_anew(self) -> Work:
        """Write all of the state into a segment of its own, so that what is before it can go.

        No change is written meanwhile: one that stood before the snapshot and not in it would be lost.
        """
        self._begins_anew = True
        try:
            yield Until(lambda: not self._writing, time.monotonic() + FLUSH_SECONDS)
            if self._writing:
                return
            changes = self.state.changes()
            view = yield Step(self._find)
            if view is None or not (yield Step(lambda: roll_now(self._appender, view.index))):
                return
            view, following = yield Step(lambda: self._append(changes, True))
            if following < 0:
                return  # at another time
            self._state_bytes = len(metadata.encode(changes, 0)[0])
            yield from self._flushed(view, following)
            log.info("begun anew topic=%r changes=%d bytes=%d", metadata.TOPIC, len(changes), self._state_bytes)
        except (OSError, FastlogError) as error:
            log.warning("%s not begun anew reason=%s: tried again", metadata.TOPIC, error)
        finally:
            self._begins_anew = False

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

"""The coordinator's side of one of the broker's own logs: what is written is appended in order, then flushed.

Writes that wait while one is under way go out in one batch. A snapshot is written in parts between them, each made of
what stands in the log at that moment, so that the last record of a key is always the one that holds.
"""

from __future__ import annotations

import collections
import errno
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastlog import logs, record_batches
from fastlog.errors import FastlogError, LogError
from fastlog.log import _files
from fastlog.log._append import Appender, append_batch, roll_now
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY, Arena
from fastlog.log._shared_memory import COORDINATOR
from fastlog.log.files import FileOps
from fastlog.log.formats import log_format
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.log.slots import SlotView
from fastlog.record_batches import Record
from fastlog.segment_files import partition_directory_name, segment_name
from fastlog.workers.coordinator.loop import Given, Loop, Step, Until, Wait
from fastlog.workers.coordinator.promises import Promise

RESERVED_BYTES = 1 << 20
"""Kept free on the disk behind the log's end, so that a full disk can still delete."""
SHORT_BYTES = 1 << 20
"""As long as it is no longer than this, or than twice its state, the log goes on."""
BATCH_BYTES = 256 << 10
"""Of records that go out together; one that is larger goes alone."""
RECORD_BYTES = 32
"""What a record takes besides its key and value, at most."""
FLUSH_SECONDS = 30.0
PAUSE_SECONDS = 0.005
"""Between two tries at a lock that somebody else has."""
SNAPSHOT_RETRY_SECONDS = 60.0
"""After a snapshot that could not be written: each try begins a segment."""
_APPENDED, _BUSY, _FULL, _FAILED, _OFFLINE, _GONE = range(6)

Work = Generator[Wait, Any, None]
Outcome = Exception | str
"""Of a write: DONE, or the reason why it failed."""
DONE = "done"

log = logging.getLogger(__name__)


class Disk(NamedTuple):
    """What all of the coordinator's logs share; for the worker's thread, but for what says otherwise."""

    arena: Arena
    files: FileOps
    manager: LogManager
    loops_manager: LogManager
    appender: Appender


class Written:
    """A write: whether it stands in the log, and whether it is durable."""

    __slots__ = ("appended", "flushed", "needs_room", "records", "size")

    def __init__(self, records: Sequence[Record], needs_room: bool) -> None:
        self.records = records
        self.needs_room = needs_room
        self.size = sum(len(each.key or b"") + len(each.value or b"") + RECORD_BYTES for each in records)
        self.appended: Promise[Outcome] = Promise()
        self.flushed: Promise[Outcome] = Promise()


class InternalLog:
    """One partition. The loop's thread calls what is public; ``Step`` runs on the worker's."""

    def __init__(
        self, disk: Disk, loop: Loop, topic: str, partition: int, make: Callable[[], SlotView], waits_for_disk: bool
    ) -> None:
        """``make`` gives the slot that is alive now, on the worker's thread, and creates the
        partition where that is its job.

        ``waits_for_disk``: however long it takes; else one that takes FLUSH_SECONDS is as good as one that refuses.
        """
        self._disk = disk
        self._arena = disk.arena
        self._loop = loop
        self.topic, self.partition = topic, partition
        self._make = make
        self._waits_for_disk = waits_for_disk
        self._directories = [Path(path) for path in disk.arena.log_dirs]
        self._queue: collections.deque[Written] = collections.deque()
        self._unflushed: collections.deque[tuple[SlotView, int, Written]] = collections.deque()
        self._is_writing = self._is_following = False
        self._parts: Iterator[Sequence[Record]] | None = None  # of the snapshot that is being written
        self._snapshot_done: Promise[Outcome] = Promise()
        self._snapshot_begun = False
        self._snapshot_bytes = self._snapshot_from = 0  # of the one that is being written
        self._snapshot_at = 0  # position where the newest whole one begins
        self._no_snapshot_until = 0.0
        self._reserved = (-1, -1, 0)  # the life, the segment, and up to which of its bytes the disk is reserved
        self.queued_bytes = 0
        """Bytes of writes that are not flushed yet."""

    def directory(self) -> Path:
        """Where its files are; on the worker's thread.

        Raises:
            LogError: there is no such partition, or it is out of service.
        """
        view = self._make()
        return self._directories[view.directory] / partition_directory_name(self.topic, self.partition)

    def settle(self) -> Work:
        """At start: have flushed what a predecessor has appended.

        Raises:
            LogError: it is out of service.
        """
        view = yield Step(lambda: self._disk.manager.slot(self.topic, self.partition))
        if view is not None:
            yield from self._until_flushed(view, view.log_offset)

    def write(self, records: Sequence[Record], *, needs_room: bool = True) -> Written:
        """Append records, behind all that has been written before.

        ``needs_room``: not without the reserve being there again afterwards. What gives room back does without.
        """
        written = Written(records, needs_room)
        self.queued_bytes += written.size
        written.flushed.then(lambda _: self._forget(written))
        self._queue.append(written)
        self._go()
        return written

    def is_long(self, state_bytes: int) -> bool:
        """Whether it is time for a snapshot, which would have about ``state_bytes``."""
        if self._parts is not None or time.monotonic() < self._no_snapshot_until:
            return False
        view = self._disk.loops_manager.slot(self.topic, self.partition)
        if view is None or view.state:
            return False
        begun = max(self._arena.segments(view.index)[0].start, self._snapshot_at)
        return view.log_end - begun > max(SHORT_BYTES, 2 * state_bytes)

    def snapshot(self, parts: Iterator[Sequence[Record]]) -> Promise[Outcome]:
        """Write a snapshot, whose parts are asked for when all that was written before stands in the log.

        What the first part begins with takes the place of what stood before, and the last one ends it.
        """
        self._parts, self._snapshot_done = parts, Promise()
        self._go()
        return self._snapshot_done

    def _forget(self, written: Written) -> None:
        self.queued_bytes -= written.size

    def _go(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._loop.start(self._write_all())

    # -- appending -----------------------------------------------------------------------------------------------------

    def _write_all(self) -> Work:
        try:
            while self._queue or self._parts is not None:
                if self._queue:
                    together = self._take_together()
                    yield from self._write(together)
                if self._parts is not None:
                    yield from self._write_part(self._parts)
        finally:
            self._is_writing = False

    def _take_together(self) -> list[Written]:
        together = [self._queue.popleft()]
        size = together[0].size
        while self._queue and self._queue[0].needs_room == together[0].needs_room:
            size += self._queue[0].size
            if size > BATCH_BYTES:
                break
            together.append(self._queue.popleft())
        return together

    def _write(self, together: list[Written]) -> Work:
        records = [record for each in together for record in each.records]
        try:
            view, following = yield from self._append(records, together[0].needs_room)
        except Exception as error:
            if not isinstance(error, (OSError, FastlogError)):
                log.exception("not written topic=%r partition=%d", self.topic, self.partition)
            for each in together:
                each.appended.give(error)
                each.flushed.give(error)
            return
        for each in together:
            each.appended.give(DONE)
            self._unflushed.append((view, following, each))
        if not self._is_following:
            self._is_following = True
            self._loop.start(self._follow())

    def _write_part(self, parts: Iterator[Sequence[Record]]) -> Work:
        try:
            if not self._snapshot_begun:
                view = yield Step(lambda: self._disk.manager.slot(self.topic, self.partition))
                if view is None or not (yield Step(lambda: roll_now(self._disk.appender, view.index))):
                    raise LogError("no segment can be begun")
                self._snapshot_begun = True
                self._snapshot_bytes = 0
                self._snapshot_from = (yield Step(lambda: self._arena.view(view.index))).log_end
            part = next(parts, None)
            if part is None:
                self._end_snapshot(DONE)
                return
            view, following = yield from self._append(part, True)
            self._snapshot_bytes += sum(len(each.key or b"") + len(each.value or b"") for each in part)
            yield from self._until_flushed(view, following)  # paced by the disk
            _files.reach("log.snapshot")
        except Exception as error:
            line = "no snapshot written topic=%r partition=%d reason=%s: tried again"
            log.warning(line, self.topic, self.partition, error, extra=logs.about("snapshot", self.topic, type(error)))
            self._no_snapshot_until = time.monotonic() + SNAPSHOT_RETRY_SECONDS
            self._end_snapshot(error)

    def _end_snapshot(self, outcome: Outcome) -> None:
        self._parts, self._snapshot_begun = None, False
        if outcome == DONE:
            self._snapshot_at = self._snapshot_from
            line = "begun anew topic=%r partition=%d bytes=%d"
            log.info(line, self.topic, self.partition, self._snapshot_bytes)
        self._snapshot_done.give(outcome)

    def _append(self, records: Sequence[Record], needs_room: bool) -> Generator[Wait, Any, tuple[SlotView, int]]:
        while True:
            found: tuple[SlotView, int] | None = yield Step(lambda: self._append_once(records, needs_room))
            if found is not None:
                return found
            yield Until(lambda: False, time.monotonic() + PAUSE_SECONDS)

    def _append_once(self, records: Sequence[Record], needs_room: bool) -> tuple[SlotView, int] | None:
        """The slot and the offset behind the records; None: try again. On the worker's thread."""
        try:
            view = self._make()
        except CreationBusyError:
            return None
        data = record_batches.build(records)
        self._reserve(view, len(data), needs_room)
        appender = self._disk.appender
        status, _first, following, error = append_batch(
            appender, view.index, bytearray(data), len(records), -1, view.life
        )
        _files.reach("metadata.appended")
        if status in (_BUSY, _FULL, _GONE):  # gone: since it was looked up; the next look finds what is there now
            return None
        if status == _FAILED:
            raise OSError(error, os.strerror(error), self.topic)
        if status != _APPENDED:
            raise LogError(f"{self.topic} is out of service: {self._arena.describe_state(view.state)}")
        return view, following

    def _reserve(self, view: SlotView, size: int, needs_room: bool) -> None:
        segment = self._arena.segments(view.index)[-1]
        place = view.log_end - segment.start
        if self._reserved[:2] == (view.life, segment.start) and place + size + RESERVED_BYTES <= self._reserved[2]:
            return
        name = segment_name(segment.base, log_format(RECORD_BATCHES).suffix)
        directory = self._directories[view.directory] / partition_directory_name(self.topic, self.partition)
        try:
            with self._disk.files.open(directory / name, os.O_RDWR) as fd:
                _files.preallocate(fd, place, size + 2 * RESERVED_BYTES)  # so that not every write asks for it
            self._reserved = view.life, segment.start, place + size + 2 * RESERVED_BYTES
        except OSError as error:
            if needs_room or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    # -- flushing ------------------------------------------------------------------------------------------------------

    def _follow(self) -> Work:
        """Tell of what is flushed, in order; whatever is wrong with one is so with all behind it."""
        try:
            while self._unflushed:
                view, following, written = self._unflushed[0]
                try:
                    yield from self._until_flushed(view, following)
                except LogError as error:
                    failed, self._unflushed = self._unflushed, collections.deque()
                    for _, _, each in failed:
                        each.flushed.give(error)
                    continue
                self._unflushed.popleft()
                written.flushed.give(DONE)
        finally:
            self._is_following = False

    def _until_flushed(self, view: SlotView, offset: int) -> Work:
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
        while not (yield Until(is_flushed, time.monotonic() + FLUSH_SECONDS)):
            if not self._waits_for_disk:
                problem = "the disk takes too long"
                break
        if problem:
            raise LogError(f"{self.topic} is not flushed: {problem}")


def finish(written: Written, deadline: float | None = None) -> Work:
    """Wait until a write is durable.

    Raises:
        OSError, LogError: the disk refused, or the log is out of service.
    """
    outcome = yield Given(written.flushed, deadline)
    if isinstance(outcome, Exception):
        raise outcome

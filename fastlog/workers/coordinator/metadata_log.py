"""The coordinator's side of ``__fastlog_metadata``: changes are appended, flushed, and only then count as done."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from fastlog.config import BrokerConfig
from fastlog.errors import LogError
from fastlog.log import metadata
from fastlog.log.formats import format_number
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.metadata import Change, Metadata
from fastlog.log.slots import SlotView
from fastlog.record_batches import Record
from fastlog.workers.coordinator.internal_log import DONE, Disk, InternalLog, Outcome, finish
from fastlog.workers.coordinator.loop import Given, Loop, Step, Wait

Work = Generator[Wait, Any, None]


class MetadataLog:
    """The log and its state. The loop's thread calls what is public; ``Step`` runs on the worker's."""

    def __init__(self, config: BrokerConfig, disk: Disk, loop: Loop) -> None:
        self.state = Metadata()
        self._disk = disk
        self._directories = [Path(path) for path in disk.arena.log_dirs]
        self._settings = config.for_topic(metadata.TOPIC)._replace(flush_interval_ms=50)
        self._log = InternalLog(disk, loop, metadata.TOPIC, 0, self._make, waits_for_disk=False)
        self._state_bytes = 0  # of the last snapshot

    def take_over(self) -> Work:
        """At start: read what stands in the log, flushed before."""
        yield from self._log.settle()
        self.state = yield Step(lambda: metadata.read_metadata(self._directories, self._disk.files))

    def write(self, changes: Sequence[Change], *, needs_room: bool = True) -> Work:
        """Append changes and take them into the state; returns once they are flushed.

        ``needs_room``: not without the reserve being there again afterwards. What gives room back does without.

        Raises:
            OSError, LogError: the disk refused, or the log is out of service.
        """
        problem: LogError | None = None

        def take_in(outcome: Outcome) -> None:
            nonlocal problem
            try:
                for change in changes if outcome == DONE else ():
                    self.state.apply(change)
            except LogError as error:
                problem = error

        written = self._log.write(metadata.records(changes, time.time_ns() // 1_000_000), needs_room=needs_room)
        written.appended.then(take_in)
        yield from finish(written)
        if problem is not None:
            raise problem

    @property
    def is_long(self) -> bool:
        """Whether a snapshot is due: the log is long beside the state that it describes."""
        return self._log.is_long(self._state_bytes)

    def begin_anew(self) -> Work:
        """Write all of the state into a segment of its own, so that what is before it can go."""
        yield Given(self._log.snapshot(self._parts()))

    def _parts(self) -> Generator[Sequence[Record], None, None]:
        """In one batch: what a snapshot's beginning wipes out is there again with it."""
        records = metadata.records(self.state.changes(), time.time_ns() // 1_000_000)
        self._state_bytes = sum(len(each.value or b"") for each in records)
        yield records
        yield metadata.records([metadata.END_OF_SNAPSHOT], time.time_ns() // 1_000_000)

    def _make(self) -> SlotView:
        """Its slot. Creating takes the lock of creation even where there is nothing to create, and others hold that one
        for as long as a disk takes to make files: no write waits for it but the first."""
        manager = self._disk.manager
        view = manager.slot(metadata.TOPIC, 0)
        kind = metadata.TOPIC_ID, format_number(RECORD_BATCHES)
        if view is not None and view.life & 1 and (view.topic_id, view.format) == kind:
            return view
        index = manager.create_partition(
            metadata.TOPIC,
            0,
            count=1,
            format_name=RECORD_BATCHES,
            topic_id=metadata.TOPIC_ID,
            settings=self._settings,
        )
        return self._disk.arena.view(index)

"""LIST_OFFSETS by time, and for the largest time: what has to be looked up in files, by the threads that read them."""

from __future__ import annotations

import logging
import struct
from collections.abc import Generator
from pathlib import Path

from fastlog import logs, segment_files
from fastlog.config import BrokerConfig
from fastlog.errors import FastlogError
from fastlog.log._arena import Arena
from fastlog.log.files import FileOps
from fastlog.log.formats import format_name
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import LogManager
from fastlog.log.times import TimedOffset, TimeLookup
from fastlog.message import DeepLimits
from fastlog.workers.authorization import Client, Operation
from fastlog.workers.kafka import reading
from fastlog.workers.services import Services

log = logging.getLogger(__name__)

LARGEST = -3
NONE, STORAGE = 0, 56
ROW = struct.Struct("=hqqi")
"""Error code, time in ms, offset and leader epoch of what was found, for compiled code; -1 where nothing was."""
NOTHING = ROW.pack(NONE, -1, -1, -1)
MOST_BEGUN = 1024

Lookups = Generator[None, None, bytes]


class Times:
    """Looks up times for one processor; each of the threads that call it has a log manager of its own."""

    def __init__(self, config: BrokerConfig, arena: Arena, services: Services) -> None:
        self._config = config
        self._arena = arena
        self._services = services
        self._limits = DeepLimits(
            max_inflated_bytes=config.max_inflated_bytes,
            max_depth=config.max_inflated_depth,
            max_messages=config.max_inflated_messages,
        )
        self._managers: dict[int, LogManager] = {}
        self._begun: dict[int, tuple[bytes, Lookups]] = {}
        """By connection: the request that is under way, and what goes on with it."""

    def answer(self, request: bytes, queue: int, client: Client) -> bytes | bool | None:
        """A ``ROW`` for each partition of a LIST_OFFSETS request, which begins at its api key and is well-formed.

        True: a step of it is done, ask for the next one. None: it cannot be answered. Rows of partitions that are asked
        for something else say nothing.
        """
        try:
            begun = self._begun.pop(client.connection, None)
            lookups = begun[1] if begun is not None and begun[0] == request else self._all(request, queue, client)
            try:
                next(lookups)
            except StopIteration as done:
                return bytes(done.value)
            if len(self._begun) >= MOST_BEGUN:  # of connections that went away meanwhile
                self._begun.clear()
            self._begun[client.connection] = request, lookups
            return True
        except Exception as error:
            self._services.unexpected(error)
            return None

    def _all(self, request: bytes, queue: int, client: Client) -> Lookups:
        rows = bytearray()
        for one in reading.listed_offsets(request):
            if (one.time < 0 and one.time != LARGEST) or not self._services.authorizer.is_allowed(
                client, Operation.DESCRIBE, one.topic
            ):
                rows += NOTHING
            else:
                rows += yield from self._one(one, queue)
        return bytes(rows)

    def _one(self, one: reading.Listed, queue: int) -> Generator[None, None, bytes]:
        manager = self._managers.get(queue)
        if manager is None:
            manager = self._managers[queue] = LogManager(self._config, self._arena, FileOps())
        view = manager.slot(one.topic, one.partition)
        if view is None or format_name(view.format) != RECORD_BATCHES:
            return NOTHING
        name = segment_files.partition_directory_name(one.topic, one.partition)
        directory = Path(self._arena.log_dirs[view.directory], name)
        # the segments first: what the end says may lie in one that is newer than these, and is not found then
        segments = self._arena.segments(view.index)
        time = None if one.time == LARGEST else one.time
        visible = view.visible_offset, view.visible_end
        lookup = TimeLookup(directory, segments, visible, time, view.log_start, self._limits)
        try:
            while not lookup.step():
                yield
        except (OSError, FastlogError) as error:
            line = "a look-up by time failed topic=%r partition=%d reason=%s"
            log.error(line, one.topic, one.partition, error, extra=logs.about("times", one.topic, one.partition))
            return ROW.pack(STORAGE, -1, -1, -1)
        return NOTHING if lookup.found is None else _row(lookup.found)


def _row(found: TimedOffset) -> bytes:
    return ROW.pack(NONE, found.timestamp, found.offset, found.leader_epoch)

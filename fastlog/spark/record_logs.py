"""What the driver asks one broker of its topics of record batches: which there are, how far they go, where to cut them.

Offsets are numbers of records: any of them is a place to begin at, but a task that begins where a batch does leaves
none of it to be read twice. How many bytes a number of records take is only known on the average of a partition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

from fastlog import record_batches
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.kafka_fields import Place
from fastlog.client.record_topics import KnownTopic, Stored
from fastlog.client.records import EARLIEST, LATEST, RecordBroker, RecordsError, require
from fastlog.errors import FastlogError, OffsetOutOfRangeError, PartitionOfflineError, TransportError
from fastlog.kafka_codes import Code

log = logging.getLogger(__name__)

PASSING = (
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.REQUEST_TIMED_OUT,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
)
"""Codes that say that it may be otherwise soon: a topic is being made or deleted, a coordinator has just begun."""
_ASK_AGAIN_SECONDS = 30.0
_OVERHEAD_BYTES = 10  # of a record, about, where nothing is known of its size
_FETCH_LEAST = 1  # a broker sends one batch in any case


class RecordExtent(NamedTuple):
    """How far a partition goes, and the id of its topic."""

    log_start: int
    end: int
    topic_id: bytes


class RecordLogs:
    """The topics of record batches of one broker. For one thread; knows no retries.

    Raises (every call):
        TransportError: the broker does not answer, or says that it is starting.
        RecordsError: it refuses.
    """

    def __init__(self, records: RecordBroker) -> None:
        self._records = records
        self._not_spoken_until = 0.0
        self._has_spoken = False
        self._stored: dict[Place, tuple[float, Stored]] = {}
        self._extents: dict[Place, RecordExtent] = {}

    def close(self) -> None:
        """Close the connection."""
        self._records.close()

    def topics(self, names: Iterable[str] | None) -> dict[str, KnownTopic]:
        """Those of the names, or all; none where the broker speaks nothing but 0.7.

        What clients of today see of topics of messages is among them: whoever asks knows those.
        """
        now = time.monotonic()
        if now < self._not_spoken_until:
            return {}
        try:
            found = self._records.known_topics(names)
        except NotSpokenError:
            if self._has_spoken:
                raise  # it stops, or begins
            try:
                found = self._records.known_topics(names)
            except NotSpokenError as error:
                log.debug("%s", error)
                self._not_spoken_until = now + _ASK_AGAIN_SECONDS
                return {}
        self._has_spoken = True
        return {name: topic for name, topic in found.items() if not topic.is_internal and topic.partitions}

    def extents(self, topics: dict[str, KnownTopic], places: Collection[Place]) -> dict[Place, RecordExtent]:
        """How far partitions go: to the end of what is visible, where that had been appended half a second ago.

        Raises:
            PartitionOfflineError: a disk fails that has one of them.
        """
        if not places:
            return {}
        starts, ends = self._offsets(places, EARLIEST), self._offsets(places, LATEST)
        found = {
            place: RecordExtent(starts[place], max(starts[place], ends[place]), topics[place[0]].id) for place in places
        }
        self._extents |= found
        return found

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        """The first record with that time or a later one; None where there is none."""
        found = self._offsets([place], time_ms)[place]
        return found if found >= 0 else None

    def cuts(self, place: Place, start: int, end: int, step: int) -> list[int]:
        """Offsets from ``start`` on at which batches begin, before ``end``, each ``step`` records or more apart."""
        points = [start]
        while points[-1] + step < end:
            target = points[-1] + step
            base, behind = self._batch_at(place, target)
            point = target if base == target else behind
            if not points[-1] < point < end:
                break
            points.append(point)
        return points

    def stored(self, places: Collection[Place]) -> dict[Place, Stored]:
        """The size of partitions and the directories that they are in, as they were a moment ago."""
        now = time.monotonic()
        if any(place not in self._stored or self._stored[place][0] < now for place in places):
            found = self._records.stored(places)
            self._stored |= {place: (now + _ASK_AGAIN_SECONDS, found[place]) for place in found}
        return {place: self._stored[place][1] for place in places if place in self._stored}

    def record_bytes(self, places: Collection[Place]) -> dict[Place, float]:
        """The bytes of a record of each partition, on the average of what is there."""
        stored = self.stored(places)
        found = {}
        for place in places:
            extent = self._extents[place]
            count, size = extent.end - extent.log_start, stored[place].size_bytes if place in stored else 0
            found[place] = max(1.0, size / count) if count and size else float(_OVERHEAD_BYTES)
        return found

    def _offsets(self, places: Collection[Place], time_ms: int) -> dict[Place, int]:
        try:
            return self._records.offsets(places, time_ms)
        except RecordsError as error:
            raise kind_of(error) from error

    def _batch_at(self, place: Place, offset: int) -> tuple[int, int]:
        """Where the batch begins that an offset is in, and where the next one does."""
        found = self._records.fetch({place: offset}, max_bytes=_FETCH_LEAST)[place]
        try:
            require(found.code, *place)
        except RecordsError as error:
            raise kind_of(error) from error
        for header, _ in record_batches.batches(found.batches):
            return header.base_offset, header.next_offset
        return offset, offset


def kind_of(error: RecordsError) -> FastlogError:
    """A refusal as the error that messages have for it, by which it is known what to do; others as they are."""
    if error.code in PASSING:
        return TransportError(str(error))
    if error.code == Code.OFFSET_OUT_OF_RANGE:
        return OffsetOutOfRangeError(str(error))
    if error.code == Code.KAFKA_STORAGE_ERROR:
        return PartitionOfflineError(str(error))
    return error

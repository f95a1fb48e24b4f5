"""Appending record batches as they are to one partition, each exactly once, at the offset that it had elsewhere.

A broker takes such a batch only where the log ends at its offset (``RecordBroker.store``), so what is not known to be
stored after a connection broke is sent again. Of what a batch says, the id of its producer is left out: another broker
would take it for one of its own.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fastlog import record_batches
from fastlog.client.addresses import Address
from fastlog.client.connection import BoundedBackoff
from fastlog.client.records import LATEST, RecordsError, meaning_of
from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import TransportError
from fastlog.kafka_codes import Code
from fastlog.record_batches import (
    LEADER_EPOCH_AT,
    MAGIC_AT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from fastlog.tools import options
from fastlog.tools.appending import OtherBytesError
from fastlog.tools.record_topics import records_at

_PASSING = frozenset(
    (
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.REPLICA_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.FENCED_LEADER_EPOCH,
    )
)
_MOST_BATCHES = 1000
_FLUSH_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 0.02


class StorableBatch(NamedTuple):
    """A batch to be stored, without the id of its producer."""

    offset: int
    next_offset: int
    records: int
    """How many records it has; 0 for the marker of a transaction."""
    data: bytearray


def storable(data: bytes) -> Iterator[StorableBatch]:
    """The batches of a piece of a log, as another one may have them."""
    for header, view in record_batches.batches(data):
        batch = bytearray(view)
        if header.producer_id != NO_PRODUCER_ID:
            record_batches.set_producer(batch, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
        records = 0 if header.is_control else header.record_count
        yield StorableBatch(header.base_offset, header.next_offset, records, batch)


class RecordAppender:
    """The only one that appends to a partition of record batches. For one thread; close it, or use it as a context."""

    def __init__(self, topic: str, partition: int, address: Address, timeout: float, start: int, end: int) -> None:
        """``start`` and ``end``: of the log as it is now."""
        self.end = end
        """Where the log ends: the offset of the batch that is stored next."""
        self._place = topic, partition
        self._address = address
        self._timeout = timeout
        self._start = start
        self._broker = records_at(options.broker_at(str(address), timeout, waits=False))
        self._consumer: SimpleConsumer | None = None

    def __enter__(self) -> RecordAppender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._broker.close()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def append(self, batches: Iterable[StorableBatch]) -> None:
        """Put batches at the end of the log; returns when they are acknowledged.

        Raises:
            OtherBytesError: somebody else appends, too.
            RecordsError: the broker refuses; nothing from the refused batch on is stored.
            TransportError: the broker is unavailable for half a minute.
        """
        left = deque(batches)
        backoff = BoundedBackoff()
        while left:
            try:
                codes = self._broker.store(self._place, [item.data for item in itertools.islice(left, _MOST_BATCHES)])
                for _ in itertools.takewhile(lambda code: code == 0, codes):
                    self.end = left.popleft().next_offset
                    backoff.worked()
                refused = next(filter(None, codes), 0)
                if refused == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    self._look(left)
                elif refused in _PASSING:
                    raise TransportError(meaning_of(refused))
                elif refused:
                    raise RecordsError(meaning_of(refused), refused)
            except TransportError as error:
                backoff.failed(error)

    def wait_flushed(self) -> None:
        """Return when all of the log is on the broker's disk.

        Raises:
            OtherBytesError: somebody else has appended.
            TransportError: the broker is unavailable for half a minute, or does not flush.
        """
        deadline = time.monotonic() + _FLUSH_SECONDS
        backoff = BoundedBackoff()
        while True:
            try:
                end = self._flushed_end()
            except TransportError as error:
                backoff.failed(error)
                continue
            if end == self.end:
                return
            if end > self.end:
                raise self._other(end)
            if time.monotonic() > deadline:
                raise TransportError(f"what was appended from offset {end} on does not become visible")
            time.sleep(_PAUSE_SECONDS)

    def holds(self, batches: Sequence[StorableBatch]) -> bool:
        """Whether the log has these batches, one behind the other. Raises as ``SimpleConsumer.fetch``."""
        if self._consumer is None:
            address = self._address
            self._consumer = SimpleConsumer(address.host, address.port, timeout=self._timeout)
        topic, partition = self._place
        left = deque(batches)
        deadline = time.monotonic() + _FLUSH_SECONDS
        while left:
            found = self._consumer.fetch(topic, partition, max(left[0].offset, self._start), wait=_LOOK_SECONDS)
            for _, stored in record_batches.batches(found.data[: found.valid_bytes]):
                if left and not _is_same(stored, left.popleft().data):
                    return False
            if not found and time.monotonic() > deadline:
                raise TransportError(f"what was appended at offset {left[0].offset} does not become visible")
        return True

    def begin_at(self, offset: int) -> None:
        """Let the log begin there. Raises as ``RecordBroker.delete_records``."""
        if offset > self._start:
            self._broker.delete_records(self._place, offset)

    def _flushed_end(self) -> int:
        return self._broker.offsets([self._place], LATEST)[self._place]

    def _look(self, left: deque[StorableBatch]) -> None:
        """After a batch was refused: take from those that are left what the log has already."""
        end = self._flushed_end()
        if end <= self.end:  # what was appended lately is flushed soon
            raise TransportError(f"the log ends at {end}, where {self.end} was expected")
        known = list(itertools.takewhile(lambda batch: batch.next_offset <= end, left))
        if not known or not self.holds(known):
            raise self._other(end)
        for _ in known:
            self.end = left.popleft().next_offset

    def _other(self, end: int) -> OtherBytesError:
        return OtherBytesError(f"the log ends at {end}, where {self.end} was expected: somebody else appends")


def _is_same(stored: memoryview, batch: bytearray) -> bool:
    """Whether a batch is the one that was sent; only the broker's leader epoch may be another one."""
    return stored[:LEADER_EPOCH_AT] == batch[:LEADER_EPOCH_AT] and stored[MAGIC_AT:] == batch[MAGIC_AT:]

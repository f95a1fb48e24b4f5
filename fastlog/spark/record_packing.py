"""Writes rows of one task to topics of record batches. Runs in Spark's workers; needs pyarrow, knows no Spark.

Each task is an idempotent producer of its own: what it sends again, because a connection broke before the answer came,
is stored once. A task that Spark tries again is another producer, and writes its rows again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from fastlog import batch_codecs
from fastlog._crc32c import crc32c
from fastlog.client.addresses import Address
from fastlog.client.connection import BoundedBackoff, Broker
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.record_requests import Appended
from fastlog.client.records import RecordBroker, RecordsError, meaning_of
from fastlog.errors import ConfigError, DeliveryError, FastlogError, MessageTooLargeError, TransportError
from fastlog.kafka_codes import Code
from fastlog.producer.rows import Stretch
from fastlog.record_batches import ATTRIBUTES_AT, HEADER_BYTES, LENGTH_COUNTS_FROM, MAGIC, BatchHeader
from fastlog.spark._record_packing import Headers, Source, hash_keys, pack_rows
from fastlog.spark.discovery import Coordination, RegisteredBrokers
from fastlog.spark.record_logs import PASSING
from fastlog.spark.schema import KAFKA
from fastlog.spark.sink_options import SinkOptions
from fastlog.spark.spans import numbers_of, spans_of, times_of

_T = TypeVar("_T")
CODECS = {name: number for number, name in batch_codecs.CODEC_NAMES.items()}
_AGAIN = (*PASSING, Code.KAFKA_STORAGE_ERROR, Code.FENCED_LEADER_EPOCH)
_SEQUENCES = 2**31
_LEAST_BYTES = 1024


@dataclass
class SinkTopic:
    """A topic that is written to, on the broker that has it."""

    name: str
    records: RecordBroker
    broker: int
    partitions: tuple[int, ...]
    most_bytes: int
    """Of the records of a batch, before they are compressed."""
    turn: int = field(default_factory=lambda: random.randrange(2**16))
    """Where rows without a key go: on from one partition to the next with each batch of Arrow."""


class SinkTopics:
    """Tells topics of record batches from those of messages, and has the connections to their brokers. For one task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._found: dict[str, SinkTopic | None] = {}
        self._records: dict[Address, RecordBroker] = {}
        self._addresses: list[Address] | None = None

    def close(self) -> None:
        """Close all connections."""
        for records in self._records.values():
            records.close()

    def find(self, topic: str) -> SinkTopic | None:
        """The topic, if it is one of record batches, or is to be made as one; None for one of messages.

        Raises:
            TransportError: a broker cannot be reached within ``connect.timeout.ms``.
            ConfigError: several brokers have it, or might make it.
        """
        if topic not in self._found:
            self._found[topic] = self._tried(lambda: self._looked(topic))
        return self._found[topic]

    def _tried(self, call: Callable[[], _T]) -> _T:
        backoff = BoundedBackoff(self._options.connect_timeout)
        while True:
            try:
                return call()
            except TransportError as error:
                backoff.failed(error)
                self._addresses = None  # one that has gone is registered for a while

    def _looked(self, topic: str, *, is_made: bool = False) -> SinkTopic | None:
        found, is_anywhere = [], False
        for address in self._known():
            has_records = self._has_records(address, topic)
            answer = Broker([address], self._options.connect_timeout).metadata_or_none((topic,))
            of_messages = answer is not None and any(item.name == topic and item.partitions for item in answer.topics)
            if has_records and not of_messages:
                found.append((address, 0 if answer is None else answer.broker_id))
            is_anywhere = is_anywhere or of_messages
        if len(found) > 1:
            raise ConfigError(f"brokers: several have a topic of record batches {topic!r}: name one of them")
        if not found and self._options.schema == KAFKA and not is_anywhere:
            if is_made:
                raise TransportError(f"the topic {topic!r} was made, and is not shown yet")
            self._make(topic)
            return self._looked(topic, is_made=True)
        return self._described(topic, *found[0]) if found else None

    def _known(self) -> list[Address]:
        if self._addresses is None:
            options = self._options
            if options.zookeeper is None:
                self._addresses = [named.address for named in options.brokers]
            else:
                with closing(Coordination(options.zookeeper, options.zookeeper_timeout)) as coordination:
                    self._addresses = [named.address for named in RegisteredBrokers(coordination, 5, 0.2).look()]
        return self._addresses

    def _at(self, address: Address) -> RecordBroker:
        if address not in self._records:
            timeout = self._options.connect_timeout
            self._records[address] = RecordBroker([address], timeout=timeout, client="fastlog-spark")
        return self._records[address]

    def _has_records(self, address: Address, topic: str) -> bool:
        try:
            known = self._at(address).known_topics([topic]).get(topic)
        except NotSpokenError:
            return False
        if known is not None and known.code in PASSING and known.code != Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise TransportError(meaning_of(known.code))
        return known is not None and bool(known.partitions)

    def _make(self, topic: str) -> None:
        addresses = self._known()
        if len(addresses) > 1:
            raise ConfigError(f"schema: no broker has the topic {topic!r}: make it on one of them, or name only that")
        try:
            self._at(addresses[0]).create(topic, -1, {})
        except RecordsError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise

    def _described(self, topic: str, address: Address, broker: int) -> SinkTopic:
        records = self._at(address)
        partitions = records.known_topics([topic])[topic].partitions
        told = records.settings(topic)["max.message.bytes"].value
        largest = (int(told or 0) - HEADER_BYTES) * 6 // 7  # what codecs may add
        most = max(_LEAST_BYTES, min(largest, self._options.batch_bytes))
        return SinkTopic(topic, records, broker, partitions, most)


class RecordRows:
    """Sends the rows of columns; returns when they are confirmed. For one task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._codec = CODECS[options.compression]
        self._producers: dict[int, tuple[int, int]] = {}  # id and epoch, by the broker's id
        self._sequences: dict[tuple[str, int], int] = {}
        self.delivered: dict[tuple[str, int, int], Stretch] = {}
        """What was confirmed, by topic, broker and partition."""

    def send(self, topic: SinkTopic, columns: Mapping[str, pa.Array]) -> int:
        """Send rows to one topic; the bytes of their values.

        Raises:
            ConfigError: a row names a partition or a broker that the topic has not.
            DeliveryError, MessageTooLargeError: not all could be written; some may have been.
        """
        values = spans_of(columns["value"])
        count = len(values.ends) - 1
        made = Source(*values.source())
        keys = Source(*spans_of(columns["key"]).source()) if "key" in columns else None
        headers = _headers(columns["headers"]) if "headers" in columns else None
        times = times_of(columns.get("timestamp"), count)
        for number, rows in self._partitions(topic, columns, keys, count):
            self._send_rows(topic, number, rows, keys, made, times, headers)
        return values.size_bytes

    # -- inside --------------------------------------------------------------------------------------------------------

    def _partitions(
        self, topic: SinkTopic, columns: Mapping[str, pa.Array], keys: Source | None, count: int
    ) -> Iterator[tuple[int, Any]]:
        """The partitions that rows go to, and the rows of each in their order."""
        numbers = np.array(topic.partitions, np.int64)
        topic.turn += 1
        chosen = np.full(count, numbers[topic.turn % len(numbers)], np.int64)
        if keys is not None:
            hashes = hash_keys(keys)
            chosen = np.where(hashes >= 0, numbers[hashes % len(numbers)], chosen)
        if "partition" in columns:
            by_hand = numbers_of(columns["partition"])
            unknown = (by_hand >= 0) & ~np.isin(by_hand, numbers)
            if unknown.any():
                raise ConfigError(
                    f"column partition: {topic.name!r} has {len(numbers)} partitions, and not {by_hand[unknown][0]}"
                )
            chosen = np.where(by_hand >= 0, by_hand, chosen)
            if "broker" in columns:
                brokers = numbers_of(columns["broker"])
                if ((brokers >= 0) & (brokers != topic.broker)).any():
                    raise ConfigError(f"column broker: the topic {topic.name!r} is one of broker {topic.broker} alone")
        order = np.argsort(chosen, kind="stable").astype(np.int32)
        borders = np.flatnonzero(np.diff(chosen[order])) + 1
        for rows in np.split(order, borders):
            yield int(chosen[rows[0]]), rows

    def _send_rows(
        self,
        topic: SinkTopic,
        number: int,
        rows: Any,
        keys: Source | None,
        values: Source,
        times: Any,
        headers: Headers | None,
    ) -> None:
        at = 0
        while at < len(rows):
            try:
                packed, taken, base_time, latest = pack_rows(
                    rows, at, keys, values, times, headers, topic.most_bytes, self._options.batch_messages
                )
            except ValueError as error:
                raise MessageTooLargeError(str(error)).at(topic=topic.name, partition=number) from error
            self._deliver(topic, number, taken, self._batch(topic, number, packed, taken, base_time, latest))
            at += taken

    def _batch(self, topic: SinkTopic, number: int, packed: bytes, taken: int, base_time: int, latest: int) -> bytes:
        payload = batch_codecs.compress(self._codec, packed) if self._codec else packed
        producer, epoch = self._producer(topic)
        header = BatchHeader(
            base_offset=0,
            batch_length=HEADER_BYTES - LENGTH_COUNTS_FROM + len(payload),
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=self._codec,
            last_offset_delta=taken - 1,
            base_timestamp=base_time,
            max_timestamp=latest,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=self._sequences.get((topic.name, number), 0),
            record_count=taken,
        )
        head = bytearray(header.encode())
        head[ATTRIBUTES_AT - 4 : ATTRIBUTES_AT] = crc32c(payload, crc32c(head[ATTRIBUTES_AT:])).to_bytes(4)
        return bytes(head) + payload

    def _producer(self, topic: SinkTopic) -> tuple[int, int]:
        known = self._producers.get(topic.broker)
        if known is None:
            backoff = BoundedBackoff(self._options.delivery_timeout)
            while known is None:
                try:
                    made = topic.records.new_producer()
                    known = self._producers[topic.broker] = made.id, made.epoch
                except (TransportError, RecordsError) as error:
                    _wait(backoff, error)
        return known

    def _deliver(self, topic: SinkTopic, number: int, taken: int, batch: bytes) -> None:
        """Have a batch stored, however often that has to be tried: it is the same each time, and is stored once."""
        place = topic.name, number
        is_flushed = self._options.acks == "flushed"
        backoff = BoundedBackoff(self._options.delivery_timeout)
        while True:
            try:
                answer = topic.records.append({place: batch}, is_flushed=is_flushed)[place]
                if answer.code in (0, Code.DUPLICATE_SEQUENCE_NUMBER):
                    break
                raise RecordsError(meaning_of(answer.code), answer.code).at(topic=topic.name, partition=number)
            except FastlogError as error:
                if isinstance(error, RecordsError) and error.code == Code.MESSAGE_TOO_LARGE:
                    raise MessageTooLargeError(str(error.reason)).at(topic=topic.name, partition=number) from error
                try:
                    _wait(backoff, error)
                except FastlogError as last:
                    raise DeliveryError(f"{taken} records were not delivered: {last}", taken, last) from last
        self._sequences[place] = (self._sequences.get(place, 0) + taken) % _SEQUENCES
        self._note(topic, number, taken, answer)

    def _note(self, topic: SinkTopic, number: int, taken: int, answer: Appended) -> None:
        place = topic.name, topic.broker, number
        before = self.delivered.get(place, Stretch(-1, -1, 0))
        known = [offset for offset in (before.offset, answer.offset) if offset >= 0]
        following = max(before.next_offset, answer.offset + taken if answer.offset >= 0 else -1)
        self.delivered[place] = Stretch(min(known, default=-1), following, before.messages + taken)


def _wait(backoff: BoundedBackoff, error: FastlogError) -> None:
    """Return after a pause where trying again may help; else raise."""
    if isinstance(error, TransportError):
        backoff.failed(error)
    elif isinstance(error, RecordsError) and error.code in _AGAIN:
        try:
            backoff.failed(TransportError(str(error)))
        except TransportError:
            raise error from None
    else:
        raise error


def _headers(column: pa.Array) -> Headers:
    """A column of arrays of name and value."""
    valid = column.is_valid().to_numpy(zero_copy_only=False).view(np.uint8) if column.null_count else None
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    pairs = column.values
    names, values = (spans_of(pairs.field(place)) for place in range(2))
    try:
        return Headers(ends, valid, Source(*names.source()), Source(*values.source()))
    except ValueError as error:
        raise ConfigError(f"column headers: {error}") from None

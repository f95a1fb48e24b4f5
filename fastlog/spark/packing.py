"""Writes the record batches of one task to topics. Runs in Spark's workers; needs pyarrow, knows no Spark."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fastlog.client.addresses import Address
from fastlog.client.connection import BoundedBackoff, Broker
from fastlog.envelope import server_id_of
from fastlog.errors import ConfigError, TransportError
from fastlog.producer._buffer import Buffer
from fastlog.producer._rows import hash_rows
from fastlog.producer.rows import RowSender, Stretch
from fastlog.spark._enveloped import Source, wrap
from fastlog.spark.record_packing import RecordRows, SinkTopics
from fastlog.spark.sink_options import SinkOptions
from fastlog.spark.spans import Spans, numbers_of, spans_of, times_of
from fastlog.wire.responses import MetadataAnswer

_ANY = -1


class WriteReport(NamedTuple):
    """What a task wrote. By partition (topic, broker, number) what was confirmed, as far as brokers tell it."""

    messages: int
    value_bytes: int
    partitions: dict[tuple[str, int, int], Stretch]
    possible_duplicates: int


def write_batches(batches: Iterable[pa.RecordBatch], options: SinkOptions, columns: Sequence[str]) -> WriteReport:
    """Write every row; return when all are confirmed as ``acks`` says.

    ``columns`` are the names of the batches' columns as ``check_columns`` gives them.

    Raises:
        ConfigError: a row has no value, topic or broker where it needs one.
        DeliveryError, TransportError, MessageTooLargeError: not all could be written; some may have been.
    """
    messages = value_bytes = 0
    with closing(_Kinds(options)) as kinds:
        for batch in batches:
            if batch.num_rows:
                messages += batch.num_rows
                value_bytes += kinds.send(batch, columns)
        return WriteReport(messages, value_bytes, *kinds.finish())


class _Kinds:
    """Sends rows to topics of messages, and of record batches. For one task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._topics = SinkTopics(options)
        self._records = RecordRows(options)
        self._sender: RowSender | None = None
        self._rows: _Rows | None = None
        self._close_timeout = 0.0  # what is on its way when a task fails is written once more when it is tried again

    def send(self, batch: pa.RecordBatch, names: Sequence[str]) -> int:
        """Send the rows of a batch, which has some; the bytes of their values."""
        if self._options.topic is not None:
            topics = {self._options.topic: None}
        else:
            column = batch.column(names.index("topic"))
            topics = {name.as_py(): pc.equal(column, name) for name in pc.unique(column) if name.is_valid}
            if column.null_count:
                raise ConfigError("column topic: a row is null, and no option names a topic")
        found = {name: self._topics.find(name) for name in topics}
        if not any(found.values()):
            return self._send_messages(_columns(batch, names))
        sent = 0
        for name, mask in topics.items():
            rows = batch if mask is None else batch.filter(mask)
            topic = found[name]
            if topic is None:
                sent += self._send_messages(_columns(rows, names))
            else:
                _check_for_records(self._options, name)
                sent += self._records.send(topic, _columns(rows, names))
        return sent

    def finish(self) -> tuple[dict[tuple[str, int, int], Stretch], int]:
        """Wait until everything is confirmed; what was delivered where, and how many messages may be there twice."""
        delivered = dict(self._records.delivered)
        if self._sender is None:
            return delivered, 0
        self._sender.flush()
        self._close_timeout = self._options.delivery_timeout
        return {**delivered, **self._sender.delivered()}, self._sender.possible_duplicates

    def close(self) -> None:
        """Close the producers and their connections."""
        self._topics.close()
        if self._sender is not None:
            self._sender.close(self._close_timeout)

    def _send_messages(self, columns: dict[str, pa.Array]) -> int:
        if self._sender is None or self._rows is None:
            if "headers" in columns:
                raise ConfigError(
                    "column headers: messages of Kafka 0.7 have none; schema=kafka makes topics of record batches"
                )
            if self._options.compression not in ("none", "gzip", "snappy"):
                raise ConfigError(
                    f"compression: messages of Kafka 0.7 know gzip and snappy, not {self._options.compression}"
                )
            self._sender = RowSender(self._options.producer_config(_addresses(self._options)))
            self._rows = _Rows(self._sender, self._options)
        return self._rows.send(columns)


def _columns(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, pa.Array]:
    return {name: batch.column(place) for place, name in enumerate(names) if name}


def _check_for_records(options: SinkOptions, topic: str) -> None:
    """Raise ``ConfigError`` for what messages alone can have."""
    if options.envelope:
        raise ConfigError(f"envelope: records of {topic!r} have keys and times of their own: leave it out")
    if options.acks == "none":
        raise ConfigError(
            f"acks: batches of records, of which {topic!r} consists, are acknowledged: flushed or appended"
        )


class _Rows:
    """Finds the buffer for each row of a batch. The buffers are kept: the same partition has the same number."""

    def __init__(self, sender: RowSender, options: SinkOptions) -> None:
        self._sender = sender
        self._topic = options.topic
        self._server_id: int | None = None
        if options.envelope:
            self._server_id = server_id_of(options.server if options.server is not None else socket.gethostname())
        self._buffers: list[Buffer] = []
        self._numbers: dict[object, int] = {}
        self._keyed: dict[str, tuple[list[Buffer], int]] = {}

    def send(self, columns: dict[str, pa.Array]) -> int:
        """Send the rows of a batch; the bytes of their values."""
        values = spans_of(columns["value"])
        if values.valid is not None:
            raise ConfigError("column value: a row is null, and a message of Kafka 0.7 has a value")
        count = len(values.ends) - 1
        data, ends = values.data, values.ends
        if self._server_id is not None:
            data, ends = _wrapped(values, columns, self._server_id)
        if self._topic is not None and "key" not in columns and "partition" not in columns:
            self._sender.send([self._sender.anywhere(self._topic)], None, data, ends)
        else:
            self._sender.send(self._buffers, self._destinations(columns, count), data, ends)
        return values.size_bytes

    def _destinations(self, columns: dict[str, pa.Array], count: int) -> np.ndarray[Any, Any]:
        found = np.empty(count, np.int32)
        left = np.ones(count, bool)
        hashes: np.ndarray[Any, Any] | None = None
        has_key = np.zeros(count, bool)
        if "key" in columns:
            keys = spans_of(columns["key"])
            hashes = np.empty(count, np.uint32)
            hash_rows(keys.data, keys.ends, hashes)
            has_key = np.ones(count, bool) if keys.valid is None else keys.valid
        by_hand = np.zeros(count, bool)
        if "partition" in columns:
            partitions = numbers_of(columns["partition"])
            by_hand = partitions != _ANY
            brokers = numbers_of(columns["broker"]) if "broker" in columns else np.full(count, _ANY, np.int64)
        for topic, mask in self._topics(columns, count):
            chosen = mask & by_hand
            if chosen.any():
                places = brokers[chosen] << 32 | partitions[chosen]
                distinct, inverse = np.unique(places, return_inverse=True)
                numbers = np.array([self._at(topic, int(place)) for place in distinct], np.int32)
                found[chosen] = numbers[inverse.reshape(-1)]
            left = mask & ~by_hand
            keyed = left & has_key
            if hashes is not None and keyed.any():
                buffers = self._sender.by_key(topic)
                if buffers is not None:
                    found[keyed] = self._first_of(topic, buffers) + hashes[keyed] % len(buffers)
                    left &= ~keyed
            if left.any():
                buffer = self._sender.anywhere(topic)
                found[left] = self._number(buffer, lambda buffer=buffer: buffer)  # type: ignore[misc]
        return found

    def _topics(self, columns: dict[str, pa.Array], count: int) -> Iterable[tuple[str, np.ndarray[Any, Any]]]:
        if self._topic is not None:
            yield self._topic, np.ones(count, bool)
            return
        coded = columns["topic"].dictionary_encode()
        if coded.null_count:
            raise ConfigError("column topic: a row is null, and no option names a topic")
        codes = np.asarray(coded.indices)
        for code, topic in enumerate(coded.dictionary.to_pylist()):
            yield topic, codes == code

    def _at(self, topic: str, place: int) -> int:
        broker, partition = place >> 32, place & 0xFFFFFFFF
        return self._number(
            (topic, place), lambda: self._sender.at(topic, None if broker == _ANY else broker, partition)
        )

    def _number(self, key: object, make: Callable[[], Buffer]) -> int:
        number = self._numbers.get(key)
        if number is None:
            self._buffers.append(make())
            number = self._numbers[key] = len(self._buffers) - 1
        return number

    def _first_of(self, topic: str, buffers: list[Buffer]) -> int:
        """The number of the first of a topic's buffers, which follow one another."""
        known = self._keyed.get(topic)
        if known is None or known[0] is not buffers:
            known = self._keyed[topic] = buffers, len(self._buffers)
            self._buffers += buffers
        return known[1]


def _wrapped(values: Spans, columns: dict[str, pa.Array], server_id: int) -> tuple[Any, Any]:
    """Values with envelopes. The time is that of writing where the frame has none."""
    count = len(values.ends) - 1
    times = times_of(columns.get("timestamp"), count)
    schemas = None
    if "schemaId" in columns:
        schemas = columns["schemaId"].fill_null(_ANY).to_numpy().astype(np.int64)
        if len(schemas) and not _ANY <= schemas.min() <= schemas.max() < 2**32:
            raise ConfigError("column schemaId: a number is not from 0 to 4294967295")
    keys, deduplications = (
        _source(spans_of(columns[name])) if name in columns else None for name in ("key", "deduplicationId")
    )
    try:
        return wrap(_source(values), times, server_id, schemas, keys, deduplications)
    except OverflowError as error:
        raise ConfigError(f"column deduplicationId: {error}") from None


def _source(spans: Spans) -> Source:
    return Source(*spans.source())


def _addresses(options: SinkOptions) -> dict[int, Address]:
    """Where each broker is, by its id; a broker of Kafka 0.7 that was given none gets its place in the list."""
    found: dict[int, Address] = {}
    for place, named in enumerate(options.brokers):
        broker = named.broker
        if broker is None:
            answer = _asked(named.address, options.connect_timeout)
            broker = place if answer is None else answer.broker_id
        if broker in found:
            raise ConfigError(f"brokers: {found[broker]} and {named.address} are both broker {broker}")
        found[broker] = named.address
    return found


def _asked(address: Address, seconds: float) -> MetadataAnswer | None:
    broker, backoff = Broker([address], seconds), BoundedBackoff(seconds)
    while True:
        try:
            return broker.metadata_or_none(())
        except TransportError as error:
            backoff.failed(error)

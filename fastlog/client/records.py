"""A broker's topics of record batches, as a client of today's protocol reaches them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from fastlog import record_batches
from fastlog.client import record_requests as requests
from fastlog.client.addresses import Address
from fastlog.client.kafka_connection import KafkaConnection, NotSpokenError, connected
from fastlog.client.kafka_fields import Answer, Place, Request
from fastlog.client.record_requests import Appended, Fetched, NumberedProducer, Refusal, TopicSetting
from fastlog.client.record_topics import (
    NO_TOPIC,
    ClusterView,
    KnownTopic,
    Stored,
    known_topics,
    parse_cluster,
    parse_known_topics,
    parse_sizes,
    parse_stored,
    stored,
)
from fastlog.errors import FastlogError, TransportError
from fastlog.kafka_codes import Code
from fastlog.message import DEFAULT_LIMITS, DeepLimits
from fastlog.record_batches import Record

_T = TypeVar("_T")

EARLIEST, LATEST = requests.EARLIEST, requests.LATEST
FETCH_BYTES = 1 << 20
_PURPOSE = "topics of record batches are reached"

_MEANINGS: dict[int, str] = {
    Code.OFFSET_OUT_OF_RANGE: "the offset is before the first record or behind the last one",
    Code.CORRUPT_MESSAGE: "the records are damaged",
    Code.UNKNOWN_TOPIC_OR_PARTITION: "the topic or the partition does not exist on this broker",
    Code.LEADER_NOT_AVAILABLE: "the topic is being made; it will be there soon",
    Code.NOT_LEADER_OR_FOLLOWER: "another broker leads the partition now",
    Code.REQUEST_TIMED_OUT: "it takes longer than the time allowed; it may have been done",
    Code.REPLICA_NOT_AVAILABLE: "the partition is not on this broker yet",
    Code.MESSAGE_TOO_LARGE: "the records are too large for the topic: raise its max.message.bytes",
    Code.COORDINATOR_LOAD_IN_PROGRESS: "the broker has just been started; it will answer soon",
    Code.COORDINATOR_NOT_AVAILABLE: "the broker has just been started; it will answer soon",
    Code.INVALID_TOPIC_EXCEPTION: "the name is not one that a topic may have",
    Code.RECORD_LIST_TOO_LARGE: "the batch is larger than a segment of the topic: raise its segment.bytes",
    Code.NOT_ENOUGH_REPLICAS: "copies of the partition are missing: nothing was stored",
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "copies of the partition are missing: what was stored may be gone with"
    " its only copy",
    Code.INVALID_REQUIRED_ACKS: "the broker knows no such acks",
    Code.TOPIC_AUTHORIZATION_FAILED: "the broker does not allow that with the topic, or shares its ZooKeeper with"
    " others",
    Code.CLUSTER_AUTHORIZATION_FAILED: "the broker does not allow that to this client",
    Code.INVALID_TIMESTAMP: "the time of a record is not one that the topic takes: more than an hour from now, or none",
    Code.TOPIC_ALREADY_EXISTS: "the topic exists already",
    Code.INVALID_PARTITIONS: "a topic cannot have so many partitions",
    Code.INVALID_REPLICATION_FACTOR: "this broker is alone: a replication factor of 1 is all there is",
    Code.INVALID_CONFIG: "a setting is unknown, or its value cannot be used",
    Code.INVALID_REQUEST: "the request cannot be carried out as it stands",
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic is one of Kafka 0.7, which has messages and no records",
    Code.POLICY_VIOLATION: "the broker's settings do not allow it",
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: "the broker has no batch that this one follows",
    Code.INVALID_PRODUCER_EPOCH: "the broker knows the producer by a later epoch",
    Code.KAFKA_STORAGE_ERROR: "the disk refuses, or the partition is out of service: the broker's log says more",
    Code.UNKNOWN_PRODUCER_ID: "the broker does not know the producer any more",
    Code.TOPIC_DELETION_DISABLED: "the broker's settings do not allow topics to be deleted",
    Code.FENCED_LEADER_EPOCH: "the broker has been started anew, and what was asked for may be gone",
    Code.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not take this codec from this client, or for this topic",
    Code.INVALID_RECORD: "a record is malformed",
    Code.UNKNOWN_TOPIC_ID: "the topic was deleted, or made anew",
    Code.INCONSISTENT_TOPIC_ID: "the topic was deleted, or made anew",
}


def meaning_of(code: int) -> str:
    """An error code of today's protocol in words, as far as topics of record batches meet it."""
    return f"{_MEANINGS.get(code, 'an error of which this client knows nothing')} (error {code})"


class RecordsError(FastlogError):
    """The broker refuses what was asked of a topic of record batches; ``code`` is the number on the wire."""

    def __init__(self, message: str, code: int = -1) -> None:
        super().__init__(message)
        self.code = code


def require(code: int, topic: str, partition: int | None = None, text: str = "") -> None:
    """Raise ``RecordsError`` for any code but 0; ``text``: the broker's own words."""
    if code:
        raise RecordsError(text or meaning_of(code), code).at(topic=topic, partition=partition)


class RecordBroker:
    """One broker, asked one thing at a time over a connection that is made when it is needed. For one thread.

    Raises (every call):
        TransportError: it cannot be reached, or does not answer within ``timeout`` seconds beyond those that the call
            itself may take. The next call connects anew. ``NotSpokenError``: it does not speak today's protocol.
        RecordsError: it refuses.
    """

    def __init__(self, addresses: Sequence[Address], *, timeout: float, client: str = "fastlog") -> None:
        """``addresses``: of one broker, tried in their order. ``client``: what its log calls this client."""
        self._connection: KafkaConnection | None = None
        self.addresses = list(addresses)
        self._timeout = timeout
        self._client = client

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- records -------------------------------------------------------------------------------------------------------

    def offsets(self, places: Iterable[Place], time_ms: int) -> dict[Place, int]:
        """The first offset with that time or later, or ``EARLIEST``, ``LATEST``; -1 where no record is so late."""
        found = self._ask(requests.list_offsets(places, time_ms), requests.parse_offsets)
        for (topic, partition), (code, _) in found.items():
            require(code, topic, partition)
        return {place: offset for place, (_, offset) in found.items()}

    def fetch(
        self, offsets: Mapping[Place, int], *, max_wait: float = 0.0, min_bytes: int = 1, max_bytes: int = FETCH_BYTES
    ) -> dict[Place, Fetched]:
        """What there is from these offsets on; waits up to ``max_wait`` seconds for ``min_bytes``.

        A partition that cannot be read has a code of its own and nothing else.
        """
        request = requests.fetch(offsets, max_wait_ms=round(max_wait * 1000), min_bytes=min_bytes, max_bytes=max_bytes)
        return self._ask(request, requests.parse_fetched, max_wait)

    def append(self, batches: Mapping[Place, bytes], *, is_flushed: bool) -> dict[Place, Appended]:
        """Append a batch to each of these partitions; answered when they are appended, or flushed."""
        request = requests.produce(batches, acks=-1 if is_flushed else 1, timeout_ms=round(self._timeout * 1000))
        return self._ask(request, requests.parse_appended)

    def store(self, place: Place, batches: Sequence[bytes | bytearray]) -> list[int]:
        """Append batches of another log as they are, each at its own offset or not at all: an error code for each.

        45: it is not the one that follows the log. What is sent again is stored once.
        """
        request = requests.store(place, batches, timeout_ms=round(self._timeout * 1000))
        return self._ask(request, requests.parse_stored_parts)

    def new_producer(self) -> NumberedProducer:
        """An id, by which the broker knows batches that come again: for ``record_batches.build``, numbered from 0."""
        found = self._ask(requests.new_producer(), requests.parse_producer)
        if found.code:
            raise RecordsError(meaning_of(found.code), found.code)
        return found

    # -- topics --------------------------------------------------------------------------------------------------------

    def known_topics(self, names: Iterable[str] | None = None) -> dict[str, KnownTopic]:
        """What there is of these topics of record batches, or of all; one that is made anew has another id."""
        wanted = None if names is None else list(names)
        found = self._ask(known_topics(wanted), parse_known_topics)
        return dict.fromkeys(wanted or (), NO_TOPIC) | found

    def cluster(self, names: Iterable[str]) -> ClusterView:
        """The same of topics that are there, with the brokers of the cluster and who of them leads which partition."""
        return self._ask(known_topics(names), parse_cluster)

    def stored(self, places: Iterable[Place]) -> dict[Place, Stored]:
        """The bytes of these partitions, and the log directories that they are in; without what is not there."""
        return self._ask(stored(places), parse_stored)

    def reaches_this_host(self) -> bool:
        """Whether the connection, made for the question if need be, has the same address at both ends."""
        return self._ready(time.monotonic() + self._timeout).same_host

    def sizes(self) -> dict[Place, int]:
        """The bytes of the files of each partition, of topics that today's clients see."""
        return self._ask(stored(None), parse_sizes)

    def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Make a topic; -1 partitions: as many as the broker is configured to."""
        self._change(requests.create_topic(topic, partitions, settings, self._change_ms()), topic)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of a topic's partitions to ``partitions``. Raises as ``create``."""
        self._change(requests.create_partitions(topic, partitions, self._change_ms()), topic)

    def delete(self, topic: str) -> None:
        """Delete a topic; answered when its name can be used again."""
        require(self._ask(requests.delete_topic(topic, self._change_ms()), requests.parse_deleted), topic)

    def delete_records(self, place: Place, offset: int) -> None:
        """Let a partition begin at a later offset; answered when nothing before it comes back."""
        found = self._ask(requests.delete_records(place, offset, self._change_ms()), requests.parse_deleted_records)
        require(found.get(place, Code.UNKNOWN_TOPIC_OR_PARTITION), *place)

    def settings(self, topic: str) -> dict[str, TopicSetting]:
        """The settings of a topic, its own and the broker's."""
        refusal, found = self._ask(requests.describe_settings(topic), requests.parse_settings)
        require(refusal.code, topic, text=refusal.text)
        return found

    def change_settings(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Give a topic settings of its own; None: the broker's hold again."""
        refusal = self._ask(requests.alter_settings(topic, changes), requests.parse_altered)
        require(refusal.code, topic, text=refusal.text)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _change_ms(self) -> int:
        """What the broker may take for a change; this client waits longer, so that it hears of it."""
        return max(1, round(self._timeout * 900))

    def _change(self, request: Request, topic: str) -> None:
        refusal: Refusal = self._ask(request, requests.parse_created)
        require(refusal.code, topic, text=refusal.text)

    def _ask(self, request: Request, parse: Callable[[Answer], _T], seconds: float = 0.0) -> _T:
        deadline = time.monotonic() + self._timeout + seconds
        try:
            return parse(self._ready(deadline).ask(request, deadline))
        except BaseException:
            self.close()  # an answer may come that nobody waits for
            raise

    def _ready(self, deadline: float) -> KafkaConnection:
        if self._connection is not None and self._connection.is_quiet():
            return self._connection
        self.close()
        reasons = []
        failure = TransportError
        for address in self.addresses:
            try:
                self._connection = connected(address, self._client, deadline)
                self._connection.begin(_PURPOSE, deadline)
                return self._connection
            except TransportError as error:
                self.close()
                reasons.append(str(error.reason))
                if isinstance(error, NotSpokenError):
                    failure = NotSpokenError  # whatever the other addresses of the broker say
        raise failure("; ".join(reasons))


def records_in(
    fetched: Fetched, offset: int, limits: DeepLimits = DEFAULT_LIMITS
) -> Iterator[tuple[int, list[Record]]]:
    """Of each whole batch: where to go on behind it, and its records from ``offset`` on.

    None of a control batch. Raises as ``record_batches.records`` and ``record_batches.batches``.
    """
    for header, batch in record_batches.batches(fetched.batches):
        if header.next_offset > offset:
            found = [] if header.is_control else record_batches.records(batch, limits)
            yield header.next_offset, [record for record in found if record.offset >= offset]

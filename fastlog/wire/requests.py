"""Requests as bytes and back: the five kinds of Kafka 0.7, and fastlog's own from 1000 up (``docs/protocol.md``).

Every ``encode_*`` returns a whole frame, its size included; ``decode_request`` takes a frame's body (from the int16 id
on). Frames of 0.7 may have bytes behind the last field, which are ignored as 0.7.2 does; fastlog's own end exactly.

Source: Kafka 0.7.2, ``kafka.api``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from fastlog.errors import InvalidRequestError, UnsupportedVersionError
from fastlog.wire.fields import INT32, Reader, frame, pack, string

PRODUCE = 0
FETCH = 1
MULTIFETCH = 2
MULTIPRODUCE = 3
OFFSETS = 4
PRODUCE_ACK = 1000
HELD_FETCH = 1001
METADATA = 1002
CUT_POINTS = 1003
LOCAL_READ = 1004
CREATE_TOPIC = 1005
DELETE_TOPIC = 1006
LOWEST_OWN = PRODUCE_ACK
HIGHEST_OWN = DELETE_TOPIC

OWN_VERSION = 1
METADATA_VERSION = 2
"""The newest of METADATA, the only request that has more than one: since 2, its answer tells when logs were made."""
MAX_MADE_PARTITIONS = 1024
"""The most new partitions that one CREATE_TOPIC makes; whoever wants more asks again, for more."""
PLAIN_MESSAGE_BYTES = 1_000_000
"""0.7.2's ``max.message.size``. A plain broker tells no limit, and drops what is longer without a word."""
ACKS_APPENDED = 1
ACKS_FLUSHED = 2
ANY_PARTITION = -1
TIME_LATEST = -1
TIME_EARLIEST = -2


class OffsetsRequest(NamedTuple):
    """At most ``max_count`` segment starts not newer than ``time`` (epoch ms, -1 latest, -2 earliest)."""

    topic: str
    partition: int
    time: int
    max_count: int


class MetadataRequest(NamedTuple):
    """What the broker is and holds; ``topics`` None asks for all of them."""

    correlation_id: int
    topics: tuple[str, ...] | None
    version: int = METADATA_VERSION


class CutPointsRequest(NamedTuple):
    """Message boundaries in [start, end), about ``step_bytes`` apart."""

    correlation_id: int
    topic: str
    partition: int
    start: int
    end: int
    step_bytes: int
    max_points: int


class LocalReadRequest(NamedTuple):
    """Where on this machine the segments of a partition are."""

    correlation_id: int
    topic: str
    partition: int


class CreateTopicRequest(NamedTuple):
    """Create a topic's partitions; 0 partitions means the configured count."""

    correlation_id: int
    topic: str
    partitions: int


class DeleteTopicRequest(NamedTuple):
    """Delete a topic: all its partitions, with what they hold."""

    correlation_id: int
    topic: str


Request = (
    OffsetsRequest | MetadataRequest | CutPointsRequest | LocalReadRequest | CreateTopicRequest | DeleteTopicRequest
)
"""Those that the broker reads here; its compiled code reads the others."""


def encode_produce(topic: str, partition: int, message_set: bytes) -> bytes:
    """A PRODUCE frame; partition -1 lets the broker choose."""
    return frame(pack("h", PRODUCE), *_produce_parts(topic, partition, message_set))


def encode_fetch(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """A FETCH frame."""
    return frame(pack("h", FETCH), _fetch_body(topic, partition, offset, max_bytes))


def encode_multifetch(fetches: Iterable[tuple[str, int, int, int]]) -> bytes:
    """A MULTIFETCH frame of (topic, partition, offset, max_bytes)."""
    bodies = [_fetch_body(*fetch) for fetch in fetches]
    return frame(pack("hh", MULTIFETCH, len(bodies)), *bodies)


def encode_multiproduce(produces: Iterable[tuple[str, int, bytes]]) -> bytes:
    """A MULTIPRODUCE frame of (topic, partition, message set)."""
    bodies = [_produce_parts(*produce) for produce in produces]
    return frame(pack("hh", MULTIPRODUCE, len(bodies)), *(part for parts in bodies for part in parts))


def encode_offsets(topic: str, partition: int, time: int, max_count: int) -> bytes:
    """An OFFSETS frame; ``time`` in epoch ms, -1 latest, -2 earliest."""
    return frame(pack("h", OFFSETS), string(topic), pack("iqi", partition, time, max_count))


def encode_produce_ack(
    correlation_id: int,
    acks: int,
    topic: str,
    partition: int,
    message_set: bytes,
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    """A PRODUCE_ACK frame; producer id, epoch and sequence are refused by the broker unless they are -1."""
    fixed = pack("bqhi", acks, producer_id, epoch, sequence)
    parts = _produce_parts(topic, partition, message_set)
    return frame(_own(PRODUCE_ACK, correlation_id), fixed, *parts)


def encode_held_fetch(
    correlation_id: int, max_wait_ms: int, min_bytes: int, topic: str, partition: int, offset: int, max_bytes: int
) -> bytes:
    """A HELD_FETCH frame."""
    name, layout = _held_fetch_layout(topic)
    fields = (HELD_FETCH, OWN_VERSION, correlation_id, max_wait_ms, min_bytes, name, partition, offset, max_bytes)
    try:
        return layout.pack(layout.size - INT32.size, *fields)
    except struct.error as error:
        raise InvalidRequestError(f"a field is out of range: {fields}: {error}") from error


@functools.lru_cache(1024)
def _held_fetch_layout(topic: str) -> tuple[bytes, struct.Struct]:
    """The topic as it goes into a frame, and the frame. Kept, since a consumer makes one frame for each fetch."""
    name = string(topic)
    return name, struct.Struct(f">ihhiii{len(name)}siqi")


def encode_metadata(correlation_id: int, topics: Iterable[str] | None = None, version: int = METADATA_VERSION) -> bytes:
    """A METADATA frame; None asks for every topic. A broker that knows no such version answers error 104."""
    head = _own(METADATA, correlation_id, version)
    if topics is None:
        return frame(head, pack("i", -1))
    names = [string(topic) for topic in topics]
    return frame(head, pack("i", len(names)), *names)


def encode_cut_points(
    correlation_id: int, topic: str, partition: int, start: int, end: int, step_bytes: int, max_points: int
) -> bytes:
    """A CUT_POINTS frame."""
    fields = pack("iqqqi", partition, start, end, step_bytes, max_points)
    return frame(_own(CUT_POINTS, correlation_id), string(topic), fields)


def encode_local_read(correlation_id: int, topic: str, partition: int) -> bytes:
    """A LOCAL_READ frame."""
    return frame(_own(LOCAL_READ, correlation_id), string(topic), pack("i", partition))


def encode_create_topic(correlation_id: int, topic: str, partitions: int = 0) -> bytes:
    """A CREATE_TOPIC frame; 0 partitions asks for the configured count."""
    return frame(_own(CREATE_TOPIC, correlation_id), string(topic), pack("i", partitions))


def encode_delete_topic(correlation_id: int, topic: str) -> bytes:
    """A DELETE_TOPIC frame."""
    return frame(_own(DELETE_TOPIC, correlation_id), string(topic))


def decode_request(body: bytes) -> Request:
    """The request in a frame's body.

    Raises:
        InvalidRequestError: an unknown id, or fields that contradict the frame.
        UnsupportedVersionError: one of fastlog's own requests in a version that is not known.
    """
    reader = Reader(body, InvalidRequestError)
    kind = reader.int16("request id")
    if kind == OFFSETS:
        return _offsets(reader)
    decode_own = _OWN_KINDS.get(kind)
    if decode_own is None:
        raise InvalidRequestError(f"unknown request id {kind}")
    version = reader.int16("version")
    newest = METADATA_VERSION if kind == METADATA else OWN_VERSION
    if not OWN_VERSION <= version <= newest:
        raise UnsupportedVersionError(f"request {kind} has version {version}, the newest known is {newest}")
    request = decode_own(reader, reader.int32("correlation id"))
    reader.end()
    return request._replace(version=version) if isinstance(request, MetadataRequest) else request


def _own(kind: int, correlation_id: int, version: int = OWN_VERSION) -> bytes:
    return pack("hhi", kind, version, correlation_id)


def _produce_parts(topic: str, partition: int, message_set: bytes) -> tuple[bytes, bytes, bytes]:
    return string(topic), pack("ii", partition, len(message_set)), message_set


def _fetch_body(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    return string(topic) + pack("iqi", partition, offset, max_bytes)


def _offsets(reader: Reader) -> OffsetsRequest:
    topic, partition = reader.string("topic"), reader.int32("partition")
    return OffsetsRequest(topic, partition, reader.int64("time"), reader.int32("max count"))


def _metadata(reader: Reader, correlation_id: int) -> MetadataRequest:
    if reader.left == 4:  # no room for a name: the count is -1 (all) or 0
        count = reader.int32("count of topics")
        if count not in (-1, 0):
            raise reader.error(f"count of topics is {count}, with nothing left")
        return MetadataRequest(correlation_id, None if count == -1 else ())
    count = reader.count("count of topics", 2)
    return MetadataRequest(correlation_id, tuple(reader.string("topic") for _ in range(count)))


def _cut_points(reader: Reader, correlation_id: int) -> CutPointsRequest:
    return CutPointsRequest(
        correlation_id,
        reader.string("topic"),
        reader.int32("partition"),
        reader.int64("start"),
        reader.int64("end"),
        reader.int64("step bytes"),
        reader.int32("max points"),
    )


def _local_read(reader: Reader, correlation_id: int) -> LocalReadRequest:
    return LocalReadRequest(correlation_id, reader.string("topic"), reader.int32("partition"))


def _create_topic(reader: Reader, correlation_id: int) -> CreateTopicRequest:
    return CreateTopicRequest(correlation_id, reader.string("topic"), reader.int32("partitions"))


def _delete_topic(reader: Reader, correlation_id: int) -> DeleteTopicRequest:
    return DeleteTopicRequest(correlation_id, reader.string("topic"))


_OWN_KINDS: dict[int, Callable[[Reader, int], Request]] = {
    METADATA: _metadata,
    CUT_POINTS: _cut_points,
    LOCAL_READ: _local_read,
    CREATE_TOPIC: _create_topic,
    DELETE_TOPIC: _delete_topic,
}

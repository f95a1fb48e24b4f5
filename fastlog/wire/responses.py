"""Answers as bytes and back: those of Kafka 0.7, and fastlog's own (``docs/protocol.md``).

Every ``encode_*`` returns a whole frame, its size included; every ``decode_*`` takes a frame's body. An answer of 0.7
begins with its int16 error and carries no id: answers come in the order of the requests. fastlog's own begin with the
int32 correlation id of the request, then the int16 error. The body behind an error is empty unless a kind says
otherwise. Decoding never raises for an error code: it is a field, and ``fastlog.errors.error_for`` makes the exception.

Source: Kafka 0.7.2, ``kafka.server.MessageSetSend``, ``MultiMessageSetSend``, ``kafka.api.OffsetRequest``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from fastlog.wire.fields import Reader, frame, pack, string
from fastlog.wire.requests import METADATA_VERSION

STATE_OK = 0
STATE_READ_ONLY = 1
STATE_OFFLINE = 2
STATE_NAMES = {STATE_OK: "ok", STATE_READ_ONLY: "read-only", STATE_OFFLINE: "offline"}

_LEAST_SUB_ANSWER_BYTES = 2
_LEAST_TOPIC_BYTES = 2 + 2 + 4 + 4
_PARTITION_1 = struct.Struct(">ihqqq")  # number, state, log start, high watermark, log end
_PARTITION = struct.Struct(">ihqqqq")  # the same, and when the log was made
_HELD_FETCH_HEAD = struct.Struct(">ihqq")  # correlation id, error, high watermark, log start


class OffsetsAnswer(NamedTuple):
    """The answer to OFFSETS: offsets, newest first."""

    error: int
    offsets: tuple[int, ...] = ()


class ProduceAckAnswer(NamedTuple):
    """Where a message set was appended; -1 for what is not known because of an error."""

    correlation_id: int
    error: int
    partition: int = -1
    base_offset: int = -1
    next_offset: int = -1


class HeldFetchAnswer(NamedTuple):
    """The bytes of one long poll, empty when the wait ended without any; they may end inside a message.

    The positions are there after an error too, when the broker knows them.
    """

    correlation_id: int
    error: int
    high_watermark: int = -1
    log_start: int = -1
    message_set: bytes = b""


class PartitionMetadata(NamedTuple):
    """One partition that exists on the broker; ``state`` is one of ``STATE_NAMES``.

    ``created_ms`` names the log: one that was deleted and made anew has another number, whatever its offsets are. 0 is
    not known, and says nothing: a broker that does not tell it, a log whose creation nobody wrote down.
    """

    partition: int
    state: int
    log_start: int
    high_watermark: int
    log_end: int
    created_ms: int = 0


class TopicMetadata(NamedTuple):
    """One topic; ``partitions`` lists those that exist, ``configured_partitions`` how many there may be."""

    name: str
    error: int
    configured_partitions: int
    partitions: tuple[PartitionMetadata, ...] = ()


class MetadataAnswer(NamedTuple):
    """What the broker is, what it accepts, and what it holds."""

    correlation_id: int
    error: int
    broker_id: int = -1
    advertised_host: str = ""
    port: int = -1
    max_message_bytes: int = -1
    max_request_bytes: int = -1
    max_wait_ms: int = -1
    lowest_own_id: int = -1
    highest_own_id: int = -1
    topics: tuple[TopicMetadata, ...] = ()


class CutPointsAnswer(NamedTuple):
    """The answer to CUT_POINTS: offsets at which messages begin, ascending."""

    correlation_id: int
    error: int
    offsets: tuple[int, ...] = ()


class LocalReadAnswer(NamedTuple):
    """What a reader on the broker's machine needs to open the segments itself."""

    correlation_id: int
    error: int
    directory: str = ""
    format: str = ""
    log_start: int = -1
    high_watermark: int = -1
    base_offsets: tuple[int, ...] = ()


class CreateTopicAnswer(NamedTuple):
    """How many partitions the topic may have now."""

    correlation_id: int
    error: int
    partitions: int = -1


class DeleteTopicAnswer(NamedTuple):
    """The answer to DELETE_TOPIC: the number of partitions deleted."""

    correlation_id: int
    error: int
    partitions: int = -1


def encode_offsets(error: int, offsets: Iterable[int] = ()) -> bytes:
    """An OFFSETS answer."""
    found = tuple(offsets)
    return frame(pack("hi", error, len(found)), pack(f"{len(found)}q", *found))


def encode_metadata(answer: MetadataAnswer, version: int = METADATA_VERSION) -> bytes:
    """A METADATA answer, in the version of the request."""
    if answer.error:
        return encode_own_error(answer.correlation_id, answer.error)
    parts = [
        _own(answer.correlation_id, 0),
        pack("i", answer.broker_id),
        string(answer.advertised_host),
        pack("iiii", answer.port, answer.max_message_bytes, answer.max_request_bytes, answer.max_wait_ms),
        pack("hhi", answer.lowest_own_id, answer.highest_own_id, len(answer.topics)),
    ]
    for topic in answer.topics:
        parts += [string(topic.name), pack("hii", topic.error, topic.configured_partitions, len(topic.partitions))]
        layout = _partition_layout(version)
        parts += [layout.pack(*item) if layout is _PARTITION else layout.pack(*item[:-1]) for item in topic.partitions]
    return frame(*parts)


def encode_cut_points(answer: CutPointsAnswer) -> bytes:
    """A CUT_POINTS answer."""
    if answer.error:
        return encode_own_error(answer.correlation_id, answer.error)
    return frame(_own(answer.correlation_id, 0), _offsets(answer.offsets))


def encode_local_read(answer: LocalReadAnswer) -> bytes:
    """A LOCAL_READ answer."""
    if answer.error:
        return encode_own_error(answer.correlation_id, answer.error)
    return frame(
        _own(answer.correlation_id, 0),
        string(answer.directory),
        string(answer.format),
        pack("qq", answer.log_start, answer.high_watermark),
        _offsets(answer.base_offsets),
    )


def encode_create_topic(answer: CreateTopicAnswer) -> bytes:
    """A CREATE_TOPIC answer."""
    if answer.error:
        return encode_own_error(answer.correlation_id, answer.error)
    return frame(_own(answer.correlation_id, 0), pack("i", answer.partitions))


def encode_delete_topic(answer: DeleteTopicAnswer) -> bytes:
    """A DELETE_TOPIC answer."""
    if answer.error:
        return encode_own_error(answer.correlation_id, answer.error)
    return frame(_own(answer.correlation_id, 0), pack("i", answer.partitions))


def encode_own_error(correlation_id: int, error: int) -> bytes:
    """An answer to one of fastlog's own requests that has nothing but an error."""
    return frame(_own(correlation_id, error))


def split_fetch(body: memoryview) -> tuple[int, memoryview]:
    """Error and messages of the answer to a FETCH, without a copy. Raises ``ProtocolError`` when it is too short."""
    return Reader(body).int16("error"), body[2:]


def split_multifetch(body: memoryview) -> list[tuple[int, memoryview]]:
    """Error and messages of each part of a MULTIFETCH, without a copy; otherwise as ``decode_multifetch``."""
    error, rest = split_fetch(body)
    if error:
        return [(error, rest)]
    parts = []
    while rest:
        reader = Reader(rest[:4])
        size = reader.int32("size of a part")
        if not _LEAST_SUB_ANSWER_BYTES <= size <= len(rest) - 4:
            raise reader.error(f"a part announces {size} bytes, {len(rest) - 4} follow")
        parts.append(split_fetch(rest[4 : 4 + size]))
        rest = rest[4 + size :]
    return parts


def decode_held_fetch(body: bytes) -> HeldFetchAnswer:
    """The answer to a HELD_FETCH. Raises ``ProtocolError`` when it is cut short."""
    reader, correlation_id, error = _own_answer(body)
    if error and not reader.left:
        return HeldFetchAnswer(correlation_id, error)
    high_watermark, log_start = reader.int64("high watermark"), reader.int64("log start")
    return HeldFetchAnswer(correlation_id, error, high_watermark, log_start, b"" if error else reader.rest())


def split_held_fetch(body: memoryview) -> tuple[HeldFetchAnswer, memoryview]:
    """The answer to a HELD_FETCH and, beside it, its messages without a copy. Raises as ``decode_held_fetch``."""
    if len(body) < _HELD_FETCH_HEAD.size:
        return decode_held_fetch(bytes(body)), body[:0]
    answer = HeldFetchAnswer(*_HELD_FETCH_HEAD.unpack_from(body))
    return answer, body[_HELD_FETCH_HEAD.size :] if not answer.error else body[:0]


def decode_offsets(body: bytes | memoryview) -> OffsetsAnswer:
    """The answer to an OFFSETS. Raises ``ProtocolError`` when it does not hold what it announces."""
    reader = Reader(body)
    error = reader.int16("error")
    if error and not reader.left:
        return OffsetsAnswer(error)
    return OffsetsAnswer(error, _read_offsets(reader))


def decode_produce_ack(body: bytes) -> ProduceAckAnswer:
    """The answer to a PRODUCE_ACK. Raises ``ProtocolError`` when it is cut short or too long."""
    reader, correlation_id, error = _own_answer(body)
    if error and not reader.left:
        return ProduceAckAnswer(correlation_id, error)
    answer = ProduceAckAnswer(
        correlation_id, error, reader.int32("partition"), reader.int64("base offset"), reader.int64("next offset")
    )
    reader.end()
    return answer


def decode_metadata(body: bytes, version: int = METADATA_VERSION) -> MetadataAnswer:
    """The answer to a METADATA of a version. Raises ``ProtocolError`` when it does not hold what it announces."""
    reader, correlation_id, error = _own_answer(body)
    if error:
        return MetadataAnswer(correlation_id, error)
    answer = MetadataAnswer(
        correlation_id,
        0,
        broker_id=reader.int32("broker id"),
        advertised_host=reader.string("advertised host"),
        port=reader.int32("port"),
        max_message_bytes=reader.int32("max message bytes"),
        max_request_bytes=reader.int32("max request bytes"),
        max_wait_ms=reader.int32("max wait"),
        lowest_own_id=reader.int16("lowest own id"),
        highest_own_id=reader.int16("highest own id"),
        topics=tuple(_read_topic(reader, version) for _ in range(reader.count("count of topics", _LEAST_TOPIC_BYTES))),
    )
    reader.end()
    return answer


def decode_cut_points(body: bytes | memoryview) -> CutPointsAnswer:
    """The answer to a CUT_POINTS. Raises ``ProtocolError`` when it does not hold what it announces."""
    reader, correlation_id, error = _own_answer(body)
    if error:
        return CutPointsAnswer(correlation_id, error)
    answer = CutPointsAnswer(correlation_id, 0, _read_offsets(reader))
    reader.end()
    return answer


def decode_local_read(body: bytes) -> LocalReadAnswer:
    """The answer to a LOCAL_READ. Raises ``ProtocolError`` when it does not hold what it announces."""
    reader, correlation_id, error = _own_answer(body)
    if error:
        return LocalReadAnswer(correlation_id, error)
    answer = LocalReadAnswer(
        correlation_id,
        0,
        directory=reader.string("directory"),
        format=reader.string("format"),
        log_start=reader.int64("log start"),
        high_watermark=reader.int64("high watermark"),
        base_offsets=_read_offsets(reader),
    )
    reader.end()
    return answer


def decode_create_topic(body: bytes) -> CreateTopicAnswer:
    """The answer to a CREATE_TOPIC. Raises ``ProtocolError`` when it is cut short or too long."""
    reader, correlation_id, error = _own_answer(body)
    if error:
        return CreateTopicAnswer(correlation_id, error)
    answer = CreateTopicAnswer(correlation_id, 0, reader.int32("partitions"))
    reader.end()
    return answer


def decode_delete_topic(body: bytes) -> DeleteTopicAnswer:
    """The answer to a DELETE_TOPIC. Raises ``ProtocolError`` when it is cut short or too long."""
    reader, correlation_id, error = _own_answer(body)
    if error:
        return DeleteTopicAnswer(correlation_id, error)
    answer = DeleteTopicAnswer(correlation_id, 0, reader.int32("partitions"))
    reader.end()
    return answer


def _own(correlation_id: int, error: int) -> bytes:
    return pack("ih", correlation_id, error)


def _own_answer(body: bytes | memoryview) -> tuple[Reader, int, int]:
    reader = Reader(body)
    return reader, reader.int32("correlation id"), reader.int16("error")


def _offsets(offsets: tuple[int, ...]) -> bytes:
    return pack(f"i{len(offsets)}q", len(offsets), *offsets)


def _read_offsets(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.int64("offset") for _ in range(reader.count("count of offsets", 8)))


def _read_topic(reader: Reader, version: int) -> TopicMetadata:
    name, error, configured = reader.string("topic"), reader.int16("error"), reader.int32("configured partitions")
    layout = _partition_layout(version)
    count = reader.count("count of partitions", layout.size)
    read = (layout.unpack(reader.take(layout.size, "partition")) for _ in range(count))
    return TopicMetadata(name, error, configured, tuple(PartitionMetadata(*fields) for fields in read))


def _partition_layout(version: int) -> struct.Struct:
    return _PARTITION if version >= METADATA_VERSION else _PARTITION_1

"""The broker's side of Kafka 0.7's wire, as its compiled code has it: for brokers and clients of tests.

Every ``encode_*`` returns a whole frame, its size included; every ``decode_*`` takes a frame's body. What clients
encode and decode, and what the broker reads in Python, is in ``fastlog.wire``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from fastlog.errors import InvalidRequestError, UnsupportedVersionError
from fastlog.wire import requests, responses
from fastlog.wire.fields import Reader, frame, pack

_LEAST_PRODUCE_BYTES = 2 + 4 + 4
_LEAST_FETCH_BYTES = 2 + 4 + 8 + 4
_LEAST_SUB_ANSWER_BYTES = 2


class ProduceRequest(NamedTuple):
    """Append a message set; never answered."""

    topic: str
    partition: int
    message_set: bytes


class FetchRequest(NamedTuple):
    """Read at most ``max_bytes`` from ``offset``."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class MultiFetchRequest(NamedTuple):
    """MULTIFETCH: several fetches with one answer."""

    fetches: tuple[FetchRequest, ...]


class MultiProduceRequest(NamedTuple):
    """Several produces, handled in order; never answered."""

    produces: tuple[ProduceRequest, ...]


class ProduceAckRequest(NamedTuple):
    """Append a message set and answer when it is appended (acks 1) or flushed (acks 2)."""

    correlation_id: int
    acks: int
    topic: str
    partition: int
    message_set: bytes
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1


class HeldFetchRequest(NamedTuple):
    """A fetch that waits up to ``max_wait_ms`` until ``min_bytes`` are visible."""

    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    topic: str
    partition: int
    offset: int
    max_bytes: int


class FetchAnswer(NamedTuple):
    """The bytes of one fetch; they may end inside a message."""

    error: int
    message_set: bytes = b""


Request = (
    ProduceRequest
    | FetchRequest
    | MultiFetchRequest
    | MultiProduceRequest
    | ProduceAckRequest
    | HeldFetchRequest
    | requests.Request
)


def decode_request(body: bytes) -> Request:
    """The request in a frame's body, of any kind. Raises as ``requests.decode_request``."""
    reader = Reader(body, InvalidRequestError)
    kind = reader.int16("request id")
    if kind in _KINDS_07:
        return _KINDS_07[kind](reader)
    if kind not in _OWN_KINDS:
        return requests.decode_request(body)
    version = reader.int16("version")
    if version != requests.OWN_VERSION:
        raise UnsupportedVersionError(
            f"request {kind} has version {version}, the newest known is {requests.OWN_VERSION}"
        )
    request = _OWN_KINDS[kind](reader, reader.int32("correlation id"))
    reader.end()
    return request


def encode_fetch(error: int, message_set: bytes = b"") -> bytes:
    """A FETCH answer; after an error the set is left out, as old clients expect an empty body."""
    return frame(pack("h", error), b"" if error else message_set)


def encode_multifetch(answers: Iterable[FetchAnswer]) -> bytes:
    """A MULTIFETCH answer; its own error is always 0, each part has its own."""
    return frame(pack("h", 0), *(encode_fetch(answer.error, answer.message_set) for answer in answers))


def encode_produce_ack(answer: responses.ProduceAckAnswer) -> bytes:
    """A PRODUCE_ACK answer; its body is there after an error too."""
    return frame(
        pack("ih", answer.correlation_id, answer.error),
        pack("iqq", answer.partition, answer.base_offset, answer.next_offset),
    )


def encode_held_fetch(answer: responses.HeldFetchAnswer) -> bytes:
    """A HELD_FETCH answer; after an error it has the positions and no messages."""
    positions = pack("qq", answer.high_watermark, answer.log_start)
    return frame(
        pack("ih", answer.correlation_id, answer.error), positions, b"" if answer.error else answer.message_set
    )


def decode_fetch(body: bytes) -> FetchAnswer:
    """The answer to a FETCH. Raises ``ProtocolError`` when the body is too short."""
    reader = Reader(body)
    return FetchAnswer(reader.int16("error"), reader.rest())


def decode_multifetch(body: bytes) -> tuple[FetchAnswer, ...]:
    """The answers of a MULTIFETCH, in the order of its parts.

    An error of the whole answer, which 0.7.2 never sends, is given as one part. Raises ``ProtocolError`` when a part
    does not fit its announced size.
    """
    reader = Reader(body)
    error = reader.int16("error")
    if error:
        return (FetchAnswer(error, reader.rest()),)
    answers = []
    while reader.left:
        size = reader.int32("size of a part")
        if size < _LEAST_SUB_ANSWER_BYTES:
            raise reader.error(f"a part announces {size} bytes")
        answers.append(decode_fetch(reader.take(size, "a part")))
    return tuple(answers)


def _produce(reader: Reader) -> ProduceRequest:
    topic, partition = reader.string("topic"), reader.int32("partition")
    return ProduceRequest(topic, partition, reader.sized_bytes("message set"))


def _fetch(reader: Reader) -> FetchRequest:
    topic, partition = reader.string("topic"), reader.int32("partition")
    return FetchRequest(topic, partition, reader.int64("offset"), reader.int32("max bytes"))


def _multifetch(reader: Reader) -> MultiFetchRequest:
    count = _count(reader, "count of fetches", _LEAST_FETCH_BYTES)
    return MultiFetchRequest(tuple(_fetch(reader) for _ in range(count)))


def _multiproduce(reader: Reader) -> MultiProduceRequest:
    count = _count(reader, "count of produces", _LEAST_PRODUCE_BYTES)
    return MultiProduceRequest(tuple(_produce(reader) for _ in range(count)))


def _produce_ack(reader: Reader, correlation_id: int) -> ProduceAckRequest:
    acks = reader.int8("acks")
    if acks not in (requests.ACKS_APPENDED, requests.ACKS_FLUSHED):
        raise reader.error(f"acks is {acks}, known are {requests.ACKS_APPENDED} and {requests.ACKS_FLUSHED}")
    producer_id, epoch, sequence = reader.int64("producer id"), reader.int16("epoch"), reader.int32("sequence")
    produce = _produce(reader)
    return ProduceAckRequest(
        correlation_id, acks, produce.topic, produce.partition, produce.message_set, producer_id, epoch, sequence
    )


def _held_fetch(reader: Reader, correlation_id: int) -> HeldFetchRequest:
    max_wait_ms, min_bytes = reader.int32("max wait"), reader.int32("min bytes")
    fetch = _fetch(reader)
    return HeldFetchRequest(
        correlation_id, max_wait_ms, min_bytes, fetch.topic, fetch.partition, fetch.offset, fetch.max_bytes
    )


def _count(reader: Reader, name: str, least_bytes_each: int) -> int:
    count = reader.int16(name)
    if count < 0 or count > reader.left // least_bytes_each:
        raise reader.error(f"{name} is {count}, with {reader.left} bytes left")
    return count


_KINDS_07: dict[int, Callable[[Reader], Request]] = {
    requests.PRODUCE: _produce,
    requests.FETCH: _fetch,
    requests.MULTIFETCH: _multifetch,
    requests.MULTIPRODUCE: _multiproduce,
}
_OWN_KINDS: dict[int, Callable[[Reader, int], Request]] = {
    requests.PRODUCE_ACK: _produce_ack,
    requests.HELD_FETCH: _held_fetch,
}

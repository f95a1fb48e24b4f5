"""Requests and answers of the broker as bytes, written a second time: Kafka 0.7's own, and fastlog's from 1000 up.

Nothing here imports fastlog: what the tests expect must not come from the code under test.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

PRODUCE, FETCH, MULTIFETCH, MULTIPRODUCE, OFFSETS = range(5)
PRODUCE_ACK, HELD_FETCH, METADATA, CUT_POINTS, LOCAL_READ, CREATE_TOPIC, DELETE_TOPIC = range(1000, 1007)
LATEST, EARLIEST = -1, -2
APPENDED, FLUSHED = 1, 2


# --- requests -------------------------------------------------------------------------------------------------------


def text(value: str | bytes) -> bytes:
    """A string on the wire: its length in bytes as int16, then UTF-8."""
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return struct.pack(">h", len(raw)) + raw


def frame(kind: int, body: bytes) -> bytes:
    """One request of Kafka 0.7."""
    return struct.pack(">ih", 2 + len(body), kind) + body


def place(topic: str | bytes, partition: int) -> bytes:
    """The topic and partition that open most bodies."""
    return text(topic) + struct.pack(">i", partition)


def produce_body(topic: str | bytes, partition: int, messages: bytes) -> bytes:
    return place(topic, partition) + struct.pack(">i", len(messages)) + messages


def produce_frame(topic: str | bytes, partition: int, messages: bytes) -> bytes:
    return frame(PRODUCE, produce_body(topic, partition, messages))


def multiproduce_frame(parts: Sequence[tuple[str, int, bytes]]) -> bytes:
    return frame(MULTIPRODUCE, struct.pack(">h", len(parts)) + b"".join(produce_body(*part) for part in parts))


def fetch_body(topic: str | bytes, partition: int, offset: int, max_bytes: int) -> bytes:
    return place(topic, partition) + struct.pack(">qi", offset, max_bytes)


def fetch_frame(topic: str | bytes, partition: int, offset: int, max_bytes: int = 1 << 20) -> bytes:
    return frame(FETCH, fetch_body(topic, partition, offset, max_bytes))


def multifetch_frame(parts: Sequence[tuple[str, int, int, int]]) -> bytes:
    return frame(MULTIFETCH, struct.pack(">h", len(parts)) + b"".join(fetch_body(*part) for part in parts))


def offsets_frame(topic: str | bytes, partition: int, when: int, max_count: int) -> bytes:
    return frame(OFFSETS, place(topic, partition) + struct.pack(">qi", when, max_count))


def own_frame(kind: int, body: bytes, *, version: int = 1, correlation: int = 0) -> bytes:
    """One of fastlog's own requests: kind, version and correlation id come before the body."""
    return frame(kind, struct.pack(">hi", version, correlation) + body)


def produce_ack_body(
    topic: str | bytes,
    partition: int,
    messages: bytes,
    acks: int = APPENDED,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """``producer`` is producer id, epoch and sequence."""
    return struct.pack(">bqhi", acks, *producer) + produce_body(topic, partition, messages)


def held_fetch_body(
    topic: str | bytes, partition: int, offset: int, max_bytes: int, max_wait_ms: int, min_bytes: int
) -> bytes:
    return struct.pack(">ii", max_wait_ms, min_bytes) + fetch_body(topic, partition, offset, max_bytes)


def metadata_body(topics: Sequence[str | bytes] | None) -> bytes:
    """``None`` asks for every topic."""
    if topics is None:
        return struct.pack(">i", -1)
    return struct.pack(">i", len(topics)) + b"".join(text(topic) for topic in topics)


def cut_points_body(topic: str, partition: int, start: int, end: int, step_bytes: int, max_points: int) -> bytes:
    return place(topic, partition) + struct.pack(">qqqi", start, end, step_bytes, max_points)


# --- answers --------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """An answer's error code and what follows it."""

    error: int
    body: bytes


class Appended(NamedTuple):
    error: int
    partition: int
    base_offset: int
    next_offset: int


class Held(NamedTuple):
    error: int
    high_watermark: int
    log_start: int
    messages: bytes


class PartitionState(NamedTuple):
    partition: int
    state: int
    log_start: int
    high_watermark: int
    log_end: int


class TopicState(NamedTuple):
    name: str
    error: int
    configured: int
    partitions: dict[int, PartitionState]


@dataclass
class Metadata:
    broker_id: int
    host: str
    port: int
    max_message_bytes: int
    max_request_bytes: int
    max_wait_ms: int
    own_ids: tuple[int, int]
    topics: dict[str, TopicState] = field(default_factory=dict)


class LocalLog(NamedTuple):
    error: int
    directory: str
    format: str
    log_start: int
    high_watermark: int
    bases: list[int]


class Reader:
    """Takes fields off the front of an answer; raises ``struct.error`` when it is too short."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(">" + layout, self.data, self.position)
        self.position += struct.calcsize(">" + layout)
        return values

    def string(self) -> str:
        (length,) = self.take("h")
        raw = self.rest(length)
        return raw.decode()

    def rest(self, length: int | None = None) -> bytes:
        end = len(self.data) if length is None else self.position + length
        raw = self.data[self.position : end]
        self.position = end
        return raw

    def finish(self) -> None:
        assert self.position == len(self.data), f"{len(self.data) - self.position} bytes left over in an answer"


def decode_multifetch(body: bytes) -> list[Answer]:
    reader = Reader(body)
    parts = []
    while reader.position < len(body):
        size, error = reader.take("ih")
        parts.append(Answer(error, reader.rest(size - 2)))
    reader.finish()
    return parts


def decode_offsets(body: bytes) -> list[int]:
    reader = Reader(body)
    (count,) = reader.take("i")
    values = list(reader.take(f"{count}q"))
    reader.finish()
    return values


def decode_metadata(body: bytes) -> Metadata:
    reader = Reader(body)
    (broker_id,) = reader.take("i")
    host = reader.string()
    port, max_message, max_request, max_wait, lowest, highest, topic_count = reader.take("iiiihhi")
    metadata = Metadata(broker_id, host, port, max_message, max_request, max_wait, (lowest, highest))
    for _ in range(topic_count):
        name = reader.string()
        error, configured, count = reader.take("hii")
        states = (PartitionState(*reader.take("ihqqq")) for _ in range(count))
        metadata.topics[name] = TopicState(name, error, configured, {state.partition: state for state in states})
    reader.finish()
    return metadata


def decode_held(answer: Answer) -> Held:
    """An error may come with an empty body: its fields are then -1."""
    if answer.error and not answer.body:
        return Held(answer.error, -1, -1, b"")
    watermark, start = struct.unpack_from(">qq", answer.body)
    return Held(answer.error, watermark, start, answer.body[16:])

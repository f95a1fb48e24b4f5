"""Requests of today's Kafka protocol and their answers by kio, which is another reading of the same schemas."""

from __future__ import annotations

import dataclasses
import functools
import io
import socket
import struct
import types
import typing
from datetime import timedelta
from typing import Any

from kio import index
from kio.serial import entity_reader, entity_writer

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, API_VERSIONS = 0, 1, 2, 3, 8, 18
NO_ID = bytes(16)

type_hints = functools.cache(typing.get_type_hints)


@functools.cache
def load_request_schema(key: int, version: int) -> Any:
    """kio's class for a request; kept, because kio looks its module up each time."""
    return index.load_request_schema(key, version)


@functools.cache
def load_response_schema(key: int, version: int) -> Any:
    """kio's class for an answer."""
    return index.load_response_schema(key, version)


def request(
    key: int, version: int, fields: dict[str, Any], *, correlation: int = 7, client: str | None = "test"
) -> bytes:
    """The frame of a request; ``fields`` are those of every version, of which this one's are taken."""
    return frame(key, version, body(key, version, fields), correlation=correlation, client=client)


def body(key: int, version: int, fields: dict[str, Any]) -> bytes:
    """What follows the head of a request."""
    made = _build(load_request_schema(key, version), fields)
    return written(made)


def response(key: int, version: int, fields: dict[str, Any]) -> Any:
    """An answer, for ``written``; ``fields`` are those of every version."""
    return _build(load_response_schema(key, version), fields)


def frame(key: int, version: int, data: bytes, *, correlation: int = 7, client: str | None = "test") -> bytes:
    """A request with any bytes behind its head."""
    entity = load_request_schema(key, version)
    head = entity.__header_schema__(
        request_api_key=key, request_api_version=version, correlation_id=correlation, client_id=client
    )
    return framed(written(head) + data)


def framed(data: bytes) -> bytes:
    """A frame with its size."""
    return struct.pack(">i", len(data)) + data


def decoded(key: int, version: int, answer: bytes) -> tuple[int, Any]:
    """The correlation id and the body of an answer, a frame with its size, which is read to its end."""
    entity = load_response_schema(key, version)
    assert len(answer) == 4 + int.from_bytes(answer[:4], "big")
    head, size = entity_reader(entity.__header_schema__)(answer[4:], 0)
    found, more = entity_reader(entity)(answer[4:], size)
    assert 4 + size + more == len(answer), (size, more, len(answer))
    return head.correlation_id, found


def produced(
    *parts: tuple[str, int, bytes | None], acks: int = 1, transactional_id: str | None = None
) -> dict[str, Any]:
    """The fields of a PRODUCE: topic, partition and batch of each part."""
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timedelta(seconds=1),
        "topic_data": [
            {"name": topic, "partition_data": [{"index": partition, "records": data}]}
            for topic, partition, data in parts
        ],
    }


def fetched(
    *parts: tuple[str, int, int],
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    limit: int = 1 << 20,
    session_id: int = 0,
    epoch: int = -1,
    isolation: int = 0,
    ids: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The fields of a FETCH: topic, partition and offset of each part; times in ms, ``ids`` by topic."""
    return {
        "replica_id": -1,
        "max_wait": timedelta(milliseconds=max_wait),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "session_id": session_id,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "topic_id": (ids or {}).get(topic),
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": epoch,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": limit,
                    }
                ],
            }
            for topic, partition, offset in parts
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def listed(*parts: tuple[str, int, int], epoch: int = -1) -> dict[str, Any]:
    """The fields of a LIST_OFFSETS: topic, partition and time of each part."""
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {
                "name": topic,
                "partitions": [{"partition_index": partition, "current_leader_epoch": epoch, "timestamp": when}],
            }
            for topic, partition, when in parts
        ],
    }


def seconds(count: float) -> timedelta:
    """A duration as kio's requests take it."""
    return timedelta(seconds=count)


def answer_of(connection: socket.socket) -> bytes:
    """The next answer, a frame with its size."""
    data = _received(connection, 4)
    return data + _received(connection, int.from_bytes(data, "big"))


def asked(connection: socket.socket, key: int, version: int, **fields: Any) -> Any:
    """Send a request and decode its answer."""
    connection.sendall(request(key, version, fields, correlation=version + 1))
    correlation, found = decoded(key, version, answer_of(connection))
    assert correlation == version + 1
    return found


def commit_alone(connection: socket.socket, group: str, topic: str, offset: int) -> None:
    """Commit an offset of partition 0 for a group without members."""
    row = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    topics = [{"name": topic, "partitions": [row]}]
    found = asked(connection, OFFSET_COMMIT, 9, group_id=group, **member, topics=topics)
    assert found.topics[0].partitions[0].error_code == 0


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError(f"the connection ended after {len(data)} of {size} bytes")
        data += piece
    return data


def written(made: Any) -> bytes:
    """The bytes of one of kio's classes."""
    buffer = io.BytesIO()
    entity_writer(type(made))(buffer, made)
    return buffer.getvalue()


def _build(entity: Any, fields: dict[str, Any]) -> Any:
    """A dataclass of kio from a dict; fields that this version has not are left out."""
    hints = type_hints(entity)
    values = {}
    for field in dataclasses.fields(entity):
        if field.name in fields:
            values[field.name] = _value(hints[field.name], fields[field.name])
    return entity(**values)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if isinstance(value, dict):
        return _build(hint, value)
    if isinstance(value, list):
        return tuple(_value(typing.get_args(hint)[0], one) for one in value)
    return value

"""What a request claims is held against its bytes, before a library makes room for it."""

from __future__ import annotations

import dataclasses
import struct
import typing
from typing import Any

import pytest
from kio.index import load_request_schema

from fastlog.errors import ProtocolError
from fastlog.workers.coordinator import codec, shape
from fastlog.workers.kafka import kinds
from tests.harness import today
from tests.harness.today_fuzz import Requests, fields_of

CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_LOG_DIRS, CREATE_PARTITIONS, JOIN_GROUP = 19, 20, 35, 37, 11
VERSIONS = [(key, version) for key, api in kinds.FORWARDED.items() for version in range(api.served, api.last + 1)]


def checked(key: int, version: int, body: bytes, client: str | None = "c") -> None:
    shape.check(load_request_schema(key, version), today.frame(key, version, body, client=client)[4:])


def refused(key: int, version: int, body: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        checked(key, version, body)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_whole_requests_pass_and_no_beginning_of_one_does(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    requests = Requests(key * 100 + version)
    for _ in range(20):
        frame = today.frame(key, version, today.written(requests.entity(schema, 0)))[4:]
        shape.check(schema, frame)
        assert codec.decode(frame).key == key
        for size in range(8, len(frame)):
            with pytest.raises(ProtocolError):
                shape.check(schema, frame[:size])
        with pytest.raises(ProtocolError, match="bytes behind"):
            shape.check(schema, frame + b"\0")


@pytest.mark.parametrize("client", [None, "", "name", "x" * 300])
@pytest.mark.parametrize("version", [2, 7])
def test_a_client_may_have_no_name(version: int, client: str | None) -> None:
    body = {"topics": [], "timeout": today.timedelta(0), "validate_only": False}
    checked(CREATE_TOPICS, version, today.body(CREATE_TOPICS, version, body), client)


@pytest.mark.parametrize("count", [3, 4, 2**31 - 1])
def test_an_array_is_not_longer_than_its_bytes(count: int) -> None:
    """Two partitions and their topic's name: 2 + 4 + 8 bytes behind the count of topics."""
    topic = struct.pack(">h", 0) + struct.pack(">iii", 2, 0, 0)
    checked(DESCRIBE_LOG_DIRS, 1, struct.pack(">i", 1) + topic)
    refused(DESCRIBE_LOG_DIRS, 1, struct.pack(">i", count) + topic, "bytes more than there are")
    topic = struct.pack(">h", 0) + struct.pack(">iii", count, 0, 0)
    refused(DESCRIBE_LOG_DIRS, 1, struct.pack(">i", 1) + topic, "bytes more than there are")


@pytest.mark.parametrize("count", [-2, -(2**31)])
def test_no_count_is_negative_but_that_of_null(count: int) -> None:
    checked(DESCRIBE_LOG_DIRS, 1, struct.pack(">i", -1))
    refused(DESCRIBE_LOG_DIRS, 1, struct.pack(">i", count), f"an array of {count}")


def test_null_is_refused_where_something_must_be() -> None:
    timeout = struct.pack(">i", 0)
    refused(DELETE_TOPICS, 1, struct.pack(">i", -1) + timeout, "an array of -1")
    refused(DELETE_TOPICS, 4, b"\0" + timeout + b"\0", "an array of -1")
    refused(DELETE_TOPICS, 1, struct.pack(">ih", 1, -1) + timeout, "a length of -1")
    refused(DELETE_TOPICS, 4, b"\2\0" + timeout + b"\0", "null where something must be")
    refused(DESCRIBE_LOG_DIRS, 1, struct.pack(">ihi", 1, 0, -1), "an array of -1")
    checked(DELETE_TOPICS, 6, b"\2\0" + bytes(16) + b"\0" + timeout + b"\0")
    checked(CREATE_PARTITIONS, 0, struct.pack(">ih", 1, 0) + struct.pack(">ii", 1, -1) + timeout + b"\0")


def test_a_text_ends_with_its_request() -> None:
    timeout = struct.pack(">i", 0)
    checked(DELETE_TOPICS, 1, struct.pack(">ih", 1, 3) + b"abc" + timeout)
    refused(DELETE_TOPICS, 1, struct.pack(">ih", 1, 8) + b"abc" + timeout, "says 1 bytes more|says 5 bytes more")
    refused(DELETE_TOPICS, 1, struct.pack(">ih", 1, -2) + b"abc" + timeout, "a length of -2")
    checked(DELETE_TOPICS, 4, b"\2\4abc" + timeout + b"\0")
    refused(DELETE_TOPICS, 4, b"\2\x0babc" + timeout + b"\0", "bytes more than there are")


def test_bytes_have_a_longer_length_than_texts() -> None:
    """A JOIN_GROUP with one protocol, whose metadata are bytes."""
    text = struct.pack(">h", 0)
    head = text + struct.pack(">i", 1) + text + text + struct.pack(">i", 1) + text
    checked(JOIN_GROUP, 0, head + struct.pack(">i", 2) + b"ab")
    refused(JOIN_GROUP, 0, head + struct.pack(">i", 3) + b"ab", "says 1 bytes more")
    refused(JOIN_GROUP, 0, head + struct.pack(">i", -1) + b"ab", "a length of -1")
    refused(JOIN_GROUP, 0, head + struct.pack(">h", 2) + b"ab", "bytes more than there are")


def test_tagged_fields_are_passed_over_by_their_size() -> None:
    timeout = struct.pack(">i", 0)
    for tags in (b"\0", b"\1\x7f\0", b"\1\x7f\2ab", b"\2\0\1x\1\0"):
        checked(DELETE_TOPICS, 4, b"\1" + timeout + tags)
    refused(DELETE_TOPICS, 4, b"\1" + timeout + b"\1\x7f\3ab", "says 1 bytes more")
    refused(DELETE_TOPICS, 4, b"\1" + timeout + b"\2\x7f\2ab", "bytes more than there are")
    refused(DELETE_TOPICS, 4, b"\1" + timeout + b"\1", "bytes more than there are")


def test_a_tagged_field_that_is_known_has_the_size_of_its_value() -> None:
    schema = load_request_schema(1, 16)  # the cluster's name, nullable, is tag 0

    def of(value: bytes) -> bytes:
        whole = today.frame(1, 16, today.body(1, 16, {**today.fetched(), "cluster_id": None}))[4:]
        assert whole[-1:] == b"\0"  # no tagged field
        return whole[:-1] + b"\1\0" + value

    shape.check(schema, of(b"\4\4abc"))
    shape.check(schema, of(b"\1\0"))
    for wrong in (b"\3\4abc", b"\4\3abc", b"\5\4abcd"):
        with pytest.raises(ProtocolError, match="another size than its value"):
            shape.check(schema, of(wrong))


def test_varints_have_five_bytes_at_most() -> None:
    timeout = struct.pack(">i", 0)
    checked(DELETE_TOPICS, 4, b"\x81\x80\x80\x80\0" + timeout + b"\0")
    refused(DELETE_TOPICS, 4, b"\x81\x80\x80\x80\x80\0" + timeout + b"\0", "does not end")
    refused(DELETE_TOPICS, 4, b"\x82\x01" + timeout + b"\0", "bytes more than there are")
    refused(DELETE_TOPICS, 4, b"\xff\xff\xff\xff\x0f" + timeout + b"\0", "bytes more than there are")


def kinds_in(schema: Any) -> set[str]:
    """Of a class's fields, those of the classes in it among them."""
    found: set[str] = set()
    for _, hint, kind in fields_of(schema):
        found.add(kind)
        for inner in typing.get_args(hint):
            if dataclasses.is_dataclass(inner):
                found |= kinds_in(inner)
    return found


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_every_kind_of_number_that_requests_have_is_known(key: int, version: int) -> None:
    """One that were missing would be read as a text."""
    assert kinds_in(load_request_schema(key, version)) - set(shape.SIZES) <= {"", "string", "bytes", "records"}

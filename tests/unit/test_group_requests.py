"""Requests of a group's members, read and answered by the library that the broker uses; and answers that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastlog.client import group_requests as requests
from fastlog.client import kafka_fields
from fastlog.client.group_requests import Committed, Described, DescribedMember, Identity, Joined
from fastlog.client.kafka_fields import Answer, Request
from fastlog.errors import InvalidRequestError, ProtocolError
from fastlog.workers.coordinator import codec

WHO = Identity("m-1", 7)


def fields_of(request: Request, number: int = 5) -> dict[str, Any]:
    """What the broker reads, by the names of the schema; nested ones as tuples."""
    data = request.frame(number, "me")
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    found = codec.decode(data[4:])
    assert (found.key, found.version, found.correlation_id) == (request.key, request.version, number)
    assert request.key == 18 or found.client_id == "me"
    return plain(found.fields)


def plain(value: Any) -> Any:
    """Without the library's classes."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__ if name[:2] != "__"}
    return round(value.total_seconds() * 1000) if hasattr(value, "total_seconds") else value


MEMBER = {"group_id": "g", "generation_id": 7, "member_id": "m-1", "group_instance_id": None}
OFFSETS = {("t", 0): Committed(9, "x"), ("u", 1): Committed(2**40, ""), ("t", 3): Committed(3, "y")}
UNTOLD = {"committed_leader_epoch": -1}
READ = [
    (kafka_fields.api_versions(), {}),
    (requests.metadata(), {"topics": []}),
    (requests.find_coordinator("g"), {"key": "g", "key_type": 0}),
    (
        requests.join("g", "m", 6000, 12_000, "consumer", [("a", b"x"), ("b", b"")]),
        {
            "group_id": "g", "session_timeout": 6000, "rebalance_timeout": 12_000, "member_id": "m",
            "group_instance_id": None, "protocol_type": "consumer",
            "protocols": [{"name": "a", "metadata": b"x"}, {"name": "b", "metadata": b""}],
        },
    ),
    (requests.sync("g", WHO, {"n": b"12"}), MEMBER | {"assignments": [{"member_id": "n", "assignment": b"12"}]}),
    (requests.heartbeat("g", WHO), MEMBER),
    (requests.leave("g", "m"), {"group_id": "g", "members": [{"member_id": "m", "group_instance_id": None}]}),
    (
        requests.commit("ä", WHO, OFFSETS),
        {
            "group_id": "ä", "generation_id_or_member_epoch": 7, "member_id": "m-1", "group_instance_id": None,
            "topics": [
                {
                    "name": "t",
                    "partitions": [
                        UNTOLD | {"partition_index": 0, "committed_offset": 9, "committed_metadata": "x"},
                        UNTOLD | {"partition_index": 3, "committed_offset": 3, "committed_metadata": "y"},
                    ],
                },
                {
                    "name": "u",
                    "partitions": [
                        UNTOLD | {"partition_index": 1, "committed_offset": 2**40, "committed_metadata": ""},
                    ],
                },
            ],
        },
    ),
    (requests.fetch_offsets("g", [("t", 1)]), {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [1]}]}),
    (requests.fetch_offsets("g", None), {"group_id": "g", "topics": None}),
    (
        requests.delete_offsets("g", [("t", 1)]),
        {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 1}]}]},
    ),
    (requests.list_groups(), {}),
    (requests.describe_groups(["g", "h"]), {"groups": ["g", "h"], "include_authorized_operations": False}),
    (requests.delete_groups(["g"]), {"groups_names": ["g"]}),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "fields"), READ, ids=[str(row[0].key) for row in READ])
def test_the_broker_reads_what_was_meant(request_: Request, fields: dict[str, Any]) -> None:
    assert fields_of(request_) == fields


def test_what_does_not_fit_is_not_sent() -> None:
    with pytest.raises(InvalidRequestError):
        requests.heartbeat("x" * 2**15, WHO)
    with pytest.raises(InvalidRequestError):
        requests.commit("g", WHO, {("t", 2**31): Committed(1, "")})


ROW = {"partition_index": 3, "error_code": 0}
ANSWERS: list[tuple[Request, dict[str, Any], Callable[[Answer], Any], Any]] = [
    (
        kafka_fields.api_versions(),
        {"error_code": 0, "api_keys": [{"api_key": 10, "min_version": 0, "max_version": 4}]},
        kafka_fields.parse_api_versions,
        (0, {10: (0, 4)}),
    ),
    (
        requests.metadata(),
        {
            "throttle_time": 0, "cluster_id": "c", "controller_id": 3, "topics": [],
            "brokers": [{"node_id": 3, "host": "h", "port": 9, "rack": None}],
        },
        requests.parse_metadata,
        ({3: ("h", 9)}, "c"),
    ),
    (
        requests.find_coordinator("g"),
        {"throttle_time": 0, "error_code": 15, "error_message": None, "node_id": 3, "host": "h", "port": 9},
        requests.parse_coordinator,
        (15, "", 3, ("h", 9)),
    ),
    (
        requests.join("g", "", 1, 1, "consumer", []),
        {
            "throttle_time": 0, "error_code": 0, "generation_id": 7, "protocol_name": "p", "leader": "a",
            "member_id": "b",
            "members": [{"member_id": "a", "group_instance_id": None, "metadata": b"x"},
                        {"member_id": "b", "group_instance_id": "i", "metadata": b""}],
        },
        requests.parse_joined,
        Joined(0, 7, "p", "a", "b", {"a": b"x", "b": b""}),
    ),
    (
        requests.sync("g", WHO, {}),
        {"throttle_time": 0, "error_code": 27, "assignment": b"xy"},
        requests.parse_synced,
        (27, b"xy"),
    ),
    (requests.heartbeat("g", WHO), {"throttle_time": 0, "error_code": 25}, requests.parse_code, 25),
    (
        requests.leave("g", "m"),
        {
            "throttle_time": 0, "error_code": 0,
            "members": [{"member_id": "m", "group_instance_id": None, "error_code": 25}],
        },
        requests.parse_code,
        0,
    ),
    (
        requests.commit("g", WHO, {}),
        {
            "throttle_time": 0,
            "topics": [{"name": "t", "partitions": [ROW, {"partition_index": 4, "error_code": 3}]}],
        },
        requests.parse_commit,
        {("t", 3): 0, ("t", 4): 3},
    ),
    (
        requests.fetch_offsets("g", None),
        {
            "throttle_time": 0, "error_code": 14,
            "topics": [{"name": "t", "partitions": [
                ROW | {"committed_offset": 2**40, "committed_leader_epoch": -1, "metadata": "x"},
                {"partition_index": 4, "error_code": 29, "committed_offset": -1, "committed_leader_epoch": 1,
                 "metadata": None}]}],
        },
        requests.parse_offsets,
        (14, {("t", 3): (0, Committed(2**40, "x")), ("t", 4): (29, Committed(-1, ""))}),
    ),
    (
        requests.delete_offsets("g", []),
        {"error_code": 69, "throttle_time": 0, "topics": [{"name": "t", "partitions": [ROW]}]},
        requests.parse_deleted_offsets,
        (69, {("t", 3): 0}),
    ),
    (
        requests.list_groups(),
        {"throttle_time": 0, "error_code": 0, "groups": [{"group_id": "g", "protocol_type": "consumer"}]},
        requests.parse_groups,
        (0, {"g": "consumer"}),
    ),
    (
        requests.describe_groups(["g"]),
        {
            "throttle_time": 0,
            "groups": [{
                "error_code": 0, "group_id": "g", "group_state": "Stable", "protocol_type": "consumer",
                "protocol_data": "p", "authorized_operations": 3,
                "members": [{"member_id": "a", "group_instance_id": None, "client_id": "c", "client_host": "/h",
                             "member_metadata": b"1", "member_assignment": b"2"}],
            }],
        },
        requests.parse_described,
        [Described(0, "g", "Stable", "consumer", "p", (DescribedMember("a", "c", "/h", b"1", b"2"),))],
    ),
    (
        requests.delete_groups(["g"]),
        {"throttle_time": 0, "results": [{"group_id": "g", "error_code": 68}]},
        requests.parse_deleted_groups,
        {"g": 68},
    ),
]  # fmt: skip


def body_of(request: Request, fields: dict[str, Any]) -> bytes:
    """What the broker's library writes, behind the size."""
    asked = codec.Request(request.key, request.version, 9, "me", None)
    return codec.encode(asked, fields)[4:]


@pytest.mark.parametrize(("request_", "fields", "parse", "found"), ANSWERS, ids=[str(row[0].key) for row in ANSWERS])
def test_what_the_broker_writes_is_understood(
    request_: Request, fields: dict[str, Any], parse: Callable[[Answer], Any], found: Any
) -> None:
    """And what is cut short anywhere, or announces more than there is, is no answer."""
    codec._load_library()
    body = body_of(request_, fields)
    assert parse(kafka_fields.answer(memoryview(body), 9)) == found
    least = len(body) if parse not in (requests.parse_metadata, requests.parse_code) else 0
    for size in range(least):
        with pytest.raises(ProtocolError):
            parse(kafka_fields.answer(body[:size], 9))
    if least:
        with pytest.raises(ProtocolError):
            parse(kafka_fields.answer(body + b"\0", 9))


def test_an_answer_to_something_else_is_refused() -> None:
    with pytest.raises(ProtocolError, match="request 8 is answered as 9"):
        kafka_fields.answer(b"\0\0\0\x09", 8)


@pytest.mark.parametrize("count", [-2, 3, 2**31 - 1])
def test_a_number_of_items_is_a_claim(count: int) -> None:
    """Two of two bytes each are there."""
    walk = Answer(count.to_bytes(4, "big", signed=True) + b"\0\1\0\2")
    with pytest.raises(ProtocolError, match=f"announces {count} items, with 4 bytes left"):
        walk.items("items", 2, lambda: walk.int16("one"))


def smallest(value: Any) -> Any:
    """The same answer with nothing in its texts and bytes."""
    if isinstance(value, dict):
        return {name: None if name in ("rack", "group_instance_id") else smallest(each) for name, each in value.items()}
    if isinstance(value, list):
        return [smallest(each) for each in value[:1]]
    return type(value)() if isinstance(value, str | bytes) else value


@pytest.mark.parametrize(("request_", "fields", "parse", "found"), ANSWERS, ids=[str(row[0].key) for row in ANSWERS])
def test_the_smallest_items_are_taken(
    request_: Request, fields: dict[str, Any], parse: Callable[[Answer], Any], found: Any
) -> None:
    """As many as the bytes left can hold; and none at all."""
    codec._load_library()
    assert parse(kafka_fields.answer(body_of(request_, smallest(fields)), 9)) is not None
    empty = {name: [] if isinstance(value, list) else value for name, value in fields.items()}
    assert parse(kafka_fields.answer(body_of(request_, empty), 9)) is not None


def test_null_is_no_items() -> None:
    walk = Answer(b"\xff\xff\xff\xff" + b"\0\0\0\0")
    assert walk.items("items", 2, lambda: walk.int16("one")) == []
    assert walk.items("items", 2, lambda: walk.int16("one")) == []


def test_texts_are_utf8() -> None:
    with pytest.raises(ProtocolError, match="name is not UTF-8"):
        Answer(b"\0\1\xff").text("name")
    with pytest.raises(ProtocolError):
        Answer(b"\xff\xfe").text("name")
    assert Answer(b"\xff\xff").text("name") == ""

"""Ids of topics and sizes of partitions, asked and answered by another reading of the same schemas."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from fastlog.client.addresses import Address
from fastlog.client.kafka_fields import Answer
from fastlog.client.record_topics import (
    KnownTopic,
    Stored,
    known_topics,
    parse_known_topics,
    parse_sizes,
    parse_stored,
    stored,
)
from fastlog.client.records import RecordBroker
from fastlog.errors import ProtocolError
from fastlog.workers.coordinator import codec
from tests.harness import today
from tests.harness.fake_coordinator import FakeCoordinator
from tests.harness.timing import PATIENCE

ID = uuid.UUID(int=2**127 + 5)
NAMES = ["a", "ä" * 100, "b" * 249]


def metadata(names: list[str]) -> bytes:
    """An answer with a broker, and these topics; the last one has two partitions."""
    broker = {"node_id": 3, "host": "h", "port": 9092, "rack": None}
    partitions = [
        {
            "error_code": ErrorCode(0),
            "partition_index": number,
            "leader_id": 3,
            "leader_epoch": 1,
            "replica_nodes": [3],
            "isr_nodes": [3],
            "offline_replicas": [],
        }
        for number in (1, 0)
    ]
    topics = [
        {
            "error_code": ErrorCode(0 if name == names[-1] else 3),
            "name": name,
            "topic_id": ID,
            "is_internal": name == "a",
            "partitions": partitions if name == names[-1] else [],
            "topic_authorized_operations": -(2**31),
        }
        for name in names
    ]
    fields = {
        "throttle_time": today.seconds(0),
        "brokers": [broker],
        "cluster_id": "cluster",
        "controller_id": 3,
        "topics": topics,
    }
    return b"\0" + today.written(today.response(today.METADATA, 12, fields))


def test_the_request_is_metadata_s() -> None:
    for names in (None, NAMES, []):
        rows = None if names is None else [{"topic_id": uuid.UUID(int=0), "name": name} for name in names]
        fields = {"topics": rows, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        assert known_topics(names).body == b"\0" + today.body(today.METADATA, 12, fields)
    assert (known_topics(None).key, known_topics(None).version) == (3, 12)


def test_what_topics_there_are() -> None:
    found = parse_known_topics(Answer(metadata(NAMES)))
    assert found == {
        "a": KnownTopic(3, ID.bytes, (), True),
        "ä" * 100: KnownTopic(3, ID.bytes, (), False),
        "b" * 249: KnownTopic(0, ID.bytes, (0, 1), False),
    }


def test_an_answer_that_is_none() -> None:
    """Cut anywhere, or with numbers that cannot be, it is refused and nothing else."""
    whole = metadata(NAMES)
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            parse_known_topics(Answer(whole[:size]))
    for bad in (whole + b"\0", b"\xff" * 6 + whole, whole[:5] + b"\xff\xff\xff\xff\x0f" + whole[6:]):
        with pytest.raises(ProtocolError):
            parse_known_topics(Answer(bad))
    left = len(whole) - 6  # behind the number of brokers
    most = left // 11
    for count, said in (
        (most + 1, rf"announces {most + 1} brokers, with {left} bytes left"),
        (most, "^(?!.*announces)"),
    ):
        with pytest.raises(ProtocolError, match=said):
            parse_known_topics(Answer(whole[:5] + bytes([(count + 1) & 0x7F | 0x80, (count + 1) >> 7]) + whole[6:]))
    with pytest.raises(ProtocolError, match="is not UTF-8"):
        parse_known_topics(Answer(whole.replace(b"cluster", b"\xff" * 7)))


def test_tagged_fields_are_passed_over() -> None:
    whole = metadata(["t"])
    found = parse_known_topics(Answer(b"\x02\x05\x01x\x80\x01\x02yz" + whole[1:]))
    assert list(found) == ["t"]


def test_sizes_and_directories() -> None:
    """Of the partitions that were asked for, or of all; a copy that is on its way elsewhere takes room, and no more."""
    assert stored([("t", 1), ("u", 0), ("t", 2)]).body == today.body(
        35, 1, {"topics": [{"topic": "t", "partitions": [1, 2]}, {"topic": "u", "partitions": [0]}]}
    )

    def row(number: int, size: int, is_future: bool = False) -> dict[str, object]:
        return {"partition_index": number, "partition_size": size, "offset_lag": 0, "is_future_key": is_future}

    results = [
        {"error_code": ErrorCode(0), "log_dir": "/a", "topics": [{"name": "t", "partitions": [row(1, 10), row(2, 7)]}]},
        {
            "error_code": ErrorCode(0),
            "log_dir": "/b",
            "topics": [{"name": "t", "partitions": [row(1, 5, is_future=True)]}],
        },
    ]
    made = today.written(today.response(35, 1, {"throttle_time": today.seconds(0), "results": results}))
    assert parse_stored(Answer(made)) == {("t", 1): Stored(10, "/a"), ("t", 2): Stored(7, "/a")}
    assert stored(None).body == today.body(35, 1, {"topics": None})
    assert parse_sizes(Answer(made)) == {("t", 1): 15, ("t", 2): 7}
    for size in range(len(made)):
        with pytest.raises(ProtocolError):
            parse_stored(Answer(made[:size]))


def deleted(request: codec.Request) -> dict[str, Any]:
    return {"throttle_time": 0, "responses": [{"name": "t", "error_code": 0}]}


@pytest.fixture
def interrupting() -> Iterator[None]:
    """SIGUSR1 does what SIGINT does, which may be ignored."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupting")
def test_a_call_that_a_signal_ended_leaves_no_answer_to_the_next() -> None:
    """Which goes over another connection."""
    main = threading.get_ident()

    def late(request: codec.Request) -> dict[str, Any]:
        server.scripts[20] = deleted
        signal.pthread_kill(main, signal.SIGUSR1)
        return deleted(request)

    with FakeCoordinator() as server, RecordBroker([Address("127.0.0.1", server.port)], timeout=PATIENCE) as broker:
        server.scripts[20] = deleted
        broker.delete("t")
        server.scripts[20] = late
        server.held.clear()
        with pytest.raises(KeyboardInterrupt):
            broker.delete("t")
        server.held.set()
        broker.delete("t")
        assert server.connections == 2


def test_a_broker_has_less_time_for_a_change_than_its_answer_is_waited_for() -> None:
    seen = []

    def noted(request: codec.Request) -> dict[str, Any]:
        seen.append(request.fields.timeout.total_seconds())
        return deleted(request)

    with FakeCoordinator() as server, RecordBroker([Address("127.0.0.1", server.port)], timeout=PATIENCE) as broker:
        server.scripts[20] = noted
        broker.delete("t")
    assert len(seen) == 1 and 0 < seen[0] < PATIENCE

"""What the coordinator does with topics of 0.7: described, grown and deleted as others are; what cannot be is said."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.kafka_codes import Code
from fastlog.log.kafka_files import messages_topic_id
from fastlog.log.manager import LogManager
from tests.harness.coordinated import Coordinated

TOPIC = 2
PARTITIONS = 3


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Coordinated]:
    """A topic of 0.7 that somebody has written to, in one of its partitions."""
    with Coordinated(tmp_path / "log", partitions_by_topic={"old": PARTITIONS}) as made:
        made.manager.create_partition("old", 1)
        yield made


def described(running: Coordinated, name: str) -> Any:
    asked = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}]
    (found,) = running.ask(32, 4, resources=asked, include_synonyms=False, include_documentation=True).results
    return found


def grown(running: Coordinated, name: str, count: int, **more: Any) -> tuple[int, str | None]:
    topic = {"name": name, "count": count, "assignments": more.pop("assignments", None)}
    fields = {"topics": [topic], "timeout": 30_000, "validate_only": more.pop("validate_only", False)}
    (found,) = running.ask(37, 3, **fields).results
    return found.error_code, found.error_message


def held(running: Coordinated, name: str) -> list[int]:
    return [view.partition for view in running.manager.partitions(name)]


def test_consoles_are_told_what_its_offsets_are(running: Coordinated) -> None:
    """And the settings that the broker has for it; none of them is a setting that can be changed."""
    found = described(running, "old")
    rows = {row.name: row for row in found.configs}
    assert found.error_code == 0 and all(row.read_only for row in found.configs)
    assert (rows["fastlog.format"].value, rows["fastlog.offsets"].value) == ("messages", "bytes")
    own = running.config.for_topic("old")
    assert rows["retention.ms"].value == str(own.retention_ms)
    assert rows["segment.bytes"].value == str(own.segment_bytes)
    assert rows["flush.messages"].value == str(own.flush_interval_messages)
    running.create("new")
    assert "fastlog.format" not in {row.name for row in described(running, "new").configs}


@pytest.mark.parametrize("key", [33, 44])
def test_its_settings_are_not_changed(running: Coordinated, key: int) -> None:
    config = {"name": "retention.ms", "value": "1"} | ({"config_operation": 0} if key == 44 else {})
    resource = {"resource_type": TOPIC, "resource_name": "old", "configs": [config]}
    version = 1 if key == 44 else 2
    (found,) = running.ask(key, version, resources=[resource], validate_only=False).responses
    assert found.error_code == Code.UNSUPPORTED_FOR_MESSAGE_FORMAT and "the broker" in found.error_message


def test_what_is_told_of_it_cannot_be_asked_for(running: Coordinated) -> None:
    found = running.create("new", configs={"fastlog.format": "messages"})
    assert found.error_code == Code.INVALID_CONFIG and "Kafka 0.7" in found.error_message
    assert running.create("old").error_code == Code.TOPIC_ALREADY_EXISTS


def test_it_grows(running: Coordinated) -> None:
    """By partitions behind all that it may have; these are there, empty, for both kinds of clients."""
    assert grown(running, "old", PARTITIONS)[0] == Code.INVALID_PARTITIONS
    wrong = [{"broker_ids": (7,)}]
    assert grown(running, "old", PARTITIONS + 2, assignments=wrong)[0] == Code.INVALID_REPLICA_ASSIGNMENT
    assert grown(running, "old", PARTITIONS + 2, validate_only=True)[0] == 0
    assert held(running, "old") == [1]
    assert grown(running, "old", PARTITIONS + 20) == (0, None)
    assert held(running, "old") == [1, *range(PARTITIONS, PARTITIONS + 20)]
    assert running.topics.shown_count("old") == PARTITIONS + 20
    (one,) = {view.topic_id for view in running.manager.partitions("old")}
    assert one == messages_topic_id("old", running.manager.partitions("old")[0].created_ms)
    assert grown(running, "old", 5000)[0] == Code.INVALID_PARTITIONS


def test_it_is_deleted_by_name_and_by_id(running: Coordinated) -> None:
    """With the offsets of groups; its name is free for a topic of either kind, which has another id."""
    gone: list[str] = []
    running.topics.on_deleted = gone.append
    first = running.manager.partitions("old")[0].topic_id
    assert running.topics.by_id(first) == "old"
    assert running.delete("old") == 0
    assert held(running, "old") == [] and gone == ["old"]
    assert not list(running.directory.glob("old-*/*.kafka"))
    running.manager.create_partition("old", 0)
    second = running.manager.partitions("old")[0].topic_id
    assert second != first and any(second)
    (found,) = running.ask(20, 6, topics=[{"name": None, "topic_id": second}], timeout=30_000).responses
    assert (found.error_code, found.name) == (0, "old")
    assert running.create("old").error_code == 0


def test_its_id_is_the_same_after_a_start(tmp_path: Path) -> None:
    """Whatever partitions have been made since, of which the oldest counts."""
    with Coordinated(tmp_path / "log", partitions_by_topic={"old": PARTITIONS}) as running:
        running.manager.create_partition("old", 2)
        (one,) = {view.topic_id for view in running.manager.partitions("old")}
        time.sleep(0.003)
        running.manager.create_partition("old", 0)
        assert {view.topic_id for view in running.manager.partitions("old")} == {one}
    with Coordinated(tmp_path / "log", partitions_by_topic={"old": PARTITIONS}) as again:
        assert {view.topic_id for view in again.manager.partitions("old")} == {one}
        assert again.topics.by_id(one) == "old"


def test_its_epoch_ends_with_the_log(running: Coordinated) -> None:
    """Also that of a partition that nobody has written to; kafka-python reads nothing before it is told."""
    parts = [{"partition": n, "current_leader_epoch": -1, "leader_epoch": 0} for n in (0, 1, PARTITIONS)]
    fields = {"replica_id": -1, "topics": [{"topic": "old", "partitions": parts}]}
    (found,) = running.ask(23, 4, **fields).topics
    assert [(row.partition, row.error_code, row.leader_epoch, row.end_offset) for row in found.partitions] == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (PARTITIONS, Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
    ]


def test_where_it_lies_is_described(running: Coordinated) -> None:
    (found,) = running.ask(35, 4, topics=None).results
    assert [(row.name, [part.partition_index for part in row.partitions]) for row in found.topics] == [("old", [1])]


@pytest.mark.parametrize("name", ["a b", "\u00e9", "x" * 240 + ":"])
def test_what_has_no_name_of_kafkas_is_none_of_theirs(running: Coordinated, name: str) -> None:
    manager = LogManager(running.config, running.arena)
    manager.create_partition(name, 0)
    assert described(running, name).error_code == Code.INVALID_TOPIC_EXCEPTION
    assert running.delete(name) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert grown(running, name, 5)[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert held(running, name) == [0]

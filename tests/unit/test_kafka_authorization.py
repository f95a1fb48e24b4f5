"""Every use of a topic by a client of today is authorized, and what a rule refuses tells nothing of the topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog import record_batches
from fastlog.record_batches import Record
from fastlog.workers.authorization import ANONYMOUS, Operation, ResourceType
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.workers import Workers, drain

BATCH = record_batches.build([Record(None, b"secret", 1000)])
READ, WRITE, CREATE, DELETE, DESCRIBE = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.DESCRIBE,
)


class Rules:
    """Refuses operations on topics that a test names, and keeps what it was asked."""

    def __init__(self) -> None:
        self.refused: set[tuple[Operation, str]] = set()
        self.asked: set[tuple[Operation, str]] = set()

    def __call__(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        assert (principal, host) == (ANONYMOUS, "127.0.0.1")
        if resource is ResourceType.CLUSTER:
            return False
        self.asked.add((operation, name))
        return (operation, name) not in self.refused


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
def workers(tmp_path: Path, rules: Rules) -> Iterator[Workers]:
    with Workers(tmp_path, rule=rules) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[raw.RawClient]:
    with workers.connect() as connected:
        today.asked(connected.socket, today.API_VERSIONS, 0)
        for topic in ("mine", "theirs"):
            assert metadata(connected, topic)[0].error_code == 0
            assert produce(connected, topic).error_code == 0
        yield connected


def metadata(client: raw.RawClient, *names: str, by_id: Any = None) -> Any:
    topics = [{"topic_id": by_id, "name": None}] if by_id else [{"topic_id": None, "name": name} for name in names]
    fields = {"topics": topics or None, "allow_auto_topic_creation": True, "include_topic_authorized_operations": True}
    return today.asked(client.socket, today.METADATA, 12, **fields).topics


def produce(client: raw.RawClient, topic: str) -> Any:
    found = today.asked(client.socket, today.PRODUCE, 9, **today.produced((topic, 0, BATCH), acks=-1))
    return found.responses[0].partition_responses[0]


def fetch(client: raw.RawClient, topic: str, topic_id: Any = None) -> Any:
    version = 13 if topic_id else 12
    fields = today.fetched((topic, 0, 0), ids={topic: topic_id})
    return today.asked(client.socket, today.FETCH, version, **fields).responses[0].partitions[0]


def offset(client: raw.RawClient, topic: str, when: int) -> Any:
    found = today.asked(client.socket, today.LIST_OFFSETS, 7, **today.listed((topic, 0, when)))
    return found.topics[0].partitions[0]


def test_each_request_asks_for_its_operation(client: raw.RawClient, rules: Rules) -> None:
    rules.asked.clear()
    produce(client, "mine")
    assert rules.asked == {(WRITE, "mine")}
    rules.asked.clear()
    fetch(client, "mine")
    assert rules.asked == {(READ, "mine")}
    for when in (-1, -2, -3, 5):
        rules.asked.clear()
        offset(client, "mine", when)
        assert rules.asked == {(DESCRIBE, "mine")}
    rules.asked.clear()
    metadata(client, "new")
    assert (DESCRIBE, "new") in rules.asked and (CREATE, "new") in rules.asked


def test_what_is_refused_is_said_and_nothing_more(client: raw.RawClient, rules: Rules) -> None:
    """Whether the topic is there or not."""
    (theirs,) = metadata(client, "theirs")
    rules.refused = {(operation, topic) for operation in Operation for topic in ("theirs", "none")}
    for topic in ("theirs", "none"):
        assert (produce(client, topic).error_code, produce(client, topic).base_offset) == (29, -1)
        assert (fetch(client, topic).error_code, fetch(client, topic).high_watermark) == (29, -1)
        for when in (-1, -2, -3, 5):
            found = offset(client, topic, when)
            assert (found.error_code, found.offset, found.timestamp) == (29, -1, -1)
        (told,) = metadata(client, topic)
        assert (told.error_code, told.partitions, told.topic_id) == (29, (), None)
    assert fetch(client, "theirs", theirs.topic_id).error_code == 29
    (told,) = metadata(client, by_id=theirs.topic_id)
    assert (told.error_code, told.name) == (100, None)
    assert {topic.name for topic in metadata(client)} == {"mine"}
    rules.refused.clear()
    assert offset(client, "theirs", -1).offset == 1
    assert metadata(client, "none")[0].error_code == 0


def test_who_may_see_a_topic_may_not_make_it_for_that(client: raw.RawClient, rules: Rules) -> None:
    rules.refused = {(CREATE, "new")}
    assert metadata(client, "new")[0].error_code == 29
    assert [topic.error_code for topic in metadata(client, "other", "new")] == [0, 29], "each is told of its own"
    rules.refused.clear()
    assert metadata(client, "new")[0].error_code == 0


def test_who_may_make_a_topic_and_not_see_it_makes_none(workers: Workers, client: raw.RawClient, rules: Rules) -> None:
    """Alone, and beside one for which the coordinator is asked."""
    rules.refused = {(DESCRIBE, "hidden")}
    for names in (["hidden"], ["hidden", "new"]):
        assert [topic.error_code for topic in metadata(client, *names)] == [29, 0][: len(names)]
        assert "hidden" not in {view.topic for view in workers.arena.views()}


def test_the_operations_that_are_allowed_are_told(client: raw.RawClient, rules: Rules) -> None:
    rules.refused = {(WRITE, "mine"), (DELETE, "mine")}
    (told,) = metadata(client, "mine")
    settings = 1 << Operation.ALTER | 1 << Operation.DESCRIBE_CONFIGS | 1 << Operation.ALTER_CONFIGS
    assert told.topic_authorized_operations == 1 << READ | 1 << CREATE | 1 << DESCRIBE | settings
    rules.refused = {(Operation.ALTER, "mine"), (Operation.ALTER_CONFIGS, "mine"), (DESCRIBE, "theirs")}
    (told,) = metadata(client, "mine")
    assert told.topic_authorized_operations == 0b101_0111_1000


@pytest.mark.parametrize("version", [8, 9, 10])
def test_where_there_is_a_rule_nothing_is_said_of_the_cluster_but_that_it_is_seen(
    client: raw.RawClient, version: int
) -> None:
    flags = {"include_topic_authorized_operations": False, "allow_auto_topic_creation": False, "topics": []}
    found = today.asked(client.socket, today.METADATA, version, include_cluster_authorized_operations=True, **flags)
    assert found.cluster_authorized_operations == 1 << DESCRIBE


def test_without_acknowledgement_a_refusal_ends_the_connection(client: raw.RawClient, rules: Rules) -> None:
    rules.refused = {(WRITE, "mine")}
    fields = today.produced(("mine", 0, BATCH), acks=0)
    client.socket.sendall(today.request(today.PRODUCE, 9, fields))
    assert drain(client) == b""

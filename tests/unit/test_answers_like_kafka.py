"""What the comparison with an Apache Kafka has found to be wrong, without one; and that the page has what may."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.kafka_codes import Code
from tests.compat.differential import cases, known
from tests.compat.differential.target import batches, differences, keyed
from tests.harness.checkout import ROOT
from tests.harness.coordinated import Coordinated

OFFSET_COMMIT, OFFSET_FETCH, INIT_PRODUCER_ID, EPOCH, DESCRIBE, OFFSET_DELETE, CLUSTER = 8, 9, 22, 23, 32, 47, 60
TOPIC = 2
NONE = -1


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Coordinated]:
    with Coordinated(tmp_path / "log") as made:
        made.create("t", 2)
        yield made


def described(running: Coordinated, name: str, keys: list[str] | None = None, **flags: bool) -> Any:
    asked = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys}
    flags = {"include_synonyms": False, "include_documentation": False} | flags
    (found,) = running.ask(DESCRIBE, 4, resources=[asked], **flags).results
    return found


def test_an_epoch_that_is_not_known_yet(running: Coordinated) -> None:
    """Clients know 75, and ask for metadata; 76 would be a codec that is not supported."""
    asked = [{"partition": 0, "current_leader_epoch": epoch, "leader_epoch": 0} for epoch in (1, -1, -2)]
    (topic,) = running.ask(EPOCH, 4, replica_id=-1, topics=[{"topic": "t", "partitions": asked}]).topics
    assert [each.error_code for each in topic.partitions] == [75, 0, 74]


@pytest.mark.parametrize("version", [2, 9])
def test_offsets_are_kept_of_partitions_that_are_there(running: Coordinated, version: int) -> None:
    rows = [
        {"partition_index": at, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        for at in (0, 1, 2, -1)
    ]
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None, "retention_time": -1}
    fields = {"group_id": "g", **member, "topics": [{"name": "t", "partitions": rows}]}
    (topic,) = running.ask(OFFSET_COMMIT, version, **fields).topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(0, 0), (1, 0), (2, 3), (-1, 3)]
    topics = [{"name": "t", "partitions": [{"partition_index": at} for at in (1, 2)]}]
    (topic,) = running.ask(OFFSET_DELETE, 0, group_id="g", topics=topics).topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(1, 0), (2, 3)]
    (group,) = running.ask(OFFSET_FETCH, 8, groups=[{"group_id": "g", "topics": None}], require_stable=False).groups
    kept = [(topic.name, each.partition_index) for topic in group.topics for each in topic.partitions]
    assert kept == [("t", 0)]


def test_synonyms_come_when_they_are_asked_for(running: Coordinated) -> None:
    assert {row.synonyms for row in described(running, "t").configs} == {()}
    assert all(len(row.synonyms) == 1 for row in described(running, "t", include_synonyms=True).configs)


def test_no_keys_are_all_keys(running: Coordinated) -> None:
    every = [row.name for row in described(running, "t").configs]
    assert [row.name for row in described(running, "t", []).configs] == every and len(every) > 20
    assert [row.name for row in described(running, "t", ["retention.ms"]).configs] == ["retention.ms"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250])
def test_settings_of_a_name_that_no_topic_can_have(running: Coordinated, name: str) -> None:
    assert described(running, name).error_code == Code.INVALID_TOPIC_EXCEPTION
    for key, kind in ((33, {}), (44, {"config_operation": 0})):
        configs = [{"name": "retention.ms", "value": "5", **kind}]
        asked = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
        (found,) = running.ask(key, 1, resources=[asked], validate_only=False).responses
        assert found.error_code == (Code.INVALID_TOPIC_EXCEPTION if name else Code.INVALID_REQUEST)


def test_the_groups_own_topic_is_described(running: Coordinated) -> None:
    """Consoles ask for the settings of each topic that Metadata names."""
    assert described(running, "__consumer_offsets").error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    test_offsets_are_kept_of_partitions_that_are_there(running, 9)
    found = described(running, "__consumer_offsets")
    rows = {row.name: row for row in found.configs}
    assert (found.error_code, rows["cleanup.policy"].value, rows["cleanup.policy"].config_source) == (0, "compact", 1)


@pytest.mark.parametrize("version", [2, 7])
def test_a_setting_without_a_value(running: Coordinated, version: int) -> None:
    found = running.create("new", 1, version, configs={"retention.ms": None})
    assert found.error_code == Code.INVALID_CONFIG
    if version >= 5:
        assert found.configs == ()
    assert running.create("new", 1, version, configs={"retention.ms": "5"}).error_code == 0


@pytest.mark.parametrize("version", [3, 4])
def test_a_producer_needs_its_number_and_its_epoch(running: Coordinated, version: int) -> None:
    fields = {"transactional_id": None, "transaction_timeout": 60_000}

    def ask(**more: Any) -> Any:
        return running.ask(INIT_PRODUCER_ID, version, **(fields | {"producer_id": NONE, "producer_epoch": NONE} | more))

    assert ask().error_code == 0 and ask(producer_id=7, producer_epoch=0).error_code == 0
    for more in ({"producer_id": 7}, {"producer_epoch": 0}, {"transactional_id": ""}):
        found = ask(**more)
        assert (found.error_code, found.producer_id, found.producer_epoch) == (Code.INVALID_REQUEST, -1, -1)
    assert ask(transactional_id="x").error_code == 53


def test_endpoints_that_there_are_not(running: Coordinated) -> None:
    for kind, code in ((2, 114), (0, 115), (3, 115), (-1, 115)):
        found = running.ask(CLUSTER, 1, include_cluster_authorized_operations=True, endpoint_type=kind)
        assert (found.error_code, found.cluster_id, found.controller_id, found.brokers) == (code, "", -1, ())
        assert (found.endpoint_type, found.cluster_authorized_operations) == (1, -(2**31))
    found = running.ask(CLUSTER, 1, include_cluster_authorized_operations=True, endpoint_type=1)
    assert found.error_code == 0 and len(found.brokers) == 1 and found.cluster_authorized_operations > 0


# -- the comparison itself ---------------------------------------------------------------------------------------------


def test_the_page_names_what_may_differ() -> None:
    """Each reason of the table, and no other."""
    page = (ROOT / "docs" / "kafka.md").read_text()
    part = page.partition("## Answers that differ")[2].partition("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    assert rows == known.rows()


def test_what_differs_is_found() -> None:
    kafka = {"a": keyed([{"name": "x", "n": 1}, {"name": "y", "n": 2}]), "b": [1]}
    ours = {"a": keyed([{"name": "y", "n": 3}, {"name": "x", "n": 1}, {"name": "x", "n": 1}]), "b": [1]}
    found = [(one.field, one.kafka, one.ours) for one in differences(kafka, ours)]
    assert found == [("a[].n", 2, 3), ("a[]", "is not there", "is there")]
    assert differences(kafka, kafka) == []


def test_batches_are_told_apart_by_what_is_in_them() -> None:
    one, other = (cases.batch(value, producer_id=5).encode() for value in (b"one", b"two"))
    assert batches(one) == batches(cases.batch(b"one", producer_id=6).encode()) != batches(other)
    assert str(batches(one + other[:70])).endswith("and 9 bytes") is False
    assert str(batches(one + b"x")).endswith(" and 1 bytes") and batches(None) is None


def test_patterns() -> None:
    pattern = known.Pattern("A|B", "*name: ''", "x[].y", "3*", "*")
    assert pattern.fits("B", "topics.name: ''", "x[].y", "3 unknown", "")
    assert not pattern.fits("C", "topics.name: ''", "x[].y", "3 unknown", "")
    assert not pattern.fits("A", "topics.name: ''", "x.y", "3 unknown", "")


def test_each_request_that_is_offered_is_asked_at_each_version() -> None:
    made = list(cases.generated(set(cases.GOOD)))
    assert {(case.key, case.version) for case in made if case.label == "good"} == {
        (key, version)
        for key, api in (cases.kinds.APIS | cases.kinds.FORWARDED).items()
        for version in range(api.served, api.last + 1)
    }
    assert len({(case.key, case.version, case.label) for case in made}) == len(made) > 3000
    assert not any(re.search(r"0x[0-9a-f]{6}", case.label) for case in made)
    assert isinstance(cases.UNKNOWN_ID, uuid.UUID)

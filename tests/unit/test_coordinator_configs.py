"""Settings of topics that are changed while they are in use, also by a coordinator that is killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.kafka_codes import Code
from fastlog.log._append import append_batch
from fastlog.log.files import FileOps
from fastlog.log.manager import CreationBusyError
from fastlog.log.metadata import read_metadata
from fastlog.workers.authorization import Operation, ResourceType
from fastlog.workers.coordinator import topics as topics_module
from tests.harness import stored_batches
from tests.harness.coordinated import Coordinated

ALL, SOME = 33, 44
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
ID = bytes(range(16))
HOURS_MS = 4 * 3_600_000


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Coordinated]:
    with Coordinated(tmp_path / "log") as running:
        yield running


def replaced(
    running: Coordinated, settings: dict[str, str | None], topic: str = "t", version: int = 2
) -> tuple[int, str]:
    """What AlterConfigs answers about one topic."""
    configs = [{"name": name, "value": value} for name, value in settings.items()]
    return asked(running, ALL, version, resource(configs, topic))


def changed(
    running: Coordinated, *changes: tuple[str, int, str | None], topic: str = "t", version: int = 1, **given: Any
) -> tuple[int, str]:
    """The same of IncrementalAlterConfigs."""
    configs = [{"name": name, "config_operation": kind, "value": value} for name, kind, value in changes]
    return asked(running, SOME, version, resource(configs, topic), **given)


def resource(configs: list[dict[str, Any]], name: str = "t", kind: int = TOPIC) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def asked(
    running: Coordinated, key: int, version: int, wanted: dict[str, Any], validate_only: bool = False
) -> tuple[int, str]:
    (found,) = running.ask(key, version, resources=[wanted], validate_only=validate_only).responses
    assert (found.resource_type, found.resource_name) == (wanted["resource_type"], wanted["resource_name"])
    return int(found.error_code), found.error_message or ""


def recorded(running: Coordinated, topic: str = "t") -> dict[str, str]:
    """What is on the disk."""
    return dict(read_metadata([running.directory], FileOps()).topics[topic].settings)


@pytest.mark.parametrize("version", range(3))
def test_all_settings_are_replaced(running: Coordinated, version: int) -> None:
    running.create("t", 3, configs={"retention.bytes": "5000", "segment.bytes": "100000"})
    assert replaced(running, {"segment.bytes": "200000", "flush.ms": "70"}, version=version) == (0, "")
    assert recorded(running) == running.topics.settings("t") == {"segment.bytes": "200000", "flush.ms": "70"}
    for view in running.topics.partitions("t"):
        assert view.retention_bytes == running.config.retention_bytes


@pytest.mark.parametrize("version", range(2))
def test_some_settings_are_changed(running: Coordinated, version: int) -> None:
    given = {"retention.ms": "60000", "segment.bytes": "100000", "max.message.bytes": "4321"}
    running.create("t", 2, configs=given)
    changes = [
        ("retention.ms", SET, "-1"),
        ("segment.bytes", DELETE, None),
        ("message.timestamp.type", SET, "LogAppendTime"),
    ]
    assert changed(running, *changes, version=version) == (0, "")
    now = {"retention.ms": "-1", "max.message.bytes": "4321", "message.timestamp.type": "LogAppendTime"}
    assert recorded(running) == now
    for view in running.topics.partitions("t"):
        assert (view.max_message_bytes, view.append_time) == (4321, True)
        assert view.retention_ms > 10**15


@pytest.mark.parametrize("sooner", [{"flush.ms": "20"}, {"flush.messages": "1"}])
def test_what_waits_for_a_flush_waits_no_longer_than_they_say_now(tmp_path: Path, sooner: dict[str, str]) -> None:
    later = {"flush.ms": "10000000", "flush.messages": "1000000"}
    with Coordinated(tmp_path / "log", heartbeat_ms=HOURS_MS) as running:
        running.create("t", 1, configs=later)
        (made,) = running.topics.partitions("t")

        def waits() -> bool:
            """Nobody demands a flush any more, as those that make a topic do."""
            append_batch(running.topics.disk.appender, made.index, bytearray(stored_batches.batch(b"x")), 1, -1)
            running.turn()
            (view,) = running.topics.partitions("t")
            return view.flushed_end < view.log_end

        def is_flushed() -> bool:
            (view,) = running.topics.partitions("t")
            return view.flushed_end == view.log_end

        running.turn_until("an append waits", waits)
        assert changed(running, *((name, SET, value) for name, value in sooner.items())) == (0, "")
        running.turn_until("it is flushed", is_flushed)


def test_no_other_topic_gets_them(running: Coordinated) -> None:
    running.create("t")
    running.create("other")
    before = running.topics.partitions("other")
    assert changed(running, ("retention.bytes", SET, "5000"), ("max.message.bytes", SET, "4321")) == (0, "")
    assert running.topics.partitions("other") == before


def test_a_list_gets_and_loses_parts(running: Coordinated) -> None:
    """Where the topic has none of its own, the default's."""
    running.create("t")
    assert changed(running, ("cleanup.policy", APPEND, "compact")) == (0, "")
    assert recorded(running) == {"cleanup.policy": "delete,compact"}
    assert changed(running, ("cleanup.policy", APPEND, "delete, compact")) == (0, "")
    assert recorded(running) == {"cleanup.policy": "delete,compact"}
    assert changed(running, ("cleanup.policy", SUBTRACT, "delete")) == (0, "")
    assert recorded(running) == {"cleanup.policy": "compact"}
    code, message = changed(running, ("cleanup.policy", SUBTRACT, "compact"))
    assert code == Code.INVALID_CONFIG and "delete or compact" in message
    for kind, word in ((APPEND, "APPEND"), (SUBTRACT, "SUBTRACT")):
        for name in ("retention.ms", "nobody.knows"):
            code, message = changed(running, (name, kind, "1"))
            assert code == Code.INVALID_CONFIG and f"Can't {word} to key {name}" in message
    assert recorded(running) == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("changes", "code", "why"),
    [
        ([("segment.bytes", SET, "13")], Code.INVALID_CONFIG, "14 to"),
        ([("nobody.knows", SET, "1")], Code.INVALID_CONFIG, "Unknown topic config name: nobody.knows"),
        ([("compression.type", SET, "zstd")], Code.INVALID_CONFIG, "here it is producer"),
        ([("segment.bytes", SET, None)], Code.INVALID_REQUEST, "Null value not supported for : segment.bytes"),
        ([("cleanup.policy", APPEND, None)], Code.INVALID_REQUEST, "Null value"),
        ([("segment.bytes", 4, "1000")], Code.INVALID_REQUEST, "Unknown operation type 4"),
        ([("segment.bytes", -1, "1000")], Code.INVALID_REQUEST, "Unknown operation type -1"),
        ([("flush.ms", SET, "5"), ("flush.ms", DELETE, None)], Code.INVALID_REQUEST, "duplicate config keys: flush.ms"),
    ],
)
def test_what_is_refused_changes_nothing(
    running: Coordinated, changes: list[tuple[str, int, str | None]], code: Code, why: str
) -> None:
    running.create("t", 1, configs={"retention.bytes": "5000"})
    before = running.topics.partitions("t")
    found = changed(running, ("retention.bytes", SET, "6000"), *changes)
    assert found[0] == code and why in found[1]
    assert recorded(running) == {"retention.bytes": "5000"} and running.topics.partitions("t") == before
    assert changed(running, ("retention.bytes", SET, "6000")) == (0, "")


def test_no_value_is_no_setting(running: Coordinated) -> None:
    running.create("t")
    assert replaced(running, {"segment.bytes": None})[0] == Code.INVALID_REQUEST
    assert replaced(running, {"segment.bytes": ""})[0] == Code.INVALID_CONFIG


@pytest.mark.parametrize("key", [ALL, SOME])
@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "none", Code.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "old", Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (TOPIC, "__fastlog_metadata", Code.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "7", Code.INVALID_REQUEST),
        (BROKER, "", Code.INVALID_REQUEST),
        (BROKER_LOGGER, "7", Code.INVALID_REQUEST),
    ],
)
def test_what_has_settings_that_can_be_changed(
    running: Coordinated, key: int, kind: int, name: str, code: Code
) -> None:
    running.manager.create_partition("old", 0)
    found, message = asked(running, key, 0, resource([], name, kind))
    assert found == code and message


def test_one_that_is_only_validated_changes_nothing(running: Coordinated) -> None:
    running.create("t", 1, configs={"retention.bytes": "5000"})
    before = running.topics.partitions("t")
    assert changed(running, ("retention.bytes", SET, "6000"), validate_only=True) == (0, "")
    assert changed(running, ("retention.bytes", SET, "x"), validate_only=True)[0] == Code.INVALID_CONFIG
    assert recorded(running) == {"retention.bytes": "5000"} and running.topics.partitions("t") == before


@pytest.mark.parametrize("key", [ALL, SOME])
def test_each_topic_is_answered_for_itself(running: Coordinated, key: int) -> None:
    running.create("t")
    running.create("u")
    good = [{"name": "flush.ms", "value": "5", "config_operation": SET}]
    wanted = [resource(good), resource(good, "none"), resource(good, "u"), resource(good, "u")]
    found = running.ask(key, 0, resources=wanted, validate_only=False).responses
    assert [(row.resource_name, row.error_code) for row in found] == [
        ("t", 0),
        ("none", Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", Code.INVALID_REQUEST),
        ("u", Code.INVALID_REQUEST),
    ]
    assert (recorded(running), recorded(running, "u")) == ({"flush.ms": "5"}, {})


@pytest.mark.parametrize(("key", "operation"), [(ALL, "AlterConfigs"), (SOME, "IncrementalAlterConfigs")])
def test_who_may_not_is_told_so(tmp_path: Path, key: int, operation: str) -> None:
    seen = []

    def rule(_principal: str, _host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        seen.append((operation, kind, name))
        return operation is not Operation.ALTER_CONFIGS

    with Coordinated(tmp_path / "log", rule=rule) as running:
        running.create("t")
        seen.clear()
        good = [{"name": "flush.ms", "value": "5", "config_operation": SET}]
        assert asked(running, key, 0, resource(good))[0] == Code.TOPIC_AUTHORIZATION_FAILED
        assert asked(running, key, 0, resource(good, "7", BROKER))[0] == Code.CLUSTER_AUTHORIZATION_FAILED
        assert [(operation, kind) for operation, kind, _ in seen] == [
            (Operation.ALTER_CONFIGS, ResourceType.TOPIC),
            (Operation.ALTER_CONFIGS, ResourceType.CLUSTER),
        ]
        assert recorded(running) == {}


def test_two_who_change_one_topic_both_have_their_way(running: Coordinated) -> None:
    """Neither sees what the other has begun and not done."""
    running.create("t")
    asked_at_once = []
    for name in ("flush.ms", "segment.ms", "flush.messages"):
        configs = [{"name": name, "value": "7", "config_operation": SET}]
        asked_at_once.append(running.begin_to_ask(SOME, 1, resources=[resource(configs)], validate_only=False))
    running.turn_until("all are answered", lambda: all(asked_at_once))
    assert {answers[0].responses[0].error_code for answers in asked_at_once} == {0}
    assert recorded(running) == {"flush.ms": "7", "segment.ms": "7", "flush.messages": "7"}


def test_what_goes_on_under_a_name_is_not_waited_for_without_end(
    running: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a deletion that nobody carries out."""
    running.create("t")
    running.keeps_house = False
    running.begin_to_ask(20, 6, topics=[{"name": "t", "topic_id": bytes(16)}], timeout=1)
    monkeypatch.setattr(topics_module, "NAMES_SECONDS", 0.05)
    assert changed(running, ("flush.ms", SET, "5"))[0] == Code.REQUEST_TIMED_OUT
    running.keeps_house = True
    running.turn_until("it is gone", lambda: not running.topics.is_there("t"))


def test_a_creation_that_goes_on_is_waited_for(running: Coordinated, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is taken by others three times; then all partitions have what was written down."""
    running.create("t", 2)
    manager = running.topics._workers_manager
    give, tries = manager.change_settings, []

    def change_settings(*given: Any) -> None:
        tries.append(given)
        if len(tries) <= 3:
            raise CreationBusyError("others make partitions")
        give(*given)

    monkeypatch.setattr(manager, "change_settings", change_settings)
    assert changed(running, ("retention.bytes", SET, "5")) == (0, "")
    assert [view.retention_bytes for view in running.topics.partitions("t")] == [5, 5]
    assert len(tries) == 4


def test_settings_of_a_topic_that_others_made_are_kept_with_its_id(running: Coordinated) -> None:
    """It is not written down yet when it is changed for the first time."""
    for partition in range(2):
        running.manager.create_partition("made", partition, count=2, format_name="record-batches", topic_id=ID)
    assert changed(running, ("flush.ms", SET, "9"), topic="made") == (0, "")
    found = read_metadata([running.directory], FileOps()).topics["made"]
    assert (found.topic_id, found.partitions, dict(found.settings)) == (ID, 2, {"flush.ms": "9"})


def test_partitions_that_are_made_later_have_them_too(running: Coordinated) -> None:
    running.create("t", 1)
    changed(running, ("retention.bytes", SET, "7777"))
    row = {"name": "t", "count": 3, "assignments": None}
    assert running.ask(37, 3, topics=[row], timeout=30_000, validate_only=False).results[0].error_code == 0
    assert [view.retention_bytes for view in running.topics.partitions("t")] == [7777] * 3
    assert recorded(running) == {"retention.bytes": "7777"}


def test_they_hold_after_a_start(tmp_path: Path) -> None:
    with Coordinated(tmp_path / "log") as first:
        first.create("t", 1, configs={"retention.bytes": "5000"})
        changed(first, ("retention.bytes", DELETE, None), ("retention.ms", SET, "99999"))
    with Coordinated(tmp_path / "log") as second:
        (view,) = second.topics.partitions("t")
        assert (view.retention_bytes, view.retention_ms) == (second.config.retention_bytes, 99_999)


@pytest.mark.parametrize("turns", range(8))
def test_a_killed_coordinators_change_holds_or_never_was(running: Coordinated, turns: int) -> None:
    """What is written down reaches the partitions by the next one."""
    running.create("t", 2, configs={"retention.bytes": "5000"})
    configs = [{"name": "retention.bytes", "value": "6000", "config_operation": SET}]
    answers = running.begin_to_ask(SOME, 1, resources=[resource(configs)], validate_only=False)
    for _ in range(turns):
        running.turn()
    running.loop.close()
    running.begin()
    running.turn_until("it is ready", lambda: running.topics.is_ready)
    now = recorded(running)["retention.bytes"]
    assert now == "6000" or not answers
    assert {view.retention_bytes for view in running.topics.partitions("t")} == {int(now)}


def test_a_successor_takes_back_what_is_no_setting_any_more(running: Coordinated) -> None:
    """The change was written down, and its coordinator killed before any partition had it."""
    running.create("t", 1, configs={"retention.bytes": "5000"})
    running.topics._apply = lambda _: iter(())  # type: ignore[assignment, method-assign, return-value]
    assert replaced(running, {}) == (0, "")
    assert running.topics.partitions("t")[0].retention_bytes == 5000
    running.loop.close()
    running.begin()
    running.turn_until("it is ready", lambda: running.topics.is_ready)
    assert running.topics.partitions("t")[0].retention_bytes == running.config.retention_bytes


def test_a_topic_that_took_the_name_keeps_its_own(running: Coordinated) -> None:
    running.create("t", 1, configs={"retention.bytes": "5000"})
    settings = running.config.for_topic("t")
    running.manager.change_settings("t", ID, settings._replace(retention_bytes=1))
    assert running.topics.partitions("t")[0].retention_bytes == 5000
    (view,) = running.topics.partitions("t")
    own = running.manager._slot_settings(settings._replace(retention_bytes=1))
    running.arena.change_settings(view.index, view.life + 2, own)
    assert running.topics.partitions("t")[0].retention_bytes == 5000
    running.arena.change_settings(view.index, view.life, own)
    assert running.topics.partitions("t")[0].retention_bytes == 1

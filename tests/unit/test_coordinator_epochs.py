"""OFFSET_FOR_LEADER_EPOCH: where epochs end, as Kafka says it, and when a client has to ask again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.log.files import FileOps
from fastlog.log.kafka_files import EPOCHS_NAME, read_epochs, write_epochs
from fastlog.workers.authorization import Operation, ResourceType
from fastlog.workers.coordinator.requests import offset_for_leader_epoch
from fastlog.workers.coordinator.requests.offset_for_leader_epoch import end_of_epoch
from tests.harness.coordinated import Coordinated
from tests.unit.test_coordinator_records import append, flush

pytestmark = pytest.mark.usefixtures("no_faults")

FORMER = [(0, 0), (2, 10), (5, 10), (6, 30)]
"""As stops leave them: numbers are left out where nothing was appended."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Coordinated]:
    with Coordinated(tmp_path / "log") as made:
        yield made


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-2, (-2, 0)),
        (-1, (-1, -1)),
        (0, (0, 10)),
        (1, (0, 10)),
        (2, (2, 10)),
        (4, (2, 10)),
        (5, (5, 30)),
        (6, (6, 33)),
        (7, (-1, -1)),
        (2**31 - 1, (-1, -1)),
    ],
)
def test_where_an_epoch_ends(epoch: int, answer: tuple[int, int]) -> None:
    assert end_of_epoch(epoch, FORMER, 33) == answer


def test_epochs_from_before_all_that_are_known() -> None:
    assert end_of_epoch(3, [(4, 20), (5, 25)], 30) == (3, 20)
    assert [end_of_epoch(epoch, [], 30) for epoch in (-1, 0, 1)] == [(-1, -1)] * 3


def asked(*topics: tuple[str, list[tuple[int, int, int]]]) -> dict[str, Any]:
    """Topics with partition, current epoch and the epoch asked for."""
    return {
        "replica_id": -1,
        "topics": [
            {
                "topic": name,
                "partitions": [
                    {"partition": number, "current_leader_epoch": current, "leader_epoch": epoch}
                    for number, current, epoch in rows
                ],
            }
            for name, rows in topics
        ],
    }


def answered(running: Coordinated, *topics: tuple[str, list[tuple[int, int, int]]], version: int = 4) -> list[Any]:
    """Topic, partition, error code, epoch and end of each."""
    return [
        (topic.topic, each.partition, int(each.error_code), each.leader_epoch, each.end_offset)
        for topic in running.ask(23, version, **asked(*topics)).topics
        for each in topic.partitions
    ]


def begun(running: Coordinated, count: int = 1) -> None:
    running.create("t", count)
    one_more(running)


def one_more(running: Coordinated) -> None:
    append(running, "t", 3)
    flush(running, "t")


@pytest.mark.parametrize("version", [2, 3, 4])
def test_every_version(tmp_path: Path, version: int) -> None:
    with Coordinated(tmp_path) as running:
        begun(running, 2)
    with Coordinated(tmp_path) as running:
        one_more(running)
    with Coordinated(tmp_path) as running:
        (epoch,) = {view.epoch for view in running.topics.partitions("t")}
        assert epoch == 2
        found = answered(
            running,
            ("t", [(0, 2, 0), (0, 2, 1), (0, 2, 2), (0, -1, 3), (1, 2, 0), (1, 2, 2)]),
            ("u", [(0, -1, 0)]),
            ("t", [(2, 0, 0), (-1, 0, 0)]),
            version=version,
        )
        assert found == [
            ("t", 0, Code.NONE, 0, 3),
            ("t", 0, Code.NONE, 1, 6),
            ("t", 0, Code.NONE, 2, 6),
            ("t", 0, Code.NONE, -1, -1),
            ("t", 1, Code.NONE, 0, 0),
            ("t", 1, Code.NONE, 2, 0),
            ("u", 0, Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
            ("t", 2, Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
            ("t", -1, Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
        ]


def test_a_client_that_knows_another_epoch_asks_again(tmp_path: Path) -> None:
    with Coordinated(tmp_path) as running:
        begun(running)
    with Coordinated(tmp_path) as running:
        found = answered(running, ("t", [(0, current, 0) for current in (-1, 0, 1, 2)]))
        assert [row[2:] for row in found] == [
            (Code.NONE, 0, 3),
            (Code.FENCED_LEADER_EPOCH, -1, -1),
            (Code.NONE, 0, 3),
            (Code.UNKNOWN_LEADER_EPOCH, -1, -1),
        ]


def test_the_current_epoch_ends_with_the_log_and_needs_no_file(running: Coordinated) -> None:
    begun(running)
    (running.directory / "t-0" / EPOCHS_NAME).unlink()
    append(running, "t", 4)
    found = answered(running, ("t", [(0, 0, 0), (0, 0, 1), (0, 0, -1)]))
    assert [row[2:] for row in found] == [(Code.NONE, 0, 7), (Code.NONE, -1, -1), (Code.NONE, -1, -1)]


@pytest.mark.parametrize("left", ["none", "damaged", "of another life", "unreadable"])
def test_a_file_that_does_not_know_the_current_epoch_is_not_believed(tmp_path: Path, left: str) -> None:
    """Or a client would begin at the wrong place, or anew."""
    with Coordinated(tmp_path) as running:
        begun(running)
    with Coordinated(tmp_path) as running:
        directory = tmp_path / "t-0"
        path = directory / EPOCHS_NAME
        known = read_epochs(directory, FileOps())
        assert known == [(0, 0), (1, 3)]
        match left:
            case "none":
                path.unlink()
            case "damaged":
                path.write_bytes(b"what")
            case "of another life":
                write_epochs(directory, known[:1], FileOps())
            case "unreadable":
                path.unlink()
                path.mkdir()
        refused = ("t", 0, Code.KAFKA_STORAGE_ERROR, -1, -1)
        assert answered(running, ("t", [(0, 1, 0), (0, 1, 1)])) == [refused, ("t", 0, Code.NONE, 1, 3)]


def test_more_partitions_than_a_step_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_for_leader_epoch, "STEP_FILES", 2)
    with Coordinated(tmp_path) as running:
        running.create("t", 5)
        for number in range(5):
            append(running, "t", number + 1, number)
        flush(running, "t")
    read = []
    real = offset_for_leader_epoch._read
    monkeypatch.setattr(
        offset_for_leader_epoch, "_read", lambda broker, views: (read.append(len(views)), real(broker, views))[1]
    )
    with Coordinated(tmp_path) as running:
        for count in range(1, 6):
            read.clear()
            found = answered(running, ("t", [(number, 1, 0) for number in range(count)]))
            assert found == [("t", number, Code.NONE, 0, number + 1) for number in range(count)]
            assert read == [2] * (count // 2) + [1] * (count % 2)


def test_what_has_no_epochs(running: Coordinated) -> None:
    running.manager.create_partition("old topic", 0)
    assert answered(running, ("old topic", [(0, -1, 0)])) == [
        ("old topic", 0, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1, -1)
    ]


def test_what_is_out_of_service_is_for_another_time(running: Coordinated) -> None:
    begun(running)
    _files.arm("fdatasync=EIO", "test")
    append(running, "t", 1)
    running.arena.demand_flush(running.topics.partitions("t")[0].index)
    running.turn_until("it is out of service", lambda: bool(running.topics.partitions("t")[0].state))
    _files.arm("", "test")
    assert answered(running, ("t", [(0, 0, 0)])) == [("t", 0, Code.KAFKA_STORAGE_ERROR, -1, -1)]


def test_a_life_that_is_over_is_for_another_time(running: Coordinated) -> None:
    begun(running)
    (view,) = running.topics.partitions("t")
    problems = [offset_for_leader_epoch._problem(view._replace(life=view.life + more), -1) for more in (0, 1, 2)]
    assert problems == [Code.NONE, Code.KAFKA_STORAGE_ERROR, Code.NONE]


def test_who_may_not(tmp_path: Path) -> None:
    seen = []

    def rule(_principal: str, _host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        seen.append((operation, resource, name))
        return name != "t"

    with Coordinated(tmp_path / "log", rule=rule) as running:
        running.create("u")
        seen.clear()
        found = answered(running, ("t", [(0, -1, 0), (1, -1, 0)]), ("u", [(0, -1, 0)]))
        denied = Code.TOPIC_AUTHORIZATION_FAILED
        assert found == [("t", 0, denied, -1, -1), ("t", 1, denied, -1, -1), ("u", 0, Code.NONE, 0, 0)]
        assert set(seen) == {(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in "tu"}

"""DELETE_RECORDS: what is answered, to whom it is refused, and that the answer waits for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.log._append import Appender, append_sets
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.workers.authorization import Operation, ResourceType
from fastlog.workers.coordinator.requests import delete_records
from tests.harness.coordinated import Coordinated
from tests.harness.shared_log import DONE
from tests.harness.stored_batches import batch

pytestmark = pytest.mark.usefixtures("no_faults")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Coordinated]:
    with Coordinated(tmp_path / "log") as made:
        yield made


def append(running: Coordinated, topic: str, count: int, partition: int = 0) -> None:
    index = running.topics.partitions(topic)[partition].index
    appender = Appender(running.arena, SegmentFiles(running.arena, 8), FIRST_PROCESSOR)
    assert append_sets(appender, index, [(batch(*[b"x"] * count), count, count, 0)])[0] == DONE


def flush(running: Coordinated, topic: str) -> None:
    for view in running.topics.partitions(topic):
        running.arena.demand_flush(view.index)
        running.turn_until(
            "it is flushed",
            lambda index=view.index: running.arena.view(index).visible_offset == running.arena.view(index).log_offset,  # type: ignore[misc]
        )


def asked(*topics: tuple[str, list[tuple[int, int]]], timeout: int = 30_000) -> dict[str, Any]:
    return {
        "topics": [
            {"name": name, "partitions": [{"partition_index": number, "offset": offset} for number, offset in rows]}
            for name, rows in topics
        ],
        "timeout": timeout,
    }


def rows(answer: Any) -> list[tuple[str, int, int, int]]:
    """Topic, partition, error code, low watermark."""
    return [
        (topic.name, each.partition_index, int(each.error_code), each.low_watermark)
        for topic in answer.topics
        for each in topic.partitions
    ]


def delete(running: Coordinated, offset: int, topic: str = "t", partition: int = 0) -> tuple[int, int]:
    """Error code and low watermark."""
    ((_, _, code, low),) = rows(running.ask(21, 2, **asked((topic, [(partition, offset)]))))
    return code, low


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version(running: Coordinated, version: int) -> None:
    running.create("t", 2)
    append(running, "t", 10)
    flush(running, "t")
    found = rows(running.ask(21, version, **asked(("t", [(0, 4), (1, 0)]), ("u", [(0, 0)]))))
    assert found == [("t", 0, Code.NONE, 4), ("t", 1, Code.NONE, 0), ("u", 0, Code.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    views = running.topics.partitions("t")
    assert [(view.log_start, view.kept_start) for view in views] == [(4, 4), (0, 0)]


def test_where_it_may_begin(running: Coordinated) -> None:
    running.create("t")
    append(running, "t", 10)
    flush(running, "t")
    refused = (Code.OFFSET_OUT_OF_RANGE, -1)
    assert [delete(running, offset) for offset in (11, 2**63 - 1, -2, -(2**63))] == [refused] * 4
    assert running.topics.partitions("t")[0].log_start == 0
    assert delete(running, 9) == (Code.NONE, 9)
    assert delete(running, 3) == (Code.NONE, 9), "it never goes back"
    assert delete(running, 10) == (Code.NONE, 10)
    append(running, "t", 5)
    assert delete(running, -1) == (Code.NONE, 15), "what was appended before counts"
    append(running, "t", 5)
    assert delete(running, 18) == (Code.NONE, 18)
    assert delete(running, 21) == refused


def test_what_nobody_may_delete_from(running: Coordinated) -> None:
    running.create("compacted", configs={"cleanup.policy": "compact"})
    running.create("both", configs={"cleanup.policy": "compact,delete"})
    running.manager.create_partition("old", 0)
    assert delete(running, 0, "compacted") == (Code.POLICY_VIOLATION, -1)
    assert delete(running, 0, "both") == (Code.NONE, 0)
    assert delete(running, 0, "old") == (Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1)
    assert delete(running, 0, "__fastlog_metadata") == (Code.INVALID_TOPIC_EXCEPTION, -1)
    assert delete(running, 0, "both", 1) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(running, 0, "both", -1) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_who_may_not(tmp_path: Path) -> None:
    """The right to delete the topic is what it takes, one topic at a time."""
    seen = []

    def rule(_principal: str, _host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        seen.append((operation, resource, name))
        return name != "t"

    with Coordinated(tmp_path / "log", rule=rule) as running:
        running.create("u")
        seen.clear()
        found = rows(running.ask(21, 2, **asked(("t", [(0, 0), (1, 0)]), ("u", [(0, 0)]))))
        denied = Code.TOPIC_AUTHORIZATION_FAILED
        assert found == [("t", 0, denied, -1), ("t", 1, denied, -1), ("u", 0, Code.NONE, 0)]
        assert set(seen) == {(Operation.DELETE, ResourceType.TOPIC, name) for name in "tu"}


def test_the_answer_waits_for_the_disk(running: Coordinated) -> None:
    running.create("t")
    append(running, "t", 10)
    flush(running, "t")
    running.keeps_house = False
    answers = running.begin_to_ask(21, 2, **asked(("t", [(0, 4)])))
    running.turn_until("it is wanted", lambda: running.topics.partitions("t")[0].wanted_start == 4)
    for _ in range(5):
        running.turn()
    assert not answers and running.topics.partitions("t")[0].log_start == 4
    running.keeps_house = True
    running.turn_until("an answer", lambda: bool(answers))
    assert rows(answers[0]) == [("t", 0, Code.NONE, 4)]


def test_what_is_not_done_in_time_goes_on(running: Coordinated) -> None:
    running.create("t")
    append(running, "t", 10)
    flush(running, "t")
    running.keeps_house = False
    assert rows(running.ask(21, 2, **asked(("t", [(0, 4)]), timeout=0))) == [("t", 0, Code.REQUEST_TIMED_OUT, -1)]
    running.keeps_house = True
    running.turn_until("it is done", lambda: running.topics.partitions("t")[0].kept_start == 4)
    assert delete(running, 4) == (Code.NONE, 4)


def test_an_end_that_is_not_flushed_is_waited_for_no_longer_than_that(
    running: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.create("t")
    append(running, "t", 3)
    flush(running, "t")
    monkeypatch.setattr(delete_records, "END_SECONDS", 0.0)
    running.arena.publish_start(running.topics.partitions("t")[0].index, 2)
    _files.arm("flush.begun@1=slow:3000", "test")
    append(running, "t", 3)
    assert delete(running, 6) == (Code.OFFSET_OUT_OF_RANGE, -1)
    _files.arm("", "test")
    flush(running, "t")
    assert delete(running, 6) == (Code.NONE, 6)


def test_what_is_behind_the_new_beginning_is_not_waited_for(tmp_path: Path) -> None:
    with Coordinated(tmp_path / "log", flush_interval_ms=3_600_000) as running:
        running.create("t")
        append(running, "t", 3)
        flush(running, "t")
        append(running, "t", 3)
        assert delete(running, 2) == (Code.NONE, 2)
        assert running.topics.partitions("t")[0].visible_offset == 3


def test_what_is_out_of_service_is_for_another_time(running: Coordinated) -> None:
    running.create("t")
    append(running, "t", 10)
    flush(running, "t")
    _files.arm("fdatasync=EIO", "test")
    append(running, "t", 1)
    running.arena.demand_flush(running.topics.partitions("t")[0].index)
    running.turn_until("it is out of service", lambda: bool(running.topics.partitions("t")[0].state))
    _files.arm("", "test")
    assert delete(running, 4) == (Code.KAFKA_STORAGE_ERROR, -1)
    assert running.topics.partitions("t")[0].log_start == 0


def test_a_topic_that_goes_meanwhile_ends_the_wait(running: Coordinated) -> None:
    running.create("t")
    append(running, "t", 10)
    flush(running, "t")
    running.keeps_house = False
    answers = running.begin_to_ask(21, 2, **asked(("t", [(0, 4)])))
    running.turn()
    gone = running.begin_to_ask(20, 6, topics=[{"name": "t", "topic_id": bytes(16)}], timeout=30_000)
    running.turn_until("it is to go", lambda: running.arena.deletions_wanted > 0)
    running.starts.turn = lambda: None  # type: ignore[method-assign]
    running.keeps_house = True
    running.turn_until("both answers", lambda: bool(answers and gone))
    assert rows(answers[0]) == [("t", 0, Code.KAFKA_STORAGE_ERROR, -1)]


def test_one_partition_named_twice_begins_at_the_later_place(running: Coordinated) -> None:
    running.create("t")
    append(running, "t", 10)
    flush(running, "t")
    found = rows(running.ask(21, 2, **asked(("t", [(0, 7), (0, 4)]))))
    assert found == [("t", 0, Code.NONE, 7), ("t", 0, Code.NONE, 7)]


def test_nothing_that_was_answered_comes_back(tmp_path: Path) -> None:
    """Not where retention had been further when the answer was given, and was not done with its files, either."""
    with Coordinated(tmp_path / "log", segment_bytes=150) as running:
        running.create("t")
        for _ in range(6):
            append(running, "t", 2)
        flush(running, "t")
        view = running.topics.partitions("t")[0]
        head = running.arena.segments(view.index)[2]
        running.arena.publish_retention(view.index, head.index, head.base)
        assert delete(running, 1) == (Code.NONE, head.base)
    with Coordinated(tmp_path / "log", segment_bytes=150) as running:
        assert running.topics.partitions("t")[0].log_start == head.base

"""How groups stand, from the coordinator to the page of metrics: only what is flushed, whole, or nothing."""

from __future__ import annotations

import dataclasses
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.log._shared_memory import COORDINATOR
from fastlog.log.slots import Segment
from fastlog.workers import group_board, metrics
from fastlog.workers.coordinator.groups import report
from fastlog.workers.coordinator.groups.report import answer_questions
from fastlog.workers.group_board import GroupBoard, GroupRow, encoded
from fastlog.workers.group_metrics import group_families
from tests.harness.broker import wait_until
from tests.harness.coordinated_groups import Asked
from tests.harness.timing import PATIENCE
from tests.unit.test_health import Inside
from tests.unit.test_metrics import value

ROW = GroupRow("g", 2, [("t", 0, 5)])


@pytest.fixture
def board() -> Iterator[GroupBoard]:
    made = GroupBoard()
    yield made
    made.close()


# -- the memory --------------------------------------------------------------------------------------------------------


def test_an_answer_is_that_to_the_question(board: GroupBoard) -> None:
    assert not board.is_asked
    first = board.ask()
    assert board.is_asked and board.question == first
    assert board.wait(first, 0) is None
    board.answer(first, [encoded([ROW]), encoded([GroupRow("h\n", 0, [])])])
    assert not board.is_asked
    assert board.wait(first, 0) == [GroupRow("g", 2, [["t", 0, 5]]), GroupRow("h\n", 0, [])]  # type: ignore[list-item]
    second = board.ask()
    assert board.is_asked and board.wait(second, 0) is None, "the former answer is not one to this"
    board.answer(second, [])
    assert board.wait(second, 0) == []
    assert board.wait(first, 0) == [], "one to a later question will do"


def test_an_answer_that_is_awaited_is_taken_when_it_comes(board: GroupBoard) -> None:
    question = board.ask()
    later = threading.Timer(0.05, lambda: board.answer(question, [encoded([ROW])]))
    later.start()
    assert board.wait(question, PATIENCE) is not None
    later.join()


def test_nobody_is_waited_for_beyond_the_time(board: GroupBoard) -> None:
    began = time.monotonic()
    assert board.wait(board.ask(), 0.05) is None
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("half", [0, 1, 10])
def test_bytes_that_a_dead_process_left_are_not_believed(board: GroupBoard, half: int) -> None:
    """It was killed on its way through its next answer."""
    question = board.ask()
    board.answer(question, [encoded([ROW])])
    data = os.pread(board._fd, 1000, group_board._BYTES_AT)
    changed = bytes(byte ^ 1 for byte in data[: half + 1]) + data[half + 1 :]
    os.pwrite(board._fd, changed, group_board._BYTES_AT)
    assert board.wait(question, 0) is None
    os.pwrite(board._fd, data, group_board._BYTES_AT)
    os.ftruncate(board._fd, group_board._BYTES_AT + len(data) - 1)
    assert board.wait(question, 0) is None
    board.answer(question, [encoded([ROW])])
    assert board.wait(question, 0) is not None


def test_the_memory_is_given_back(board: GroupBoard) -> None:
    board.answer(board.ask(), [bytes(1 << 20)])
    board.answer(board.ask(), [b"[]"])
    assert os.fstat(board._fd).st_size == group_board._BYTES_AT + 2


def test_the_answer_begins_behind_the_words_about_it() -> None:
    assert group_board._ANSWER_AT + group_board._ANSWER.size <= group_board._BYTES_AT
    assert struct.calcsize("=Q") == group_board._ANSWER_AT


# -- the coordinator ---------------------------------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path: Path, board: GroupBoard) -> Iterator[Asked]:
    with Asked(tmp_path / "log") as made:
        made.create("t", 2)
        made.loop.start(answer_questions(board, made.groups))
        yield made


def told(running: Asked, board: GroupBoard) -> dict[str, tuple[int, set[tuple[str, int, int]]]]:
    question = board.ask()
    running.turn_until("it is answered", lambda: not board.is_asked)
    rows = board.wait(question, 0)
    assert rows is not None
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: (row.members, {(t, p, o) for t, p, o in row.offsets}) for row in rows}


def test_all_groups_are_told_of(running: Asked, board: GroupBoard) -> None:
    assert told(running, board) == {}
    member = running.alone()
    assert told(running, board) == {"g": (1, set())}
    running.commit({("t", 0): 3, ("t", 1): 4}, generation_id_or_member_epoch=1, member_id=member)
    running.commit({("t", 1): 9}, group_id="h")
    assert told(running, board) == {"g": (1, {("t", 0, 3), ("t", 1, 4)}), "h": (0, {("t", 1, 9)})}
    running.commit({("t", 1): 5}, generation_id_or_member_epoch=1, member_id=member)
    assert told(running, board)["g"] == (1, {("t", 0, 3), ("t", 1, 5)})


def test_what_is_not_flushed_is_not_told(running: Asked, board: GroupBoard) -> None:
    running.commit({("t", 0): 3})
    asked = running.begin_to_commit({("t", 0): 4, ("t", 1): 4})
    (rows,) = report._parts(running.groups)
    assert rows == [GroupRow("g", 0, [("t", 0, 3)])]
    running.answer(asked)
    assert told(running, board) == {"g": (0, {("t", 0, 4), ("t", 1, 4)})}


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_many_are_told_of_in_parts(
    running: Asked, board: GroupBoard, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group in one of them, so that others have a turn between."""
    monkeypatch.setattr(report, "STEP_ROWS", most)
    for name in "abcde":
        running.commit({("t", 0): 1}, group_id=name)
    assert told(running, board) == {name: (0, {("t", 0, 1)}) for name in "abcde"}
    sizes = [len(part) for part in report._parts(running.groups)]
    assert sizes == {1: [1] * 5, 2: [1] * 5, 3: [2, 2, 1], 100: [5]}[most]


def test_a_question_waits_until_the_log_is_read(running: Asked, board: GroupBoard) -> None:
    running.commit({("t", 0): 3})
    running.loop.close()
    running.begin()
    running.loop.start(answer_questions(board, running.groups))
    question = board.ask()
    assert not running.groups.is_ready
    running.loop.look()
    assert board.wait(question, 0) is None
    assert told(running, board) == {"g": (0, {("t", 0, 3)})}


def test_what_was_gathered_while_the_log_is_lost_is_not_told(running: Asked, board: GroupBoard) -> None:
    running.commit({("t", 0): 3})
    question = board.ask()
    running.loop.look()
    assert board.is_asked, "it is being encoded"
    running.groups.is_ready = False
    for _ in range(20):
        running.loop.turn(0.01)
        running.loop.look()
    assert board.wait(question, 0) is None
    running.groups.is_ready = True
    assert told(running, board) == {"g": (0, {("t", 0, 3)})}


def test_without_memory_the_next_question_is_answered(
    running: Asked, board: GroupBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is not tried over and over meanwhile."""
    running.commit({("t", 0): 3})
    tries: list[int] = []
    whole = GroupBoard.answer

    def answer(self: GroupBoard, question: int, lines: list[bytes]) -> None:
        tries.append(question)
        if len(tries) == 1:
            raise OSError(12, "no memory")
        whole(self, question, lines)

    monkeypatch.setattr(GroupBoard, "answer", answer)
    monkeypatch.setattr(report, "_RETRY_SECONDS", 0.2)
    began = time.monotonic()
    assert told(running, board) == {"g": (0, {("t", 0, 3)})}
    assert len(tries) == 2 and time.monotonic() - began >= 0.2
    assert [record.getMessage() for record in caplog.records if "could not be told" in record.getMessage()]


# -- the page ----------------------------------------------------------------------------------------------------------


def page_of(rows: list[GroupRow] | None) -> dict[str, dict[str, float]]:
    """The families about partitions 0 to 2 of ``t``, which are visible up to 100, 200 and 300."""
    ends = [100 * (number + 1) for number in range(3)]  # bytes, too: of 0.7
    views: list[Any] = [
        SimpleNamespace(topic="t", partition=number, index=number, visible_offset=end, visible_end=end)
        for number, end in enumerate(ends)
    ]
    families = list(group_families(rows, views, lambda _view: [Segment(0, 0, 0, 0, 0)]))
    found = {family.name.removeprefix("kafka_consumergroup_"): family.samples for family in families}
    return {name: {sample.labels: sample.value for sample in samples} for name, samples in found.items()}


def test_a_group_is_behind_by_what_can_be_read() -> None:
    rows = [
        GroupRow("g", 2, [("t", 1, 193), ("t", 0, 0), ("gone", 0, 4)]),
        GroupRow('late"', 0, [("t", 2, 301)]),
        GroupRow("new", 1, []),
    ]
    assert page_of(rows) == {
        "fastlog_groups_known": {"": 1},
        "members": {'{consumergroup="g"}': 2, '{consumergroup="late\\""}': 0, '{consumergroup="new"}': 1},
        "current_offset": {
            '{consumergroup="g",topic="gone",partition="0"}': 4,
            '{consumergroup="g",topic="t",partition="0"}': 0,
            '{consumergroup="g",topic="t",partition="1"}': 193,
            '{consumergroup="late\\"",topic="t",partition="2"}': 301,
        },
        "current_offset_sum": {
            '{consumergroup="g",topic="gone"}': 4,
            '{consumergroup="g",topic="t"}': 193,
            '{consumergroup="late\\"",topic="t"}': 301,
        },
        "lag": {
            '{consumergroup="g",topic="t",partition="0"}': 100,
            '{consumergroup="g",topic="t",partition="1"}': 7,
            '{consumergroup="late\\"",topic="t",partition="2"}': 0,
        },
        "fastlog_consumergroup_lag_bytes": {
            '{consumergroup="g",topic="t",partition="0"}': 100,
            '{consumergroup="g",topic="t",partition="1"}': 7,
            '{consumergroup="late\\"",topic="t",partition="2"}': 0,
        },
        "lag_sum": {'{consumergroup="g",topic="t"}': 107, '{consumergroup="late\\"",topic="t"}': 0},
    }


def test_a_page_without_the_coordinator_says_so() -> None:
    """Its families are there, and empty."""
    assert page_of([])["fastlog_groups_known"] == {"": 1}
    found = page_of(None)
    assert found.pop("fastlog_groups_known") == {"": 0}
    assert found and not any(found.values()) and found.keys() == page_of([]).keys() - {"fastlog_groups_known"}


def test_the_page_asks_the_coordinator_and_waits_for_it(
    tmp_path: Path, board: GroupBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "GROUPS_SECONDS", 0.2)
    inside = Inside(tmp_path)
    inside.metrics._shared = dataclasses.replace(inside.shared, groups=board)
    assert value(inside, "fastlog_groups_known") == 0
    assert os.eventfd_read(inside.arena.eventfd(COORDINATOR)), "it is woken"
    monkeypatch.setattr(metrics, "GROUPS_SECONDS", PATIENCE)
    asked = board.question

    def answer() -> None:
        wait_until("it asks", lambda: board.question > asked)
        board.answer(board.question, [encoded([ROW])])

    thread = threading.Thread(target=answer)
    thread.start()
    assert value(inside, "kafka_consumergroup_members", consumergroup="g") == 2
    thread.join()

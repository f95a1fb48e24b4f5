"""What the diaries of members prove: who read what, and who began below what was committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.today_members import Diary, Line, Members

OTHERS = "assigned 1.0 0\nread 1.1 0 0\ncommitted 1.2 0 5\nassigned 1.3 1\ncommitted 1.4 1 9\n"


def members(directory: Path, kind: str, *diaries: str) -> Members:
    made = Members("", kind, "t", directory)
    for number, text in enumerate(diaries):
        (directory / f"{number}").write_text(text)
        made._diaries.append(Diary(directory / f"{number}"))
        made.kinds.append(kind)
    return made


@pytest.mark.parametrize(
    ("diary", "is_wrong"),
    [
        ("assigned 2.0 0\nread 2.1 0 5\n", False),
        ("assigned 2.0 0\nread 2.1 0 6\n", False),
        ("assigned 2.0 0\nread 2.1 0 4\n", True),
        ("assigned 2.0 1\nread 2.1 1 8\n", True),
        ("assigned 1.2 0\nread 2.1 0 4\n", False),  # assigned when the commit was answered, or before
        ("assigned 1.21 0\nread 2.1 0 4\n", True),
        ("read 2.1 0 4\n", False),
        ("assigned 2.0 0\nread 2.1 0 5\nread 2.2 0 4\n", False),  # only where it begins
        ("assigned 2.0 2\nread 2.1 2 0\n", False),
    ],
)
def test_who_began_below_what_was_committed(diary: str, is_wrong: bool, tmp_path: Path) -> None:
    found = members(tmp_path, "confluent", OTHERS, diary).wrong()
    assert bool(found) == is_wrong


@pytest.mark.parametrize(("kind", "first", "is_wrong"), [
    ("kafka-python", 3, False), ("kafka-python", 2, True), ("kafka-python", 4, True), ("aiokafka", 3, True),
])  # fmt: skip
def test_a_member_that_goes_on_where_it_was_itself(kind: str, first: int, is_wrong: bool, tmp_path: Path) -> None:
    """kafka-python's alone, and to the record."""
    diary = f"assigned 0.5 0\nread 0.6 0 2\nassigned 2.0 0\nread 2.1 0 {first}\n"
    assert bool(members(tmp_path, kind, OTHERS, diary).wrong()) == is_wrong


@pytest.mark.parametrize(("kind", "second", "first", "is_wrong"), [
    ("kafka-python", 3, 4, False), ("kafka-python", 3, 3, True),
    ("aiokafka", 3, 4, True), ("kafka-python", 2, 4, True),
])  # fmt: skip
def test_who_follows_a_member_that_went_on(kind: str, second: int, first: int, is_wrong: bool, tmp_path: Path) -> None:
    """It begins where that one had come to, which is below what others had committed before."""
    went_on = f"assigned 0.5 0\nread 0.6 0 2\nassigned 2.0 0\nread 2.1 0 {second}\ncommitted 2.2 0 4\n"
    found = members(tmp_path, kind, OTHERS, went_on, f"assigned 3.0 0\nread 3.1 0 {first}\n").wrong()
    assert any(line.startswith("2 ") for line in found) == is_wrong


def test_what_is_committed_behind_a_member_that_went_on_counts(tmp_path: Path) -> None:
    went_on = "assigned 0.5 0\nread 0.6 0 2\nassigned 2.0 0\nread 2.1 0 3\ncommitted 2.2 0 4\n"
    next_one = "assigned 3.0 0\nread 3.1 0 4\nread 3.2 0 5\ncommitted 3.3 0 6\n"
    last = "assigned 4.0 0\nread 4.1 0 5\n"
    (found,) = members(tmp_path, "kafka-python", OTHERS, went_on, next_one, last).wrong()
    assert found.startswith("3 (kafka-python) began 0 at 5, 6 was committed")


def test_a_diary_is_read_on_and_its_last_line_only_when_it_is_whole(tmp_path: Path) -> None:
    made = members(tmp_path, "confluent", "assigned 1.0 0\nread 1.1 0 0\nread 1.2 0")
    assert made.seen() == {(0, 0)}
    with (tmp_path / "0").open("a") as file:
        file.write(" 1\nread 1.3 3 7\n")
    assert made.seen() == {(0, 0), (0, 1), (3, 7)}
    assert made.diaries() == [
        [Line("assigned", 1.0, 0, -1), Line("read", 1.1, 0, 0), Line("read", 1.2, 0, 1), Line("read", 1.3, 3, 7)]
    ]

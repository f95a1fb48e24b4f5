"""T-27, T-31 and T-32 for groups, at the size of a smoke test; and the check of what their members wrote down."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.fault import groups
from tests.fault.registry import Run
from tests.harness.diaries import read_diaries

STORED = [b"%d" % number for number in range(10)]
WRITTEN = {
    "a": [["given", 1 + n, 1.5 + n, 0, "t/0-0", 10 * n, str(n)] for n in range(5)]
    + [["saved", 4.6, 4.8, "t/0-0", 40], ["refused", 20, 21, "lost"]],
    "b": [["given", 10 + n, 10.5 + n, 0, "t/0-0", 10 * n, str(n)] for n in range(4, 10)]
    + [["seen", 30, 31, "t/0-0", 100], ["left", 32, 33]],
}


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("run", "count"),
    [(groups.group_kill, 3), (groups.group_storm, 6), (groups.group_expiry, 4)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_whatever_happens_to_members(run: Run, count: int, tmp_path: Path) -> None:
    """Nothing is lost, what comes again was not committed, and nobody acts as the owner of what is another's."""
    seed = random.SystemRandom().randrange(2**31)
    outcome = run(count, seed, tmp_path)
    assert outcome.violations == [], f"seed {seed}"
    assert outcome.runs == count


def write(directory: Path, written: dict[str, list[list[object]]]) -> list[Path]:
    """As members do."""
    paths = []
    for name, records in written.items():
        paths.append(directory / f"{name}.diary")
        paths[-1].write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    return paths


def test_what_was_not_committed_may_be_given_again(tmp_path: Path) -> None:
    paths = write(tmp_path, WRITTEN)
    with paths[0].open("ab") as diary:
        diary.write(b'["given", 40, 4')  # killed in the middle
    found = read_diaries([*paths, tmp_path / "none.diary"])
    assert found.check({"t/0-0": STORED}) == []
    assert (found.duplicates, found.commits, found.refused, found.left) == (1, {True: 1, False: 1}, 1, {"b"})
    assert found.last_given() == {"t/0-0": 19.5}


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ([["given", 40, 41, 0, "t/0-0", 200, "20"]], "invented: c got a message"),
        ([["given", 40, 41, 0, "t/0-0", 90, "9"]], "again: c got 90 after 100"),
        ([["given", 14, 14.1, 0, "t/0-0", 50, "5"], ["given", 15, 15.1, 0, "t/0-0", 70, "7"]], "message 7 after 5"),
        ([["given", 5, 5.1, 0, "t/0-0", 70, "7"]], "lost: c begins at message 7, and nobody got 5"),
        ([["saved", 40, 41, "t/0-0", 90]], "back: somebody committed 90 after 100"),
        ([["given", 16, 16.1, 0, "t/0-0", 60, "6"]], "two owners: b got 3 messages, from 70 on"),
        ([["given", 1, 1.1, 0, "t/0-1", 0, "x"]], "t/0-1: invented"),
    ],
)
def test_broken_promises_are_found(tmp_path: Path, records: list[list[object]], complaint: str) -> None:
    """The check can fail."""
    found = read_diaries(write(tmp_path, {**WRITTEN, "c": records})).check({"t/0-0": STORED})
    assert any(complaint in line for line in found), found


def test_who_cannot_know_is_excused(tmp_path: Path) -> None:
    """But only then, and not for what was lost."""
    late: list[list[object]] = [["given", 1, 1.1, 0, "t/0-0", 0, "0"], ["given", 41, 42, 0, "t/0-0", 10, "1"]]
    found = read_diaries(write(tmp_path, {**WRITTEN, "c": late}))
    for excused in ({}, {"c": [(41.5, 43.0)]}, {"b": [(40.0, 43.0)]}):
        assert [line[:12] for line in found.check({"t/0-0": STORED}, excused)] == ["t/0-0: two o", "t/0-0: again"]
    assert found.check({"t/0-0": STORED}, {"c": [(40.0, 43.0)]}) == []
    found = read_diaries(write(tmp_path, {**WRITTEN, "c": [["given", 16, 16.1, 0, "t/0-0", 60, "6"]]}))
    assert len(found.check({"t/0-0": STORED})) == 1
    assert found.check({"t/0-0": STORED}, {"c": [(15.0, 17.0)]}) == []


def test_who_is_slow_to_write_down_is_no_second_owner(tmp_path: Path) -> None:
    """It got its one message before the others asked for theirs, and was not scheduled again for a while."""
    slow: list[list[object]] = [["given", 13.9, 16.5, 0, "t/0-0", 40, "4"]]
    found = read_diaries(write(tmp_path, {**WRITTEN, "c": slow}))
    assert found.check({"t/0-0": STORED}) == []
    slow += [["given", 16.6, 17, 0, "t/0-0", 50, "5"]]
    found = read_diaries(write(tmp_path, {**WRITTEN, "c": slow}))
    assert [line[:12] for line in found.check({"t/0-0": STORED})] == ["t/0-0: two o"]


def test_messages_that_nobody_got_are_found(tmp_path: Path) -> None:
    found = read_diaries(write(tmp_path, WRITTEN))
    assert found.check({"t/0-0": [*STORED, b"10"], "t/0-1": [b"x"]}) == [
        "t/0-0: lost: 1 messages from 10 on were never given",
        "t/0-1: lost: 1 messages from 0 on were never given",
    ]

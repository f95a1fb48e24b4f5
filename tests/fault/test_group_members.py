"""A small storm over the members of a group; ``python -m tests.fault`` makes large ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault import member_storm
from tests.fault.group_members import group_members
from tests.harness.today_members import KINDS


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_every_record_is_read_whatever_happens_to_members(number: int, tmp_path: Path) -> None:
    outcome = group_members(3, number, tmp_path)
    assert (outcome.runs, outcome.violations) == (3, [])


@pytest.mark.slow
def test_members_of_several_libraries_are_one_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than in a storm: twenty take longer to start than all else takes."""
    monkeypatch.setattr(member_storm, "MEMBERS", 6)
    outcome = member_storm.member_storm(3, 4, tmp_path)
    assert (outcome.runs, outcome.violations) == (3, [])

"""A small storm over the members of a group; ``python -m tests.fault`` makes large ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.group_members import group_members
from tests.harness.today_members import KINDS


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_every_record_is_read_whatever_happens_to_members(number: int, tmp_path: Path) -> None:
    outcome = group_members(3, number, tmp_path)
    assert (outcome.runs, outcome.violations) == (3, [])

"""A few kills of the coordinator under committing members; ``python -m tests.fault`` makes many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.coordinator_groups import coordinator_groups


@pytest.mark.slow
def test_no_answered_commit_goes_back(tmp_path: Path) -> None:
    outcome = coordinator_groups(3, 5, tmp_path)
    assert outcome.violations == []
    assert outcome.runs >= 4

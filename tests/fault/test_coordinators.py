"""A few kills of the coordinator; ``python -m tests.fault`` makes many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.coordinators import kill_coordinator


@pytest.mark.slow
def test_topics_are_there_or_not_whoever_is_killed(tmp_path: Path) -> None:
    outcome = kill_coordinator(4, 1, tmp_path)
    assert (outcome.runs, outcome.violations) == (6, [])

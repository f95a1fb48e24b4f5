"""R-5, R-6: the end of a program, and forks, with messages in a queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.exits import exits, forks


@pytest.mark.slow
def test_programs_that_end_without_flush(tmp_path: Path) -> None:
    """Every message arrives, or a loud line has the count and the exit code is 1."""
    outcome = exits(10, 5, tmp_path)
    assert outcome.runs == 10
    assert outcome.violations == []


@pytest.mark.slow
def test_forks_while_threads_send(tmp_path: Path) -> None:
    """What is inherited says ForkedError; children deliver with producers of their own; the parent loses nothing."""
    outcome = forks(10, 6, tmp_path)
    assert outcome.runs == 10
    assert outcome.violations == []

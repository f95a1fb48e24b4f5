"""Topics that come and go, in a broker whose processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.deletions import deletions


@pytest.mark.slow
def test_nothing_is_lost_or_mixed_up(tmp_path: Path) -> None:
    outcome = deletions(200, 5, tmp_path)
    assert outcome.runs == 200
    assert outcome.violations == []

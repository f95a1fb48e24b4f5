"""T-43: requests that stand still half written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.stalls import stalled_produce


@pytest.mark.slow
def test_requests_that_stand_still(tmp_path: Path) -> None:
    """No byte of one topic in another; what counts as delivered is in the log as it was sent; every message settles."""
    outcome = stalled_produce(20, 43, tmp_path)
    assert outcome.runs == 20
    assert outcome.violations == []

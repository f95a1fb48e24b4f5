"""T-25: clients of a broker that lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.hostile_broker import hostile_broker

LIES = 3000
SEED = 7


@pytest.mark.slow
def test_a_broker_that_lies(tmp_path: Path) -> None:
    """Only fastlog's exceptions, in bounded time and memory; no message nobody sent, no delivery nobody confirmed."""
    outcome = hostile_broker(LIES, SEED, tmp_path)
    assert outcome.runs >= LIES * 0.9
    assert outcome.violations == []

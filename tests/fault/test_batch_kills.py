"""Kill -9 under clients of today's protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault import batch_kills
from tests.fault.registry import Run

SEED = 20261123


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "count"), [(batch_kills.kill_process, 12), (batch_kills.kill_broker, 6), (batch_kills.disk_errors, 4)]
)
def test_killed_under_clients_of_today(run: Run, count: int, tmp_path: Path) -> None:
    outcome = run(count, SEED, tmp_path)
    assert outcome.runs >= count
    assert outcome.violations == [], f"seed {SEED}"

"""T-3, T-27, T-28, T-29, T-30 for a broker that registers in ZooKeeper, at the size of a smoke test."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fault import registration
from tests.fault.registry import Run

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("run", "count"),
    [
        (registration.expiry, 5),
        (registration.outage, 5),
        (registration.data, len(registration.HARMS) + 1),
        (registration.duplicate_id, 3),
        (registration.kill_registered, 6),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_whatever_happens_to_zookeeper(run: Run, count: int, tmp_path: Path) -> None:
    """It shows the broker again in time, and the broker serves throughout."""
    seed = random.SystemRandom().randrange(2**31)
    outcome = run(count, seed, tmp_path)
    assert outcome.violations == [], f"seed {seed}"
    assert outcome.runs == count

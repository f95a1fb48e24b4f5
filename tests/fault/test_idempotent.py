"""Idempotent producers against losses and kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault import idempotent
from tests.fault.registry import Run

SEED = 20261123


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "count", "seed"),
    [(idempotent.proxied, 10_000, SEED), (idempotent.killed, 9, SEED), (idempotent.killed, 9, SEED + 1)],
)
def test_each_record_is_stored_once(run: Run, count: int, seed: int, tmp_path: Path) -> None:
    outcome = run(count, seed, tmp_path)
    assert outcome.runs >= count
    assert outcome.violations == [], f"seed {seed}"

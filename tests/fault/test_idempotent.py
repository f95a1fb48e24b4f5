"""Idempotent producers against losses and kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault import idempotent
from tests.fault.registry import Run

SEED = 20261123


@pytest.mark.slow
@pytest.mark.parametrize(("run", "count"), [(idempotent.proxied, 10_000), (idempotent.killed, 9)])
def test_each_record_is_stored_once(run: Run, count: int, tmp_path: Path) -> None:
    outcome = run(count, SEED, tmp_path)
    assert outcome.runs >= count
    assert outcome.violations == [], f"seed {SEED}"

"""Mirrors of record batches that are killed and doubled, and brokers that fail around them, at a small size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fastlog.record_batches import Record
from tests.fault import record_mirrors
from tests.fault.record_mirrors import compared
from tests.fault.registry import Run


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("run", "count"),
    [(record_mirrors.record_mirror_kill, 4), (record_mirrors.record_mirror_faults, 6)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_whatever_happens_around_a_mirror_each_record_comes_once(run: Run, count: int, tmp_path: Path) -> None:
    """Nothing is lost, comes twice, is altered or out of order."""
    seed = random.SystemRandom().randrange(2**31)
    outcome = run(count, seed, tmp_path)
    assert outcome.violations == [], f"seed {seed}"
    assert outcome.runs == count


def test_what_is_lost_comes_twice_or_out_of_order_is_noticed() -> None:
    place = "t", 0
    rows = [Record(None, b"%d" % number, number) for number in range(4)]
    assert compared(place, rows, list(rows)) == []
    for wrong in (rows[:3], [*rows, rows[0]], [rows[1], rows[0], *rows[2:]], [*rows[:3], rows[3]._replace(key=b"k")]):
        assert len(compared(place, rows, wrong)) == 1

"""Some faults of a broker's day, and what its judge takes for growth; ``python -m tests.fault`` makes whole days."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault import day
from tests.fault.day import MORE_BYTES, MORE_DESCRIPTORS, Sample, growth

FLAT = [Sample(200_000_000, 300)] * day.FEWEST_SAMPLES


@pytest.mark.slow
def test_everybody_works_beside_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day, "FAULT_SECONDS", (0.5, 2.0))
    outcome = day.day(3, 5, tmp_path)
    assert (outcome.runs, outcome.violations) == (3, [])


def test_what_stays_the_same_has_not_grown() -> None:
    quarter = len(FLAT) // 4
    more = Sample(200_000_000 + MORE_BYTES, 300 + MORE_DESCRIPTORS)
    assert growth(FLAT) == []
    assert growth(FLAT[:-quarter] + [more] * quarter) == []
    # what a broker takes in its first quarter is not growth
    assert growth([Sample(100_000_000, 100)] * quarter + FLAT[quarter:]) == []


@pytest.mark.parametrize(
    ("last", "what"),
    [(Sample(200_000_001 + MORE_BYTES, 300), "memory"), (Sample(200_000_000, 301 + MORE_DESCRIPTORS), "descriptors")],
    ids=["memory", "descriptors"],
)
def test_what_the_last_quarter_has_more_of(last: Sample, what: str) -> None:
    quarter = len(FLAT) // 4
    (found,) = growth(FLAT[:-quarter] + [last] * quarter)
    assert what in found
    assert growth((FLAT[:-quarter] + [last] * quarter)[1:]) == []

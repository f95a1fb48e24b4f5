"""What a table needs to live, under kills, scaled down."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="pip install '.[iceberg]'")
from tests.fault import upkeep

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_each_message_of_a_day_that_stays_is_there_once(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    outcome = upkeep.table_upkeep(2, seed, tmp_path)
    assert (outcome.runs, outcome.violations) == (2, []), f"seed {seed}"

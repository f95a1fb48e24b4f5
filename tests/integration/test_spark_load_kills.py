"""The load job and kills of everything around it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fault import spark_load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow]


@pytest.mark.timeout(1800)
def test_every_message_is_in_the_table_once(spark: SparkSession, tmp_path: Path) -> None:
    """Two kills of the job, one of a broker or a processor of it, with a topic that begins at its end."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    outcome = spark_load.spark_load(2, seed, tmp_path)
    assert outcome.runs == 3
    assert outcome.violations == [], f"seed {seed}"


def test_a_row_that_is_missing_or_there_twice_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail."""
    rows = [(0, 0, offset, 0, b"x") for offset in range(4)]
    monkeypatch.setattr(spark_load, "_readers", lambda table: iter([("good", rows), ("bad", [*rows[1:], rows[2]])]))
    (found,) = spark_load.compare(tmp_path, Counter(rows))
    assert found.startswith("bad: 1 missing, 1 too many")

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
    """A kill of the job, and before it one of a broker or a processor, with topics that begin at their ends.

    Longer, and with every run in a session of its own: ``python -m tests.fault --only spark-load``.
    """
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    outcome = spark_load.spark_load(1, seed, tmp_path, spark_load.in_this_process)
    assert outcome.runs == 2
    assert outcome.violations == [], f"seed {seed}"


def test_a_row_that_is_missing_or_there_twice_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail."""
    rows = [(0, 0, offset, 0, b"x") for offset in range(4)]
    read = ("good", rows), ("bad", [*rows[1:], rows[2]])
    monkeypatch.setattr(spark_load, "_readers", lambda table, topic: iter(read))
    (found,) = spark_load.compare(tmp_path, Counter(rows))
    assert found.startswith(f"{spark_load.TOPIC}, bad: 1 missing, 1 too many")

"""The load job and kills of everything around it."""

from __future__ import annotations

import random
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

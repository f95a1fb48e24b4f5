"""The ceiling of counting in Spark: a source that has as many rows as were asked for, ready made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perf.replay import in_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


def test_spark_counts_every_row_of_the_ceiling(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a session that has run the same before; a wrong count is no figure."""
    monkeypatch.setattr(in_spark, "_session", lambda: spark)
    found = in_spark.counting_prebuilt(messages=12_345, runs=1)()
    assert found["messages"] == 12_345
    assert found["rate"] == pytest.approx(12_345 / found["seconds"])
    rows = spark.read.format("prebuilt").options(rows=3, value_bytes=7).load().collect()
    assert [row.offset for row in rows] == [0, 17, 34]
    assert {len(row.value) for row in rows} == {7}

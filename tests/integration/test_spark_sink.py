"""Data frames and streams written to topics, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastlog.producer.partitioners import Crc32Partitioner
from tests.harness.broker import Broker
from tests.harness.spark_jobs import produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

COUNT = 20_000


def written(frame: DataFrame, broker: Broker, **given: Any) -> None:
    chosen = {"brokers": f"127.0.0.1:{broker.port}"} | {name.replace("__", "."): str(v) for name, v in given.items()}
    frame.write.format("fastlog").mode("append").options(**chosen).save()


def rows_of(spark: SparkSession, broker: Broker, topic: str) -> list[Any]:
    read = spark.read.format("fastlog").options(brokers=f"127.0.0.1:{broker.port}", subscribe=topic)
    return sorted(read.option("columns", "partition,offset,idx,value").load().collect())


def test_a_frame_with_keys(spark: SparkSession, broker: Broker, topic: str) -> None:
    """Every row once, compressed, where its key belongs, in the order in which the task had it."""
    frame = spark.range(0, COUNT, numPartitions=1).selectExpr(
        "lpad(id, 10, '0') AS value", "if(id % 3 = 0, null, string(id % 7)) AS key"
    )
    written(frame, broker, topic=topic, compression="gzip", batch__size=500, acks="appended")
    rows = rows_of(spark, broker, topic)
    assert sorted(int(row.value) for row in rows) == list(range(COUNT))
    assert max(row.idx for row in rows) == 499
    for partition in range(4):
        numbers = [int(row.value) for row in rows if row.partition == partition]
        keyed = [number for number in numbers if number % 3]
        assert {Crc32Partitioner().partition(b"%d" % (number % 7), 4) for number in keyed} <= {partition}
        assert keyed == sorted(keyed)


def test_a_stream_from_topic_to_topic(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    """Partition by partition; a batch that was written but not committed is written again."""
    produce(broker, topic, 0, 0, 500)
    produce(broker, topic, 2, 500, 800)
    options = {"brokers": f"127.0.0.1:{broker.port}"}

    def run() -> None:
        read = spark.readStream.format("fastlog").options(**options, subscribe=topic, startingOffsets="earliest")
        query = (
            read.load()
            .writeStream.format("fastlog")
            .options(**options, topic=f"{topic}copy", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    def copied() -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for row in rows_of(spark, broker, f"{topic}copy"):
            found.setdefault(row.partition, []).append(int(row.value))
        return found

    run()
    assert copied() == {0: list(range(500)), 2: list(range(500, 800))}
    for commit in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        commit.unlink()
    run()
    assert copied() == {0: [*range(500)] * 2, 2: [*range(500, 800)] * 2}


@pytest.mark.parametrize(
    ("columns", "given", "what"),
    [
        ("id AS value", {"topic": "t"}, "column value: it is bigint and must be binary or string"),
        ("'v' AS value", {}, "topic: not given"),
        ("'v' AS value", {"topic": "t", "linger": "5"}, "'linger'"),
        ("if(id = 1, null, 'v') AS value", {"topic": "t"}, "column value: a row is null"),
    ],
)
def test_errors_end_with_their_reason(
    spark: SparkSession, broker: Broker, columns: str, given: dict[str, str], what: str
) -> None:
    with pytest.raises(Exception, match=what):
        written(spark.range(2).selectExpr(columns), broker, **given)


def test_a_topic_is_not_overwritten(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(2).selectExpr("'v' AS value")
    with pytest.raises(Exception, match="can only be appended to"):
        frame.write.format("fastlog").mode("overwrite").options(brokers="h", topic="t").save()

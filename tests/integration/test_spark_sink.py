"""Data frames and streams written to topics, and read back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastlog.envelope import server_id_of
from fastlog.producer.partitioners import Crc32Partitioner
from fastlog.spark import place_id, without_duplicates
from tests.harness.broker import Broker
from tests.harness.spark_jobs import produce, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

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
        run_to_end(
            lambda: (
                read.load()
                .writeStream.format("fastlog")
                .options(**options, topic=f"{topic}copy", checkpointLocation=str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
        )

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


@pytest.mark.parametrize("lost", [False, True], ids=["another thread", "a thread that has lost it"])
def test_a_thread_without_a_session_asks_for_it(spark: SparkSession, broker: Broker, topic: str, lost: bool) -> None:
    """Spark looks for a source by its name in the session of the thread, and where there is none finds nothing."""
    from pyspark.sql import SparkSession

    from fastlog.spark import session

    jvm: Any = spark._jvm
    frame = spark.range(3).selectExpr("string(id) AS value")

    def write() -> None:
        if lost:
            assert session() is spark
            jvm.org.apache.spark.sql.SparkSession.clearActiveSession()
        assert SparkSession.getActiveSession() is None
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            written(frame, broker, topic=topic)
        assert session() is spark
        written(frame, broker, topic=topic)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert sorted(int(row.value) for row in rows_of(spark, broker, topic)) == [0, 1, 2]


def test_a_topic_is_not_overwritten(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(2).selectExpr("'v' AS value")
    with pytest.raises(Exception, match="can only be appended to"):
        frame.write.format("fastlog").mode("overwrite").options(brokers="h", topic="t").save()


def test_from_topic_to_topic_effectively_once(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    """A frame that is written twice leaves copies; a reader that drops them has every row once, batch and stream."""
    produce(broker, topic, 0, 0, 100)
    produce(broker, topic, 2, 100, 160)
    options = {"brokers": f"127.0.0.1:{broker.port}"}
    enveloped = {**options, "subscribe": f"{topic}copy", "envelope": "true", "includeEnvelope": "true"}
    read = spark.read.format("fastlog").options(**options, subscribe=topic).load()
    made = read.withColumn("deduplicationId", place_id())
    for _ in range(2):
        written(
            made.selectExpr("value", "deduplicationId", "string(partition) AS key"),
            broker,
            topic=f"{topic}copy",
            envelope="true",
            server="copier",
        )
    copies = spark.read.format("fastlog").options(**enveloped).load()
    rows = copies.collect()
    assert len(rows) == 320
    assert {row.server for row in rows} == {server_id_of("copier")}
    assert {bytes(row.key) for row in rows} == {b"0", b"2"}
    assert {bytes(row.deduplicationId).decode() for row in rows if int(row.value) == 99} == {f"{topic}/0/0/1980/0"}
    assert all(row.timestamp is not None for row in rows)
    once = without_duplicates(copies).select("value").collect()
    assert sorted(int(row.value) for row in once) == list(range(160))

    found: list[int] = []
    batches: set[int] = set()

    def collect(frame: DataFrame, number: int) -> None:
        found.extend(int(row.value) for row in frame.collect())
        batches.add(number)

    stream = spark.readStream.format("fastlog").options(**enveloped, startingOffsets="earliest")
    run_to_end(
        lambda: (
            without_duplicates(stream.option("maxBytesPerTrigger", "12KB").load())
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(tmp_path / "reading"))
            .trigger(availableNow=True)
            .start()
        )
    )
    assert sorted(found) == list(range(160))
    assert len(batches) > 1, "copies were in different batches"


def test_bare_messages_where_envelopes_are_expected(spark: SparkSession, broker: Broker, topic: str) -> None:
    produce(broker, topic, 1, 0, 10)
    read = spark.read.format("fastlog").options(
        brokers=f"127.0.0.1:{broker.port}", subscribe=topic, envelope="true", columns="value,timestamp"
    )
    with pytest.raises(Exception, match=f"the message of {topic}/0-1 at offset 0: .* begins with 30 30"):
        read.load().collect()
    rows = read.option("failOnBadEnvelope", "false").load().collect()
    assert sorted((int(row.value), row.timestamp) for row in rows) == [(number, None) for number in range(10)]

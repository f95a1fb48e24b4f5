"""Topics of record batches in a Spark session: frames, streams and tables as users have them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.errors import DataLossError
from fastlog.record_batches import Record, build
from tests.harness.broker import Broker
from tests.harness.lake import rows_of, run_job
from tests.harness.spark_jobs import Job, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 1000
TIME = 1_700_000_000_000


@pytest.fixture
def records(broker: Broker, topic: str) -> Iterator[RecordBroker]:
    """With a topic of two partitions."""
    with RecordBroker([Address("127.0.0.1", broker.port)], timeout=30) as made:
        made.create(topic, 2, {})
        yield made


def fill(records: RecordBroker, topic: str, start: int, stop: int) -> None:
    """Numbers, the even ones in partition 0; each third has headers, each tenth no value."""
    for partition in range(2):
        made = [
            Record(
                b"k%d" % at,
                None if at % 10 == 0 else b"%d" % at,
                TIME + at,
                ((b"n", b"%d" % at), (b"none", None)) if at % 3 == 0 else (),
            )
            for at in range(start, stop)
            if at % 2 == partition
        ]
        records.append({(topic, partition): build(made, codec=1 + partition)}, is_flushed=True)


def frame_of(spark: SparkSession, broker: Broker, topic: str, **given: Any) -> DataFrame:
    chosen = {"brokers": f"127.0.0.1:{broker.port}", "subscribe": topic} | {k: str(v) for k, v in given.items()}
    return spark.read.format("fastlog").options(**chosen).load()


def test_a_frame(spark: SparkSession, broker: Broker, topic: str, records: RecordBroker) -> None:
    """The columns of Spark's source for Kafka, by every way to the bytes."""
    fill(records, topic, 0, COUNT)
    for direct in ("off", "only"):
        frame = frame_of(spark, broker, topic, includeHeaders="true", direct=direct, maxRecordsPerPartition=200)
        assert frame.columns == [
            *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
            "headers",
        ]
        rows = sorted(frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect(), key=lambda row: row.ms)
        assert len(rows) == COUNT
        for at, row in enumerate(rows):
            assert (row.key, row.value, row.ms - TIME) == (b"k%d" % at, None if at % 10 == 0 else b"%d" % at, at)
            assert (row.topic, row.partition, row.offset, row.timestampType) == (topic, at % 2, at // 2, 0)
            pairs = [("n", b"%d" % at), ("none", None)] if at % 3 == 0 else None
            assert (None if row.headers is None else [(one.key, one.value) for one in row.headers]) == pairs
    assert frame_of(spark, broker, topic, startingTimestamp=TIME + 990).count() == 10
    usual = frame_of(spark, broker, topic, schema="fastlog", endingOffsets=json.dumps({topic: {"0": 5, "1": 3}}))
    assert usual.columns == ["topic", "broker", "partition", "offset", "idx", "timestamp", "key", "value"]
    assert sorted((row.partition, row.offset, row.idx, row.broker) for row in usual.collect()) == [
        *((0, at, 0, 0) for at in range(5)),
        *((1, at, 0, 0) for at in range(3)),
    ]


def test_a_stream(spark: SparkSession, broker: Broker, topic: str, records: RecordBroker, tmp_path: Path) -> None:
    """Every record once, though a batch fails and the query begins again; then its topic is made anew."""
    fill(records, topic, 1, 10)
    job = Job(spark, broker, topic, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    job.run()
    assert job.numbers == list(range(1, 10))
    sizes = [len(batch) for _, batch in sorted(job.batches.items())]
    assert len(sizes) == 3 and max(sizes) <= 4
    fill(records, topic, 11, 20)
    job.fail_in = 3
    with pytest.raises(Exception, match="the sink has failed"):
        job.run()
    job.fail_in = None
    job.run()
    assert job.numbers == [*range(1, 10), *range(11, 20)]
    records.delete(topic)
    records.create(topic, 2, {})
    fill(records, topic, 21, 60)
    with pytest.raises(Exception, match="the log was deleted and made anew"):
        job.run()


def test_a_table(spark: SparkSession, broker: Broker, topic: str, records: RecordBroker, tmp_path: Path) -> None:
    """Loaded in several runs by workers, and once more by Spark's SQL; what is gone is told and written down."""
    given = ["--brokers", f"127.0.0.1:{broker.port}", "--topic", topic, "--table", tmp_path / "table", "--no-progress"]
    given += ["-o", "includeHeaders=true"]
    fill(records, topic, 0, 100)
    assert run_job("load", *given, "--max-bytes", 1000)["rows"] == 100
    assert run_job("load", *given)["rows"] == 0
    fill(records, topic, 100, 150)
    found = run_job("load", *given)
    assert (found["rows"], found["ranges"]) == (50, {topic: {"0-0": [50, 75], "0-1": [50, 75]}})
    rows = sorted(rows_of(tmp_path / "table"), key=lambda row: row["key"])
    assert [(row["broker"], row["idx"]) for row in rows] == [(0, 0)] * 150
    for row in rows:
        at = int(row["key"][1:])
        assert (row["partition"], row["offset"], row["value"]) == (
            at % 2,
            at // 2,
            None if at % 10 == 0 else b"%d" % at,
        )
        assert row["headers"] == (
            [{"key": "n", "value": b"%d" % at}, {"key": "none", "value": None}] if at % 3 == 0 else None
        )
        assert str(row["date"]) == "2023-11-14"
    again = run_job("load", *given, "--from", json.dumps({topic: {"0-1": 10}}))
    assert again["replaced_rows"] == 65
    assert len(rows_of(tmp_path / "table")) == 150
    records.delete(topic)
    records.create(topic, 2, {})
    fill(records, topic, 0, 10)
    with pytest.raises(DataLossError, match="the log was deleted and made anew"):
        run_job("load", *given)
    found = run_job("load", *given, "--skip-lost")
    assert (found["rows"], found["lost"]) == (10, {topic: {"0-0": [[75, 75]], "0-1": [[75, 75]]}})
    by_sql = run_job("load", *given[:4], "--table", tmp_path / "sql", "--no-progress", "--column", "size=length(value)")
    assert by_sql["rows"] == 10
    assert sum(row["size"] or 0 for row in rows_of(tmp_path / "sql")) == 9


def test_writing(spark: SparkSession, broker: Broker, topic: str, records: RecordBroker, tmp_path: Path) -> None:
    """A frame with every column, and a stream; what is read of it is what was written."""
    options = {"brokers": f"127.0.0.1:{broker.port}", "topic": topic}
    frame = spark.range(0, COUNT, numPartitions=3).selectExpr(
        "if(id % 4 = 0, null, concat('k', id % 9)) AS key",
        "if(id % 5 = 0, null, string(id)) AS value",
        "timestamp_millis(1700000000000 + id) AS timestamp",
        "if(id % 3 = 0, array(named_struct('key', 'n', 'value', binary(string(id)))), null) AS headers",
    )
    frame.write.format("fastlog").mode("append").options(**options, compression="zstd").save()
    found = frame_of(spark, broker, topic, includeHeaders="true")
    wanted = ("binary(key) AS key", "binary(value) AS value", "timestamp", "headers")
    assert sorted(map(str, found.selectExpr(*wanted).collect())) == sorted(
        map(str, frame.selectExpr(*wanted).collect())
    )
    copy = f"{topic}-copy"
    stream = spark.readStream.format("fastlog").options(
        brokers=options["brokers"], subscribe=topic, startingOffsets="earliest", includeHeaders="true"
    )
    writer = stream.load().drop("topic").writeStream.format("fastlog").option("checkpointLocation", str(tmp_path / "c"))
    writer = writer.options(brokers=options["brokers"], topic=copy, schema="kafka").trigger(availableNow=True)
    run_to_end(writer.start)
    again = frame_of(spark, broker, copy, includeHeaders="true")
    same = ("key", "value", "partition", "timestamp", "headers")
    assert sorted(map(str, again.select(*same).collect())) == sorted(map(str, found.select(*same).collect()))

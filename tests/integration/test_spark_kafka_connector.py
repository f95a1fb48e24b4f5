"""Spark's own source and sink for Kafka against a broker, beside those of fastlog: the same rows, both ways."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.record_batches import Record, build
from tests.harness.broker import Broker
from tests.harness.spark_jobs import run_to_end
from tests.integration.conftest import CONNECTOR_JARS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.java,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CONNECTOR_JARS not in os.environ, reason=f"{CONNECTOR_JARS} names no jars: scripts/compat does"),
]

COUNT = 3000
TIME = 1_700_000_000_000


@pytest.fixture
def records(broker: Broker, topic: str) -> Iterator[RecordBroker]:
    """With a topic of three partitions, of records of every codec."""
    with RecordBroker([Address("127.0.0.1", broker.port)], timeout=30) as made:
        made.create(topic, 3, {})
        for start in range(0, COUNT, 100):
            rows = [
                Record(
                    None if at % 7 == 0 else b"k%d" % (at % 20),
                    None if at % 11 == 0 else b"%d" % at,
                    TIME + at,
                    ((b"n", b"%d" % at), (b"none", None)) if at % 3 == 0 else (),
                )
                for at in range(start, start + 100)
            ]
            number = start // 100
            made.append({(topic, number % 3): build(rows, codec=number % 5)}, is_flushed=True)
        yield made


def kafka(broker: Broker, **given: object) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": f"127.0.0.1:{broker.port}",
        **{name: str(value) for name, value in given.items()},
    }


def ours(broker: Broker, **given: object) -> dict[str, str]:
    return {"brokers": f"127.0.0.1:{broker.port}", **{name: str(value) for name, value in given.items()}}


def same(one: DataFrame, other: DataFrame) -> None:
    """Both frames have the same rows, in columns of the same names and types."""
    assert [(field.name, field.dataType) for field in one.schema] == [
        (field.name, field.dataType) for field in other.schema
    ]
    rows = [sorted(map(str, frame.collect())) for frame in (one, other)]
    assert rows[0] == rows[1]


def test_the_same_frame(spark: SparkSession, broker: Broker, topic: str, records: RecordBroker) -> None:
    """By its source and by ours: all of it, a part by offsets, and a part by time."""
    parts: list[dict[str, Any]] = [
        {"includeHeaders": "true", "minPartitions": 5},
        {
            "startingOffsets": json.dumps({topic: {"0": 17, "1": -2, "2": 500}}),
            "endingOffsets": json.dumps({topic: {"0": 250, "1": -1, "2": 999}}),
        },
        {"startingTimestamp": TIME + 1234, "endingTimestamp": TIME + 2345},
    ]
    for given in parts:
        theirs = spark.read.format("kafka").options(**kafka(broker, subscribe=topic, **given)).load()
        same(theirs, spark.read.format("fastlog").options(**ours(broker, subscribe=topic, **given)).load())
    assert spark.read.format("kafka").options(**kafka(broker, subscribe=topic)).load().count() == COUNT


def test_the_same_sink(spark: SparkSession, broker: Broker, topic: str, records: RecordBroker) -> None:
    """Written by each of them: the same records, and each key in the same partition."""
    read = spark.read.format("fastlog").options(**ours(broker, subscribe=topic, includeHeaders="true")).load()
    keyed = read.where("key IS NOT NULL").select("key", "value", "headers").cache()
    for name in ("by-kafka", "by-fastlog"):
        records.create(f"{topic}-{name}", 3, {})
    keyed.write.format("kafka").options(**kafka(broker, topic=f"{topic}-by-kafka", includeHeaders="true")).save()
    keyed.write.format("fastlog").mode("append").options(**ours(broker, topic=f"{topic}-by-fastlog")).save()
    found = [
        spark.read.format("fastlog").options(**ours(broker, subscribe=f"{topic}-{name}", includeHeaders="true")).load()
        for name in ("by-kafka", "by-fastlog")
    ]
    wanted = ("key", "value", "headers", "partition")
    same(found[0].select(*wanted), found[1].select(*wanted))
    same(found[0].select("key", "value", "headers"), keyed)
    keyed.unpersist()


def test_streams(spark: SparkSession, broker: Broker, topic: str, records: RecordBroker, tmp_path: Path) -> None:
    """From topic to topic, in several batches and from a checkpoint, by its source and sink alone."""
    copy = f"{topic}-copy"
    records.create(copy, 2, {})
    options = kafka(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=1000)

    def run() -> None:
        stream = spark.readStream.format("kafka").options(**options).load().select("key", "value")
        writer = stream.writeStream.format("kafka").options(**kafka(broker, topic=copy))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        run_to_end(writer.start, 400)

    run()
    more = [Record(b"new", b"%d" % at, TIME) for at in range(50)]
    records.append({(topic, 1): build(more)}, is_flushed=True)
    run()
    read = [
        spark.read.format("fastlog").options(**ours(broker, subscribe=name)).load().select("key", "value")
        for name in (topic, copy)
    ]
    assert read[1].count() == COUNT + 50
    same(*read)

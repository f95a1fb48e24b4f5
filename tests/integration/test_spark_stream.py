"""Streaming queries over topics: AvailableNow, intervals, restarts from a checkpoint, kills inside a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastlog.message import encode_set
from tests.harness.broker import Broker, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def produce(broker: Broker, topic: str, partition: int, start: int, stop: int) -> None:
    """Messages that are numbers of ten digits: 20 bytes each in the log."""
    with broker.connect() as client:
        client.produce_ack(topic, partition, encode_set([b"%010d" % n for n in range(start, stop)]), acks=2)


class Job:
    """A query that collects its batches; each start of it is a new one from the same checkpoint."""

    def __init__(self, spark: SparkSession, broker: Broker, topic: str, directory: Path, **given: Any) -> None:
        self._spark = spark
        self._checkpoint = directory / "checkpoint"
        self._options = {"brokers": f"127.0.0.1:{broker.port}", "subscribe": topic, "columns": "partition,offset,value"}
        self._options |= {name: str(value) for name, value in given.items()}
        self.batches: dict[int, list[int]] = {}
        self.fail_in: int | None = None

    def start(self, **trigger: Any) -> StreamingQuery:
        """Collect until it ends; a batch that ``fail_in`` names fails once it was read."""

        def collect(frame: DataFrame, number: int) -> None:
            rows = frame.collect()
            if number == self.fail_in:
                raise RuntimeError("the sink has failed")
            self.batches[number] = [int(row.value) for row in rows]

        frame = self._spark.readStream.format("fastlog").options(**self._options).load()
        writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**trigger).start()

    def run(self, timeout: float = 90) -> StreamingQuery:
        """All that is there now."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(timeout)
        return query

    @property
    def numbers(self) -> list[int]:
        """The messages of all batches, in the order of their numbers."""
        return sorted(number for batch in self.batches.values() for number in batch)


def test_available_now_and_again(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    """In batches of a limited size, to the end; later what came since, also in a partition that is new."""
    produce(broker, topic, 0, 0, 500)
    produce(broker, topic, 1, 500, 600)
    job = Job(spark, broker, topic, tmp_path, startingOffsets="earliest", maxBytesPerTrigger=5000)
    query = job.run()
    assert job.numbers == list(range(600))
    assert [len(batch) for batch in job.batches.values()][:2] == pytest.approx([250, 250], abs=12)
    assert len(job.batches) in (3, 4)
    (source,) = query.lastProgress.sources
    assert source.endOffset is not None
    produce(broker, topic, 3, 600, 700)
    job.run()
    assert job.numbers == list(range(700))
    before = len(job.batches)
    job.run()
    assert len(job.batches) == before, "there was nothing new, and no batch for it"


def test_a_first_batch_with_latest_that_fails(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    """Its end was written down, its beginning was not: what came before the restart is neither skipped nor doubled."""
    produce(broker, topic, 0, 0, 50)
    job = Job(spark, broker, topic, tmp_path)
    job.fail_in = 0
    with pytest.raises(Exception, match="the sink has failed"):
        job.run()
    produce(broker, topic, 0, 50, 150)
    job.fail_in = 1
    with pytest.raises(Exception, match="the sink has failed"):
        job.run()
    assert job.batches == {0: []}
    produce(broker, topic, 0, 150, 160)
    job.fail_in = None
    job.run()
    assert job.batches == {0: [], 1: list(range(50, 150)), 2: list(range(150, 160))}


def test_a_query_that_goes_on(
    spark: SparkSession, start_broker: Callable[..., Broker], topic: str, tmp_path: Path
) -> None:
    """With an interval; the broker is stopped and started meanwhile, and the query reads on."""
    broker = start_broker(port=0, settings={"num.partitions": 2})
    produce(broker, topic, 0, 0, 100)
    job = Job(spark, broker, topic, tmp_path, startingOffsets="earliest", **{"fetch.numRetries": 10})
    query = job.start(processingTime="200 milliseconds")
    try:
        wait_until("the first messages", lambda: len(job.numbers) == 100, within=60)
        broker._wanted_port = broker.port
        broker.restart()
        produce(broker, topic, 1, 100, 200)
        wait_until("the messages of a new partition", lambda: len(job.numbers) == 200, within=60)
        assert query.isActive
    finally:
        query.stop()
    assert job.numbers == list(range(200))


def test_errors_end_the_query_with_their_reason(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="endingOffsets: only for a batch read"):
        Job(spark, broker, topic, tmp_path, endingOffsets="latest").run()

"""Streaming queries over topics: AvailableNow, intervals, restarts from a checkpoint, kills inside a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.broker import Broker, wait_until
from tests.harness.ports import unused_port
from tests.harness.spark_jobs import Job, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


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
    broker = start_broker(port=unused_port(), settings={"num.partitions": 2})
    produce(broker, topic, 0, 0, 100)
    job = Job(spark, broker, topic, tmp_path, startingOffsets="earliest", **{"fetch.numRetries": 10})
    query = job.start(processingTime="200 milliseconds")
    try:
        wait_until("the first messages", lambda: len(job.numbers) == 100, within=60)
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

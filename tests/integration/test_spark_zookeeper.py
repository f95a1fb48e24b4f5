"""Streams over brokers that ZooKeeper shows, and a query that is shown as a consumer group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastlog import testing
from fastlog.coordination.zookeeper import ZooKeeperSession
from tests.harness.registration import Tree, registered_broker
from tests.harness.spark_jobs import Job, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def connect() -> Iterator[str]:
    with testing.zookeeper() as running:
        yield f"{running.connect}/spark"


def test_new_topics_and_brokers_are_found_and_progress_is_shown(
    spark: SparkSession, connect: str, tmp_path: Path
) -> None:
    """By a pattern, over runs; the group's offsets are those of all that was committed, the last batch too."""

    def offsets() -> dict[str, bytes]:
        with ZooKeeperSession(connect) as session:
            found = {}
            for topic in session.children("/consumers/query/offsets") or []:
                for name in session.children(f"/consumers/query/offsets/{topic}") or []:
                    node = session.get(f"/consumers/query/offsets/{topic}/{name}")
                    assert node is not None
                    found[f"{topic}/{name}"] = node.data
            return found

    given = {"zookeeper": connect, "subscribePattern": "log.*", "group": "query", "startingOffsets": "earliest"}
    job = Job(spark, None, "", tmp_path, **given, maxBytesPerTrigger=1000)
    with ExitStack() as stack, Tree(connect) as tree:
        first = stack.enter_context(registered_broker(tmp_path / "0", connect, 0))
        produce(first, "logs", 0, 0, 100)
        produce(first, "other", 0, 0, 10)
        tree.wait_shows(first, 0, {"logs": 1})
        job.run()
        assert job.numbers == list(range(100))
        assert len(job.batches) == 2
        assert offsets() == {"logs/0-0": b"2000"}

        produce(first, "log2", 0, 100, 120)
        second = stack.enter_context(registered_broker(tmp_path / "1", connect, 1))
        produce(second, "logs", 0, 120, 130)
        tree.wait_shows(second, 1, {"logs": 1})
        job.run()
        assert job.numbers == list(range(130))
        assert offsets() == {"logs/0-0": b"2000", "log2/0-0": b"400", "logs/1-0": b"200"}

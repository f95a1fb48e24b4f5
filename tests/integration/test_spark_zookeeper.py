"""Streams over brokers that ZooKeeper shows, and a query that is shown as a consumer group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastlog import testing
from fastlog._segment import payloads
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.producer.partitioners import Crc32Partitioner
from fastlog.spark.sink_options import parse_sink_options
from tests.harness.command_line import Commands
from tests.harness.registration import Tree, registered_broker
from tests.harness.spark_jobs import Job, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def connect() -> Iterator[str]:
    with testing.zookeeper() as running:
        yield f"{running.connect}/spark"


def test_new_topics_and_brokers_are_found_and_progress_is_shown(
    spark: SparkSession, connect: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
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
        shown = Commands(capfd)("lag", "--zookeeper", connect, "--group", "query", "--json")
        assert {(row["topic"], row["broker"], row["lag"]) for row in shown.rows} == {
            ("logs", 0, 0),
            ("log2", 0, 0),
            ("logs", 1, 0),
        }


def test_tasks_that_write_find_brokers_the_same_way(connect: str, tmp_path: Path) -> None:
    """Keys choose among the partitions of all brokers; what has none goes to any."""
    pyarrow = pytest.importorskip("pyarrow")
    from fastlog.spark.packing import write_batches

    with ExitStack() as stack, Tree(connect) as tree:
        brokers = [
            stack.enter_context(
                registered_broker(tmp_path / str(number), connect, number, settings={"num.partitions": 2})
            )
            for number in (2, 3)
        ]
        for number, broker in zip((2, 3), brokers, strict=True):
            tree.wait_shows(broker, number)
            produce(broker, "keyed", 0, 0, 1)
            tree.wait_shows(broker, number, {"keyed": 2})
        keys = [b"%d" % (number % 50) if number % 5 else None for number in range(1000)]
        rows = pyarrow.RecordBatch.from_arrays(
            [pyarrow.array([b"%d" % number for number in range(1000)]), pyarrow.array(keys, pyarrow.binary())],
            ["value", "key"],
        )
        options = parse_sink_options({"zookeeper": connect, "topic": "keyed"})
        report = write_batches(iter([rows]), options, ["value", "key"])
        assert report.messages == 1000
        found = {
            (number, partition): payloads(broker.stored_bytes("keyed", partition))
            for number, broker in zip((2, 3), brokers, strict=True)
            for partition in (0, 1)
        }
    values = [int(value) for stored in found.values() for value in stored if value != b"%010d" % 0]
    assert sorted(values) == list(range(1000))
    places = sorted(found)
    for number in range(1000):
        if number % 5:
            place = places[Crc32Partitioner().partition(keys[number], 4)]
            assert b"%d" % number in found[place]

"""What the driver and the workers of a query do with a real broker; without Spark."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fastlog.codecs import SNAPPY
from fastlog.consumer.simple import SimpleConsumer
from fastlog.message import encode_set
from fastlog.spark import ranges
from fastlog.spark.cluster import QueryCluster
from fastlog.spark.columns import BatchMaker
from fastlog.spark.options import SourceOptions, parse_options
from fastlog.spark.plans import BatchPlan, StreamPlan
from fastlog.spark.ranges import read_task
from tests.harness.broker import Broker, wait_until
from tests.harness.ports import unused_port
from tests.harness.spark import partition_of


def options_of(broker: Broker, topic: str, streaming: bool = False, **given: str) -> SourceOptions:
    given = {name.replace("__", "."): text for name, text in given.items()}
    what = {} if "assign" in given else {"subscribe": topic}
    return parse_options({"brokers": f"127.0.0.1:{broker.port}", **what, **given}, streaming=streaming)


def rows_of(options: SourceOptions, tasks: list[Any]) -> list[bytes]:
    found: list[bytes] = []
    for task in tasks:
        maker = BatchMaker([("value", True)], task.topic, task.broker, task.partition)
        for batch in read_task(task, options, maker):
            found += batch.column("value").to_pylist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, SNAPPY])
@pytest.mark.parametrize("direct", ["off", "only"])
def test_tasks_of_a_topic_of_many_segments(
    start_broker: Callable[..., Broker], topic: str, direct: str, codec: int
) -> None:
    """However it is cut, the tasks give every message once and in order."""
    broker = start_broker(processors=1, settings={"log.file.size": 5000})
    expected = [b"%06d" % number for number in range(2000)]
    with broker.connect() as client:
        for start in range(0, 2000, 50):
            client.produce_ack(topic, 0, encode_set(expected[start : start + 50], codec), acks=2)
    for size in (1, 333, 5000, 10**6):
        options = options_of(broker, topic, direct=direct, maxBytesPerPartition=str(size), fetch__size="2000")
        tasks = BatchPlan(options, QueryCluster(options)).tasks()
        assert all(earlier.end == later.start for earlier, later in itertools.pairwise(tasks))
        if size > 1:
            assert rows_of(options, tasks) == expected
        else:
            assert len(tasks) == (40 if codec else 2000)
    stream = options_of(broker, topic, streaming=True, startingOffsets="earliest", direct=direct)
    plan = StreamPlan(stream, QueryCluster(stream))
    found: list[bytes] = []
    offset: Any = plan.initial()
    while (end := plan.latest(offset, 4000)) is not offset:
        found += rows_of(stream, plan.tasks(end))
        offset = end
    assert found == expected


def test_a_batch_waits_until_what_was_appended_is_visible(start_broker: Callable[..., Broker], topic: str) -> None:
    """A broker that flushes once an hour does it when a batch read asks."""
    broker = start_broker(
        processors=1, settings={"log.flush.interval": 1_000_000, "log.default.flush.interval.ms": 3_600_000}
    )
    with broker.connect() as client:
        client.produce_ack(topic, 0, encode_set([b"one", b"two"]), acks=1)
    options = options_of(broker, topic)
    assert rows_of(options, BatchPlan(options, QueryCluster(options)).tasks()) == [b"one", b"two"]


def test_ranges_of_times_adjoin(start_broker: Callable[..., Broker], topic: str) -> None:
    """Each message is in one of two ranges that meet at a time, the older ones in the first; none is in a third."""
    broker = start_broker(processors=1, settings={"log.file.size": 1000})

    def fill(start: int) -> None:
        with broker.connect() as client:
            for number in range(start, start + 200, 10):
                client.produce_ack(topic, 0, encode_set([b"%06d" % n for n in range(number, number + 10)]), acks=2)

    before = time.time_ns() // 1_000_000 - 10
    fill(0)
    time.sleep(0.02)
    between = time.time_ns() // 1_000_000
    time.sleep(0.02)
    fill(200)
    time.sleep(0.02)
    after = time.time_ns() // 1_000_000

    def read(**given: str) -> list[int]:
        options = options_of(broker, topic, **given)
        return [int(value) for value in rows_of(options, BatchPlan(options, QueryCluster(options)).tasks())]

    older = read(startingTimestamp=str(before), endingTimestamp=str(between))
    newer = read(startingTimestamp=str(between), endingTimestamp=str(after))
    assert older + newer == list(range(400))
    assert 130 < len(older) <= 200
    assert read(startingTimestamp=str(after), startingOffsetsByTimestampStrategy="latest") == []
    cluster = QueryCluster(options_of(broker, topic))
    cluster.bounds()
    assert cluster.offset_at(partition_of(f"{topic}/0-0"), after) is None


@pytest.mark.slow
@pytest.mark.parametrize("direct", ["off", "only"])
def test_only_the_bytes_that_options_name_are_read(
    start_broker: Callable[..., Broker], topic: str, direct: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions, offsets and times: what is outside of them is neither fetched nor looked at in files."""
    broker = start_broker(processors=1, settings={"log.file.size": 1000, "num.partitions": 2})
    between = 0
    for number in range(0, 400, 10):
        if number == 200:
            time.sleep(0.02)
            between = time.time_ns() // 1_000_000
            time.sleep(0.02)
        with broker.connect() as client:
            for partition in (0, 1):
                client.produce_ack(
                    topic, partition, encode_set([b"%06d" % n for n in range(number, number + 10)]), acks=2
                )
    taken: list[tuple[int, int, int]] = []

    class Counting(SimpleConsumer):
        def fetch(self, topic: str, partition: int, offset: int, *given: Any, **named: Any) -> Any:
            found = super().fetch(topic, partition, offset, *given, **named)
            taken.append((partition, offset, len(found.data)))
            return found

    monkeypatch.setattr(ranges, "SimpleConsumer", Counting)

    def read(**given: str) -> tuple[int, int]:
        taken.clear()
        options = options_of(broker, topic, direct=direct, fetch__size="2000", **given)
        rows = rows_of(options, BatchPlan(options, QueryCluster(options)).tasks())
        return len(rows), sum(size for _, _, size in taken)

    each = len(encode_set([b"000000"]))
    assert read() == (800, 800 * each)
    assert read(assign=json.dumps({topic: ["0-1"]})) == (400, 400 * each)
    assert {partition for partition, _, _ in taken} == {1}
    named = {f"0-{partition}": (100 + partition) * each for partition in (0, 1)}
    ends = {name: start + 50 * each for name, start in named.items()}
    offsets = {"startingOffsets": json.dumps({topic: named}), "endingOffsets": json.dumps({topic: ends})}
    assert read(**offsets) == (100, 100 * each)
    assert min(offset for _, offset, _ in taken) == 100 * each
    rows, size = read(startingTimestamp=str(between))
    assert 400 <= rows < 400 + 2 * 1000 // each and size == rows * each  # segments have times


@pytest.mark.slow
def test_a_broker_that_is_killed_while_a_task_reads(start_broker: Callable[..., Broker], topic: str) -> None:
    """All its processes, and started again on the same port: the task goes on where it was."""
    broker = start_broker(processors=1, port=unused_port())
    expected = [b"%06d" % number for number in range(3000)]
    with broker.connect() as client:
        client.produce_ack(topic, 0, encode_set(expected), acks=2)
    options = options_of(
        broker, topic, direct="off", fetch__size="500", fetch__numRetries="20", fetch__retryIntervalMs="10"
    )
    (task,) = BatchPlan(options, QueryCluster(options)).tasks()
    found: list[bytes] = []
    for number, batch in enumerate(read_task(task, options, BatchMaker([("value", True)], topic, 0, 0))):
        found += batch.column("value").to_pylist()
        if number == 5:
            broker.kill_all()
            broker.start()
            wait_until("the broker answers", lambda: broker.connect().close() is None)
    assert found == expected

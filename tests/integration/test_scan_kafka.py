"""``fastlog.scan`` of an Apache Kafka: of a topic that several brokers lead, and of what is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

import fastlog
from fastlog.client.records import RecordsError
from fastlog.errors import WrongPartitionError
from tests.harness import real_kafka
from tests.harness.broker import wait_until

pytestmark = [real_kafka.is_there, pytest.mark.timeout(600)]

FIRST, COUNT = 1_700_000_000_000, 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[real_kafka.Kafka, real_kafka.Kafka]]:
    """Two brokers with a topic ``logs`` of four partitions, two at each."""
    directory = tmp_path_factory.mktemp("kafka")
    kept: dict[str, object] = {"log.retention.ms": -1}  # by their times the records are old
    with (
        real_kafka.Kafka(directory / "1", settings=kept) as first,
        real_kafka.Kafka(directory / "2", settings=kept, beside=first) as second,
    ):
        admin = KafkaAdminClient(bootstrap_servers=first.address)
        try:
            wait_until(
                "both brokers are there", lambda: len(admin.describe_cluster()["brokers"]) == 2, real_kafka.SECONDS
            )
            admin.create_topics([NewTopic("logs", replica_assignments={0: [1], 1: [2], 2: [2], 3: [1]})])
        finally:
            admin.close()
        producer = KafkaProducer(bootstrap_servers=first.address, acks="all", compression_type="gzip")
        for number in range(COUNT):
            producer.send(
                "logs",
                b"%d" % number,
                key=b"k",
                partition=number % 4,
                timestamp_ms=FIRST + number,
                headers=[("h", b"1")],
            )
        producer.close()
        yield first, second


def test_each_partition_is_read_at_the_broker_that_leads_it(cluster: tuple[real_kafka.Kafka, real_kafka.Kafka]) -> None:
    for broker in cluster:
        scan = fastlog.scan("logs", broker=broker.address)
        assert [part.partition for part in scan.parts] == [0, 1, 2, 3]
        table = scan.to_arrow()
        assert table["payload"].to_pylist() == [b"%d" % n for partition in range(4) for n in range(partition, COUNT, 4)]
        assert table["partition"].to_pylist() == [partition for partition in range(4) for _ in range(COUNT // 4)]
        assert table["headers"][0].as_py() == [{"key": "h", "value": b"1"}]
    some = fastlog.scan("logs", broker=cluster[0].address, partitions=[1, 3], since=FIRST + 200, start={1: 60})
    assert some.to_arrow()["payload"].to_pylist() == [b"%d" % n for n in (*range(241, COUNT, 4), *range(203, COUNT, 4))]


def test_a_topic_that_is_not_there_is_said_to_be_so(cluster: tuple[real_kafka.Kafka, real_kafka.Kafka]) -> None:
    with pytest.raises(WrongPartitionError, match=f"{cluster[0].address} has no topic 'none'"):
        fastlog.scan("none", broker=cluster[0].address)


def test_a_partition_that_nobody_leads_is_named(cluster: tuple[real_kafka.Kafka, real_kafka.Kafka]) -> None:
    first, second = cluster
    scan = fastlog.scan("logs", broker=first.address)
    second.__exit__(None, None, None)
    with pytest.raises(RecordsError, match="logs, partition 1: no broker leads it now"):
        scan.to_arrow()
    with second:
        wait_until("it leads again", lambda: _rows(first) == COUNT, real_kafka.SECONDS)


def _rows(broker: real_kafka.Kafka) -> int:
    try:
        return int(fastlog.scan("logs", broker=broker.address).to_arrow().num_rows)
    except (RecordsError, fastlog.errors.TransportError):
        return 0

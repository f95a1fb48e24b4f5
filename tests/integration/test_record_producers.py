"""``fastlog.Producer`` on topics of record batches: values, with receipts that are offsets of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import fastlog
from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.errors import MessageTooLargeError, WrongPartitionError
from fastlog.testing import RunningBroker
from tests.harness.broker import wait_until
from tests.harness.timing import PATIENCE


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(processors=1) as running:
        yield running


@pytest.fixture
def records(broker: RunningBroker) -> Iterator[RecordBroker]:
    with RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as made:
        yield made


def stored(broker: RunningBroker, topic: str, partition: int = 0) -> list[Any]:
    with fastlog.SimpleConsumer(broker.host, broker.port, timeout=PATIENCE) as simple:
        return list(simple.messages(topic, partition))


@pytest.mark.parametrize("acks", ["flushed", "appended"])
def test_receipts_are_offsets_of_records(broker: RunningBroker, records: RecordBroker, acks: str) -> None:
    topic = f"receipts-{acks}"
    records.create(topic, 2, {})
    with fastlog.Producer(broker.address, acks=acks) as producer:
        assert producer.partitions(topic) == [(0, 0), (0, 1)]
        told = [producer.send(topic, values, partition=1) for values in ([b"a", b"b"], [b"c"], [b"d", b"e", b"f"])]
        assert [(row.partition, row.offset, row.next_offset) for (row,) in told] == [(1, 0, 2), (1, 2, 3), (1, 3, 6)]
        (somewhere,) = producer.send(topic, b"x")
        assert somewhere.partition in (0, 1)
        assert somewhere.next_offset == somewhere.offset + 1
        chosen = {producer.send(topic, b"y", key=b"same")[0].partition for _ in range(5)}
        assert len(chosen) == 1, "a key chooses the partition"
    found = [message for message in stored(broker, topic, 1) if message.payload not in (b"x", b"y")]
    assert [message.payload for message in found] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert {(message.key, message.headers) for message in found} == {(None, ())}
    assert all(message.timestamp > 1_600_000_000_000 for message in found)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
def test_every_value_of_a_queue_is_stored(broker: RunningBroker, records: RecordBroker, codec: str) -> None:
    topic = f"queue-{codec}"
    records.create(topic, 1, {})
    values = [b"value %d" % number for number in range(3000)]
    with fastlog.Producer(broker.address, producer_type="async", compression=codec, batch_messages=100) as producer:
        for value in values:
            producer.send(topic, value)
    assert [message.payload for message in stored(broker, topic)] == values


def test_without_acknowledgements(broker: RunningBroker, records: RecordBroker) -> None:
    records.create("unacknowledged", 1, {})
    with fastlog.Producer(broker.address, acks="none") as producer:
        producer.send("unacknowledged", [b"a", b"b"])
    wait_until("they are there", lambda: [m.payload for m in stored(broker, "unacknowledged")] == [b"a", b"b"])


def test_what_is_refused_leaves_the_producer_whole(broker: RunningBroker, records: RecordBroker) -> None:
    records.create("narrow", 1, {"max.message.bytes": "500"})
    with fastlog.Producer(broker.address, acks="flushed") as producer:
        with pytest.raises(MessageTooLargeError):
            producer.send("narrow", b"x" * 600)
        with pytest.raises(WrongPartitionError, match="there is no partition 1: broker 0 has 1 of topic 'narrow'"):
            producer.send("narrow", b"x", partition=1)
        (row,) = producer.send("narrow", b"fits")
        assert (row.partition, row.offset, row.next_offset) == (0, 0, 1)
        (row,) = producer.send("a-topic-of-messages", b"fits")
        assert (row.offset, row.next_offset) == (0, 14)
    assert [message.payload for message in stored(broker, "narrow")] == [b"fits"]


def test_a_broker_that_was_killed_loses_nothing_that_was_flushed() -> None:
    with (
        testing.broker(processors=1) as broker,
        RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE) as records,
        fastlog.Producer(broker.address, acks="flushed") as producer,
    ):
        records.create("killed", 1, {})
        for number in range(20):
            producer.send("killed", b"%d" % number)
        broker.kill()
        broker.restart()
        for number in range(20, 40):
            producer.send("killed", b"%d" % number)
        assert [message.payload for message in stored(broker, "killed")] == [b"%d" % number for number in range(40)]

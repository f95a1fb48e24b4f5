"""Commands for topics of record batches, and what today's clients fill these with."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from fastlog.testing import RunningBroker
from tests.harness import command_process
from tests.harness.timing import PATIENCE

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def run(broker: RunningBroker, *arguments: str, code: int = 0, data: bytes = b"") -> tuple[str, str]:
    """Stdout and stderr of a command with that stdin, which ends with that code."""
    found, out, err = command_process.run(*arguments, "--brokers", broker.address, data=data)
    assert found == code, (arguments, found, out, err)
    return out.decode(), err


def fill(broker: RunningBroker, topic: str, count: int = 6, *, codec: str = "none", first: int = 0) -> None:
    """Records 0, 1, … with key, time and header, the last one a tombstone."""
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec, "acks": "all"})
    for number in range(first, first + count):
        value = None if number == first + count - 1 else b"value %d" % number
        producer.produce(
            topic, value, b"key %d" % number, 0, timestamp=1_700_000_000_000 + number, headers=[("n", b"%d" % number)]
        )
    assert producer.flush(PATIENCE) == 0


def stored(broker: RunningBroker, topic: str) -> list[tuple[int, int, str, bytes | None, bytes | None, object]]:
    """Partition, offset and the rest of each record, as confluent-kafka reads them."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "stored", "enable.partition.eof": True})
    numbers = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
    found, ended = [], set()
    while len(ended) < len(numbers):
        record = consumer.poll(PATIENCE)
        assert record is not None
        if record.error() is not None:
            assert record.error().code() == KafkaError._PARTITION_EOF
            ended.add(record.partition())
            continue
        found.append((record.partition(), record.offset(), "", record.key(), record.value(), record.headers()))
    consumer.close()
    return sorted(found, key=lambda row: row[:2])

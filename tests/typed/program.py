"""A program that uses every public name of fastlog. It is never run, only checked (``test_typing.py``)."""

import logging
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import fastlog
import fastlog.testing
from fastlog import aio, errors, metrics, tracing
from fastlog.audit import Auditor


def produce(address: str) -> int:
    """Send, and say how many were delivered."""
    with fastlog.Producer(address, producer_type="async", compression="gzip") as producer:
        producer.send("logs", b"one")
        producer.send("logs", [b"two", b"three"], key=b"k")
        producer.send(fastlog.ProducerData("logs", b"k", b"four"))
        metrics.watch(producer, "orders")
        producer.flush(5.0)
        delivered: int = producer.stats().delivered
    with fastlog.SyncProducer("localhost", 9092) as plain:
        plain.send("logs", [b"five"], 0)
    return delivered


def read(address: str) -> Iterator[bytes]:
    """Read alone."""
    with fastlog.SimpleConsumer(address) as consumer:
        for message in consumer.messages("logs", 0, fastlog.EARLIEST):
            offset: int = message.next_offset
            assert offset != fastlog.LATEST
            yield message.payload


def read_in_a_group(address: str) -> None:
    """Read with others, and keep offsets."""
    store = fastlog.FileOffsets(Path("offsets"))
    with fastlog.Consumer(brokers=address, group_id="g", consumer_timeout_ms=100) as consumer:
        streams = consumer.create_message_streams({"logs": 1})
        try:
            for message in streams["logs"][0]:
                print(message.topic, message.payload)
        except (fastlog.ConsumerTimeout, fastlog.OwnershipLostError):
            pass
        lags: dict[fastlog.TopicPartition, int | None] = consumer.lag()
        print(lags, store)


def offsets_beside_rows(database: Path) -> fastlog.DatabaseOffsets:
    """Offsets where the effects are."""
    return fastlog.DatabaseOffsets(lambda: sqlite3.connect(database))


async def by_coroutines(address: str) -> int:
    """The same for asyncio."""
    async with aio.Producer(address) as producer:
        (delivery,) = await producer.send_and_wait("logs", b"six")
        print(delivery)
    count = 0
    async with aio.Consumer("localhost:2181", group_id="g", topics="logs") as consumer:
        found = await consumer.poll(1.0)
        if isinstance(found, fastlog.NoMessage):
            return count
        async for message in consumer:
            count += len(message.payload)
    return count


def log_to(address: str) -> None:
    """The log of the program goes to a topic."""
    handler = fastlog.LogHandler(address, topic="app-logs", key="name")
    handler.setFormatter(fastlog.JsonFormatter(static={"service": "shop"}))
    logging.getLogger().addHandler(handler)
    print(fastlog.StructlogProcessor(address, topic="app-logs"))


def table(address: str) -> int:
    """A topic as a table."""
    found = fastlog.scan("logs", broker=address, start={0: 10}, since=datetime.now(UTC), columns=["offset"])
    print(found.tail(5).to_polars(), len(found.sample(10, seed=1)), found.offset_count)
    return sum(part.end - part.start for part in found.parts) + found.log_bytes


def traced(address: str) -> None:
    """Spans around a record, from its producer to its consumer; and how long it took."""
    auditor = Auditor("load")
    metrics.watch(auditor, "load")
    with fastlog.Producer(address) as producer, tracing.publishing("logs", {"a": b"1"}, key=b"k") as headers:
        producer.send("logs", b"seven", key=b"k", headers=headers)
    with fastlog.SimpleConsumer(address) as consumer:
        auditor.count(consumer.fetch("logs", 0, 0))
        for message in consumer.messages("logs", 0):
            with tracing.processing(message, "logs", group="g"):
                print(message.key, message.headers)
    seconds: float = auditor.latencies()["logs"].total_seconds
    print(seconds)


def main() -> str:
    """All of it, on a broker of its own."""
    try:
        with fastlog.testing.broker(partitions=2) as broker:
            produce(broker.address)
            return f"{fastlog.__version__} {table(broker.address)}"
    except (fastlog.CoordinationError, errors.TransportError) as error:
        return str(error)
    except fastlog.FastlogError:
        raise

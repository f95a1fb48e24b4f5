"""A producer of ``tests.fault.day``, as a program: numbered records until SIGTERM, and what was acknowledged of them.

    python -m tests.fault.day_writer CLIENT ADDRESS TOPIC PARTITIONS NAME DIARY

Record ``n`` goes to partition ``n % PARTITIONS`` and reads ``NAME n//PARTITIONS``, filled up to ``SIZE`` bytes. A line
of the diary has the count that is acknowledged of each partition, or ``failed`` and why. At SIGTERM it delivers what it
has sent, and ends with a last line.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable

SIZE = 1000
RATE = 25.0
"""Records a second."""
DELIVERY_MS = 600_000
"""Longer than any outage of a day."""
DIARY_SECONDS = 1.0
is_over = False


class Acknowledged:
    """What the broker has confirmed, written down once a second."""

    def __init__(self, path: str, partitions: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._counts = [0] * partitions
        self._due = time.monotonic()

    def add(self, partition: int, error: object = None, count: int = 1) -> None:
        """Records of this partition have had their answer."""
        if error is not None:
            self._line(f"failed {error!r}")
            return
        self._counts[partition] += count
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + DIARY_SECONDS
            self.write()

    def write(self) -> None:
        """The counts as they are."""
        self._line(" ".join(map(str, self._counts)))

    def _line(self, text: str) -> None:
        os.write(self._file, f"{text}\n".encode())


class Numbers:
    """The records in their order, no faster than ``RATE``."""

    def __init__(self, name: str, partitions: int) -> None:
        self._name, self._partitions = name, partitions
        self._count, self._began = 0, time.monotonic()

    def wait_seconds(self) -> float:
        """Until the next one is due."""
        return max(0.0, self._began + self._count / RATE - time.monotonic())

    def take(self) -> tuple[int, bytes]:
        """The next one: partition and value."""
        number, partition = divmod(self._count, self._partitions)
        self._count += 1
        return partition, f"{self._name} {number} ".encode().ljust(SIZE, b"x")


def confluent(address: str, topic: str, numbers: Numbers, acknowledged: Acknowledged) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": address, "enable.idempotence": True, "message.timeout.ms": DELIVERY_MS}
    producer = Producer(settings)
    while not is_over:
        producer.poll(numbers.wait_seconds())
        if numbers.wait_seconds():
            continue
        partition, value = numbers.take()

        def done(error: object, _: object, partition: int = partition) -> None:
            acknowledged.add(partition, error)

        producer.produce(topic, value, partition=partition, on_delivery=done)
    producer.flush(DELIVERY_MS / 1000)


def kafka_python(address: str, topic: str, numbers: Numbers, acknowledged: Acknowledged) -> None:
    from kafka import KafkaProducer  # type: ignore[import-untyped]

    producer = KafkaProducer(
        bootstrap_servers=address, enable_idempotence=True, acks="all", linger_ms=5,
        delivery_timeout_ms=DELIVERY_MS, max_block_ms=DELIVERY_MS,
    )  # fmt: skip
    while not is_over:
        time.sleep(numbers.wait_seconds())
        partition, value = numbers.take()
        sent = producer.send(topic, value, partition=partition)
        sent.add_callback(lambda _, partition=partition: acknowledged.add(partition))
        sent.add_errback(lambda error, partition=partition: acknowledged.add(partition, error))
    producer.flush(DELIVERY_MS / 1000)
    producer.close()


def fastlog_itself(address: str, topic: str, numbers: Numbers, acknowledged: Acknowledged) -> None:
    import fastlog

    producer = fastlog.Producer(
        address, producer_type="async", queue_time_ms=5, acks="flushed", delivery_timeout_ms=DELIVERY_MS,
        on_delivery=lambda delivery: acknowledged.add(delivery.partition, delivery.error, delivery.messages),
    )  # fmt: skip
    while not is_over:
        time.sleep(numbers.wait_seconds())
        partition, value = numbers.take()
        producer.send(topic, value, partition=partition)
    producer.close(DELIVERY_MS / 1000)


async def _aiokafka(address: str, topic: str, numbers: Numbers, acknowledged: Acknowledged) -> None:
    import aiokafka  # type: ignore[import-untyped]

    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=address, enable_idempotence=True, linger_ms=5, request_timeout_ms=DELIVERY_MS
    )
    await producer.start()
    while not is_over:
        await asyncio.sleep(numbers.wait_seconds())
        partition, value = numbers.take()
        sent = await producer.send(topic, value, partition=partition)
        sent.add_done_callback(lambda done, partition=partition: acknowledged.add(partition, done.exception()))
    await producer.stop()


def aiokafka(address: str, topic: str, numbers: Numbers, acknowledged: Acknowledged) -> None:
    asyncio.run(_aiokafka(address, topic, numbers, acknowledged))


CLIENTS: dict[str, Callable[[str, str, Numbers, Acknowledged], None]] = {
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "fastlog": fastlog_itself,
}


def main(client: str, address: str, topic: str, partitions: str, name: str, diary: str) -> None:
    """Write until SIGTERM."""

    def end(*_: object) -> None:
        global is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    acknowledged = Acknowledged(diary, int(partitions))
    CLIENTS[client](address, topic, Numbers(name, int(partitions)), acknowledged)
    acknowledged.write()


if __name__ == "__main__":
    main(*sys.argv[1:])

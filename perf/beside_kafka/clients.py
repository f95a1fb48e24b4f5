"""One client of Python's in a process of its own: ``python -m perf.beside_kafka.clients CLIENT WHAT LOAD``.

Prints one line of JSON: the rate, the processor time that the client took for a record, and what else was measured.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from perf.beside_kafka.steps import LATENCY_RATE, SIZE, Load

PAYLOAD = b"x" * SIZE
WAIT_SECONDS = 60.0


def confluent_produce(load: Load) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": load.address, "acks": 1, "linger.ms": 5})
    for number in range(load.messages):
        while True:
            try:
                producer.produce(load.topic, PAYLOAD, partition=number % load.partitions)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_SECONDS) == 0, "not everything was acknowledged"


def confluent_consume(load: Load) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"bootstrap.servers": load.address, "group.id": f"{load.topic}-confluent", "enable.auto.commit": False}
    # librdkafka fetches nothing for a second (fetch.queue.backoff.ms) once it holds so much
    queue = {"queued.min.messages": load.messages, "queued.max.messages.kbytes": 2_000_000}
    consumer = Consumer({**settings, **queue})
    consumer.assign([TopicPartition(load.topic, number, OFFSET_BEGINNING) for number in range(load.partitions)])
    count = 0
    with closing(consumer):
        while count < load.messages:
            got = consumer.consume(min(10_000, load.messages - count), WAIT_SECONDS)
            assert got, f"{count} of {load.messages} records came"
            count += len(got)


def kafka_python_produce(load: Load) -> None:
    from kafka import KafkaProducer  # type: ignore[import-untyped]

    producer = KafkaProducer(bootstrap_servers=load.address, acks=1, linger_ms=5, enable_idempotence=False)
    with closing(producer):
        sent = [producer.send(load.topic, PAYLOAD, partition=n % load.partitions) for n in range(load.messages)]
        producer.flush(WAIT_SECONDS)
        assert all(each.succeeded() for each in sent), "not everything was acknowledged"


def kafka_python_consume(load: Load) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=load.address, auto_offset_reset="earliest", enable_auto_commit=False, group_id=None
    )
    consumer.assign([TopicPartition(load.topic, number) for number in range(load.partitions)])
    count = 0
    with closing(consumer):
        while count < load.messages:
            got = consumer.poll(timeout_ms=int(WAIT_SECONDS * 1000), max_records=10_000)
            assert got, f"{count} of {load.messages} records came"
            count += sum(map(len, got.values()))


async def _aiokafka_produce(load: Load) -> None:
    from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

    async with AIOKafkaProducer(bootstrap_servers=load.address, acks=1, linger_ms=5) as producer:
        sent = [await producer.send(load.topic, PAYLOAD, partition=n % load.partitions) for n in range(load.messages)]
        await producer.flush()
        await asyncio.gather(*sent)


async def _aiokafka_consume(load: Load) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=load.address, auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(load.topic, number) for number in range(load.partitions)])
        count = 0
        while count < load.messages:
            got = await consumer.getmany(timeout_ms=int(WAIT_SECONDS * 1000), max_records=10_000)
            assert got, f"{count} of {load.messages} records came"
            count += sum(map(len, got.values()))
    finally:
        await consumer.stop()


def latency(load: Load) -> dict[str, float]:
    """From produce to consume in milliseconds, at 10,000 records a second, acks=all."""
    from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

    count = load.messages
    consumer = Consumer({"bootstrap.servers": load.address, "group.id": "latency", "fetch.wait.max.ms": 100})
    consumer.assign([TopicPartition(load.topic, number, OFFSET_END) for number in range(load.partitions)])
    taken: list[float] = []

    def read() -> None:
        deadline = time.monotonic() + count / LATENCY_RATE + WAIT_SECONDS
        while len(taken) < count and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.05):
                if message.error() is None:
                    taken.append((time.monotonic_ns() - int((message.value() or b"")[:20])) / 1e6)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(2)
    producer = Producer({"bootstrap.servers": load.address, "acks": "all", "linger.ms": 0})
    began = time.monotonic()
    for number in range(count):
        due = began + number / LATENCY_RATE
        while (left := due - time.monotonic()) > 0:
            producer.poll(min(left, 0.001))
        value = b"%020d" % time.monotonic_ns()
        producer.produce(load.topic, value.ljust(SIZE, b"x"), partition=number % load.partitions)
    producer.flush(WAIT_SECONDS)
    reader.join()
    consumer.close()
    assert len(taken) == count, f"{len(taken)} of {count} records came"
    cuts = statistics.quantiles(taken, n=1000)
    return {"p50_ms": cuts[499], "p99_ms": cuts[989], "p999_ms": cuts[998]}


WORK: dict[tuple[str, str], Callable[[Load], Any]] = {
    ("confluent", "produce"): confluent_produce,
    ("confluent", "consume"): confluent_consume,
    ("confluent", "latency"): latency,
    ("kafka-python", "produce"): kafka_python_produce,
    ("kafka-python", "consume"): kafka_python_consume,
    ("aiokafka", "produce"): lambda load: asyncio.run(_aiokafka_produce(load)),
    ("aiokafka", "consume"): lambda load: asyncio.run(_aiokafka_consume(load)),
}


def main(client: str, what: str, given: str) -> None:
    """Run one client's part; print messages a second, and microseconds of the CPU for each, as JSON."""
    load = Load(**json.loads(given))
    work = WORK[client, what]
    began, used = time.perf_counter(), time.process_time()
    found = work(load) or {}
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    print(json.dumps({"rate": load.messages / seconds, "client_cpu_us": processor / load.messages * 1e6, **found}))


if __name__ == "__main__":
    main(*sys.argv[1:])

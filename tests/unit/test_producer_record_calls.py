"""What a call of a producer means for a topic of record batches: where records go, and what they have with them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fastlog.aio
from fastlog.errors import QueueFullError
from fastlog.producer import Producer
from tests.harness.fake_kafka import FakeKafka, Produced
from tests.harness.timing import PATIENCE

PAIRS = (("a", "1"), ("b", None))
STORED = ((b"a", b"1"), (b"b", None))


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(4) as made:
        yield made


def in_use(kafka: FakeKafka) -> set[int]:
    """The partitions that have something."""
    return {number for number, log in kafka.logs.items() if log}


# --- where records go ---


def test_batches_that_time_ends_go_to_every_partition(kafka: FakeKafka) -> None:
    with Producer(kafka.address, producer_type="async", batch_messages=1000) as producer:
        for number in range(60):
            producer.send("t", b"%d" % number)
            producer.flush(PATIENCE)
    assert in_use(kafka) == {0, 1, 2, 3}


@pytest.mark.parametrize("followed", [False, True])
def test_batches_that_are_full_of_bytes_go_to_every_partition(kafka: FakeKafka, followed: bool) -> None:
    told: list[Any] = []
    with Producer(kafka.address, producer_type="async", batch_messages=10**6, batch_bytes=2000) as producer:
        producer.partitions("t")
        for _ in range(600):
            producer.send("t", b"x" * 400, on_delivery=told.append if followed else None)
    assert in_use(kafka) == {0, 1, 2, 3}
    assert max(len(request.records) for request in kafka.requests) > 2, "no batch for each of them"
    assert len(told) == 600 * followed


def test_lists_that_fill_batches_go_to_every_partition(kafka: FakeKafka) -> None:
    with Producer(kafka.address, producer_type="async", batch_messages=10**6, batch_bytes=2000) as producer:
        producer.partitions("t")
        for _ in range(200):
            producer.send("t", [b"x" * 400] * 3)
    assert in_use(kafka) == {0, 1, 2, 3}


@pytest.mark.parametrize("producer_type", ["sync", "async"])
def test_any_partition_of_a_broker(kafka: FakeKafka, producer_type: str) -> None:
    with Producer(kafka.address, producer_type=producer_type) as producer:
        for _ in range(60):
            producer.send("t", b"x", partition=(0, -1))
        producer.send("t", b"here", partition=(0, 2))
    assert in_use(kafka) == {0, 1, 2, 3}
    assert kafka.values(2)[-1] == b"here"


# --- headers ---


def headers_of(kafka: FakeKafka) -> list[Any]:
    return [record.headers for number in range(4) for record in kafka.logs.get(number, [])]


@pytest.mark.parametrize("value", [b"v", bytearray(b"v"), [b"v"], [bytearray(b"v")]])
@pytest.mark.parametrize("followed", [False, True])
def test_headers_that_can_be_read_once_are_stored(kafka: FakeKafka, value: Any, followed: bool) -> None:
    """Also where compiled code leaves the value to Python's."""
    with Producer(kafka.address, producer_type="async") as producer:
        producer.partitions("t")
        for make in (iter, dict, list, lambda pairs: dict(pairs).items(), lambda pairs: (pair for pair in pairs)):
            producer.send("t", value, headers=make(PAIRS), on_delivery=print if followed else None)
    assert headers_of(kafka) == [STORED] * 5


def test_headers_are_those_of_the_call(kafka: FakeKafka) -> None:
    """Of messages that wait until something is known of their topic, too."""
    headers = {"number": b"0"}
    with Producer(kafka.address, producer_type="async", queue_time_ms=0) as producer:
        for number in range(5):
            headers["number"] = b"%d" % number
            producer.submit("t", b"v", key=b"k", headers=headers)
        producer.submit("t", b"v", key=b"k", headers=iter(PAIRS)).result(PATIENCE)
    assert headers_of(kafka) == [((b"number", b"%d" % number),) for number in range(5)] + [STORED]


def test_headers_that_can_be_read_once_wait_for_room() -> None:
    """A coroutine that finds the queue full asks for room, and sends again."""
    held = threading.Event()

    def slowly(request: Produced) -> None:
        held.wait(PATIENCE)

    async def run(kafka: FakeKafka) -> None:
        async with fastlog.aio.Producer(
            kafka.address, queue_messages=1, in_flight_bytes=1, batch_messages=1
        ) as producer:
            await producer.partitions("t")
            first = asyncio.create_task(producer.send_and_wait("t", b"v", headers=iter(PAIRS)))
            tasks = [asyncio.create_task(producer.send("t", b"v", headers=iter(PAIRS))) for _ in range(5)]
            await asyncio.sleep(0.05)
            assert not all(task.done() for task in tasks)
            held.set()
            await asyncio.gather(first, *tasks)

    with FakeKafka(1, before=slowly) as kafka:
        asyncio.run(run(kafka))
        assert headers_of(kafka) == [STORED] * 6


def test_a_full_queue_takes_nothing(kafka: FakeKafka) -> None:
    with Producer(kafka.address, producer_type="async", queue_messages=1, queue_full="raise") as producer:
        producer.partitions("t")
        producer.send("t", b"v", headers=iter(PAIRS))
        with pytest.raises(QueueFullError):
            producer.send("t", [b"v", b"w"], headers=iter(PAIRS))
        producer.flush(PATIENCE)
    assert headers_of(kafka) == [STORED]

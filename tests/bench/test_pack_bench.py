"""The cost of one ``send()`` of 200 bytes, CRC included; ``--benchmark-enable`` shows it, none is asserted."""

import random
from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fastlog._segment import pack
from fastlog.producer._buffer import Buffer, Quota
from fastlog.producer._outbox import Outbox
from fastlog.producer._send import Route, SendPath
from fastlog.producer.brokers import frame_header

pytestmark = [pytest.mark.slow, pytest.mark.benchmark(max_time=0.3)]

MESSAGES = 5000
PAYLOAD = random.Random(200).randbytes(200)
HOUR_NS = 3_600_000_000_000


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    """An outbox whose messages nobody sends."""
    made = Outbox(Quota(10**9, 10**12), HOUR_NS)
    yield made
    made.retire()


def buffer(outbox: Outbox, batch: int, partition: int = 0) -> Buffer:
    """A buffer for plain requests."""
    return Buffer(outbox, 0, "topic", partition, 0, frame_header("topic", partition, 0), False, batch, 1 << 20, 10**6)


class Path(SendPath):
    """The compiled beginning of send(), with nothing behind it."""


@pytest.mark.parametrize("batch", [1, 50, 200])
def test_send(benchmark: BenchmarkFixture, outbox: Outbox, batch: int) -> None:
    """5000 calls of send(topic, value), the loop around them included."""
    path = Path()
    path._routes.set("topic", Route([buffer(outbox, batch)], None, 1))

    def run() -> None:
        for _ in range(MESSAGES):
            path.send("topic", PAYLOAD)

    benchmark.group = "5000 × send() of 200 bytes"
    benchmark.pedantic(run, setup=lambda: outbox.take(True) and None, rounds=100, warmup_rounds=5)
    assert sum(chunk.messages for chunk in outbox.take(True)) == MESSAGES


def test_send_of_lists(benchmark: BenchmarkFixture, outbox: Outbox) -> None:
    """100 calls of send(topic, list of 50)."""
    path = Path()
    path._routes.set("topic", Route([buffer(outbox, 50)], None, 1))
    many = [PAYLOAD] * 50

    def run() -> None:
        for _ in range(MESSAGES // 50):
            path.send("topic", many)

    benchmark.group = "5000 × send() of 200 bytes"
    benchmark.pedantic(run, setup=lambda: outbox.take(True) and None, rounds=100, warmup_rounds=5)
    assert sum(chunk.messages for chunk in outbox.take(True)) == MESSAGES


def test_send_with_a_key(benchmark: BenchmarkFixture, outbox: Outbox) -> None:
    """The same with a key that chooses one of four partitions."""
    path = Path()
    buffers = [buffer(outbox, 200, partition) for partition in range(4)]
    path._routes.set("topic", Route([buffers[0]], buffers, 1))
    keys = [f"10.0.0.{number % 250}" for number in range(MESSAGES)]

    def run() -> None:
        for key in keys:
            path.send("topic", PAYLOAD, key=key)

    benchmark.group = "5000 × send() of 200 bytes"
    benchmark.pedantic(run, setup=lambda: outbox.take(True) and None, rounds=100, warmup_rounds=5)
    assert sum(chunk.messages for chunk in outbox.take(True)) == MESSAGES


@pytest.mark.parametrize("way", ["extend", "pack"])
def test_a_list(benchmark: BenchmarkFixture, outbox: Outbox, way: str) -> None:
    """A list of 5000 payloads into a buffer, and beside it plainly packed."""
    payloads = [PAYLOAD] * MESSAGES
    target = buffer(outbox, 200)
    benchmark.group = "a list of 5000 payloads"
    work = (lambda: target.extend(payloads)) if way == "extend" else (lambda: len(pack(payloads)))
    found = benchmark.pedantic(work, setup=lambda: outbox.take(True) and None, rounds=100, warmup_rounds=5)
    assert found == (MESSAGES if way == "extend" else MESSAGES * 210)

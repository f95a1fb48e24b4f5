"""Topics of record batches beside topics of messages, under fastlog's own consumers: ``python -m perf.consuming``.

The same payloads lie in a topic of either kind at one broker, and each way of consuming reads both, in turns, through
the socket: processor time of the client for a message, and the ratio of the two speeds in each turn. ``--instructions``
counts instructions of the client for a message instead, on a simulated processor (Valgrind), as what twice the messages
cost more: that says the same on a busy machine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

import fastlog
from fastlog import testing
from fastlog.aio import Consumer as AioConsumer
from fastlog.client.addresses import parse_brokers
from fastlog.client.records import LATEST, RecordBroker
from fastlog.consumer.stream import Stream
from fastlog.record_batches import Record, build
from perf.ab.instructions import COUNTING, instructions_in, missing
from perf.command import run

PAYLOAD_BYTES = 200
MESSAGES, RECORDS = "messages", "records"
COUNTED = 100_000
_GROUPS = itertools.count()

Way = Callable[[str, str, int], None]
"""Reads a number of messages of a topic at an address."""


def _simple(take: Callable[[fastlog.SimpleConsumer, str], Iterator[int]]) -> Way:
    def way(address: str, topic: str, messages: int) -> None:
        with fastlog.SimpleConsumer(address, local="off") as consumer:
            _count(take(consumer, topic), messages)

    return way


def _grouped(take: Callable[[Stream], Iterator[int]]) -> Way:
    def way(address: str, topic: str, messages: int) -> None:
        group = f"perf-{os.getpid()}-{next(_GROUPS)}"
        with fastlog.Consumer(brokers=address, group_id=group, local="off", auto_commit=False) as consumer:
            (stream,) = consumer.create_message_streams({topic: 1})[topic]
            _count(take(stream), messages)

    return way


def _of_loop(take: Callable[[AioConsumer, int], object]) -> Way:
    async def read(address: str, topic: str, messages: int) -> None:
        group = f"perf-{os.getpid()}-{next(_GROUPS)}"
        async with AioConsumer(
            brokers=address, group_id=group, topics=topic, local="off", auto_commit=False
        ) as consumer:
            await take(consumer, messages)  # type: ignore[misc]

    return lambda address, topic, messages: asyncio.run(read(address, topic, messages))


def _count(found: Iterator[int], messages: int) -> None:
    """Until so many have come; what one item of ``found`` stands for is its value."""
    left = messages
    for number in found:
        left -= number
        if left <= 0:
            return
    raise click.ClickException(f"{left} of {messages} messages did not come")


def _payloads(consumer: fastlog.SimpleConsumer, topic: str) -> Iterator[int]:
    return (1 for _ in consumer.payloads(topic, 0))


def _messages(consumer: fastlog.SimpleConsumer, topic: str) -> Iterator[int]:
    return (1 for _ in consumer.messages(topic, 0))


async def _aio_messages(consumer: AioConsumer, messages: int) -> None:
    left = messages
    async for _ in consumer:
        left -= 1
        if not left:
            return


async def _aio_batches(consumer: AioConsumer, messages: int) -> None:
    left = messages
    async for batch in consumer.batches():
        left -= len(batch)
        if left <= 0:
            return


WAYS: dict[str, Way] = {
    "SimpleConsumer.payloads": _simple(_payloads),
    "SimpleConsumer.messages": _simple(_messages),
    "SimpleConsumer.batches": _simple(lambda consumer, topic: map(len, consumer.batches(topic, 0))),
    "SimpleConsumer.numpy_batches": _simple(lambda consumer, topic: map(len, consumer.numpy_batches(topic, 0))),
    "… to Arrow": _simple(
        lambda consumer, topic: (batch.to_arrow().num_rows for batch in consumer.numpy_batches(topic, 0))
    ),
    "Stream": _grouped(lambda stream: (1 for _ in stream)),
    "Stream.batches": _grouped(lambda stream: map(len, stream.batches())),
    "Stream.numpy_batches": _grouped(lambda stream: map(len, stream.numpy_batches())),
    "aio.Consumer": _of_loop(_aio_messages),
    "aio.Consumer.batches": _of_loop(_aio_batches),
}


@contextmanager
def filled(messages: int, per_batch: int, settings: dict[str, str]) -> Iterator[str]:
    """The address of a broker that has both topics, each with so many messages, all of them flushed."""
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(per_batch)]
    batches = -(-messages // per_batch)
    with testing.broker() as broker:
        with fastlog.Producer(broker.address, producer_type="async", acks="flushed") as producer:
            for _ in range(batches):
                producer.send(MESSAGES, payloads)
        with RecordBroker(parse_brokers(broker.address), timeout=30) as records:
            records.create(RECORDS, 1, settings)
            batch = build([Record(None, payload, int(time.time() * 1000)) for payload in payloads])
            for _ in range(batches):
                records.append({(RECORDS, 0): batch}, is_flushed=False)
            while records.offsets([(RECORDS, 0)], LATEST)[RECORDS, 0] < batches * per_batch:
                time.sleep(0.1)
        yield broker.address


def processor_seconds(way: Way, address: str, topic: str, messages: int) -> float:
    """What this process takes to read them."""
    begun = time.process_time()
    way(address, topic, messages)
    return time.process_time() - begun


def in_turns(address: str, messages: int, turns: int, names: list[str]) -> None:
    """Print a line for each way: nanoseconds for a message of either kind, and the ratio of speeds."""
    print(f"{'ns of processor time a message':34}{MESSAGES:>10}{RECORDS:>10}{'ratio':>8}   of {turns} turns")
    for name in names:
        WAYS[name](address, MESSAGES, messages // 10)
        WAYS[name](address, RECORDS, messages // 10)
        rows = []
        for turn in range(turns):
            order = (MESSAGES, RECORDS) if turn % 2 == 0 else (RECORDS, MESSAGES)
            seconds = {topic: processor_seconds(WAYS[name], address, topic, messages) for topic in order}
            rows.append((seconds[MESSAGES], seconds[RECORDS]))
        ratios = sorted(old / new for old, new in rows)
        old, new = (statistics.median(column) / messages * 1e9 for column in zip(*rows, strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{name:34}{old:10.0f}{new:10.0f}{statistics.median(ratios):8.2f}   {spread}")


def counted(address: str, names: list[str]) -> None:
    """Print a line for each way: instructions for a message of either kind, and their ratio."""
    print(f"{'instructions a message':34}{MESSAGES:>10}{RECORDS:>10}{'ratio':>8}")
    for name in names:
        old, new = (_instructions(name, address, topic) for topic in (MESSAGES, RECORDS))
        print(f"{name:34}{old:10.0f}{new:10.0f}{old / new:8.2f}")


def _instructions(name: str, address: str, topic: str) -> float:
    once, twice = (_counted_child(name, address, topic, count) for count in (COUNTED, 2 * COUNTED))
    return (twice - once) / COUNTED


def _counted_child(name: str, address: str, topic: str, messages: int) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-c", _CHILD, name, address, topic, str(messages)]
        subprocess.run([*COUNTING, *command], cwd=scratch, check=True, env={**os.environ, "PYTHONPATH": str(_ROOT)})
        return sum(instructions_in(path) for path in Path(scratch).glob("*.counts"))


_ROOT = Path(__file__).resolve().parents[1]
_CHILD = """
import sys
from perf.consuming import WAYS
name, address, topic, messages = sys.argv[1:]
WAYS[name](address, topic, int(messages))
"""


@click.command()
@click.option(
    "--messages", default=1_000_000, show_default=True, type=click.IntRange(1000), help="Of each kind, in each turn."
)
@click.option(
    "--turns", default=7, show_default=True, type=click.IntRange(1, 1000), help="How often each way reads both."
)
@click.option("--only", multiple=True, metavar="WORD", help="Ways whose names have this in them. May be given again.")
@click.option(
    "--per-batch",
    default=500,
    show_default=True,
    type=click.IntRange(1, 5000),
    help="Records in a batch of 200 bytes each.",
)
@click.option("--instructions", is_flag=True, help="Count instructions, on a simulated processor.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Of the topic of record batches.")
def main(
    messages: int, turns: int, only: tuple[str, ...], per_batch: int, instructions: bool, settings: tuple[str, ...]
) -> int:
    """Both kinds of topics under each way of consuming, in turns."""
    names = [name for name in WAYS if not only or any(word in name for word in only)]
    if not names:
        raise click.UsageError(f"no way fits --only; they are {', '.join(WAYS)}")
    if instructions and (reason := missing()) is not None:
        raise click.ClickException(reason)
    chosen = dict(one.split("=", 1) for one in settings)
    with filled(2 * COUNTED if instructions else messages, per_batch, chosen) as address:
        if instructions:
            counted(address, names)
        else:
            in_turns(address, messages, turns, names)
    return 0


if __name__ == "__main__":
    run(main, "python -m perf.consuming")

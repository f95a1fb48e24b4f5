"""The clients of asyncio beside those of threads, on the same broker in turns: ``python -m perf.aio``.

Messages a second, and the ratio of the two in each turn: its median, least and most. A broker and a ZooKeeper are
started for it. A turn of the producers ends when all is acknowledged; one of the consumers begins when the first batch
has come.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

import fastlog
from fastlog import testing
from fastlog.aio import Consumer, Producer

_TURNS = 7
_PAYLOAD = b"x" * 200
_BATCH = [_PAYLOAD] * 500
_BATCHES = 1000
_SINGLE = 100_000
_READ = 1_000_000


def send_lists(address: str) -> float:
    """Send lists by the producer with threads; returns messages a second."""
    with fastlog.Producer(address, producer_type="async", queue_messages=20_000) as producer:
        producer.send("t", _PAYLOAD)
        begun = time.perf_counter()
        for _ in range(_BATCHES):
            producer.send("t", _BATCH)
        producer.flush()
        return _BATCHES * len(_BATCH) / (time.perf_counter() - begun)


async def aio_send_lists(address: str) -> float:
    """Send lists by the asyncio producer; returns messages a second."""
    async with Producer(address, queue_messages=20_000) as producer:
        await producer.send("t", _PAYLOAD)
        begun = time.perf_counter()
        for _ in range(_BATCHES):
            await producer.send("t", _BATCH)
        await producer.flush()
        return _BATCHES * len(_BATCH) / (time.perf_counter() - begun)


def send_singly(address: str) -> float:
    """Send messages one by one by the producer with threads; returns messages a second."""
    with fastlog.Producer(address, producer_type="async", queue_messages=20_000) as producer:
        producer.send("t", _PAYLOAD)
        begun = time.perf_counter()
        for _ in range(_SINGLE):
            producer.send("t", _PAYLOAD)
        producer.flush()
        return _SINGLE / (time.perf_counter() - begun)


async def aio_send_singly(address: str) -> float:
    """Send messages one by one by the asyncio producer; returns messages a second."""
    async with Producer(address, queue_messages=20_000) as producer:
        await producer.send("t", _PAYLOAD)
        begun = time.perf_counter()
        for _ in range(_SINGLE):
            await producer.send("t", _PAYLOAD)
        await producer.flush()
        return _SINGLE / (time.perf_counter() - begun)


def read_batches(connect: str, group: str) -> float:
    """Batches of a group's stream, by a thread."""
    with fastlog.Consumer(connect, group_id=group, local="off", auto_commit=False) as consumer:
        (stream,) = consumer.create_message_streams({"t": 1})["t"]
        batches = stream.batches(1000)
        next(batches)
        found, begun = 0, time.perf_counter()
        for batch in batches:
            found += len(batch)
            if found >= _READ:
                break
        return found / (time.perf_counter() - begun)


async def aio_read_batches(connect: str, group: str) -> float:
    """Read batches by the asyncio consumer; returns messages a second."""
    async with Consumer(connect, group_id=group, topics="t", local="off", auto_commit=False) as consumer:
        batches = consumer.batches(1000)
        await anext(batches)
        found, begun = 0, time.perf_counter()
        async for batch in batches:
            found += len(batch)
            if found >= _READ:
                break
        return found / (time.perf_counter() - begun)


def read_singly(connect: str, group: str) -> float:
    """Messages of a group's stream, by a thread."""
    with fastlog.Consumer(connect, group_id=group, local="off", auto_commit=False) as consumer:
        (stream,) = consumer.create_message_streams({"t": 1})["t"]
        next(stream)
        found, begun = 0, time.perf_counter()
        for _ in stream:
            found += 1
            if found >= _READ:
                break
        return found / (time.perf_counter() - begun)


async def aio_read_singly(connect: str, group: str) -> float:
    """Read messages one by one by the asyncio consumer; returns messages a second."""
    async with Consumer(connect, group_id=group, topics="t", local="off", auto_commit=False) as consumer:
        await anext(consumer)
        found, begun = 0, time.perf_counter()
        async for _ in consumer:
            found += 1
            if found >= _READ:
                break
        return found / (time.perf_counter() - begun)


def compare(name: str, threads: Callable[[str], float], aio: Callable[[str], float]) -> None:
    """Both in turns; a line with the rates and their ratio."""
    rates = [(threads(f"{name}-{turn}-threads"), aio(f"{name}-{turn}-aio")) for turn in range(_TURNS)]
    ratios = sorted(other / one for one, other in rates)
    plain, loop = (statistics.median(column) for column in zip(*rates, strict=True))
    middle = statistics.median(ratios)
    print(f"{name:24}{plain:12,.0f}{loop:12,.0f}{middle:8.2f}   {ratios[0]:.2f} to {ratios[-1]:.2f}")


def main() -> None:
    """Measure each way to send and to read, and print a table."""
    with testing.zookeeper() as zookeeper, testing.broker(zk_connect=zookeeper.connect) as broker:
        address, connect = broker.address, zookeeper.connect
        print(f"{'messages a second':24}{'threads':>12}{'asyncio':>12}{'ratio':>8}   of {_TURNS} turns")
        compare("send, lists of 500", lambda _: send_lists(address), lambda _: asyncio.run(aio_send_lists(address)))
        compare("send, one by one", lambda _: send_singly(address), lambda _: asyncio.run(aio_send_singly(address)))
        compare(
            "read, batches of 1000",
            lambda group: read_batches(connect, group.replace(" ", "")),
            lambda group: asyncio.run(aio_read_batches(connect, group.replace(" ", ""))),
        )
        compare(
            "read, one by one",
            lambda group: read_singly(connect, group.replace(" ", "")),
            lambda group: asyncio.run(aio_read_singly(connect, group.replace(" ", ""))),
        )


if __name__ == "__main__":
    main()

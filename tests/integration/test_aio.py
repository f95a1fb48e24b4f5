"""The clients of asyncio with real brokers, and a real ZooKeeper: outages, groups, many tasks."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fastlog import testing
from fastlog.aio import Consumer, Producer
from tests.harness.timing import PATIENCE

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
T = TypeVar("T")

PROGRAM = """
import asyncio
import logging

import fastlog
from fastlog.aio import Consumer, Producer


async def main() -> None:
    async with Producer("localhost:9092", acks="flushed", queue_messages=100) as producer:
        await producer.send("t", b"x", key="k")
        await producer.send("t", [b"x", b"y"], partition=(0, 1))
        (delivery,) = await producer.send_and_wait("t", b"x")
        offset: int = delivery.offset + producer.stats().delivered
        await producer.flush(1.0)
        await producer.close(timeout=1.0)
    async with fastlog.aio.Consumer("localhost:2181", group_id="g", topics=["t"], auto_commit=False) as consumer:
        async for message in consumer:
            payload: bytes = message.payload
            if not consumer.done(message):
                break
        async for batch in consumer.batches(100):
            first: bytes = batch[0]
            await consumer.commit_offsets({batch.source: batch.next_offset})
        found = await consumer.poll(1.0)
        if isinstance(found, fastlog.NoMessage):
            print(found.value, offset, payload, first)
        else:
            print(found.offset)


handler = fastlog.LogHandler("localhost:9092", topic="logs", key="name", acks="none")
handler.setFormatter(fastlog.JsonFormatter({"text": "message"}, static={"service": 7}))
logging.getLogger().addHandler(handler)
handler.flush(1.0)
dropped: int = handler.dropped + handler.pending
processor = fastlog.StructlogProcessor("localhost:9092", topic="logs", key=lambda event: "k")
event: dict[str, int] = processor(None, "info", {"a": 1})
done: bool = processor.flush(0.1)
handler.close()
asyncio.run(main())
"""


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, 2 * PATIENCE))


def test_type_checkers_know_all_of_it(tmp_path: Path) -> None:
    """A program that uses everything passes mypy in its strict mode, and one with a wrong argument does not."""
    pytest.importorskip("mypy")
    for name, text, wanted in (("good", PROGRAM, 0), ("bad", PROGRAM.replace('acks="flushed"', "acks=1"), 1)):
        (tmp_path / f"{name}.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache" / "coroutines")]
        command.append(str(tmp_path / f"{name}.py"))
        checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
        assert checked.returncode == wanted, checked.stdout


def test_a_broker_that_is_killed_and_comes_back_loses_nothing() -> None:
    """Tasks send all the while, and each acknowledged message is there; none that was not sent twice is doubled."""

    async def main() -> None:
        with testing.broker() as broker:
            async with Producer(broker.address, queue_messages=200) as producer:
                acknowledged: set[bytes] = set()
                over = False

                async def one(name: int) -> None:
                    number = 0
                    while not over:
                        payload = b"%d %d" % (name, number)
                        await producer.send_and_wait("t", payload)
                        acknowledged.add(payload)
                        number += 1

                tasks = [asyncio.create_task(one(name)) for name in range(20)]
                await asyncio.sleep(0.2)
                for _ in range(2):
                    await asyncio.to_thread(broker.kill)
                    await asyncio.sleep(0.2)
                    await asyncio.to_thread(broker.start)
                    before = len(acknowledged)
                    async with asyncio.timeout(PATIENCE):
                        while len(acknowledged) <= before:
                            await asyncio.sleep(0.01)
                over = True
                await asyncio.gather(*tasks)
                possible = producer.stats().possible_duplicates
            with broker.consumer() as consumer:
                found = Counter(consumer.payloads("t", 0, wait=0.2))
            assert set(found) == acknowledged
            assert sum(found.values()) - len(found) <= possible

    run(main())


@pytest.mark.java
def test_two_members_share_a_topic_and_one_that_leaves_loses_nothing() -> None:
    """Sent by one loop, read by members of a group in it, while one of them leaves; all arrives."""

    async def main() -> None:
        with testing.zookeeper() as zookeeper, testing.broker(partitions=4, zk_connect=zookeeper.connect):
            connect = zookeeper.connect
            lines = [b"%d" % number for number in range(3000)]
            async with Producer(zk_connect=connect, queue_messages=500) as producer:
                for number, line in enumerate(lines[:1000]):
                    await producer.send("t", line, key=str(number))
                await producer.flush(PATIENCE)
                found: Counter[bytes] = Counter()

                async def read(consumer: Consumer, most: int) -> None:
                    async with consumer:
                        batches = consumer.batches(50)
                        while len(found) < most:  # the other one may have read the rest
                            with contextlib.suppress(TimeoutError):
                                async with asyncio.timeout(0.2):
                                    batch = await anext(batches)
                                found.update(batch)
                                consumer.done(batch)

                first = Consumer(connect, group_id="g", topics="t")
                second = Consumer(connect, group_id="g", topics="t")
                tasks = [asyncio.create_task(read(first, 500)), asyncio.create_task(read(second, len(lines)))]
                for number, line in enumerate(lines[1000:]):
                    await producer.send("t", line, key=str(number))
                await producer.flush(PATIENCE)
                await asyncio.gather(*tasks)
            assert set(found) == set(lines)

    run(main())

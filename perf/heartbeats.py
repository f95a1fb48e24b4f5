"""Members of consumer groups beside a producer: ``python -m perf.heartbeats``, how long their heartbeats take.

Groups of today's protocol join on a fresh broker, a connection for each member, and send heartbeats, first alone and
then while a producer sends at a share of what it reached alone. Prints a table in milliseconds; nothing is asserted.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import click

from fastlog.record_batches import Record, build
from perf import command
from tests.harness import today
from tests.harness.broker import Broker

JOIN_GROUP, SYNC_GROUP, HEARTBEAT = 11, 14, 12
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION = 3, 2, 2
REBALANCE_IN_PROGRESS = 27
SESSION = timedelta(seconds=60)
EVERY_SECONDS = 3.0
"""Between a member's heartbeats: Kafka's default."""
RECORDS, RECORD_BYTES, BATCHES = 70, 200, 64
"""Of a batch of about 16 kB, and how many of them are sent in one call."""
TOPIC = "t"
PEAK_SECONDS = 3.0


class Member:
    """One connection; takes part in its group from the first heartbeat on."""

    def __init__(self, group: str, taken: list[float]) -> None:
        self.group, self.taken = group, taken
        self.member, self.generation = "", -1

    async def connect(self, port: int) -> None:
        """Connect, and ask for the API versions, which decides the protocol."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        await self.ask(today.API_VERSIONS, 0)

    async def ask(self, key: int, version: int, **fields: Any) -> Any:
        """Send a request and return its decoded answer."""
        self.writer.write(today.request(key, version, fields))
        head = await self.reader.readexactly(4)
        return today.decoded(key, version, head + await self.reader.readexactly(int.from_bytes(head, "big")))[1]

    async def join(self) -> None:
        """Be in the group's newest generation, with whatever its leader gives."""
        fields: dict[str, Any] = {"group_id": self.group, "session_timeout": SESSION, "rebalance_timeout": SESSION}
        fields |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"m"}]}
        while True:
            joined = await self.ask(JOIN_GROUP, JOIN_VERSION, member_id=self.member, **fields)
            self.member, self.generation = joined.member_id, joined.generation_id
            given = [{"member_id": one.member_id, "assignment": b"a"} for one in joined.members]
            synced = await self.ask(SYNC_GROUP, SYNC_VERSION, assignments=given, **self.named())
            if not joined.error_code and not synced.error_code:
                return

    def named(self) -> dict[str, Any]:
        """What tells a member and its generation."""
        return {"group_id": self.group, "generation_id": self.generation, "member_id": self.member}

    async def beat(self, first: float, until: float) -> None:
        """Heartbeats at their times; each one's milliseconds are kept."""
        await asyncio.sleep(first)
        while time.monotonic() < until:
            begun = time.perf_counter()
            answer = await self.ask(HEARTBEAT, HEARTBEAT_VERSION, **self.named())
            self.taken.append((time.perf_counter() - begun) * 1e3)
            if answer.error_code == REBALANCE_IN_PROGRESS:
                await self.join()
            await asyncio.sleep(max(0.0, EVERY_SECONDS - (time.perf_counter() - begun)))


def produce(port: int, rate: float, ends: Event, sent: Any) -> None:
    """Send batches at a rate, 0: as fast as they are taken, until it ends; ``sent`` counts their records."""
    batch = build([Record(None, bytes(RECORD_BYTES), 0)] * RECORDS)
    frames = today.request(today.PRODUCE, 9, today.produced((TOPIC, 0, batch))) * BATCHES
    with socket.create_connection(("127.0.0.1", port)) as client:
        today.asked(client, today.API_VERSIONS, 0)
        threading.Thread(target=_discard, args=(client,), daemon=True).start()
        begun = time.monotonic()
        while not ends.is_set():
            ahead = sent.value / rate - (time.monotonic() - begun) if rate else 0.0
            if ahead > 0:
                time.sleep(ahead)
            client.sendall(frames)
            sent.value += RECORDS * BATCHES


def _discard(client: socket.socket) -> None:
    buffer = bytearray(1 << 16)
    while client.recv_into(buffer):
        pass


class Load:
    """A producer beside the block, in a process of its own."""

    def __init__(self, port: int, rate: float) -> None:
        self.ends, self.sent = multiprocessing.Event(), multiprocessing.Value("Q", 0, lock=False)
        self.process = multiprocessing.Process(target=produce, args=(port, rate, self.ends, self.sent), daemon=True)

    def __enter__(self) -> Load:
        self.process.start()
        self.begun = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.rate = self.sent.value / (time.monotonic() - self.begun)
        self.ends.set()
        self.process.join(10)
        self.process.kill()


async def play(port: int, groups: int, members: int, seconds: float, load: Callable[[], Any]) -> list[Any]:
    """Seconds until all are in their groups; the milliseconds of heartbeats alone, and beside the load; its rate."""
    alone: list[float] = []
    everyone = [Member(f"group-{number // members}", alone) for number in range(groups * members)]
    begun = time.monotonic()
    for one in everyone:
        await one.connect(port)
    await asyncio.gather(*(one.join() for one in everyone))
    joined = time.monotonic() - begun

    async def beats(taken: list[float]) -> None:
        until = time.monotonic() + seconds
        for one in everyone:
            one.taken = taken
        step = EVERY_SECONDS / len(everyone)
        await asyncio.gather(*(one.beat(number * step, until) for number, one in enumerate(everyone)))

    await beats(alone)
    beside: list[float] = []
    with load() as running:
        await beats(beside)
    for one in everyone:
        one.writer.close()
    return [joined, alone, beside, running.rate]


def _row(name: str, taken: list[float]) -> str:
    cuts = statistics.quantiles(taken, n=1000)
    return f"{name:24} {len(taken):8} {cuts[499]:8.2f} {cuts[989]:8.2f} {max(taken):8.2f}"


@click.command()
@click.option("--groups", default=500, show_default=True)
@click.option("--members", default=4, show_default=True, help="Of each group.")
@click.option("--seconds", default=30.0, show_default=True, help="Of heartbeats, twice.")
@click.option("--share", default=0.8, show_default=True, help="Of what the producer reaches alone.")
def main(groups: int, members: int, seconds: float, share: float) -> int:
    """How long heartbeats of many groups take, alone and beside a producer."""
    with tempfile.TemporaryDirectory() as directory, Broker(Path(directory), processors=2) as broker:
        with socket.create_connection(("127.0.0.1", broker.port)) as client:
            today.asked(client, today.API_VERSIONS, 0)
            names = {"topics": [{"name": TOPIC, "topic_id": today.NO_ID}], "allow_auto_topic_creation": True}
            while not today.asked(client, today.METADATA, 4, **names).topics[0].partitions:
                time.sleep(0.05)
        with Load(broker.port, 0.0) as peak:
            time.sleep(PEAK_SECONDS)
        rate = peak.rate * share
        command.say(f"alone the producer sends {peak.rate:,.0f} records/s")
        joined, alone, beside, sent = asyncio.run(
            play(broker.port, groups, members, seconds, lambda: Load(broker.port, rate))
        )
        click.echo(f"{groups} groups of {members} members were there after {joined:.1f} s")
        click.echo(f"{'heartbeats, ms':24} {'count':>8} {'p50':>8} {'p99':>8} {'max':>8}")
        click.echo(_row("alone", alone))
        click.echo(_row(f"beside {sent:,.0f} records/s", beside))
        click.echo(json.dumps({"processes": broker.memory()}))
    return 0


if __name__ == "__main__":
    command.run(main, "python -m perf.heartbeats")

"""Connections that come and go at once beside consumers that poll: no processor dies, and nobody else is disturbed."""

from __future__ import annotations

import random
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.broker import Broker

TOPIC = "watched"
GOOD = raw.entry(b"good")
CONNECTING = 4
POLLING = 4
CONSUMERS_EACH = 50
REFUSED = struct.pack(">i", -5)
RESET = struct.pack("ii", 1, 0)


@scenario(
    "connects",
    "connections closed as soon as they are made, some reset, some with a request that is refused",
    small=4_000,
    nightly=100_000,
    release=400_000,
)
def connects(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` connections by four threads; others poll on many connections, and make new ones all the time."""
    outcome = Outcome()
    over = threading.Event()
    with Broker(directory) as broker, ThreadPoolExecutor(CONNECTING + POLLING) as pool:
        with broker.connect() as client:
            client.produce_ack(TOPIC, 0, GOOD, raw.FLUSHED)
        before = broker.pids()
        polling = [pool.submit(_poll, broker, over) for _ in range(POLLING)]
        sources = [random.Random(f"{seed} connects {number}") for number in range(CONNECTING)]
        try:
            for made in pool.map(lambda source: _connect(broker.port, count // CONNECTING, source), sources):
                outcome.runs += made
        finally:
            over.set()
        for one in polling:
            outcome.violations += one.result()
        outcome.expect(broker.pids() == before, f"processes were replaced: {before}, now {broker.pids()}")
    return outcome


def _connect(port: int, count: int, source: random.Random) -> int:
    """Make ``count`` connections, one after the other; the bytes and the reset meet the processor at any moment."""
    for _ in range(count):
        with socket.socket() as sock:
            sock.connect(("127.0.0.1", port))
            try:
                if source.random() < 0.5:
                    sock.sendall(REFUSED)
                    sock.sendall(bytes(8))
                # most by a reset: what is closed in order keeps its port for a while
                if source.random() < 0.9:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            except ConnectionError:
                continue  # the processor was quicker
    return count


def _poll(broker: Broker, over: threading.Event) -> list[str]:
    """Fetch on old connections and on one that is made for it, until it is over; what was answered otherwise."""
    found: list[str] = []
    clients = [broker.connect() for _ in range(CONSUMERS_EACH)]
    try:
        while not over.is_set() and not found:
            for number, old in enumerate(clients):
                try:
                    if old.fetch(TOPIC, 0, 0).body != GOOD:
                        found.append("a fetch was answered with other bytes")
                except (raw.ConnectionClosed, OSError) as error:
                    found.append(f"a polling consumer: {error!r}")
                    break
                if number % 10 == 0:
                    old.close()
                    clients[number] = broker.connect()
    finally:
        for client in clients:
            client.close()
    return found

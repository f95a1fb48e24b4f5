"""Producers on many connections, each at its own pace: what its batch waits for from when it is due until its answer.

One thread drives them all with frames that were made once, so that the clients take little of what is measured.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections import deque
from datetime import timedelta
from typing import NamedTuple

import numpy as np

from perf.beside_kafka.steps import SIZE, Done, Load, Step
from perf.peers.base import PeerFailed
from tests.harness import raw_batches, today
from tests.harness.raw_records import Record

VERSION = 7
CONNECTIONS, RATE, LINGER_SECONDS, SECONDS = 200, 500.0, 0.05, 10.0
RECORDS = int(CONNECTIONS * RATE * SECONDS)
_ERROR_AT = struct.calcsize(">iih")
"""In an answer of this version, after its length: correlation id, one topic, its name's length; its name follows."""
_AFTER_NAME = struct.calcsize(">ii")
"""One partition, its number."""
_DRAIN_SECONDS = 30.0
_IDLE_SECONDS = 0.0005


class Paced(NamedTuple):
    """What is asked for: ``rate`` records a second on each connection, in a batch every ``linger`` seconds."""

    address: str
    topic: str
    partitions: int
    connections: int
    rate: float
    linger: float
    seconds: float
    size: int
    acks: int = -1


class Connection:
    """One producer, which writes to one partition."""

    def __init__(self, paced: Paced, number: int, frame: bytes) -> None:
        host, _, port = paced.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_DRAIN_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._frame = frame
        self._linger = paced.linger
        # spread over the interval, as those of producers that know nothing of each other
        self._next = number / paced.connections * paced.linger
        self._waiting: deque[float] = deque()
        self._unsent = b""
        self._received = b""
        self._error_at = 4 + _ERROR_AT + len(paced.topic) + _AFTER_NAME

    def fileno(self) -> int:
        """The socket's descriptor, for the selector."""
        return self._socket.fileno()

    def send_due(self, now: float) -> int:
        """Send what is due by now; how many batches those are."""
        count = 0
        while self._next <= now:
            self._waiting.append(self._next)
            self._unsent += self._frame
            self._next += self._linger
            count += 1
        if self._unsent:
            with contextlib.suppress(BlockingIOError):
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        return count

    def read(self, now: float) -> list[float]:
        """How long each of the batches that are answered by now has waited, in seconds."""
        data = self._socket.recv(1 << 16)
        if not data:
            raise PeerFailed("the broker has closed a connection")
        self._received += data
        found = []
        while len(self._received) >= 4:
            size = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < size:
                break
            code = int.from_bytes(self._received[self._error_at : self._error_at + 2], "big", signed=True)
            if code:
                raise PeerFailed(f"a batch was refused with error {code}")
            self._received = self._received[size:]
            found.append(now - self._waiting.popleft())
        return found

    def is_done(self) -> bool:
        """Whether every request has been answered."""
        return not self._waiting

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def many_producers(acks: int) -> Step:
    """200 producers of 500 records a second each, in batches of 25 every 50 ms; -1 is acks=all."""

    def step(load: Load) -> Done:
        topic = load.address, load.topic, load.partitions
        found = run(Paced(*topic, CONNECTIONS, RATE, LINGER_SECONDS, SECONDS, SIZE, acks))
        return Done(found["share_of_pace"] * CONNECTIONS * RATE, found)

    return step


def run(paced: Paced) -> dict[str, float]:
    """Percentiles in milliseconds, and the share of the pace that was kept.

    Raises:
        PeerFailed: a batch was refused, or not answered in time.
    """
    records = max(1, round(paced.rate * paced.linger))
    batch = raw_batches.of([Record(int(time.time() * 1000), None, bytes(paced.size))] * records).encode()
    frames = []
    for partition in range(paced.partitions):
        fields = today.produced((paced.topic, partition, batch), acks=paced.acks)
        fields["timeout"] = timedelta(seconds=_DRAIN_SECONDS)
        frames.append(today.request(today.PRODUCE, VERSION, fields))
    waits: list[float] = []
    sent = 0
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        connections = []
        for number in range(paced.connections):
            connections.append(Connection(paced, number, frames[number % paced.partitions]))
            stack.callback(connections[-1].close)
            selector.register(connections[-1], selectors.EVENT_READ)
        began = time.monotonic()
        while (now := time.monotonic() - began) < paced.seconds:
            sent += sum(each.send_due(now) for each in connections)
            waits += _answers(selector, began)
        while not all(each.is_done() for each in connections):
            if time.monotonic() - began > paced.seconds + _DRAIN_SECONDS:
                raise PeerFailed(f"{sent - len(waits)} of {sent} batches had no answer")
            for each in connections:
                each.send_due(-1.0)
            waits += _answers(selector, began)
        seconds = time.monotonic() - began
    # the first second has the topic's first segments and the processors' first pages in it
    cuts = np.percentile(np.array(waits[sent // 10 :]) * 1000, (50, 99, 99.9))
    kept = sent * records / seconds / (paced.rate * paced.connections)
    return {"p50_ms": float(cuts[0]), "p99_ms": float(cuts[1]), "p999_ms": float(cuts[2]), "share_of_pace": kept}


def _answers(selector: selectors.BaseSelector, began: float) -> list[float]:
    found: list[float] = []
    for key, _ in selector.select(_IDLE_SECONDS):
        connection = key.fileobj
        assert isinstance(connection, Connection)
        found += connection.read(time.monotonic() - began)
    return found

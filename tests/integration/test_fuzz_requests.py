"""Requests nobody should send, by the thousand (T-17), slow and silent clients (T-21), floods of connections (T-22).

``fuzz`` takes a seed and a count, so larger runs are the same code; a failure names the seed. What must hold all the
time: no process dies, memory stays, and valid requests on another connection are answered.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.sanitizer import KEPT_BYTES

MEGABYTE = 1 << 20
SECONDS_TO_ANSWER = 10.0
"""A processor that waited for one client would wait for good: it is the one that sees to the idle limit."""
GOOD = raw.entry(b"good")
FLOOD_CONNECTIONS = 8000
NAMES: list[str | bytes] = [
    "a",
    "b",
    "topic",
    "-",
    "é",
    "",
    ".",
    "..",
    "a/b",
    "a\0b",
    "x" * 255,
    "x" * 256,
    b"\xff",
    b"a" * 32767,
]
INT16 = [-32768, -2, -1, 0, 1, 2, 3, 255, 32767]
INT32 = [-(2**31), -2, -1, 0, 1, 2, 3, 4, 5, 14, 100, 4096, 4097, 65536, 10**8, 2**31 - 1]
INT64 = [-(2**63), -3, -2, -1, 0, 1, 3, 14, 28, 1000, 2**31, 2**62, 2**63 - 1]
KINDS_07 = [raw.PRODUCE, raw.FETCH, raw.MULTIFETCH, raw.MULTIPRODUCE, raw.OFFSETS]
KINDS_OWN = list(range(raw.PRODUCE_ACK, raw.DELETE_TOPIC + 1))


# --- making requests ---


class Maker:
    """Makes frames from one random source: random bytes, fields of odd values, and damaged valid requests."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        plain = raw.entry(b"x" * 100) * 5
        self.sets = [b"", GOOD, plain, raw.entry(b"old", 0) + GOOD, GOOD + raw.entry(b"bad", crc=1), GOOD + b"\0\0\0"]
        self.sets += [raw.wrapper(plain, raw.GZIP), raw.wrapper(raw.wrapper(plain, raw.SNAPPY), raw.GZIP)]
        self.sets += [raw.entry(b"no gzip", 1, 1), raw.entry(b"x", 1, 3), raw.entry(b"x", 2), bytes(8), b"\x7f" * 20]

    def frame(self) -> bytes:
        """The next request; its size field is mostly right."""
        way = self.random.random()
        if way < 0.1:
            body = self.random.randbytes(self.random.choice([0, 1, 2, 3, 8, 30, 200, 5000]))
            kind = self.random.choice([*KINDS_07, *KINDS_OWN, 5, 18, 999, 1007, -1])
            return raw.frame(kind, body)
        frame = self.structured()
        return self.mutated(frame) if way < 0.55 else frame

    def structured(self) -> bytes:
        """A request of any kind whose fields are mostly sensible and sometimes not."""
        kind = self.random.choice([*KINDS_07, *KINDS_OWN])
        if kind in KINDS_OWN:
            return raw.own_frame(
                kind, self.own_body(kind), version=1 if self.usual() else self.pick(INT16), correlation=self.pick(INT32)
            )
        if kind == raw.PRODUCE:
            body = self.produce()
        elif kind == raw.FETCH:
            body = self.fetch()
        elif kind == raw.OFFSETS:
            body = self.place() + struct.pack(">qi", self.pick(INT64), self.pick(INT32))
        else:
            count = self.random.choice([0, 1, 2, 3, 10])
            part = self.fetch if kind == raw.MULTIFETCH else self.produce
            announced = count if self.usual() else self.pick(INT16)
            body = struct.pack(">h", announced) + b"".join(part() for _ in range(count))
        return raw.frame(kind, body)

    def own_body(self, kind: int) -> bytes:
        if kind == raw.PRODUCE_ACK:
            producer = (-1, -1, -1) if self.usual() else (self.pick(INT64), self.pick(INT16), self.pick(INT32))
            return struct.pack(">bqhi", self.random.choice([1, 1, 1, 2, 0, 3, -1]), *producer) + self.produce()
        if kind == raw.HELD_FETCH:
            wait_ms = self.random.choice([-(2**31), -1, 0, 1, 5, 20])
            return struct.pack(">ii", wait_ms, self.pick(INT32)) + self.fetch()
        if kind == raw.METADATA:
            names = [self.random.choice(NAMES) for _ in range(self.random.randrange(5))]
            announced = len(names) if self.usual() else self.pick(INT32)
            return struct.pack(">i", announced) + b"".join(raw.text(name) for name in names)
        if kind == raw.CUT_POINTS:
            return self.place() + struct.pack(
                ">qqqi", self.pick(INT64), self.pick(INT64), self.pick(INT64), self.pick(INT32)
            )
        if kind == raw.LOCAL_READ:
            return self.place()
        if kind == raw.DELETE_TOPIC:
            return raw.text(self.random.choice(NAMES))
        return raw.place(self.random.choice(NAMES), self.pick(INT32))

    def produce(self) -> bytes:
        messages = self.random.choice(self.sets)
        announced = len(messages) if self.usual() else self.pick(INT32)
        return self.place() + struct.pack(">i", announced) + messages

    def fetch(self) -> bytes:
        return self.place() + struct.pack(">qi", self.pick(INT64), self.pick(INT32))

    def place(self) -> bytes:
        name = "a" if self.usual() else self.random.choice(NAMES)
        return raw.place(name, self.random.choice([0, 1, 2, 3, -1]) if self.usual() else self.pick(INT32))

    def mutated(self, frame: bytes) -> bytes:
        """A few bytes changed, put in, taken out or repeated; the size field follows, or not."""
        data = bytearray(frame[4:])
        for _ in range(self.random.choice([1, 1, 1, 2, 5])):
            at = self.random.randrange(len(data) + 1)
            way = self.random.randrange(5)
            if way == 0 and at < len(data):
                data[at] ^= 1 << self.random.randrange(8)
            elif way == 1 and at < len(data):
                data[at] = self.random.choice([0, 1, 0x7F, 0x80, 0xFF])
            elif way == 2:
                data[at:at] = self.random.randbytes(self.random.choice([1, 2, 4, 100]))
            elif way == 3:
                del data[at : at + self.random.choice([1, 2, 4, 100])]
            else:
                data[at:at] = data[at : at + 20]
        size = len(data) if self.random.random() < 0.97 else self.pick(INT32)
        return struct.pack(">i", size) + data

    def usual(self) -> bool:
        return self.random.random() < 0.8

    def pick(self, values: list[int]) -> int:
        return self.random.choice(values)


# --- watching the broker ---


class Watch:
    """A client that asks for one known message all the time, of each processor; ``answers`` counts what came.

    One that is not answered within ``SECONDS_TO_ANSWER`` fails the ``with`` block, which ends only when another round
    was answered: nothing that was done in it keeps the others waiting.
    """

    def __init__(self, broker: Broker, topic: str) -> None:
        self.answers = 0
        self._broker, self._topic = broker, topic
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            enough = self.answers + 2 * self._broker.processors  # the first of them was perhaps asked for long ago
            deadline = time.monotonic() + 3 * SECONDS_TO_ANSWER
            while self.answers < enough and self._thread.is_alive() and time.monotonic() < deadline:
                time.sleep(0.002)
        self._stop.set()
        self._thread.join(3 * SECONDS_TO_ANSWER)
        if self._error is not None:
            raise self._error
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with ExitStack() as stack:  # new ones in each round: the idle limit of a test may be short
                    for _ in range(self._broker.processors):  # the acceptor chooses the least busy processor
                        client = stack.enter_context(self._broker.connect(timeout=SECONDS_TO_ANSWER))
                        assert client.fetch_ok(self._topic, 0, 0, len(GOOD)) == GOOD
                        self.answers += 1
                time.sleep(0.005)
        except BaseException as error:  # handed to the thread that asked for the watch
            self._error = error


@dataclass
class Fuzzed:
    """What one run of the fuzzer came to."""

    requests: int
    connections: int
    memory_growth: dict[str, int]


def resident(broker: Broker) -> dict[str, int]:
    """Resident bytes of each process, without the file pages it has mapped."""
    found = {}
    for role, pid in broker.pids().items():
        info = psutil.Process(pid).memory_info()
        found[role] = int(info.rss - info.shared)
    return found


def fuzz(broker: Broker, seed: int, count: int, connections: int | None = None) -> Fuzzed:
    """Sends ``count`` requests of ``Maker(seed)`` over a few connections at a time, and checks what must hold.

    The topic ``watched`` must hold one good message. Answers are read and dropped; a connection the broker closed is
    opened again, and what was sent behind the request it closed for is lost, so about a third of them is handled.
    """
    maker = Maker(seed)
    places = connections or 2 * (os.cpu_count() or 1)
    _send(broker, maker, min(count // 10, 2000), places)  # what is imported and allocated once is no growth
    pids = broker.pids()
    before = resident(broker)
    with Watch(broker, "watched"):
        opened = _send(broker, maker, count, places)
    assert broker.pids() == pids, f"seed {seed}: a process was replaced"
    assert all(broker.is_alive(role) for role in pids)
    growth = {role: size - before[role] for role, size in resident(broker).items()}
    assert max(growth.values()) <= 20 * MEGABYTE + KEPT_BYTES, f"seed {seed}: {growth}"
    assert " unexpected error" not in broker.log_text()
    return Fuzzed(count, opened, growth)


def _send(broker: Broker, maker: Maker, count: int, places: int) -> int:
    """Sends ``count`` frames and returns how many connections that took; a frame that was not read is sent no more."""
    sockets: list[socket.socket | None] = [None] * places
    opened = sent = 0
    try:
        while sent < count:
            place = maker.random.randrange(places)
            link = sockets[place]
            if link is None:
                link = sockets[place] = socket.create_connection(("127.0.0.1", broker.port), timeout=SECONDS_TO_ANSWER)
                opened += 1
            frames = [maker.frame() for _ in range(maker.random.choice([1, 1, 2, 5]))]
            sent += len(frames)
            if not _exchange(link, b"".join(frames), maker.random):
                link.close()
                sockets[place] = None
    finally:
        for left in sockets:
            if left is not None:
                left.close()
    return opened


def _exchange(link: socket.socket, data: bytes, source: random.Random) -> bool:
    """Sends bytes, whole or in two pieces, and reads what there is; False when the connection is of no more use."""
    try:
        link.settimeout(SECONDS_TO_ANSWER)
        cut = source.randrange(len(data) + 1) if source.random() < 0.2 else len(data)
        link.sendall(data[:cut])
        if cut < len(data):
            link.sendall(data[cut:])
        if source.random() < 0.3:
            return False  # also because one that was promised a long frame takes everything behind it for that
        link.settimeout(0)
        while link.recv(1 << 18):
            pass
    except BlockingIOError:
        return True
    except (ConnectionError, TimeoutError):
        return False
    return False


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with room for few partitions, since mutated names make new ones, and one known message."""
    settings = {"num.partitions": 4, "max.partitions": 64, "connections.max.idle.ms": 2000}
    with Broker(tmp_path_factory.mktemp("fuzzed"), settings=settings) as broker:
        with broker.connect() as client:
            assert client.produce_ack("watched", 0, GOOD, raw.FLUSHED).error == 0
            assert client.produce_ack("deaf", 0, raw.entry(bytes(800_000)) * 10, raw.FLUSHED).error == 0
        yield broker
        with broker.connect() as client:
            assert client.fetch_ok("watched", 0, 0, len(GOOD)) == GOOD
        assert broker.stop() == 0


def test_fuzzed_requests(fuzzed: Broker) -> None:
    """T-17, tier S: 80,000 random, mutated and structured requests sent, of which more than 20,000 are handled."""
    result = fuzz(fuzzed, seed=17, count=80_000)
    assert result.connections > 100


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_structured_request_is_answered_or_closed(fuzzed: Broker, data: st.DataObject) -> None:
    """One odd request and a good one behind it: the connection closes, or both have their answers and nothing else."""
    name = data.draw(st.sampled_from(NAMES) | st.text(max_size=5))
    numbers = st.sampled_from(INT32) | st.integers(-(2**31), 2**31 - 1)
    long_numbers = st.sampled_from(INT64) | st.integers(-(2**63), 2**63 - 1)
    fetch = raw.fetch_body(name, data.draw(numbers), data.draw(long_numbers), data.draw(numbers))
    tail = data.draw(st.binary(max_size=3))
    waits = struct.pack(">ii", data.draw(st.integers(-5, 20)), data.draw(numbers))
    cut = struct.pack(">qqi", data.draw(long_numbers), data.draw(long_numbers), data.draw(numbers))
    bodies = {
        raw.FETCH: fetch,
        raw.OFFSETS: fetch,
        raw.HELD_FETCH: waits + fetch,
        raw.METADATA: struct.pack(">i", data.draw(numbers)) + raw.text(name),
        raw.CUT_POINTS: fetch[:-4] + cut,
        raw.LOCAL_READ: raw.place(name, data.draw(numbers)),
    }
    kind = data.draw(st.sampled_from(sorted(bodies)))
    body = bodies[kind] + tail
    own = kind in KINDS_OWN
    request = raw.own_frame(kind, body, correlation=77) if own else raw.frame(kind, body)
    with fuzzed.connect() as client:
        client.send_raw(request + raw.fetch_frame("watched", 0, 0, len(GOOD)))
        try:
            if own:
                correlation, answer = client.recv_own()
                assert correlation == 77
                assert not tail or answer.error in (100, 107)
            else:
                client.recv_answer()
        except raw.ConnectionClosed:
            assert kind == raw.OFFSETS  # a count below 0 has no answer
            return
        assert client.recv_answer() == (0, GOOD)


# --- slow, silent and hasty clients ---


def test_slow_and_deaf_connections(fuzzed: Broker) -> None:
    """T-21, small: 200 that send a byte at a time and 20 that read nothing; others are served, memory stays, all go."""
    before = resident(fuzzed)
    request = raw.produce_frame("a", 0, GOOD)
    with ExitStack() as stack:
        slow = [stack.enter_context(fuzzed.connect()) for _ in range(200)]
        deaf = [stack.enter_context(fuzzed.connect()) for _ in range(20)]
        with Watch(fuzzed, "watched"):
            for client in deaf:
                with suppress(ConnectionError):  # closed already, on a machine that is slow itself
                    client.send_raw(raw.fetch_frame("deaf", 0, 0, MEGABYTE) * 10)
            for byte in request[:5]:
                for client in slow:
                    with suppress(ConnectionError):
                        client.send_raw(bytes([byte]))
                time.sleep(0.1)
            growth = {role: size - before[role] for role, size in resident(fuzzed).items()}
        assert sum(growth.values()) <= 220 * 32 * 1024, growth
        for client in slow:
            assert client.is_closed(20)
        for client in deaf:
            with pytest.raises(raw.ConnectionClosed):
                while True:
                    client.recv_answer()


def test_a_flood_of_connections(fuzzed: Broker) -> None:
    """T-22, small: connections that end at each byte of a request, by FIN or RST; no descriptor is left behind."""
    processors = [
        psutil.Process(pid) for role, pid in fuzzed.pids().items() if role.startswith(("processor", "acceptor"))
    ]
    request = raw.fetch_frame("watched", 0, 0, 100) + raw.own_frame(raw.METADATA, raw.metadata_body(None))
    with fuzzed.connect() as client:
        client.metadata([])  # the helper threads and their descriptors are there before counting
    descriptors = [process.num_fds() for process in processors]
    source = random.Random(22)
    with Watch(fuzzed, "watched"):
        for number in range(FLOOD_CONNECTIONS):
            link = socket.create_connection(("127.0.0.1", fuzzed.port), timeout=SECONDS_TO_ANSWER)
            with suppress(ConnectionError):
                link.sendall(request[: number % (len(request) + 1)])
                way = source.randrange(4)
                if way == 0:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif way == 1:
                    link.shutdown(socket.SHUT_WR)
            link.close()

    def settled() -> bool:
        return all(now.num_fds() <= then + 1 for now, then in zip(processors, descriptors, strict=True))

    wait_until("every descriptor is closed again", settled, 20)

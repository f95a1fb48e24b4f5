"""T-25: a broker that lies. The consumer raises what it declares, never hangs, and keeps its memory."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog._segment import pack
from fastlog.codecs import GZIP, SNAPPY, XERIAL_MAGIC, compress
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.errors import FastlogError
from fastlog.message import DeepLimits, encode_set
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.wire.fields import frame
from fastlog.wire.framing import FrameReader
from tests.harness.server import Server

SEED = 7
EXCHANGES = 2000
MOST_SECONDS = 20.0  # on a machine that does other things as well; alone it takes 4
MOST_GROWTH_BYTES = 150 * 2**20
SIZES = [-(2**31), -1, 0, 1, 2, 3, 2**20, 2**24, 2**31 - 1]


def bomb(levels: int) -> bytes:
    """A wrapper in a wrapper and so on, of a few hundred bytes, that inflates to 256 MiB at the innermost."""
    data = zlib.compress(bytes(2**28), wbits=31)
    for _ in range(levels):
        data = compress(GZIP, pack([data], GZIP))
    return pack([data], GZIP)


def claimed_snappy() -> bytes:
    """A snappy block whose preamble promises 4 GiB."""
    block = b"\xff\xff\xff\xff\x0f" + bytes(20)
    return pack([XERIAL_MAGIC + struct.pack(">iii", 1, 1, len(block)) + block], SNAPPY)


class HostileBroker(Server):
    """Answers each request with what the generator chooses, on any number of connections, until it is closed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._sets = [
            b"",
            pack([b"a", b"bc" * 50]),
            encode_set([b"x" * 30] * 20, GZIP),
            encode_set([b"x" * 30] * 20, SNAPPY),
            pack([b"cut"])[:-2],
            bomb(0),
            bomb(3),
            claimed_snappy(),
            pack([compress(GZIP, pack([b""] * 50_000))], GZIP),
            (2**31 - 1).to_bytes(4, "big") + b"\1\0" + bytes(50),
        ]
        self._lock = threading.Lock()
        self.answers = 0

    def serve(self, connection: socket.socket) -> None:
        """Answer requests, wrongly as a rule."""
        reader = FrameReader(2**20)
        while data := connection.recv(65536):
            reader.feed(data)
            for body in reader.frames():
                answer, stays = self._answer(body)
                connection.sendall(answer)
                if not stays:
                    return

    def _answer(self, body: bytes) -> tuple[bytes, bool]:
        """What is sent, and whether the connection stays open after it."""
        with self._lock:
            self.answers += 1
            honest = self._honest(rq.decode_request(body))
            choice = self._random.random()
            if choice < 0.35:
                return honest, True
            if choice < 0.60:
                return self._mutated(honest), True
            if choice < 0.75:
                return frame(self._random.randbytes(self._random.choice([2, 6, 22, 30, 300]))), True
            if choice < 0.90:
                size = self._random.choice(SIZES)
                rest = self._random.randbytes(self._random.choice([0, 1, 40, 70_000]))
                return struct.pack(">i", size) + rest, choice < 0.76
            return b"", choice > 0.99

    def _mutated(self, honest: bytes) -> bytes:
        body = bytearray(honest[4:])
        for _ in range(self._random.randrange(1, 4)):
            kind = self._random.randrange(3)
            at = self._random.randrange(len(body)) if body else 0
            if kind == 0 and body:
                body[at] = self._random.choice([0, 1, 0x7F, 0x80, 0xFF, self._random.randrange(256)])
            elif kind == 1:
                del body[at:]
            else:
                body[at:at] = self._random.randbytes(self._random.randrange(1, 9))
        return frame(bytes(body))

    def _honest(self, request: rq.Request) -> bytes:
        data = self._random.choice(self._sets)
        match request:
            case rq.FetchRequest():
                return rs.encode_fetch(self._random.choice([0, 0, 0, 1, -1, 77]), data)
            case rq.MultiFetchRequest():
                return rs.encode_multifetch(
                    rs.FetchAnswer(0, data) for _ in range(self._random.choice([2, 2, 0, 1, 3]))
                )
            case rq.HeldFetchRequest():
                watermark = self._random.choice([0, len(data), 2**63 - 1, -1])
                return rs.encode_held_fetch(
                    rs.HeldFetchAnswer(request.correlation_id, self._random.choice([0, 0, 0, 1]), watermark, 0, data)
                )
            case rq.OffsetsRequest():
                return rs.encode_offsets(0, [self._random.choice([0, 5, -1, 2**63 - 1])])
            case rq.LocalReadRequest():
                directory = self._random.choice(
                    ["/dev/t-0", "/proc/self/t-0", "t-0", "/tmp/../t-0", "\0/t-0", "/" * 4000]
                )
                bases = self._random.choice([(), (0,), (0, 1, 2), (-5, 0), (2**63 - 1,)])
                return rs.encode_local_read(
                    rs.LocalReadAnswer(request.correlation_id, 0, directory, "kafka-0.7", 0, 2**62, bases)
                )
            case rq.MetadataRequest():
                limit = self._random.choice([10**6, -1, 2**31 - 1])
                topics = (rs.TopicMetadata("t", 0, 1, (rs.PartitionMetadata(0, 0, 0, 0, 2**62),)),)
                return rs.encode_metadata(
                    rs.MetadataAnswer(request.correlation_id, 0, 0, "h", -1, limit, limit, limit, 1000, 1005, topics)
                )
        raise AssertionError(request)


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.slow
def test_a_broker_that_lies() -> None:
    """Every kind of call, thousands of answers: only fastlog's exceptions, in bounded time and memory."""
    generator = random.Random(SEED)
    limits = DeepLimits(max_inflated_bytes=2**22, max_messages=100_000)

    def first(found: object, most: int = 200_000) -> None:
        for number, _ in enumerate(found):  # type: ignore[call-overload]
            if number >= most:
                return

    raised: dict[str, int] = {}
    worked = 0
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = peak_bytes()
    started = time.monotonic()
    with HostileBroker(SEED) as hostile:
        while hostile.answers < EXCHANGES:
            with SimpleConsumer(
                "127.0.0.1",
                hostile.port,
                timeout=0.03,
                fetch_bytes=generator.choice([10, 1000, 10**6]),
                local=generator.choice(["off", "read", "map"]),
                limits=limits,
            ) as consumer:
                calls: list[Callable[[], object]] = [
                    lambda: list(consumer.fetch("t", 0, 0)),
                    lambda: consumer.fetch_numpy("t", 0, 0).to_arrow(),
                    lambda: consumer.fetch("t", 0, 0, wait=0.02).payloads(),
                    lambda: [part.payloads() for part in consumer.multifetch([("t", 0, 0), ("t", 0, 5)])],
                    lambda: consumer.get_offsets_before("t", 0, LATEST, 10),
                    lambda: first(consumer.messages("t", 0, EARLIEST)),
                    lambda: first(consumer.batches("t", 0, 0, wait=0.01), 50),
                    lambda: first(consumer.numpy_batches("t", 0, 0), 50),
                ]
                for _ in range(6):
                    call_started = time.monotonic()
                    try:
                        generator.choice(calls)()
                        worked += 1
                    except FastlogError as error:
                        raised[type(error).__name__] = raised.get(type(error).__name__, 0) + 1
                    assert time.monotonic() - call_started < 5
        seconds = time.monotonic() - started
    assert worked > 20
    assert {"ProtocolError", "TransportError", "InvalidMessageError", "OffsetOutOfRangeError"} <= set(raised), raised
    assert seconds < MOST_SECONDS
    assert peak_bytes() - before < MOST_GROWTH_BYTES

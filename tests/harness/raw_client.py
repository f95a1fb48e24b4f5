"""A second, independent client for the broker: plain sockets, the standard library, nothing of fastlog.

:class:`RawClient` sends bytes and reads answers with time limits. Everything of ``raw_wire`` (requests and answers as
bytes) and ``raw_format`` (entries, message sets, codecs) can be imported from here too.
"""

# ruff: noqa: F403, F405 - tests import everything they need from here

from __future__ import annotations

import errno
import fcntl
import itertools
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from tests.harness.raw_format import *
from tests.harness.raw_wire import *
from tests.harness.timing import PATIENCE


class ConnectionClosed(Exception):
    """The broker ended the connection where an answer was expected."""


class RawClient:
    """One connection; every wait ends after ``timeout`` seconds with ``TimeoutError``. For one thread."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout: float = PATIENCE) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlations = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def wait_received(self, within: float = PATIENCE) -> None:
        """Returns once the broker, on this machine, has taken all that was sent out of the kernel."""
        port = self.socket.getsockname()[1]
        deadline = time.monotonic() + within
        while queued := _queued(port):
            assert time.monotonic() < deadline, f"{queued} bytes were not received within {within} s"
            time.sleep(0.001)

    def finish_sending(self) -> None:
        """Half-closes: the broker sees the end of what was sent, answers can still come. It may have closed already."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise

    def recv_exactly(self, size: int) -> bytes:
        """Raises ConnectionClosed when the broker ends the connection first."""
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.socket.recv(min(size - len(data), 1 << 20))
            except (ConnectionResetError, BrokenPipeError) as error:
                raise ConnectionClosed(str(error)) from error
            if not piece:
                raise ConnectionClosed(f"{len(data)} of {size} bytes came")
            data += piece
        return bytes(data)

    def recv_frame(self) -> bytes:
        """What follows the size of the next answer."""
        (size,) = struct.unpack(">i", self.recv_exactly(4))
        return self.recv_exactly(size)

    def recv_answer(self) -> Answer:
        """The next answer to one of 0.7's requests."""
        data = self.recv_frame()
        return Answer(struct.unpack_from(">h", data)[0], data[2:])

    def recv_own(self) -> tuple[int, Answer]:
        """The next answer to one of fastlog's own requests, after its correlation id."""
        data = self.recv_frame()
        correlation, error = struct.unpack_from(">ih", data)
        return correlation, Answer(error, data[6:])

    def is_closed(self, within: float = PATIENCE) -> bool:
        """True when the broker ends the connection without a further byte; False when it stays open that long."""
        before = self.socket.gettimeout()
        self.socket.settimeout(within)
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True
        finally:
            self.socket.settimeout(before)
        assert data == b"", f"unexpected bytes {data[:64].hex()}"
        return True

    def ask(self, request: bytes) -> Answer:
        self.send_raw(request)
        return self.recv_answer()

    def ask_own(self, kind: int, body: bytes, version: int = 1) -> Answer:
        correlation = next(self._correlations)
        self.send_raw(own_frame(kind, body, version=version, correlation=correlation))
        got, answer = self.recv_own()
        assert got == correlation, f"correlation id {got}, sent {correlation}"
        return answer

    # Kafka 0.7

    def produce(self, topic: str | bytes, partition: int, messages: bytes) -> None:
        self.send_raw(produce_frame(topic, partition, messages))

    def fetch(self, topic: str | bytes, partition: int, offset: int, max_bytes: int = 1 << 20) -> Answer:
        return self.ask(fetch_frame(topic, partition, offset, max_bytes))

    def multifetch(self, parts: Sequence[tuple[str, int, int, int]]) -> list[Answer]:
        answer = self.ask(multifetch_frame(parts))
        assert answer.error == 0
        return decode_multifetch(answer.body)

    def offsets(self, topic: str | bytes, partition: int, when: int = LATEST, max_count: int = 10) -> list[int]:
        answer = self.ask(offsets_frame(topic, partition, when, max_count))
        assert answer.error == 0, f"OFFSETS answered error {answer.error}"
        return decode_offsets(answer.body)

    def wait_visible(self, topic: str, partition: int, end: int, within: float = PATIENCE) -> None:
        """Returns once the visible end is ``end``; an empty fetch asks for a flush, as a consumer does."""
        deadline = time.monotonic() + within
        while (seen := self.offsets(topic, partition, LATEST, 1)[0]) < end:
            assert time.monotonic() < deadline, f"{topic}-{partition}: visible end {seen}, expected {end}"
            self.fetch(topic, partition, seen, 1)
            time.sleep(0.001)
        assert seen == end, f"{topic}-{partition}: visible end {seen}, expected {end}"

    def read_all(self, topic: str, partition: int, start: int = 0, max_bytes: int = 1 << 20) -> bytes:
        """The whole entries from ``start`` to the visible end, fetched as a 0.7 consumer does."""
        parts = []
        offset = start
        while body := self.fetch_ok(topic, partition, offset, max_bytes):
            found = entries(body, offset)
            assert found, f"no whole message in {len(body)} bytes at {offset}"
            parts.append(body[: found[-1].next_offset - offset])
            offset = found[-1].next_offset
        return b"".join(parts)

    def fetch_ok(self, topic: str, partition: int, offset: int, max_bytes: int = 1 << 20) -> bytes:
        answer = self.fetch(topic, partition, offset, max_bytes)
        assert answer.error == 0, f"FETCH answered error {answer.error}"
        return answer.body

    # fastlog's own requests

    def produce_ack(
        self,
        topic: str | bytes,
        partition: int,
        messages: bytes,
        acks: int = APPENDED,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> Appended:
        answer = self.ask_own(PRODUCE_ACK, produce_ack_body(topic, partition, messages, acks, producer))
        return Appended(answer.error, *struct.unpack(">iqq", answer.body))

    def held_fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        max_wait_ms: int = 1000,
        min_bytes: int = 1,
    ) -> Held:
        body = held_fetch_body(topic, partition, offset, max_bytes, max_wait_ms, min_bytes)
        return decode_held(self.ask_own(HELD_FETCH, body))

    def metadata(self, topics: Sequence[str | bytes] | None = None) -> Metadata:
        answer = self.ask_own(METADATA, metadata_body(topics))
        assert answer.error == 0, f"METADATA answered error {answer.error}"
        return decode_metadata(answer.body)

    def log_end(self, topic: str, partition: int) -> int:
        """Where the next append goes, visible or not; 0 when the partition does not exist."""
        state = self.metadata([topic]).topics[topic].partitions.get(partition)
        return state.log_end if state else 0

    def cut_points(
        self, topic: str, partition: int, start: int, end: int, step_bytes: int, max_points: int = 1000
    ) -> tuple[int, list[int]]:
        answer = self.ask_own(CUT_POINTS, cut_points_body(topic, partition, start, end, step_bytes, max_points))
        return answer.error, decode_offsets(answer.body) if answer.error == 0 else []

    def local_read(self, topic: str, partition: int) -> LocalLog:
        error, body = self.ask_own(LOCAL_READ, place(topic, partition))
        if error:
            return LocalLog(error, "", "", -1, -1, [])
        reader = Reader(body)
        directory, log_format = reader.string(), reader.string()
        start, watermark, count = reader.take("qqi")
        log = LocalLog(0, directory, log_format, start, watermark, list(reader.take(f"{count}q")))
        reader.finish()
        return log

    def create_topic(self, topic: str | bytes, partitions: int = 0) -> tuple[int, int]:
        """Error code and number of partitions (-1 with an error)."""
        error, body = self.ask_own(CREATE_TOPIC, place(topic, partitions))
        return error, struct.unpack(">i", body)[0] if body else -1

    def delete_topic(self, topic: str | bytes) -> tuple[int, int]:
        """Error code and number of partitions that were deleted (-1 with an error)."""
        error, body = self.ask_own(DELETE_TOPIC, text(topic))
        return error, struct.unpack(">i", body)[0] if body else -1


def connect(port: int, host: str = "127.0.0.1", timeout: float = PATIENCE) -> RawClient:
    """A connection to the broker at ``port``."""
    return RawClient(port, host, timeout)


def batches(items: Iterable[bytes], size: int) -> Iterable[list[bytes]]:
    """``items`` in lists of at most ``size``."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def unacknowledged(sender: socket.socket) -> int:
    """Bytes that were sent and have not arrived; of a local socket, about how many were not received."""
    return int.from_bytes(fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def _queued(port: int) -> int:
    """Bytes from the client at ``port`` that the kernel still holds, for either side."""
    total = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        unacknowledged, unread = (int(text, 16) for text in fields[4].split(":"))
        if fields[1].endswith(f":{port:04X}"):
            total += unacknowledged
        elif fields[2].endswith(f":{port:04X}"):
            total += unread
    return total

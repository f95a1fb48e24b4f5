"""A broker of today's protocol to write to: it keeps to the rules of numbers, and says what a test wants.

Like an Apache Kafka it ends a connection at anything else, fastlog's own requests among them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

from fastlog import record_batches
from fastlog.record_batches import BatchHeader, Record
from tests.harness.server import Server

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER, DESCRIBE_CONFIGS = 0, 3, 18, 22, 32
OUT_OF_ORDER, FENCED = 45, 47
_KNOWN = 5


class Produced(NamedTuple):
    """A Produce request that was received."""

    number: int
    acks: int
    topic: str
    partition: int
    batch: bytes

    @property
    def header(self) -> BatchHeader:
        """The header of the batch."""
        return BatchHeader.parse(self.batch)

    @property
    def records(self) -> list[Record]:
        """Those of the batch, whose checksum and form are looked at."""
        return list(record_batches.records(self.batch))


Script = Callable[[Produced], int | bytes | None]
"""An error code, or an answer in place of the right one; None: the right one. ``ConnectionError`` ends all."""


class FakeKafka(Server):
    """Has one topic, ``t``. ``before`` is asked before a batch is stored, ``after`` between that and the answer."""

    def __init__(self, partitions: int = 1, before: Script | None = None, after: Script | None = None) -> None:
        super().__init__()
        self.partitions = partitions
        self.before = before
        self.after = after
        self.logs: dict[int, list[Record]] = {}
        self.requests: list[Produced] = []
        self.connections = 0
        self.ids = 0
        self.id_code = 0
        """The error code that is answered to whoever asks for an id."""
        self.id_given: tuple[int, int] | None = None
        """The id and the epoch that are given out; without it, each time another one."""
        self.settings_code = 0
        self.topic_code = 0
        self.max_batch_bytes = 1_000_000
        self._last: dict[tuple[int, int], tuple[int, list[tuple[int, int, int]]]] = {}
        self._lock = threading.Lock()

    def serve(self, connection: socket.socket) -> None:
        """Answer one request after the other."""
        with self._lock:
            self.connections += 1
        with contextlib.suppress(ConnectionError):
            while head := connection.recv(4, socket.MSG_WAITALL):
                body = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
                key, version, number, client = struct.unpack_from(">hhih", body)
                answer = self._answer(key, version, number, body[10 + client :])
                if answer:
                    connection.sendall(answer)

    def values(self, partition: int = 0) -> list[bytes | None]:
        """The values of the records that a partition has."""
        return [record.value for record in self.logs.get(partition, [])]

    def forget(self) -> None:
        """Know no producer any more. Also for scripts."""
        self._last.clear()

    def _answer(self, key: int, version: int, number: int, body: bytes) -> bytes:
        head = struct.pack(">i", number)
        if (key, version) == (API_VERSIONS, 0):
            return sized(head + struct.pack(">hi", 0, 1) + struct.pack(">hhh", PRODUCE, 0, 9))
        if (key, version) == (METADATA, 12):
            return sized(head + b"\0" + self._metadata())
        if (key, version) == (DESCRIBE_CONFIGS, 1):
            return sized(head + self._settings())
        if (key, version) == (INIT_PRODUCER, 0):
            with self._lock:
                self.ids += 1
                return sized(head + struct.pack(">ihqh", 0, self.id_code, *(self.id_given or (1000 + self.ids, 0))))
        if (key, version) == (PRODUCE, 7):
            return self._produced(number, body)
        raise ConnectionError

    def _metadata(self) -> bytes:
        rows = b"".join(
            struct.pack(">hiii", 0, number, 0, 0) + b"\x02\0\0\0\0" * 2 + b"\x01" + b"\0"
            for number in range(self.partitions)
        )
        shown = b"\x01" if self.topic_code else bytes([self.partitions + 1]) + rows
        topic = struct.pack(">h", self.topic_code) + b"\x02t" + bytes(16) + b"\0" + shown + struct.pack(">i", 0) + b"\0"
        return struct.pack(">i", 0) + b"\x01" + b"\x02c" + struct.pack(">i", 0) + b"\x02" + topic + b"\0"

    def _settings(self) -> bytes:
        value = str(self.max_batch_bytes).encode()
        row = string(b"max.message.bytes") + string(value) + b"\0\x05\0" + struct.pack(">i", 0)
        rows = struct.pack(">i", 0 if self.settings_code else 1) + (b"" if self.settings_code else row)
        return struct.pack(">iih", 0, 1, self.settings_code) + string(b"") + b"\x02" + string(b"t") + rows

    def _produced(self, number: int, body: bytes) -> bytes:
        _transaction, acks, _timeout, topics, size = struct.unpack_from(">hhiih", body)
        topic = body[14 : 14 + size].decode()
        partitions, partition, length = struct.unpack_from(">iii", body, 14 + size)
        batch = body[26 + size :]
        assert (topics, partitions, length) == (1, 1, len(batch))
        request = Produced(number, acks, topic, partition, batch)
        with self._lock:
            self.requests.append(request)
            said = self.before(request) if self.before is not None else None
            code, offset = (said, -1) if isinstance(said, int) else self._store(request)
            if said is None and self.after is not None:
                said = self.after(request)
        if isinstance(said, bytes):
            return said
        return answer(request, code, offset) if acks else b""

    def _store(self, request: Produced) -> tuple[int, int]:
        header, log = request.header, self.logs.setdefault(request.partition, [])
        found = request.records
        offset = len(log)
        if header.producer_id >= 0:
            place = request.partition, header.producer_id
            epoch, known = self._last.get(place, (header.producer_epoch, []))
            if header.producer_epoch < epoch:
                return FENCED, -1
            if header.producer_epoch > epoch:
                known = []
                if header.base_sequence:
                    return OUT_OF_ORDER, -1
            for first, count, at in known[-_KNOWN:]:
                if (first, count) == (header.base_sequence, len(found)):
                    return 0, at
            if known and header.base_sequence != known[-1][0] + known[-1][1]:
                return OUT_OF_ORDER, -1
            self._last[place] = header.producer_epoch, [*known, (header.base_sequence, len(found), offset)]
        log += found
        return 0, offset


def answer(
    request: Produced,
    code: int = 0,
    offset: int = 0,
    *,
    number: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> bytes:
    """What is answered to a Produce request, or is not."""
    name = string((request.topic if topic is None else topic).encode())
    place = request.partition if partition is None else partition
    return sized(
        struct.pack(">ii", request.number if number is None else number, 1)
        + name
        + struct.pack(">iihqqqi", 1, place, code, offset, -1, 0, 0)
    )


def sized(data: bytes) -> bytes:
    """Data with its size before it: a frame."""
    return struct.pack(">i", len(data)) + data


def string(data: bytes) -> bytes:
    """A string as today's protocol encodes it."""
    return struct.pack(">h", len(data)) + data

"""What the processes of ``scripts/demo-clients`` do: one producer of a kind, or one reader of a mode.

Each talks to the demo over a pipe: a producer sends its ``Published``, a reader a ``Pass`` whenever it has read
everything there was. What goes wrong comes as one line of text instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from fastlog import Producer, SimpleConsumer
from fastlog.consumer.fetched import NumpyBatch
from fastlog.producer import Delivery

PARTITIONS = 4
SLICE_LINES = 25
MESSAGES_AT_ONCE = 4096
FETCH_BYTES = 128 * 1024
PAUSE_SECONDS = 0.05
PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


class Kind(NamedTuple):
    """A way to publish."""

    name: str
    producer_type: str
    compression: str
    acks: str


KINDS = (
    Kind("sync", "sync", "none", "appended"),
    Kind("async", "async", "none", "appended"),
    Kind("gzip", "async", "gzip", "flushed"),
    Kind("snappy", "async", "snappy", "flushed"),
)


class Ack(NamedTuple):
    """One answer of the broker: where the messages of one request lie."""

    partition: int
    offset: int
    next_offset: int
    messages: int


class Published(NamedTuple):
    """What a producer sent and was told. Times are those of the monotonic clock, in seconds."""

    lines: int
    began: float
    ended: float
    connections: int
    possible_duplicates: int
    acks: list[Ack]


class Digest(NamedTuple):
    """What was read of one partition from its start: equal digests mean equal messages at equal offsets."""

    lines: int
    payloads: str
    positions: str | None
    """None where the mode gives payloads alone."""
    next_offset: int | None


class Pass(NamedTuple):
    """One reading of everything there was, from the first offset of every partition on."""

    began: float
    ended: float
    found: dict[tuple[str, int], Digest]
    remark: str
    """What was not as it should be, though the messages were."""


class Digester:
    """Takes messages in order, in runs of any length, and says what they were."""

    def __init__(self) -> None:
        self._lines = 0
        self._payloads = hashlib.blake2b(digest_size=16)
        self._lengths = hashlib.blake2b(digest_size=16)
        self._positions: tuple[hashlib.blake2b, hashlib.blake2b] | None = (hashlib.blake2b(), hashlib.blake2b())
        self._next_offset: int | None = 0

    def add(
        self,
        payloads: bytes | memoryview,
        lengths: Iterable[int] | np.ndarray,
        offsets: Iterable[int] | np.ndarray | None = None,
        next_offsets: Iterable[int] | np.ndarray | None = None,
    ) -> None:
        """Take a run of messages; without offsets the digest will have none."""
        counted = _int64(lengths)
        if not len(counted):
            return
        self._lines += len(counted)
        self._payloads.update(payloads)
        self._lengths.update(counted.data)
        if offsets is None or next_offsets is None or self._positions is None:
            self._positions = self._next_offset = None
            return
        following = _int64(next_offsets)
        self._positions[0].update(_int64(offsets).data)
        self._positions[1].update(following.data)
        self._next_offset = int(following[-1])

    def digest(self) -> Digest:
        """The digest of what has been added so far."""
        positions = None
        if self._positions is not None:
            positions = self._positions[0].hexdigest() + self._positions[1].hexdigest()
        payloads = self._payloads.hexdigest() + self._lengths.hexdigest()
        return Digest(self._lines, payloads, positions, self._next_offset)


def _int64(values: Iterable[int] | np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values if isinstance(values, np.ndarray) else list(values), dtype="<i8")


def key_of(line: bytes) -> bytes:
    """The client's address: the first field of a line of an access log."""
    return line.split(b" ", 1)[0]


# --- publishing ---


def publish(address: str, kind: Kind, topic: str, lines: list[bytes], rate: int, pipe: Connection) -> None:
    """Send the lines over and over, at most ``rate`` of them a second.

    Says None when it is ready, begins at a word over the pipe, and ends at the next one, once each line was sent.
    """
    with _reporting(pipe):
        pipe.send(None)
        pipe.recv()
        pipe.send(_published(address, kind, topic, lines, rate, pipe))


def _published(address: str, kind: Kind, topic: str, lines: list[bytes], rate: int, pipe: Connection) -> Published:
    deliveries: list[Delivery] = []
    is_async = kind.producer_type == "async"
    with Producer(
        address,
        producer_type=kind.producer_type,
        compression=kind.compression,
        acks=kind.acks,
        on_delivery=deliveries.append if is_async else None,
        batch_messages=SLICE_LINES,
        queue_time_ms=5,
        # A connection is only replaced because it broke; so what is counted are breaks.
        reconnect_interval_sends=None,
        reconnect_time_interval_ms=None,
    ) as producer:
        sent = 0
        began = time.monotonic()
        endless = itertools.cycle((line, key_of(line)) for line in lines)
        while sent < len(lines) or not pipe.poll():
            for line, key in itertools.islice(endless, min(SLICE_LINES, max(1, len(lines) - sent % len(lines)))):
                done = producer.send(topic, line, key=key)
                if not is_async:
                    deliveries += done
                sent += 1
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))
        producer.flush()
        ended = time.monotonic()
        stats = producer.stats()
    acks = [Ack(each.partition, each.offset, each.next_offset, each.messages) for each in deliveries]
    return Published(sent, began, ended, stats.connections, stats.possible_duplicates, acks)


# --- reading ---


def read(address: tuple[str, int], mode: str, topics: list[str], pipe: Connection) -> None:
    """Read everything again and again, and report each time."""
    with _reporting(pipe), SimpleConsumer(*address, local="read" if mode == "local" else "off") as consumer:
        while True:
            began = time.monotonic()
            found = {}
            remark = ""
            for topic in topics:
                for partition in range(PARTITIONS):
                    digester = Digester()
                    MODES[mode](consumer, topic, partition, digester)
                    found[topic, partition] = digester.digest()
                    if mode == "local" and found[topic, partition].lines:
                        source, why = consumer.source_of(topic, partition)
                        remark = remark or (f"read over the {source}: {why}" if source != "read" else "")
            pipe.send(Pass(began, time.monotonic(), found, remark))
            time.sleep(PAUSE_SECONDS)


def _as_messages(consumer: SimpleConsumer, topic: str, partition: int, into: Digester) -> None:
    messages = consumer.messages(topic, partition, fetch_bytes=FETCH_BYTES)
    while some := list(itertools.islice(messages, MESSAGES_AT_ONCE)):
        payloads = [message.payload for message in some]
        into.add(
            b"".join(payloads),
            map(len, payloads),
            (message.offset for message in some),
            (message.next_offset for message in some),
        )


def _as_lists(consumer: SimpleConsumer, topic: str, partition: int, into: Digester) -> None:
    for payloads in consumer.batches(topic, partition, fetch_bytes=FETCH_BYTES):
        into.add(b"".join(payloads), map(len, payloads))


def _as_numpy(consumer: SimpleConsumer, topic: str, partition: int, into: Digester) -> None:
    for batch in consumer.numpy_batches(topic, partition, fetch_bytes=FETCH_BYTES):
        into.add(_joined(batch), batch.lengths, batch.offsets, batch.next_offsets)


def _joined(batch: NumpyBatch) -> bytes:
    return b"".join(batch.payload(number) for number in range(len(batch)))


def _as_arrow(consumer: SimpleConsumer, topic: str, partition: int, into: Digester) -> None:
    offset = 0
    while len(batch := consumer.fetch_arrow(topic, partition, offset, FETCH_BYTES)):
        column = batch.column("payload")
        _, ends, data = column.buffers()
        limits = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
        next_offsets = batch.column("next_offset").to_numpy()
        into.add(
            memoryview(data)[limits[0] : limits[-1]], np.diff(limits), batch.column("offset").to_numpy(), next_offsets
        )
        offset = int(next_offsets[-1])


def _as_local(consumer: SimpleConsumer, topic: str, partition: int, into: Digester) -> None:
    offset = 0
    while fetched := consumer.fetch(topic, partition, offset, FETCH_BYTES):
        some = list(fetched)
        payloads = [message.payload for message in some]
        into.add(
            b"".join(payloads),
            map(len, payloads),
            (message.offset for message in some),
            (message.next_offset for message in some),
        )
        offset = fetched.next_offset


MODES: dict[str, Callable[[SimpleConsumer, str, int, Digester], None]] = {
    "messages": _as_messages,
    "lists": _as_lists,
    "numpy": _as_numpy,
    "arrow": _as_arrow,
    "local": _as_local,
}


# --- the process ---


@contextlib.contextmanager
def _reporting(pipe: Connection) -> Iterator[None]:
    """Inside, a process belongs to the demo: it goes with it, and its errors are the demo's to show."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the demo ends us itself
    try:
        yield
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {' '.join(str(error).split())}")

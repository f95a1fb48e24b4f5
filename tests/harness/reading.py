"""The reading half of a group's consumer without a group: the test does what the group's worker would do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from fastlog._segment import scan
from fastlog.client.addresses import Address
from fastlog.consumer._delivery import GroupMessage, Place
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.feed import Jump, PartitionState
from fastlog.consumer.fetchers import Fetchers
from fastlog.consumer.partitions import Claim, Lease, TopicPartition
from fastlog.consumer.reader import Chunk
from fastlog.consumer.stream import Stream
from fastlog.zkpaths import PartitionId
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE

SEVERAL = [b"message %03d" % number for number in range(100)]


def source_of(number: int = 0, topic: str = "t", broker: int = 0) -> TopicPartition:
    """A partition of a topic."""
    return TopicPartition(topic, PartitionId(broker, number))


def held_lease(seconds: float = 60.0) -> Lease:
    """A lease that holds for ``seconds``."""
    lease = Lease(seconds)
    lease.extend(Lease.now())
    return lease


class Reading:
    """Streams by name, fed from brokers. ``options`` are those of every stream, the others fields of the settings."""

    def __init__(self, *, options: dict[str, Any] | None = None, **fields: Any) -> None:
        self.config = ConsumerConfig(**{"zk_connect": "nowhere:1", "group_id": "g", "local": "off", **fields})
        self.lease = held_lease()
        self.jumps: list[Jump] = []
        self.streams: dict[str, Stream] = {}
        self._options = options or {}
        self.fetchers = Fetchers(self.config, lambda topic, thread: self.stream(thread), self.jumps.append)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams.values():
            stream.end()
        self.fetchers.close()

    def stream(self, name: str = "a") -> Stream:
        """The stream of a thread; made when it is first asked for."""
        if name not in self.streams:
            self.streams[name] = Stream(name, self.lease, **self._options)
        return self.streams[name]

    def own(
        self, port: int, number: int = 0, offset: int | None = 0, *, stream: str = "a", broker: int = 0, log: int = 0
    ) -> TopicPartition:
        """Own a partition of the topic ``t`` from now on."""
        source = source_of(number, broker=broker)
        self.fetchers.acquire({source: Claim(stream, Address("127.0.0.1", port), offset, log)})
        return source

    def state(self, source: TopicPartition) -> PartitionState:
        """The state of one partition."""
        return self.fetchers.states()[source]


class FixedStream(Stream):
    """Hands out the chunks it is given, of one place."""

    def __init__(self, chunks: list[bytes], *, start: int = 0, **options: Any) -> None:
        super().__init__("fixed", options.pop("lease", None) or held_lease(), **options)
        self.own_place = Place(source_of(), start, by_hand=self.acknowledge)
        self.errors: list[Exception] = []
        self._chunks = chunks
        self._at = start

    def _next_chunk(self, timeout: float) -> bool:
        if not self._chunks or self.own_place.is_over:
            return False
        data = self._chunks.pop(0)
        self.begin_chunk(self.own_place, Chunk(self._at, memoryview(data), scan(data)), self._at, self._at + len(data))
        self._at += len(data)
        return True

    def _stopped(self, place: Place, error: Exception) -> None:
        assert place is self.own_place
        self.errors.append(error)


def fetching_threads() -> list[threading.Thread]:
    """The threads that fetch for streams now."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("fastlog-fetch")]


def wait_until(condition: Any, seconds: float = PATIENCE) -> None:
    """Look every few milliseconds; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.002)


@contextmanager
def served(*logs: bytes, **options: object) -> Iterator[FakeBroker]:
    """A broker whose topic ``t`` has these logs as partitions."""
    fake = FakeBroker(partitions=len(logs), **options)  # type: ignore[arg-type]
    for number, data in enumerate(logs):
        fake.logs["t", number] = data
    with fake:
        yield fake


def take(stream: Stream, count: int, seconds: float = 10.0) -> list[bytes]:
    """So many payloads; fails when one takes too long."""
    found = []
    for _ in range(count):
        message = stream.poll(seconds)
        assert isinstance(message, GroupMessage), message
        found.append(message.payload)
    return found

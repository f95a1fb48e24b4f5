"""A connection that speaks today's protocol, and what tests send and find on it."""

from __future__ import annotations

import struct
import uuid
from typing import Any

from fastlog import record_batches
from fastlog.log.manager import LogManager
from fastlog.record_batches import Record
from fastlog.workers.kafka import kinds
from tests.harness import today
from tests.harness.workers import Workers

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ZSTD = 4
EARLIEST, LATEST, LARGEST, EARLIEST_HERE, LATEST_ELSEWHERE = -2, -1, -3, -4, -5
RECORDS = [Record(b"k", b"one", 1000, ((b"h", b"x"), (b"n", None))), Record(None, None, 3000), Record(b"", b"", 2000)]


def each(key: int) -> list[int]:
    api = kinds.APIS[key]
    return list(range(api.served, api.last + 1))


class Client:
    """A connection that speaks today's protocol."""

    def __init__(self, workers: Workers, processor: int = 0) -> None:
        self.raw = workers.connect(processor)
        self.socket = self.raw.socket
        self.ask(today.API_VERSIONS, 0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        return today.asked(self.socket, key, version, **fields)

    def make(self, *topics: str) -> list[Any]:
        """Have topics made as clients do, by asking for them; what is said of each."""
        fields = {
            "topics": [{"topic_id": None, "name": topic} for topic in topics],
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": False,
        }
        return list(self.ask(today.METADATA, 12, **fields).topics)

    def produce(self, *parts: tuple[str, int, bytes | None], version: int = 9, **fields: Any) -> list[Any]:
        """What is said of each part, in the order of the request."""
        found = self.ask(today.PRODUCE, version, **today.produced(*parts, **fields))
        return [part for topic in found.responses for part in topic.partition_responses]

    def fetch(self, *parts: tuple[str, int, int], version: int = 12, **fields: Any) -> list[Any]:
        found = self.ask(today.FETCH, version, **today.fetched(*parts, **fields))
        return [part for topic in found.responses for part in topic.partitions]

    def offset(self, topic: str, partition: int, when: int, version: int = 7, epoch: int = -1) -> Any:
        found = self.ask(today.LIST_OFFSETS, version, **today.listed((topic, partition, when), epoch=epoch))
        return found.topics[0].partitions[0]


def batch(*values: bytes, codec: int = 0, time_ms: int = 1000) -> bytes:
    return record_batches.build([Record(None, value, time_ms) for value in values], codec=codec)


def values_of(part: Any) -> list[tuple[int, bytes | None]]:
    """Offsets and values of the records that a part of a fetch got."""
    found = []
    for _, data in record_batches.batches(bytes(part.records or b"")):
        found += [(record.offset, record.value) for record in record_batches.records(bytes(data))]
    return found


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def rewritten(data: bytes, at: int, layout: str, value: int) -> bytes:
    """A batch with another value in its head, and the checksum of that."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, value)
    struct.pack_into(">I", changed, 17, record_batches.crc32c(bytes(changed[21:])))
    return bytes(changed)


REFUSED: dict[str, tuple[bytes, int]] = {
    "none": (b"", 87),
    "half of it": (batch(b"x" * 100)[:-1], 2),
    "less than a head": (batch(b"x")[:60], 2),
    "two batches": (batch(b"x") * 2, 87),
    "magic 1": (batch(b"x")[:16] + b"\1" + batch(b"x")[17:], 87),
    "another checksum": (damaged(batch(b"x"), 18), 2),
    "no record": (rewritten(batch(b"x"), 57, ">i", 0), 87),
    "more records than offsets": (rewritten(batch(b"x"), 57, ">i", 2), 87),
    "a record too few": (rewritten(rewritten(batch(b"x", b"y"), 57, ">i", 3), 23, ">i", 2), 87),
    "a codec that nobody has": (rewritten(batch(b"x"), 21, ">h", 7), 87),
    "a control batch": (rewritten(batch(b"x"), 21, ">h", 0x20), 87),
    "a producer below -1": (rewritten(batch(b"x"), 43, ">q", -2), 87),
    "a producer without an epoch": (rewritten(rewritten(batch(b"x"), 43, ">q", 7), 53, ">i", 0), 87),
    "a producer without numbers": (rewritten(rewritten(batch(b"x"), 43, ">q", 7), 51, ">h", 0), 87),
    "the broker's time": (rewritten(batch(b"x"), 21, ">h", 8), 32),
    "records that are not gzip": (rewritten(batch(b"x"), 21, ">h", 1), 87),
    "larger than a batch may be": (batch(bytes(1_048_588)), 10),
    "a bomb": (batch(bytes(1 << 22), bytes(1 << 22), codec=1), 10),
}


def make_with(workers: Workers, topic: str, **settings: Any) -> None:
    """A topic with one partition and settings of its own."""
    config = workers.processors[0].config
    LogManager(config, workers.arena).create_partition(
        topic,
        0,
        format_name="record-batches",
        topic_id=uuid.uuid4().bytes,
        settings=config.for_topic(topic)._replace(**settings),
    )


def filled(client: Client, topic: str, count: int, *, size: int = 100, partition: int = 0) -> None:
    """Batches of one record, so many in all."""
    client.make(topic)
    while (have := client.offset(topic, partition, LATEST).offset) < count:
        client.produce((topic, partition, batch(b"%d" % have * (size // len(b"%d" % have)))), acks=-1)

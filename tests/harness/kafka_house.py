"""Log directories of an Apache Kafka, written by hand: what its broker, its controller and its storage tool leave.

The bytes come from Kafka's own descriptions, and nothing here imports what is tested.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.harness import raw_batches
from tests.harness.raw_batches import Batch
from tests.harness.raw_records import Record, encode

CLUSTER_ID = "hONG4FNSQoucRNqmyHyQpw"
TIME_MS = 1_700_000_000_000
TRANSACTIONAL, CONTROL = 16, 32


def uuid_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data)[:22].decode()


def topic_id_of(name: str) -> bytes:
    return (name.encode() * 16)[:16]


# -- records of the metadata log ---------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def text(value: str | None) -> bytes:
    return b"\0" if value is None else varint(len(value.encode()) + 1) + value.encode()


def ints(values: Sequence[int]) -> bytes:
    return varint(len(values) + 1) + b"".join(struct.pack(">i", value) for value in values)


def frame(kind: int, version: int, body: bytes, tags: dict[int, bytes] | None = None) -> bytes:
    tagged = b"".join(varint(tag) + varint(len(data)) + data for tag, data in (tags or {}).items())
    return bytes([1, kind, version]) + body + varint(len(tags or {})) + tagged


def topic_record(name: str, topic_id: bytes) -> bytes:
    return frame(2, 0, text(name) + topic_id)


def partition_record(
    topic_id: bytes, number: int, *, replicas: Sequence[int] = (1,), in_sync: Sequence[int] | None = None,
    leader: int = 1, epoch: int = 0, version: int = 1, directory: bytes = bytes(range(16))
) -> bytes:  # fmt: skip
    body = struct.pack(">i", number) + topic_id + ints(replicas) + ints(replicas if in_sync is None else in_sync)
    body += ints([]) + ints([]) + struct.pack(">iii", leader, epoch, 0)
    if version >= 1:
        body += varint(len(replicas) + 1) + directory * len(replicas)
    return frame(3, version, body)


def change_record(topic_id: bytes, number: int, **tags: bytes) -> bytes:
    """``in_sync``, ``leader`` and ``replicas`` are bytes of their tagged fields."""
    numbers = {"in_sync": 0, "leader": 1, "replicas": 2}
    return frame(5, 2, struct.pack(">i", number) + topic_id, {numbers[name]: data for name, data in tags.items()})


def setting_record(kind: int, resource: str, name: str, value: str | None) -> bytes:
    return frame(4, 0, struct.pack(">b", kind) + text(resource) + text(name) + text(value))


def topic_deleted_record(topic_id: bytes) -> bytes:
    return frame(9, 0, topic_id)


def feature_record(name: str, level: int) -> bytes:
    return frame(12, 0, text(name) + struct.pack(">h", level))


def producer_ids_record(following: int) -> bytes:
    return frame(15, 0, struct.pack(">iqq", 1, 7, following))


def batch_of(values: Sequence[bytes], base: int = 0, *, is_control: bool = False) -> bytes:
    records = [Record(TIME_MS, None, value) for value in values]
    made = replace(raw_batches.of(records), base_offset=base, leader_epoch=0)
    return replace(made, attributes=CONTROL).encode() if is_control else made.encode()


def checkpoint_of(values: Sequence[bytes]) -> bytes:
    """A snapshot or a bootstrap checkpoint: control batches around the records."""
    middle = batch_of(values, 1) if values else b""
    return batch_of([b"head"], 0, is_control=True) + middle + batch_of([b"foot"], 1 + len(values), is_control=True)


# -- logs --------------------------------------------------------------------------------------------------------------


def data_batch(base: int, *values: bytes, keys: Sequence[bytes] = (), codec: int = 0, **fields: int) -> Batch:
    records = [
        Record(TIME_MS + base + at, keys[at] if keys else b"k%d" % (base + at), value)
        for at, value in enumerate(values)
    ]
    return replace(raw_batches.of(records), base_offset=base, leader_epoch=0, **fields)


def marker(base: int, producer: int, *, commits: bool, epoch: int = 0) -> Batch:
    """A control batch that ends a transaction."""
    record = Record(TIME_MS, struct.pack(">hh", 0, commits), struct.pack(">hi", 0, 0))
    made = raw_batches.of([record])
    return replace(
        made, base_offset=base, attributes=TRANSACTIONAL | CONTROL, producer_id=producer, producer_epoch=epoch
    )


def compacted(base: int, last: int, kept: dict[int, tuple[bytes, bytes]]) -> Batch:
    """A batch that was once as long as ``last - base + 1``, of which these offsets are left."""
    payload = b""
    for offset, (key, value) in kept.items():
        one = encode([Record(0, key, value)])
        size, rest = one[:1], bytearray(one[1:])
        rest[2] = 2 * (offset - base)  # its delta, below 64
        payload += size + bytes(rest)
    return Batch(
        base_offset=base, last_offset_delta=last - base, record_count=len(kept), payload=payload, leader_epoch=0
    )


@dataclass
class Segment:
    """A segment of a log: its base offset and its batches."""

    base: int
    batches: list[Batch]


@dataclass
class Topic:
    """A topic of the house: per partition its segments."""

    name: str
    partitions: dict[int, list[Segment]]
    settings: dict[str, str] = field(default_factory=dict)
    topic_id: bytes = b""

    def __post_init__(self) -> None:
        self.topic_id = self.topic_id or topic_id_of(self.name)


def simple(name: str, count: int = 1, records: int = 10, **given: str) -> Topic:
    """A topic whose partitions have two segments each, of batches of two records."""
    partitions = {}
    for number in range(count):
        half = records // 4 * 2
        batches = [data_batch(base, b"v%d" % base, b"w%d" % base) for base in range(0, records, 2)]
        partitions[number] = [Segment(0, batches[: half // 2]), Segment(half, batches[half // 2 :])]
    return Topic(name, partitions, {key.replace("_", "."): value for key, value in given.items()})


@dataclass
class House:
    """A log directory; ``build`` writes it."""

    path: Path
    topics: list[Topic] = field(default_factory=list)
    node_id: int = 1
    has_metadata_log: bool = True
    is_clean: bool = True
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    more_records: list[bytes] = field(default_factory=list)
    offsets: dict[int, list[Batch]] = field(default_factory=dict)
    """Of ``__consumer_offsets``, by partition."""

    def build(self) -> Path:
        self.path.mkdir(parents=True)
        lines = ["#", "version=1", f"cluster.id={CLUSTER_ID}", f"node.id={self.node_id}", "directory.id=" + "A" * 22]
        (self.path / "meta.properties").write_text("\n".join(lines) + "\n")
        if self.is_clean:
            (self.path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
        rows = "".join(f"{name} {number} {offset}\n" for (name, number), offset in self.starts.items())
        (self.path / "log-start-offset-checkpoint").write_text(f"0\n{len(self.starts)}\n{rows}")
        topics = list(self.topics)
        if self.offsets:
            partitions = {number: [Segment(0, batches)] for number, batches in self.offsets.items()}
            topics.append(Topic("__consumer_offsets", partitions, {"cleanup.policy": "compact"}))
        for topic in topics:
            for number, segments in topic.partitions.items():
                self.write_partition(topic, number, segments)
        if self.has_metadata_log:
            directory = self.path / "__cluster_metadata-0"
            directory.mkdir()
            (directory / f"{0:020}.log").write_bytes(
                batch_of([b"leader"], 0, is_control=True) + batch_of(self.records(topics), 1)
            )
        return self.path

    def records(self, topics: Sequence[Topic]) -> list[bytes]:
        made = [feature_record("metadata.version", 29)]
        for topic in topics:
            made.append(topic_record(topic.name, topic.topic_id))
            made += [partition_record(topic.topic_id, number, epoch=3) for number in topic.partitions]
            made += [setting_record(2, topic.name, *each) for each in topic.settings.items()]
        return [*made, *self.more_records]

    def write_partition(self, topic: Topic, number: int, segments: Sequence[Segment]) -> None:
        directory = self.path / f"{topic.name}-{number}"
        directory.mkdir()
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuid_text(topic.topic_id)}")
        (directory / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {segments[0].base}\n")
        for segment in segments:
            (directory / f"{segment.base:020}.log").write_bytes(b"".join(each.encode() for each in segment.batches))


def format_directory(path: Path, *, node_id: int = 1, level: int = 29) -> Path:
    """What ``kafka-storage format`` leaves, but for features that say nothing of topics."""
    path.mkdir(parents=True)
    directory_id = uuid_text(bytes(range(16)))
    lines = ["#", "version=1", f"cluster.id={CLUSTER_ID}", f"node.id={node_id}", f"directory.id={directory_id}"]
    (path / "meta.properties").write_text("\n".join(lines) + "\n")
    (path / "bootstrap.checkpoint").write_bytes(checkpoint_of([feature_record("metadata.version", level)]))
    return path

"""The records of Apache Kafka's metadata log that say what topics there are: reading them, and writing some.

A record's value is a frame: unsigned varints for the frame's version (1), the record's kind and its version, then its
fields, as ``log.record_fields`` says; all kinds are "flexible". A uuid has 16 bytes.

    kind  fields, in the versions that are known here
     2    topic: string name, uuid id
     3    partition: int32 number, uuid topic; arrays of int32: replicas, in sync, to be removed, to be added; int32
          leader, its epoch, epoch of the partition; from 1 array of uuid: the directories of the replicas
     4    setting: int8 kind of resource, string resource, string name, string? value
     5    change of a partition: int32 number, uuid topic; tags: 0 in sync, 1 leader, 2 replicas
     9    topic deleted: uuid id
    12    feature: string name, int16 level
    15    producer ids: int32 broker, int64 its epoch, int64 the next one
     0    a broker registers: int32 id; from 2 bool; uuid of its process, int64 epoch; arrays of endpoints and features;
          string? rack, bool fenced; from 1 bool; tag 0 from 3: array of uuid, its log directories
    23    a transaction of the metadata begins, 24: it ends, 25: it never was

Kinds that are not in the table are about nothing that is moved.

Source: Apache Kafka 4.2 (MetadataRecordSerde, TopicRecord, PartitionRecord, ConfigRecord, …; PartitionRegistration).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from fastlog.errors import LogError
from fastlog.log.record_fields import Fields
from fastlog.wire.fields import compact_string, uvarint

FRAME_VERSION = 1
TOPIC, PARTITION, SETTING, PARTITION_CHANGE, TOPIC_DELETED, FEATURE, PRODUCER_IDS = 2, 3, 4, 5, 9, 12, 15
BEGIN_TRANSACTION, END_TRANSACTION, ABORT_TRANSACTION = 23, 24, 25
BROKER = 0
NEWEST_VERSIONS = {
    TOPIC: 0, PARTITION: 2, SETTING: 0, PARTITION_CHANGE: 2, TOPIC_DELETED: 0, FEATURE: 0, PRODUCER_IDS: 0,
    BEGIN_TRANSACTION: 0, END_TRANSACTION: 0, ABORT_TRANSACTION: 0,
}  # fmt: skip
"""The newest version of each kind of record that is read; later ones have other fields."""
BROKER_RESOURCE, TOPIC_RESOURCE = 4, 2
METADATA_VERSION = "metadata.version"
DIRECTORIES_SINCE = 17
"""The level of ``metadata.version`` from which on partitions name the directories of their replicas: 3.7-IV2."""
NO_LEADER = -1


@dataclass(slots=True)
class Partition:
    """Who has a partition, as far as the metadata log says."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader_epoch: int


@dataclass(slots=True)
class Topic:
    """A topic as the metadata log describes it."""

    name: str
    topic_id: bytes
    partitions: dict[int, Partition] = field(default_factory=dict)


@dataclass(slots=True)
class KraftState:
    """What the metadata log says after some records. For one thread."""

    topics: dict[bytes, Topic] = field(default_factory=dict)
    """The topics by id, of 16 bytes."""
    topic_settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """The settings of topics, by the topic's name."""
    broker_settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """The settings of brokers by the broker's id as text; the empty id has those of all brokers."""
    features: dict[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    _held: list[bytes] | None = None

    def apply(self, value: bytes) -> None:
        """Take one record in.

        Raises:
            LogError: it is damaged, or of a version that is not known.
        """
        kind = _Fields(value).head()
        if kind == BEGIN_TRANSACTION:
            self._held = []
        elif kind in (END_TRANSACTION, ABORT_TRANSACTION):
            held, self._held = self._held or [], None
            for each in held if kind == END_TRANSACTION else ():
                self._apply(each)
        elif self._held is not None:
            self._held.append(value)
        else:
            self._apply(value)

    def _apply(self, value: bytes) -> None:
        fields = _Fields(value)
        kind = fields.head()
        if kind == TOPIC:
            name, topic_id = fields.string(), fields.uuid()
            self.topics[topic_id] = Topic(name or "", topic_id)
        elif kind == TOPIC_DELETED:
            gone = self.topics.pop(fields.uuid(), None)
            if gone is not None:
                self.topic_settings.pop(gone.name, None)
        elif kind == PARTITION:
            number, topic_id = fields.number(4), fields.uuid()
            replicas, in_sync, _, _ = (fields.numbers() for _ in range(4))
            fields.number(4)
            if topic_id in self.topics:
                self.topics[topic_id].partitions[number] = Partition(replicas, in_sync, fields.number(4))
        elif kind == PARTITION_CHANGE:
            number, topic_id = fields.number(4), fields.uuid()
            topic = self.topics.get(topic_id)
            if topic is not None and number in topic.partitions:
                _change(topic.partitions[number], fields.tags())
        elif kind == SETTING:
            self._set(fields.number(1), fields.string() or "", fields.string() or "", fields.string())
        elif kind == FEATURE:
            name = fields.string() or ""
            self.features[name] = fields.number(2)
        elif kind == PRODUCER_IDS:
            fields.number(4), fields.number(8)
            self.next_producer_id = fields.number(8)

    def _set(self, kind: int, resource: str, name: str, value: str | None) -> None:
        tables = {TOPIC_RESOURCE: self.topic_settings, BROKER_RESOURCE: self.broker_settings}
        table = tables.get(kind, {}).setdefault(resource, {})
        table.pop(name, None)
        if value is not None:
            table[name] = value


def _change(partition: Partition, tags: dict[int, bytes]) -> None:
    if 0 in tags:
        partition.in_sync = _Fields(tags[0]).numbers()
    if 2 in tags:
        partition.replicas = _Fields(tags[2]).numbers()
    if 1 in tags:  # another leader, or none, is another epoch
        partition.leader_epoch += 1


class NewTopic(NamedTuple):
    """A topic that one broker has alone, and the leader epochs of its partitions by number."""

    name: str
    topic_id: bytes
    epochs: dict[int, int]
    settings: dict[str, str]


def topic_records(topic: NewTopic, node_id: int, directory_id: bytes) -> list[bytes]:
    """The records that make a topic, as a controller finds it whose only broker has just been stopped."""
    made = [_frame(TOPIC, 0) + compact_string(topic.name) + topic.topic_id + b"\0"]
    node = struct.pack(">Bi", 2, node_id)  # an array of one
    for number, epoch in sorted(topic.epochs.items()):
        made.append(
            _frame(PARTITION, 1)
            + struct.pack(">i", number)
            + topic.topic_id
            + node
            + node
            + b"\1\1"
            + struct.pack(">iii", NO_LEADER, epoch, 0)
            + b"\2"
            + directory_id
            + b"\0"
        )
    for name, value in sorted(topic.settings.items()):
        resource = struct.pack(">b", TOPIC_RESOURCE) + compact_string(topic.name)
        made.append(_frame(SETTING, 0) + resource + compact_string(name) + compact_string(value) + b"\0")
    return made


def broker_record(node_id: int, directory_id: bytes, broker_epoch: int) -> bytes:
    """The record of a broker that has been here, in this epoch, and is not now.

    One that nobody knew would count as one that has crashed when it comes, and lead nothing.
    """
    head = _frame(BROKER, 3) + struct.pack(">i?", node_id, False) + bytes(16) + struct.pack(">q", broker_epoch)
    nothing = b"\1\1\0"  # no endpoint, no feature, no rack
    return head + nothing + struct.pack(">??", True, False) + b"\1\0" + uvarint(17) + b"\2" + directory_id


def producer_ids_record(node_id: int, following: int) -> bytes:
    """The record that takes all producer ids below ``following``."""
    return _frame(PRODUCER_IDS, 0) + struct.pack(">iqq", node_id, 0, following) + b"\0"


def _frame(kind: int, version: int) -> bytes:
    return bytes((FRAME_VERSION, kind, version))


class _Fields(Fields):
    what = "a record of the metadata log"

    def __init__(self, data: bytes) -> None:
        super().__init__(data, is_flexible=True)

    def head(self) -> int:
        """The kind of the record.

        Raises:
            LogError: it, or its version, is not known and would change what is read.
        """
        frame, kind, version = self.varint(), self.varint(), self.varint()
        if frame != FRAME_VERSION:
            raise LogError("a record of the metadata log in another frame than is known", found=frame)
        if version > NEWEST_VERSIONS.get(kind, version):
            raise LogError(f"a record of kind {kind} of a newer version of Kafka's", found=version)
        return kind

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number(4) for _ in range(self.count()))

    def uuid(self) -> bytes:
        return self.take(16)

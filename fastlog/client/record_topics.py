"""What a plan over topics of record batches asks beside their offsets: ids, and where the files of partitions are.

Metadata is asked at version 12, which has tagged fields (``kafka_fields``).

Source: the schemas of Apache Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fastlog.client.addresses import Address
from fastlog.client.kafka_fields import ID_BYTES, NO_TAGS, Answer, Place, Request, by_topic
from fastlog.kafka_codes import Code
from fastlog.wire.fields import compact_string, pack, uvarint

_FALSE = b"\0"
_MESSAGES_VERSION = 5


class KnownTopic(NamedTuple):
    """What Metadata says of a topic: an error code, its id, the partitions' numbers, and whether it is the broker's."""

    code: int
    id: bytes
    partitions: tuple[int, ...]
    is_internal: bool


NO_TOPIC = KnownTopic(Code.UNKNOWN_TOPIC_OR_PARTITION, bytes(ID_BYTES), (), is_internal=False)
"""What is said of one that is not there."""


class LedTopic(NamedTuple):
    """The same with the broker that leads each partition, by its number; -1 while none does."""

    code: int
    id: bytes
    leaders: dict[int, int]
    is_internal: bool


class ClusterView(NamedTuple):
    """What Metadata says of a cluster: its id, where its brokers are, and its topics of record batches."""

    id: str
    brokers: dict[int, Address]
    topics: dict[str, LedTopic]


class Stored(NamedTuple):
    """A partition's bytes in files, and the log directory that it is in."""

    size_bytes: int
    directory: str


def known_topics(names: Iterable[str] | None) -> Request:
    """Which topics there are, of these or of all; none is made by it."""
    rows = uvarint(0)
    if names is not None:
        each = [bytes(ID_BYTES) + compact_string(name) + NO_TAGS for name in names]
        rows = uvarint(len(each) + 1) + b"".join(each)
    return Request(3, 12, NO_TAGS + rows + _FALSE + _FALSE + NO_TAGS)


def parse_known_topics(answer: Answer) -> dict[str, KnownTopic]:
    """What there is of each topic of record batches."""
    return {
        name: KnownTopic(topic.code, topic.id, tuple(sorted(topic.leaders)), topic.is_internal)
        for name, topic in parse_cluster(answer).topics.items()
    }


def parse_cluster(answer: Answer) -> ClusterView:
    """The same, with who leads which partition and where that broker is.

    A broker shows topics of 0.7 to clients of today as well: the ids of these alone are UUIDs of version 5.
    """

    def number() -> int:
        return answer.int32("broker")

    def broker() -> tuple[int, Address]:
        found = answer.int32("node id"), Address(answer.compact_text("host"), answer.int32("port"))
        answer.compact_text("rack")
        return found

    def partition() -> tuple[int, int]:
        answer.int16("error code")
        found = answer.int32("partition"), answer.int32("leader")
        answer.int32("leader epoch")
        for name in ("replicas", "in-sync replicas", "offline replicas"):
            answer.compact_items(name, 4, number)
        return found

    def topic() -> tuple[str, LedTopic]:
        code, name = answer.int16("error code"), answer.compact_text("topic")
        topic_id = answer.take(ID_BYTES, "topic id")
        is_internal = answer.take(1, "is internal") != _FALSE
        leaders = dict(answer.rows("partitions", 18, partition))
        answer.int32("operations")
        return name, LedTopic(code, topic_id, leaders, is_internal)

    answer.skip_tags()  # those of the header
    answer.skip_throttle()
    brokers = dict(answer.rows("brokers", 11, broker))
    cluster = answer.compact_text("cluster id")
    answer.int32("controller")
    rows = answer.rows("topics", 26, topic)
    answer.skip_tags()
    answer.end()
    topics = {name: topic for name, topic in rows if topic.id[6] >> 4 != _MESSAGES_VERSION}
    return ClusterView(cluster, brokers, topics)


def stored(places: Iterable[Place] | None) -> Request:
    """How large these partitions are, and where; None: all of the broker's."""
    rows = pack("i", -1) if places is None else by_topic(places, lambda place: pack("i", place[1]))
    return Request(35, 1, rows)


def parse_stored(answer: Answer) -> dict[Place, Stored]:
    """The copy of each partition that is in use: one that is on its way to another directory has a second."""
    return {place: copy for place, copy, is_future in _copies(answer) if not is_future}


def parse_sizes(answer: Answer) -> dict[Place, int]:
    """The bytes of each partition; one that lies in two directories counts in both."""
    sizes: dict[Place, int] = {}
    for place, copy, _ in _copies(answer):
        sizes[place] = sizes.get(place, 0) + copy.size_bytes
    return sizes


def _copies(answer: Answer) -> list[tuple[Place, Stored, bool]]:
    """What lies in each log directory, and whether it is on its way there."""

    def one() -> tuple[int, tuple[int, bool]]:
        number, size = answer.int32("partition"), answer.int64("size")
        answer.int64("offset lag")
        return number, (size, answer.take(1, "is future") != _FALSE)

    def directory() -> list[tuple[Place, Stored, bool]]:
        answer.int16("error code")
        path, rows = answer.text("log directory"), answer.by_place(21, one)
        return [(place, Stored(size, path), is_future) for place, (size, is_future) in rows.items()]

    answer.skip_throttle()
    found = answer.items("log directories", 8, directory)
    answer.end()
    return [copy for copies in found for copy in copies]

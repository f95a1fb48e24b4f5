"""What a plan over topics of record batches asks beside their offsets: ids, and where the files of partitions are.

Metadata is asked at version 12, the first requests here with tagged fields: numbers of items and lengths of strings are
varints, one more than what they count (0: null), and a number of tagged fields, which is a varint too, ends each
structure and both headers.

Source: the schemas of Apache Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from fastlog.client.addresses import Address
from fastlog.client.kafka_fields import Answer, Place, Request, by_topic
from fastlog.wire.fields import pack

_T = TypeVar("_T")
_NO_TAGS = b"\0"
_FALSE = b"\0"
ID_BYTES = 16
_MOST_VARINT_BITS = 32
_MESSAGES_VERSION = 5


class KnownTopic(NamedTuple):
    """What Metadata says of a topic: an error code, its id, the partitions' numbers, and whether it is the broker's."""

    code: int
    id: bytes
    partitions: tuple[int, ...]
    is_internal: bool


NO_TOPIC = KnownTopic(3, bytes(ID_BYTES), (), is_internal=False)
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
    rows = _varint(0)
    if names is not None:
        each = [bytes(ID_BYTES) + _varint(len(name.encode()) + 1) + name.encode() + _NO_TAGS for name in names]
        rows = _varint(len(each) + 1) + b"".join(each)
    return Request(3, 12, _NO_TAGS + rows + _FALSE + _FALSE + _NO_TAGS)


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
        found = answer.int32("node id"), Address(_text(answer, "host"), answer.int32("port"))
        _text(answer, "rack")
        _skip_tags(answer)
        return found

    def partition() -> tuple[int, int]:
        answer.int16("error code")
        found = answer.int32("partition"), answer.int32("leader")
        answer.int32("leader epoch")
        for name in ("replicas", "in-sync replicas", "offline replicas"):
            _items(answer, name, number)
        _skip_tags(answer)
        return found

    def topic() -> tuple[str, LedTopic]:
        code, name = answer.int16("error code"), _text(answer, "topic")
        topic_id = answer.take(ID_BYTES, "topic id")
        is_internal = answer.take(1, "is internal") != _FALSE
        leaders = dict(_items(answer, "partitions", partition))
        answer.int32("operations")
        _skip_tags(answer)
        return name, LedTopic(code, topic_id, leaders, is_internal)

    _skip_tags(answer)  # those of the header
    answer.skip_throttle()
    brokers = dict(_items(answer, "brokers", broker))
    cluster = _text(answer, "cluster id")
    answer.int32("controller")
    rows = _items(answer, "topics", topic)
    _skip_tags(answer)
    answer.end()
    topics = {name: topic for name, topic in rows if topic.id[6] >> 4 != _MESSAGES_VERSION}
    return ClusterView(cluster, brokers, topics)


def stored(places: Iterable[Place]) -> Request:
    """How large these partitions are, and where."""
    return Request(35, 1, by_topic(places, lambda place: pack("i", place[1])))


def parse_stored(answer: Answer) -> dict[Place, Stored]:
    """The largest copy of each partition; one that is on its way to another directory has two."""

    def one() -> tuple[int, tuple[int, bool]]:
        number, size = answer.int32("partition"), answer.int64("size")
        answer.int64("offset lag")
        return number, (size, answer.take(1, "is future") != _FALSE)

    def directory() -> tuple[str, dict[Place, tuple[int, bool]]]:
        answer.int16("error code")
        return answer.text("log directory"), answer.by_place(21, one)

    answer.skip_throttle()
    found: dict[Place, Stored] = {}
    for path, rows in answer.items("log directories", 8, directory):
        found |= {place: Stored(size, path) for place, (size, is_future) in rows.items() if not is_future}
    answer.end()
    return found


def _items(answer: Answer, name: str, one: Callable[[], _T]) -> list[_T]:
    count = _number(answer, f"number of {name}") - 1
    if count > answer.left:
        raise answer.error(f"it announces {count} {name}, with {answer.left} bytes left")
    return [one() for _ in range(count)]


def _text(answer: Answer, name: str) -> str:
    size = _number(answer, f"length of {name}") - 1
    try:
        return answer.take(max(0, size), name).decode()
    except UnicodeDecodeError:
        raise answer.error(f"{name} is not UTF-8") from None


def _skip_tags(answer: Answer) -> None:
    for _ in range(min(_number(answer, "number of tagged fields"), answer.left + 1)):
        _number(answer, "tag")
        answer.take(_number(answer, "size of a tagged field"), "tagged field")


def _number(answer: Answer, name: str) -> int:
    found = 0
    for shift in range(0, _MOST_VARINT_BITS, 7):
        byte = answer.take(1, name)[0]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found
    raise answer.error(f"{name} is longer than a number of 32 bits")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])

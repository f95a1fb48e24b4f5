"""What clients of ours ask of topics of record batches: today's protocol, one version of each request.

| request | key | version | what it is for |
|---|---|---|---|
| Produce, Fetch, ListOffsets | 0, 1, 2 | 7, 5, 2 | batches in and out, and where partitions begin and end |
| InitProducerId | 22 | 0 | to number batches, so that each is stored once |
| CreateTopics, DeleteTopics, CreatePartitions | 19, 20, 37 | 4, 3, 1 | to make and to delete them |
| DeleteRecords | 21 | 1 | to let a partition begin later |
| DescribeConfigs, IncrementalAlterConfigs | 32, 44 | 1, 0 | their settings |

Which topics there are, and how large they are, is asked in ``record_topics``.

Source: the schemas of Apache Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from fastlog.client.kafka_fields import NULL, Answer, Place, Request, array, by_topic, sized, string_or_null
from fastlog.wire.fields import pack, string

_T = TypeVar("_T")
EARLIEST, LATEST = -2, -1
"""Times that ListOffsets has a meaning for."""
STORED = -2
"""The acks of batches that are stored at their own offsets: fastlog's own, and refused by other brokers."""
_TOPIC = 2  # the kind of a resource that has settings
_SET, _DELETE = 0, 1  # what an alteration does with a setting


class Fetched(NamedTuple):
    """What Fetch says of a partition; ``batches`` are whole batches, but for the end of the last one."""

    code: int
    high_watermark: int
    log_start: int
    batches: bytes


class Appended(NamedTuple):
    """What Produce says of a partition: an error code, and the offset of the first record."""

    code: int
    offset: int


class NumberedProducer(NamedTuple):
    """The id and epoch by which a broker knows a producer that numbers its batches; or an error code."""

    code: int
    id: int
    epoch: int


class TopicSetting(NamedTuple):
    """A setting of a topic. ``is_own``: the topic has it itself, and not from the broker."""

    value: str | None
    is_own: bool
    is_fixed: bool


class Refusal(NamedTuple):
    """An error code, 0 for none, and the broker's words for it."""

    code: int
    text: str


def list_offsets(places: Iterable[Place], time_ms: int) -> Request:
    """The first offset whose record has that time or a later one; ``EARLIEST``, ``LATEST``."""
    return Request(2, 2, pack("ib", -1, 0) + by_topic(places, lambda place: pack("iq", place[1], time_ms)))


def fetch(offsets: Mapping[Place, int], *, max_wait_ms: int, min_bytes: int, max_bytes: int) -> Request:
    """Batches from these offsets on; at most ``max_bytes``, but one batch in any case."""
    return Request(
        1,
        5,
        pack("iiiib", -1, max_wait_ms, min_bytes, max_bytes, 0)
        + by_topic(offsets, lambda place: pack("iqqi", place[1], offsets[place], -1, max_bytes)),
    )


def produce(batches: Mapping[Place, bytes | bytearray], *, acks: int, timeout_ms: int) -> Request:
    """Append a batch to each of these partitions; ``acks`` 1: appended, -1: flushed."""
    return Request(
        0,
        7,
        NULL
        + pack("hi", acks, timeout_ms)
        + by_topic(batches, lambda place: pack("i", place[1]) + sized(batches[place])),
    )


def store(place: Place, batches: Iterable[bytes | bytearray], *, timeout_ms: int) -> Request:
    """Append batches of another log as they are, each at the offset that it has, or not at all."""
    topic, partition = place
    rows = array(pack("i", partition) + sized(batch) for batch in batches)
    return Request(0, 7, NULL + pack("hi", STORED, timeout_ms) + array([string(topic) + rows]))


def new_producer() -> Request:
    """An id for a producer that numbers its batches."""
    return Request(22, 0, NULL + pack("i", 0))


def create_topic(name: str, partitions: int, settings: Mapping[str, str], timeout_ms: int) -> Request:
    """Make a topic of record batches; -1 partitions: as many as the broker's settings say."""
    rows = array(string(key) + string(value) for key, value in settings.items())
    return Request(19, 4, array([string(name) + pack("ihi", partitions, -1, 0) + rows]) + pack("ib", timeout_ms, 0))


def delete_topic(name: str, timeout_ms: int) -> Request:
    """A DeleteTopics request for one topic; the broker has up to ``timeout_ms`` for it."""
    return Request(20, 3, array([string(name)]) + pack("i", timeout_ms))


def delete_records(place: Place, offset: int, timeout_ms: int) -> Request:
    """A DeleteRecords request: to let a partition begin at ``offset``, which is later than now."""
    return Request(21, 1, by_topic([place], lambda one: pack("iq", one[1], offset)) + pack("i", timeout_ms))


def create_partitions(name: str, partitions: int, timeout_ms: int) -> Request:
    """A CreatePartitions request: the topic is to have ``partitions``, which are more than now."""
    return Request(37, 1, array([string(name) + pack("ii", partitions, -1)]) + pack("ib", timeout_ms, 0))


def describe_settings(topic: str) -> Request:
    """A DescribeConfigs request for all settings of a topic."""
    return Request(32, 1, array([pack("b", _TOPIC) + string(topic) + pack("i", -1)]) + pack("b", 0))


def alter_settings(topic: str, changes: Mapping[str, str | None]) -> Request:
    """An IncrementalAlterConfigs request; None for a value removes the topic's own, so that the broker's holds."""
    rows = array(
        string(key) + pack("b", _DELETE if value is None else _SET) + string_or_null(value)
        for key, value in changes.items()
    )
    return Request(44, 0, array([pack("b", _TOPIC) + string(topic) + rows]) + pack("b", 0))


# -- answers -----------------------------------------------------------------------------------------------------------


def parse_offsets(answer: Answer) -> dict[Place, tuple[int, int]]:
    """An error code and an offset of each partition, -1 where there is none."""

    def one() -> tuple[int, tuple[int, int]]:
        number, code = answer.int32("partition"), answer.int16("error code")
        answer.int64("timestamp")
        return number, (code, answer.int64("offset"))

    answer.skip_throttle()
    found = answer.by_place(22, one)
    answer.end()
    return found


def parse_fetched(answer: Answer) -> dict[Place, Fetched]:
    """The error code, offsets and batches of each partition in the answer to Fetch."""

    def aborted() -> None:
        answer.int64("producer id")
        answer.int64("first offset")

    def one() -> tuple[int, Fetched]:
        number, code, high = answer.int32("partition"), answer.int16("error code"), answer.int64("high watermark")
        answer.int64("last stable offset")
        log_start = answer.int64("log start")
        answer.items("aborted transactions", 16, aborted)
        size = answer.int32("size of batches")
        return number, Fetched(code, high, log_start, answer.take(max(0, size), "batches"))

    answer.skip_throttle()
    found = answer.by_place(38, one)
    answer.end()
    return found


def parse_appended(answer: Answer) -> dict[Place, Appended]:
    """The error code and the first offset of each partition's batch in the answer to Produce."""

    def one() -> tuple[int, Appended]:
        found = answer.int32("partition"), Appended(answer.int16("error code"), answer.int64("offset"))
        answer.int64("time of the append")
        answer.int64("log start")
        return found

    found = answer.by_place(30, one)
    answer.skip_throttle()
    answer.end()
    return found


def parse_stored_parts(answer: Answer) -> list[int]:
    """The error code of each batch, in their order."""

    def one() -> int:
        answer.int32("partition")
        code = answer.int16("error code")
        answer.take(24, "offset, time of the append and log start")
        return code

    rows = answer.items("topics", 6, lambda: (answer.text("topic"), answer.items("batches", 30, one)))
    answer.skip_throttle()
    (found,) = _one_of(rows, answer)
    return found[1]


def parse_deleted_records(answer: Answer) -> dict[Place, int]:
    """The error code of each partition in the answer to DeleteRecords."""

    def one() -> tuple[int, int]:
        number = answer.int32("partition")
        answer.int64("log start")
        return number, answer.int16("error code")

    answer.skip_throttle()
    found = answer.by_place(14, one)
    answer.end()
    return found


def parse_producer(answer: Answer) -> NumberedProducer:
    """The id, and the epoch with which it begins."""
    answer.skip_throttle()
    found = NumberedProducer(answer.int16("error code"), answer.int64("producer id"), answer.int16("epoch"))
    answer.end()
    return found


def parse_created(answer: Answer) -> Refusal:
    """The error code and text for the one topic in the answer to CreateTopics, or to CreatePartitions."""
    answer.skip_throttle()
    (found,) = _one_of(answer.items("topics", 6, lambda: (answer.text("topic"), _refusal(answer))), answer)
    return found[1]


def parse_deleted(answer: Answer) -> int:
    """The error code of the one topic in the answer to DeleteTopics."""
    answer.skip_throttle()
    (found,) = _one_of(answer.items("topics", 4, lambda: (answer.text("topic"), answer.int16("error code"))), answer)
    return found[1]


def parse_settings(answer: Answer) -> tuple[Refusal, dict[str, TopicSetting]]:
    """The error code and text, and the settings by name, of the one topic in the answer to DescribeConfigs."""

    def one() -> tuple[str, TopicSetting]:
        name, value = answer.text("setting"), answer.text_or_none("value")
        is_fixed, source = answer.take(1, "read only") != b"\0", answer.take(1, "source")[0]
        answer.take(1, "is sensitive")
        answer.items("synonyms", 5, lambda: (answer.text("setting"), answer.text("value"), answer.take(1, "source")))
        return name, TopicSetting(value, source == 1, is_fixed)

    def resource() -> tuple[Refusal, dict[str, TopicSetting]]:
        refusal = _refusal(answer)
        answer.take(1, "kind")
        answer.text("topic")
        return refusal, dict(answer.items("settings", 7, one))

    answer.skip_throttle()
    (found,) = _one_of(answer.items("resources", 11, resource), answer)
    return found


def parse_altered(answer: Answer) -> Refusal:
    """The error code and text of the one topic in the answer to IncrementalAlterConfigs."""

    def resource() -> Refusal:
        refusal = _refusal(answer)
        answer.take(1, "kind")
        answer.text("topic")
        return refusal

    answer.skip_throttle()
    (found,) = _one_of(answer.items("resources", 7, resource), answer)
    return found


def _refusal(answer: Answer) -> Refusal:
    return Refusal(answer.int16("error code"), answer.text("error message"))


def _one_of(rows: list[_T], answer: Answer) -> list[_T]:
    if len(rows) != 1:
        raise answer.error(f"one is asked for, and {len(rows)} are answered")
    answer.end()
    return rows

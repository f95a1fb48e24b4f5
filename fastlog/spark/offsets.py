"""What a batch covers and where a query begins, as the JSON that Spark keeps in a checkpoint. Knows neither Spark nor
a broker.

Spark writes the end of each batch into its log before it runs the batch, and plans the same batch again after a crash.
It never writes down where the first batch began: it asks the source again, perhaps days later. So an end names the
whole range of its batch, and the beginning of a query is a word, or what the user gave:

    {"v": 1, "initial": "latest"}                                 only what a query begins with
    {"v": 1, "topics": {"logs": {"0-0": [1048576, 2097152]}},     from, to of each partition, named broker-partition
     "created": {"logs": {"0-0": 1700000000000}}}                 which log that is, as far as it is known

An offset alone does not say of which log it is: one made anew in its place has the same for other messages. A log of
messages is known by the time at which it was made, in ms; one of record batches by a number of 63 bits, the highest of
them set, out of its topic's id (``log_number``): so the two kinds are never taken for each other. Offsets are bytes of
the one, and numbers of records of the other.

Spark compares such texts as texts, so keys have one order: topics by name, partitions by number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError, CoordinationError
from fastlog.segment_files import MAX_OFFSET, MAX_PARTITION
from fastlog.topics import valid_topic
from fastlog.zkpaths import PartitionId

VERSION = 1
LATEST = -1
EARLIEST = -2
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


ANY_BROKER = -1
_OF_TOPIC_ID = 1 << 62


class NumberedPartition(PartitionId):
    """A partition that was named by its number alone, as Kafka's clients do: of whichever broker has the topic."""

    __slots__ = ()

    def __new__(cls, number: int) -> NumberedPartition:
        return super().__new__(cls, ANY_BROKER, number)

    def __getnewargs__(self) -> tuple[int]:
        return (self.partition,)

    def __str__(self) -> str:
        return str(self.partition)


def log_number(topic_id: bytes) -> int:
    """By what offsets of record batches remember the log that they are of."""
    return int.from_bytes(topic_id[:8]) & (_OF_TOPIC_ID - 1) | _OF_TOPIC_ID


def is_of_records(created: int) -> bool:
    """Whether that is the number of a log of record batches."""
    return created >= _OF_TOPIC_ID


class OffsetRange(NamedTuple):
    """Offsets of one partition: from ``start`` up to ``end``. Of messages, both are bytes where one begins."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """How many bytes it has; of record batches, how many records."""
        return self.end - self.start


Ranges = Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True)
class OffsetSpec:
    """Where to begin or to end: a word for all partitions, a time for all (ms since 1970), or something for each.

    ``kind`` is ``earliest``, ``latest``, ``time``, ``offsets`` or ``times``. Offsets may be ``EARLIEST`` or ``LATEST``.
    """

    kind: str
    time_ms: int = 0
    by_partition: tuple[tuple[TopicPartition, int], ...] = ()

    def of(self, partition: TopicPartition) -> int | None:
        """What it says of a partition; None where it does not name it."""
        return dict(self.by_partition).get(partition)

    def to_json(self) -> Any:
        """The JSON value that a checkpoint has under ``initial``."""
        if self.kind in ("earliest", "latest"):
            return self.kind
        if self.kind == "time":
            return {"time": self.time_ms}
        return {self.kind: _nested(self.by_partition)}

    @classmethod
    def from_json(cls, value: Any) -> OffsetSpec:
        """Raises ``ConfigError`` for what ``to_json`` does not write."""
        if value in ("earliest", "latest"):
            return cls(value)
        match value:
            case {"time": int(time_ms)}:
                return cls("time", time_ms=time_ms)
            case {"offsets": dict(nested)}:
                return cls("offsets", by_partition=parse_partitions(nested, "initial", EARLIEST))
            case {"times": dict(nested)}:
                return cls("times", by_partition=parse_partitions(nested, "initial", 0))
        raise ConfigError(f"{value!r} is no place to begin a query at")


def encode_initial(place: OffsetSpec) -> dict[str, Any]:
    """The first offset of a query, for its checkpoint."""
    return {"v": VERSION, "initial": place.to_json()}


def encode_ranges(ranges: Ranges, created: Mapping[TopicPartition, int] | None = None) -> dict[str, Any]:
    """The end of a batch that covers these ranges; ``created`` is when each log was made, 0 where it is not known."""
    found = {"v": VERSION, "topics": _nested((partition, list(interval)) for partition, interval in ranges.items())}
    known = [(partition, created_ms) for partition, created_ms in (created or {}).items() if created_ms]
    return {**found, "created": _nested(known)} if known else found


def on_brokers(place: OffsetSpec, name: str, there: Iterable[TopicPartition]) -> OffsetSpec:
    """A place whose partitions that were named by their numbers alone are those of the brokers that have them.

    Raises:
        ConfigError: several brokers have one of them; begins with ``name``.
    """
    if not any(isinstance(partition.partition, NumberedPartition) for partition, _ in place.by_partition):
        return place
    known = list(there)
    found = [(on_broker(partition, name, known), value) for partition, value in place.by_partition]
    if len({partition for partition, _ in found}) < len(found):
        raise ConfigError(f"{name}: a partition is named twice, with its broker and without")
    return replace(place, by_partition=tuple(sorted(found)))


def on_broker(partition: TopicPartition, name: str, there: Iterable[TopicPartition]) -> TopicPartition:
    """The same for one of them; itself where none of ``there`` is meant. Raises ``ConfigError``."""
    if not isinstance(partition.partition, NumberedPartition):
        return partition
    found = [item for item in there if item[0] == partition.topic and item.partition.partition == partition[1][1]]
    if len(found) > 1:
        listed = " and ".join(map(str, sorted(found)))
        raise ConfigError(f"{name}: {partition} may be {listed}: write broker-partition")
    return found[0] if found else partition


def decode(offset: Any) -> OffsetSpec | dict[TopicPartition, OffsetRange]:
    """The beginning of a query, or the ranges of a batch.

    Raises:
        ConfigError: it is neither, or was written by a version that is not known.
    """
    if not isinstance(offset, dict) or offset.get("v") != VERSION:
        raise ConfigError(f"{offset!r} is no offset of this source: does the checkpoint belong to another one?")
    if "initial" in offset:
        return OffsetSpec.from_json(offset["initial"])
    ranges = {}
    for partition, value in _items(offset.get("topics"), "offset"):
        if isinstance(partition.partition, NumberedPartition):
            raise ConfigError(f"offset: {partition} does not name a broker")
        match value:
            case [int(start), int(end)] if 0 <= start <= end <= MAX_OFFSET:
                ranges[partition] = OffsetRange(start, end)
            case _:
                raise ConfigError(f"offset: {value!r} is no range of {partition}")
    return ranges


def decode_created(offset: Any) -> dict[TopicPartition, int]:
    """When the logs of an offset that ``decode`` takes were made, of those that say it. Raises ``ConfigError``."""
    return dict(parse_partitions(offset.get("created", {}), "offset", 0))


def parse_partitions(nested: Any, name: str, least: int) -> tuple[tuple[TopicPartition, int], ...]:
    """``{"topic": {"0-1": number}}`` in canonical order; ``least`` is the smallest number there may be.

    Raises:
        ConfigError: it has another form; begins with ``name``.
    """
    found = []
    for partition, value in _items(nested, name):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_OFFSET:
            raise ConfigError(f"{name}: {value!r} for {partition} is not from {least} to {MAX_OFFSET}")
        found.append((partition, value))
    return tuple(sorted(found))


def parse_partition(topic: object, text: object, name: str) -> TopicPartition:
    """A partition of a topic by its name ``broker-partition``, or its number. Raises ``ConfigError`` with ``name``."""
    reason = valid_topic(topic) if isinstance(topic, str) else f"{topic!r} is no topic"
    if reason is not None:
        raise ConfigError(f"{name}: {reason}")
    found = str(text)
    if _NUMBER.fullmatch(found) and int(found) <= MAX_PARTITION and not isinstance(text, bool):
        return TopicPartition(str(topic), NumberedPartition(int(found)))
    try:
        return TopicPartition(str(topic), PartitionId.parse(found))
    except CoordinationError:
        raise ConfigError(
            f"{name}: {text!r} of {topic!r} is neither broker-partition, such as 0-3, nor a number"
        ) from None


def _items(nested: Any, name: str) -> Iterable[tuple[TopicPartition, Any]]:
    if not isinstance(nested, dict) or not all(isinstance(value, dict) for value in nested.values()):
        raise ConfigError(f'{name}: {nested!r} has not the form {{"topic": {{"0-0": …}}}}')
    for topic, values in nested.items():
        for text, value in values.items():
            yield parse_partition(topic, text, name), value


def _nested(items: Iterable[tuple[TopicPartition, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for partition, value in sorted(items):
        found.setdefault(partition.topic, {})[str(partition.partition)] = value
    return found

"""What brokers say of their logs: how far they go, where messages begin, which segment a time lies in.

For tools that place or judge offsets. Works with plain 0.7 brokers, where more has to be fetched to know as much; and
with topics of record batches, whose offsets are numbers of records, each of them a boundary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from fastlog.client.addresses import Address
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.records import RecordBroker
from fastlog.consumer.fetched import MessageSet
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.errors import (
    FastlogError,
    InvalidMessageError,
    TransportError,
    UnsupportedFeatureError,
    WrongPartitionError,
    error_for,
)
from fastlog.wire import responses

MOST_SEGMENTS = 2**20
"""More than a log has: all of them are asked for."""
_SAMPLE_BYTES = 64 * 1024
_WALK_BYTES = 1024 * 1024


class Extent(NamedTuple):
    """The oldest offset that is held, and the end of what can be read."""

    start: int
    end: int


class Boundaries(NamedTuple):
    """The nearest message boundaries around an offset; both are the offset itself where it is one."""

    before: int | None
    """The boundary at or below the offset; None where finding it would take much reading."""
    after: int


class BrokerLogs:
    """Asks brokers by their ids, on one connection each. For one thread; close it, or use it as a context.

    Raises (every call about one partition):
        TransportError: its broker is unavailable, or does not answer.
        BrokerError: it refuses.
    """

    def __init__(self, addresses: Mapping[int, Address], timeout: float = 10.0) -> None:
        self._addresses = dict(addresses)
        self._timeout = timeout
        self._consumers: dict[int, SimpleConsumer] = {}
        self._records: dict[int, RecordBroker] = {}
        self._of_records: dict[tuple[int, str], bool] = {}
        """Whether a topic is one of record batches, by broker and topic."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; may be called again."""
        for consumer in self._consumers.values():
            consumer.close()
        for records in self._records.values():
            records.close()
        self._consumers.clear()
        self._records.clear()

    def extents(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Extent | FastlogError]:
        """How far each log goes, or why that is not known. A partition that was never written to is empty."""
        by_broker: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            by_broker.setdefault(partition.partition.broker, []).append(partition)
        found: dict[TopicPartition, Extent | FastlogError] = {}
        for broker, wanted in sorted(by_broker.items()):
            try:
                found.update(self._extents_of(broker, wanted))
            except FastlogError as error:
                found.update(dict.fromkeys(wanted, error))
        return found

    def extent(self, partition: TopicPartition) -> Extent:
        """How far one log goes. Raises what ``extents`` gives in its place."""
        found = self.extents([partition])[partition]
        if isinstance(found, FastlogError):
            raise found
        return found

    def at_time(self, partition: TopicPartition, time_ms: int) -> int:
        """Where the first segment begins whose last append is not before a time; the end when there is none.

        Segments are what a broker knows the times of: nothing that was appended since is left out, and some messages
        behind that place may be older. Of records it is the first one with that time or a later one.
        """
        records = self._records_or_none(partition)
        if records is not None:
            place = partition.topic, partition.partition.partition
            offset = records.offsets([place], time_ms)[place]
            return self.extent(partition).end if offset < 0 else offset
        consumer, number = self._reached(partition)
        return offset_at_time(consumer, partition.topic, number, time_ms)

    def boundaries(self, partition: TopicPartition, offset: int, extent: Extent) -> Boundaries:
        """The message boundaries around an offset that lies in the log."""
        if offset in extent or self._records_or_none(partition) is not None:
            return Boundaries(offset, offset)
        consumer, number = self._reached(partition)
        try:
            first = consumer.cut_points(partition.topic, number, offset, extent.end, 1, 1)
        except UnsupportedFeatureError:
            return self._walked(partition, offset, extent)
        after = first[0] if first else extent.end
        if after == offset:
            return Boundaries(offset, offset)
        start = max(extent.start, offset - _SAMPLE_BYTES)
        points = consumer.cut_points(partition.topic, number, start, extent.end, 1, _SAMPLE_BYTES)
        return Boundaries(max((point for point in points if point < offset), default=None), after)

    def estimated_messages(self, partition: TopicPartition, offset: int, end: int) -> int:
        """About how many messages lie between two boundaries: by the average size of some at both ends.

        Exact where there are few, and of records. Raises ``InvalidMessageError`` when ``offset`` is not the start of a
        message.
        """
        if self._records_or_none(partition) is not None:
            return end - offset
        count, size = self._sample(partition, offset, end)
        if offset + size < end:
            consumer, number = self._reached(partition)
            start = max(offset + size, end - _SAMPLE_BYTES)
            try:
                points = consumer.cut_points(partition.topic, number, start, end, 1, 1)
            except UnsupportedFeatureError:
                points = []
            if points and points[0] < end:
                more, more_size = self._sample(partition, points[0], end)
                count, size = count + more, size + more_size
        return count if size >= end - offset else max(1, round(count * (end - offset) / size))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _reached(self, partition: TopicPartition) -> tuple[SimpleConsumer, int]:
        broker, number = partition.partition
        return self._consumer(broker), number

    def _consumer(self, broker: int) -> SimpleConsumer:
        address = self._addresses.get(broker)
        if address is None:
            raise TransportError(f"broker {broker} does not live: it is not registered in ZooKeeper")
        if broker not in self._consumers:
            self._consumers[broker] = SimpleConsumer(address.host, address.port, timeout=self._timeout, local="off")
        return self._consumers[broker]

    def _extents_of(self, broker: int, wanted: list[TopicPartition]) -> dict[TopicPartition, Extent | FastlogError]:
        consumer = self._consumer(broker)
        metadata = consumer.metadata(sorted({partition.topic for partition in wanted}))
        if metadata is None:
            return {partition: self._plain_extent(consumer, partition) for partition in wanted}
        extents = described_extents(metadata)
        unknown = [topic.name for topic in metadata.topics if topic.error == WrongPartitionError.code]
        extents |= self._extents_of_records(broker, unknown, wanted)
        refused = {
            topic.name: error_for(topic.error, topic=topic.name, broker=self._addresses[broker])
            for topic in metadata.topics
            if topic.error
        }
        return {
            partition: extents[place] if place in extents else refused.get(partition.topic, Extent(0, 0))
            for partition in wanted
            for place in [(partition.topic, partition.partition.partition)]
        }

    def _extents_of_records(
        self, broker: int, topics: list[str], wanted: list[TopicPartition]
    ) -> dict[tuple[str, int], Extent]:
        """How far the logs of those of the topics go that are of record batches."""
        if not topics:
            return {}
        address = self._addresses[broker]
        records = self._records.setdefault(broker, RecordBroker([address], timeout=self._timeout))
        try:
            found = records.known_topics(topics)
        except NotSpokenError:
            found = {}
        there = {(name, number) for name, topic in found.items() if topic.code == 0 for number in topic.partitions}
        self._of_records.update({(broker, name): any(name == place[0] for place in there) for name in topics})
        places = [
            (partition.topic, partition.partition.partition)
            for partition in wanted
            if (partition.topic, partition.partition.partition) in there
        ]
        starts, ends = (records.offsets(places, when) if places else {} for when in (EARLIEST, LATEST))
        return {place: Extent(starts[place], ends[place]) for place in places}

    def _records_or_none(self, partition: TopicPartition) -> RecordBroker | None:
        """The connection for a partition of record batches; None for a partition of Kafka 0.7's messages."""
        broker, topic = partition.partition.broker, partition.topic
        if (broker, topic) not in self._of_records:
            self._of_records[broker, topic] = False
            self.extents([partition])
        return self._records[broker] if self._of_records[broker, topic] else None

    def _plain_extent(self, consumer: SimpleConsumer, partition: TopicPartition) -> Extent | FastlogError:
        try:
            return plain_extent(consumer, partition.topic, partition.partition.partition)
        except FastlogError as error:
            return error

    def _walked(self, partition: TopicPartition, offset: int, extent: Extent) -> Boundaries:
        """Fetch from the start of the segment on, from message to message."""
        consumer, number = self._reached(partition)
        borders = segment_borders(consumer, partition.topic, number)
        at = borders[max(0, bisect_right(borders, offset) - 1)]
        while at < offset:
            found = self._fetched(partition, at, min(_WALK_BYTES, extent.end - at))
            for entry in found.shallow():
                if entry.next_offset > offset:
                    return Boundaries(entry.offset, entry.next_offset)
                at = entry.next_offset
                if at == offset:
                    break
        return Boundaries(at, at)

    def _sample(self, partition: TopicPartition, offset: int, end: int) -> tuple[int, int]:
        found = self._fetched(partition, offset, min(_SAMPLE_BYTES, end - offset)).before(end)
        return sum(span.count for span in found.spans()), found.valid_bytes

    def _fetched(self, partition: TopicPartition, offset: int, size: int) -> MessageSet:
        consumer, number = self._reached(partition)
        found = consumer.fetch(partition.topic, number, offset, size)
        if not found.valid_bytes:
            raise InvalidMessageError(f"{partition}: no message at offset {offset}")
        return found


def offset_at_time(consumer: SimpleConsumer, topic: str, partition: int, time_ms: int) -> int:
    """The same as ``BrokerLogs.at_time``, for a partition of one broker."""
    borders = segment_borders(consumer, topic, partition)
    before = consumer.get_offsets_before(topic, partition, max(0, time_ms - 1), 1)
    return borders[min(bisect_right(borders, before[0]), len(borders) - 1)] if before else borders[0]


def described_extents(metadata: responses.MetadataAnswer) -> dict[tuple[str, int], Extent]:
    """How far the logs go that a metadata answer describes, by topic and partition number."""
    return {
        (topic.name, item.partition): Extent(item.log_start, item.high_watermark)
        for topic in metadata.topics
        for item in topic.partitions
    }


def plain_extent(consumer: SimpleConsumer, topic: str, partition: int) -> Extent:
    """How far a log goes, asked with the requests of 0.7; one that was never written to is empty."""
    start, end = (consumer.get_offsets_before(topic, partition, when) for when in (EARLIEST, LATEST))
    return Extent((start or [0])[0], (end or [0])[0])


def segment_borders(consumer: SimpleConsumer, topic: str, partition: int) -> list[int]:
    """Where the segments of a log begin, and its visible end; ascending."""
    return sorted(consumer.get_offsets_before(topic, partition, LATEST, MOST_SEGMENTS)) or [0]

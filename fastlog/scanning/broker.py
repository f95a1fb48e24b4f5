"""A topic of Kafka 0.7 on one broker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from fastlog.consumer.broker_logs import described_extents, offset_at_time, plain_extent, segment_borders
from fastlog.consumer.fetched import NumpyBatch
from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import UnsupportedFeatureError, WrongPartitionError, error_for
from fastlog.scanning.bases import TopicSource
from fastlog.scanning.columns import arrow_of
from fastlog.scanning.parts import Bounds, Part


class BrokerTopic(TopicSource):
    """Asks the broker, and reads its files where it runs on this machine."""

    of_records = False

    def parts(self, bounds: Bounds) -> list[Part]:
        """One for each partition that has anything.

        Raises:
            WrongPartitionError: there is no such topic.
            TransportError: the broker cannot be reached.
        """
        with self._connected() as consumer:
            found = [
                cut
                for part in self._extents(consumer)
                if bounds.has(part.partition)
                and part.start < part.end
                and (timed := self._timed(consumer, part, bounds)) is not None
                and (cut := bounds.cut(timed)) is not None
            ]
        return sorted(found)

    def batches(
        self, parts: Sequence[Part], columns: Sequence[str], topics: Sequence[str], *, window_bytes: int | None = None
    ) -> Generator[tuple[int, Any]]:
        """See ``ScanSource``: read by fetches of a few MiB over one connection."""
        with self._connected(window_bytes) as consumer:
            for part in parts:
                yield from arrow_of(self._arrays(consumer, part), part, self.schema(columns, topics), topics)

    def _connected(self, fetch_bytes: int | None = None) -> SimpleConsumer:
        return SimpleConsumer(self._broker, timeout=self._timeout, fetch_bytes=fetch_bytes or self._fetch_bytes)

    def _extents(self, consumer: SimpleConsumer) -> list[Part]:
        metadata = consumer.metadata([self._topic])
        if metadata is None:
            numbers = range(consumer.partition_count(self._topic))
            return [Part(self._topic, number, *plain_extent(consumer, self._topic, number)) for number in numbers]
        for described in metadata.topics:
            if described.error not in (0, WrongPartitionError.code):
                raise error_for(described.error, topic=self._topic, broker=self._broker)
            if described.error or not described.partitions:
                raise WrongPartitionError(f"{self._broker} has no topic {self._topic!r}")
        return [Part(topic, number, *extent) for (topic, number), extent in described_extents(metadata).items()]

    def _timed(self, consumer: SimpleConsumer, part: Part, bounds: Bounds) -> Part | None:
        """What is left when segments are left out that are surely older, or surely newer."""
        start, end = part.start, part.end
        if bounds.since_ms is not None:
            start = max(start, offset_at_time(consumer, part.topic, part.partition, bounds.since_ms))
        if bounds.until_ms is not None:
            borders = segment_borders(consumer, part.topic, part.partition)
            last = offset_at_time(consumer, part.topic, part.partition, bounds.until_ms)
            end = min(end, borders[min(bisect_right(borders, last), len(borders) - 1)])
        return part._replace(start=start, end=end) if start < end else None

    def _arrays(self, consumer: SimpleConsumer, part: Part) -> Iterator[NumpyBatch]:
        return consumer.numpy_batches(part.topic, part.partition, self._boundary(consumer, part))

    def _boundary(self, consumer: SimpleConsumer, part: Part) -> int:
        """Where a message begins, not behind the start of the part."""
        try:
            points = consumer.cut_points(part.topic, part.partition, part.start, part.end, part.end - part.start, 1)
        except UnsupportedFeatureError:  # a broker of Kafka 0.7
            borders = segment_borders(consumer, part.topic, part.partition)
            points = [border for border in borders if border <= part.start][-1:]
        return points[0] if points else part.start

"""A topic of record batches on one broker, be it one of fastlog or of Apache Kafka."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from fastlog.client.addresses import one_broker
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.records import EARLIEST, LATEST, RecordBroker
from fastlog.consumer.simple import SimpleConsumer
from fastlog.scanning.bases import TopicSource
from fastlog.scanning.columns import arrow_of
from fastlog.scanning.parts import Bounds, Part


class BrokerRecords(TopicSource):
    """Asks the broker by today's protocol."""

    of_records = True

    def exists(self) -> bool:
        """Whether the broker has such a topic.

        Raises:
            TransportError: it cannot be reached.
        """
        try:
            with self._connected() as records:
                return bool(records.topics([self._topic])[self._topic].partitions)
        except NotSpokenError:
            return False

    def parts(self, bounds: Bounds) -> list[Part]:
        """One for each partition that has anything.

        Raises:
            RecordsError: the broker refuses.
            TransportError: it cannot be reached.
        """
        with self._connected() as records:
            numbers = records.topics([self._topic])[self._topic].partitions
            places = [(self._topic, number) for number in sorted(numbers) if bounds.has(number)]
            if not places:
                return []
            starts, ends = records.offsets(places, EARLIEST), records.offsets(places, LATEST)
            firsts, lasts = starts, ends
            if bounds.since_ms is not None:
                firsts = records.offsets(places, bounds.since_ms)
            if bounds.until_ms is not None:
                lasts = records.offsets(places, bounds.until_ms + 1)
        found = []
        for place in places:
            end = ends[place] if lasts[place] < 0 else min(lasts[place], ends[place])
            start = end if firsts[place] < 0 else max(firsts[place], starts[place])
            cut = bounds.cut(Part(*place, start, end))
            if cut is not None:
                found.append(cut)
        return found

    def batches(
        self, parts: Sequence[Part], columns: Sequence[str], topics: Sequence[str], *, window_bytes: int | None = None
    ) -> Generator[tuple[int, Any]]:
        """By fetches of a few MiB, one of them ahead."""
        wanted = self.schema(columns, topics)
        fetch_bytes = window_bytes or self._fetch_bytes
        with SimpleConsumer(self._broker, timeout=self._timeout, fetch_bytes=fetch_bytes) as consumer:
            for part in parts:
                found = consumer.numpy_batches(part.topic, part.partition, part.start)
                yield from arrow_of(found, part, wanted, topics)

    def _connected(self) -> RecordBroker:
        return RecordBroker([one_broker(self._broker, None)], timeout=self._timeout)

"""A topic of record batches at brokers, be it one of fastlog or those of an Apache Kafka."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Any

from fastlog.client.addresses import one_broker
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.kafka_fields import Place
from fastlog.client.records import EARLIEST, LATEST, RecordBroker, require
from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import WrongPartitionError
from fastlog.kafka_codes import Code
from fastlog.scanning.bases import TopicSource
from fastlog.scanning.columns import arrow_of
from fastlog.scanning.parts import Bounds, Part


class BrokerRecords(TopicSource):
    """Asks by today's protocol the broker that leads a partition: in a cluster of several, where the named one says."""

    of_records = True

    def exists(self) -> bool | None:
        """Whether the cluster has such a topic; None: the broker does not speak today's protocol.

        Raises:
            RecordsError: the broker refuses.
            TransportError: it cannot be reached.
        """
        try:
            return bool(self._leaders())
        except NotSpokenError:
            return None

    def parts(self, bounds: Bounds) -> list[Part]:
        """One for each partition that has anything.

        Raises:
            RecordsError: the broker refuses.
            TransportError: it cannot be reached.
        """
        leaders = {number: leader for number, leader in sorted(self._leaders().items()) if bounds.has(number)}
        found = []
        for leader in set(leaders.values()):
            found += self._parts_of(leader, [(self._topic, n) for n in leaders if leaders[n] == leader], bounds)
        return sorted(found)

    def _parts_of(self, leader: str, places: Sequence[Place], bounds: Bounds) -> list[Part]:
        with self._connected(leader) as records:
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
        """See ``ScanSource``: read by fetches of a few MiB, with one fetch ahead."""
        wanted = self.schema(columns, topics)
        leaders = self._leaders()  # who may be others than when the parts were made
        with ExitStack() as opened:
            consumers: dict[str, SimpleConsumer] = {}
            for part in parts:
                leader = leaders.get(part.partition)
                if leader is None:
                    raise WrongPartitionError(f"{part.topic}-{part.partition} has gone from {self._broker}")
                if leader not in consumers:
                    made = SimpleConsumer(leader, timeout=self._timeout, fetch_bytes=window_bytes or self._fetch_bytes)
                    consumers[leader] = opened.enter_context(made)
                found = consumers[leader].numpy_batches(part.topic, part.partition, part.start)
                yield from arrow_of(found, part, wanted, topics)

    def _leaders(self) -> dict[int, str]:
        """The address at which each partition is read.

        Where there is one broker, it is the one that was named: that it is known by its own name is not needed.
        """
        with self._connected(self._broker) as records:
            view = records.cluster([self._topic])
        topic = view.topics.get(self._topic)
        if topic is None:
            return {}
        if topic.code not in (0, Code.UNKNOWN_TOPIC_OR_PARTITION):
            require(topic.code, self._topic)
        brokers = {number: str(address) for number, address in view.brokers.items()}
        if len(brokers) == 1:
            brokers = dict.fromkeys(brokers, self._broker)
        for partition, leader in topic.leaders.items():
            if leader not in brokers:
                require(Code.LEADER_NOT_AVAILABLE, self._topic, partition, "no broker leads it now: is one down?")
        return {partition: brokers[leader] for partition, leader in topic.leaders.items()}

    def _connected(self, address: str) -> RecordBroker:
        return RecordBroker([one_broker(address, None)], timeout=self._timeout)

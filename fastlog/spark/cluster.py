"""What the driver asks the brokers: which partitions there are, how far they go, where messages begin. No Spark."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from fastlog import _segment
from fastlog.client.addresses import Address
from fastlog.client.kafka_fields import Place
from fastlog.client.record_topics import KnownTopic
from fastlog.client.records import RecordBroker
from fastlog.client.topics import check_described, readable_end
from fastlog.consumer.broker_logs import MOST_SEGMENTS
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.errors import (
    ConfigError,
    ConsumerTimeout,
    InvalidMessageError,
    PartitionOfflineError,
    TransportError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.spark.addresses import NamedAddress
from fastlog.spark.discovery import Brokers, Coordination, ListedBrokers, RegisteredBrokers, RetryBackoff
from fastlog.spark.offsets import OffsetRange, is_of_records, log_number
from fastlog.spark.options import SourceOptions
from fastlog.spark.record_logs import RecordLogs
from fastlog.wire import responses
from fastlog.zkpaths import PartitionId

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_LOOK_SECONDS = 0.5


class PartitionBounds(NamedTuple):
    """How far a partition goes: the oldest offset, the end of what is visible, the end of what was appended.

    ``created_ms`` says which log it is, as ``offsets`` has it: when it was made, 0 where that is not known.
    """

    log_start: int
    high_watermark: int
    log_end: int
    created_ms: int = 0

    @property
    def is_of_records(self) -> bool:
        """Whether offsets are those of records, and not bytes."""
        return is_of_records(self.created_ms)

    def until(self, end: int) -> PartitionBounds:
        """The same, as if nothing had been appended behind ``end``."""
        return self._replace(high_watermark=min(self.high_watermark, end), log_end=min(self.log_end, end))

    def is_of_another_log(self, created_ms: int) -> bool:
        """Whether the log is not the one that is known by that: it was deleted and made anew."""
        return bool(created_ms and self.created_ms and created_ms != self.created_ms)


class RecordLogSource(NamedTuple):
    """Of a partition of record batches: the id of its topic, and the log directory that has its files."""

    topic_id: bytes
    directory: str


class QueryCluster:
    """The brokers of a query. For one thread; every call tries again when a broker does not answer.

    Implements ``planner.SplitPoints``.
    """

    def __init__(self, options: SourceOptions, brokers: Brokers | None = None) -> None:
        """``brokers``: who knows where they are, if not what the options say."""
        self._options = options
        self._coordination: Coordination | None = None
        self._brokers = brokers if brokers is not None else self._known_brokers()
        self._consumers: dict[Address, SimpleConsumer] = {}
        self._record_logs: dict[Address, RecordLogs] = {}
        self._of_records: dict[TopicPartition, bytes] = {}  # with the ids of their topics
        self._addresses: dict[int, Address] = {}  # by broker id: of all that were ever seen
        self._answered: set[Address] = set()
        self._present: set[int] = set()
        self._vanished: set[int] = set()  # of those that the last look began with

    def close(self) -> None:
        """Close all connections."""
        self._brokers.close()
        for consumer in self._consumers.values():
            consumer.close()
        for records in self._record_logs.values():
            records.close()
        if self._coordination is not None:
            self._coordination.close()

    @property
    def coordination(self) -> Coordination | None:
        """The session with ZooKeeper, where brokers are found through it."""
        return self._coordination

    def address(self, broker: int) -> Address:
        """Where a broker is that ``bounds`` has found."""
        return self._addresses[broker]

    def is_away(self, broker: int) -> bool:
        """Whether a broker was not there when ``bounds`` looked, and may come back."""
        return self._brokers.follows and broker not in self._present

    def bounds(self, needed: Collection[int] = ()) -> dict[TopicPartition, PartitionBounds]:
        """Every partition that the query reads and that exists; those of an unavailable broker are left out.

        ``needed`` are the brokers that have to be there: it is waited for them as for one that does not answer.

        Raises:
            TransportError: a broker does not answer, or is unavailable and needed, after all retries.
            CoordinationError: no ZooKeeper answers, and it never did.
            PartitionOfflineError: a broker does not serve one of them.
            ConfigError: two addresses are one broker, or a broker is none that can be read so.
        """
        backoff = self._backoff()
        while True:
            found = self._all_bounds()
            away = [broker for broker in sorted(needed) if self.is_away(broker)]
            if not away:
                return found
            backoff.failed(TransportError(f"broker {away[0]} is not registered in ZooKeeper {self._options.zookeeper}"))

    def missing(self, known: Iterable[TopicPartition] = ()) -> dict[int, list[TopicPartition]]:
        """The brokers that ``bounds`` has not found, by what is known of them that the query reads.

        ``known``: partitions that a query or a table has read before. Nothing is missing of a list of brokers: one that
        does not answer is an error there.
        """
        wanted = {*known, *self._options.assigned}
        for broker, counts in self._brokers.absent(self._options.wants_topic).items():
            for topic, count in counts.items():
                wanted |= {TopicPartition(topic, PartitionId(broker, number)) for number in range(count)}
        found: dict[int, list[TopicPartition]] = {broker: [] for broker in self._vanished}
        for partition in sorted(filter(self._options.wants, wanted)):
            if self.is_away(partition.partition.broker):
                found.setdefault(partition.partition.broker, []).append(partition)
        return dict(sorted(found.items()))

    def visible_bounds(self) -> dict[TopicPartition, PartitionBounds]:
        """The same, once everything is visible that had been appended when it was called.

        Raises:
            ConsumerTimeout: it did not become visible within the time a broker has for an answer.
        """
        appended = self.bounds()
        found = appended
        deadline = time.monotonic() + self._options.fetch_timeout
        while hidden := [item for item in appended if item in found and _is_hidden(found[item], appended[item])]:
            if time.monotonic() > deadline:
                raise ConsumerTimeout(
                    f"{hidden[0]}: {appended[hidden[0]].log_end - found[hidden[0]].high_watermark} bytes were appended"
                    f" and are not visible after {self._options.fetch_timeout:g} s: the broker does not flush"
                )
            for partition in hidden:
                # A fetch that waits asks for a flush.
                self._fetch(partition, found[partition].high_watermark, 1, wait=_LOOK_SECONDS)
            found = self.bounds()
        return {item: bounds.until(appended[item].log_end) for item, bounds in found.items() if item in appended}

    def offset_at(self, partition: TopicPartition, time_ms: int) -> int | None:
        """The start of the segment in which the first append at or after a time lies; None when there is none so late.

        Segments are what a broker knows the times of: some messages behind that place may be older. Of record batches
        it is the first record with such a time.
        """
        if partition in self._of_records:
            return self._tried(lambda: self._record_logs_of(partition).offset_at(_place(partition), time_ms))
        consumer, number = self._reached(partition)
        before = self._tried(lambda: consumer.get_offsets_before(partition.topic, number, time_ms - 1, 1))
        borders = self._borders(partition)
        if not borders:
            return None
        at = borders[bisect_right(borders, before[0])] if before and before[0] < borders[-1] else None
        if not before:
            at = borders[0]
        return None if at is None or at == borders[-1] else at

    def next_boundary(self, partition: TopicPartition, offset: int, bounds: PartitionBounds) -> int:
        """The first message boundary at or behind an offset between the bounds; the offset itself if it is one."""
        if bounds.is_of_records or offset in (bounds.log_start, bounds.high_watermark):
            return offset
        consumer, number = self._reached(partition)
        try:
            points = self._tried(
                lambda: consumer.cut_points(partition.topic, number, offset, bounds.high_watermark, 1, 1)
            )
            return points[0] if points else bounds.high_watermark
        except UnsupportedFeatureError:
            border = max(item for item in [bounds.log_start, *self._borders(partition)] if item <= offset)
            return self._walked(partition, border, offset, bounds.high_watermark)

    def between(self, partition: TopicPartition, interval: OffsetRange, step_bytes: int) -> list[int]:
        """See ``SplitPoints``. Raises ``OffsetOutOfRangeError`` when the interval is not in the visible log."""
        if partition in self._of_records:
            place = _place(partition)
            return self._tried(lambda: self._record_logs_of(partition).cuts(place, *interval, step_bytes))
        points = [interval.start]
        try:
            for point in self._told(partition, interval, step_bytes):
                points.append(point)
        except UnsupportedFeatureError:
            points = [interval.start]
            borders = self._borders(partition)
            while points[-1] + step_bytes <= interval.end:
                target = points[-1] + step_bytes
                start = max([points[-1], *(item for item in borders if item <= target)])
                point = self._walked(partition, start, target, interval.end)
                if not points[-1] < point <= interval.end:
                    break
                points.append(point)
        return points

    def after(self, partition: TopicPartition, interval: OffsetRange) -> int:
        """See ``SplitPoints``."""
        consumer, number = self._reached(partition)
        try:
            points = self._tried(lambda: consumer.cut_points(partition.topic, number, *interval, 1, 2))
        except UnsupportedFeatureError:
            return self._walked(partition, interval.start, interval.start + 1, interval.end)
        if len(points) < 2 or points[0] != interval.start:
            raise InvalidMessageError(f"{partition}: no message begins at offset {interval.start}")
        return points[1]

    def record_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """The bytes of a record, on the average of what there is: of those partitions that are of record batches."""
        found: dict[TopicPartition, float] = {}
        for broker, items in self._by_broker(partitions).items():
            logs = self._records_at(self._addresses[broker])
            sizes = self._tried(partial(logs.record_bytes, [_place(item) for item in items]))
            found |= {item: sizes[_place(item)] for item in items}
        return found

    def record_source(self, partition: TopicPartition) -> RecordLogSource | None:
        """What a task has to know of a partition of record batches; None for one of messages."""
        topic_id = self._of_records.get(partition)
        if topic_id is None:
            return None
        place = _place(partition)
        stored = self._tried(lambda: self._record_logs_of(partition).stored([place]))
        return RecordLogSource(topic_id, stored[place].directory if place in stored else "")

    # -- inside --------------------------------------------------------------------------------------------------------

    def _consumer(self, address: Address) -> SimpleConsumer:
        made = self._consumers.get(address)
        if made is None:
            made = self._consumers[address] = SimpleConsumer(
                address.host,
                address.port,
                timeout=self._options.fetch_timeout,
                max_message_bytes=self._options.max_message_bytes,
                local="off",
            )
        return made

    def _known_brokers(self) -> Brokers:
        options = self._options
        if options.zookeeper is None:
            return ListedBrokers(options.brokers)
        self._coordination = Coordination(options.zookeeper, options.zookeeper_timeout)
        return RegisteredBrokers(self._coordination, options.retries, options.retry_interval)

    def _backoff(self, *, has_answered: bool = True) -> RetryBackoff:
        """For a broker that does not answer; one that never has may be no broker at all."""
        timeout = self._options.retry_timeout if has_answered else 0.0
        return RetryBackoff(self._options.retries, self._options.retry_interval, timeout)

    def _all_bounds(self) -> dict[TopicPartition, PartitionBounds]:
        found: dict[TopicPartition, PartitionBounds] = {}
        self._present, self._vanished = set(), set()
        for named in self._brokers.look():
            found.update(self._bounds_of(named))
        in_use = {self._addresses[broker] for broker in self._present}
        for address in self._consumers.keys() - in_use:
            self._consumers.pop(address).close()
            if address in self._record_logs:
                self._record_logs.pop(address).close()
        self._check_alone(found)
        return found

    def _check_alone(self, found: Iterable[TopicPartition]) -> None:
        """Clients of today take each broker for a cluster: two of them may have the same topic without knowing it."""
        of_topic: dict[str, set[int]] = {}
        for partition in found:
            if partition in self._of_records:
                of_topic.setdefault(partition.topic, set()).add(partition.partition.broker)
        for topic, brokers in of_topic.items():
            if len(brokers) > 1:
                raise ConfigError(
                    f"{topic!r} is a topic of record batches of brokers {' and '.join(map(str, sorted(brokers)))}, each"
                    " of which is a cluster of its own: read them one by one"
                )

    def _bounds_of(self, named: NamedAddress) -> Iterator[tuple[TopicPartition, PartitionBounds]]:
        backoff = self._backoff(has_answered=named.address in self._answered)
        while True:
            try:
                # These first: what they have of topics of messages is seen to be that by what comes after.
                today = self._records_at(named.address).topics(self._options.named_topics)
                answer = self._consumer(named.address).metadata(self._options.named_topics)
                self._answered.add(named.address)
                break
            except TransportError as error:
                backoff.failed(error)
                there = self._brokers.look_again(named)
                if there is None:
                    log.warning("broker %s at %s is not registered any more", named.broker, named.address)
                    self._vanished |= set() if named.broker is None else {named.broker}
                    return
                named = there
        broker = self._identified(named, answer)
        if answer is None:
            yield from self._plain_bounds(named, broker)
            return
        for topic in answer.topics:
            if topic.error == WrongPartitionError.code:
                continue  # of record batches: in what came before, unless it was made just now
            today.pop(topic.name, None)
            check_described(topic, named.address)
            for item in topic.partitions:
                partition = TopicPartition(topic.name, PartitionId(broker, item.partition))
                if not self._options.wants(partition):
                    continue
                if item.state == responses.STATE_OFFLINE:
                    raise PartitionOfflineError(f"{partition}: {named.address} does not serve it: it is offline")
                yield (
                    partition,
                    PartitionBounds(item.log_start, item.high_watermark, readable_end(item), item.created_ms),
                )
        yield from self._tried(lambda: self._record_bounds(broker, today)).items()

    def _records_at(self, address: Address) -> RecordLogs:
        made = self._record_logs.get(address)
        if made is None:
            made = RecordLogs(RecordBroker([address], timeout=self._options.fetch_timeout, client="fastlog-spark"))
            self._record_logs[address] = made
        return made

    def _record_logs_of(self, partition: TopicPartition) -> RecordLogs:
        return self._records_at(self._addresses[partition.partition.broker])

    def _by_broker(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        found: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            if partition in self._of_records:
                found.setdefault(partition.partition.broker, []).append(partition)
        return found

    def _record_bounds(self, broker: int, topics: dict[str, KnownTopic]) -> dict[TopicPartition, PartitionBounds]:
        """Those of topics of record batches that the query reads."""
        every = (
            TopicPartition(name, PartitionId(broker, number))
            for name, topic in topics.items()
            for number in topic.partitions
        )
        places = {partition: _place(partition) for partition in every if self._options.wants(partition)}
        extents = self._records_at(self._addresses[broker]).extents(topics, places.values())
        for known in [item for item in self._of_records if item.partition.broker == broker]:
            del self._of_records[known]
        found = {}
        for partition, place in places.items():
            extent = extents[place]
            self._of_records[partition] = extent.topic_id
            found[partition] = PartitionBounds(extent.log_start, extent.end, extent.end, log_number(extent.topic_id))
        return found

    def _tried(self, call: Callable[[], _T]) -> _T:
        backoff = self._backoff()
        while True:
            try:
                return call()
            except TransportError as error:
                backoff.failed(error)

    def _reached(self, partition: TopicPartition) -> tuple[SimpleConsumer, int]:
        return self._consumer(self._addresses[partition.partition.broker]), partition.partition.partition

    def _identified(self, named: NamedAddress, answer: responses.MetadataAnswer | None) -> int:
        broker = named.broker
        if answer is not None:
            if broker is not None and broker != answer.broker_id:
                raise ConfigError(f"brokers: {named.address} is broker {answer.broker_id}, not {broker}")
            broker = answer.broker_id
        elif broker is None:
            raise ConfigError(f"brokers: {named.address} speaks plain 0.7 and does not tell its id: write id@host:port")
        if broker in self._present:
            other = self._addresses[broker]
            raise ConfigError(f"brokers: {other} and {named.address} are both broker {broker}")
        self._present.add(broker)
        self._addresses[broker] = named.address
        return broker

    def _plain_bounds(self, named: NamedAddress, broker: int) -> Iterator[tuple[TopicPartition, PartitionBounds]]:
        """Those of a broker that does not tell which partitions it has."""
        for partition in self._plain_partitions(named, broker):
            borders = self._borders(partition)
            yield partition, PartitionBounds(borders[0], borders[-1], borders[-1])

    def _plain_partitions(self, named: NamedAddress, broker: int) -> Iterable[TopicPartition]:
        if self._options.assigned:
            return [partition for partition in self._options.assigned if partition.partition.broker == broker]
        counts = self._brokers.partitions(broker)
        if counts is None:
            raise ConfigError(f"{named.address} speaks plain 0.7 and does not tell its partitions: use assign")
        every = (
            TopicPartition(topic, PartitionId(broker, number))
            for topic, count in counts.items()
            for number in range(count)
        )
        return filter(self._options.wants, every)

    def _borders(self, partition: TopicPartition) -> list[int]:
        """Where segments begin, and the visible end; ascending."""
        consumer, number = self._reached(partition)
        ends = self._tried(lambda: consumer.get_offsets_before(partition.topic, number, LATEST, MOST_SEGMENTS))
        starts = self._tried(lambda: consumer.get_offsets_before(partition.topic, number, EARLIEST, 1))
        return sorted({*starts, *ends}) or [0]

    def _told(self, partition: TopicPartition, interval: OffsetRange, step_bytes: int) -> Iterator[int]:
        """The boundaries behind the start that a fastlog broker tells, over as many requests as that takes."""
        consumer, number = self._reached(partition)
        at, end = interval
        while at < end:
            points = self._tried(partial(consumer.cut_points, partition.topic, number, at, end, step_bytes))
            if not points or points[0] != at:
                raise InvalidMessageError(f"{partition}: no message begins at offset {at}")
            fresh = [point for point in points if at < point <= end]
            if not fresh:
                return  # the end lies inside a message
            if fresh[-1] == end and len(fresh) > 1 and end - fresh[-2] >= step_bytes:
                fresh.pop()  # a broker walks so far at a time and names the end all the same: what is between is left
            yield from fresh
            at = fresh[-1]

    def _walked(self, partition: TopicPartition, start: int, target: int, end: int) -> int:
        """The first boundary at or behind ``target``, found by fetching from ``start`` on, which is one."""
        at = start
        while at < min(target, end):
            data = self._fetch(partition, at, max(self._options.fetch_bytes, target - at))
            if not data:
                raise InvalidMessageError(f"{partition}: the log ends at {at}, before offset {end}")
            reached = _segment.skip_to(data, target - at)
            at += reached or len(data)
        return at

    def _fetch(self, partition: TopicPartition, offset: int, max_bytes: int, wait: float = 0.0) -> memoryview:
        """Fetch whole messages from an offset on, at most ``max_bytes``; ``wait``: seconds for some to come."""
        consumer, number = self._reached(partition)
        max_bytes = min(max_bytes, self._options.fetch_bytes)
        found = self._tried(lambda: consumer.fetch(partition.topic, number, offset, max_bytes, wait=wait))
        return found.data[: found.valid_bytes]


def _place(partition: TopicPartition) -> Place:
    return partition.topic, partition.partition.partition


def _is_hidden(now: PartitionBounds, appended: PartitionBounds) -> bool:
    return now.high_watermark < min(now.log_end, appended.log_end)

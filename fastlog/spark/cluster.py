"""What the driver asks the brokers: which partitions there are, how far they go, where messages begin. No Spark."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from fastlog import _segment
from fastlog.client.addresses import Address
from fastlog.client.connection import pause
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.errors import (
    ConfigError,
    ConsumerTimeout,
    InvalidMessageError,
    PartitionOfflineError,
    TransportError,
    UnsupportedFeatureError,
)
from fastlog.spark.offsets import Interval
from fastlog.spark.options import NamedAddress, SourceOptions
from fastlog.wire import responses
from fastlog.zkpaths import PartitionId

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_MOST_SEGMENTS = 2**20
_LOOK_SECONDS = 0.5
_MOST_PAUSE = 10.0


class Bounds(NamedTuple):
    """How far a partition goes: the oldest byte, the end of what is visible, the end of what was appended."""

    log_start: int
    high_watermark: int
    log_end: int

    def until(self, end: int) -> Bounds:
        """The same, as if nothing had been appended behind ``end``."""
        return Bounds(self.log_start, min(self.high_watermark, end), min(self.log_end, end))


class Patience:
    """Lets a call fail with ``TransportError`` so many times in a row; the pauses between double. For one thread."""

    def __init__(self, retries: int, interval: float) -> None:
        self._retries = retries
        self._interval = interval
        self._failures = 0

    def worked(self) -> None:
        """The next failure is a first one again."""
        self._failures = 0

    def failed(self, error: TransportError) -> None:
        """Return after a pause, to try again, or raise ``error`` once it was tried often enough."""
        if self._failures >= self._retries:
            raise error
        log.warning("%s: trying again, %d of %d", str(error).partition("\n")[0], self._failures + 1, self._retries)
        pause(min(self._interval * 2**self._failures, _MOST_PAUSE))
        self._failures += 1


class Cluster:
    """The brokers that a query names. For one thread; every call tries again when a broker does not answer.

    Implements ``planner.Boundaries``.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumers = [self._consumer(item.address) for item in options.brokers]
        self._places: dict[int, int] = {}  # broker id → its place in the lists above

    def close(self) -> None:
        """Close all connections."""
        for consumer in self._consumers:
            consumer.close()

    def address(self, broker: int) -> Address:
        """Where a broker is that ``bounds`` has found."""
        return self._options.brokers[self._places[broker]].address

    def bounds(self) -> dict[TopicPartition, Bounds]:
        """Every partition that the query reads and that exists.

        Raises:
            TransportError: a broker does not answer, after all retries.
            PartitionOfflineError: a broker does not serve one of them.
            ConfigError: two addresses are one broker, or a broker is none that can be read so.
        """
        found: dict[TopicPartition, Bounds] = {}
        for place, named in enumerate(self._options.brokers):
            answer = self._tried(partial(self._consumers[place].metadata, self._options.named_topics))
            broker = self._identified(place, named, answer)
            if answer is None:
                found.update(self._plain_bounds(place, broker))
                continue
            for topic in answer.topics:
                for item in topic.partitions:
                    partition = TopicPartition(topic.name, PartitionId(broker, item.partition))
                    if not self._options.wants(partition):
                        continue
                    if item.state == responses.STATE_OFFLINE:
                        raise PartitionOfflineError(f"{partition}: {named.address} does not serve it: it is offline")
                    # What takes no appends shows no more than it does now.
                    end = item.log_end if item.state == responses.STATE_OK else item.high_watermark
                    found[partition] = Bounds(item.log_start, item.high_watermark, end)
        return found

    def visible_bounds(self) -> dict[TopicPartition, Bounds]:
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

        Segments are what a broker knows the times of: some messages behind that place may be older.
        """
        consumer, number = self._reached(partition)
        before = self._tried(lambda: consumer.get_offsets_before(partition.topic, number, time_ms - 1, 1))
        borders = self._borders(partition)
        if not borders:
            return None
        at = borders[bisect_right(borders, before[0])] if before and before[0] < borders[-1] else None
        if not before:
            at = borders[0]
        return None if at is None or at == borders[-1] else at

    def next_boundary(self, partition: TopicPartition, offset: int, bounds: Bounds) -> int:
        """The first message boundary at or behind an offset between the bounds; the offset itself if it is one."""
        if offset in (bounds.log_start, bounds.high_watermark):
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

    def between(self, partition: TopicPartition, interval: Interval, step_bytes: int) -> list[int]:
        """See ``Boundaries``. Raises ``OffsetOutOfRangeError`` when the interval is not in the visible log."""
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

    def after(self, partition: TopicPartition, interval: Interval) -> int:
        """See ``Boundaries``."""
        consumer, number = self._reached(partition)
        try:
            points = self._tried(lambda: consumer.cut_points(partition.topic, number, *interval, 1, 2))
        except UnsupportedFeatureError:
            return self._walked(partition, interval.start, interval.start + 1, interval.end)
        if len(points) < 2 or points[0] != interval.start:
            raise InvalidMessageError(f"{partition}: no message begins at offset {interval.start}")
        return points[1]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _consumer(self, address: Address) -> SimpleConsumer:
        return SimpleConsumer(
            address.host,
            address.port,
            timeout=self._options.fetch_timeout,
            max_message_bytes=self._options.max_message_bytes,
            local="off",
        )

    def _tried(self, call: Callable[[], _T]) -> _T:
        patience = Patience(self._options.retries, self._options.retry_interval)
        while True:
            try:
                return call()
            except TransportError as error:
                patience.failed(error)

    def _reached(self, partition: TopicPartition) -> tuple[SimpleConsumer, int]:
        return self._consumers[self._places[partition.partition.broker]], partition.partition.partition

    def _identified(self, place: int, named: NamedAddress, answer: responses.MetadataAnswer | None) -> int:
        broker = named.broker
        if answer is not None:
            if broker is not None and broker != answer.broker_id:
                raise ConfigError(f"brokers: {named.address} is broker {answer.broker_id}, not {broker}")
            broker = answer.broker_id
        elif broker is None:
            raise ConfigError(f"brokers: {named.address} speaks plain 0.7 and does not tell its id: write id@host:port")
        if self._places.setdefault(broker, place) != place:
            other = self._options.brokers[self._places[broker]].address
            raise ConfigError(f"brokers: {other} and {named.address} are both broker {broker}")
        return broker

    def _plain_bounds(self, place: int, broker: int) -> Iterator[tuple[TopicPartition, Bounds]]:
        """Those of a broker that does not tell which partitions it has."""
        if not self._options.assigned:
            raise ConfigError(
                f"{self._options.brokers[place].address} speaks plain 0.7 and does not tell its partitions: use assign"
            )
        for partition in self._options.assigned:
            if partition.partition.broker == broker:
                borders = self._borders(partition)
                yield partition, Bounds(borders[0], borders[-1], borders[-1])

    def _borders(self, partition: TopicPartition) -> list[int]:
        """Where segments begin, and the visible end; ascending."""
        consumer, number = self._reached(partition)
        ends = self._tried(lambda: consumer.get_offsets_before(partition.topic, number, LATEST, _MOST_SEGMENTS))
        starts = self._tried(lambda: consumer.get_offsets_before(partition.topic, number, EARLIEST, 1))
        return sorted({*starts, *ends}) or [0]

    def _told(self, partition: TopicPartition, interval: Interval, step_bytes: int) -> Iterator[int]:
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
        """Whole messages from an offset on."""
        consumer, number = self._reached(partition)
        max_bytes = min(max_bytes, self._options.fetch_bytes)
        found = self._tried(lambda: consumer.fetch(partition.topic, number, offset, max_bytes, wait=wait))
        return found.data[: found.valid_bytes]


def _is_hidden(now: Bounds, appended: Bounds) -> bool:
    return now.high_watermark < min(now.log_end, appended.log_end)

"""What Spark's side decides, without brokers and without Spark: logs of made-up messages, and Spark's call order."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from fastlog.client.addresses import Address
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import OffsetOutOfRangeError, TransportError
from fastlog.spark.cluster import PartitionBounds, RecordLogSource
from fastlog.spark.offsets import OffsetRange, log_number
from fastlog.spark.plans import StreamPlan
from fastlog.zkpaths import PartitionId


def partition_of(text: str) -> TopicPartition:
    """``logs/0-1`` as a partition."""
    topic, _, number = text.rpartition("/")
    return TopicPartition(topic, PartitionId.parse(number))


class MadeUpCluster:
    """What ``QueryCluster`` does, over lists of message sizes. ``borders`` of a partition are message boundaries."""

    def __init__(self, **sizes: Sequence[int]) -> None:
        self.borders: dict[TopicPartition, list[int]] = {}
        self.wants: Callable[[TopicPartition], bool] = lambda partition: True
        self.times: dict[TopicPartition, dict[int, int | None]] = {}
        self.away: set[int] = set()
        self.created: dict[TopicPartition, int] = {}
        self.sizes: dict[TopicPartition, float] = {}  # of records, where a partition has those
        for name, items in sizes.items():
            topic, broker, partition = name.rsplit("_", 2)
            self.append(f"{topic}/{broker}-{partition}", *items)

    def append(self, name: str, *sizes: int) -> None:
        """Messages of these sizes at the end of a partition, which is made if need be."""
        borders = self.borders.setdefault(partition_of(name), [0])
        for size in sizes:
            borders.append(borders[-1] + size)

    def retain(self, name: str, start: int) -> None:
        """Remove what is before a boundary."""
        borders = self.borders[partition_of(name)]
        del borders[: borders.index(start)]

    def cut(self, name: str, end: int) -> None:
        """Remove what is behind a boundary, as no broker should."""
        borders = self.borders[partition_of(name)]
        del borders[borders.index(end) + 1 :]

    def make_anew(self, name: str, created_ms: int, *sizes: int) -> None:
        """Put another log, with messages of these sizes, in the place of a partition's."""
        self.borders.pop(partition_of(name), None)
        self.append(name, *sizes)
        self.created[partition_of(name)] = created_ms

    def messages(self, partition: TopicPartition, interval: OffsetRange) -> list[int]:
        """Where the messages of an interval begin, which begins and ends with one."""
        borders = self.borders[partition]
        assert interval.start in borders
        assert interval.end in borders
        return borders[borders.index(interval.start) : borders.index(interval.end)]

    def bounds(self, needed: Collection[int] = ()) -> dict[TopicPartition, PartitionBounds]:
        if self.away & set(needed):
            raise TransportError(f"{self.away} are away")
        return {
            item: PartitionBounds(borders[0], borders[-1], borders[-1], self.created.get(item, 0))
            for item, borders in self.borders.items()
            if self.wants(item) and not self.is_away(item.partition.broker)
        }

    visible_bounds = bounds

    def missing(self, known: Iterable[TopicPartition] = ()) -> dict[int, list[TopicPartition]]:
        found: dict[int, list[TopicPartition]] = {}
        for item in sorted({*self.borders, *known}):
            if self.wants(item) and self.is_away(item.partition.broker):
                found.setdefault(item.partition.broker, []).append(item)
        return found

    def is_away(self, broker: int) -> bool:
        return broker in self.away

    def make_records(self, name: str, topic_id: bytes, count: int, record_bytes: float) -> None:
        """Let a partition be one of record batches: every offset is a boundary, and a record has so many bytes."""
        self.borders[partition_of(name)] = list(range(count + 1))
        self.created[partition_of(name)] = log_number(topic_id)
        self.sizes[partition_of(name)] = record_bytes

    def record_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        return {item: self.sizes[item] for item in partitions if item in self.sizes}

    def record_source(self, partition: TopicPartition) -> RecordLogSource | None:
        return RecordLogSource(b"i" * 16, "/data") if partition in self.sizes else None

    def address(self, broker: int) -> Address:
        return Address(f"host{broker}", 9092)

    def offset_at(self, partition: TopicPartition, time_ms: int) -> int | None:
        return self.times[partition][time_ms]

    def next_boundary(self, partition: TopicPartition, offset: int, bounds: PartitionBounds) -> int:
        return self.borders[partition][bisect_left(self.borders[partition], offset)]

    def between(self, partition: TopicPartition, interval: OffsetRange, step_bytes: int) -> list[int]:
        self._check(partition, interval)
        points: list[int] = []
        for border in self.borders[partition]:
            if interval.start <= border <= interval.end and (not points or border >= points[-1] + step_bytes):
                points.append(border)
        last = max(border for border in self.borders[partition] if border <= interval.end)
        return points if last == points[-1] else [*points, last]

    def after(self, partition: TopicPartition, interval: OffsetRange) -> int:
        self._check(partition, interval)
        return min(border for border in self.borders[partition] if border > interval.start)

    def _check(self, partition: TopicPartition, interval: OffsetRange) -> None:
        borders = self.borders[partition]
        assert interval.start in borders, f"{interval.start} is asked for and is no boundary"
        if interval.start < borders[0] or interval.end > borders[-1]:
            raise OffsetOutOfRangeError(f"{interval}")


class Killed(Exception):
    """The engine was killed at a point that the test has chosen."""


class MadeUpSpark:
    """Runs micro-batches as Spark does: with a log of ends and one of commits, and asking in its order.

    ``rows`` holds what the sink got for each batch: a batch that runs again replaces what it wrote before, as in every
    sink that recognises a batch by its number.
    """

    def __init__(self, cluster: MadeUpCluster, make: Callable[[], StreamPlan]) -> None:
        self._cluster = cluster
        self._make = make
        self.ends: list[str] = []
        self.committed = 0
        self.rows: dict[int, list[tuple[TopicPartition, int]]] = {}

    def run(
        self,
        max_bytes: int | None = None,
        *,
        available_now: bool = True,
        most: int = 1000,
        kill: Callable[[str, int], bool] = lambda point, batch: False,
    ) -> None:
        """Run until there is nothing new, or ``most`` batches; raises ``Killed`` where ``kill`` says so."""
        plan = self._make()
        if available_now:
            plan.prepare()
        if len(self.ends) > self.committed:
            self._batch(plan, self.committed, kill)
        for _ in range(most):
            start = self.ends[-1] if self.ends else _text(plan.initial())
            end = _text(plan.latest(json.loads(start), max_bytes))
            if end == start:
                return
            self.ends.append(end)
            self._batch(plan, len(self.ends) - 1, kill)
        assert not available_now, "it does not come to an end"

    def _batch(self, plan: StreamPlan, number: int, kill: Callable[[str, int], bool]) -> None:
        self._maybe(kill, "planned", number)
        if not number:
            plan.initial()
        tasks = plan.tasks(json.loads(self.ends[number]))
        found = []
        for task in tasks:
            partition = TopicPartition(task.topic, PartitionId(task.broker, task.partition))
            found += [(partition, at) for at in self._cluster.messages(partition, OffsetRange(task.start, task.end))]
        self._maybe(kill, "read", number)
        self.rows[number] = found
        self._maybe(kill, "written", number)
        self.committed = number + 1

    def _maybe(self, kill: Callable[[str, int], bool], point: str, number: int) -> None:
        if kill(point, number):
            raise Killed

    @property
    def all_rows(self) -> list[tuple[TopicPartition, int]]:
        """Everything that the sink holds."""
        return [row for _, rows in sorted(self.rows.items()) for row in rows]


def _text(offset: Any) -> str:
    return json.dumps(offset)

"""What a load reads next. Knows no Spark: partitions, what the table has of them, and what the brokers hold."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError, CoordinationError, DataLossError, RangeIncompleteError
from fastlog.spark import offsets, planner
from fastlog.spark.behind import Behind
from fastlog.spark.cluster import PartitionBounds, QueryCluster
from fastlog.spark.lake import NumberStep
from fastlog.spark.offsets import OffsetRange, OffsetSpec
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import QueryPlan, Task
from fastlog.zkpaths import PartitionId

log = logging.getLogger(__name__)

OFFSETS = "fastlog:"
"""Begins the names of the offsets in a table."""
BATCHES = "fastlog.batches"
"""The name of the number of the last batch in a table."""


class TableNumbers(Protocol):
    """What remembers, as a ``Lake`` does."""

    def number(self, name: str) -> int | None:
        """The number that the table keeps under a name; None where there is none."""

    def names(self, prefix: str) -> list[str]:
        """The names of numbers that begin with ``prefix``."""


class LoadBatch(NamedTuple):
    """What one transaction brings: what is read of each partition, and what cannot be read any more.

    Offsets of the partitions in ``of_records`` are numbers of records, those of others are bytes.
    """

    ranges: dict[TopicPartition, OffsetRange]
    lost: dict[TopicPartition, list[OffsetRange]]
    steps: dict[str, NumberStep]
    of_records: frozenset[TopicPartition] = frozenset()

    @property
    def size_bytes(self) -> int:
        """How many bytes are to be read, of topics of messages."""
        return self.sizes()[0]

    @property
    def lost_bytes(self) -> int:
        """How many bytes cannot be read, of topics of messages."""
        return self.lost_sizes()[0]

    def sizes(self) -> tuple[int, int]:
        """How many bytes are to be read, of topics of messages, and how many records of the others."""
        return self._summed({partition: [interval] for partition, interval in self.ranges.items()})

    def lost_sizes(self) -> tuple[int, int]:
        """As ``sizes``, of what cannot be read any more."""
        return self._summed(self.lost)

    def _summed(self, intervals: Mapping[TopicPartition, list[OffsetRange]]) -> tuple[int, int]:
        return _sizes(intervals, self.of_records)

    @property
    def to_read(self) -> dict[TopicPartition, OffsetRange]:
        """The ranges that are not empty."""
        return {partition: interval for partition, interval in self.ranges.items() if interval.size_bytes}

    def notes(self) -> dict[str, Any]:
        """The fields for the table's history: the ranges, and what was lost."""
        found: dict[str, Any] = {"ranges": offsets.encode_ranges(self.ranges)["topics"]}
        if self.lost:
            found["lost"] = encode_lost(self.lost)
            found["lost_bytes"], lost_records = self.lost_sizes()
            if lost_records:
                found["lost_records"] = lost_records
        return found


def _sizes(
    intervals: Mapping[TopicPartition, list[OffsetRange]], of_records: Collection[TopicPartition]
) -> tuple[int, int]:
    """Bytes of messages, and records of the partitions in ``of_records``."""
    found = [0, 0]
    for partition, items in intervals.items():
        found[partition in of_records] += sum(interval.size_bytes for interval in items)
    return found[0], found[1]


def encode_lost(lost: Mapping[TopicPartition, list[OffsetRange]]) -> dict[str, Any]:
    """Lost ranges as JSON: ``{"topic": {"0-0": [[from, to]]}}``."""
    found: dict[str, Any] = {}
    for partition, intervals in sorted(lost.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = [list(interval) for interval in intervals]
    return found


def offset_name(partition: TopicPartition) -> str:
    """The name under which a table has the offset at which the next load of a partition begins."""
    return f"{OFFSETS}{partition}"


def lost_name(partition: TopicPartition) -> str:
    """The name under which a table has how many bytes of a partition, or records, it will never have."""
    return f"fastlog.lost:{partition}"


def created_name(partition: TopicPartition) -> str:
    """The name under which a table has which log that offset is of, as ``offsets`` has it."""
    return f"fastlog.created:{partition}"


def anew_name(partition: TopicPartition) -> str:
    """The name under which a table has how often that log was deleted and made anew."""
    return f"fastlog.anew:{partition}"


def _partition_in(name: str) -> TopicPartition | None:
    """The partition whose offset has this name."""
    topic, _, number = name.removeprefix(OFFSETS).rpartition("/")
    try:
        return TopicPartition(topic, PartitionId.parse(number))
    except CoordinationError:
        return None


class LoadPlan(QueryPlan):
    """Decides what the next transaction brings. ``numbers`` is asked each time: what the table says is what counts."""

    def __init__(self, options: SourceOptions, cluster: QueryCluster, numbers: TableNumbers, max_bytes: int) -> None:
        super().__init__(options, cluster)
        self._numbers = numbers
        self._max_bytes = max_bytes
        self.left = Behind()
        """What was visible when ``next`` was asked last, behind the batch that it returned."""
        self._found_lost: dict[TopicPartition, list[OffsetRange]] = {}
        self._found_anew: set[TopicPartition] = set()
        self._created: dict[TopicPartition, int] = {}  # of the logs that the last plan has seen

    def targets(self, *, complete: bool = True) -> dict[TopicPartition, PartitionBounds]:
        """How far the partitions go now, once all of that is visible.

        Not ``complete``: a broker that is missing is only told of, since what it has is read when it is back.

        Raises:
            ConfigError: a topic does not exist.
            BrokerMissingError: ZooKeeper or the table knows a broker of them that is not registered.
            DataLossError: a broker has a partition no more that the table has, and data may not be lost.
        """
        bounds = self._cluster.visible_bounds()
        known = [item for item in map(_partition_in, self._numbers.names(OFFSETS)) if item is not None]
        self._check_brokers(known, needed=complete)
        gone = [
            item
            for item in known
            if self._options.wants(item) and item not in bounds and not self._cluster.is_away(item.partition.broker)
        ]
        if gone:
            message = f"the table has {', '.join(map(str, gone))}, and the broker does not have that any more"
            if self._options.fail_on_data_loss:
                raise DataLossError(f"{message}; {self._options.loss_option} goes on with what is there")
            log.warning("%s; going on with what is there", message)
        for topic in self._options.topics:
            if not any(partition.topic == topic for partition in bounds):
                raise ConfigError(f"no broker has the topic {topic!r}")
        for partition in self._options.assigned:
            if partition not in bounds:
                raise ConfigError(f"there is no {partition}")
        return bounds

    def beginnings(self) -> dict[str, NumberStep]:
        """Steps that write down where partitions begin of which the table has nothing yet; often none.

        They are a transaction before anything is read, so that "latest" is the same after a restart, and what
        retention takes meanwhile is missed. A topic that is new to the table begins where the user says, a partition
        that comes later at its first message.
        """
        bounds = self._cluster.bounds()
        new = [partition for partition in bounds if self._stand(partition) is None]
        if not new:
            return {}
        known = {partition.topic for partition in bounds} - {partition.topic for partition in new}
        known |= {partition.topic for partition in bounds if self._stand(partition) is not None}
        fresh = {partition for partition in new if partition.topic not in known}
        given = self._resolved("starting", self._options.starting, bounds) if fresh else {}
        steps = {}
        for partition in new:
            at = bounds[partition].log_start
            if partition in fresh:
                at = given[partition]
                self._aligned("startingOffsets", self._options.starting, partition, at, bounds[partition])
            steps[offset_name(partition)] = NumberStep(None, at)
            if bounds[partition].created_ms:
                name = created_name(partition)
                steps[name] = NumberStep(self._numbers.number(name), bounds[partition].created_ms)
        return steps

    def next(self, targets: Mapping[TopicPartition, PartitionBounds] | None) -> LoadBatch | None:
        """The next batch, up to ``targets`` or to what is visible now; None when there is nothing.

        Raises:
            DataLossError: what comes next cannot be read any more, and ``failOnDataLoss`` is not switched off.
            RangeIncompleteError: a log ends before what the table has of it, and is not known to be another one.
            TransportError: a broker does not answer.
        """
        return self._settled(lambda: self._next(targets))

    def again(self, place: OffsetSpec) -> LoadBatch | None:
        """From a place to where the table stands: what a load that runs again replaces; None when that is nothing.

        Partitions that are not named by a place with offsets stay as they are.

        Raises:
            ConfigError: the table has nothing of a partition, or no message begins there.
            DataLossError: the log does not go back so far, and ``failOnDataLoss`` is not switched off.
        """
        return self._settled(lambda: self._again(place))

    def tasks(self, batch: LoadBatch) -> list[Task]:
        """What there is to read for a batch, cut into pieces for workers.

        Raises:
            OffsetOutOfRangeError: retention was faster; the next plan says what is lost.
            TransportError: a broker does not answer.
        """
        return self._tasks(batch.to_read, self._created)

    def _next(self, targets: Mapping[TopicPartition, PartitionBounds] | None) -> LoadBatch | None:
        bounds = self._looked()
        ranges = {}
        for partition, now in sorted(bounds.items()):
            at = self._stand(partition)
            if at is None:
                continue  # it is new; written down before the next round
            if targets is not None and partition not in targets:
                continue
            created_ms = self._numbers.number(created_name(partition)) or 0
            if now.is_of_another_log(created_ms):
                self._made_anew(partition, at, created_ms, now)
                at = now.log_start
            elif at > now.high_watermark:
                # Never gone on from: the broker gives these offsets to other messages.
                raise RangeIncompleteError(
                    f"{partition}: the table has it up to {at}, and the log ends at {now.high_watermark}:"
                    " the broker has lost messages, or the table was filled from another one"
                )
            end = now.high_watermark if targets is None else min(now.high_watermark, targets[partition].high_watermark)
            ranges[partition] = self._still_there(partition, OffsetRange(at, max(at, end)), now)
        ranges = planner.limit_batch(ranges, self._max_bytes, self._cluster, self._record_bytes(ranges))
        left = {item: [OffsetRange(end, max(end, bounds[item].high_watermark))] for item, (_, end) in ranges.items()}
        self.left = Behind(*_sizes(left, self._of_records))
        moved = {item: ranges[item] for item in ranges if ranges[item].end != self._stand(item)}
        if not moved and not self._found_lost:
            return None
        return self._batch({item: ranges[item] for item in {**moved, **self._found_lost}})

    def _again(self, place: OffsetSpec) -> LoadBatch | None:
        bounds = self._looked()
        if place.kind == "offsets":
            for partition, _ in place.by_partition:
                if partition not in bounds or self._stand(partition) is None:
                    raise ConfigError(f"--from: the table has nothing of {partition}")
            bounds = {partition: bounds[partition] for partition, _ in place.by_partition}
        begins = self._resolved("starting", place, bounds)
        ranges = {}
        for partition, now in sorted(bounds.items()):
            stand = self._stand(partition)
            if stand is None or begins[partition] >= stand:
                continue
            created_ms = self._numbers.number(created_name(partition)) or 0
            if now.is_of_another_log(created_ms) or self._numbers.number(anew_name(partition)):
                # Offsets do not tell the rows of the two, and those of the first are nowhere else.
                raise ConfigError(
                    f"--from: the table has rows of a log of {partition} that was deleted and made anew since:"
                    " they cannot be replaced; load the topic into another table"
                )
            self._aligned("--from", place, partition, begins[partition], now)
            ranges[partition] = self._still_there(partition, OffsetRange(begins[partition], stand), now)
        # What cannot be read again stays in the table as it is: it is not lost.
        self._found_lost = {}
        ranges = {partition: interval for partition, interval in ranges.items() if interval.size_bytes}
        return self._batch(ranges, again=True) if ranges else None

    def _batch(self, ranges: dict[TopicPartition, OffsetRange], *, again: bool = False) -> LoadBatch:
        number = self._numbers.number(BATCHES)
        steps = {BATCHES: NumberStep(number, 0 if number is None else number + 1)}
        for partition, interval in ranges.items():
            stand = self._stand(partition)
            assert stand is not None
            steps[offset_name(partition)] = NumberStep(stand, stand if again else interval.end)
            known = self._numbers.number(created_name(partition))
            if self._created.get(partition) not in (0, None, known):
                steps[created_name(partition)] = NumberStep(known, self._created[partition])
        for partition in self._found_anew:
            before = self._numbers.number(anew_name(partition))
            steps[anew_name(partition)] = NumberStep(before, (before or 0) + 1)
        for partition, intervals in self._found_lost.items():
            before = self._numbers.number(lost_name(partition))
            size = sum(interval.size_bytes for interval in intervals)
            steps[lost_name(partition)] = NumberStep(before, (before or 0) + size)
        return LoadBatch(ranges, dict(self._found_lost), steps, self._of_records)

    @property
    def _of_records(self) -> frozenset[TopicPartition]:
        return frozenset(item for item, created in self._created.items() if offsets.is_of_records(created))

    def _stand(self, partition: TopicPartition) -> int | None:
        return self._numbers.number(offset_name(partition))

    def _looked(self) -> dict[TopicPartition, PartitionBounds]:
        """How far partitions go now, for a plan of its own."""
        self._found_lost, self._found_anew = {}, set()
        bounds = self._cluster.bounds()
        self._created = {partition: now.created_ms for partition, now in bounds.items()}
        return bounds

    def _made_anew(self, partition: TopicPartition, at: int, created_ms: int, bounds: PartitionBounds) -> None:
        super()._made_anew(partition, at, created_ms, bounds)
        self._found_anew.add(partition)
        self._found_lost[partition] = [OffsetRange(at, at)]  # nobody knows how far it went

    def _lost(self, partition: TopicPartition, lost: OffsetRange, why: str, of_records: bool) -> None:
        super()._lost(partition, lost, why, of_records)
        self._found_lost.setdefault(partition, []).append(lost)

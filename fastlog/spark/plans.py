"""What a batch read and a streaming query read, decided on the driver. Everything but Spark's own classes.

A streaming query is asked in the order that Spark has: ``prepare`` (AvailableNow only), ``initial``, ``latest``,
``initial`` again, ``tasks``. After a crash it begins in a new process with ``initial`` and ``tasks`` for a batch whose
end was written down, so nothing that matters is kept here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import BrokerMissingError, ConfigError, DataLossError, OffsetOutOfRangeError
from fastlog.spark import offsets, planner
from fastlog.spark.cluster import PartitionBounds, QueryCluster, RecordLogSource
from fastlog.spark.offsets import OffsetRange, OffsetSpec, is_of_records
from fastlog.spark.options import SourceOptions
from fastlog.spark.schema import FASTLOG, KAFKA, usual_set

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_TRIES = 3
_MOST_NAMED = 5


class Task(NamedTuple):
    """What one task reads, and from where: bytes ``start`` to ``end`` of a partition, both message boundaries.

    ``created_ms`` says which log that is, as ``offsets`` has it. With ``records`` they are numbers of records.
    """

    topic: str
    broker: int
    partition: int
    host: str
    port: int
    start: int
    end: int
    created_ms: int = 0
    records: RecordLogSource | None = None

    def __str__(self) -> str:
        what = "bytes" if self.records is None else "records"
        return f"{self.topic}/{self.broker}-{self.partition}, {what} {self.start} to {self.end}"


def columns_for(bounds: Mapping[TopicPartition, PartitionBounds]) -> str | None:
    """The set of columns that a query over these partitions has if none is chosen; None where there is no partition.

    Raises:
        ConfigError: some are of topics of messages, others of topics of record batches.
    """
    kinds: dict[bool, str] = {}
    for partition in sorted(bounds):
        kinds.setdefault(bounds[partition].is_of_records, partition.topic)
    if len(kinds) > 1:
        raise ConfigError(
            f"schema: {kinds[True]!r} consists of record batches, {kinds[False]!r} of messages of Kafka 0.7: give"
            " schema=kafka for the columns that Spark's source for Kafka has, or schema=fastlog for those of messages"
        )
    return next((KAFKA if is_of_records else FASTLOG for is_of_records in kinds), None)


class QueryPlan:
    """What the plans of batch reads, streams and loads share."""

    def __init__(self, options: SourceOptions, cluster: QueryCluster) -> None:
        self._options = options
        self._cluster = cluster
        self._losses: list[str] = []

    def _settled(self, plan: Callable[[], _T]) -> _T:
        """Plan again when retention has removed what was about to be cut: the next look says what is lost.

        Raises:
            DataLossError: something is, and ``failOnDataLoss`` is not switched off; names every partition of it.
        """
        for last in (*[False] * (_TRIES - 1), True):
            self._losses = []
            try:
                found = plan()
                break
            except OffsetOutOfRangeError as error:
                if last:
                    raise
                log.debug("planning again: %s", error)
        if self._losses and self._options.fail_on_data_loss:
            more = len(self._losses) - _MOST_NAMED
            named = [*self._losses[:_MOST_NAMED], *([f"and {more} more partitions"] if more > 0 else [])]
            raise DataLossError(f"{'; '.join(named)}; {self._options.loss_option} goes on with what is there")
        for message in self._losses:
            log.warning("%s; going on with what is there", message)
        return found

    def _check_brokers(self, known: Iterable[TopicPartition] = (), *, needed: bool = True) -> None:
        """Raise ``BrokerMissingError`` unless every broker was found that is known to have what is read.

        ``known`` are partitions that were read before. Only a warning where data may be lost, or if not ``needed``.
        """
        missing = self._cluster.missing(known)
        if not missing:
            return
        brokers = "; ".join(
            f"broker {broker} ({_listed(partitions)})" if partitions else f"broker {broker}"
            for broker, partitions in missing.items()
        )
        message = f"not registered in ZooKeeper {self._options.zookeeper}: {brokers}"
        if needed and self._options.fail_on_data_loss:
            first = next(iter(missing))
            raise BrokerMissingError(
                f"{message}: start it again, or {self._options.loss_option} reads without it; for a broker that is"
                f" gone for good: fastlog zookeeper forget-broker {first}"
            )
        log.warning("%s: what is there is read", message)

    def _tasks(self, ranges: Mapping[TopicPartition, OffsetRange], created: Mapping[TopicPartition, int]) -> list[Task]:
        options = self._options
        ranges = {partition: interval for partition, interval in ranges.items() if interval.size_bytes}
        pieces = planner.split(
            ranges,
            options.max_bytes_per_partition,
            options.min_partitions,
            self._cluster,
            self._cluster.record_bytes(ranges),
            options.max_records_per_partition,
        )
        found = []
        for partition, (start, end) in pieces:
            host, port = self._cluster.address(partition.partition.broker)
            made, records = created.get(partition, 0), self._cluster.record_source(partition)
            found.append(Task(partition.topic, *partition.partition, host, port, start, end, made, records))
        return found

    def _check_kinds(self, bounds: Mapping[TopicPartition, PartitionBounds]) -> None:
        """Raise ``ConfigError`` unless the columns are those that the user gets for topics of these kinds."""
        options = self._options
        if options.max_records_per_partition is not None or options.max_offsets_per_trigger is not None:
            name = "maxOffsetsPerTrigger" if options.max_offsets_per_trigger is not None else "maxRecordsPerPartition"
            of_messages = sorted(partition for partition, known in bounds.items() if not known.is_of_records)
            if of_messages:
                meant = name.replace("Offsets", "Bytes").replace("Records", "Bytes")
                raise ConfigError(f"{name}: offsets of {of_messages[0].topic!r} are bytes: {meant} is meant")
        if options.schema is not None or options.columns_chosen:
            return
        wanted = columns_for(bounds)
        if wanted is not None and wanted != (usual_set(options.columns) or wanted):
            kind = "record batches" if wanted == KAFKA else "messages of Kafka 0.7"
            raise ConfigError(
                f"schema: the topics consist of {kind}, which was not so when the columns were chosen: give"
                f" schema={usual_set(options.columns)} to keep those, or schema={wanted}"
            )

    def _record_bytes(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Mapping[TopicPartition, float]:
        return self._cluster.record_bytes(partition for partition, item in ranges.items() if item.size_bytes)

    def _resolved(
        self, name: str, place: OffsetSpec, bounds: Mapping[TopicPartition, PartitionBounds]
    ) -> dict[TopicPartition, int]:
        """The offset of each partition at a place; ``name`` begins that of the option, for errors."""
        if place.by_partition:
            place = offsets.on_brokers(place, f"{name}Offsets", bounds)
            named = {partition for partition, _ in place.by_partition}
            for partition in sorted(named ^ bounds.keys()):
                option = f"{name}Offsets{'' if place.kind == 'offsets' else 'ByTimestamp'}"
                if partition in bounds:
                    raise ConfigError(f"{option}: {partition} is to be read, and not named")
                raise ConfigError(f"{option}: {partition} is named, and there is no such partition")
        return {partition: self._one_resolved(name, place, partition, bounds[partition]) for partition in bounds}

    def _one_resolved(self, name: str, place: OffsetSpec, partition: TopicPartition, bounds: PartitionBounds) -> int:
        value = place.of(partition)
        if place.kind == "earliest" or (place.kind == "offsets" and value == offsets.EARLIEST):
            return bounds.log_start
        if place.kind == "latest" or (place.kind == "offsets" and value == offsets.LATEST):
            return bounds.high_watermark
        if place.kind == "offsets":
            assert value is not None
            return value
        time_ms = place.time_ms if value is None else value
        found = self._cluster.offset_at(partition, time_ms)
        if found is None:
            if name == "starting" and self._options.unmatched_start == "error":
                raise ConfigError(
                    f"startingTimestamp: nothing was appended to {partition} at or after {time_ms};"
                    " startingOffsetsByTimestampStrategy=latest begins at the end then"
                )
            return bounds.high_watermark
        return min(max(found, bounds.log_start), bounds.high_watermark)

    def _aligned(
        self, name: str, place: OffsetSpec, partition: TopicPartition, offset: int, bounds: PartitionBounds
    ) -> None:
        """An offset that a person gave is a message boundary, if it is in the log at all."""
        if place.kind != "offsets" or not bounds.log_start <= offset <= bounds.high_watermark:
            return
        nearest = self._cluster.next_boundary(partition, offset, bounds)
        if nearest != offset:
            raise ConfigError(f"{name}: no message of {partition} begins at {offset}; the next one begins at {nearest}")

    def _still_there(
        self, partition: TopicPartition, wanted: OffsetRange, bounds: PartitionBounds | None, created: int = 0
    ) -> OffsetRange:
        """What of a range can still be read; what cannot is noted as lost. ``created``: of which log it is."""
        if bounds is None and self._cluster.is_away(partition.partition.broker):
            return OffsetRange(wanted.start, wanted.start)  # it is read when its broker is back
        if bounds is None:
            wants = self._options.wants(partition)
            gone = "the broker does not have the partition any more" if wants else "the query does not read the topic"
            self._lost(partition, wanted, gone, is_of_records(created))
            return OffsetRange(wanted.end, wanted.end)
        start, end = wanted
        if start < bounds.log_start:
            lost = OffsetRange(start, min(end, bounds.log_start) if end > start else bounds.log_start)
            self._lost(partition, lost, f"the log begins at {bounds.log_start}", bounds.is_of_records)
            start = bounds.log_start
        if max(start, end) > bounds.high_watermark:
            lost = OffsetRange(bounds.high_watermark, max(start, end))
            self._lost(partition, lost, f"the log ends at {bounds.high_watermark}", bounds.is_of_records)
            start = min(start, bounds.high_watermark)
            end = bounds.high_watermark
        return OffsetRange(start, max(start, end))

    def _lost(self, partition: TopicPartition, lost: OffsetRange, why: str, of_records: bool) -> None:
        what = "records" if of_records else "bytes"
        self._losses.append(f"{partition}: {what} {lost.start} to {lost.end} cannot be read any more: {why}")

    def _made_anew(self, partition: TopicPartition, at: int, created_ms: int, bounds: PartitionBounds) -> None:
        """The log that was to be read from an offset on is gone, and another one has its place."""
        self._losses.append(
            f"{partition}: the log was deleted and made anew{_moment(bounds.created_ms)}: offset {at} is of the one"
            f" {_which(created_ms, bounds)}, and what that had from there on cannot be read any more"
        )


class BatchPlan(QueryPlan):
    """A batch read: everything between two places, as they are when it is planned."""

    def tasks(self) -> list[Task]:
        """What there is to do; the end is fixed now.

        Raises:
            ConfigError: a topic does not exist, or the places do not fit the log.
            BrokerMissingError: a broker that has one of the topics is not registered.
            DataLossError, TransportError: as for streaming.
        """
        return self._settled(self._planned)

    def _planned(self) -> list[Task]:
        options = self._options
        waits = options.ending.kind == "latest"
        bounds = self._cluster.visible_bounds() if waits else self._cluster.bounds()
        self._check_brokers()
        self._check_kinds(bounds)
        for topic in options.topics:
            if not any(partition.topic == topic for partition in bounds):
                raise ConfigError(f"subscribe: no broker has the topic {topic!r}")
        for partition in options.assigned:
            if offsets.on_broker(partition, "assign", bounds) not in bounds:
                raise ConfigError(f"assign: there is no {partition}")
        starts = self._resolved("starting", options.starting, bounds)
        ends = self._resolved("ending", options.ending, bounds)
        ranges = {}
        for partition, (start, end) in {item: (starts[item], ends[item]) for item in bounds}.items():
            known = bounds[partition]
            if options.ending.kind == "offsets" and end > known.high_watermark:
                raise ConfigError(f"endingOffsets: {partition} ends at {known.high_watermark}, before {end}")
            if options.starting.kind == "offsets" and start > end:
                raise ConfigError(f"startingOffsets: {partition} would begin at {start} and end at {end}")
            self._aligned("startingOffsets", options.starting, partition, start, known)
            self._aligned("endingOffsets", options.ending, partition, end, known)
            ranges[partition] = self._still_there(partition, OffsetRange(start, max(start, end)), known)
        return self._tasks(ranges, {partition: known.created_ms for partition, known in bounds.items()})


def _listed(partitions: Sequence[TopicPartition]) -> str:
    more = len(partitions) - _MOST_NAMED
    return ", ".join([*map(str, partitions[:_MOST_NAMED]), *([f"{more} more"] if more > 0 else [])])


def _moment(created: int) -> str:
    """When a log was made, where that is known."""
    if is_of_records(created):
        return ""
    return f" at {datetime.fromtimestamp(created / 1000, UTC).isoformat(timespec='milliseconds')}"


def _which(created: int, now: PartitionBounds) -> str:
    """The log that was there before the one that there is now."""
    if not is_of_records(created):
        return (
            f"that was made{_moment(created)}{', of messages and not of record batches' if now.is_of_records else ''}"
        )
    return "that the topic of that name had before" if now.is_of_records else "that consisted of record batches"


class StreamPlan(QueryPlan):
    """A streaming query, seen from its driver."""

    def __init__(self, options: SourceOptions, cluster: QueryCluster) -> None:
        super().__init__(options, cluster)
        self._targets: dict[TopicPartition, PartitionBounds] | None = None
        self._seen: dict[TopicPartition, PartitionBounds] = {}
        self._is_checked = False

    def initial(self) -> dict[str, Any]:
        """What the query begins with: never a number, since Spark asks again later and keeps no answer."""
        return offsets.encode_initial(self._options.starting)

    def prepare(self) -> None:
        """Nothing that is appended from now on is read (AvailableNow)."""
        self._targets = self._cluster.visible_bounds()

    def go_on(self) -> None:
        """Again everything is read that is visible."""
        self._targets = None

    def latest(self, start: Any, max_bytes: int | None, max_records: int | None = None) -> Any:
        """The end of the next batch, which names its whole range; ``start`` itself when there is nothing new.

        Raises:
            DataLossError: what comes next is not there any more, and ``failOnDataLoss`` is not switched off.
            ConfigError: ``start`` is nothing that this source wrote, or the place to begin at does not exist.
            TransportError: a broker does not answer.
        """
        return self._settled(lambda: self._next(start, max_bytes, max_records))

    def tasks(self, end: Any) -> list[Task]:
        """What a batch with this end reads, whether it is new or was begun before a crash. Raises as ``latest``."""
        return self._settled(lambda: self._of_batch(end))

    def _next(self, start: Any, max_bytes: int | None, max_records: int | None) -> Any:
        begun = offsets.decode(start)
        real = self._seen = self._cluster.bounds()
        self._check_kinds(real)
        self._check_once([] if isinstance(begun, OffsetSpec) else begun, real)
        bounds = self._shown(real)
        if isinstance(begun, OffsetSpec):
            previous = self._resolved("starting", begun, bounds)
            for partition, offset in previous.items():
                self._aligned("startingOffsets", begun, partition, offset, real[partition])
        else:
            previous = {partition: interval.end for partition, interval in begun.items()}
        created = offsets.decode_created(start)
        anew = set()
        ranges = {}
        for partition in sorted(previous.keys() | bounds.keys()):
            if not self._options.wants(partition):
                # It was taken out of the options: who puts it in again goes on from here.
                ranges[partition] = OffsetRange(previous[partition], previous[partition])
                continue
            # A partition that was not there before is read from its beginning.
            at = previous[partition] if partition in previous else bounds[partition].log_start
            end = bounds[partition].high_watermark if partition in bounds else at
            if partition in real:
                if real[partition].is_of_another_log(created.get(partition, 0)):
                    self._made_anew(partition, at, created[partition], real[partition])
                    anew.add(partition)
                    at = real[partition].log_start
                created[partition] = real[partition].created_ms or created.get(partition, 0)
            ranges[partition] = self._still_there(
                partition, OffsetRange(at, max(at, end)), real.get(partition), created.get(partition, 0)
            )
        ranges = self._limited(ranges, max_bytes, max_records)
        if not (isinstance(begun, OffsetSpec) or anew) and all(
            interval == (previous.get(partition), previous.get(partition)) for partition, interval in ranges.items()
        ):
            return start
        return offsets.encode_ranges(ranges, created)

    def _of_batch(self, end: Any) -> list[Task]:
        ranges = offsets.decode(end)
        if isinstance(ranges, OffsetSpec):
            return []
        wanted = {partition: interval for partition, interval in ranges.items() if interval.size_bytes}
        if not wanted:
            return []
        created = offsets.decode_created(end)
        bounds = self._cluster.bounds(needed={partition.partition.broker for partition in wanted})
        there = {}
        for partition, interval in wanted.items():
            now, made = bounds.get(partition), created.get(partition, 0)
            if now is not None and now.is_of_another_log(made):
                self._made_anew(partition, interval.start, made, now)
                continue
            there[partition] = self._still_there(partition, interval, now, made)
        return self._tasks(there, created)

    def _limited(
        self, ranges: Mapping[TopicPartition, OffsetRange], max_bytes: int | None, max_records: int | None
    ) -> dict[TopicPartition, OffsetRange]:
        if max_records is not None:
            return planner.limit_batch(ranges, max_records, self._cluster, dict.fromkeys(ranges, 1.0))
        each = {} if max_bytes is None else self._record_bytes(ranges)
        return planner.limit_batch(ranges, max_bytes, self._cluster, each)

    def _check_once(self, known: Collection[TopicPartition], there: Collection[TopicPartition]) -> None:
        """When the query begins, tell of what it is to read and does not find; that is read when it comes."""
        if self._is_checked:
            return
        self._is_checked = True
        self._check_brokers(known, needed=False)
        options = self._options
        absent = [repr(topic) for topic in options.topics if not any(item.topic == topic for item in there)]
        known_there = list(there)
        absent += [
            str(partition)
            for partition in options.assigned
            if offsets.on_broker(partition, "assign", known_there) not in known_there
        ]
        if options.pattern is not None and not there:
            absent.append(f"a topic whose name is {options.pattern!r}")
        if absent:
            log.warning("no broker has %s: read from the beginning as soon as it is there", ", ".join(absent))

    def report(self) -> dict[str, Any] | None:
        """The ends of what is visible, as far as they were seen; None before the first look."""
        if not self._seen:
            return None
        return offsets.encode_ranges(
            {item: OffsetRange(bounds.high_watermark, bounds.high_watermark) for item, bounds in self._seen.items()}
        )

    def _shown(self, bounds: dict[TopicPartition, PartitionBounds]) -> dict[TopicPartition, PartitionBounds]:
        if self._targets is None:
            return bounds
        return {item: bounds[item].until(end.high_watermark) for item, end in self._targets.items() if item in bounds}

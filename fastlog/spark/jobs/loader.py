"""Brings batches of topics into a table, each in one transaction with the offsets it goes up to.

Whatever happens to a batch before its transaction leaves the table as it was, and it is planned anew from what the
table says. So anything may be tried again.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from fastlog import errors
from fastlog.consumer.partitions import TopicPartition
from fastlog.spark import offsets
from fastlog.spark.cluster import Cluster
from fastlog.spark.entries import ActiveFile, NewFile
from fastlog.spark.jobs import command
from fastlog.spark.jobs.latency import Latencies
from fastlog.spark.jobs.loading import BATCHES, OFFSETS, Batch, LoadPlan, encode_lost
from fastlog.spark.lake import Change, Lake, Step, bounds_in, read_table
from fastlog.spark.offsets import Interval, Place
from fastlog.spark.options import parse_options
from fastlog.spark.staging import Staging, arrow_schema
from fastlog.tools.report import CommandError

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame

PARTITIONED_BY = ("topic", "date")
COLUMNS = ("broker", "partition", "offset", "idx", "timestamp", "key", "value")
_PLACE = ("broker", "partition", "offset")
_T = TypeVar("_T")
_DAY_US = 24 * 3600 * 1_000_000
_MOST_PAUSE = 10.0


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a user wants of a load."""

    source: dict[str, str]
    """Options of ``format("fastlog")``, but for where to begin, to end, and what to do about lost data."""
    starting: dict[str, str]
    """Where a topic begins that the table does not know."""
    fail_on_data_loss: bool = True
    max_bytes: int = 2**30
    time: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    compression: str = "snappy"
    attempts: int = 5
    shown: bool = True


@dataclass
class Totals:
    """What a run has done."""

    batches: int = 0
    rows: int = 0
    replaced_rows: int = 0
    files: int = 0
    size_bytes: int = 0
    lost_bytes: int = 0
    lost_records: int = 0
    failures: int = 0
    ranges: dict[TopicPartition, Interval] = field(default_factory=dict)
    lost: dict[TopicPartition, list[Interval]] = field(default_factory=dict)
    latencies: Latencies = field(default_factory=Latencies)
    started: float = field(default_factory=time.monotonic)

    def add(self, batch: Batch, rows: int, files: int) -> None:
        """Count a batch that is in the table."""
        self.batches += 1
        self.rows += rows
        self.files += files
        self.size_bytes += batch.size_bytes
        lost_bytes, lost_records = batch.lost_sizes()
        self.lost_bytes += lost_bytes
        self.lost_records += lost_records
        for partition, interval in batch.ranges.items():
            before = self.ranges.get(partition, interval)
            self.ranges[partition] = Interval(min(before.start, interval.start), max(before.end, interval.end))
        for partition, intervals in batch.lost.items():
            self.lost.setdefault(partition, []).extend(intervals)

    def to_json(self) -> dict[str, Any]:
        """For the summary."""
        seconds = time.monotonic() - self.started
        return {
            "batches": self.batches,
            "rows": self.rows,
            "replaced_rows": self.replaced_rows,
            "files": self.files,
            "bytes": self.size_bytes,
            "seconds": round(seconds, 3),
            "rows_per_second": round(self.rows / seconds) if seconds else None,
            "ranges": offsets.encode_ranges(self.ranges)["topics"],
            "lost": encode_lost(self.lost),
            "lost_bytes": self.lost_bytes,
            "lost_records": self.lost_records,
            "failures": self.failures,
            "latency_ms": self.latencies.to_json(),
        }


class Loader:
    """Loads topics into a table; for one thread. ``spark`` is started once there is something to do."""

    def __init__(self, lake: Lake, wishes: Wishes, spark: command.LazySpark) -> None:
        self._lake = lake
        self._wishes = wishes
        self._spark = spark
        self._staging = Staging(lake, PARTITIONED_BY, wishes.compression)
        self._run = uuid.uuid4().hex
        given = wishes.source | wishes.starting | {"failOnDataLoss": str(wishes.fail_on_data_loss).lower()}
        # As for a stream: "latest" is a place to begin at.
        self._options = replace(parse_options(given, streaming=None), loss_option="--skip-lost")
        with_headers = "headers" in self._options.columns and "headers" not in wishes.columns
        self._columns = (*COLUMNS, "headers") if with_headers else COLUMNS
        self.totals = Totals()

    def run(self, *, every: float | None = None, again_from: Place | None = None) -> None:
        """Load up to what there is now; with ``every``, in seconds, go on until a signal comes.

        ``again_from``: before that, replace what the table has from there on by what the log has now, in one
        transaction.

        Raises:
            TableConflictError: another process fills the table.
            TableUnavailableError: an object store does not answer, or refuses.
            DataLossError: messages that the table has not are not in the log any more; names the bytes.
            FastlogError, or one of Spark's: a batch failed as often as it may.
        """
        with self._staging.alone(), closing(Cluster(self._options)) as cluster:
            plan = LoadPlan(self._options, cluster, self._lake, self._wishes.max_bytes)
            targets = self._tried(lambda: plan.targets(complete=every is None))
            if again_from is not None:
                self._tried(lambda: self._again(plan, again_from))
            while True:
                began = time.monotonic()
                while self._tried(lambda: self._one(plan, None if every is not None else targets)):
                    command.wait(0)
                if every is None:
                    return
                command.wait(max(0.0, every - (time.monotonic() - began)))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _tried(self, step: Callable[[], _T]) -> _T:
        """Do something that leaves the table whole when it fails, as often as wanted."""
        failures = 0
        while True:
            try:
                return step()
            except Exception as error:
                if not command.may_pass(error):
                    raise command.for_good(error) from error
                own = command.own_error(error)
                failures += 1
                self.totals.failures += 1
                if failures >= self._wishes.attempts:
                    if own is not None:
                        raise own from error
                    raise CommandError(
                        f"a batch failed {failures} times",
                        command.told(error),
                        "the table is as it was: start it again",
                    ) from error
                self._say(f"failed, {failures} of {self._wishes.attempts}: {command.told(error)}")
                self._lake.reload()
                command.wait(min(0.2 * 2**failures, _MOST_PAUSE))

    def _one(self, plan: LoadPlan, targets: Any) -> bool:
        """Bring one batch in; False when there was nothing."""
        steps = plan.beginnings()
        if steps:
            self._begin(steps)
        batch = plan.next(targets)
        if batch is None:
            return False
        self._bring(plan, batch, [])
        return True

    def _begin(self, steps: dict[str, Step]) -> None:
        """Write down where partitions begin, in a table that may have to be made."""
        if not self._lake.exists:
            self._lake.create(self._schema(), PARTITIONED_BY)
        begun = {name.removeprefix(OFFSETS): step.after for name, step in steps.items() if name.startswith(OFFSETS)}
        self._lake.commit(Change(steps=steps, notes={"job": "load", "run": self._run, "begun": begun}))
        self._say(f"begins with {len(begun)} partitions")

    def _again(self, plan: LoadPlan, place: Place) -> None:
        batch = plan.again(place)
        if batch is not None:
            self._bring(plan, batch, [file for file in self._lake.files() if _may_hold(self._lake, file, batch)])

    def _bring(self, plan: LoadPlan, batch: Batch, replaced: list[ActiveFile]) -> None:
        number = batch.steps[BATCHES].after
        self._say(f"batch {number}: {_counted(batch.sizes())} of {len(batch.to_read)} partitions")
        began = time.monotonic()
        new: list[NewFile] = []
        kept: list[NewFile] = []
        if batch.to_read:
            self._lake.check_schema(self._schema(), PARTITIONED_BY)
            if replaced:
                kept = self._kept(batch, replaced)
            try:
                new = self._written(plan, batch)
            except BaseException:
                self._staging.discard(kept)
                raise
        files = new + kept
        self._say(f"batch {number}: adding {len(files)} files")
        rows = sum(file.rows for file in new)
        notes = {"job": "load", "run": self._run, "batch": number, "rows": rows, **batch.notes()}
        try:
            self._lake.commit(Change(batch.steps, files, replaced, notes))
        except (errors.TableConflictError, errors.TableWriteError):
            self._staging.discard(files)
            raise
        now_us = time.time_ns() // 1000
        self.totals.add(batch, rows, len(files))
        if not replaced:
            self._add_latencies(files, now_us)
        lost = f", {_counted(batch.lost_sizes())} lost" if batch.lost else ""
        self._say(f"batch {number}: {rows} rows in {time.monotonic() - began:.2f} s{lost}")

    def _add_latencies(self, files: list[NewFile], now_us: int) -> None:
        location = self._lake.location
        try:
            with location.reached():
                self.totals.latencies.add_files(
                    location.filesystem(), [file.path for file in files], "timestamp", now_us
                )
        except errors.TableUnavailableError as error:
            self._say(f"how long its messages took is not known: {error}")  # they are in the table all the same

    def _written(self, plan: LoadPlan, batch: Batch) -> list[NewFile]:
        """Files with what a batch brings. Through Spark's SQL where a user gives expressions for that alone."""
        now = datetime.now(UTC)
        if self._by_sql:
            return self._staging.write(self._frame(batch.to_read, now))
        # What is lost is for the driver to find, and to write down.
        options = replace(self._options, fail_on_data_loss=True)
        return self._staging.write_messages(self._spark.context, plan.tasks(batch), options, self._columns, now.date())

    def _kept(self, batch: Batch, replaced: list[ActiveFile]) -> list[NewFile]:
        """Files with the rows of replaced ones that are not in a batch's ranges."""
        old = read_table(self._spark.session, self._lake.location, replaced)
        count = old.count()
        kept = self._staging.write(old.where(~_inside(batch)))
        self.totals.replaced_rows += count - sum(file.rows for file in kept)
        return kept

    @property
    def _by_sql(self) -> bool:
        return self._wishes.time is not None or bool(self._wishes.columns)

    def _schema(self) -> pyarrow.Schema:
        if self._by_sql:
            return arrow_schema(self._frame({}, datetime.now(UTC)))
        from fastlog.spark.row_files import row_schema

        return row_schema(self._columns)

    def _frame(self, ranges: dict[TopicPartition, Interval], now: datetime) -> DataFrame:
        """The rows of ranges as Spark's SQL makes them; of no ranges, the columns alone."""
        from pyspark.sql import functions as f

        from fastlog.spark.row_files import FIRST_DAY, LAST_DAY

        source = self._wishes.source
        if ranges:
            source = {name: value for name, value in source.items() if not name.lower().startswith("subscribe")}
            topics = offsets.encode_ranges(ranges)["topics"]
            starts = {topic: {name: start for name, (start, _) in items.items()} for topic, items in topics.items()}
            ends = {topic: {name: end for name, (_, end) in items.items()} for topic, items in topics.items()}
            source |= {
                "assign": json.dumps({topic: list(items) for topic, items in topics.items()}),
                "startingOffsets": json.dumps(starts),
                "endingOffsets": json.dumps(ends),
                "failOnDataLoss": "true",  # what is lost is for the driver to find, and to write down
            }
        frame = self._spark.session.read.format("fastlog").options(**source).load()
        if self._wishes.time is not None:
            frame = frame.withColumn("timestamp", f.expr(self._wishes.time).cast("timestamp"))
        # Whatever time zone the session has: a table has one idea of what a day is.
        days = f.floor(f.unix_micros(f.col("timestamp")) / _DAY_US).cast("int")
        named = f.when(days.between(FIRST_DAY, LAST_DAY), f.date_from_unix_date(days))
        date: Column = f.coalesce(named, f.lit(now.date()))
        extra = [f.expr(text).alias(name) for name, text in self._wishes.columns.items()]
        return frame.select("topic", date.alias("date"), *self._columns, *extra)

    def _say(self, text: str) -> None:
        command.say(text, self._wishes.shown)


def _counted(sizes: tuple[int, int]) -> str:
    """Bytes and records in words."""
    of_bytes, records = sizes
    found = [f"{of_bytes} bytes"] if of_bytes or not records else []
    return " and ".join(found + ([f"{records} records"] if records else []))


def _may_hold(lake: Lake, file: ActiveFile, batch: Batch) -> bool:
    """Whether rows of a batch's ranges may be in a file, as far as its footer tells."""
    wanted = [(item, interval) for item, interval in batch.ranges.items() if item.topic == file.values.get("topic")]
    if not wanted:
        return False
    found = bounds_in(lake.location, file.path, _PLACE)
    for partition, interval in wanted:
        broker, number = partition.partition
        spans = ((broker, broker), (number, number), (interval.start, interval.end - 1))
        if all(
            name not in found or (found[name][0] <= high and found[name][1] >= low)
            for name, (low, high) in zip(_PLACE, spans, strict=True)
        ):
            return True
    return False


def _inside(batch: Batch) -> Column:
    """Whether a row is in the ranges of a batch."""
    from pyspark.sql import functions as f

    found = f.lit(False)
    for partition, interval in batch.ranges.items():
        found = found | (
            (f.col("topic") == partition.topic)
            & (f.col("broker") == partition.partition.broker)
            & (f.col("partition") == partition.partition.partition)
            & (f.col("offset") >= interval.start)
            & (f.col("offset") < interval.end)
        )
    return found

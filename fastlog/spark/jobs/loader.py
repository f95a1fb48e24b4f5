"""Brings batches of topics into a table, each in one transaction with the offsets it goes up to.

Whatever happens to a batch before its transaction leaves the table as it was, and it is planned anew from what the
table says. So anything may be tried again.
"""

from __future__ import annotations

import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from fastlog import errors
from fastlog.consumer.partitions import TopicPartition
from fastlog.counts import counted
from fastlog.retry import pause_after
from fastlog.spark import offsets
from fastlog.spark.behind import Behind
from fastlog.spark.cluster import QueryCluster
from fastlog.spark.entries import ActiveFile, NewFile
from fastlog.spark.iceberg import AnyLake, IcebergLake, staging_of
from fastlog.spark.jobs import command
from fastlog.spark.jobs.expressions import REASON, Expressions, source_frame
from fastlog.spark.jobs.latency import MessageLatencies
from fastlog.spark.jobs.load_plan import BATCHES, OFFSETS, LoadBatch, LoadPlan, encode_lost
from fastlog.spark.jobs.rejects import Rejected, Rejects
from fastlog.spark.lake import NumberStep, TableChange, bounds_in, read_table
from fastlog.spark.offsets import OffsetRange, OffsetSpec
from fastlog.spark.options import SourceOptions, parse_options
from fastlog.spark.plans import Task
from fastlog.spark.staging import arrow_schema
from fastlog.spark.upkeep import JoinOptions, join_files
from fastlog.tools.report import CommandError

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame

PARTITIONED_BY = ("topic", "date")
"""What a table is partitioned by if nobody says more."""
COLUMNS = ("broker", "partition", "offset", "idx", "timestamp", "key", "value")
_PLACE = ("broker", "partition", "offset")
_T = TypeVar("_T")
_LEAST_PAUSE, _MOST_PAUSE = 0.4, 10.0


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What ``load`` was asked to do, by its options."""

    source: dict[str, str]
    """Options of ``format("fastlog")``, but for where to begin, to end, and what to do about lost data."""
    starting: dict[str, str]
    """Where a topic begins that the table does not know."""
    fail_on_data_loss: bool = True
    max_bytes: int = 2**30
    time: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] | None = None
    """None: as the table is, or ``PARTITIONED_BY``."""
    compression: str = "snappy"
    attempts: int = 5
    most_rejected: int = 1000
    """Rejected messages of one batch that do not end the load."""
    optimize_at: int | None = None
    """Join small files after batches, where at least this many become one; None: never."""
    shown: bool = True


@dataclass
class LoadTotals:
    """What a run has added to the table, and what it could not."""

    batches: int = 0
    rows: int = 0
    replaced_rows: int = 0
    rejected: int = 0
    files: int = 0
    size_bytes: int = 0
    lost_bytes: int = 0
    lost_records: int = 0
    failures: int = 0
    joined_files: int = 0
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    lost: dict[TopicPartition, list[OffsetRange]] = field(default_factory=dict)
    behind: Behind = field(default_factory=Behind)
    """What was visible in the topics at the last look, and is in no batch up to then."""
    latencies: MessageLatencies = field(default_factory=MessageLatencies)
    started: float = field(default_factory=time.monotonic)

    def add(self, batch: LoadBatch, rows: int, files: int) -> None:
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
            self.ranges[partition] = OffsetRange(min(before.start, interval.start), max(before.end, interval.end))
        for partition, intervals in batch.lost.items():
            self.lost.setdefault(partition, []).extend(intervals)

    def to_json(self) -> dict[str, Any]:
        """The fields of the summary that the job prints."""
        seconds = time.monotonic() - self.started
        return {
            "batches": self.batches,
            "rows": self.rows,
            "replaced_rows": self.replaced_rows,
            "rejected": self.rejected,
            "files": self.files,
            "joined_files": self.joined_files,
            "bytes": self.size_bytes,
            "seconds": round(seconds, 3),
            "rows_per_second": round(self.rows / seconds) if seconds else None,
            "ranges": offsets.encode_ranges(self.ranges)["topics"],
            "lost": encode_lost(self.lost),
            "lost_bytes": self.lost_bytes,
            "lost_records": self.lost_records,
            "failures": self.failures,
            "latency_ms": self.latencies.to_json(),
            "behind": self.behind._asdict(),
        }


class Loader:
    """Loads topics into a table; for one thread. ``spark`` is started once there is something to do."""

    def __init__(
        self, lake: AnyLake, load_options: LoadOptions, spark: command.LazySpark, rejected: AnyLake | None = None
    ) -> None:
        """``rejected``: the table for messages that an expression fails on; without it such a one ends the load."""
        self._lake = lake
        self._load_options = load_options
        self._spark = spark
        self._partition_by = _partition_columns(lake, load_options)
        self._staging = staging_of(lake, self._partition_by, load_options.compression)
        self._run = uuid.uuid4().hex
        given = (
            load_options.source
            | load_options.starting
            | {"failOnDataLoss": str(load_options.fail_on_data_loss).lower()}
        )
        # As for a stream: "latest" is a place to begin at.
        self._options = replace(parse_options(given, streaming=None), loss_option="--skip-lost")
        with_headers = "headers" in self._options.columns and "headers" not in load_options.columns
        self._columns = (*COLUMNS, "headers") if with_headers else COLUMNS
        self._expressions = Expressions(load_options.time, load_options.columns, self._columns)
        self._rejects: Rejects | None = None
        self._rejecting = False
        if rejected is not None and (load_options.time is not None or load_options.columns):
            self._rejects = Rejects(rejected, lake, rejected_schema(self._columns), load_options.compression)
        self.totals = LoadTotals()

    def run(self, *, every: float | None = None, again_from: OffsetSpec | None = None) -> None:
        """Load up to what there is now; with ``every``, in seconds, go on until a signal comes.

        ``again_from``: before that, replace what the table has from there on by what the log has now, in one
        transaction.

        Raises:
            TableConflictError: another process fills the table.
            TableUnavailableError: an object store does not answer, or refuses.
            DataLossError: messages that the table has not are not in the log any more; names the bytes.
            FastlogError, or one of Spark's: a batch failed as often as it may.
        """
        kept_apart = contextlib.nullcontext() if self._rejects is None else self._rejects.alone()
        with self._staging.alone(), kept_apart, closing(QueryCluster(self._options)) as cluster:
            plan = LoadPlan(self._options, cluster, self._lake, self._load_options.max_bytes)
            targets = self._tried(lambda: plan.targets(complete=every is None))
            if again_from is not None:
                self._tried(lambda: self._again(plan, again_from))
            while True:
                began = time.monotonic()
                batches = self.totals.batches
                while self._tried(lambda: self._one(plan, None if every is not None else targets)):
                    command.wait(0)
                    if every is not None and not any(self.totals.behind):
                        break  # what has come meanwhile waits for its time: it would be a small file now
                if self._load_options.optimize_at is not None and self.totals.batches > batches:
                    self._join(self._load_options.optimize_at)
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
                if self._spark.has_ended:
                    raise CommandError(
                        "Spark has been ended, by its cluster or by somebody",
                        command.told(error),
                        "see what the cluster and its executors say; the table is as it was: start the load again",
                    ) from error
                own = command.own_error(error)
                failures += 1
                self.totals.failures += 1
                if failures >= self._load_options.attempts:
                    if own is not None:
                        raise own from error
                    raise CommandError(
                        f"a batch failed {failures} times",
                        command.told(error),
                        "the table is as it was: start it again",
                    ) from error
                self._say(f"failed, {failures} of {self._load_options.attempts}: {command.told(error)}")
                self._lake.reload()
                command.wait(pause_after(failures, _LEAST_PAUSE, _MOST_PAUSE))

    def _one(self, plan: LoadPlan, targets: Any) -> bool:
        """Bring one batch in; False when there was nothing."""
        if self._rejects is not None:
            self._rejects.catch_up()
        steps = plan.beginnings()
        if steps:
            self._begin(steps)
        batch = plan.next(targets)
        self.totals.behind = plan.left
        if batch is None:
            return False
        self._bring(plan, batch, [])
        return True

    def _join(self, at_least: int) -> None:
        """Join small files. What prevents that is reported and does not end the load: the next batch tries again."""
        wanted = JoinOptions(at_least=at_least, gradual=True, compression=self._load_options.compression)
        try:
            joined = join_files(self._lake, wanted, self._say)
        except (errors.FastlogError, OSError) as error:
            self._say(f"small files stay as they are: {error}")
        else:
            self.totals.joined_files += joined.files_before

    def _begin(self, steps: dict[str, NumberStep]) -> None:
        """Write down where partitions begin, in a table that may have to be made."""
        if self._lake.exists:
            self._fit()
        else:
            schema = self._schema
            _check_partitions(schema, self._partition_by)
            self._lake.create(schema, self._partition_by)
        begun = {name.removeprefix(OFFSETS): step.after for name, step in steps.items() if name.startswith(OFFSETS)}
        self._lake.commit(TableChange(steps=steps, notes={"job": "load", "run": self._run, "begun": begun}))
        self._say(f"begins with {counted(len(begun), 'partition')}")

    def _fit(self) -> None:
        """New columns come to the table; what else does not fit is refused before anything is written."""
        self._lake.check_schema(self._schema, self._partition_by, growing=True)

    def _again(self, plan: LoadPlan, place: OffsetSpec) -> None:
        batch = plan.again(place)
        if batch is not None:
            self._bring(plan, batch, [file for file in self._lake.files() if _may_hold(self._lake, file, batch)])

    def _bring(self, plan: LoadPlan, batch: LoadBatch, replaced: list[ActiveFile]) -> None:
        number = batch.steps[BATCHES].after
        self._say(f"batch {number}: {_counted(batch.sizes())} of {counted(len(batch.to_read), 'partition')}")
        began = time.monotonic()
        new: list[NewFile] = []
        kept: list[NewFile] = []
        rejected: list[NewFile] = []
        replaced_rows = 0
        if batch.to_read:
            self._fit()
            if replaced:
                kept, replaced_rows = self._kept(batch, replaced)
            try:
                new, rejected = self._written(plan, batch)
            except BaseException:
                self._staging.discard(kept)
                raise
        files = new + kept
        self._say(f"batch {number}: adding {counted(len(files), 'file')}")
        rows = sum(file.rows for file in new)
        notes = {"job": "load", "run": self._run, "batch": number, "rows": rows, **batch.notes()}
        if not replaced:
            notes["behind"] = self.totals.behind._asdict()
        refused = Rejected(rejected, batch.ranges if replaced else {})
        steps = dict(batch.steps)
        if self._rejects is not None:
            more, told = self._rejects.told(refused)
            steps |= more
            notes |= told
        try:
            self._lake.commit(TableChange(steps, files, replaced, notes))
        except (errors.TableConflictError, errors.TableWriteError):
            self._staging.discard(files)
            if self._rejects is not None:
                self._rejects.discard(refused)
            raise
        now_us = time.time_ns() // 1000
        self.totals.add(batch, rows, len(files))
        self.totals.replaced_rows += replaced_rows
        self.totals.rejected += refused.rows
        if not replaced:
            unknown = self.totals.latencies.add_table(self._lake.location, files, ("timestamp",), now_us)
            if unknown is not None:
                self._say(unknown)
        lost = f", {_counted(batch.lost_sizes())} lost" if batch.lost else ""
        not_taken = f", {refused.rows} rejected" if refused.rows else ""
        behind = f", {_counted(self.totals.behind)} behind" if any(self.totals.behind) and not replaced else ""
        self._say(
            f"batch {number}: {counted(rows, 'row')} in {time.monotonic() - began:.2f} s{not_taken}{lost}{behind}"
        )
        if self._rejects is not None:
            self._rejects.catch_up()

    def _written(self, plan: LoadPlan, batch: LoadBatch) -> tuple[list[NewFile], list[NewFile]]:
        """Files with what a batch brings, and those with what it rejects. Through Spark's SQL where a user gives
        expressions for that alone."""
        now = datetime.now(UTC)
        if not self._by_sql:
            options, tasks = self._in_tasks(plan, batch)
            return self._staging.write_messages(self._spark.context, tasks, options, self._columns, now.date()), []
        if not self._rejecting:
            try:
                return self._computed(plan, batch, now), []
            except Exception as error:
                if self._rejects is None or not command.is_of_expression(error):
                    raise
                self._say(f"looking for what cannot be taken: {command.told(error)}")
                self._rejecting = True  # from now on: where there is one, there are others
        assert self._rejects is not None
        return self._parted(self._rejects, self._frame(batch.to_read), now)

    def _in_tasks(self, plan: LoadPlan, batch: LoadBatch) -> tuple[SourceOptions, list[Task]]:
        """What workers read of a batch, and how."""
        # What is lost is for the driver to find, and to write down.
        return replace(self._options, fail_on_data_loss=True), plan.tasks(batch)

    def _computed(self, plan: LoadPlan, batch: LoadBatch, now: datetime) -> list[NewFile]:
        """Files with the rows of a batch, through Spark's SQL."""
        needed = self._needed
        if needed is None:
            return self._staging.write(self._expressions.rows(self._frame(batch.to_read), now))
        from fastlog.spark.computed_files import Computed

        options, tasks = self._in_tasks(plan, batch)
        wanted = Computed(self._schema, self._expressions.computed, needed, now.date(), options)
        return self._staging.write_computed(self._spark.session, tasks, self._expressions.of_offsets, wanted)

    def _parted(self, rejects: Rejects, frame: DataFrame, now: datetime) -> tuple[list[NewFile], list[NewFile]]:
        """Files with the rows of a frame, and with those messages that an expression fails on."""
        most = self._load_options.most_rejected
        with self._expressions.parted(frame, now) as (rows, refused):
            found = refused.limit(most + 1).toArrow()
            if found.num_rows > most:
                example = self._expressions.refused(self._spark.session, found.slice(0, 1))[REASON][0]
                raise errors.ConfigError(
                    f"more than {most} messages of a batch would be rejected, such as one with {example}:"
                    " mend the expression, or allow more with --most-rejected"
                )
            rejected = rejects.write(self._expressions.refused(self._spark.session, found), now.date())
            try:
                return self._staging.write(rows), rejected
            except BaseException:
                rejects.discard(Rejected(rejected, {}))
                raise

    def _kept(self, batch: LoadBatch, replaced: list[ActiveFile]) -> tuple[list[NewFile], int]:
        """Files with the rows of replaced ones that are not in a batch's ranges, and how many rows are in them."""
        if isinstance(self._lake, IcebergLake):
            from fastlog.spark.frame_files import read_files

            old = read_files(self._spark.session, self._lake.location, replaced, self._lake.schema)
        else:
            old = read_table(self._spark.session, self._lake.location, replaced)
        count = old.count()
        kept = self._staging.write(old.where(~_inside(batch)))
        return kept, count - sum(file.rows for file in kept)

    @property
    def _by_sql(self) -> bool:
        load_options = self._load_options
        return load_options.time is not None or bool(load_options.columns) or self._partition_by != PARTITIONED_BY

    @functools.cached_property
    def _schema(self) -> pyarrow.Schema:
        """The Arrow schema of the rows that are written."""
        if self._by_sql:
            return arrow_schema(self._expressions.rows(self._no_rows, datetime.now(UTC)))
        from fastlog.spark.row_files import row_schema

        return row_schema(self._columns)

    @functools.cached_property
    def _needed(self) -> tuple[str, ...] | None:
        """See ``Expressions.needed``."""
        return self._expressions.needed(self._no_rows)

    @functools.cached_property
    def _no_rows(self) -> DataFrame:
        """The source, for its columns alone: each of them is a Python process that starts."""
        return self._frame({})

    def _frame(self, ranges: dict[TopicPartition, OffsetRange]) -> DataFrame:
        return source_frame(self._spark.session, self._load_options.source, ranges)

    def _say(self, text: str) -> None:
        command.say(text, self._load_options.shown)


def _partition_columns(lake: AnyLake, load_options: LoadOptions) -> tuple[str, ...]:
    """What a table is partitioned by, or will be. Raises ``ConfigError`` when the user wants something else."""
    if load_options.partition_by is not None:
        names = {name.lower() for name in load_options.partition_by}
        if len(names) < len(load_options.partition_by):
            raise errors.ConfigError(f"--partition-by {','.join(load_options.partition_by)}: names a column twice")
    if not lake.exists:
        return PARTITIONED_BY if load_options.partition_by is None else load_options.partition_by
    has = tuple(lake.partition_columns)
    if load_options.partition_by not in (None, has):
        raise errors.ConfigError(
            f"--partition-by: {lake} is partitioned by {','.join(has) or 'nothing'}, which stays as it is: leave the"
            " option out, or fill another table"
        )
    return has


def _check_partitions(schema: pyarrow.Schema, partition_by: Sequence[str]) -> None:
    """Raise ``ConfigError`` unless every reader finds the values of these columns in a path."""
    import pyarrow as pa

    for name in partition_by:
        if name not in schema.names:
            raise errors.ConfigError(f"--partition-by {name}: the columns are {', '.join(schema.names)}")
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind)):
            raise errors.ConfigError(f"--partition-by {name}: is {kind}; a text, a whole number or a day can be a path")
    if len(partition_by) == len(schema.names):
        raise errors.ConfigError("--partition-by: one column at least has to be in the files")


def rejected_schema(columns: Sequence[str]) -> pyarrow.Schema:
    """The columns of a table of rejected messages, but for the date."""
    import pyarrow as pa

    from fastlog.spark.columns import ARROW_TYPES

    kept = [pa.field(name, ARROW_TYPES[name]) for name in ("topic", *columns)]
    return pa.schema([*kept, pa.field(REASON, pa.string())])


def _counted(sizes: tuple[int, int]) -> str:
    """``12 bytes and 3 records``, without what is 0."""
    of_bytes, records = sizes
    found = [counted(of_bytes, "byte")] if of_bytes or not records else []
    return " and ".join(found + ([counted(records, "record")] if records else []))


def _may_hold(lake: AnyLake, file: ActiveFile, batch: LoadBatch) -> bool:
    """Whether rows of a batch's ranges may be in a file, as far as its footer tells."""
    topic = file.values.get("topic")  # None: the table is not partitioned by that
    wanted = [(item, interval) for item, interval in batch.ranges.items() if topic in (None, item.topic)]
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


def _inside(batch: LoadBatch) -> Column:
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

"""Queries with state, such as windows and joins, whose results go to a Delta table: each batch once.

Spark keeps the state and the place in the topics in a checkpoint, and runs a batch again that it does not know to be
done. The number of the last batch is in the table, in the transaction that brought its rows, so a batch that is there
is recognised and passed over. The checkpoint lies inside the table's directory: neither can be used without the other.
Of a table in an object store it lies where the user says, and the table knows which query it is of.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastlog import errors
from fastlog.counts import counted
from fastlog.retry import pause_after
from fastlog.spark.behind import Behind, behind
from fastlog.spark.capabilities import limits_batches
from fastlog.spark.entries import NewFile
from fastlog.spark.environment import check_packages
from fastlog.spark.jobs import command, parameters
from fastlog.spark.jobs.late import LateRows
from fastlog.spark.jobs.latency import MessageLatencies
from fastlog.spark.lake import Lake, NumberStep, TableChange
from fastlog.spark.staging import CHECKPOINT, TableStaging, arrow_schema
from fastlog.spark.storage import spark_path
from fastlog.tools import report, signals
from fastlog.tools.report import CommandError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_QUERY_ID = "sql.streaming.queryId"
_QUERY = "fastlog.query"
"""The name of the number that says which query fills a table in an object store."""
WITHOUT_TIME, WITHOUT_KEY = "without_time", "without_key"
_LOOK_SECONDS = 1
_LEAST_PAUSE, _MOST_PAUSE = 0.4, 10.0


def watched(frame: DataFrame, time: str, key: str | None = None) -> DataFrame:
    """The same rows of a stream; the progress of the query says of how many these columns are null."""
    from pyspark.sql import functions as f

    counts = {WITHOUT_TIME: time} if key is None else {WITHOUT_TIME: time, WITHOUT_KEY: key}
    nulls = [f.sum(f.col(column).isNull().cast("bigint")).alias(name) for name, column in counts.items()]
    return frame.observe(f"fastlog{time}", *nulls)


class BatchTable:
    """Brings the batches of a query into a table, each once, by its number."""

    def __init__(self, lake: Lake, job: str, partition_by: Sequence[str], state: Path | None) -> None:
        """``state``: the directory for what is not part of a table in an object store."""
        self.lake = lake
        self.rows = 0
        self._job = job
        self._partition_by = partition_by
        self.staging = TableStaging(lake, partition_by, "snappy", state)

    def last(self, query: str) -> int | None:
        """The last batch of a query that is there; looks at the table anew."""
        self.lake.reload()
        return self.lake.number(f"fastlog.query:{query}")

    def made(self, frame: DataFrame) -> None:
        """Make the table for rows like these, if it is not there. Raises ``ConfigError``: it has other columns."""
        schema = arrow_schema(frame)
        if self.lake.exists:
            self.lake.check_schema(schema, self._partition_by)
        else:
            self.lake.create(schema, self._partition_by)

    def bring(self, frame: DataFrame, query: str, batch: int, *, if_empty: bool = True) -> list[NewFile]:
        """Bring the rows of a batch that is not there; its files. Without rows it is written down ``if_empty``.

        Raises:
            TableConflictError, TableWriteError, TableUnavailableError: as ``Lake.commit``.
        """
        name = f"fastlog.query:{query}"
        last = self.lake.number(name)
        files = self.staging.write(frame)
        rows = sum(file.rows for file in files)
        if not rows and not if_empty:
            return files
        notes = {"job": self._job, "query": query, "batch": batch, "rows": rows}
        steps = {name: NumberStep(last, batch)}
        if not self.lake.location.is_local:  # no lock keeps another query away there
            steps[_QUERY] = NumberStep(None if last is None else _as_number(query), _as_number(query))
        try:
            self.lake.commit(TableChange(steps, files, (), notes))
        except (errors.TableConflictError, errors.TableWriteError):
            self.staging.discard(files)
            raise
        self.rows += rows
        return files


class TableSink:
    """What ``foreachBatch`` calls. Made once for a table; used in one query at a time."""

    def __init__(
        self,
        lake: Lake,
        job: str,
        partition_by: Sequence[str],
        shown: bool,
        state: Path | None = None,
        *,
        moments: Sequence[str] = (),
        late: tuple[Lake, LateRows] | None = None,
    ) -> None:
        """``state``: the directory for the query's state, of a table in an object store. ``moments``: columns with
        times, the latest of which is when a row could have been known. ``late``: where late messages go, and what finds
        them.

        Raises:
            ConfigError: such a table without one, or another with one; late messages in the table itself.
        """
        if lake.location.is_local != (state is None):
            raise errors.ConfigError(
                "--checkpoint: the state of a table in a directory is kept inside it"
                if lake.location.is_local
                else f"{lake}: give a directory with --checkpoint, in which Spark keeps the state of the query"
            )
        if late is not None and late[0].location.text == lake.location.text:
            raise errors.ConfigError(f"--late-table: {lake} is the table that is filled: give another place")
        self.batches = 0
        self.passed_over = 0
        self.latencies = MessageLatencies()
        self.span_ms = 0
        """How much later than its moment a row could have been known, such as a window by its beginning."""
        self._moments = moments
        self.lake = lake
        self._table = BatchTable(lake, job, partition_by, state)
        self._late_rows = None if late is None else late[1]
        self.late_table = None if late is None else BatchTable(late[0], f"late of {job}", (), None)
        """With the late messages; None where nobody wants them."""
        self._state = lake.work_directory if state is None else state
        self._shown = shown

    @property
    def rows(self) -> int:
        """How many rows this run has added to the table."""
        return self._table.rows

    @property
    def late_summary(self) -> dict[str, Any] | None:
        """Where late messages went in this run, and how many; None where nobody wants them."""
        return None if self.late_table is None else {"table": str(self.late_table.lake), "rows": self.late_table.rows}

    @property
    def checkpoint(self) -> Path:
        """The directory of the query's checkpoint."""
        return self._state / CHECKPOINT

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Around the query: raises ``TableConflictError`` when another process fills the table."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._table.staging.alone())
            if self.late_table is not None:
                stack.enter_context(self.late_table.staging.alone())
            if self.lake.exists and not (self.checkpoint / "metadata").exists():
                raise errors.ConfigError(
                    f"{self.lake}: the table's rows are of a query whose state is lost:"
                    " give another place, and it is made anew from the topics"
                )
            if not self.lake.location.is_local:
                self._check_query()
            yield

    def _check_query(self) -> None:
        """Raise ``ConfigError`` when the state is not that of the query that has filled the table."""
        metadata = self.checkpoint / "metadata"
        if not metadata.exists():
            return
        query = str(json.loads(metadata.read_text())["id"])
        has = self.lake.number(_QUERY)
        if has is not None and has != _as_number(query):
            raise errors.ConfigError(f"{self.lake}: {self.checkpoint} is the state of another query, of another table")
        if has is None and any((self.checkpoint / "commits").glob("[0-9]*")):
            raise errors.ConfigError(
                f"{self.lake}: has nothing of what {self.checkpoint} says was brought there: give another --checkpoint"
            )

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Bring the rows of a batch into the table, unless they are there; what is late of it before."""
        query = str(frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID))
        self._bring_late(frame.sparkSession, query, batch)
        last = self._table.last(query)
        self._table.made(frame)
        if last is not None and last >= batch:
            self.passed_over += 1
            command.say(f"batch {batch}: is in the table already", self._shown)
            # Its rows are not wanted, but the state that it leaves for the next one is.
            frame.write.format("noop").mode("overwrite").save()
            return
        before = self.rows
        files = self._table.bring(frame, query, batch)
        now_us = time.time_ns() // 1000 - self.span_ms * 1000
        unknown = self.latencies.add_table(self.lake.location, files, self._moments, now_us)
        if unknown is not None:
            command.say(unknown, self._shown)
        self.batches += 1
        command.say(f"batch {batch}: {counted(self.rows - before, 'row')}", self._shown)

    def _bring_late(self, session: SparkSession, query: str, batch: int) -> None:
        if self.late_table is None or self._late_rows is None:
            return
        frame = self._late_rows.of(session, self.checkpoint, batch)
        if frame is None:
            return
        last = self.late_table.last(query)
        self.late_table.made(frame)
        if last is not None and last >= batch:
            return
        before = self.late_table.rows
        self.late_table.bring(frame, query, batch, if_empty=False)
        if self.late_table.rows > before:
            command.say(f"batch {batch}: {self.late_table.rows - before} late rows", self._shown)


def _as_number(query: str) -> int:
    """The id of a query as a table remembers numbers."""
    return uuid.UUID(query).int >> 65


class QueryRun:
    """Runs a query until it has done what there is, or a signal comes; starts it again when it fails."""

    def __init__(self, sink: TableSink, make: Callable[[], DataFrame], *, every: float | None, attempts: int) -> None:
        self._sink = sink
        self._make = make
        self._every = every
        self._attempts = attempts
        self._counted = (-1, -1)
        self.read_rows = 0
        self.late = 0
        self.without_time = 0
        self.without_key = 0
        self.failures = 0
        self.behind: Behind | None = None
        self.watermark: str | None = None
        self._started = time.monotonic()

    def __call__(self) -> None:
        """Raises what the query raises in the end; ``signals.Interrupted`` after it was stopped for a signal."""
        failures = 0
        with self._sink.alone():
            while True:
                batches = self._sink.batches
                try:
                    self._once()
                    return
                except Exception as error:
                    own = command.own_error(error)
                    if not command.may_pass(error) or isinstance(own, errors.DataLossError):
                        raise command.for_good(error) from error
                    failures = 1 if self._sink.batches > batches else failures + 1
                    self.failures += 1
                    if failures >= self._attempts:
                        if own is not None:
                            raise own from error
                        what = f"the query failed {failures} times"
                        raise CommandError(what, command.told(error), "it goes on where it was once started") from error
                    command.say(f"failed, {failures} of {self._attempts}: {command.told(error)}")
                    command.wait(pause_after(failures, _LEAST_PAUSE, _MOST_PAUSE))

    def to_json(self) -> dict[str, Any]:
        """The fields of the summary that the job prints."""
        return {
            "batches": self._sink.batches,
            "passed_over": self._sink.passed_over,
            "rows": self._sink.rows,
            "read_rows": self.read_rows,
            "late": self.late,
            "late_table": self._sink.late_summary,
            WITHOUT_TIME: self.without_time,
            WITHOUT_KEY: self.without_key,
            "watermark": self.watermark,
            "seconds": round(time.monotonic() - self._started, 3),
            "failures": self.failures,
            "latency_ms": self._sink.latencies.to_json(),
            "behind": None if self.behind is None else self.behind._asdict(),
        }

    # -- inside --------------------------------------------------------------------------------------------------------

    def _once(self) -> None:
        frame = self._make()
        trigger: dict[str, Any] = {"availableNow": True}
        if self._every is not None:
            trigger = {"processingTime": f"{max(1, round(self._every * 1000))} milliseconds"}
        writer = frame.writeStream.foreachBatch(self._sink).outputMode("append")
        query = writer.option("checkpointLocation", spark_path(self._sink.checkpoint)).trigger(**trigger).start()
        self._counted = (-1, -1)
        try:
            while not query.awaitTermination(_LOOK_SECONDS):
                self._count(query)
                command.wait(0)
        except signals.Interrupted:
            query.stop()  # a batch that is cut off here runs again
            raise
        finally:
            self._count(query)

    def _count(self, query: StreamingQuery) -> None:
        """Add up what the batches since the last look say of themselves."""
        for progress in query.recentProgress:
            found = json.loads(progress.json)
            self.behind = behind(found) or self.behind
            # A trigger with nothing to do has the number of the batch to come.
            number = found["batchId"], int(found["durationMs"].get("addBatch") is not None)
            if number <= self._counted or not number[1]:
                continue
            self._counted = number
            self.read_rows += found["numInputRows"]
            observed = (found.get("observedMetrics") or {}).values()
            self.without_time += sum(item.get(WITHOUT_TIME) or 0 for item in observed)
            self.without_key += sum(item.get(WITHOUT_KEY) or 0 for item in observed)
            self.late += sum(item.get("numRowsDroppedByWatermark", 0) for item in found["stateOperators"])
            self.watermark = found.get("eventTime", {}).get("watermark", self.watermark)


def fill_table(
    name: str,
    job: parameters.JobOptions,
    conf: dict[str, str],
    sink: TableSink,
    make: Callable[[SparkSession], DataFrame],
) -> tuple[int, dict[str, Any]]:
    """Run the stream of a job into its table, to its end or to a signal.

    Returns the exit code, which is 0 unless a signal came, and the summary. Raises as ``QueryRun``, and
    ``ConfigError`` where Spark does not limit batches.
    """
    check_packages()
    if not limits_batches():
        raise errors.ConfigError(
            f"{name}: with --table it needs Spark 4.2 or newer, which limits batches (--max-bytes)"
        )
    code = report.EXIT_DONE
    with command.LazySpark(name, job.master, conf) as spark, command.batches_unbroken():
        run = QueryRun(sink, lambda: make(spark.session), every=job.every, attempts=job.attempts)
        try:
            run()
        except signals.Interrupted as stop:
            code = stop.exit_code
    sink.lake.reload()
    found = run.to_json()
    if (told := left_out(found)) and not job.no_progress:
        report.note(f"{name}: left out: {told}")
    return code, {"job": name, "table": str(sink.lake), "version": sink.lake.version, **found}


def left_out(summary: Mapping[str, Any]) -> str:
    """What a summary says of messages that are in no row, and why, in words; nothing of none."""
    late = summary["late_table"]
    kinds = (
        (summary["late"] if late is None else late["rows"], "late, by --late" + ("" if late is None else " (kept)")),
        (summary[WITHOUT_TIME], "without a time: --time gives them one"),
        (summary[WITHOUT_KEY], "without a key: --on is null"),
    )
    return "; ".join(f"{count} {why}" for count, why in kinds if count)

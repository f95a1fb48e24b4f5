"""``python -m fastlog.spark.jobs.audit``: what producers say they have sent, against what arrived, window by window."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fastlog.errors import ConfigError
from fastlog.spark.jobs import command, parameters
from fastlog.spark.jobs.streams import TableSink, fill_table
from fastlog.spark.lake import Lake, read_table
from fastlog.spark.storage import TableLocation
from fastlog.tools import options, report

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_EVENT_KEY = "struct<producer_id: bigint, seq: bigint, n: bigint>"
_OF_MESSAGES = ("envelope", "includeenvelope", "failonbadenvelope")
_ID = "deduplicationId"
EVENT = "topic string, server string, window_start bigint, window_ms bigint, n bigint, producer_id bigint, seq bigint"
OK, MISSING, EXTRA, UNREPORTED, OPEN = "OK", "MISSING", "EXTRA", "UNREPORTED", "OPEN"


@parameters.job(
    "audit",
    table_required=False,
    examples=(
        "python -m fastlog.spark.jobs.audit --topic clicks -o envelope=true -o includeEnvelope=true",
        "python -m fastlog.spark.jobs.audit --topic clicks -o envelope=true --loaded /data/clicks",
        "python -m fastlog.spark.jobs.audit --topic clicks -o envelope=true --table /data/audit --every 1min",
    ),
)
@options.option(
    "--events",
    group="Selection",
    default="audit",
    show_default=True,
    metavar="TOPIC",
    help="Where producers send their monitoring events.",
)
@options.option(
    "--loaded",
    group="Selection",
    type=parameters.TablePlace(exists=True),
    help="A table that the load job fills, as a directory or a URL: its rows are counted as well.",
)
def audit_command(
    job: parameters.JobOptions,
    events: str,
    loaded: TableLocation | None,
) -> int:
    """Compare what producers say they have sent with what is in the topics, and in a table.

    A monitoring event tells how many messages of a topic a producer has sent in a window of time. Here the
    messages are counted in the same windows, by their own time. Windows that end less than --late before the
    newest one begins may still grow.

    Without --table: all that there is, and a JSON line for each window in which the numbers differ; one that may
    still grow is OPEN unless messages are missing in the topic already. With it: as
    a stream from where the last run ended; each window goes to the table once, with its state: OK; MISSING,
    with which the exit code is 1; EXTRA, when there is more than producers told of, as when one was killed
    before it told, or sent something twice; UNREPORTED, when nobody told of the window.
    """
    chosen, conf = job.named()
    source = command.source_of(job.brokers, chosen, job.topics)
    reports = {name: value for name, value in source.items() if name.lower() not in _OF_MESSAGES} | {
        "subscribe": events
    }
    other = None if loaded is None else job.located(loaded)
    if job.table is None:
        if job.every is not None:
            raise click.UsageError("--every needs a --table")
        with command.LazySpark("audit", job.master, conf) as spark:
            return _at_once(spark.session, source, reports, job.time_of, job.late, other)
    if loaded is not None:
        raise click.UsageError("--loaded is for a comparison without --table")
    sink = AuditSink(job.lake(), not job.no_progress, job.checkpoint)

    def make(session: SparkSession) -> DataFrame:
        window_ms = _window_ms(sent_of(session.read.format("fastlog").options(**reports).load()))
        sink.span_ms = window_ms
        told = session.readStream.format("fastlog").options(**reports, **job.streamed).load()
        rows = session.readStream.format("fastlog").options(**source, **job.streamed).load()
        both = together(sent_of(told), {"arrived": counted_rows(rows, job.time_of, window_ms)}, job.topics)
        return compared(both.withWatermark("window_start", command.interval(job.late)), ["arrived"], window_ms)

    code, summary = fill_table("audit", job, conf, sink, make)
    command.show_summary({**summary, "windows": sink.states})
    return code or (report.EXIT_FAILED if sink.has_gap else report.EXIT_DONE)


class AuditSink(TableSink):
    """Keeps the windows of a stream, and how many there were in each state."""

    def __init__(self, lake: Lake, shown: bool, state: Path | None = None) -> None:
        super().__init__(lake, "audit", (), shown, state, moments=("window_start",))
        self.states: dict[str, int] = {}

    @property
    def has_gap(self) -> bool:
        """Whether a window of this run lacks messages."""
        return bool(self.states.get(MISSING))

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Also for a batch that is in the table already: who started this run is to know of it."""
        kept = frame.persist()
        try:
            for row in kept.groupBy("state").count().collect():
                self.states[row["state"]] = self.states.get(row["state"], 0) + row["count"]
            super().__call__(kept, batch)
        finally:
            kept.unpersist()


def sent_of(frame: DataFrame) -> DataFrame:
    """The monitoring events among messages: topic, beginning of the window, its length, and what makes one event."""
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), EVENT).alias("event")
    events = frame.select(event).select("event.*").where("producer_id IS NOT NULL AND n IS NOT NULL")
    started = f.timestamp_millis("window_start").alias("window_start")
    return events.select("topic", started, "window_ms", f.struct("producer_id", "seq", "n").alias("event"))


def counted_rows(frame: DataFrame, time_of: str, window_ms: int) -> DataFrame:
    """The topic of each message, and the beginning of the window in which its time is."""
    from pyspark.sql import functions as f

    ms = f.unix_millis(f.expr(time_of).cast("timestamp"))
    start = f.timestamp_millis(ms - f.pmod(ms, f.lit(window_ms))).alias("window_start")
    return frame.select("topic", start).where(f.col("window_start").isNotNull())


def without_copies(frame: DataFrame) -> DataFrame:
    """Messages, those with one deduplication id once; all of them where the source was not asked for the ids."""
    if _ID not in frame.columns:
        return frame
    numbered = frame.where(f"{_ID} IS NOT NULL").dropDuplicates(["topic", _ID])
    return numbered.unionByName(frame.where(f"{_ID} IS NULL"))


def together(sent: DataFrame, counted: Mapping[str, DataFrame], topics: Sequence[str]) -> DataFrame:
    """What was reported and what was counted at each stage as one frame, of which a window is a sum."""
    from pyspark.sql import functions as f

    def ones(of: str) -> list[Column]:
        return [f.lit(int(stage == of)).cast("bigint").alias(stage) for stage in counted]

    found = sent.where(f.col("topic").isin(list(topics))).select("topic", "window_start", "event", *ones(""))
    nothing = f.lit(None).cast(_EVENT_KEY).alias("event")
    for stage, frame in counted.items():
        found = found.unionByName(frame.select("topic", "window_start", nothing, *ones(stage)))
    return found


def compared(both: DataFrame, stages: Sequence[str], window_ms: int) -> DataFrame:
    """One row for each topic and window, with its state: that of the first stage where the numbers differ."""
    from pyspark.sql import functions as f

    grouped = both.groupBy("topic", f.window("window_start", command.interval(window_ms / 1000)).alias("span"))
    # An event that was sent twice is in the set once.
    summed = grouped.agg(f.collect_set("event").alias("told"), *(f.sum(stage).alias(stage) for stage in stages))
    sent = f.expr("aggregate(told, 0L, (sum, event) -> sum + event.n)").alias("sent")
    windows = summed.select(
        "topic", f.col("span.start").alias("window_start"), f.size("told").alias("events"), sent, *stages
    )
    state = f.when(f.col("events") == 0, UNREPORTED)
    for stage in stages:
        state = state.when(f.col(stage) < f.col("sent"), MISSING).when(f.col(stage) > f.col("sent"), EXTRA)
    return windows.withColumn("state", state.otherwise(OK))


def still_open(windows: DataFrame, late: float, window_ms: int) -> DataFrame:
    """Windows with the state of those that may still grow: what is missing in the topic is known of them too."""
    from pyspark.sql import functions as f

    # As numbers: Python gives a time of Spark's in its own zone, where an hour comes twice when the clocks go back.
    start = f.unix_micros("window_start")
    newest = windows.agg(f.max(start)).collect()[0][0] or 0  # no window, when nobody told of these topics
    is_open = start > f.lit(newest - (round(late * 1000) + window_ms) * 1000)
    state = f.when(is_open & (f.col("arrived") >= f.col("sent")), OPEN).when(is_open, MISSING).otherwise(f.col("state"))
    return windows.withColumn("state", state)


def _window_ms(sent: DataFrame) -> int:
    """The one length of all windows.

    Raises:
        ConfigError: there is no monitoring event, or producers use windows of several lengths.
    """
    lengths = [row["window_ms"] for row in sent.select("window_ms").distinct().collect()]
    if not lengths:
        raise ConfigError("--events: the topic holds no monitoring event")
    if len(lengths) > 1:
        raise ConfigError(f"--events: producers count in windows of several lengths: {sorted(lengths)} ms")
    return int(lengths[0])


def _at_once(
    spark: SparkSession,
    source: dict[str, str],
    reports: dict[str, str],
    time_of: str,
    late: float,
    loaded: TableLocation | None,
) -> int:
    """Print the windows that differ, and the summary."""
    from pyspark.sql import functions as f

    began = time.monotonic()
    # Kept before the messages are looked for: then one that was reported is there, or missing, however new it is.
    sent = sent_of(spark.read.format("fastlog").options(**reports).load()).persist()
    window_ms = _window_ms(sent)
    arrived = without_copies(spark.read.format("fastlog").options(**source).load())
    counted = {"arrived": counted_rows(arrived, time_of, window_ms)}
    topics = source["subscribe"].split(",")
    if loaded is not None:
        columns = None if loaded.is_local else _read_columns(loaded)
        rows = without_copies(read_table(spark, loaded, columns=columns).where(f.col("topic").isin(topics)))
        counted["loaded"] = counted_rows(rows, "timestamp", window_ms)
    windows = compared(together(sent, counted, topics), list(counted), window_ms).persist()
    states: dict[str, int] = {}
    for row in still_open(windows, late, window_ms).orderBy("topic", "window_start").toLocalIterator():
        states[row["state"]] = states.get(row["state"], 0) + 1
        if row["state"] not in (OK, OPEN):
            click.echo(json.dumps(row.asDict(), default=command.as_text))
    for kept in (windows, sent):
        kept.unpersist()
    seconds = round(time.monotonic() - began, 3)
    command.show_summary({"job": "audit", "windows": states, "window_ms": window_ms, "seconds": seconds})
    return report.EXIT_FAILED if states.get(MISSING) else report.EXIT_DONE


def _read_columns(loaded: TableLocation) -> list[str]:
    """What the audit needs of a table: of one in an object store all columns that are asked for are fetched."""
    return [name for name in Lake(loaded).column_names if name in ("topic", "timestamp", _ID)]


def main(argv: list[str] | None = None) -> None:
    """Run the command; never returns."""
    command.run(audit_command, "audit", argv)


if __name__ == "__main__":
    main()

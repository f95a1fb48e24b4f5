"""``python -m fastlog.spark.jobs.counts``: messages in windows of time, as a stream into a table, or at once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from fastlog.errors import ConfigError
from fastlog.spark.jobs import command, parameters
from fastlog.spark.jobs.late import OVER, REASON, TIME, LateRows, Side
from fastlog.spark.jobs.streams import WITHOUT_TIME, TableSink, fill_table, watched
from fastlog.spark.lake import Lake
from fastlog.spark.storage import TableLocation
from fastlog.tools import options, report

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MADE = ("window_start", "window_end", "n", "bytes")


@parameters.job(
    "counts",
    table_required=False,
    examples=(
        "python -m fastlog.spark.jobs.counts --topic clicks --window 10min",
        "python -m fastlog.spark.jobs.counts --topic clicks --window 10min --slide 1min --late 5min --table /data/c",
        "python -m fastlog.spark.jobs.counts --topic clicks --session 30min --by 'user=cast(key AS string)'",
    ),
)
@options.option(
    "--window", group="Selection", type=options.Duration(), metavar="TIME", help="How long a window is: 10min."
)
@options.option(
    "--slide",
    group="Selection",
    type=options.Duration(),
    metavar="TIME",
    help="How often a window begins; without it, where the last one ends.",
)
@options.option(
    "--session",
    "gap",
    group="Selection",
    type=options.Duration(),
    metavar="TIME",
    help="Windows that go on until nothing comes for so long.",
)
@options.option(
    "--by",
    group="Selection",
    multiple=True,
    metavar="NAME=SQL",
    help="Count for each value of this; may be repeated.  [default: topic=topic]",
)
@parameters.late_table_option
def counts_command(
    job: parameters.JobOptions,
    late_place: TableLocation | None,
    window: float | None,
    slide: float | None,
    gap: float | None,
    by: tuple[str, ...],
) -> int:
    """Count messages, and the bytes of their values, in windows of time.

    Without --table: of all that the topics hold now, as JSON lines on stdout; messages without a time are counted in
    lines without a window. With it: as a stream, from where
    the last run ended. A window is added to the table once, when it is over: when a message has come that is
    --late later than its end. Messages that come after that are left out, and their number is in the summary;
    --late-table keeps them.
    """
    if (window is None) == (gap is None):
        raise click.UsageError("give one of --window and --session")
    if slide is not None and (window is None or not 0 < slide <= window):
        raise click.UsageError("--slide is for --window, and not longer")
    columns = options.named_values("--by", by) or {"topic": "topic"}
    for name in columns:
        if name.lower() in _MADE:
            raise ConfigError(f"--by {name}: there is a column of that name")
    chosen, conf = job.named()
    source = command.source_of(job.brokers, chosen, job.topics)
    windows = Windows(job.time_of, window, slide, gap, columns)
    if job.table is None:
        if job.every is not None:
            raise click.UsageError("--every needs a --table")
        if late_place is not None:
            raise click.UsageError("--late-table needs a --table: of all that there is nothing is late")
        return _of_all(source, windows, job.master, conf)
    late = None
    if late_place is not None:
        late = Lake(job.located(late_place)), LateRows([Side(source, windows.timed, windows.bounds)])
    shown = not job.no_progress
    sink = TableSink(job.lake(), "counts", (), shown, job.checkpoint, moments=("window_end",), late=late)

    def make(spark: SparkSession) -> DataFrame:
        frame = spark.readStream.format("fastlog").options(**source, **job.streamed).load()
        return windows.counted(frame, job.late)

    code, summary = fill_table("counts", job, conf, sink, make)
    command.show_summary(summary)
    return code


class Windows:
    """Which windows to count in, and what for."""

    def __init__(
        self,
        time_of: str,
        length: float | None,
        slide: float | None,
        gap: float | None,
        by: Mapping[str, str],
    ) -> None:
        self._time_of = time_of
        self._length = length
        self._slide = slide
        self._gap = gap
        self._by = by

    @property
    def bounds(self) -> tuple[str, ...]:
        """The columns of ``timed`` beside its time: those of a window; none of sessions, whose bounds come late."""
        return () if self._gap is not None else ("window_start", "window_end")

    def timed(self, frame: DataFrame) -> DataFrame:
        """Messages with their time, once for each window that they are in, and when that is over; see ``Side``."""
        from pyspark.sql import functions as f

        rows = frame.withColumn(TIME, f.expr(self._time_of).cast("timestamp")).where(f.col(TIME).isNotNull())
        if self._gap is not None:
            over = f.col(TIME) + f.expr(f"INTERVAL {command.interval(self._gap)}")
            return rows.select("*", over.alias(OVER), f.lit("no session is open from so long ago").alias(REASON))
        rows = rows.select("*", self._window(TIME).alias("_window"))
        start, end = f.col("_window.start").alias("window_start"), f.col("_window.end")
        reason = f.lit("the window was over").alias(REASON)
        return rows.select("*", start, end.alias("window_end"), end.alias(OVER), reason)

    def _window(self, time: str) -> Column:
        from pyspark.sql import functions as f

        if self._gap is not None:
            return f.session_window(time, command.interval(self._gap))
        assert self._length is not None
        slide = None if self._slide is None else command.interval(self._slide)
        return f.window(time, command.interval(self._length), slide)

    def counted(self, frame: DataFrame, late: float | None) -> DataFrame:
        """One row for each window and group. ``late`` in seconds, for a stream.

        Messages without a time are in none, where late ones are left out as well; else in one row for each group, whose
        window is null.
        """
        from pyspark.sql import functions as f

        by = [f.expr(text).alias(name) for name, text in self._by.items()]
        moment = f.expr(self._time_of).cast("timestamp").alias("_time")
        rows = frame.select(moment, *by, f.length("value").cast("bigint").alias("_bytes"))
        keys = list(self._by)
        if late is not None:
            rows = watched(rows, "_time").where(f.col("_time").isNotNull())
            rows = rows.withWatermark("_time", command.interval(late))
        else:
            # Spark puts no row without a time into a window: they share a moment, and a group that says so.
            rows = rows.withColumn("_timed", f.col("_time").isNotNull())
            rows = rows.withColumn("_time", f.coalesce("_time", f.timestamp_seconds(f.lit(0))))
            keys.append("_timed")
        grouped = rows.groupBy(self._window("_time").alias("_window"), *keys)
        counted = grouped.agg(f.count(f.lit(1)).alias("n"), f.sum("_bytes").alias("bytes"))
        start, end = f.col("_window.start"), f.col("_window.end")
        if late is None:
            if self._slide is not None:  # the moment is in several windows, and in one that began last
                begins = f.unix_micros(start) + round(self._slide * 1e6)
                counted = counted.where(f.col("_timed") | (begins > 0))
            start, end = f.when(f.col("_timed"), start), f.when(f.col("_timed"), end)
        return counted.select(start.alias("window_start"), end.alias("window_end"), *self._by, "n", "bytes")


def _of_all(source: dict[str, str], windows: Windows, master: str | None, conf: dict[str, str]) -> int:
    began = time.monotonic()
    count = total = untimed = 0
    with command.LazySpark("counts", master, conf) as spark:
        from pyspark.sql import functions as f

        counted = windows.counted(spark.session.read.format("fastlog").options(**source).load(), None)
        for row in counted.orderBy(f.asc_nulls_last("window_start")).toLocalIterator():
            count += 1
            total += row["n"]
            untimed += 0 if row["window_start"] else row["n"]
            click.echo(json.dumps(row.asDict(), default=command.as_text))
    seconds = round(time.monotonic() - began, 3)
    if untimed:
        report.note(
            f"counts: {untimed} of {total} messages have no time, and are counted without a window:"
            " --time gives them one, and -o envelope=true where producers have written it"
        )
    summary = {"job": "counts", "rows": count, "counted": total, WITHOUT_TIME: untimed, "seconds": seconds}
    command.show_summary(summary)
    return report.EXIT_DONE


def main(argv: list[str] | None = None) -> None:
    """Run the command; never returns."""
    command.run(counts_command, "counts", argv)


if __name__ == "__main__":
    main()

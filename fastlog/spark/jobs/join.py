"""``python -m fastlog.spark.jobs.join``: messages of one topic with those of another, or with a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fastlog.errors import ConfigError
from fastlog.spark.jobs import command, parameters
from fastlog.spark.jobs.late import OVER, REASON, TIME, LateRows, Side, Timed
from fastlog.spark.jobs.streams import TableSink, fill_table, watched
from fastlog.spark.lake import Lake, read_table
from fastlog.spark.storage import TableLocation, spark_path
from fastlog.tools import options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PLACES = ("topic", "broker", "partition", "offset", "idx", "value")


@parameters.job(
    "join",
    table_required=True,
    examples=(
        "python -m fastlog.spark.jobs.join --topic views --with clicks --on key --within 1h --table /data/clicked",
        "python -m fastlog.spark.jobs.join --topic views --with-table users.csv --on 'cast(key AS string)' "
        "--other-on user --table /data/views",
    ),
)
@options.option("--with", "other_topics", group="Selection", multiple=True, metavar="TOPIC", help="The other topic.")
@options.option(
    "--with-table",
    "static",
    group="Selection",
    type=parameters.TablePlace(exists=True),
    help="Instead of it a Delta table, also at a URL, or a file or directory of Parquet, CSV (with a header) or JSON.",
)
@options.option("--on", group="Selection", required=True, metavar="SQL", help="What is equal in both.")
@options.option("--other-on", group="Selection", metavar="SQL", help="The same in the other one, if it is not --on.")
@options.option("--other-time", group="Format", metavar="SQL", help="As --time, if the other's is not the same.")
@options.option(
    "--within",
    group="Selection",
    type=options.Duration(),
    metavar="TIME",
    help="How much later the other message may be at most.",
)
@options.option(
    "--before",
    group="Selection",
    type=options.Duration(),
    default="0s",
    show_default=True,
    metavar="TIME",
    help="How much earlier it may be.",
)
@options.option(
    "--keep-unmatched",
    group="Selection",
    is_flag=True,
    help="Also messages that have no other one: once none can come any more.",
)
@parameters.late_table_option
def join_command(
    job: parameters.JobOptions,
    late_place: TableLocation | None,
    other_topics: tuple[str, ...],
    static: TableLocation | None,
    on: str,
    other_on: str | None,
    other_time: str | None,
    within: float | None,
    before: float,
    keep_unmatched: bool,
) -> int:
    """Join a topic with another one, message by message within a span of time, or with the rows of a table.

    The result goes to a Delta table, each pair once, from where the last run ended. Messages that come later
    than --late allows are left out; --late-table keeps them. A table is read once, when the job starts.
    """
    if bool(other_topics) == (static is not None):
        raise click.UsageError("give one of --with and --with-table")
    if (within is None) != (static is not None):
        raise click.UsageError("--within is for --with, which needs it")
    if late_place is not None and static is not None:
        raise click.UsageError("--late-table is for --with: against a table nothing is late")
    chosen, conf = job.named()
    left = command.source_of(job.brokers, chosen, job.topics)
    right = command.source_of(job.brokers, chosen, other_topics)
    moments = ("left_time",) if static is not None else ("left_time", "right_time")
    late = None
    if late_place is not None:
        sides = [
            Side(left, _timed("left", None if keep_unmatched else on, job.time_of)),
            Side(right, _timed("right", other_on or on, other_time or job.time_of)),
        ]
        late = Lake(job.located(late_place)), LateRows(sides)
    sink = TableSink(job.lake(), "join", (), not job.no_progress, job.checkpoint, moments=moments, late=late)
    other = None if static is None else job.located(static)
    how = "left" if keep_unmatched else "inner"

    def make(spark: SparkSession) -> DataFrame:
        first = _side(spark, left | job.streamed, "left", on, job.time_of)
        if other is not None:
            return _with_table(first, _static(spark, other), other_on or on, how)
        assert within is not None
        second = _side(spark, right | job.streamed, "right", other_on or on, other_time or job.time_of)
        delay = command.interval(job.late)
        return _with_topic(
            first.withWatermark("left_time", delay), second.withWatermark("right_time", delay), within, before, how
        )

    code, summary = fill_table("join", job, conf, sink, make)
    command.show_summary(summary)
    return code


def _side(spark: SparkSession, source: dict[str, str], name: str, on: str, time_of: str) -> DataFrame:
    """A stream with its columns under names of their own, and what it is joined on."""
    from pyspark.sql import functions as f

    frame = spark.readStream.format("fastlog").options(**source).load()
    chosen = [f.col(column).alias(f"{name}_{column}") for column in _PLACES]
    moment = f.expr(time_of).cast("timestamp").alias(f"{name}_time")
    return watched(frame.select(f.expr(on).alias(f"{name}_on"), moment, *chosen), f"{name}_time", f"{name}_on")


def _timed(name: str, on: str | None, time_of: str) -> Timed:
    """What ``Side`` asks of the messages of one side; those without a key, ``on``, find nobody, and so are not late."""

    def timed(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        moment = f.expr(time_of).cast("timestamp")
        reason = f.lit(f"{name}: the time for its partners was over")
        rows = frame if on is None else frame.where(f.expr(on).isNotNull())
        return rows.select("*", moment.alias(TIME), moment.alias(OVER), reason.alias(REASON))

    return timed


def _with_topic(left: DataFrame, right: DataFrame, within: float, before: float, how: str) -> DataFrame:
    from pyspark.sql import functions as f

    earliest = f.col("left_time") - f.expr(f"INTERVAL {command.interval(before)}")
    latest = f.col("left_time") + f.expr(f"INTERVAL {command.interval(within)}")
    matches: Column = (
        (f.col("left_on") == f.col("right_on")) & (f.col("right_time") >= earliest) & (f.col("right_time") <= latest)
    )
    return left.join(right, matches, how).drop("right_on").withColumnRenamed("left_on", "on")


def _with_table(left: DataFrame, right: DataFrame, other_on: str, how: str) -> DataFrame:
    from pyspark.sql import functions as f

    named = right.select(f.expr(other_on).alias("_on"), *(f.col(name).alias(f"right_{name}") for name in right.columns))
    joined = left.join(f.broadcast(named), f.col("left_on") == f.col("_on"), how)
    return joined.drop("_on").withColumnRenamed("left_on", "on")


def _static(spark: SparkSession, place: TableLocation) -> DataFrame:
    """The rows of a file or a table. Raises ``ConfigError`` for what is none of those known."""
    if not place.is_local:
        return read_table(spark, place)
    path = place.directory
    if (path / "_delta_log").is_dir():
        return read_table(spark, path)
    kinds = {item.suffix for item in path.iterdir()} if path.is_dir() else {path.suffix}
    for suffix in (".parquet", ".csv", ".json"):
        if suffix in kinds:
            reader = spark.read.option("header", "true").option("inferSchema", "true")
            return reader.format(suffix[1:]).load(spark_path(path))
    raise ConfigError(f"{path}: neither a Delta table nor Parquet, CSV or JSON by its name")


def main(argv: list[str] | None = None) -> None:
    """Run the command; never returns."""
    command.run(join_command, "join", argv)


if __name__ == "__main__":
    main()

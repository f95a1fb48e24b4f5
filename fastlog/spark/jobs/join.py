"""``python -m fastlog.spark.jobs.join``: messages of one topic with those of another, or with a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fastlog.errors import ConfigError
from fastlog.spark.jobs import command
from fastlog.spark.jobs.streams import Run, TableSink, watched
from fastlog.spark.lake import Lake, read_table, spark_path
from fastlog.tools import options, report, signals

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PLACES = ("topic", "broker", "partition", "offset", "idx", "value")


@click.command(
    cls=options.Command,
    name="join",
    exit_codes=command.EXIT_CODES,
    examples=(
        "python -m fastlog.spark.jobs.join --topic views --with clicks --on key --within 1h --table /data/clicked",
        "python -m fastlog.spark.jobs.join --topic views --with-table users.csv --on 'cast(key AS string)' "
        "--other-on user --table /data/views",
    ),
)
@command.source_options
@command.topics_option
@command.trigger_options
@command.spark_options
@command.quiet_option
@command.table_option(required=True)
@command.time_option
@command.late_option
@command.attempts_option
@options.option("--with", "other_topics", group="Selection", multiple=True, metavar="TOPIC", help="The other topic.")
@options.option(
    "--with-table",
    "static",
    group="Selection",
    type=command.LocalPath(exists=True),
    help="Instead of it a Delta table, or a file or directory of Parquet, CSV (with a header) or JSON.",
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
def join_command(
    brokers: str,
    zookeeper: str | None,
    given: tuple[str, ...],
    topics: tuple[str, ...],
    every: float | None,
    max_bytes: int,
    master: str | None,
    settings: tuple[str, ...],
    no_progress: bool,
    directory: Path,
    time_of: str,
    late: float,
    attempts: int,
    other_topics: tuple[str, ...],
    static: Path | None,
    on: str,
    other_on: str | None,
    other_time: str | None,
    within: float | None,
    before: float,
    keep_unmatched: bool,
) -> int:
    """Join a topic with another one, message by message within a span of time, or with the rows of a table.

    The result goes to a Delta table, each pair once, from where the last run ended. Messages that come later
    than --late allows may miss their partner. A table is read once, when the job starts.
    """
    if bool(other_topics) == (static is not None):
        raise click.UsageError("give one of --with and --with-table")
    if (within is None) != (static is not None):
        raise click.UsageError("--within is for --with, which needs it")
    chosen, conf = command.named(given, settings, zookeeper)
    side = {"startingOffsets": "earliest", "maxBytesPerTrigger": str(max_bytes)}
    left = command.source_of(brokers, chosen, topics) | side
    right = command.source_of(brokers, chosen, other_topics) | side
    lake = Lake(directory)
    sink = TableSink(lake, "join", (), not no_progress)
    how = "left" if keep_unmatched else "inner"
    code = report.EXIT_DONE
    with command.LazySpark("join", master, conf) as spark, command.batches_unbroken():

        def make() -> DataFrame:
            first = _side(spark.session, left, "left", on, time_of)
            if static is not None:
                return _with_table(first, _static(spark.session, static), other_on or on, how)
            assert within is not None
            second = _side(spark.session, right, "right", other_on or on, other_time or time_of)
            delay = command.interval(late)
            return _with_topic(
                first.withWatermark("left_time", delay), second.withWatermark("right_time", delay), within, before, how
            )

        run = Run(sink, make, every=every, attempts=attempts)
        try:
            run()
        except signals.Interrupted as stop:
            code = stop.exit_code
    lake.reload()
    command.show_summary({"job": "join", "table": str(lake.directory), "version": lake.version, **run.to_json()})
    return code


def _side(spark: SparkSession, source: dict[str, str], name: str, on: str, time_of: str) -> DataFrame:
    """A stream with its columns under names of their own, and what it is joined on."""
    from pyspark.sql import functions as f

    frame = spark.readStream.format("fastlog").options(**source).load()
    chosen = [f.col(column).alias(f"{name}_{column}") for column in _PLACES]
    moment = f.expr(time_of).cast("timestamp").alias(f"{name}_time")
    return watched(frame.select(f.expr(on).alias(f"{name}_on"), moment, *chosen), f"{name}_time")


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


def _static(spark: SparkSession, path: Path) -> DataFrame:
    """The rows of a file or a table. Raises ``ConfigError`` for what is none of those known."""
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

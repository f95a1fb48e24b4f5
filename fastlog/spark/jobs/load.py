"""``python -m fastlog.spark.jobs.load``: topics into a Delta or an Iceberg table, each message once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fastlog.errors import ConfigError
from fastlog.segment_files import MAX_OFFSET
from fastlog.spark.iceberg import opened
from fastlog.spark.jobs import command, parameters
from fastlog.spark.jobs.loader import COLUMNS, PARTITIONED_BY, Loader, LoadOptions
from fastlog.spark.offsets import EARLIEST, OffsetSpec, parse_partitions
from fastlog.spark.staging import COMPRESSIONS
from fastlog.spark.storage import TableLocation
from fastlog.tools import options, report, signals


@parameters.job(
    "load",
    table_required=True,
    timed=False,
    iceberg=True,
    examples=(
        "python -m fastlog.spark.jobs.load --topic logs --table /data/logs",
        "python -m fastlog.spark.jobs.load --topic logs --table /data/logs --every 10s",
        "python -m fastlog.spark.jobs.load --topic logs --table s3://lake/logs --storage-option AWS_REGION=eu-west-1",
        "python -m fastlog.spark.jobs.load --topic logs --table iceberg:prod/lake.logs",
        "python -m fastlog.spark.jobs.load --topic logs --table /data/logs --from 2026-05-17T08:00:00Z",
    ),
)
@options.option(
    "--starting",
    group="Selection",
    default="earliest",
    show_default=True,
    metavar="PLACE",
    help="Where a topic begins that the table does not have: earliest, latest, a time, or offsets as JSON.",
)
@options.option(
    "--from",
    "again_from",
    group="Selection",
    metavar="PLACE",
    help="First replace what the table has from there on by what the log has now: a time, earliest, or offsets as"
    ' JSON ({"logs": {"0-0": 1048576}}; partitions that are not named stay).',
)
@options.option(
    "--time",
    "time_of",
    group="Format",
    metavar="SQL",
    help="The time of a message, from its columns, for timestamp and date.",
)
@options.option(
    "--column",
    "columns",
    group="Format",
    multiple=True,
    metavar="NAME=SQL",
    help="One more column of the table; may be repeated.",
)
@options.option(
    "--partition-by",
    group="Format",
    metavar="COLUMNS",
    help="What a new table is partitioned by, with commas between: columns of text, whole numbers or days."
    "  [default: topic,date]",
)
@options.option(
    "--compression",
    group="Format",
    type=click.Choice(COMPRESSIONS),
    default="snappy",
    show_default=True,
    help="Of files.",
)
@options.option(
    "--rejected",
    group="Selection",
    type=parameters.TablePlace(iceberg=True),
    metavar="PLACE",
    help="A table for messages on which --column or --time fails, with the reason. Without it such a one ends the"
    " load.",
)
@options.option(
    "--most-rejected",
    group="Limits",
    type=click.IntRange(1, 10**6),
    default=1000,
    show_default=True,
    metavar="MESSAGES",
    help="If a batch has more messages for --rejected, the load ends instead.",
)
@options.option(
    "--optimize-at",
    group="Limits",
    type=click.IntRange(2, 2**20),
    metavar="FILES",
    help="After batches, join small files where N or more of a day become one.  [default: never; see optimize]",
)
@options.option(
    "--skip-lost",
    group="Limits",
    is_flag=True,
    help="Go on behind messages that retention removed before they were read, and write down which.",
)
def load_command(
    job: parameters.JobOptions,
    starting: str,
    again_from: str | None,
    time_of: str | None,
    columns: tuple[str, ...],
    partition_by: str | None,
    compression: str,
    rejected: TableLocation | None,
    most_rejected: int,
    optimize_at: int | None,
    skip_lost: bool,
) -> int:
    """Load topics into a Delta or an Iceberg table, each message exactly once.

    Every batch is one transaction: its files, and the offsets at which the next batch begins. The job may be
    killed and started again at any moment. Beside the columns of the source there are topic and date, by which
    the table is partitioned: the date of the message's time, or of its loading where it has none. Columns may be
    added later; the rows before have null there.

    At the end, or after a signal, a JSON summary is written to stdout.
    """
    chosen, conf = job.named()
    assert job.table is not None
    summary = load(
        job.topics,
        job.table,
        brokers=job.brokers,
        source_options=chosen,
        starting=starting,
        again_from=again_from,
        every=job.every,
        max_bytes=job.max_bytes,
        time=time_of,
        columns=options.named_values("--column", columns),
        partition_by=None if partition_by is None else [name for name in partition_by.split(",") if name],
        compression=compression,
        rejected=None if rejected is None else job.located(rejected),
        most_rejected=most_rejected,
        optimize_at=optimize_at,
        skip_lost=skip_lost,
        attempts=job.attempts,
        shown=not job.no_progress,
        master=job.master,
        settings=conf,
    )
    command.show_summary(summary)
    return int(summary["stopped"])


def load(
    topics: str | Sequence[str],
    table: TableLocation | Path | str,
    *,
    storage_options: Mapping[str, str] | None = None,
    brokers: str = "127.0.0.1:9092",
    source_options: Mapping[str, str] | None = None,
    starting: str = "earliest",
    again_from: str | None = None,
    every: float | None = None,
    max_bytes: int = 2**30,
    time: str | None = None,
    columns: Mapping[str, str] | None = None,
    partition_by: Sequence[str] | None = None,
    compression: str = "snappy",
    rejected: TableLocation | Path | str | None = None,
    most_rejected: int = 1000,
    optimize_at: int | None = None,
    skip_lost: bool = False,
    attempts: int = 5,
    shown: bool = False,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the command does, for programs; returns the summary.

    ``table``, ``rejected``: a place of a Delta table, or ``iceberg:CATALOG/NAMESPACE.TABLE``.

    Uses the Spark session of this process where there is one. ``stopped`` in the summary is the exit code after a
    signal, else 0; signals are looked after in the main thread alone.

    Raises:
        ConfigError: an option is malformed, a topic does not exist, or the table has other columns.
        TableConflictError: another process fills the table.
        TableUnavailableError: an object store does not answer, or refuses.
        DataLossError: messages that the table has not are not in the log any more; names the bytes.
        CommandError, or another ``FastlogError``: a batch failed as often as it may.
    """
    named = [topics] if isinstance(topics, str) else list(topics)
    load_options = LoadOptions(
        source=command.source_of(brokers, source_options or {}, named),
        starting=starting_options(starting),
        fail_on_data_loss=not skip_lost,
        max_bytes=max_bytes,
        time=time,
        columns=checked_columns(columns or {}),
        partition_by=None if partition_by is None else tuple(partition_by),
        compression=compression,
        attempts=attempts,
        most_rejected=most_rejected,
        optimize_at=optimize_at,
        shown=shown,
    )
    if rejected is not None and time is None and not columns:
        raise ConfigError("--rejected: there is no --column and no --time that could fail")
    lake = opened(table, storage_options)
    refused = None if rejected is None else opened(rejected, storage_options)
    place = None if again_from is None else parse_place(again_from)
    if place is not None and not lake.exists:
        raise ConfigError(f"--from: there is no table in {lake}")
    stopped = report.EXIT_DONE
    with command.LazySpark("load", master, settings or {}) as spark:
        loader = Loader(lake, load_options, spark, refused)
        try:
            with command.batches_unbroken():
                loader.run(every=every, again_from=place)
        except signals.Interrupted as stop:
            stopped = stop.exit_code
    summary = {"job": "load", "table": str(lake), "version": lake.version, **loader.totals.to_json()}
    return {**summary, "stopped": stopped}


def starting_options(text: str) -> dict[str, str]:
    """``--starting`` as an option of the source. Raises ``ConfigError`` when it is malformed."""
    if text.lower() in ("earliest", "latest") or text.startswith("{"):
        return {"startingOffsets": text}
    return {"startingTimestamp": str(parse_place(text).time_ms), "startingOffsetsByTimestampStrategy": "latest"}


def parse_place(text: str) -> OffsetSpec:
    """``earliest``, offsets as JSON, ms since 1970, or a time as ISO 8601 has it (UTC unless it says otherwise).

    Raises:
        ConfigError: it is none of these.
    """
    if text.lower() == "earliest":
        return OffsetSpec("earliest")
    if text.startswith("{"):
        try:
            nested: Any = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{text!r} is no JSON: {error}") from None
        return OffsetSpec("offsets", by_partition=parse_partitions(nested, "--from", EARLIEST))
    try:
        time_ms = int(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(f"{text!r} is neither a time (2026-05-17T08:00:00Z), earliest nor JSON") from None
        time_ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= time_ms <= MAX_OFFSET:
        raise ConfigError(f"{text!r} is no time since 1970")
    return OffsetSpec("time", time_ms=time_ms)


def checked_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """The user's own columns; raises ``ConfigError`` for a name that the table has already."""
    for name in columns:
        if name.lower() in {*COLUMNS, *PARTITIONED_BY}:
            raise ConfigError(f"the column {name}: the table has one of that name")
    return dict(columns)


def main(argv: list[str] | None = None) -> None:
    """Run the command; never returns."""
    command.run(load_command, "load", argv)


if __name__ == "__main__":
    main()

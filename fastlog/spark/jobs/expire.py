"""``python -m fastlog.spark.jobs.expire``: the retention of a table, by days."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta

import click

from fastlog.spark.iceberg import AnyLake
from fastlog.spark.jobs import command, parameters
from fastlog.spark.upkeep import expire
from fastlog.tools import options


@parameters.upkeep(
    "expire",
    examples=(
        "python -m fastlog.spark.jobs.expire --table /data/logs --keep-days 90",
        "python -m fastlog.spark.jobs.expire --table s3://lake/logs --keep-days 90 --dry-run",
    ),
)
@options.option(
    "--keep-days",
    "days",
    group="Limits",
    required=True,
    type=click.IntRange(0, 10**6),
    metavar="DAYS",
    help="How many days before today stay, as the column date has them; in UTC.",
)
@parameters.dry_run_option
def expire_command(lake: AnyLake, shown: bool, days: int, dry_run: bool) -> int:
    """Take the rows of old days out of a table, in one transaction.

    May run beside a load and be killed at any moment. The files stay for those who read an older version, until
    vacuum (Iceberg's own tools, of its tables) removes them. At the end a JSON summary is written to stdout.
    """
    before = first_day(days, datetime.now(UTC).date())
    gone = expire(lake, before, dry_run=dry_run)
    command.say(f"{gone.files} files of days before {before}", shown)
    what = {"before": before.isoformat(), "dry_run": dry_run, **asdict(gone)}
    command.show_summary({"job": "expire", "table": str(lake), **what})
    return 0


def first_day(days: int, today: date) -> date:
    """The first day that is kept when days older than ``days`` before ``today`` go."""
    return date.min if days > (today - date.min).days else today - timedelta(days=days)


def main(argv: list[str] | None = None) -> None:
    """Run the command; never returns."""
    command.run(expire_command, "expire", argv)


if __name__ == "__main__":
    main()

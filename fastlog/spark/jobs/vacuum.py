"""``python -m fastlog.spark.jobs.vacuum``: files that a table has no more are removed, once nobody reads them."""

from __future__ import annotations

import click

from fastlog.spark.jobs import command, parameters
from fastlog.spark.lake import Lake
from fastlog.tools import options


@parameters.upkeep(
    "vacuum",
    iceberg=False,
    examples=(
        "python -m fastlog.spark.jobs.vacuum --table /data/logs --dry-run",
        "python -m fastlog.spark.jobs.vacuum --table /data/logs --keep-hours 48",
    ),
)
@options.option(
    "--keep-hours",
    "hours",
    group="Limits",
    type=click.IntRange(1, 10**6),
    metavar="HOURS",
    help="For how long a version of the table can be read on after the next one came.  [default: what the table says"
    " as delta.deletedFileRetentionDuration, else 168]",
)
@parameters.dry_run_option
def vacuum_command(lake: Lake, shown: bool, hours: int | None, dry_run: bool) -> int:
    """Remove files that are no part of a Delta table any more, and those that never were.

    What a query reads that has begun within the time to keep stays; so has a batch of a load to be finished
    within it, since its files are no part of the table before. At the end a JSON summary is written to stdout.
    """
    found = lake.vacuum(hours, dry_run=dry_run)
    for path in found:
        command.say(path, shown)
    what = {"files": len(found), "keep_hours": hours, "dry_run": dry_run}
    command.show_summary({"job": "vacuum", "table": str(lake), "version": lake.version, **what})
    return 0


def main(argv: list[str] | None = None) -> None:
    """Run the command; never returns."""
    command.run(vacuum_command, "vacuum", argv)


if __name__ == "__main__":
    main()

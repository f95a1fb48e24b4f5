"""``python -m fastlog.spark.jobs.optimize``: small files of a table become few large ones, beside a running load."""

from __future__ import annotations

import click

from fastlog.spark.iceberg import AnyLake
from fastlog.spark.jobs import command, parameters
from fastlog.spark.staging import COMPRESSIONS
from fastlog.spark.upkeep import JoinOptions, join_files
from fastlog.tools import options


@parameters.upkeep(
    "optimize",
    examples=(
        "python -m fastlog.spark.jobs.optimize --table /data/logs",
        "python -m fastlog.spark.jobs.optimize --table s3://lake/logs --target-size 512MiB",
    ),
)
@options.option(
    "--target-size",
    "target_bytes",
    group="Limits",
    type=options.Size(1, 2**40),
    default="128MiB",
    show_default=True,
    metavar="SIZE",
    help="How large files may become.",
)
@options.option(
    "--at-least",
    group="Limits",
    type=click.IntRange(2, 2**20),
    default=2,
    show_default=True,
    metavar="FILES",
    help="Join files only where at least N of the same day become one.",
)
@options.option(
    "--compression",
    group="Format",
    type=click.Choice(COMPRESSIONS),
    default="snappy",
    show_default=True,
    help="Of the new files.",
)
def optimize_command(lake: AnyLake, shown: bool, target_bytes: int, at_least: int, compression: str) -> int:
    """Join the small files of a table, in transactions that leave every row as it is.

    May run beside a load, and be killed at any moment. The old files stay for those who read an older version,
    until vacuum (Iceberg's own tools, of its tables) removes them. At the end a JSON summary is written to stdout.
    """
    wanted = JoinOptions(target_bytes=target_bytes, at_least=at_least, compression=compression)
    joined = join_files(lake, wanted, lambda text: command.say(text, shown))
    command.show_summary({"job": "optimize", "table": str(lake), "version": lake.version, **joined.to_json()})
    return 0


def main(argv: list[str] | None = None) -> None:
    """Run the command; never returns."""
    command.run(optimize_command, "optimize", argv)


if __name__ == "__main__":
    main()

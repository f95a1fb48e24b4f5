"""``fastlog spark``: what a cluster of Spark needs to run fastlog's jobs."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from fastlog.spark.packaging import ARCHIVE, JOBS, NAME, PYTHON, make_package
from fastlog.tools import options
from fastlog.tools.report import note

_JOBS = {
    "load": "--topic TOPIC --table s3://BUCKET/TABLE",
    "counts": "--topic TOPIC",
    "join": "--topic TOPIC --with TOPIC2 --on key",
    "audit": "--topic TOPIC -o envelope=true",
}


@click.group(
    cls=options.CommandGroup,
    name="spark",
    examples=(
        "fastlog spark package ./for-spark",
        "fastlog spark package ./for-spark --master spark://head:7077 --brokers b1:9092,b2:9092",
    ),
)
def spark_command() -> None:
    """Run fastlog's jobs on a cluster of Spark."""


@spark_command.command(
    cls=options.Command,
    name="package",
    exit_codes=(("0", "made"), ("1", "something is missing, or could not be written"), ("2", "wrong usage")),
    examples=(
        "fastlog spark package ./for-spark",
        "fastlog spark package ./for-spark --master yarn",
    ),
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@options.option(
    "--master",
    group="Connection",
    metavar="URL",
    default="spark://HOST:7077",
    show_default=True,
    help="Of the cluster, for the lines that are printed.",
)
@options.option(
    "--brokers",
    group="Connection",
    metavar="HOST:PORT,…",
    default="HOST:9092",
    show_default=True,
    help="The same for the brokers.",
)
def package_command(directory: Path, master: str, brokers: str) -> int:
    """Make a package of fastlog for a cluster, and print how each job is submitted with it.

    DIRECTORY gets fastlog.tar.gz, which Spark brings to its workers, and fastlog/, the same for the driver. Machines
    of the cluster need Spark with its Java, and the Python of this one (3.11 for 3.11), but neither fastlog nor what
    it requires. The package is made of what is installed here; nothing is fetched.
    """
    made = make_package(directory)
    libc = "" if made.needs["glibc"] is None else f", glibc {'.'.join(map(str, made.needs['glibc']))} or newer"
    note(f"{made.archive}: {made.size_bytes / 1e6:.0f} MB, {len(made.distributions)} packages")
    note(f"each machine needs: Python {made.needs['python']} ({made.needs['abi']}){libc}")
    click.echo(f"cd {shlex.quote(str(directory.resolve()))}")
    click.echo(f"export PYSPARK_PYTHON=./{PYTHON}; unset PYSPARK_DRIVER_PYTHON")
    for name, given in _JOBS.items():
        click.echo(
            f"spark-submit --master {shlex.quote(master)} --archives {ARCHIVE}#{NAME}"
            f" {JOBS}/{name}.py --brokers {brokers} {given}"
        )
    return 0

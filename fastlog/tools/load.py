"""``fastlog load``: what ``fastlog dump`` has written, back into a topic, so that its log is the same to the byte."""

from __future__ import annotations

from pathlib import Path

import click

from fastlog.tools import groups_access, options


@click.command(
    cls=options.Command,
    name="load",
    examples=(
        "fastlog load --brokers localhost:9092 logs.dump",
        "fastlog load --topic logs-again --resume logs.dump",
    ),
)
@groups_access.brokers_options
@options.option(
    "--topic",
    group="Selection",
    metavar="TOPIC",
    help="Load it as this topic, where the file has one. Default: as they were dumped.",
)
@options.option(
    "--resume",
    group="Selection",
    is_flag=True,
    help="Go on where an earlier load was ended: what the topics hold is compared with the file, byte by byte.",
)
@options.json_summary_option
@options.option("--no-progress", group="Format", is_flag=True, help="Print nothing before the summary.")
@click.argument("file", type=click.Path(exists=True, path_type=Path, dir_okay=False, allow_dash=True))
def load_command(
    brokers: str,
    connect_timeout: float,
    zookeeper: str | None,
    topic: str | None,
    resume: bool,
    as_json: bool,
    no_progress: bool,
    file: Path,
) -> None:
    """Append what is in FILE (- is stdin) to empty topics, so that their logs have the same bytes.

    A file is checked as a whole first; from stdin it is checked as it comes. Each message is stored once, also when
    connections break or brokers restart meanwhile. A load that was ended, by kill -9 too, goes on with --resume.
    Partitions go to brokers of the same ids if there are; else to as many others, in order; else all to one broker.
    Offsets are the same of topics of records, which are made with the settings that they had; of topics of Kafka 0.7
    where the dump began at 0, otherwise they begin at 0 here.
    """
    from fastlog.tools.append_dump import load

    load(topic, file, brokers, zookeeper, connect_timeout, resume=resume, shown=not no_progress, as_json=as_json)

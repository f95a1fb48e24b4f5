"""``fastlog dump``: topics with all their partitions as one file, byte by byte."""

from __future__ import annotations

from pathlib import Path

import click

from fastlog.tools import groups_access, options


@click.command(
    cls=options.Command,
    name="dump",
    examples=(
        "fastlog dump --topic logs --topic orders both.dump",
        "fastlog dump --topic logs --zookeeper localhost:2181 - | zstd > logs.dump.zst",
    ),
)
@groups_access.brokers_options
@options.option(
    "--topic",
    "topics",
    group="Selection",
    multiple=True,
    required=True,
    metavar="TOPIC",
    shell_complete=options.complete_topics,
    help="The topic; several may be given, of messages and of records.",
)
@options.json_summary_option
@options.option("--no-progress", group="Format", is_flag=True, help="Print nothing before the summary.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def dump_command(
    brokers: str,
    connect_timeout: float,
    zookeeper: str | None,
    topics: tuple[str, ...],
    as_json: bool,
    no_progress: bool,
    file: Path,
) -> None:
    """Write every partition of a topic, as it is now, to FILE; - is stdout.

    The bytes are those of the log, compressed sets and batches closed; fastlog load makes the same log of them. Of a
    topic of records its own settings come with it. What was appended until now is in it, what comes later is not.
    FILE appears when it is complete. Its records have checksums.
    """
    if len(set(topics)) < len(topics):
        raise click.UsageError("--topic names a topic twice")
    if as_json and str(file) == "-":
        raise click.UsageError("--json writes to stdout, where the dump goes already: name a FILE")
    from fastlog.tools.write_dump import dump

    dump(topics, file, brokers, zookeeper, connect_timeout, shown=not no_progress, as_json=as_json)

"""``fastlog export``: topics of a stopped broker, put into the log directory of an Apache Kafka that was formatted."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from fastlog.log.files import FileOps
from fastlog.moving.export_plan import plan_export, read_formatted
from fastlog.moving.exporting import carry_out_export, finish_interrupted
from fastlog.moving.importing import Done
from fastlog.moving.staging import COPY, LINK, unused_by_fastlog, unused_by_kafka
from fastlog.tools import options
from fastlog.tools.moving_report import EXIT_CODES, explained, moving_options, refused, show_topics, show_totals
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DONE


@click.command(
    cls=options.Command,
    name="export",
    examples=(
        "fastlog export /var/lib/fastlog/logs --into /var/lib/kafka/data --dry-run",
        "fastlog export /var/lib/fastlog/logs --into /var/lib/kafka/data --topic orders",
    ),
    exit_codes=EXIT_CODES,
)
@click.argument(
    "sources",
    metavar="LOG_DIRECTORY...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@options.option(
    "--into",
    "target",
    group="Selection",
    required=True,
    type=click.Path(path_type=Path),
    metavar="KAFKA_DIRECTORY",
    help="A log directory that kafka-storage has formatted, and no Kafka was started on.",
)
@options.option(
    "--offsets-partitions",
    group="Selection",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    metavar="N",
    help="Partitions of __consumer_offsets: the Kafka's offsets.topic.num.partitions.",
)
@moving_options
def export_command(
    sources: tuple[Path, ...],
    target: Path,
    topics: tuple[str, ...],
    without: tuple[str, ...],
    leave_out: bool,
    dry_run: bool,
    copy: bool,
    offsets_partitions: int,
    as_json: bool,
    no_progress: bool,
) -> int:
    """Put topics of record batches into the log directory of an Apache Kafka 4.x, which takes them at its start.

    The broker is stopped, in order, and the directory formatted: kafka-storage format -t ID -c
    server.properties, where ID may be the cluster.id of meta.properties here. Topics come there with their
    ids, partitions, settings and records, idempotent producers, leader epochs, and groups with their offsets;
    topics of Kafka 0.7 cannot. Every record is checked, and what cannot be taken is named before anything is
    written; then nothing is, unless --leave-out is given. The broker's files are only read.
    """
    files, place, done = FileOps(), target.absolute(), Done()
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained())
        if finish_interrupted(place, files):
            click.echo(f"an export that had been interrupted in its last step is done: {place}")
            return EXIT_DONE
        paths = [path.resolve() for path in sources]
        for path in paths:
            stack.enter_context(unused_by_fastlog(path))
        stack.enter_context(unused_by_kafka(place))
        into = read_formatted(place, files)
        progress = ConsoleProgress("checked", shown=not no_progress)
        plan = plan_export(paths, topics, without, files, progress.add)
        progress.end_line()
        show_topics(plan.topics, plan.notes, as_json)
        is_refused = not plan.is_whole and not leave_out
        if not is_refused and not dry_run:
            progress = ConsoleProgress("taken", shown=not no_progress)
            done = carry_out_export(plan, into, offsets_partitions, COPY if copy else LINK, files, progress.add)
            progress.end_line()
        show_totals(plan.taken, plan.groups, done.ways, None if is_refused or dry_run else place, as_json)
        return refused(is_damaged=plan.is_damaged) if is_refused else EXIT_DONE

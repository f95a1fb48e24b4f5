"""``fastlog import``: a log directory of fastlog, made of those of an Apache Kafka that is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from fastlog.log.files import FileOps
from fastlog.moving.import_plan import Choices, kafka_held, plan_import
from fastlog.moving.importing import Done, carry_out, remove_sources
from fastlog.moving.staging import COPY, LINK, refuse_taken
from fastlog.tools import options
from fastlog.tools.moving_report import EXIT_CODES, explained, moving_options, refused, show_topics, show_totals
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DONE


class SettingOf(click.ParamType):  # type: ignore[type-arg]
    """A setting of one topic, written ``TOPIC:NAME=VALUE``."""

    name = "setting"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str, str]:
        """Return topic, name and value; fails for a text without all three."""
        topic, colon, rest = str(value).partition(":")
        name, equals, text = rest.partition("=")
        if not colon or not equals:
            self.fail(f"{value!r} is not TOPIC:NAME=VALUE", param, ctx)
        return topic, name.strip(), text.strip()


@click.command(
    cls=options.Command,
    name="import",
    examples=(
        "fastlog import /var/lib/kafka/data --into /var/lib/fastlog/logs --dry-run",
        "fastlog import /var/lib/kafka/data --into /var/lib/fastlog/logs --without views --leave-out",
    ),
    exit_codes=EXIT_CODES,
)
@click.argument(
    "sources",
    metavar="KAFKA_DIRECTORY...",
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
    metavar="DIRECTORY",
    help="The log directory that is made; it must not be there, or be empty.",
)
@options.option(
    "--set",
    "settings",
    group="Selection",
    multiple=True,
    type=SettingOf(),
    metavar="TOPIC:NAME=VALUE",
    help="Let a topic have this setting instead of its own; may be repeated.",
)
@options.option(
    "--move", group="Selection", is_flag=True, help="Remove from the Kafka what was taken, once it stands, durably."
)
@options.option(
    "--offsets-partitions",
    group="Selection",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Partitions of __consumer_offsets.",
)
@moving_options
def import_command(
    sources: tuple[Path, ...],
    target: Path,
    topics: tuple[str, ...],
    without: tuple[str, ...],
    settings: tuple[tuple[str, str, str], ...],
    leave_out: bool,
    dry_run: bool,
    copy: bool,
    move: bool,
    offsets_partitions: int,
    as_json: bool,
    no_progress: bool,
) -> int:
    """Make a log directory of those of an Apache Kafka 3.x or 4.x that is stopped.

    Takes topics with their ids, partitions, settings and records, idempotent producers, leader epochs, and
    groups with their offsets. Every record is checked, and what cannot be taken is named before anything is
    written; then nothing is, unless --leave-out is given. Records are not copied where the file system can
    share them. The Kafka's files are only read, unless --move is given.
    """
    if copy and move:
        raise click.UsageError("--copy contradicts --move")
    by_topic: dict[str, dict[str, str]] = {}
    for topic, name, value in settings:
        by_topic.setdefault(topic, {})[name] = value
    choices = Choices(topics, without, by_topic, offsets_partitions)
    paths = [path.resolve() for path in sources]
    with explained(), kafka_held(paths):
        if not dry_run:
            refuse_taken(target.absolute())
        return _import(paths, target.absolute(), choices, _Flags(leave_out, dry_run, copy, move, as_json, no_progress))


class _Flags(NamedTuple):
    """The options that say how the import is done and reported."""

    leave_out: bool
    dry_run: bool
    copy: bool
    move: bool
    as_json: bool
    no_progress: bool


def _import(paths: list[Path], target: Path, choices: Choices, told: _Flags) -> int:
    files, progress = FileOps(), ConsoleProgress("checked", shown=not told.no_progress)
    plan = plan_import(paths, choices, files, progress.add)
    progress.end_line()
    show_topics(plan.topics, plan.notes, told.as_json)
    done = Done()
    is_refused = not plan.is_whole and not told.leave_out
    if not is_refused and not told.dry_run:
        progress = ConsoleProgress("taken", shown=not told.no_progress)
        done = carry_out(plan, target, COPY if told.copy else LINK, files, progress.add)
        progress.end_line()
        if told.move:
            remove_sources(plan, files)
    show_totals(plan.taken, plan.groups, done.ways, None if is_refused or told.dry_run else target, told.as_json)
    if is_refused:
        return refused(is_damaged=plan.is_damaged)
    return EXIT_DONE

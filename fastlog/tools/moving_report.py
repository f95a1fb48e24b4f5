"""What ``fastlog import`` and ``fastlog export`` share: options, and how they say what is taken and what is not."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fastlog.errors import CorruptLogError, LogError
from fastlog.escaping import in_json, printable
from fastlog.log.kafka_files import topic_id_text
from fastlog.moving.kafka_groups import KeptGroups
from fastlog.moving.topic_plan import TopicPlan
from fastlog.tools import options
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, EXIT_USAGE, CommandError, note

EXIT_CODES = (
    ("0", "done; with --dry-run: all of it can be taken"),
    ("1", "something cannot be taken, or the disk refused; nothing was written"),
    ("2", "wrong usage, or somebody uses a directory"),
    ("5", "damaged data found; nothing was written"),
    ("130, 143", "stopped by SIGINT, by SIGTERM; nothing was written"),
)


def moving_options(function: Any) -> Any:
    """Add the options that ``fastlog import`` and ``fastlog export`` share."""
    selection = (
        ("--topic", "topics", {"multiple": True, "metavar": "TOPIC", "help": "Take it alone; may be repeated."}),
        ("--without", "without", {"multiple": True, "metavar": "TOPIC", "help": "Do not take it; may be repeated."}),
        ("--leave-out", "leave_out", {"is_flag": True, "help": "Go on without what cannot be taken, which is named."}),
        ("--dry-run", "dry_run", {"is_flag": True, "help": "Read and check all of it, and write nothing."}),
        ("--copy", "copy", {"is_flag": True, "help": "Copy each file, also where its bytes could be shared."}),
    )
    form = (
        ("--json", "as_json", {"is_flag": True, "help": "One JSON object for each topic, and a last one."}),
        ("--no-progress", "no_progress", {"is_flag": True, "help": "Say nothing on stderr while it runs."}),
    )
    for group, rows in (("Format", form), ("Selection", selection)):
        for name, parameter, given in reversed(rows):
            function = options.option(name, parameter, group=group, **given)(function)
    return function


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Give errors about the directories the exit codes that they mean, and say what to do."""
    try:
        yield
    except CorruptLogError as error:
        what_to_do = "start the broker that wrote it and stop it, which puts its end right; else restore it"
        raise CommandError(str(error), "it cannot be read as what it is", what_to_do, EXIT_DAMAGED) from error
    except LogError as error:
        raise CommandError(
            str(error), "the directories are not as they have to be", "see above; nothing was written", EXIT_USAGE
        ) from error


def show_topics(topics: Iterable[TopicPlan], notes: Sequence[str], as_json: bool) -> None:
    """Print each topic, then what else there is to know."""
    for topic in topics:
        if as_json:
            found = {
                "topic": topic.name,
                "id": topic_id_text(topic.topic_id),
                "partitions": topic.count,
                "records": topic.records,
                "bytes": topic.size,
                "settings": topic.settings,
                "problems": topic.problems,
                "refused_settings": topic.refused_settings,
            }
            click.echo(in_json(found))
            continue
        held = f"{topic.count} partition(s), {topic.records} records, {topic.size} bytes"
        settings = "".join(f" {name}={value}" for name, value in topic.settings.items())
        click.echo(printable(f"{topic.name}: {'cannot be taken' if topic.problems else held + settings}"))
        for line in topic.problems:
            click.echo(printable(f"  {line}"))
        for line in topic.refused_settings:
            click.echo(printable(f"  setting cannot be taken: {line}"))
    if not as_json:
        for line in notes:
            click.echo(printable(f"note: {line}"))
    elif notes:
        click.echo(in_json({"notes": list(notes)}))


def show_totals(
    taken: Sequence[TopicPlan], groups: KeptGroups, ways: Collection[str], target: Path | None, as_json: bool
) -> None:
    """Print how it ended; without ``target`` nothing was written."""
    totals = {
        "topics": len(taken),
        "partitions": sum(len(each.partitions) for each in taken),
        "records": sum(each.records for each in taken),
        "bytes": sum(each.size for each in taken),
        "groups": len(groups.names),
        "offsets": len(groups.offsets),
    }
    if as_json:
        click.echo(in_json({**totals, "files": sorted(ways), "written": str(target) if target else None}))
        return
    how = {"clone": "shared (reflink)", "link": "shared (hard links)", "copy": "copied"}
    place = " ".join([f"in {target}" if target else "nothing was written", *(how[way] for way in sorted(ways))])
    text = ", ".join(f"{count} {what}" for what, count in totals.items())
    click.echo(printable(f"{text}: {place}"))


def refused(*, is_damaged: bool) -> int:
    """Say that nothing was done, because not all could be; the exit code."""
    note("nothing was written: --leave-out goes on without what cannot be taken")
    return EXIT_DAMAGED if is_damaged else EXIT_FAILED

"""``fastlog offsets``: what groups have committed, shown, set anew, written to files and read back.

Source: Kafka 0.7.2 (utils/UpdateOffsetsInZK, tools/ExportZkOffsets, tools/ImportZkOffsets).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fastlog.counts import counted
from fastlog.tools import groups_access, options
from fastlog.tools.group_rows import place_fields, shown
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, CommandError, note
from fastlog.tools.topics import show

if TYPE_CHECKING:
    from fastlog.consumer.partitions import TopicPartition
    from fastlog.tools.group_places import GroupStore
    from fastlog.tools.offset_files import Kept
    from fastlog.tools.offset_moves import OffsetTarget

_NAMES = ("group", "topic", "partition", "offset", "owner")


@click.group(
    cls=options.CommandGroup,
    name="offsets",
    examples=(
        "fastlog offsets get --group views",
        "fastlog offsets reset --group views --topic logs --to-earliest",
    ),
)
def offsets_command() -> None:
    """Show, reset, export and import the offsets that groups have committed."""


@offsets_command.command(
    cls=options.Command,
    name="get",
    examples=(
        "fastlog offsets get --zookeeper localhost:2181 --group views",
        "fastlog offsets get --group views --topic logs --json",
    ),
)
@groups_access.place_options
@groups_access.group_option
@groups_access.topics_option
@groups_access.table_options
def get_command(
    place: groups_access.Where, group: str, topics: tuple[str, ...], as_json: bool, no_headers: bool
) -> None:
    """Show the committed offset of each partition, and its owner. No broker is asked; fastlog lag asks them."""
    with place.open() as groups:
        view = groups_access.known_group(groups, group)
    wanted = groups_access.named(topics)
    groups_access.check_topics(view, wanted)
    rows = []
    for partition in view.all_partitions(wanted):
        committed = view.committed.get(partition)
        rows.append(
            {
                "group": group,
                **place_fields(partition, as_json),
                "offset": shown(None if committed is None else committed.offset, as_json),
                "owner": shown(view.owners.get(partition), as_json),
            }
        )
    show(_NAMES, rows, as_json, no_headers)


@offsets_command.command(
    cls=options.Command,
    name="reset",
    examples=(
        "fastlog offsets reset --group views --topic logs --to-earliest --execute",
        "fastlog offsets reset --group views --topic logs --to-time 2h",
    ),
)
@groups_access.place_options
@groups_access.group_option
@options.option(
    "--topic",
    "topics",
    group="Selection",
    multiple=True,
    required=True,
    metavar="TOPIC",
    help="The topic; may be repeated, or several with commas.",
)
@options.option(
    "--partition",
    "partitions",
    group="Selection",
    multiple=True,
    metavar="B-P",
    help="Only this partition, as <broker>-<partition>; may be repeated. Default: all that brokers announce.",
)
@options.option("--to-earliest", group="Selection", is_flag=True, help="To the oldest message that is held.")
@options.option("--to-latest", group="Selection", is_flag=True, help="Behind the newest one that can be read.")
@options.option(
    "--to-time",
    group="Selection",
    type=options.When(),
    metavar="TIME",
    help="To the first segment that was appended to at TIME or later: a date and time (2026-11-21T18:00, local unless"
    " it has a zone), ms since 1970, or 2h for so long ago. Nothing newer is left out; some older may come again.",
)
@options.option(
    "--to-offset",
    group="Selection",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="To the message that starts at N, of one partition.",
)
@options.option(
    "--execute/--dry-run",
    group="Limits",
    default=False,
    help="Write them. Without --execute, print what would be written.",
)
@options.option(
    "--force", group="Limits", is_flag=True, help="Even with live members, or commits by somebody else meanwhile."
)
@groups_access.table_options
def reset_command(
    place: groups_access.Where,
    group: str,
    topics: tuple[str, ...],
    partitions: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_time: int | None,
    to_offset: int | None,
    execute: bool,
    force: bool,
    as_json: bool,
    no_headers: bool,
) -> None:
    """Set where a group goes on. Shows what would be written; with --execute it is.

    Refused while the group has live members, which would undo it with their next commit. An offset is always
    the start of a message, or the end of the log. The group may be one that never consumed yet.
    """
    from fastlog.consumer.broker_logs import BrokerLogs
    from fastlog.tools import offset_moves

    target = _target(to_earliest, to_latest, to_time, to_offset)
    with place.open() as groups:
        view = groups.view(group)
        if view is None:
            note(f"there is no group {group!r} yet: it would begin there")
        elif execute:
            offset_moves.refuse_live([view], force, "the reset")
        committed = [] if view is None else list(view.committed)
        wanted = _announced(groups, groups_access.named(topics) or [], committed, partitions)
        if target.kind == "offset" and len(wanted) > 1:
            names = ", ".join(str(item.partition) for item in wanted)
            raise CommandError(
                f"--to-offset {to_offset} needs --partition",
                f"there are {len(wanted)} partitions ({names}), and an offset means something in one of them only",
                "add --partition",
                EXIT_USAGE,
            )
        with BrokerLogs(groups.addresses(), place.timeout) as logs:
            moves = [groups.move(group, item, offset_moves.settled(logs, item, target)) for item in wanted]
        if execute:
            groups.write(moves, force)
            _say_if_joined(groups, group, force)
    show(offset_moves.NAMES, [move.row(as_json) for move in moves], as_json, no_headers)
    if execute:
        note(f"wrote {counted(len(moves), 'offset')} of group {group!r}")
    else:
        note("dry run: nothing was written; --execute writes it")
        if view is not None and view.members:
            note(f"group {group!r} has {len(view.members)} live members: stop them before --execute")


@offsets_command.command(
    cls=options.Command,
    name="delete",
    examples=(
        "fastlog offsets delete --group views --topic logs --execute",
        "fastlog offsets delete --brokers localhost:9092 --group views",
    ),
)
@groups_access.place_options
@groups_access.group_option
@groups_access.topics_option
@options.option(
    "--execute/--dry-run",
    group="Limits",
    default=False,
    help="Delete them. Without --execute, print what would be deleted.",
)
@groups_access.table_options
def delete_command(
    place: groups_access.Where,
    group: str,
    topics: tuple[str, ...],
    execute: bool,
    as_json: bool,
    no_headers: bool,
) -> None:
    """Forget what a group has committed, and without --topic the group itself. Shows what would go; --execute does it.

    Refused while the group has live members.
    """
    from fastlog.tools import offset_moves

    wanted = groups_access.named(topics)
    with place.open() as groups:
        view = groups_access.known_group(groups, group)
        groups_access.check_topics(view, wanted)
        going = [item for item in sorted(view.committed) if wanted is None or item.topic in wanted]
        if execute:
            offset_moves.refuse_live([view], False, "the deletion", "")
            groups.forget(group, going)
            if wanted is None:
                groups.remove(group)
    rows = [{"group": group, **place_fields(item, as_json), "offset": view.committed[item].offset} for item in going]
    show(_NAMES[:-1], rows, as_json, no_headers)
    if execute:
        note(f"deleted {counted(len(going), 'offset')} of group {group!r}")
        return
    note("dry run: nothing was deleted; --execute deletes it")


@offsets_command.command(
    cls=options.Command,
    name="export",
    examples=(
        "fastlog offsets export --group views --output-file views.offsets",
        "fastlog offsets export --zookeeper localhost:2181 > all.offsets",
    ),
)
@groups_access.place_options
@options.option(
    "--group", "groups", group="Selection", multiple=True, metavar="GROUP", help="May be repeated. Default: all groups."
)
@options.option(
    "--output-file",
    group="Format",
    default="-",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to, replaced as a whole. Default: stdout.",
)
@options.option(
    "--json", "as_json", group="Format", is_flag=True, help="An object a line instead, which import does not read."
)
def export_command(place: groups_access.Where, groups: tuple[str, ...], output_file: Path, as_json: bool) -> int:
    """Write offsets in the format of Kafka 0.7's ExportZkOffsets, a line each.

    /consumers/<group>/offsets/<topic>/<broker>-<partition>:<offset>. Exit code 1 when a node holds no offset and was
    left out.
    """
    from fastlog.tools import offset_files

    with place.open() as known:
        views = [groups_access.known_group(known, name) for name in groups or known.names()]
    kept = [
        offset_files.Kept(view.name, partition, committed.offset)
        for view in views
        for partition, committed in sorted(view.committed.items())
    ]
    data = offset_files.encode_json(kept) if as_json else offset_files.encode(kept)
    if str(output_file) == "-":
        sys.stdout.write(data.decode())
    else:
        offset_files.write(output_file, data)
    note(f"exported {counted(len(kept), 'offset')} of {counted(len(views), 'group')}")
    bad = any("/offsets/" in line for view in views for line in view.garbage)
    return EXIT_FAILED if bad else EXIT_DONE


@offsets_command.command(
    cls=options.Command,
    name="import",
    examples=(
        "fastlog offsets import --input-file views.offsets",
        "fastlog offsets import --input-file - --dry-run < all.offsets",
    ),
)
@groups_access.place_options
@options.option(
    "--input-file",
    group="Selection",
    required=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="What export, or 0.7's ExportZkOffsets, has written; - is stdin.",
)
@options.option("--dry-run", group="Limits", is_flag=True, help="Only show what would be written.")
@options.option(
    "--force",
    group="Limits",
    is_flag=True,
    help="Even with live members, commits by somebody else meanwhile, or offsets that are no message boundaries.",
)
@groups_access.table_options
def import_command(
    place: groups_access.Where,
    input_file: str,
    dry_run: bool,
    force: bool,
    as_json: bool,
    no_headers: bool,
) -> None:
    """Write the offsets of a file that export, or Kafka 0.7's ExportZkOffsets, has made.

    The file is read and checked as a whole first. Refused while a group of it has live members, and when an
    offset is neither the start of a message nor the end of the log; those of brokers that are away are not checked.
    """
    from fastlog.tools import offset_files, offset_moves

    with click.open_file(input_file, "rb") as file:
        kept, absent = offset_files.parse(input_file, file.read())
    for path in absent:
        note(f"{path}: null in the file: left as it is")
    with place.open() as groups:
        found = [groups.view(name) for name in sorted({item.group for item in kept})]
        if not dry_run:
            offset_moves.refuse_live([view for view in found if view is not None], force, "the import")
        _check_places(groups, kept, place.timeout, force)
        moves = [groups.move(item.group, item.partition, item.offset) for item in kept]
        if not dry_run:
            groups.write(moves, force)
    show(offset_moves.NAMES, [move.row(as_json) for move in moves], as_json, no_headers)
    note(
        "dry run: nothing was written"
        if dry_run
        else f"imported {counted(len(moves), 'offset')} of {counted(len(found), 'group')}"
    )


def _target(earliest: bool, latest: bool, time_ms: int | None, offset: int | None) -> OffsetTarget:
    from fastlog.tools.offset_moves import OffsetTarget

    given = [
        *([OffsetTarget("earliest")] if earliest else []),
        *([OffsetTarget("latest")] if latest else []),
        *([OffsetTarget("time", time_ms)] if time_ms is not None else []),
        *([OffsetTarget("offset", offset)] if offset is not None else []),
    ]
    if len(given) != 1:
        raise click.UsageError("give one of --to-earliest, --to-latest, --to-time and --to-offset")
    return given[0]


def _announced(
    groups: GroupStore, topics: list[str], committed: list[TopicPartition], names: tuple[str, ...]
) -> list[TopicPartition]:
    from fastlog.consumer.partitions import TopicPartition
    from fastlog.tools import offset_moves

    found = []
    for topic in topics:
        there = [TopicPartition(topic, item) for item in groups.announced(topic)]
        if not there:
            raise CommandError(
                f"no live broker announces topic {topic!r}",
                "so nobody can say where its log begins and ends",
                f"check --topic, or start its brokers; {groups.where}. Nothing was written",
                EXIT_USAGE,
            )
        found += offset_moves.chosen(there, (item for item in committed if item.topic == topic), names)
    return found


def _say_if_joined(groups: GroupStore, group: str, force: bool) -> None:
    """Whoever joined while it was written may have read the old offsets."""
    view = groups.view(group)
    if view is not None and view.members and not force:
        note(f"group {group!r} has members now that may have begun with the old offsets: stop them and do it again")


def _check_places(groups: GroupStore, kept: list[Kept], timeout: float, force: bool) -> None:
    from fastlog.consumer.broker_logs import BrokerLogs
    from fastlog.errors import TransportError
    from fastlog.tools import offset_moves

    away: set[int] = set()
    with BrokerLogs(groups.addresses(), timeout) as logs:
        for item in kept:
            broker = item.partition.partition.broker
            if item.offset < 0 or broker in away:
                continue
            try:
                why = offset_moves.misplaced(logs, item.partition, item.offset)
            except TransportError as error:
                away.add(broker)
                note(f"not checked: the offsets of broker {broker}: {str(error).partition(chr(10))[0]}")
                continue
            if why and not force:
                raise CommandError(
                    f"{item.path}: {item.offset} is no offset to go on at",
                    f"{why}; nothing was written",
                    "the file is of another cluster, or older than what the brokers hold; --force writes it anyway",
                )
            if why:
                note(f"{item.path}: {item.offset}: {why}")

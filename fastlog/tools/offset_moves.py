"""Changing what groups have committed: which offset each partition gets, whether that can be, and writing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fastlog.consumer.broker_logs import BrokerLogs, Extent
from fastlog.consumer.group_view import GroupView
from fastlog.consumer.partitions import TopicPartition
from fastlog.coordination.session import NodeExistsError, NoNodeError, Session, VersionError
from fastlog.errors import BrokerError, CoordinationError, FastlogError
from fastlog.tools.group_rows import place_fields, shown
from fastlog.tools.report import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, CommandError, note
from fastlog.zkpaths import encode_number, offset_path, parse_number

NAMES = ("group", "topic", "partition", "offset", "new_offset", "change")
_SHOWN = 5


class OffsetTarget(NamedTuple):
    """Where to: ``earliest``, ``latest``, ``time`` with milliseconds since 1970, or ``offset`` with an offset."""

    kind: str
    value: int = 0


class Move(NamedTuple):
    """A change of one committed offset."""

    group: str
    partition: TopicPartition
    old: int | None
    version: int | None
    """Of the node that holds ``old``; None: there is none."""
    new: int

    @property
    def path(self) -> str:
        """The path of the offset's node in ZooKeeper."""
        return offset_path(self.group, *self.partition)

    def row(self, as_json: bool) -> dict[str, Any]:
        """The fields of a row; ``as_json``: numbers stay numbers, and what is missing is null."""
        change = None if self.old is None or self.old < 0 else self.new - self.old
        return {
            "group": self.group,
            **place_fields(self.partition, as_json),
            "offset": shown(self.old, as_json),
            "new_offset": self.new,
            "change": shown(change, as_json),
        }


def made(session: Session, group: str, partition: TopicPartition, new: int) -> Move:
    """The move to ``new`` from the offset that the group has committed now."""
    node = session.get(offset_path(group, *partition))
    old: int | None = None
    if node is not None:
        try:
            old = parse_number(node.data)
        except CoordinationError as error:
            note(f"{offset_path(group, *partition)}: {error}: it will be replaced")
    return Move(group, partition, old, None if node is None else node.version, new)


def settled(logs: BrokerLogs, partition: TopicPartition, target: OffsetTarget) -> int:
    """The offset that a partition gets.

    Raises:
        CommandError: it cannot have that one, or its broker does not say.
    """
    try:
        extent = logs.extent(partition)
        if target.kind == "earliest":
            return extent.start
        if target.kind == "latest":
            return extent.end
        if target.kind == "time":
            return min(max(logs.at_time(partition, target.value), extent.start), extent.end)
        why = misplaced(logs, partition, target.value, extent)
    except FastlogError as error:
        raise CommandError(
            f"nobody says where the log of {partition} is",
            str(error).replace("\n", "; "),
            "start its broker; or name the other partitions with --partition. Nothing was written",
            EXIT_FAILED if isinstance(error, BrokerError) else EXIT_UNREACHABLE,
        ) from error
    if why:
        raise CommandError(
            f"{target.value} cannot be an offset of {partition}", why, "choose another one. Nothing was written"
        )
    return target.value


def misplaced(logs: BrokerLogs, partition: TopicPartition, offset: int, extent: Extent | None = None) -> str:
    """Why an offset is not the start of a message that can be read; empty when it is, or is the end of the log."""
    extent = extent or logs.extent(partition)
    if not extent.start <= offset <= extent.end:
        return f"the log goes from {extent.start} to {extent.end}"
    before, after = logs.boundaries(partition, offset, extent)
    if after == offset:
        return ""
    starts = f"at {after}" if before is None else f"at {before} and at {after}"
    return f"it lies inside a message: the nearest boundaries are {starts}"


def refuse_live(
    views: Iterable[GroupView], force: bool, what_is_done: str, otherwise: str = ", or use --force"
) -> None:
    """Raises ``CommandError`` while a group has live members: they would go on where they are, and commit that."""
    for view in views:
        if not view.members:
            continue
        names = ", ".join(list(view.members)[:_SHOWN]) + (" …" if len(view.members) > _SHOWN else "")
        if force:
            note(
                f"group {view.name!r} has live members ({names}): they go on where they are until they are started"
                " anew, and their next commit undoes this"
            )
            continue
        raise CommandError(
            f"group {view.name!r} has {len(view.members)} live members: {names}",
            f"they go on where they are, and their next commit would undo {what_is_done}; nothing was written",
            f"stop them first{otherwise}",
        )


def write(session: Session, moves: Sequence[Move], force: bool) -> None:
    """Write them all. Without ``force`` only where nobody has changed anything since.

    Raises:
        CommandError: somebody has, or ZooKeeper failed; says how many were written.
    """
    for number, move in enumerate(moves):
        data = encode_number(move.new)
        try:
            if force:
                session.put(move.path, data)
            elif move.version is None:
                session.create(move.path, data)
            else:
                session.set(move.path, data, move.version)
        except (VersionError, NodeExistsError, NoNodeError) as error:
            raise CommandError(
                f"{move.path} was changed meanwhile; {number} of {len(moves)} offsets were written",
                f"somebody else commits for the group {move.group!r} ({error})",
                "stop its consumers and run this again",
                EXIT_FAILED,
            ) from error
        except CoordinationError as error:
            raise CommandError(
                f"{move.path} was perhaps not written; {number} of {len(moves)} offsets were",
                str(error),
                "run this again when ZooKeeper answers: what is written already stays the same",
                EXIT_UNREACHABLE,
            ) from error


def chosen(
    announced: Sequence[TopicPartition], committed: Iterable[TopicPartition], names: Sequence[str]
) -> list[TopicPartition]:
    """The partitions to change: all that brokers announce, or those named ``<broker>-<partition>``.

    Raises:
        CommandError: there is none, or one of a name is not among them.
    """
    known = {str(item.partition): item for item in announced}
    topic_of_all = {item.topic for item in announced}
    if not names:
        for item in sorted(set(committed) - set(announced)):
            note(f"{item} stays as it is: no live broker announces it")
        return list(announced)
    for name in names:
        if name not in known:
            raise CommandError(
                f"--partition {name} names no partition of {', '.join(sorted(topic_of_all)) or 'the topic'}",
                f"live brokers announce {', '.join(known) or 'none'}",
                "write it as <broker>-<partition>, for example --partition 0-1",
                EXIT_USAGE,
            )
    return [item for item in announced if str(item.partition) in names]

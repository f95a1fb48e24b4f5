"""Where groups are kept, as the commands about groups see it: in ZooKeeper, or by a broker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from fastlog.client.addresses import Address
from fastlog.client.coordinator import CoordinatorError, meaning_of
from fastlog.client.registrations import read_addresses
from fastlog.consumer import group_view
from fastlog.consumer.broker_groups.view import BrokerGroups
from fastlog.consumer.group_view import GroupView
from fastlog.consumer.partitions import TopicPartition
from fastlog.coordination.session import Session, remove_tree
from fastlog.errors import CoordinationError
from fastlog.kafka_codes import Code
from fastlog.tools import offset_moves
from fastlog.tools.offset_moves import Move
from fastlog.tools.report import EXIT_FAILED, EXIT_UNREACHABLE, CommandError, note_left_out
from fastlog.zkpaths import PartitionId, group_path, offset_path


class GroupStore(Protocol):
    """For one thread. Every call raises ``CoordinationError`` without an answer."""

    knows: str
    """The subject of "… knows 3 groups"."""
    where: str
    """What an option says about it, for a hint."""

    def names(self) -> list[str]:
        """The names of all groups."""

    def view(self, name: str) -> GroupView | None:
        """A group; None where there is nothing of it."""

    def announced(self, topic: str) -> list[PartitionId]:
        """The partitions of a topic that registered brokers have."""

    def addresses(self) -> dict[int, Address]:
        """The addresses of the registered brokers, by broker id."""

    def move(self, group: str, partition: TopicPartition, new: int) -> Move:
        """The move of an offset from what is there now."""

    def write(self, moves: Sequence[Move], force: bool) -> None:
        """Do them all. Raises ``CommandError``: not all could be done."""

    def forget(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Remove what a group without members has committed of these."""

    def remove(self, group: str) -> None:
        """Remove all there is of a group without members."""


class ZooKeeperGroupStore:
    """Groups whose members and offsets are in ZooKeeper, of Kafka 0.7 and of fastlog."""

    knows = "ZooKeeper"
    where = "the path behind --zookeeper counts"

    def __init__(self, session: Session) -> None:
        self._session = session

    def names(self) -> list[str]:
        return group_view.list_groups(self._session)

    def view(self, name: str) -> GroupView | None:
        return group_view.read_group(self._session, name)

    def announced(self, topic: str) -> list[PartitionId]:
        return group_view.announced(self._session, topic)

    def addresses(self) -> dict[int, Address]:
        return read_addresses(self._session, note_left_out)

    def move(self, group: str, partition: TopicPartition, new: int) -> Move:
        return offset_moves.made(self._session, group, partition, new)

    def write(self, moves: Sequence[Move], force: bool) -> None:
        offset_moves.write(self._session, moves, force)

    def forget(self, group: str, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._session.delete(offset_path(group, *partition))

    def remove(self, group: str) -> None:
        remove_tree(self._session, group_path(group))


class BrokerGroupStore:
    """Groups whose coordinator is a broker, in today's protocol."""

    where = "--brokers says which broker is asked, and --zookeeper is for groups that are kept there"

    def __init__(self, groups: BrokerGroups) -> None:
        self._groups = groups
        self.knows = f"the broker at {groups}"

    def names(self) -> list[str]:
        return self._groups.names()

    def view(self, name: str) -> GroupView | None:
        return self._groups.view(name)

    def announced(self, topic: str) -> list[PartitionId]:
        return self._groups.announced(topic)

    def addresses(self) -> dict[int, Address]:
        return self._groups.addresses()

    def move(self, group: str, partition: TopicPartition, new: int) -> Move:
        return Move(group, partition, self._groups.offsets(group).get(partition), None, new)

    def write(self, moves: Sequence[Move], force: bool) -> None:
        for move in moves:
            if move.new < 0:
                raise CommandError(
                    f"{move.partition} of group {move.group!r}: {move.new} is no offset",
                    "0.7 writes it into ZooKeeper where it could not ask a broker, and a broker keeps none; nothing was"
                    " written",
                    "leave the line out",
                )
        written = 0
        for group in dict.fromkeys(move.group for move in moves):
            mine = {move.partition: move for move in moves if move.group == group}
            self._check_unchanged(group, mine, force, written, len(moves))
            try:
                told = self._groups.commit(group, {partition: move.new for partition, move in mine.items()})
            except CoordinatorError:
                raise
            except CoordinationError as error:
                raise CommandError(
                    f"offsets of group {group!r} were perhaps not written; {written} of {len(moves)} offsets were",
                    str(error),
                    "run this again when the broker answers: what is written already stays the same",
                    EXIT_UNREACHABLE,
                ) from error
            written += sum(not code for code in told.values())
            refused = {partition: code for partition, code in told.items() if code}
            if refused:
                partition, code = next(iter(refused.items()))
                raise CommandError(
                    f"{partition} of group {group!r} was not written; {written} of {len(moves)} offsets were",
                    meaning_of(code),
                    "stop its members and run this again; a broker takes offsets from nobody else while there are some,"
                    " and --force cannot change that"
                    if code == Code.UNKNOWN_MEMBER_ID
                    else "nothing else is known of it: the broker's log may say more",
                    EXIT_FAILED,
                )

    def forget(self, group: str, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            self._groups.forget(group, partitions)

    def remove(self, group: str) -> None:
        self._groups.remove(group)

    def _check_unchanged(
        self, group: str, moves: dict[TopicPartition, Move], force: bool, written: int, count: int
    ) -> None:
        now = self._groups.offsets(group)
        changed = [partition for partition, move in moves.items() if now.get(partition) != move.old]
        if changed and not force:
            raise CommandError(
                f"{changed[0]} of group {group!r} was changed meanwhile; {written} of {count} offsets were written",
                "somebody else commits for the group",
                "stop its consumers and run this again",
                EXIT_FAILED,
            )

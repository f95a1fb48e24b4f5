"""The groups that a broker keeps, from outside: for tools and dashboards, and for who sets offsets anew.

Groups of other clients are displayed as far as they are consumers': with a member's id for the name of its one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Self

from fastlog.client import group_requests as requests
from fastlog.client.addresses import Address
from fastlog.client.coordinator import PASSING, Coordinator, CoordinatorError, meaning_of
from fastlog.client.group_requests import Committed, Described, DescribedMember, Identity
from fastlog.client.kafka_fields import Answer, Place
from fastlog.client.records import RecordBroker
from fastlog.consumer.assignment import streams_by_topic
from fastlog.consumer.broker_groups import assignor
from fastlog.consumer.broker_groups.assignor import Given, MemberView
from fastlog.consumer.broker_groups.offsets import place_of
from fastlog.consumer.broker_groups.topics import Found, find_topics
from fastlog.consumer.group_view import Committed as Kept
from fastlog.consumer.group_view import GroupView
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError, CoordinationError, ProtocolError
from fastlog.kafka_codes import Code
from fastlog.zkpaths import PartitionId, Subscription

_DEAD, _STABLE = "Dead", "Stable"


class BrokerGroups:
    """Asks one broker. For one thread; close it, or use it as a context.

    Raises (every call):
        CoordinationError: no answer; ``CoordinatorError``: it refuses.
    """

    def __init__(self, brokers: str, timeout: float = 10.0) -> None:
        """``brokers``: addresses of one broker. Connects at the first call."""
        self._timeout = timeout
        self._coordinator = Coordinator(brokers, "", client="fastlog", timeout=timeout)
        self._all: Found | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self._coordinator)

    def close(self) -> None:
        """End the connection; may be called again."""
        self._coordinator.close()

    def names(self) -> list[str]:
        """Every group that has members or has committed something."""
        code, found = self._coordinator.ask(requests.list_groups(), requests.parse_groups, lambda found: found[0])
        _check(code, "groups cannot be listed")
        return sorted(found)

    def view(self, name: str) -> GroupView | None:
        """What is there of a group now; None where there is nothing."""
        (described,) = self._coordinator.ask(
            requests.describe_groups([name]), requests.parse_described, lambda found: found[0].code
        )
        _check(described.code, f"group {name!r} cannot be described")
        if described.state == _DEAD:
            return None
        self._all = None
        return self._viewed(described, self.offsets(name))

    def offsets(self, name: str) -> dict[TopicPartition, int]:
        """The offset that a group has committed for each partition. Raises ``CoordinationError``."""
        code, found = self._coordinator.ask(
            requests.fetch_offsets(name, None), requests.parse_offsets, lambda found: found[0]
        )
        _check(code, f"offsets of group {name!r} cannot be read")
        broker = self._found().broker
        return {
            TopicPartition(topic, PartitionId(broker, number)): kept.offset
            for (topic, number), (code, kept) in found.items()
            if not code and kept.offset >= 0
        }

    def announced(self, topic: str) -> list[PartitionId]:
        """The partitions that the broker has of a topic of 0.7."""
        found = self._found()
        return [PartitionId(found.broker, number) for number in range(found.counts.get(topic, 0))]

    def addresses(self) -> dict[int, Address]:
        """The broker's address, by its id."""
        return {self._found().broker: self._coordinator.address}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Set offsets from outside, which a group takes that has no members; the error code of each, 0 where it was."""
        broker = self._found().broker
        for partition in offsets:
            if partition.partition.broker != broker:
                raise CoordinationError(f"{partition} is of another broker than {self}, which is {broker}")
        rows = {place_of(partition): Committed(offset, "") for partition, offset in offsets.items()}
        answered = self._coordinator.ask(
            requests.commit(group, Identity(), rows),
            requests.parse_commit,
            lambda found: next((code for code in found.values() if code in PASSING), 0),
        )
        return {partition: answered.get(place_of(partition), -1) for partition in offsets}

    def forget(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Forget what a group has committed of these."""
        code, found = self._coordinator.ask(
            requests.delete_offsets(group, map(place_of, partitions)),
            requests.parse_deleted_offsets,
            lambda found: found[0],
        )
        if code != Code.GROUP_ID_NOT_FOUND:
            _check(code or next(filter(None, found.values()), 0), f"offsets of group {group!r} cannot be forgotten")

    def remove(self, group: str) -> None:
        """Forget a group without members, with all that it has committed; it may be gone already."""
        found = self._coordinator.ask(
            requests.delete_groups([group]),
            requests.parse_deleted_groups,
            lambda found: found.get(group, -1),
        )
        code = found.get(group, -1)
        if code != Code.GROUP_ID_NOT_FOUND:
            _check(code, f"group {group!r} cannot be deleted")

    # -- inside --------------------------------------------------------------------------------------------------------

    def _found(self) -> Found:
        if self._all is None:
            if not self._coordinator.cluster:
                self._coordinator.ask(requests.list_groups(), requests.parse_groups)
            found = find_topics(self._coordinator.address, None, self._timeout)
            with RecordBroker([self._coordinator.address], timeout=self._timeout) as records:
                counts = {
                    name: len(topic.partitions)
                    for name, topic in records.known_topics().items()
                    if not topic.is_internal
                }
            self._all = found._replace(counts=counts | found.counts)
        return self._all

    def _viewed(self, described: Described, committed: Mapping[TopicPartition, int]) -> GroupView:
        found = self._found()
        members: dict[str, Subscription] = {}
        owners: dict[TopicPartition, str] = {}
        garbage: list[str] = []
        if described.members and described.state != _STABLE:
            garbage.append(f"group {described.name!r} rebalances: what its members read is known afterwards")
        for member in described.members:
            try:
                name, subscription, threads = _understood(member, described)
            except CoordinationError as error:
                garbage.append(f"member {member.id}: {error}: what it reads is not known")
                continue
            members[name] = subscription
            for (topic, number), thread in threads.items():
                owners[TopicPartition(topic, PartitionId(found.broker, number))] = thread
        topics: dict[str, dict[str, int]] = {}
        for name, subscription in members.items():
            try:
                for topic, streams in streams_by_topic(subscription, found.counts).items():
                    topics.setdefault(topic, {})[name] = streams
            except ConfigError as error:
                garbage.append(f"member {name}: {error}: its topics are not known")
        names = sorted({*topics, *(item.topic for item in owners), *(item.topic for item in committed)})
        return GroupView(
            described.name,
            members,
            topics,
            {topic: tuple(self.announced(topic)) for topic in names},
            owners,
            {partition: Kept(offset, 0) for partition, offset in committed.items()},
            self.addresses(),
            tuple(garbage),
        )


def _understood(member: DescribedMember, described: Described) -> tuple[str, Subscription, dict[Place, str]]:
    """A member's name, what it reads, and the thread of each partition that it has. Raises ``CoordinationError``."""
    if described.state != _STABLE:
        return member.client or member.id, Subscription({}), {}
    if described.protocol == assignor.NAME:
        view, given = MemberView.parse(member.metadata), Given.parse(member.assignment)
        if given.refused:
            raise CoordinationError(f"{given.refused}, and it waits")
        return (
            view.consumer,
            view.subscription,
            {place: f"{view.consumer}-{stream}" for place, stream in given.streams.items()},
        )
    if described.protocol_type != assignor.PROTOCOL_TYPE:
        raise CoordinationError(f"it is no consumer, but of the kind {described.protocol_type!r}")
    try:
        topics, places = _kafkas(member.metadata, member.assignment)
    except ProtocolError as error:
        raise CoordinationError(str(error)) from None
    return member.id, Subscription(dict.fromkeys(topics, 1)), {place: f"{member.id}-0" for place in places}


def _kafkas(metadata: bytes, assignment: bytes) -> tuple[Iterable[str], Iterable[Place]]:
    """What a consumer of Kafka's reads, and what it was given."""
    fields = Answer(metadata)
    fields.int16("version")
    topics = fields.items("topics", 2, lambda: fields.text("topic"))
    if not assignment:
        return topics, ()
    given = Answer(assignment)
    given.int16("version")

    def topic() -> list[Place]:
        name = given.text("topic")
        return [(name, number) for number in given.items("partitions", 4, lambda: given.int32("partition"))]

    return topics, [place for rows in given.items("topics", 6, topic) for place in rows]


def _check(code: int, what: str) -> None:
    if code:
        raise CoordinatorError(f"{what}: {meaning_of(code)}", code)

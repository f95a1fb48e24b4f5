"""A group as ZooKeeper shows it: its members, what they read, who owns what, what is committed.

For tools and dashboards: it only reads, takes no part, and does not mind whether the members are of fastlog or of Kafka
0.7, since both write the same nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fastlog.client.addresses import Address
from fastlog.client.registrations import Garbage, Reads, read_addresses, read_partitions
from fastlog.consumer.assignment import streams_by_topic
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError, CoordinationError
from fastlog.zkpaths import (
    BROKER_TOPICS,
    CONSUMERS,
    PartitionId,
    Subscription,
    group_path,
    member_path,
    members_path,
    offset_path,
    offsets_path,
    owner_path,
    owners_path,
    parse_number,
    thread_ids,
)


class Committed(NamedTuple):
    """An offset to go on at, as it stands in ZooKeeper. ``version`` is the node's, for who changes it."""

    offset: int
    """-1 where 0.7 could not ask the broker; the consumer then begins by ``autooffset.reset``."""
    version: int


class Fault(NamedTuple):
    """A partition without an owner, or whose owner is not alive."""

    partition: TopicPartition
    owner: str | None
    why: str


@dataclass(frozen=True)
class GroupView:
    """One group at one moment; read node by node, so a rebalance under way shows as it was half-way."""

    name: str
    members: Mapping[str, Subscription]
    """The members whose node is well-formed, by consumer id."""
    topics: Mapping[str, Mapping[str, int]]
    """Which member reads which topic, with how many threads: topic → consumer id → threads."""
    partitions: Mapping[str, tuple[PartitionId, ...]]
    """What live brokers announce of each topic that is read, owned or committed; sorted by broker and number."""
    owners: Mapping[TopicPartition, str]
    """The name of the thread that reads it."""
    committed: Mapping[TopicPartition, Committed]
    addresses: Mapping[int, Address]
    """The addresses of the live brokers, by id."""
    garbage: tuple[str, ...]
    """The malformed nodes that were left out, with the reason."""

    def all_partitions(self, topics: Iterable[str] | None = None) -> list[TopicPartition]:
        """Those that are announced, owned or committed; of these topics, or of all that the group has to do with."""
        wanted = None if topics is None else set(topics)
        found = {TopicPartition(topic, item) for topic, items in self.partitions.items() for item in items}
        found.update(self.owners, self.committed)
        return sorted(item for item in found if wanted is None or item.topic in wanted)

    def threads(self, topic: str) -> set[str]:
        """The threads of live members that read a topic."""
        readers = self.topics.get(topic, {})
        return {thread for consumer, count in readers.items() for thread in thread_ids(consumer, count)}

    def faults(self) -> list[Fault]:
        """The partitions of topics that are read which lack an owner, or whose owner is no thread of a live member.

        Source: Kafka 0.7.2 (tools/VerifyConsumerRebalance).
        """
        found = []
        for topic in sorted(self.topics):
            threads = self.threads(topic)
            for item in self.partitions.get(topic, ()):
                partition = TopicPartition(topic, item)
                owner = self.owners.get(partition)
                if owner is None:
                    found.append(Fault(partition, None, "nobody owns it"))
                elif owner not in threads:
                    found.append(Fault(partition, owner, "its owner is no thread of a live member"))
        return found


def list_groups(session: Reads) -> list[str]:
    """Every group that ever joined or committed and was not removed. Raises ``CoordinationError``: no answer."""
    return sorted(session.children(CONSUMERS) or [])


def read_group(session: Reads, name: str) -> GroupView | None:
    """What is there of a group now; None where there is nothing.

    Raises:
        CoordinationError: no answer.
    """
    children = session.children(group_path(name))
    if children is None:
        return None
    garbage: list[str] = []

    def left_out(path: str, so: str, error: CoordinationError) -> None:
        garbage.append(f"{path}: {error}: {so}")

    members = _read_members(session, name, left_out)
    known = session.children(BROKER_TOPICS) or []
    topics: dict[str, dict[str, int]] = {}
    for consumer, subscription in members.items():
        try:
            wanted = streams_by_topic(subscription, known)
        except ConfigError as error:  # regular expressions of Java that Python does not know
            garbage.append(f"{member_path(name, consumer)}: {error}: its topics are not known")
            continue
        for topic, streams in wanted.items():
            topics.setdefault(topic, {})[consumer] = streams
    owners = {}
    for topic in _topics_below(session, name, "owners"):
        for partition in _partitions_below(session, owners_path(name, topic), topic, left_out):
            node = session.get(owner_path(name, *partition))
            if node is not None:
                owners[partition] = node.data.decode(errors="replace")
    committed = {}
    for topic in _topics_below(session, name, "offsets"):
        for partition in _partitions_below(session, offsets_path(name, topic), topic, left_out):
            path = offset_path(name, *partition)
            node = session.get(path)
            if node is not None:
                try:
                    committed[partition] = Committed(parse_number(node.data), node.version)
                except CoordinationError as error:
                    left_out(path, "it counts as not committed", error)
    names = sorted({*topics, *(item.topic for item in owners), *(item.topic for item in committed)})
    return GroupView(
        name,
        members,
        topics,
        {topic: tuple(announced(session, topic, left_out)) for topic in names},
        owners,
        committed,
        read_addresses(session, left_out),
        tuple(garbage),
    )


def announced(session: Reads, topic: str, garbage: Garbage | None = None) -> list[PartitionId]:
    """The partitions of a topic that live brokers announce, by broker and number.

    ``garbage`` is called for malformed nodes. Raises ``CoordinationError``: no answer.
    """
    counts = read_partitions(session, topic, garbage or _ignored)
    return [PartitionId(broker, number) for broker, count in sorted(counts.items()) for number in range(count)]


def _ignored(path: str, so: str, error: CoordinationError) -> None:
    pass


def _read_members(session: Reads, name: str, left_out: Garbage) -> dict[str, Subscription]:
    found = {}
    for consumer in sorted(session.children(members_path(name)) or []):
        path = member_path(name, consumer)
        node = session.get(path)
        if node is not None:
            try:
                found[consumer] = Subscription.parse(node.data)
            except CoordinationError as error:
                left_out(path, "what the member reads is not known", error)
    return found


def _topics_below(session: Reads, name: str, kind: str) -> list[str]:
    return sorted(session.children(f"{group_path(name)}/{kind}") or [])


def _partitions_below(session: Reads, path: str, topic: str, left_out: Garbage) -> list[TopicPartition]:
    found = []
    for name in session.children(path) or []:
        try:
            found.append(TopicPartition(topic, PartitionId.parse(name)))
        except CoordinationError as error:
            left_out(f"{path}/{name}", "it is left out", error)
    return sorted(found)

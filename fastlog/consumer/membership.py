"""Being a member of a group, and seeing who else is: what ZooKeeper shows of members, topics and brokers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

from fastlog.client.addresses import Address
from fastlog.client.registrations import read_addresses, read_partitions
from fastlog.consumer.assignment import TopicFilter, assign_group, streams_by_topic
from fastlog.consumer.partitions import Lease, TopicPartition
from fastlog.coordination.session import NodeExistsError, NoNodeError, Session, VersionError
from fastlog.coordination.watched import Watched
from fastlog.errors import ConfigError, CoordinationError, FastlogError
from fastlog.limited_log import LimitedLog
from fastlog.zkpaths import (
    BROKER_TOPICS,
    PartitionId,
    Subscription,
    member_path,
    members_path,
    thread_ids,
)

LEASE_SHARE = 0.75
"""Of the session's time-out. A server that passes requests on tells the leader of its sessions every half tick, and a
session lasts two ticks at least: by the leader's count it may be a quarter further on than by ours."""

_TRIES = 5


class Membership:
    """The node by which others know of this member, in one session. For one thread."""

    def __init__(
        self, session: Session, group: str, consumer: str, subscription: Subscription, lease: Lease, log: LimitedLog
    ) -> None:
        self._session = session
        self._log = log
        self._path = member_path(group, consumer)
        self._data = subscription.encode()
        self._lease = lease
        self._version: int | None = None

    def prove(self) -> None:
        """Be a member, and extend the lease by a request that only a live session can make.

        It is a write, since a server that has lost the others goes on answering reads of sessions that they have
        ended. It wakes nobody: members watch who is there, not what the nodes hold.

        Raises:
            NodeExistsError: another session is a member of that name.
            CoordinationError: no answer.
        """
        for _ in range(_TRIES):
            if self._version is None:
                with contextlib.suppress(NodeExistsError):  # whose it is is seen below
                    self._session.create(self._path, self._data, ephemeral=True)
                self._version = self._version_of_mine()
            if self._version is None:
                continue
            sent = Lease.now()
            try:
                self._version = self._session.set(self._path, self._data, self._version)
            except NoNodeError:
                self._log.warning("gone", "event=member_node_gone path=%s: making it again", self._path)
                self._version = None
            except VersionError:  # the answer to an earlier try was lost, or somebody else wrote
                self._version = self._version_of_mine()
            else:
                self._lease.extend(sent, self._session.timeout * LEASE_SHARE)
                return
        raise CoordinationError(f"{self._path}: somebody else goes on changing it")

    def _version_of_mine(self) -> int | None:
        node = self._session.get(self._path)
        if node is not None and node.owner != self._session.id:
            self._version = None
            raise NodeExistsError(f"{self._path} is another session's: is the consumer's id used twice?")
        return None if node is None else node.version


class GroupRegistrations(NamedTuple):
    """What a member works out its assignment from."""

    members: Mapping[str, Subscription]
    partitions: Mapping[str, list[PartitionId]]
    """The announced partitions of the topics that the member reads, by topic."""
    addresses: Mapping[int, Address]


class Registrations:
    """Reads the registrations in ZooKeeper that decide who reads what. For one thread."""

    def __init__(
        self, session: Session, watched: Watched, group: str, consumer: str, subscription: Subscription, log: LimitedLog
    ) -> None:
        self._session = session
        self._log = log
        self._watched = watched
        self._group = group
        self._consumer = consumer
        self._subscription = subscription
        self._filter = TopicFilter(subscription.pattern, subscription.is_whitelist) if subscription.is_filter else None
        self._names: list[str] | None = None
        self._members: dict[str, Subscription] = {}

    def read(self) -> GroupRegistrations:
        """The registrations as they are now; reads only what has changed.

        Malformed nodes of others are left out and logged. Raises ``CoordinationError``: no answer, or the
        member's own filter takes too long for a topic that there is.
        """
        members = self._read_members()
        topics = self._subscription.topics if self._filter is None else self._allowed()
        return GroupRegistrations(
            members, {topic: self._partitions(topic) for topic in topics}, read_addresses(self._watched, self._garbage)
        )

    def wanted(self, cluster: GroupRegistrations) -> dict[TopicPartition, str]:
        """Which partitions this member is to read, and in which thread."""
        owners = assign_group(
            {**cluster.members, self._consumer: self._subscription}, cluster.partitions, self._bad_filter
        )
        streams = streams_by_topic(self._subscription, cluster.partitions)
        found = {}
        for topic, count in streams.items():
            mine = set(thread_ids(self._consumer, count))
            for partition, thread in owners.get(topic, {}).items():
                if thread in mine:
                    found[TopicPartition(topic, partition)] = thread
        return found

    def is_passed_by(self, topic: str) -> bool:
        """Whether the member's filter means a topic, of which no broker has announced partitions."""
        try:
            is_meant = self._filter is not None and self._filter.allows(topic)
        except ConfigError:
            return False
        return is_meant and not self._partitions(topic)

    def _read_members(self) -> dict[str, Subscription]:
        names = self._watched.children(members_path(self._group)) or []
        if names is not self._names or not names:
            # No watch on what they hold: a member that writes another subscription makes its node anew.
            found = {}
            for name in names:
                path = member_path(self._group, name)
                node = self._session.get(path)
                if node is None:
                    continue
                try:
                    found[name] = Subscription.parse(node.data)
                except CoordinationError as error:
                    self._garbage(path, "the member gets nothing", error)
            self._names, self._members = names, found
        return self._members

    def _allowed(self) -> list[str]:
        assert self._filter is not None
        try:
            return sorted(filter(self._filter.allows, self._watched.children(BROKER_TOPICS) or []))
        except ConfigError as error:
            raise CoordinationError(str(error)) from None

    def _bad_filter(self, consumer: str, error: ConfigError) -> None:
        self._garbage(member_path(self._group, consumer), "the member gets nothing", error)

    def _partitions(self, topic: str) -> list[PartitionId]:
        counts = read_partitions(self._watched, topic, self._garbage)
        return [PartitionId(broker, number) for broker, count in counts.items() for number in range(count)]

    def _garbage(self, path: str, so: str, error: FastlogError) -> None:
        self._log.warning(path, "event=garbage path=%s: %s: %s", path, so, error)

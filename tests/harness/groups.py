"""Members of a group without streams: readers that only remember, and what a cluster shows of itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fastlog.client.addresses import Address
from fastlog.consumer.assignment import assign_group
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.group import Group
from fastlog.consumer.partitions import Claim, TopicPartition
from fastlog.coordination.session import Session
from fastlog.zkpaths import (
    BrokerRegistration,
    PartitionId,
    Subscription,
    broker_path,
    encode_number,
    members_path,
    offset_path,
    topic_broker_path,
)
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.timing import PATIENCE

SECONDS = PATIENCE
GROUP = "g"


class FakeReaders:
    """Remembers what it was told, and breaks when it is told nonsense. ``moves`` has each take and release, ``unknown``
    the partitions of which a broker is asked where they begin."""

    def __init__(self) -> None:
        self.claims: dict[TopicPartition, Claim] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.addresses: dict[int, Address] = {}
        self.moves: list[tuple[str, TopicPartition]] = []
        self.on_acquire: Callable[[Collection[TopicPartition]], None] = lambda partitions: None
        self.breaks: Exception | None = None
        self.unknown: set[TopicPartition] = set()
        self.on_beginning = threading.Event()
        self.made: dict[TopicPartition, int] = {}

    def acquire(self, claims: Mapping[TopicPartition, Claim]) -> None:
        if self.breaks is not None:
            raise self.breaks
        assert not self.claims.keys() & claims.keys(), "taken twice"
        self.on_acquire(claims.keys())
        for partition, claim in claims.items():
            assert self.addresses[partition.partition.broker] == claim.address
            if claim.offset is not None:
                self.positions[partition] = claim.offset
            self.claims[partition] = claim
            self.moves.append(("take", partition))

    def release(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        assert self.claims.keys() >= set(partitions), "released what was not taken"
        for partition in partitions:
            del self.claims[partition]
            self.moves.append(("release", partition))
        return {partition: self.positions.pop(partition) for partition in partitions if partition in self.positions}

    def consumed(self) -> dict[TopicPartition, int]:
        return dict(self.positions)

    def logs(self) -> dict[TopicPartition, int]:
        return dict(self.made)

    def beginning(self) -> Collection[TopicPartition]:
        """``unknown``, for which ``on_beginning`` is set."""
        self.on_beginning.set()
        return set(self.unknown)

    def moved(self, addresses: Mapping[int, Address]) -> None:
        self.addresses = dict(addresses)

    def consume(self, partition: TopicPartition, offset: int) -> None:
        """Note that the program has consumed up to an offset."""
        assert partition in self.claims
        self.positions[partition] = offset


class Member:
    """A group's member with fake readers, started and stopped by ``with``."""

    def __init__(self, group: Group, readers: FakeReaders) -> None:
        self.group = group
        self.readers = readers

    def __enter__(self) -> Member:
        self.group.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.group.stop()

    @property
    def owned(self) -> list[str]:
        """The partitions that it reads, as strings."""
        return sorted(map(str, self.group.owned))

    def settled(self) -> Member:
        """Wait until it reads what it is to read, and return it."""
        assert self.group.wait_settled(SECONDS), (self.group.state, self.group.error)
        return self


def config_of(connect: str = "fake:1", **settings: Any) -> ConsumerConfig:
    """Short pauses, no auto-commit unless asked for."""
    return ConsumerConfig(
        **{
            "zk_connect": connect,
            "group_id": GROUP,
            "rebalance_backoff_ms": 100,
            "zk_connection_timeout_ms": 2000,
            "auto_commit": False,
            **settings,
        }
    )


def fake_member(tree: FakeZooKeeper, topics: Mapping[str, int] | Subscription, name: str, **options: Any) -> Member:
    """A member in a fake ZooKeeper."""
    readers = FakeReaders()
    settings = {key: options.pop(key) for key in list(options) if key not in ("store", "lease")}
    subscription = topics if isinstance(topics, Subscription) else Subscription(dict(topics))
    group = Group(
        config_of(consumer_id=name, **settings),
        subscription,
        readers,
        open_session=lambda on_change, is_wanted: tree.open(on_change),
        **options,
    )
    return Member(group, readers)


def real_member(connect: str, topics: Mapping[str, int], name: str, **settings: Any) -> Member:
    """A member in a real ZooKeeper."""
    return member_of(connect, Subscription(dict(topics)), name, **settings)


def member_of(connect: str, subscription: Subscription, name: str, **settings: Any) -> Member:
    """A member in a real ZooKeeper with any subscription."""
    readers = FakeReaders()
    options = {key: settings.pop(key) for key in list(settings) if key in ("store", "lease")}
    group = Group(config_of(connect, consumer_id=name, **settings), subscription, readers, **options)
    return Member(group, readers)


class Cluster:
    """Shows brokers and topics, as brokers do, in a session of its own."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def show(self, topic: str, counts: Mapping[int, int]) -> None:
        """Brokers with so many partitions of the topic each."""
        for broker, count in counts.items():
            value = BrokerRegistration(f"c-{broker}", "127.0.0.1", 9000 + broker)
            self.session.create(broker_path(broker), value.encode(), ephemeral=True)
            path = topic_broker_path(topic, broker)
            if self.session.get(path) is None:
                self.session.create(path, encode_number(count), ephemeral=True)
            else:
                self.session.set(path, encode_number(count))

    def hide(self, topic: str, broker: int) -> None:
        """The broker does not have the topic any more."""
        self.session.delete(topic_broker_path(topic, broker))

    def end(self, broker: int, *topics: str) -> None:
        """Remove the registration of a broker."""
        self.session.delete(broker_path(broker))
        for topic in topics:
            self.hide(topic, broker)


def expected_owners(session: Session, topics: Collection[str]) -> dict[str, str]:
    """Who is to own what, by what is registered: ``topic/broker-partition`` and the thread."""
    members = {}
    for name in session.children(members_path(GROUP)) or []:
        node = session.get(f"{members_path(GROUP)}/{name}")
        if node is not None:
            members[name] = Subscription.parse(node.data)
    partitions: dict[str, list[PartitionId]] = {}
    for topic in topics:
        partitions[topic] = []
        for broker in session.children(f"/brokers/topics/{topic}") or []:
            node = session.get(topic_broker_path(topic, int(broker)))
            if node is not None:
                partitions[topic] += [PartitionId(int(broker), number) for number in range(int(node.data))]
    found = assign_group(members, partitions)
    return {f"{topic}/{partition}": thread for topic, owners in found.items() for partition, thread in owners.items()}


def shown_owners(session: Session, topics: Collection[str]) -> dict[str, str]:
    """The owner nodes."""
    found = {}
    for topic in topics:
        path = f"/consumers/{GROUP}/owners/{topic}"
        for name in session.children(path) or []:
            node = session.get(f"{path}/{name}")
            if node is not None:
                found[f"{topic}/{name}"] = node.data.decode()
    return found


def wait_until(what: str, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Look every few milliseconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        time.sleep(0.003)


class FakeStore:
    """Offsets in memory, shared by members. ``broken``: what every call for these partitions raises."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.broken: dict[TopicPartition, Exception] = {}
        self.saves: list[dict[TopicPartition, int]] = []
        self.lock = threading.Lock()

    def load(self, group: str, partition: TopicPartition) -> int | None:
        if partition in self.broken:
            raise self.broken[partition]
        return self.offsets.get(partition)

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        for partition in offsets:
            if partition in self.broken:
                raise self.broken[partition]
        with self.lock:
            self.saves.append(dict(offsets))
            self.offsets.update(offsets)


def part(name: str, topic: str = "t") -> TopicPartition:
    """``1-0`` as a partition of a topic."""
    return TopicPartition(topic, PartitionId.parse(name))


def committed(tree: FakeZooKeeper, name: str, topic: str = "t") -> bytes | None:
    """What is committed of a partition, as ZooKeeper holds it."""
    return tree.shown().get(offset_path(GROUP, topic, PartitionId.parse(name)))

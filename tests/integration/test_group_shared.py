"""Groups that members of Kafka 0.7 and of fastlog share, in a real ZooKeeper: one owner each, and one chain of offsets.

The 0.7 member is ``harness/kafka07.py``, which knows nothing of fastlog.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fastlog import testing
from fastlog.consumer.partitions import TopicPartition
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.testing import RunningZooKeeper
from fastlog.zkpaths import PartitionId, Subscription
from tests.harness.groups import GROUP, Cluster, Member, member_of, shown_owners, wait_until
from tests.harness.kafka07 import Kafka07Consumer

pytestmark = [pytest.mark.slow, pytest.mark.java]
SESSION_MS = 2000
SECONDS = 20.0
TOPICS = ("t", "t2")


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.fixture
def connect(zookeeper: RunningZooKeeper, fastlog_topic: str) -> Iterator[str]:
    """With a tree of the test's own, which exists, as 0.7 wants it."""
    place = f"{zookeeper.connect}/{fastlog_topic}"
    with ZooKeeperSession(place):
        yield place


@pytest.fixture
def session(connect: str) -> Iterator[ZooKeeperSession]:
    """Shows three brokers, one of them with more than ten partitions, so that text sorts otherwise than numbers."""
    with ZooKeeperSession(connect, session_timeout=20.0) as made:
        Cluster(made).show("t", {0: 12, 2: 1, 10: 2})
        Cluster(made).show("t2", {2: 3})
        yield made


def ours(connect: str, name: str, subscription: Subscription) -> Member:
    return member_of(connect, subscription, name, zk_session_timeout_ms=SESSION_MS, auto_commit=True)


def theirs(connect: str, name: str, subscription: str) -> Kafka07Consumer:
    return Kafka07Consumer(connect, GROUP, name, subscription, SESSION_MS / 1000)


def reads(member: Member | Kafka07Consumer) -> set[str]:
    if isinstance(member, Kafka07Consumer):
        return {f"{topic}/{partition}" for topic, partition in member.positions}
    return {str(partition) for partition in member.group.owned}


def agreed(session: ZooKeeperSession, *members: Member | Kafka07Consumer, count: int = 18) -> bool:
    """Every partition has one owner, which reads it, and every member has its part of each topic."""
    found = [reads(member) for member in members]
    owners = shown_owners(session, TOPICS)
    names = [member.id if isinstance(member, Kafka07Consumer) else member.group.consumer_id for member in members]
    shown = [{place for place, thread in owners.items() if thread.startswith(f"{name}-")} for name in names]
    return all(found) and len(owners) == count == len(set().union(*found)) == sum(map(len, found)) and found == shown


@pytest.mark.parametrize(
    ("subscription", "theirs_is"),
    [(Subscription({"t": 1, "t2": 2}), '{ "t": 1,"t2": 2 }'), (Subscription({}, "t.*", True, 2), "*2*t.*")],
    ids=["topics", "filter"],
)
def test_members_of_both_share_a_group(
    connect: str, session: ZooKeeperSession, subscription: Subscription, theirs_is: str
) -> None:
    """They come and go in order: each partition goes on where the last owner was, whatever that was."""
    with ExitStack() as stack:
        a = stack.enter_context(ours(connect, "a", subscription))
        wait_until("alone", lambda: agreed(session, a), SECONDS)
        for partition in a.readers.claims:
            a.readers.consume(partition, 1000)
        a.group.commit()  # 0.7 reads an offset before it owns the partition: what is committed in between is too late
        with theirs(connect, "b", theirs_is) as b:
            wait_until("shared by two", lambda: agreed(session, a, b), SECONDS)
            assert len(b.positions) >= 7
            assert {offset for *_, offset in b.begun} == {1000}
            for topic, partition in list(b.positions):
                b.consume(topic, partition, 2000)
            with ours(connect, "c", subscription) as c:
                wait_until("shared by three", lambda: agreed(session, a, b, c), SECONDS)
                assert set(b.positions.values()) <= {1000, 2000}
                found = {str(partition): claim.offset for partition, claim in c.readers.claims.items()}
                assert set(found.values()) <= {1000, 2000} and len(found) >= 4
            wait_until("two again", lambda: agreed(session, a, b), SECONDS)
            for topic, partition in list(b.positions):
                b.consume(topic, partition, 3000)
            held = set(b.positions)
        wait_until("alone again", lambda: agreed(session, a), SECONDS)
        for topic, partition in held:
            claim = a.readers.claims[TopicPartition(topic, PartitionId.parse(partition))]
            assert claim.offset == 3000
    node = session.get(f"/consumers/{GROUP}/offsets/t/0-0")
    assert node is not None and node.data.isdigit() and not node.owner


def test_a_member_of_0_7_dies(connect: str, session: ZooKeeperSession) -> None:
    """Its partitions are taken over at its last commit, when its session ends, and not before."""
    with ours(connect, "a", Subscription({"t": 1})) as a, theirs(connect, "b", '{ "t": 1 }') as b:
        wait_until("shared", lambda: agreed(session, a, b, count=15), SECONDS)
        for topic, partition in list(b.positions):
            b.consume(topic, partition, 50)
        b.commit()
        for topic, partition in list(b.positions):
            b.consume(topic, partition, 70)
        lost = [TopicPartition(topic, PartitionId.parse(name)) for topic, name in b.positions]
        b.vanish()
        assert not set(lost) & set(a.readers.claims)
        wait_until("taken over", lambda: agreed(session, a, count=15), 5 * (SESSION_MS / 1000 + 2))
        assert {a.readers.claims[partition].offset for partition in lost} == {50}

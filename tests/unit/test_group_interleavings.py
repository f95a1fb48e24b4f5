"""Members whose steps interleave at every call to ZooKeeper: never two readers, and the right owners in the end.

One thread; a seed decides who goes on at each call, who joins, leaves or expires, and what brokers do meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog.consumer import group_session, holdings, member_session
from fastlog.consumer.group_session import GroupSession
from fastlog.consumer.member_session import GroupWork
from fastlog.consumer.partitions import Lease, TopicPartition
from fastlog.coordination.session import SessionLostError
from fastlog.errors import CoordinationError
from fastlog.zkpaths import Subscription
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.groups import GROUP, Cluster, FakeReaders, config_of, expected_owners, shown_owners

TOPICS = ("t", "u")
MOST_TURNS = 3000


class SteppedMember:
    """A member whose turns somebody else decides about."""

    def __init__(self, world: World, name: str, subscription: Subscription, *, auto_commit: bool) -> None:
        self.world = world
        self.readers = FakeReaders()
        self.readers.on_acquire = self.taking
        self.is_inside = False
        config = config_of(rebalance_backoff_ms=1, auto_commit=auto_commit)
        self.work = GroupWork(config, name, subscription, self.readers, None, Lease(6.0))
        self.work.source.seed(world.names)
        self.session: FakeSession | None = None
        self.life: GroupSession | None = None

    def taking(self, partitions: Collection[TopicPartition]) -> None:
        """Nobody else whose session lives reads these; what was committed is where it begins."""
        assert self.session is not None
        for other in self.world.members:
            if other is not self and other.session is not None and not other.session.is_lost:
                both = other.readers.claims.keys() & set(partitions)
                self.world.broken += [f"{partition} is read twice" for partition in both if not self.session.is_lost]

    def turn(self) -> None:
        """Go on, in a new session where the last one is lost."""
        self.is_inside = True
        try:
            if self.life is None or self.session is None:
                self.session = self.world.tree.open(self.work.inbox.wake)
                self.life = GroupSession(self.work, self.session)
            try:
                if self.session.is_lost:
                    raise SessionLostError
                self.life.turn()
            except SessionLostError:
                self.close()
        finally:
            self.is_inside = False

    def close(self) -> None:
        """The session is over."""
        if self.life is not None:
            self.life.end()
        self.life = self.session = None
        assert self.readers.claims == {}


class World:
    """A tree, its brokers, and members."""

    def __init__(self, seed: int, time: SteppedTime) -> None:
        self.time = time
        self.source = random.Random(seed)
        self.tree = FakeZooKeeper()
        self.cluster = Cluster(self.tree.open())
        self.cluster.show("t", {1: 3, 2: 1})
        self.cluster.show("u", {1: 2})
        self.members: list[SteppedMember] = []
        self.broken: list[str] = []
        self.names = 0
        self.is_quiet = False
        self.tree.before_call = self.between
        self.tree.after_change = self.after

    def between(self, session: FakeSession, name: str, path: str) -> None:
        """At a call of one, others may get a turn, or something may happen."""
        if session is self.cluster.session or self.is_quiet:
            return
        draw = self.source.random()
        if draw < 0.15:
            self.anybody()
        elif draw < 0.17:
            self.something()
        elif draw < 0.18:
            raise CoordinationError("no answer")

    def after(self, session: FakeSession, name: str, path: str) -> None:
        """The answer to a change that was made may be lost."""
        if session is not self.cluster.session and not self.is_quiet and self.source.random() < 0.01:
            raise CoordinationError("no answer to what was done")

    def anybody(self) -> None:
        """A turn of somebody who is not in the middle of one."""
        free = [member for member in self.members if not member.is_inside]
        if free:
            self.source.choice(free).turn()

    def something(self) -> None:
        """One thing that happens to groups."""
        source = self.source
        free = [member for member in self.members if not member.is_inside]
        kind = source.randrange(8)
        if kind == 0 and len(self.members) < 5:
            self.join()
        elif kind == 1 and free:
            member = source.choice(free)
            member.close()
            self.members.remove(member)
        elif kind == 2:
            living = [member.session.id for member in self.members if member.session is not None]
            living = [number for number in living if number in self.tree.sessions]
            if living:
                self.tree.expire(source.choice(living))
        elif kind in (3, 4):
            self.cluster.show(source.choice(TOPICS), {source.randint(1, 3): source.randint(0, 4)})
        elif kind == 5:
            self.cluster.hide(source.choice(TOPICS), source.randint(1, 3))
        elif kind == 6 and free:
            readers = source.choice(free).readers
            for partition in list(readers.claims):
                readers.consume(partition, readers.positions.get(partition, 0) + source.randint(1, 9))
        elif kind == 7 and free:
            source.choice(free).work.inbox.ask(None, False)

    def join(self) -> None:
        """One more member: of one topic, of both, or with a filter."""
        self.names += 1
        subscription = self.source.choice(
            [
                Subscription({"t": self.source.randint(1, 3)}),
                Subscription({"u": 1, "t": 2}),
                Subscription({}, "[tu]", True, self.source.randint(1, 2)),
                Subscription({}, "u", False, 1),
            ]
        )
        name = f"{GROUP}_m{self.names * 7 % 13}-{self.names}"
        self.members.append(SteppedMember(self, name, subscription, auto_commit=self.source.random() < 0.5))

    def quieten(self) -> None:
        """Nothing happens any more; everybody goes on until nobody has anything to do."""
        self.is_quiet = True
        self.cluster.show("t", {1: 1})
        for _ in range(MOST_TURNS):
            for member in self.members:
                member.turn()
            if all(member.life is not None and member.life.is_reconciled for member in self.members):
                return
            self.time.now += 0.0005
        states = [(member.work.status.state, member.work.status.error) for member in self.members]
        self.broken.append(f"not settled after {MOST_TURNS} turns: {states}")


class SteppedTime:
    """Stands in for the module ``time``: goes on a little whenever it is looked at."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 0.00005
        return self.now


def play(seed: int) -> World:
    """A world in which much has happened, and that is quiet now. The same seed gives the same world."""
    stepped = SteppedTime()
    with pytest.MonkeyPatch.context() as patch:
        for module in (group_session, holdings, member_session):
            patch.setattr(module, "time", stepped)
        patch.setattr(member_session, "MOST_PAUSE", 0.001)
        world = World(seed, stepped)
        for _ in range(world.source.randint(1, 3)):
            world.join()
        for _ in range(world.source.randint(5, 60)):
            world.anybody()
            if world.source.random() < 0.3:
                world.something()
        world.quieten()
    return world


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
@pytest.mark.slow
def test_nobody_reads_what_another_one_reads(seed: int) -> None:
    world = play(seed)
    assert world.broken == []
    check = world.cluster.session
    owners = shown_owners(check, TOPICS)
    assert owners == expected_owners(check, TOPICS)
    read = {
        str(partition): claim.thread for member in world.members for partition, claim in member.readers.claims.items()
    }
    assert read == {name: thread for name, thread in owners.items()}
    for member in world.members:
        assert {str(partition) for partition in member.work.status.owned} == {
            str(partition) for partition in member.readers.claims
        }

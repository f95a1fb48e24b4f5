"""The order of a member's steps: claim, release, commit and leaving, and what holds when it is stopped between any two.

Whoever has a partition next begins where the last one saved: never behind something that was not handed out, and no
offset in ZooKeeper ever goes back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog.consumer.offsets import FileOffsets
from fastlog.errors import CoordinationError, OwnershipLostError
from fastlog.zkpaths import PartitionId, offset_path, owner_path
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.groups import GROUP, Cluster, FakeStore, part
from tests.harness.stepped_group import Clock, Stepped, Steps

ONLY = part("1-0", "s")
OFFSET = offset_path(GROUP, "s", PartitionId(1, 0))
OWNER = owner_path(GROUP, "s", PartitionId(1, 0))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def steps(tree: FakeZooKeeper, clock: Clock) -> Steps:
    """Of the one partition of topic ``s``."""
    Cluster(tree.open()).show("s", {1: 1})
    made = Steps(ONLY)
    tree.before_call = made.call
    return made


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_claim_a_commit_a_hand_over(tree: FakeZooKeeper, clock: Clock, steps: Steps, auto_commit: bool) -> None:
    """The node first, then the offset, then reading; and in the other order when it is given up."""
    first = Stepped(tree, "b", {"s": 1}, steps=steps, auto_commit=auto_commit)
    first.settle(clock)
    assert steps.take() == ["create owners", "get owners", "get offsets", "take"]
    first.turn()
    assert steps.take() == []
    first.readers.consume(ONLY, 7)
    request = first.work.inbox.ask(None, True)
    first.turn()
    request.wait(0)
    assert steps.take() == ["put offsets"]
    request = first.work.inbox.ask(None, True)
    first.turn()
    request.wait(0)
    assert steps.take() == [], "what has not changed is not written"
    first.readers.consume(ONLY, 9)
    second = Stepped(tree, "a", {"s": 1}, steps=steps, auto_commit=auto_commit)
    second.turn()
    assert steps.take() == ["create owners", "get owners"], "it is owned still"
    first.turn()
    assert steps.take() == ["release", *(["put offsets"] if auto_commit else []), "delete owners"]
    assert tree.shown()[OFFSET] == (b"9" if auto_commit else b"7")
    clock.now += 0.05
    second.settle(clock)
    assert [step for step in steps.take() if step != "get owners"] == ["create owners", "get offsets", "take"]
    assert second.readers.claims[ONLY].offset == (9 if auto_commit else 7)
    second.readers.consume(ONLY, 20)
    assert second.life is not None
    second.life._leave()
    assert steps.take() == ["release", *(["put offsets"] if auto_commit else [])]
    assert OWNER in tree.shown(), "the node goes with the session"
    second.end()
    assert steps.take() == [] and OWNER not in tree.shown()


def test_another_thread_of_the_same_member(tree: FakeZooKeeper, clock: Clock, steps: Steps) -> None:
    """It is renamed in place, never without an owner, and read on where the first one stopped; nothing is loaded."""
    member = Stepped(tree, "a", {"s": 2}, steps=steps, auto_commit=True)
    cluster = Cluster(tree.open())
    cluster.show("s", {0: 1})  # so that 1-0 comes second
    member.settle(clock)
    steps.take()
    member.readers.consume(ONLY, 7)
    assert tree.shown()[OWNER] == b"g_a-1"
    cluster.hide("s", 0)
    member.settle(clock)
    assert steps.take() == ["release", "put offsets", "set owners", "get owners", "take"]
    assert tree.shown()[OWNER] == b"g_a-0"
    assert member.readers.claims[ONLY][:3:2] == ("g_a-0", 7)


def test_a_node_that_is_gone_ends_reading_before_anything_is_written(
    tree: FakeZooKeeper, clock: Clock, steps: Steps
) -> None:
    """What was read since the last commit is not saved, as it may be somebody else's; the next commit says so."""
    member = Stepped(tree, "a", {"s": 1}, steps=steps, auto_commit=True)
    member.settle(clock)
    member.readers.consume(ONLY, 7)
    steps.take()
    tree.remove(OWNER)
    member.settle(clock)
    assert steps.take() == ["get owners", "release", "create owners", "get owners", "get offsets", "take"]
    assert OFFSET not in tree.shown()
    request = member.work.inbox.ask(None, True)
    member.turn()
    with pytest.raises(OwnershipLostError, match="s/1-0"):
        request.wait(0)
    request = member.work.inbox.ask(None, True)
    member.turn()
    request.wait(0)


def test_where_a_partition_begins_is_written_only_where_there_is_nothing(
    tree: FakeZooKeeper, clock: Clock, steps: Steps
) -> None:
    member = Stepped(tree, "a", {"s": 1}, steps=steps, auto_commit=True)
    member.settle(clock)
    steps.take()
    member.readers.consume(ONLY, 7)
    member.work.inbox.begun[ONLY] = None
    member.turn()
    assert steps.take() == ["get offsets", "create offsets"]
    assert tree.shown()[OFFSET] == b"7" and not member.work.inbox.begun
    member.readers.consume(ONLY, 9)
    member.work.inbox.begun[ONLY] = None  # a jump: there is an offset now
    clock.now += 0.001
    member.turn()
    assert steps.take() == ["put offsets"]


# -- stopped between any two steps -----------------------------------------------------------------------------------


class World:
    """Two members that hand one partition over and back while both read; what was delivered and what was committed."""

    def __init__(self, clock: Clock, store: Callable[[], object] | None = None, *, auto_commit: bool = True) -> None:
        self.clock = clock
        self.tree = FakeZooKeeper()
        Cluster(self.tree.open()).show("s", {1: 1})
        settings = {"auto_commit": auto_commit, "auto_commit_interval_ms": 3_600_000, "rebalance_backoff_ms": 1}
        self.slow, self.quick = (
            Stepped(self.tree, name, {"s": 1}, store=store() if store else None, **settings)  # type: ignore[arg-type]
            for name in ("b", "a")
        )
        self.delivered = 0
        self.committed: list[int] = []
        self.inside = False
        self.calls = 0
        self.stop_at = -1
        self.event: Callable[[], None] = lambda: None
        self.tree.before_call = self.before
        self.tree.after_change = self.after
        for member, other in ((self.slow, self.quick), (self.quick, self.slow)):
            member.readers.on_acquire = lambda partitions, member=member, other=other: self.taking(member, other)  # type: ignore[misc]

    def taking(self, member: Stepped, other: Stepped) -> None:
        """Nobody else reads it whose session lives, and it does not begin behind what was handed out."""
        assert member.session is not None
        if not member.session.is_lost and other.session is not None and not other.session.is_lost:
            assert ONLY not in other.readers.claims, "two readers"

    def before(self, session: FakeSession, name: str, path: str) -> None:
        """At the chosen call of the slow one, something happens."""
        if self.slow.session is session and not self.inside:
            self.calls += 1
            if self.calls == self.stop_at:
                self.inside = True
                try:
                    self.event()
                finally:
                    self.inside = False

    def after(self, session: FakeSession, name: str, path: str) -> None:
        """Keep what is committed."""
        if path == OFFSET:
            self.committed.append(int(self.tree.shown()[OFFSET]))

    def read(self, member: Stepped, count: int) -> None:
        """The program gets so much further, if it has the partition and its lease."""
        claim = member.readers.claims.get(ONLY)
        if claim is None or not member.work.lease.is_valid or member.session is None or member.session.is_lost:
            return
        begin = member.readers.positions.setdefault(ONLY, claim.offset or 0)
        assert begin <= self.delivered, f"{begin} is behind what was handed out, {self.delivered}"
        member.readers.consume(ONLY, begin + count)
        self.delivered = max(self.delivered, begin + count)

    def go(self, member: Stepped, turns: int) -> None:
        """Turns in which it reads and commits."""
        for _ in range(turns):
            member.turn()
            self.read(member, 3)
            member.work.inbox.ask(None, False)
            self.clock.now += 0.002

    def play(self) -> None:
        """The slow one reads; the quick one comes and takes over; it leaves, and the slow one has it again."""
        self.go(self.slow, 3)
        self.go(self.quick, 1)
        self.go(self.slow, 3)
        self.go(self.quick, 3)
        self.quick.end()
        self.go(self.slow, 3)

    def settle(self) -> None:
        """Until nobody has anything to do."""
        for _ in range(200):
            self.go(self.quick, 1)
            self.go(self.slow, 1)
            if all(member.life is not None and member.life.is_reconciled for member in (self.quick, self.slow)):
                break
        else:
            raise AssertionError((self.quick.work.status, self.slow.work.status))
        self.go(self.quick, 3)

    def check(self) -> None:
        """In the end somebody reads it, no offset went back, and none was ahead of what was handed out."""
        self.settle()
        assert list(self.quick.readers.claims) == [ONLY] and self.slow.readers.claims == {}
        assert self.committed == sorted(self.committed), self.committed
        assert self.committed[-1] <= self.delivered
        assert self.tree.shown()[OWNER] == b"g_a-0"
        sessions = {member.session.id for member in (self.slow, self.quick) if member.session is not None}
        assert {node.owner for path, node in self.tree._nodes.items() if "/ids/" in path or "/owners/" in path} - {
            0, *self.tree.sessions
        } == set(), "a node of nobody is left"  # fmt: skip
        assert sessions <= set(self.tree.sessions)


def calls_of(clock: Clock, auto_commit: bool) -> int:
    """How many calls the slow one makes when nothing happens to it."""
    world = World(clock, auto_commit=auto_commit)
    world.play()
    return world.calls


def expired(world: World) -> None:
    """Its session ends while it stands still; the other one takes over, reads and commits; then it wakes."""
    assert world.slow.session is not None
    if world.slow.session.id in world.tree.sessions:
        world.tree.expire(world.slow.session.id)
    world.go(world.quick, 4)


def overtaken(world: World) -> None:
    """The other one goes on meanwhile, as far as it comes."""
    world.go(world.quick, 3)


def unanswered(world: World) -> None:
    """No server answers this one call."""
    raise CoordinationError("no answer")


def both(world: World) -> None:
    """It is overtaken, and then there is no answer either."""
    world.go(world.quick, 2)
    raise CoordinationError("no answer")


@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize("event", [expired, overtaken, unanswered, both])
def test_whoever_is_stopped_anywhere_costs_no_message(
    clock: Clock, event: Callable[[World], None], auto_commit: bool
) -> None:
    count = calls_of(clock, auto_commit)
    assert count > 20
    for number in range(1, count + 1):
        world = World(clock, auto_commit=auto_commit)
        world.stop_at = number
        world.event = lambda world=world: event(world)  # type: ignore[misc]
        world.play()
        world.check()


def _noting(save: Callable[..., None], saved: list[int]) -> Callable[..., None]:
    def noting(group: str, offsets: dict[object, int]) -> None:
        save(group, offsets)
        saved.extend(offsets.values())

    return noting


@pytest.mark.parametrize("event", [expired, overtaken])
def test_offsets_in_a_file_are_saved_by_who_loaded_them_last(
    clock: Clock, tmp_path: Path, event: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the store that keeps out who woke too late; nothing else does."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for number in range(1, 61, 4):
        directory = tmp_path / str(number)
        world = World(clock, lambda directory=directory: FileOffsets(directory))  # type: ignore[misc]
        world.stop_at = number
        world.event = lambda world=world: event(world)  # type: ignore[misc]
        saved: list[int] = []
        for member in (world.slow, world.quick):
            assert member.work.store is not None
            save = member.work.store.save

            member.work.store.save = _noting(save, saved)  # type: ignore[method-assign]
        world.play()
        world.settle()
        assert saved == sorted(saved) and saved[-1] <= world.delivered


def test_a_store_that_is_slow_or_fails_keeps_no_partition(tree: FakeZooKeeper, clock: Clock, steps: Steps) -> None:
    """What cannot be saved when a partition goes is counted and named, and the partition goes all the same."""
    store = FakeStore()
    member = Stepped(tree, "b", {"s": 1}, steps=steps, auto_commit=True, store=store)
    member.settle(clock)
    member.readers.consume(ONLY, 7)
    store.broken[ONLY] = RuntimeError("full")
    other = Stepped(tree, "a", {"s": 1}, store=store, auto_commit=True)
    other.turn()
    steps.take()
    member.turn()
    assert steps.take() == ["release", "delete owners"]
    assert member.work.status.failed_commits == 1
    assert member.work.status.unsaved == {ONLY}
    store.broken.clear()
    clock.now += 0.05
    other.settle(clock)
    assert other.readers.claims[ONLY].offset is None, "it is read again from where it was saved last"

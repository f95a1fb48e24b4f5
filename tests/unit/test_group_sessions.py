"""Members of a group whose session, ZooKeeper or start goes wrong."""

from __future__ import annotations

import threading
import time

import pytest

from fastlog.consumer.status import GroupState
from fastlog.errors import CoordinationError, OwnershipLostError
from fastlog.zkpaths import member_path
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.groups import (
    GROUP,
    Cluster,
    Member,
    committed,
    fake_member,
    part,
    wait_until,
)
from tests.harness.timing import PATIENCE, sooner_than


def test_a_lost_session_is_followed_by_another(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """Everything is dropped without a commit, the id stays, and reading goes on at what was committed."""
    with fake_member(tree, {"t": 1}, "a", auto_commit=True) as member:
        member.settled()
        member.readers.consume(part("1-0"), 50)
        member.group.commit()
        member.readers.consume(part("1-0"), 70)
        first = member.group.session_id
        assert first is not None
        tree.expire(first)
        wait_until("another session", lambda: member.group.session_id not in (first, None))
        member.settled()
        assert committed(tree, "1-0") == b"50"
        assert member.readers.claims[part("1-0")].offset == 50
        assert member.group.sessions == 2
        with pytest.raises(OwnershipLostError, match="t/1-0") as raised:
            member.group.commit()
        assert raised.value.partitions == (part("1-0"),)
        member.group.commit()


@pytest.mark.slow
def test_without_an_answer_the_lease_ends_and_nothing_is_given_up(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """An outage shorter than the session: delivery pauses, and goes on with what was owned."""
    tree.timeout = 0.4
    with fake_member(tree, {"t": 1}, "a") as member:
        member.settled()
        moves = list(member.readers.moves)
        tree.is_silent = True
        wait_until("the lease ends", lambda: not member.group.lease.is_valid)
        assert member.group.state is GroupState.NO_ZOOKEEPER
        assert member.owned == []
        with pytest.raises(CoordinationError):
            member.group.commit({part("1-0"): 1})
        tree.is_silent = False
        member.settled()
        assert len(member.owned) == 4
        assert member.readers.moves == moves


@pytest.mark.slow
def test_a_program_that_takes_its_time_loses_nothing(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """R-14: signs of life do not depend on anybody asking for messages."""
    tree.timeout = 0.2
    with fake_member(tree, {"t": 1}, "a") as member:
        moves = list(member.settled().readers.moves)
        time.sleep(0.5)
        wait_until("a sign of life", lambda: member.group.lease.is_valid)
        assert member.readers.moves == moves


def test_no_zookeeper_at_the_start_is_an_error_and_leaves_nothing(tree: FakeZooKeeper) -> None:
    tree.is_silent = True
    before = threading.active_count()
    member = fake_member(tree, {"t": 1}, "a", zk_connection_timeout_ms=100)
    with pytest.raises(CoordinationError, match="no ZooKeeper answers"):
        member.group.start()
    assert member.group.state is GroupState.STOPPED
    assert threading.active_count() == before


def test_an_id_that_lives_elsewhere_is_refused(tree: FakeZooKeeper, alone: Member) -> None:
    """T-30: the second one gets a clear error, the first one notices nothing."""
    moves = list(alone.readers.moves)
    tree.timeout = -1.9
    twin = fake_member(tree, {"t": 1}, "a")
    with pytest.raises(CoordinationError, match=r"/consumers/g/ids/g_a"):
        twin.group.start()
    tree.timeout = 6.0
    assert twin.readers.moves == []
    assert alone.readers.moves == moves
    assert len(alone.settled().owned) == 4


def test_an_id_whose_session_ends_soon_is_waited_for(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """A member that died and is started again with the same id, before its session has ended."""
    dead = tree.open()
    dead.create(member_path(GROUP, "g_a"), b'{ "t": 1 }', ephemeral=True)
    threading.Timer(0.1, tree.expire, [dead.id]).start()
    with fake_member(tree, {"t": 1}, "a") as member:
        assert len(member.settled().owned) == 4


@pytest.mark.slow
def test_a_session_that_is_lost_at_the_start_is_followed_by_another(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """However long the first one lasted, the next one is waited for as if nothing had been before."""
    dead = tree.open()
    dead.create(member_path(GROUP, "g_a"), b'{ "t": 1 }', ephemeral=True)

    def lose() -> None:
        tree.is_silent = True
        tree.expire(max(tree.sessions))
        threading.Timer(0.1, speak).start()

    def speak() -> None:
        tree.expire(dead.id)
        tree.is_silent = False

    threading.Timer(1.0, lose).start()
    with fake_member(tree, {"t": 1}, "a", zk_connection_timeout_ms=500) as member:
        assert len(member.settled().owned) == 4
        assert member.group.sessions == 2


def test_broken_readers_do_not_leave_a_dead_member(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """Whatever they raise: it starts over, in a new session, for as long as it takes."""
    member = fake_member(tree, {"t": 1}, "a")
    member.readers.breaks = ZeroDivisionError("a bug")
    with member:
        wait_until("several tries", lambda: member.group.sessions >= 3)
        assert isinstance(member.group.error, ZeroDivisionError)
        member.readers.breaks = None
        assert len(member.settled().owned) == 4


def test_a_stop_does_not_wait_for_a_zookeeper_that_is_gone(tree: FakeZooKeeper, cluster: Cluster) -> None:
    with fake_member(tree, {"t": 1}, "a", auto_commit=True) as member:
        member.settled().readers.consume(part("1-0"), 1)
        tree.is_silent = True
        with sooner_than(PATIENCE):
            member.group.stop()
    assert member.readers.claims == {}

"""Members of a group, with a ZooKeeper and readers in memory: who owns what, what is committed, what goes wrong."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.consumer.database import DatabaseOffsets
from fastlog.consumer.group import Group
from fastlog.consumer.offsets import FileOffsets
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.standing import GroupState
from fastlog.errors import ClosedError, ConfigError, CoordinationError, OwnershipLostError
from fastlog.zkpaths import PartitionId, Subscription, member_path, offset_path, owner_path
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.groups import (
    GROUP,
    Cluster,
    FakeReaders,
    FakeStore,
    Member,
    config_of,
    expected_owners,
    fake_member,
    shown_owners,
    wait_until,
)
from tests.harness.timing import PATIENCE, sooner_than


@pytest.fixture
def tree() -> FakeZooKeeper:
    """With topic ``t``: two partitions on each of two brokers."""
    return FakeZooKeeper()


@pytest.fixture
def cluster(tree: FakeZooKeeper) -> Cluster:
    made = Cluster(tree.open())
    made.show("t", {1: 2, 2: 2})
    return made


@pytest.fixture
def alone(tree: FakeZooKeeper, cluster: Cluster) -> Iterator[Member]:
    """One member that has settled."""
    with fake_member(tree, {"t": 1}, "a") as member:
        yield member.settled()


def part(name: str, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionId.parse(name))


def committed(tree: FakeZooKeeper, name: str, topic: str = "t") -> bytes | None:
    return tree.shown().get(offset_path(GROUP, topic, PartitionId.parse(name)))


def test_a_member_is_shown_as_kafka_shows_it(tree: FakeZooKeeper, alone: Member) -> None:
    shown = tree.shown("/consumers")
    assert shown["/consumers/g/ids/g_a"] == b'{ "t": 1 }'
    assert {path: data for path, data in shown.items() if path.count("/") == 5} == {
        f"/consumers/g/owners/t/{name}": b"g_a-0" for name in ("1-0", "1-1", "2-0", "2-1")
    }
    assert alone.group.state is GroupState.ASSIGNED
    assert alone.owned == ["t/1-0", "t/1-1", "t/2-0", "t/2-1"]
    claim = alone.readers.claims[part("2-1")]
    assert (claim.thread, claim.address.port, claim.offset) == ("g_a-0", 9002, None)
    alone.group.stop()
    assert [path for path in tree.shown("/consumers") if path.count("/") > 4 or "/ids/" in path] == []
    assert alone.readers.claims == {}
    assert alone.group.state is GroupState.STOPPED


def test_only_what_changes_is_touched(tree: FakeZooKeeper, alone: Member, cluster: Cluster) -> None:
    """A second member takes half; what the first one keeps is not stopped for it. Nor when the second one leaves."""
    with fake_member(tree, {"t": 1}, "b") as other:
        wait_until("b has two", lambda: other.owned == ["t/2-0", "t/2-1"])
        alone.settled()
        assert alone.owned == ["t/1-0", "t/1-1"]
        assert [what for what, partition in alone.readers.moves if partition == part("1-0")] == ["take"]
    wait_until("a has all again", lambda: len(alone.owned) == 4)
    assert [what for what, partition in alone.readers.moves if partition == part("1-0")] == ["take"]
    assert [what for what, partition in alone.readers.moves if partition == part("2-0")] == ["take", "release", "take"]
    assert shown_owners(tree.open(), ["t"]) == dict.fromkeys(alone.owned, "g_a-0")


def test_unrelated_events_do_nothing(tree: FakeZooKeeper, alone: Member, cluster: Cluster) -> None:
    """Other topics, members with other topics, and beats of other members: not one partition moves."""
    moves, rebalances = list(alone.readers.moves), alone.group.rebalances
    with fake_member(tree, {"other": 2}, "b") as other:
        assert other.settled().group.state is GroupState.NOTHING
        cluster.show("other", {1: 3})
        wait_until("b has them", lambda: len(other.owned) == 3)
        cluster.hide("other", 1)
        wait_until("b has none", lambda: other.owned == [])
        alone.settled()
    assert alone.readers.moves == moves
    assert alone.group.rebalances == rebalances


def test_a_member_reads_nothing_again_that_has_not_changed(tree: FakeZooKeeper, alone: Member) -> None:
    """What an idle member asks ZooKeeper for is its sign of life; watches do not pile up."""
    watches = tree.watch_count()
    time.sleep(0.05)
    tree.calls.clear()
    for number in range(20):
        tree.write(f"/brokers/topics/noise{number}", b"")
        alone.group._inbox.wake()
        time.sleep(0.002)
    assert {name for _, name, _ in tree.calls} <= {"set"}
    assert tree.watch_count() == watches


def test_partitions_come_and_go_with_their_brokers(tree: FakeZooKeeper, alone: Member, cluster: Cluster) -> None:
    cluster.show("t", {3: 1})
    wait_until("the new broker's", lambda: "t/3-0" in alone.owned)
    cluster.show("t", {1: 3})
    wait_until("one more on an old one", lambda: "t/1-2" in alone.owned)
    cluster.end(2, "t")
    wait_until("those of a broker that left", lambda: alone.owned == ["t/1-0", "t/1-1", "t/1-2", "t/3-0"])
    assert 2 not in alone.readers.addresses
    assert ("take", part("1-0")) in alone.readers.moves
    assert ("release", part("1-0")) not in alone.readers.moves


def test_a_partition_waits_for_its_broker(tree: FakeZooKeeper, alone: Member, cluster: Cluster) -> None:
    """A topic is announced before its broker is: it is owned at once, and read when there is an address."""
    cluster.session.put("/brokers/topics/t/7", b"1")
    wait_until("owned", lambda: tree.shown().get("/consumers/g/owners/t/7-0") == b"g_a-0")
    assert "t/7-0" not in alone.owned
    assert alone.group.state is GroupState.JOINING
    cluster.session.put("/brokers/ids/7", b"c:[::1]:7777")
    alone.settled()
    assert alone.readers.claims[part("7-0")].address == ("::1", 7777)


def test_a_filter_takes_new_topics_by_itself(tree: FakeZooKeeper, cluster: Cluster) -> None:
    with fake_member(tree, Subscription({}, "t|logs.*", True, 2), "a") as member:
        assert member.settled().owned == ["t/1-0", "t/1-1", "t/2-0", "t/2-1"]
        assert tree.shown()[member_path(GROUP, "g_a")] == b"*2*t|logs.*"
        cluster.show("logs.new", {1: 1})
        cluster.show("other", {1: 1})
        wait_until("the new topic", lambda: "logs.new/1-0" in member.owned)
        assert not [name for name in member.owned if name.startswith("other")]
    with pytest.raises(ConfigError, match="regular expression"):
        fake_member(tree, Subscription({}, "t(", True, 1), "a")


def test_a_change_of_threads_goes_on_where_the_other_thread_stopped(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """Of two threads of one member; nothing is committed, and nothing comes twice."""
    with fake_member(tree, {"t": 2}, "a") as member:
        member.settled()
        assert {claim.thread for claim in member.readers.claims.values()} == {"g_a-0", "g_a-1"}
        member.readers.consume(part("2-0"), 77)
        assert member.readers.claims[part("2-0")].thread == "g_a-1"
        cluster.show("t", {3: 2})
        wait_until("renamed", lambda: tree.shown()["/consumers/g/owners/t/2-0"] == b"g_a-0")
        member.settled()
        assert member.readers.claims[part("2-0")] == ("g_a-0", ("127.0.0.1", 9002), 77)
        assert committed(tree, "2-0") is None


def test_it_waits_for_an_owner_that_does_not_let_go(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """A member of 0.7 that is slow, or dead and not yet expired: without limit, and without giving up the others."""
    foreign = tree.open()
    foreign.create(owner_path(GROUP, "t", PartitionId(1, 1)), b"g_java-0", ephemeral=True)
    with fake_member(tree, {"t": 1}, "a", rebalance_max_retries=2) as member:
        wait_until("the others", lambda: member.owned == ["t/1-0", "t/2-0", "t/2-1"])
        wait_until("an error", lambda: member.group.state is GroupState.FAILING)
        assert "t/1-1 is still owned by g_java-0" in str(member.group.error)
        tree.expire(foreign.id)
        assert len(member.settled().owned) == 4
        assert member.group.error is None


def test_an_owner_node_that_somebody_removes_is_made_again(tree: FakeZooKeeper, alone: Member) -> None:
    """KAFKA-262: old consumers removed nodes of others. Until it is owned again, nobody reads the partition here."""
    tree.remove(owner_path(GROUP, "t", PartitionId(1, 0)))
    wait_until("taken again", lambda: alone.readers.moves[-2:] == [("release", part("1-0")), ("take", part("1-0"))])
    assert tree.shown()["/consumers/g/owners/t/1-0"] == b"g_a-0"
    foreign = tree.open()
    with tree.lock:
        tree.remove(owner_path(GROUP, "t", PartitionId(1, 0)))
        tree.write(owner_path(GROUP, "t", PartitionId(1, 0)), b"thief-0", foreign.id)
    wait_until("given up", lambda: "t/1-0" not in alone.owned)
    tree.expire(foreign.id)
    wait_until("back", lambda: "t/1-0" in alone.owned)


def test_a_member_node_that_somebody_removes_is_made_again(tree: FakeZooKeeper, alone: Member) -> None:
    tree.remove(member_path(GROUP, "g_a"))
    wait_until("registered again", lambda: member_path(GROUP, "g_a") in tree.shown())
    assert len(alone.settled().owned) == 4


def test_a_member_that_comes_back_with_another_subscription_is_seen(tree: FakeZooKeeper, alone: Member) -> None:
    """Its name is in the list before and after, so only the list's having changed tells."""
    path = member_path(GROUP, "g_z")
    with tree.lock:
        tree.write(path, b'{ "other": 1 }', 99)
    wait_until("it is read", lambda: ("get", path) in {(name, where) for _, name, where in tree.calls})
    assert len(alone.settled().owned) == 4
    with tree.lock:
        tree.remove(path)
        tree.write(path, b'{ "t": 1 }', 99)
    wait_until("half is left to it", lambda: alone.owned == ["t/1-0", "t/1-1"])


def test_garbage_of_others_is_left_out(tree: FakeZooKeeper, cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """T-29: nodes that make no sense are named in the log, and keep nothing else back."""
    tree.write("/consumers/g/ids/g_x", b"\xff{]")
    tree.write("/brokers/topics/t/9", b"many")
    tree.write("/brokers/topics/t/8", b"99999999999")
    tree.write("/brokers/topics/t/what", b"1")
    tree.write("/brokers/ids/6", b"nowhere")
    with fake_member(tree, {"t": 1}, "a") as member:
        assert len(member.settled().owned) == 4
    for path in ("/consumers/g/ids/g_x", "/brokers/topics/t/9", "/brokers/topics/t/8", "/brokers/ids/6"):
        assert f"path={path}:" in caplog.text


# --- sessions ---


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


# --- commits ---


def test_commits_write_what_has_changed(tree: FakeZooKeeper, alone: Member) -> None:
    def writes() -> list[str]:
        return [path for _, name, path in tree.calls if name == "put"]

    alone.readers.consume(part("1-0"), 10)
    alone.readers.consume(part("2-0"), 20)
    alone.group.commit()
    assert (committed(tree, "1-0"), committed(tree, "2-0"), committed(tree, "1-1")) == (b"10", b"20", None)
    alone.readers.consume(part("1-0"), 11)
    tree.calls.clear()
    alone.group.commit()
    alone.group.commit()
    assert writes() == ["/consumers/g/offsets/t/1-0"]
    alone.group.commit({part("2-0"): 5})
    assert committed(tree, "2-0") == b"5"
    assert alone.group.committed == {part("1-0"): 11, part("2-0"): 5}
    with pytest.raises(ValueError, match="negative"):
        alone.group.commit({part("2-0"): -1})


def test_offsets_are_read_after_owning(tree: FakeZooKeeper, alone: Member) -> None:
    """9.3 no. 56: what the former owner commits last is where the next one begins."""
    alone.readers.consume(part("2-0"), 10)
    alone.group.commit()
    order: list[tuple[str, str]] = []

    def note(session: FakeSession, name: str, path: str) -> None:
        if path.endswith("/2-0"):
            order.append((name, path.split("/")[3]))

    with fake_member(tree, {"t": 1}, "b") as other:
        alone.settled()
        other.settled()
        assert other.readers.claims[part("2-0")].offset == 10
        tree.before_call = note
    wait_until("a has it again", lambda: "t/2-0" in alone.owned)
    assert order[-1] == ("get", "offsets")
    assert ("create", "owners") in order


def test_a_release_commits_unless_that_is_off(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """9.3 no. 45: off means off. On: the next owner begins where this one stopped."""
    for is_on, expected in ((True, 33), (False, None)):
        with fake_member(tree, {"t": 1}, "a", auto_commit=is_on) as first:
            first.settled().readers.consume(part("2-0"), 33)
            with fake_member(tree, {"t": 1}, "b") as second:
                wait_until("moved", lambda other=second: "t/2-0" in other.owned)  # type: ignore[misc]
                assert second.readers.claims[part("2-0")].offset == expected
                if not is_on:
                    first.settled()
                    with pytest.raises(OwnershipLostError) as raised:
                        first.group.commit()
                    assert raised.value.partitions == (part("2-0"),)
                    first.group.commit()
        tree.remove(offset_path(GROUP, "t", PartitionId(2, 0)))


def test_a_stop_commits_unless_that_is_off(tree: FakeZooKeeper, cluster: Cluster) -> None:
    for is_on, expected in ((False, None), (True, b"33")):
        with fake_member(tree, {"t": 1}, "a", auto_commit=is_on) as member:
            member.settled().readers.consume(part("2-0"), 33)
        assert committed(tree, "2-0") == expected
        member.group.stop()
        with pytest.raises(ClosedError):
            member.group.commit()
        with pytest.raises(ClosedError):
            member.group.commit(wait=False)


def test_auto_commit_writes_by_itself(tree: FakeZooKeeper, cluster: Cluster) -> None:
    with fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=20) as member:
        member.settled().readers.consume(part("2-0"), 33)
        wait_until("committed", lambda: committed(tree, "2-0") == b"33")
        tree.calls.clear()
        time.sleep(0.1)
        assert [path for _, name, path in tree.calls if name == "put"] == []


def test_a_commit_of_what_is_not_owned_is_refused_by_name(tree: FakeZooKeeper, alone: Member) -> None:
    """The others are written."""
    with pytest.raises(OwnershipLostError, match=r"not committed: t/5-5, x/1-0") as raised:
        alone.group.commit({part("1-0"): 5, part("5-5"): 1, part("1-0", "x"): 2})
    assert set(raised.value.partitions) == {part("5-5"), part("1-0", "x")}
    assert committed(tree, "1-0") == b"5"
    assert committed(tree, "5-5") is None


def test_a_failed_commit_is_raised_or_counted(tree: FakeZooKeeper, alone: Member) -> None:
    """Z-21: who waits gets the error; what nobody waits for is counted and logged, not once per commit."""
    tree.refused.add(offset_path(GROUP, "t", PartitionId(1, 0)))
    alone.readers.consume(part("1-0"), 1)
    alone.readers.consume(part("1-1"), 2)
    with pytest.raises(CoordinationError, match="refuses"):
        alone.group.commit()
    assert committed(tree, "1-1") == b"2"
    alone.group.commit(wait=False)
    wait_until("counted", lambda: alone.group.failed_commits == 1)
    tree.refused.clear()
    alone.group.commit()
    assert committed(tree, "1-0") == b"1"


def test_failures_of_auto_commit_are_counted_and_seldom_logged(
    tree: FakeZooKeeper, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore()
    with fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=2, store=store) as member:
        member.settled().readers.consume(part("1-0"), 1)
        store.broken[part("1-0")] = RuntimeError("full")
        wait_until("several", lambda: member.group.failed_commits >= 5)
        assert len([line for line in caplog.messages if "commit_failed" in line]) == 1
        store.broken.clear()
        wait_until("written", lambda: store.offsets.get(part("1-0")) == 1)
        assert len(member.owned) == 4


@pytest.mark.parametrize("by_hand", [False, True])
def test_auto_commits_that_go_on_failing_stop_the_streams(tree: FakeZooKeeper, cluster: Cluster, by_hand: bool) -> None:
    """Z-21: after a limit; a commit that works lets them go on, whoever asked for it."""
    store = FakeStore()
    settings: dict[str, Any] = {"auto_commit": True, "auto_commit_interval_ms": 2, "auto_commit_max_failures": 3}
    with fake_member(tree, {"t": 1}, "a", store=store, **settings) as member:
        member.settled().readers.consume(part("1-0"), 1)
        store.broken[part("1-0")] = RuntimeError("full")
        wait_until("stopped", lambda: member.group.lease.objection is not None)
        assert "3 automatic commits in a row have failed" in str(member.group.lease.objection)
        assert "full" in str(member.group.lease.objection)
        assert member.group.lease.is_valid and len(member.owned) == 4
        store.broken.clear()
        if by_hand:
            member.group.commit()
            assert member.group.lease.objection is None
        wait_until("it goes on", lambda: member.group.lease.objection is None)
        assert store.offsets[part("1-0")] == 1


def test_without_a_limit_failing_auto_commits_stop_nothing(tree: FakeZooKeeper, cluster: Cluster) -> None:
    store = FakeStore()
    settings: dict[str, Any] = {"auto_commit": True, "auto_commit_interval_ms": 1, "auto_commit_max_failures": None}
    with fake_member(tree, {"t": 1}, "a", store=store, **settings) as member:
        member.settled().readers.consume(part("1-0"), 1)
        store.broken[part("1-0")] = RuntimeError("full")
        wait_until("many failures", lambda: member.group.failed_commits >= 15)
        assert member.group.lease.objection is None


def test_one_store_for_all_is_asked_for_every_partition(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """A partition whose offset cannot be had keeps the others from nothing, and comes later."""
    store = FakeStore()
    store.offsets[part("1-1")] = 11
    store.broken[part("1-0")] = RuntimeError("locked")
    with fake_member(tree, {"t": 1}, "a", store=store) as member:
        wait_until("the others", lambda: member.owned == ["t/1-1", "t/2-0", "t/2-1"])
        wait_until("failing", lambda: member.group.state is GroupState.FAILING)
        assert "no offset of t/1-0" in str(member.group.error)
        assert member.readers.claims[part("1-1")].offset == 11
        store.broken.clear()
        assert len(member.settled().owned) == 4
        assert [what for what, partition in member.readers.moves if partition == part("1-1")] == ["take"]


def test_an_offset_that_somebody_else_loaded_is_loaded_again(
    tree: FakeZooKeeper, cluster: Cluster, tmp_path: Path
) -> None:
    """A member that was stopped before it loaded, and woke when it had lost the partition, must not block its owner."""
    with fake_member(tree, {"t": 1}, "a", store=FileOffsets(tmp_path)) as member:
        member.settled().readers.consume(part("1-0"), 5)
        member.group.commit()
        assert FileOffsets(tmp_path).load(GROUP, part("1-0")) == 5
        member.readers.consume(part("1-0"), 9)
        with pytest.raises(OwnershipLostError, match="t/1-0"):
            member.group.commit()
        wait_until(
            "loaded again", lambda: member.readers.moves[-2:] == [("release", part("1-0")), ("take", part("1-0"))]
        )
        assert member.settled().readers.claims[part("1-0")].offset == 5
        member.readers.consume(part("1-0"), 9)
        member.group.commit()
        assert member.group.committed[part("1-0")] == 9


def test_a_transaction_that_was_fenced_lets_the_owner_load_again(
    tree: FakeZooKeeper, cluster: Cluster, tmp_path: Path
) -> None:
    """The same where the program saves: what it has in hand is left out until the partition begins anew."""
    tree.timeout = 0.4  # so that the worker looks up every tenth of a second

    def store() -> DatabaseOffsets:
        return DatabaseOffsets(lambda: sqlite3.connect(tmp_path / "offsets.db"))

    class Batch(list[bytes]):
        source, offset, next_offset = part("1-0"), 0, 5

    mine = store()
    with contextlib.closing(sqlite3.connect(tmp_path / "offsets.db")) as connection:
        once = mine.exactly_once(connection, GROUP)
        with fake_member(tree, {"t": 1}, "a", store=mine) as member:
            member.settled()
            store().load(GROUP, part("1-0"))
            moves = len(member.readers.moves)
            with pytest.raises(OwnershipLostError), once(Batch([b"x"])):
                pass
            wait_until("loaded again", lambda: len(member.readers.moves) == moves + 2)
            with once(Batch([b"x"])) as fresh:
                assert fresh == [b"x"]
            assert store().load(GROUP, part("1-0")) == 5


def test_an_offset_that_makes_no_sense_is_not_taken_for_none(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """T-29: offsets are never silently reset; -1 is what 0.7 writes when it has none."""
    tree.write(offset_path(GROUP, "t", PartitionId(1, 0)), b"soon")
    tree.write(offset_path(GROUP, "t", PartitionId(1, 1)), b"-1")
    with fake_member(tree, {"t": 1}, "a") as member:
        wait_until("the others", lambda: member.owned == ["t/1-1", "t/2-0", "t/2-1"])
        assert member.readers.claims[part("1-1")].offset is None
        assert "/consumers/g/offsets/t/1-0" in str(member.group.error)
        tree.write(offset_path(GROUP, "t", PartitionId(1, 0)), b"12")
        member.settled()
        assert member.readers.claims[part("1-0")].offset == 12


def test_a_jump_is_kept_beside(tree: FakeZooKeeper, alone: Member) -> None:
    alone.group.note_jump(part("1-0"), 100, 900)
    wait_until("written", lambda: tree.shown().get("/consumers/g/fastlog/lost/t/1-0") == b"100 900")


def test_a_stop_does_not_wait_for_a_zookeeper_that_is_gone(tree: FakeZooKeeper, cluster: Cluster) -> None:
    with fake_member(tree, {"t": 1}, "a", auto_commit=True) as member:
        member.settled().readers.consume(part("1-0"), 1)
        tree.is_silent = True
        with sooner_than(PATIENCE):
            member.group.stop()
    assert member.readers.claims == {}


def test_three_members_share_twelve_partitions(tree: FakeZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever comes and goes, in whatever order: everything has one owner, by the formula, once it is quiet."""
    caplog.set_level(logging.WARNING)
    tree.latency = 0.0005
    cluster = Cluster(tree.open())
    cluster.show("t", {0: 4, 1: 4, 2: 4})
    session = tree.open()
    with fake_member(tree, {"t": 1}, "a") as a, fake_member(tree, {"t": 2}, "b") as b:
        with fake_member(tree, {"t": 1}, "c") as c:
            for member in (a, b, c):
                wait_until("shares", lambda: shown_owners(session, ["t"]) == expected_owners(session, ["t"]))
                member.settled()
            assert sorted([*a.owned, *b.owned, *c.owned]) == sorted(f"t/{n}-{p}" for n in range(3) for p in range(4))
        wait_until("two left", lambda: len(a.owned) + len(b.owned) == 12)
        assert shown_owners(session, ["t"]) == expected_owners(session, ["t"])
    assert caplog.messages == []


def test_ids_are_made_as_kafka_makes_them() -> None:
    group = Group(config_of(), Subscription({"t": 1}), FakeReaders())
    assert group.consumer_id.startswith("g_")
    assert group.consumer_id != Group(config_of(), Subscription({"t": 1}), FakeReaders()).consumer_id
    group.stop()
    assert group.state is GroupState.STOPPED

"""Members of a group, with a ZooKeeper and readers in memory: who owns what, and what makes partitions move."""

from __future__ import annotations

import logging
import time

import pytest

from fastlog.consumer.group import Group
from fastlog.consumer.status import GroupState
from fastlog.errors import ConfigError
from fastlog.zkpaths import PartitionId, Subscription, member_path, owner_path
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.groups import (
    GROUP,
    Cluster,
    FakeReaders,
    Member,
    committed,
    config_of,
    expected_owners,
    fake_member,
    part,
    shown_owners,
    wait_until,
)


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
        wait_until("and so has a", lambda: alone.owned == ["t/1-0", "t/1-1"])
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
    wait_until("not all is read", lambda: alone.group.state is GroupState.JOINING)
    assert "t/7-0" not in alone.owned
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
        wait_until("read again", lambda: part("2-0") in member.readers.claims)
        assert member.readers.claims[part("2-0")][:3] == ("g_a-0", ("127.0.0.1", 9002), 77)
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

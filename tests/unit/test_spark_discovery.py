"""Brokers that ZooKeeper shows: found, followed where they go, and still used while ZooKeeper is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.errors import ConfigError, CoordinationError, TransportError
from fastlog.spark import discovery
from fastlog.spark.cluster import PartitionBounds, QueryCluster
from fastlog.spark.discovery import Coordination, RegisteredBrokers
from fastlog.spark.offsets import OffsetRange, encode_initial, encode_ranges
from fastlog.spark.options import parse_options
from fastlog.spark.plans import StreamPlan
from fastlog.spark.progress import GroupProgress
from fastlog.zkpaths import BrokerRegistration, broker_path, holdings_path, member_path, topic_broker_path
from tests.harness.consumers import PAYLOADS, with_log
from tests.harness.fake_broker import FakeBroker
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.spark import MadeUpCluster, MadeUpSpark, partition_of
from tests.harness.timing import patch_time

LOG = pack(PAYLOADS)
T00 = partition_of("t/0-0")
T10 = partition_of("t/1-0")
WHOLE = PartitionBounds(0, len(LOG), len(LOG))


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> FakeZooKeeper:
    monkeypatch.setattr(discovery, "_REOPEN_SECONDS", 0.0)
    return FakeZooKeeper()


def show(tree: FakeZooKeeper, broker: int, address: str, **topics: int) -> None:
    host, _, port = address.rpartition(":")
    tree.write(broker_path(broker), BrokerRegistration("c", host, int(port)).encode())
    for topic, count in topics.items():
        tree.write(topic_broker_path(topic, broker), b"%d" % count)


def cluster_of(tree: FakeZooKeeper, **given: str) -> QueryCluster:
    options = parse_options(
        {
            "zookeeper": "fake:1",
            "fetch.numRetries": "1",
            "fetch.retryIntervalMs": "1",
            "fetch.timeout.ms": "5000",
            **(given or {"subscribePattern": ".*"}),
        },
        streaming=True,
    )
    coordination = Coordination("fake:1", 6.0, tree.open)
    return QueryCluster(options, RegisteredBrokers(coordination, options.retries, options.retry_interval))


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with with_log(LOG) as running:
        yield running


def test_brokers_come_and_go(tree: FakeZooKeeper, fake: FakeBroker) -> None:
    """One that is not shown any more is away: its partitions are neither read nor lost."""
    show(tree, 0, fake.address)
    cluster = cluster_of(tree)
    assert cluster.bounds() == {T00: WHOLE}
    assert (cluster.is_away(0), cluster.is_away(1)) == (False, True)
    with with_log(LOG, own=False) as other:
        show(tree, 1, other.address, t=1)
        assert cluster.bounds() == {T00: WHOLE, T10: WHOLE}
        tree.remove(broker_path(0))
        assert cluster.bounds() == {T10: WHOLE}
        assert cluster.is_away(0)
        assert str(cluster.address(0)) == fake.address
        with pytest.raises(TransportError, match="broker 0 is not registered in ZooKeeper fake:1"):
            cluster.bounds(needed={0, 1})
        show(tree, 0, fake.address)
        assert cluster.bounds(needed={0, 1}).keys() == {T00, T10}
    cluster.close()


@pytest.mark.parametrize("left", ["word", "announced"])
def test_a_broker_that_is_missing(left: str, tree: FakeZooKeeper, fake: FakeBroker) -> None:
    """What it had is known by what it left when it went, whoever was there to see it."""
    show(tree, 0, fake.address, t=1, other=1)
    if left == "word":
        tree.write(holdings_path(1), b'{"other":1,"t":2}')
        tree.write(holdings_path(0), b'{"other":1,"t":1}')
        tree.write(holdings_path(2), b"[" * 100_000)
    else:
        tree.write(topic_broker_path("t", 1), b"2")
    cluster = cluster_of(tree, subscribe="t")
    cluster.bounds()
    assert cluster.missing() == {1: [T10, partition_of("t/1-1")]}
    assert cluster.missing([partition_of("t/4-0"), partition_of("u/5-0")]).keys() == {1, 4}
    with with_log(LOG, own=False) as other:
        show(tree, 1, other.address, t=1)
        cluster.bounds()
        assert cluster.missing() == {}
    cluster.close()


class Clock:
    """Time that passes in pauses alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch_time(monkeypatch, discovery, monotonic=lambda: self.now)
        monkeypatch.setattr(discovery, "pause", self.pass_by)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def test_a_broker_that_had_answered_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With default options for a minute; one that never did for some seconds, and so many times if that is said."""
    for given, answered, least, most in (
        ({}, True, 60, 63),
        ({}, False, 6, 7),
        ({"fetch.retryTimeoutMs": "9s"}, True, 9, 12),
        ({"fetch.numRetries": "2"}, True, 0.6, 0.6),
    ):
        with with_log(LOG) as fake:
            cluster = QueryCluster(parse_options({"brokers": fake.address, "subscribe": "t", **given}, streaming=True))
            if answered:
                cluster.bounds()
        with monkeypatch.context() as patched:
            clock = Clock(patched)
            with pytest.raises(TransportError, match=fake.address):
                cluster.bounds()
            assert least <= round(clock.now - 1000, 3) <= most, given
        cluster.close()
    assert "waiting for it, 60 s more at most" in caplog.text


def test_a_broker_that_moves(tree: FakeZooKeeper, fake: FakeBroker) -> None:
    """It is asked where it is registered now, also when that is noticed only because it does not answer."""
    with with_log(LOG) as old:
        show(tree, 0, old.address)
        cluster = cluster_of(tree)
        assert cluster.bounds() == {T00: WHOLE}
    brokers: Any = cluster._brokers
    look_again = brokers.look_again

    def moved_meanwhile(named: Any) -> Any:
        show(tree, 0, fake.address)
        return look_again(named)

    brokers.look_again = moved_meanwhile
    assert cluster.bounds() == {T00: WHOLE}
    assert str(cluster.address(0)) == fake.address
    cluster.close()


def test_a_dead_broker_that_is_still_shown(tree: FakeZooKeeper, fake: FakeBroker) -> None:
    """While its registration lasts it is tried again; once that is gone the others go on without it."""
    with with_log(LOG) as dead:
        show(tree, 0, fake.address)
        show(tree, 1, dead.address)
        cluster = cluster_of(tree)
    with pytest.raises(TransportError):
        cluster.bounds()
    brokers: Any = cluster._brokers
    look_again = brokers.look_again

    def gone_meanwhile(named: Any) -> Any:
        tree.remove(broker_path(1))
        return look_again(named)

    brokers.look_again = gone_meanwhile
    assert cluster.bounds() == {T00: WHOLE}
    assert cluster.is_away(1)
    assert cluster.missing() == {1: []}
    cluster.close()


def test_topics_of_plain_brokers_are_those_that_are_announced(tree: FakeZooKeeper) -> None:
    """A broker of Kafka 0.7 tells nothing itself, so there a subscription needs ZooKeeper."""
    with with_log(LOG, own=False) as plain:
        show(tree, 7, plain.address, t=1, other=2)
        cluster = cluster_of(tree, subscribe="t")
        assert cluster.bounds() == {partition_of("t/7-0"): WHOLE}
        tree.is_silent = True
        assert cluster.bounds() == {partition_of("t/7-0"): WHOLE}
        cluster.close()


def test_zookeeper_is_away(tree: FakeZooKeeper, fake: FakeBroker) -> None:
    """Who never saw it says so; who did goes on with what it saw, also when all that is registered has vanished."""
    tree.is_silent = True
    with pytest.raises(CoordinationError, match="no ZooKeeper answers"):
        cluster_of(tree).bounds()
    tree.is_silent = False
    with pytest.raises(TransportError, match="no broker is registered in ZooKeeper fake:1"):
        cluster_of(tree).bounds()
    show(tree, 0, fake.address)
    cluster = cluster_of(tree)
    assert cluster.bounds() == {T00: WHOLE}
    tree.is_silent = True
    for number in list(tree.sessions):
        tree.expire(number)
    assert cluster.bounds() == {T00: WHOLE}
    tree.is_silent = False
    tree.remove(broker_path(0))
    assert cluster.bounds() == {T00: WHOLE}
    with with_log(LOG, own=False) as other:
        show(tree, 1, other.address, t=1)
        assert cluster.bounds() == {T10: WHOLE}
    cluster.close()


def test_each_time_that_zookeeper_shows_nothing_is_said_once(
    tree: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """It is away, shows no broker, or one has left: however often that is looked at, and again the next time."""
    for broker in range(2):
        show(tree, broker, f"h:{broker + 1}")
    found = RegisteredBrokers(Coordination("fake:1", 6.0, tree.open), 0, 0.001)
    both = found.look()
    assert [named.broker for named in both] == [0, 1]

    def said(said_by: list[str]) -> int:
        """How many lines of three looks have these words."""
        caplog.clear()
        for _ in range(3):
            found.look()
        return sum(all(word in line for word in said_by) for line in caplog.messages)

    for _ in range(2):
        tree.is_silent = True
        for number in list(tree.sessions):
            tree.expire(number)
        assert said(["the brokers last seen stay in use"]) == 1 and found.look() == both
        tree.is_silent = False
        assert said(["last seen"]) == 0
        for broker in range(2):
            tree.remove(broker_path(broker))
        assert said(["no broker is registered", "the brokers last seen stay in use"]) == 1 and found.look() == both
        show(tree, 0, "h:1")
        assert said(["broker 1 is not registered any more"]) == 1 and found.look() == both[:1]
        show(tree, 1, "h:2")
        assert said([]) == 0 and found.look() == both


# -- what a stream makes of it -----------------------------------------------------------------------------------------


def test_a_stream_waits_for_what_a_broker_has() -> None:
    """It goes on with the others, keeps the place of what is away, and reads it when it is back."""
    cluster = MadeUpCluster(t_0_0=[10, 10], t_1_0=[10, 10])
    options = parse_options({"brokers": "h", "subscribe": "t", "startingOffsets": "earliest"}, streaming=True)
    spark = MadeUpSpark(cluster, lambda: StreamPlan(options, cluster))  # type: ignore[arg-type]
    spark.run()
    cluster.append("t/0-0", 10)
    cluster.append("t/1-0", 10)
    cluster.away.add(1)
    spark.run()
    assert [row for row in spark.all_rows if row[0] == T10] == [(T10, 0), (T10, 10)]
    assert (T00, 20) in spark.all_rows
    spark.ends.append(json.dumps(encode_ranges({T00: OffsetRange(30, 30), T10: OffsetRange(20, 30)})))
    with pytest.raises(TransportError):
        spark.run()  # a batch that was begun is read as it was, or not at all
    cluster.away.clear()
    spark.run()
    assert len(spark.all_rows) == len(set(spark.all_rows)) == 6


# -- a query shown as a group ------------------------------------------------------------------------------------------


def test_progress_is_shown_where_groups_keep_theirs(tree: FakeZooKeeper) -> None:
    """Once for each end, however often and late Spark says it; never backwards."""
    progress = GroupProgress(Coordination("fake:1", 6.0, tree.open), "g")
    progress.check()
    ends = [encode_ranges({T00: OffsetRange(0, end), T10: OffsetRange(5, 5)}) for end in (100, 200)]
    progress.show(encode_initial(parse_options({"brokers": "h", "subscribe": "t"}, streaming=True).starting))
    assert not tree.shown("/consumers")
    for end in (ends[0], ends[0], ends[1], ends[0]):
        progress.show(end)
    found = {path: data for path, data in tree.shown("/consumers/g/offsets/t/").items()}
    assert found == {"/consumers/g/offsets/t/0-0": b"200", "/consumers/g/offsets/t/1-0": b"5"}
    writes = [call for call in tree.calls if call[1] in ("put", "set", "create")]
    assert len(writes) == 3, "twice the first, once the second"


def test_progress_does_not_end_a_query(tree: FakeZooKeeper) -> None:
    """ZooKeeper away: it is shown later."""
    tree.is_silent = True
    progress = GroupProgress(Coordination("fake:1", 6.0, tree.open), "g")
    progress.check()
    end = encode_ranges({T00: OffsetRange(0, 100)})
    progress.show(end)
    tree.is_silent = False
    progress.show(end)
    assert tree.shown()["/consumers/g/offsets/t/0-0"] == b"100"


def test_the_offsets_of_consumers_are_not_overwritten(tree: FakeZooKeeper) -> None:
    coordination = Coordination("fake:1", 6.0, tree.open)
    progress = GroupProgress(coordination, "g")
    tree.write(member_path("g", "c1"), b"{}")
    with pytest.raises(ConfigError, match=r"group: 'g' has consumers \(c1\) whose offsets would be overwritten"):
        progress.check()
    progress.show(encode_ranges({T00: OffsetRange(0, 100)}))
    assert not tree.shown("/consumers/g/offsets")


def test_progress_in_a_log_that_was_made_anew_goes_back_once(tree: FakeZooKeeper) -> None:
    """Offsets of the new one are smaller; what Spark says late of a log that is not known changes nothing."""
    progress = GroupProgress(Coordination("fake:1", 6.0, tree.open), "g")
    shown: list[bytes] = []
    for end, made in ((200, 1), (50, 2), (40, 2), (45, 0), (60, 2)):
        progress.show(encode_ranges({T00: OffsetRange(0, end)}, {T00: made}))
        shown.append(tree.shown()["/consumers/g/offsets/t/0-0"])
    assert shown == [b"200", b"50", b"50", b"50", b"60"]


def test_progress_is_shown_again_once_consumers_have_left(
    tree: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    progress = GroupProgress(Coordination("fake:1", 6.0, tree.open), "g")
    end = encode_ranges({T00: OffsetRange(0, 100)})
    tree.write(member_path("g", "c1"), b"{}")
    progress.show(end)
    assert caplog.messages == ["group g has consumers now: the query's progress is not shown"]
    tree.remove(member_path("g", "c1"))
    progress.show(end)
    assert tree.shown()["/consumers/g/offsets/t/0-0"] == b"100"

"""What an audit reads of a cluster: which partitions, from where to where, and what retention took meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.audit.cluster import AuditedCluster, PartitionRange
from fastlog.client.addresses import Address
from fastlog.coordination import zookeeper
from fastlog.errors import AuditError, BrokerError, ConfigError, TransportError, WrongPartitionError
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker
from tests.harness.fake_session import FakeZooKeeper
from tests.unit.test_audit_compare import SEEN, SENT
from tests.unit.test_producer_discovery import show
from tests.unit.test_tally import payload

SIZE = len(pack([payload(1, 0)]))


def numbers(*found: int, producer: int = 1) -> bytes:
    """A message set with these numbers; each message has the same size."""
    return bytes(pack([payload(producer, number) for number in found]))


@pytest.fixture
def brokers() -> Iterator[Callable[..., FakeBroker]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(FakeBroker(**options))


def cluster_of(*found: FakeBroker) -> AuditedCluster:
    return AuditedCluster(brokers=",".join(f"127.0.0.1:{broker.port}" for broker in found), timeout=10.0)


def places(cluster: AuditedCluster, topic: str = "t") -> list[tuple[int, int, int, int]]:
    return [(place.address.port, *place[1:]) for place in cluster.places(topic)]


def described(broker: FakeBroker, *changes: dict[str, Any], **of_topic: Any) -> Any:
    """A hook that changes what the broker says of the partitions of its topics, in their order, and of the topics."""

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.MetadataRequest):
            return None
        answer = rs.decode_metadata(broker._metadata(request)[4:])
        topics = tuple(
            topic._replace(
                partitions=tuple(
                    partition._replace(**change)
                    for partition, change in zip(topic.partitions, (*changes, *[{}] * 99), strict=False)
                ),
                **of_topic,
            )
            for topic in answer.topics
        )
        return rs.encode_metadata(answer._replace(topics=topics), request.version)

    return hook


# -- partitions --------------------------------------------------------------------------------------------------------


def test_every_partition_of_every_broker(brokers: Callable[..., FakeBroker]) -> None:
    """Of this topic alone, from the start to the end of the log."""
    one, two = brokers(partitions=2), brokers()
    one.logs = {("t", 0): numbers(0), ("t", 1): numbers(0, 1), ("u", 0): numbers(0)}
    two.logs["t", 0] = b""
    cluster = cluster_of(one, two)
    assert places(cluster) == [(one.port, 0, 0, SIZE), (one.port, 1, 0, 2 * SIZE), (two.port, 0, 0, 0)]
    assert next(iter(cluster.places("u"))) == PartitionRange(Address("127.0.0.1", one.port), 0, 0, SIZE)
    assert cluster.places("v") == []


def test_it_ends_where_the_log_does_and_where_nothing_can_be_appended_at_what_is_shown(
    brokers: Callable[..., FakeBroker],
) -> None:
    broker = brokers(partitions=2)
    broker.logs = {("t", 0): numbers(0, 1, 2), ("t", 1): numbers(0, 1, 2)}
    change = {"log_start": 7, "high_watermark": 50, "log_end": 90}
    broker.hook = described(broker, change, {**change, "state": rs.STATE_OK + 1})
    assert places(cluster_of(broker)) == [(broker.port, 0, 7, 90), (broker.port, 1, 7, 50)]


def test_a_topic_that_cannot_be_told_of(brokers: Callable[..., FakeBroker]) -> None:
    broker = brokers()
    broker.logs["t", 0] = numbers(0)
    broker.hook = described(broker, error=3)
    with pytest.raises(WrongPartitionError, match="t"):
        cluster_of(broker).places("t")


def test_a_broker_that_is_named_twice(brokers: Callable[..., FakeBroker]) -> None:
    """By two addresses: its messages would all be duplicates. Two brokers of the same id are two."""
    one, two = brokers(), brokers()
    with pytest.raises(ConfigError, match="the same broker"):
        AuditedCluster(brokers=f"127.0.0.1:{one.port},localhost:{one.port}", timeout=10.0).places("t")
    cluster_of(one, two).places("t")


@pytest.mark.parametrize("given", [{}, {"brokers": "a:1", "zookeeper": "b:2"}])
def test_a_cluster_is_one_thing(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        AuditedCluster(**given)


def test_brokers_that_do_not_tell_and_that_are_away(brokers: Callable[..., FakeBroker]) -> None:
    plain = brokers(own=False)
    with pytest.raises(ConfigError, match="find it by ZooKeeper"):
        cluster_of(plain).places("t")
    with FakeBroker() as away:
        pass
    with pytest.raises(TransportError):
        cluster_of(away).places("t")


# -- events ------------------------------------------------------------------------------------------------------------


def test_what_the_audit_topic_held_when_the_reading_began(brokers: Callable[..., FakeBroker]) -> None:
    """Partition by partition and in order; what makes no sense is counted, what is none is passed over."""
    broker = brokers(partitions=2)
    later = SEEN._replace(stage="later")
    broker.logs["audit", 0] = bytes(pack([SENT.encode(), b"no event", SEEN.encode(), b'{"x": 1}', b"[]"]))
    broker.logs["audit", 1] = bytes(pack([later.encode()]))

    def after(request: rq.Request) -> None:
        if isinstance(request, rq.MetadataRequest) and request.topics == ("audit",):
            broker.logs["audit", 0] += bytes(pack([later.encode(), b"no event"]))

    broker.after = after
    assert cluster_of(broker).events("audit") == ([[SENT, SEEN], [later]], 2)
    assert cluster_of(broker).events("elsewhere") == ([], 0)


# -- counting ----------------------------------------------------------------------------------------------------------


def test_all_partitions_are_counted_together(brokers: Callable[..., FakeBroker]) -> None:
    """Over all brokers; a message that is in two of them is there twice."""
    one, two = brokers(partitions=2), brokers()
    one.logs = {("t", 0): numbers(0, 1), ("t", 1): numbers(2)}
    two.logs["t", 0] = numbers(1, 3)
    for lags in (False, True):
        stage = cluster_of(one, two).count("copy", "t", 1000, lags=lags)
        assert (stage.name, stage.topic, stage.lags, stage.first_kept) == ("copy", "t", lags, None)
        assert [cell[2:] for cell in stage.tally.cells()] == [(0, 5, 1)]
        assert (stage.tally.seen(1, 0, 3), stage.tally.unwrapped) == (4, 0)


def trimmed(broker: FakeBroker, *starts: int) -> None:
    """The first bytes of partitions are gone: neither told of nor given out."""
    tells = described(broker, *({"log_start": start} for start in starts))

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest) and request.offset < starts[request.partition]:
            end = len(broker.logs[request.topic, request.partition])
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 1, end, 0))
        if isinstance(request, wire07.FetchRequest) and request.offset < starts[request.partition]:
            return wire07.encode_fetch(1)
        if isinstance(request, rq.OffsetsRequest) and request.time == rq.TIME_EARLIEST:
            return rs.encode_offsets(0, [starts[request.partition]])
        return tells(request)

    broker.hook = hook


@pytest.mark.parametrize(
    ("removed", "kept"),
    [
        ((0, 0), None),
        ((2, 0), {1: 2, 2: 5}),
        ((0, 1), {1: 11}),
        ((2, 1), {1: 11}),
        ((4, 0), {2: 5}),
        ((6, 0), {}),
    ],
)
def test_from_which_number_on_nothing_was_removed(
    brokers: Callable[..., FakeBroker], removed: tuple[int, int], kept: dict[int, int] | None
) -> None:
    """In partitions that do not begin at their beginning: the highest first number, of who is in all of these."""
    broker = brokers(partitions=2)
    broker.logs["t", 0] = numbers(0, 1, 2, 3) + numbers(5, 6, producer=2)
    broker.logs["t", 1] = numbers(10, 11, 12)
    trimmed(broker, *(entries * SIZE for entries in removed))
    stage = cluster_of(broker).count("brokers", "t", 1000)
    assert stage.first_kept == kept
    assert stage.tally.messages == 9 - sum(removed)


def test_what_retention_takes_while_it_is_read_was_removed(brokers: Callable[..., FakeBroker]) -> None:
    """The log began at its beginning when it was asked; what is read again from the new start counts once."""
    broker = brokers()
    broker.logs["t", 0] = numbers(0, 1, 2, 3)
    trimmed(broker, 2 * SIZE)
    hook = broker.hook
    assert hook is not None
    broker.hook = lambda request: None if isinstance(request, rq.MetadataRequest) else hook(request)
    stage = cluster_of(broker).count("brokers", "t", 1000)
    assert stage.first_kept == {1: 2}
    assert (stage.tally.messages, stage.tally.seen(1, 2, 3)) == (2, 2)


def test_what_retention_takes_from_the_middle_is_not_missing(brokers: Callable[..., FakeBroker]) -> None:
    """Two messages were read, then the next two were gone: nothing before the fifth is judged."""
    broker = brokers()
    broker.logs["t", 0] = numbers(0, 1, 2, 3, 4, 5)

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest) and request.offset < 4 * SIZE:
            data = numbers(0, 1) if not request.offset else b""
            answer = rs.HeldFetchAnswer(request.correlation_id, 0 if data else 1, 6 * SIZE, 0, data)
            return wire07.encode_held_fetch(answer)
        if isinstance(request, rq.OffsetsRequest):
            return rs.encode_offsets(0, [4 * SIZE])
        return None

    broker.hook = hook
    stage = cluster_of(broker).count("brokers", "t", 1000)
    assert stage.first_kept == {1: 4}
    assert (stage.tally.messages, stage.tally.seen(1, 0, 5)) == (4, 4)


@pytest.mark.parametrize("start", [[], [0]])
def test_an_offset_that_the_broker_neither_has_nor_has_removed(
    brokers: Callable[..., FakeBroker], start: list[int]
) -> None:
    """It says that nothing before it was removed: then something else is wrong, and it is not asked in a circle."""
    broker = brokers()
    broker.logs["t", 0] = numbers(0, 1)

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest):
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 1, 0, 0))
        if isinstance(request, wire07.FetchRequest):
            return wire07.encode_fetch(1)
        if isinstance(request, rq.OffsetsRequest):
            return rs.encode_offsets(0, start)
        return None

    broker.hook = hook
    with pytest.raises(BrokerError):
        cluster_of(broker).count("brokers", "t", 1000)


def test_a_log_that_came_down_meanwhile_ends_there(brokers: Callable[..., FakeBroker]) -> None:
    broker = brokers()
    broker.logs["t", 0] = numbers(0, 1)
    hooks = [described(broker, {"log_end": 10 * SIZE})]

    def hook(request: rq.Request) -> bytes | None:
        return hooks.pop()(request) if hooks and isinstance(request, rq.MetadataRequest) else None

    broker.hook = hook
    stage = cluster_of(broker).count("brokers", "t", 1000)
    assert (stage.tally.messages, stage.first_kept) == (2, None)


def test_a_log_that_grows_meanwhile_is_not_followed_for_ever(brokers: Callable[..., FakeBroker]) -> None:
    """Each fetch finds another message: what was there when it was asked is counted, and not more than one piece."""
    broker = brokers()
    broker.logs["t", 0] = numbers(0, 1)

    def after(request: rq.Request) -> None:
        if isinstance(request, wire07.HeldFetchRequest | wire07.FetchRequest):
            broker.logs["t", 0] += numbers(len(broker.logs["t", 0]) // SIZE)

    broker.after = after
    stage = cluster_of(broker).count("brokers", "t", 1000)
    assert 2 <= stage.tally.messages <= 3
    assert stage.tally.seen(1, 0, 1) == 2


def test_a_partition_that_was_empty_when_it_was_asked_is_not_read(brokers: Callable[..., FakeBroker]) -> None:
    """What came since then belongs to the next count, and nobody asks for it."""
    broker = brokers()
    broker.logs["t", 0] = numbers(0, 1)
    broker.hook = described(broker, {"log_end": 0})
    stage = cluster_of(broker).count("brokers", "t", 1000)
    assert stage.tally.messages == 0
    assert not broker.seen["HeldFetchRequest"] and not broker.seen["FetchRequest"]


# -- brokers that ZooKeeper shows --------------------------------------------------------------------------------------


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> FakeZooKeeper:
    """What every session sees; ``sessions`` has those that are open."""
    made = FakeZooKeeper()
    monkeypatch.setattr(zookeeper, "ZooKeeperSession", lambda connect, **options: made.open())
    return made


def test_brokers_come_in_the_order_of_their_ids(tree: FakeZooKeeper, brokers: Callable[..., FakeBroker]) -> None:
    """Those that do not tell their partitions have as many as ZooKeeper shows; no session is left."""
    own, plain = brokers(partitions=2), brokers(own=False, partitions=3)
    own.logs["t", 1] = numbers(0)
    plain.logs = {("t", 0): numbers(1), ("t", 2): numbers(2, 3)}
    session = tree.open()
    show(session, 9, own.port, t=2)
    show(session, 3, plain.port, t=3)
    cluster = AuditedCluster(zookeeper="zk:1", timeout=10.0)
    assert places(cluster) == [
        (plain.port, 0, 0, SIZE), (plain.port, 1, 0, 0), (plain.port, 2, 0, 2 * SIZE), (own.port, 1, 0, SIZE),
    ]  # fmt: skip
    assert list(tree.sessions) == [session.id]
    stage = cluster.count("brokers", "t", 1000)
    assert (stage.tally.messages, stage.tally.seen(1, 0, 3), stage.first_kept) == (4, 4, None)
    assert places(cluster, "nothing") == []


def test_no_broker_and_nodes_without_sense(tree: FakeZooKeeper) -> None:
    cluster = AuditedCluster(zookeeper="zk:1", timeout=10.0)
    with pytest.raises(ConfigError, match="no broker is registered at zk:1"):
        cluster.places("t")
    tree.write("/brokers/ids/0", b"nonsense")
    with pytest.raises(AuditError, match="/brokers/ids/0 in ZooKeeper is malformed"):
        cluster.places("t")
    assert not tree.sessions

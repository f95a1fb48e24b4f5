"""Which partitions a mirror writes to: those of a list, and those that ZooKeeper shows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fastlog.mirror import MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.mirror.pieces import TargetPartition
from fastlog.mirror.target import FoundTarget, ListedTarget
from fastlog.zkpaths import encode_number, topic_broker_path
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.timing import PATIENCE
from tests.unit.test_producer_discovery import opener, show


def config(target: dict[str, str], **settings: str) -> MirrorConfig:
    """With a source that is never read."""
    names = {"mirror.topics.whitelist": "t", **{name.replace("_", "."): value for name, value in settings.items()}}
    return MirrorConfig(
        sources=(SourceConfig.from_properties("s", {"zk.connect": "a:1", "groupid": "g"}),),
        target=TargetConfig.from_properties(target),
        settings=MirrorSettings.from_properties(names),
    )


@contextmanager
def found_in(tree: FakeZooKeeper, **settings: str) -> Iterator[FoundTarget]:
    """The target that a ZooKeeper shows; ends what it started."""
    given = {"zk.connect": "fake:1", "zk.synctime.ms": "50", "connect.timeout.ms": "2000"}
    made = FoundTarget(config(given, **settings), lambda: None, opener(tree))
    try:
        yield made
    finally:
        made.stop()


def wait_for(target: ListedTarget | FoundTarget, topic: str, wanted: list[TargetPartition]) -> None:
    """The partitions of a topic, once they are these."""
    wait_until(f"{topic} has {wanted}", lambda: target.partitions(topic) == wanted, 20.0)


def places(*counts: tuple[int, int]) -> list[TargetPartition]:
    return [TargetPartition(broker, number) for broker, count in counts for number in range(count)]


@pytest.mark.parametrize("own", [True, False])
def test_the_brokers_of_a_list(own: bool) -> None:
    """In the order of their ids; plain 0.7 does not tell how many partitions it has."""
    with FakeBroker(own=own, partitions=2) as one, FakeBroker(own=own, partitions=3) as two:
        listed = f"10:127.0.0.1:{one.port},2:127.0.0.1:{two.port}"
        target = ListedTarget(config({"broker.list": listed}), lambda: None)
        assert sorted(target.addresses()) == [2, 10]
        wait_for(target, "t", places((2, 3), (10, 2)) if own else places((2, 1), (10, 1)))
        target.stop()


def test_whoever_waits_for_a_topic_is_told_once_it_is_known() -> None:
    told = threading.Event()
    with FakeBroker(partitions=2) as broker:
        target = ListedTarget(config({"broker.list": f"1:{broker.address}"}), told.set)
        assert target.partitions("t") is None
        assert told.wait(PATIENCE)
        assert target.partitions("t") == places((1, 2))
        target.stop()


def test_a_broker_of_a_list_that_is_away_is_not_waited_for_for_ever() -> None:
    with FakeBroker(partitions=2) as one, FakeBroker() as gone:
        listed = f"0:127.0.0.1:{one.port},1:127.0.0.1:{gone.port}"
        gone.__exit__(None, None, None)
        target = ListedTarget(config({"broker.list": listed, "connect.timeout.ms": "200"}), lambda: None)
        assert target.partitions("t") is None
        wait_for(target, "t", places((0, 2)))
        target.stop()


def test_a_new_topic_is_made_before_anything_is_sent() -> None:
    """Otherwise the first messages would all go to partition 0."""
    tree = FakeZooKeeper(timeout=0.5)
    session = tree.open()

    def announced(request: object) -> bytes | None:
        if type(request).__name__ == "CreateTopicRequest":
            session.create(topic_broker_path("t", 4), encode_number(3), ephemeral=True)
        return None

    with FakeBroker(partitions=3, after=announced) as broker:
        show(session, 4, broker.port)
        with found_in(tree) as target:
            wait_for(target, "t", places((4, 3)))
            assert broker.seen["CreateTopicRequest"] == 1


def test_a_plain_broker_is_not_waited_for_to_announce_a_topic() -> None:
    """It makes it with the first message, which is sent as soon as it has said that it is plain."""
    tree = FakeZooKeeper(timeout=0.5)
    given = {"zk.connect": "fake:1", "zk.synctime.ms": "50", "connect.timeout.ms": str(round(10 * PATIENCE * 1000))}
    with FakeBroker(own=False) as broker:
        show(tree.open(), 4, broker.port)
        target = FoundTarget(config(given), lambda: None, opener(tree))
        try:
            wait_for(target, "t", places((4, 1)))
        finally:
            target.stop()


def test_a_topic_that_some_have_is_not_made_on_others() -> None:
    tree = FakeZooKeeper(timeout=0.5)
    session = tree.open()
    with FakeBroker(partitions=3) as broker:
        show(session, 1, broker.port, t=2)
        show(session, 2, broker.port)
        with found_in(tree) as target:
            wait_for(target, "t", places((1, 2)))
            assert broker.seen["CreateTopicRequest"] == 0


@pytest.mark.parametrize("grace", ["0", "600000"])
def test_a_broker_that_has_gone_keeps_its_part_for_a_while(grace: str) -> None:
    tree = FakeZooKeeper(timeout=0.5)
    first, second = tree.open(), tree.open()
    with FakeBroker(partitions=2) as broker:
        show(first, 1, broker.port, t=2)
        show(second, 2, broker.port, t=2)
        with found_in(tree, mirror_gone_broker_ms=grace) as target:
            wait_for(target, "t", places((1, 2), (2, 2)))
            first.close()
            wait_until("broker 1 went", lambda: list(target.addresses()) == [2])
            wait_for(target, "t", places((2, 2)) if grace == "0" else places((1, 2), (2, 2)))
            assert target.directory(1).broker.id == 1

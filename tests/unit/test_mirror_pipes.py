"""The connections of a mirror: how many, shared by whom, when they move and end; and what a target knows of topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.client.addresses import Address
from fastlog.consumer._delivery import Place
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ClosedError, TransportError
from fastlog.mirror import target as target_module
from fastlog.mirror.counting import Counting
from fastlog.mirror.pieces import MirrorPiece, TargetPartition
from fastlog.mirror.target import Pipes
from fastlog.producer.brokers import BrokerAddress, Directory
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.zkpaths import PartitionId, encode_number, topic_broker_path
from tests.harness import raw_format as raw
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stalled
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.timing import PATIENCE, patch_time
from tests.unit.test_mirror_target import config, found_in, places, wait_for
from tests.unit.test_producer_discovery import show


class Target:
    """Brokers by id, as far as connections ask."""

    def __init__(self, **ports: int) -> None:
        self.directories = {
            int(name[1:]): Directory(BrokerAddress(int(name[1:]), Address("127.0.0.1", port)), 5.0, "a hint")
            for name, port in ports.items()
        }

    def directory(self, broker: int) -> Directory:
        return self.directories[broker]


@pytest.fixture
def pipes_of() -> Iterator[Callable[..., Pipes]]:
    """Makes connections to a target; all of them end."""
    made: list[Pipes] = []

    def make(target: Any, producers: int = 1) -> Pipes:
        given = config({"broker.list": "0:127.0.0.1:1"}, mirror_producer_numthreads=str(producers))
        made.append(Pipes(given, target, lambda: None))
        return made[-1]

    yield make
    for pipes in made:
        pipes.stop(30.0)


@pytest.mark.parametrize("producers", [1, 2, 3])
def test_so_many_connections_to_each_broker(pipes_of: Callable[..., Pipes], producers: int) -> None:
    """Shared by partitions in turn."""
    with FakeBroker() as one, FakeBroker() as two:
        pipes = pipes_of(Target(b1=one.port, b2=two.port), producers)
        found = [pipes.get(broker, number) for broker in (1, 2) for number in range(6)]
        assert len(set(found)) == 2 * producers
        for number, pipe in enumerate(found[:6]):
            assert pipe is found[number % producers]
            assert pipe.directory.broker.id == 1
        assert found[6].directory.broker.id == 2
        assert found[0].directory.connector.hint == "a hint"


def test_the_end_waits_for_what_is_told_last(pipes_of: Callable[..., Pipes]) -> None:
    release, settled = threading.Event(), list[object]()

    def settle(piece: MirrorPiece, error: object) -> None:
        time.sleep(0.05)
        settled.append(error)

    with FakeBroker(hook=stalled(release)) as broker:
        pipes = pipes_of(Target(b1=broker.port))
        place = Place(TopicPartition("s", PartitionId(0, 0)), 0, by_hand=True)
        data = memoryview(raw.message_set([b"x"]))
        pipes.get(1, 0).submit(MirrorPiece(place, "t", 0, data, 1, TargetPartition(1, 0), settle))
        wait_until("it is on its way", lambda: broker.seen["ProduceAckRequest"])
        pipes.stop(PATIENCE)
        release.set()
        assert [type(error) for error in settled] == [ClosedError]


def test_one_that_nobody_asks_for_is_let_go_of(pipes_of: Callable[..., Pipes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind thirty seconds, not at thirty; the next who asks gets another one."""
    now = [1000.0]
    patch_time(monkeypatch, target_module, monotonic=lambda: now[0])
    with FakeBroker() as one, FakeBroker() as two:
        pipes = pipes_of(Target(b1=one.port, b2=two.port))
        first, second = pipes.get(1, 0), pipes.get(2, 0)
        now[0] += 30.0
        pipes.sweep()
        assert pipes.get(2, 0) is second
        now[0] += 0.5
        pipes.sweep()
        first.join(30.0)
        assert not first._thread.is_alive()
        assert pipes.get(2, 0) is second
        assert second._thread.is_alive()
        assert pipes.get(1, 0) is not first


def test_a_broker_that_moves_is_followed(pipes_of: Callable[..., Pipes]) -> None:
    with FakeBroker() as one, FakeBroker() as two:
        target = Target(b1=one.port)
        pipes = pipes_of(target)
        pipe = pipes.get(1, 0)
        wait_until("it is connected", lambda: pipe.is_connected)
        target.directories[1].move(Address("127.0.0.1", two.port))
        assert pipes.get(1, 0) is pipe
        # again and again: the broker's end of a connection may not be there yet
        wait_until("it is there", lambda: one.cut() or two.seen["MetadataRequest"])
        assert pipe.directory.broker.address.port == two.port


def test_errors_are_a_line_for_each_broker(pipes_of: Callable[..., Pipes]) -> None:
    with FakeBroker() as one, FakeBroker() as gone:
        port = gone.port
        gone.__exit__(None, None, None)
        pipes = pipes_of(Target(b1=one.port, b2=port), 2)
        found = [pipes.get(broker, number) for broker in (1, 2) for number in range(2)]
        wait_until("they tried", lambda: found[2].error and found[3].error and found[0].is_connected)
        (line,) = pipes.errors
        assert line.startswith(f"broker 2 at 127.0.0.1:{port}: ")
        assert "\n" not in line


def test_what_was_sent_unanswered_is_remembered(
    pipes_of: Callable[..., Pipes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the connection has been let go of."""
    now = [1000.0]
    with FakeBroker() as own, FakeBroker(own=False) as plain:
        pipes = pipes_of(Target(b1=own.port, b2=plain.port))
        one = pipes.get(1, 0)
        wait_until("it is connected", lambda: one.is_connected)
        assert pipes.are_acknowledged
        two = pipes.get(2, 0)
        wait_until("it is connected", lambda: two.is_connected)
        patch_time(monkeypatch, target_module, monotonic=lambda: now[0] + 10**9)
        pipes.sweep()
        assert not pipes.are_acknowledged
        assert not pipes.are_acknowledged


# -- topics ------------------------------------------------------------------------------------------------------------


def test_a_broker_that_refuses_to_make_a_topic_is_asked_until_it_does() -> None:
    tree = FakeZooKeeper(timeout=0.5)
    session = tree.open()
    refused = [2]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.CreateTopicRequest) and refused[0]:
            refused[0] -= 1
            return rs.encode_create_topic(rs.CreateTopicAnswer(request.correlation_id, 103, 0))
        return None

    def after(request: rq.Request) -> None:
        if isinstance(request, rq.CreateTopicRequest):
            show_topic(session, 4, 2)

    with FakeBroker(partitions=2, hook=hook, after=after) as broker:
        show(session, 4, broker.port)
        with found_in(tree) as target:
            wait_for(target, "t", places((4, 2)))
            assert broker.seen["CreateTopicRequest"] == 3


def show_topic(session: Any, broker: int, count: int) -> None:

    session.create(topic_broker_path("t", broker), encode_number(count), ephemeral=True)


def test_a_plain_broker_makes_a_topic_with_the_first_message() -> None:
    tree = FakeZooKeeper(timeout=0.5)
    session = tree.open()
    with FakeBroker(own=False) as broker:
        show(session, 4, broker.port)
        with found_in(tree) as target:
            wait_for(target, "t", places((4, 1)))
            assert broker.seen["CreateTopicRequest"] == 0


def test_a_broker_that_comes_back_keeps_its_part_and_its_new_place() -> None:
    """However long it was away before: the next time counts from its next going."""
    tree = FakeZooKeeper(timeout=0.5)
    first, second = tree.open(), tree.open()
    with FakeBroker(partitions=2) as one, FakeBroker(partitions=2) as two:
        show(first, 1, one.port, t=2)
        show(second, 2, two.port, t=2)
        with found_in(tree, mirror_gone_broker_ms="600000") as target:
            wait_for(target, "t", places((1, 2), (2, 2)))
            first.close()
            wait_until("broker 1 went", lambda: list(target.addresses()) == [2] and list(target._gone) == [1])
            third = tree.open()
            show(third, 1, two.port, t=2)
            wait_until("it is back", lambda: sorted(target.addresses()) == [1, 2])
            wait_until("it is noticed", lambda: target.directory(1).broker.address.port == two.port)
            assert target._gone == {}
            assert target.partitions("t") == places((1, 2), (2, 2))
            assert "ZooKeeper fake:1" in target.directory(1).connector.hint


# -- counting ----------------------------------------------------------------------------------------------------------


class Other:
    """An observer beside the counting one; notes calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, run: object) -> None:
        self.calls.append("told")


class Keeper(Other):
    """One that keeps as well."""

    def keep(self) -> None:
        self.calls.append("kept")


@pytest.mark.parametrize(("other", "calls"), [(None, []), (Other(), ["told"]), (Keeper(), ["told", "kept"])])
def test_another_observer_is_told_and_asked_to_keep(other: Any, calls: list[str]) -> None:
    with FakeBroker() as broker:
        counting = Counting("s", config({"broker.list": f"0:127.0.0.1:{broker.port}"}, mirror_audit_stage="s"), other)
        run: Any = SimpleNamespace(error=TransportError("left out"), source=None, data=b"")
        counting(run)
        counting.keep()
        counting.close()
        assert (other.calls if other is not None else []) == calls
        assert broker.seen["ProduceAckRequest"] == 0

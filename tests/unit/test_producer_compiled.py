"""The compiled path of an asynchronous ``send()``: what it takes, and that nothing is different from the slow one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from fastlog.errors import ArgumentError, PartitionOfflineError, StorageError, WrongPartitionError
from fastlog.producer import Delivery, Producer
from fastlog.producer import producer as producer_module
from fastlog.producer.zookeeper_router import ZooKeeperRoute, ZooKeeperRouter
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.zkpaths import PartitionId
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stored
from tests.harness.fake_session import FakeZooKeeper
from tests.unit.test_producer_discovery import opener, show


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The calls that the compiled path has left to Python."""
    calls: list[tuple[Any, ...]] = []
    send_slowly = Producer._send_slowly

    def counted(producer: Producer, *arguments: Any) -> Any:
        calls.append(arguments)
        return send_slowly(producer, *arguments)

    monkeypatch.setattr(Producer, "_send_slowly", counted)
    yield calls


@pytest.mark.parametrize("choice", [1, (0, 1), PartitionId(0, 1), (0, -1), None])
@pytest.mark.parametrize("called", [False, True])
def test_partitions_by_hand_and_callbacks_are_compiled(slow: list[Any], choice: Any, called: bool) -> None:
    """From the second message on; each call has a delivery of its own, with the offset of its message."""
    told: list[Delivery] = []
    with FakeBroker(partitions=2) as broker:
        with Producer(broker.address, producer_type="async", batch_messages=4) as producer:
            for number in range(10):
                producer.send("t", b"%d" % number, partition=choice, on_delivery=told.append if called else None)
        assert len(slow) == 1
        partition = 1 if choice in (1, (0, 1)) else 0
        assert stored(broker, "t", partition) == [b"%d" % number for number in range(10)]
    ends = [44, 44, 44, 44, 88, 88, 88, 88, 110, 110]
    expected = [Delivery("t", 0, partition, 11 * number, ends[number], 1) for number in range(10)]
    assert told == (expected if called else [])
    assert {*told} == {*told, *(expected if called else [])}  # Python 3.14 keeps the hash in the tuple
    assert all(type(each) is Delivery and each.error_code == 0 for each in told)


def test_any_partition_of_a_broker_that_answered_later() -> None:
    """It was away when the topic was first sent to: then there is no place for its messages yet."""
    with FakeBroker(partitions=2) as broker, Producer(broker.address, producer_type="async") as producer:
        producer.send("t", b"first")
        route = producer._router._topics["t"]
        del route.buffers[0, -1]
        assert producer._router.choose("t", None, (0, -1)) is route.buffers[0, -1]
        with pytest.raises(WrongPartitionError, match="there is no partition -2"):
            producer._router.choose("t", None, (0, -2))


@pytest.mark.parametrize("wrong", [True, 1.0, (0, True), (0, 1.0), [0, 1], "1", (0, 1, 1), ()])
def test_what_equals_a_known_partition_and_is_no_number_is_refused(wrong: Any) -> None:
    with FakeBroker(partitions=2) as broker, Producer(broker.address, producer_type="async") as producer:
        for known in (1, (0, 1)):
            producer.send("t", b"x", partition=known)
        with pytest.raises(ArgumentError):
            producer.send("t", b"x", partition=wrong)
        with pytest.raises(WrongPartitionError):
            producer.send("t", b"x", partition=2)


def test_a_partition_of_a_broker_that_has_gone_is_looked_at_again(
    slow: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ZooKeeper: what was chosen by hand is forgotten when brokers come and go."""
    tree = FakeZooKeeper(timeout=0.5)
    monkeypatch.setattr(producer_module, "make_router", partial(ZooKeeperRouter, open_session=opener(tree)))
    with FakeBroker(partitions=2) as one, FakeBroker(partitions=2) as two:
        show(tree.open(), 1, one.port, t=2)
        leaving = tree.open()
        show(leaving, 2, two.port, t=2)
        with Producer(zk_connect="fake:1", zk_sync_time_ms=50, producer_type="async") as producer:

            def is_compiled(broker: int) -> bool:
                before = len(slow)
                producer.send("t", b"x", partition=(broker, 1))
                return len(slow) == before

            for broker in (1, 2):
                wait_until("it is compiled", lambda broker=broker: is_compiled(broker))  # type: ignore[misc]
            producer.flush()
            before = len(stored(one, "t", 1)), len(stored(two, "t", 1))
            assert min(before) > 1
            leaving.close()
            route = producer._router._topics["t"]
            assert isinstance(route, ZooKeeperRoute)
            wait_until("it has gone", lambda: 2 not in route.counts)
            with pytest.raises(WrongPartitionError, match="no broker 2 is registered"):
                producer.send("t", b"x", partition=(2, 1))
            producer.send("t", b"y", partition=(1, 1))
        assert stored(one, "t", 1)[before[0] :] == [b"y"]
        assert len(stored(two, "t", 1)) == before[1]


def answer(codes: list[int]) -> Callable[[rq.Request], bytes | None]:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and codes and (code := codes.pop()):
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, code, 0, -1, -1))
        return None

    return hook


def test_callbacks_hear_of_errors_and_of_later_tries() -> None:
    """The second request fails for good; the third is refused for now, and sent again with those who want to know."""
    told: list[list[Delivery]] = [[] for _ in range(6)]
    codes = [StorageError.code, PartitionOfflineError.code, 0]
    with FakeBroker(hook=answer(codes)) as broker:
        with Producer(broker.address, producer_type="async", batch_messages=2) as producer:
            for number in range(6):
                producer.send("t", b"%d" % number, partition=0, on_delivery=told[number].append)
        assert stored(broker) == [b"0", b"1", b"4", b"5"]
    assert [len(each) for each in told] == [1] * 6
    assert [each[0].offset for each in told] == [0, 11, -1, -1, 22, 33]
    for each in told[2:4]:
        assert isinstance(each[0].error, PartitionOfflineError)
        assert (each[0].messages, each[0].error.topic) == (1, "t")


@pytest.mark.parametrize("fields", [{"compression": "gzip"}, {"envelope": True}, {"acks": "none"}])
def test_callbacks_of_other_kinds_of_messages(fields: dict[str, Any]) -> None:
    told: list[Delivery] = []
    with (
        FakeBroker() as broker,
        Producer(broker.address, producer_type="async", batch_messages=3, **fields) as producer,
    ):
        for number in range(9):
            producer.send("t", b"%d" % number, on_delivery=told.append)
        producer.flush()
    assert [(each.topic, each.messages, each.error) for each in told] == [("t", 1, None)] * 9
    offsets = [each.offset for each in told]
    if "acks" in fields:
        assert offsets == [-1] * 9
    else:
        assert offsets == sorted(offsets)
        assert len(set(offsets)) == (3 if "compression" in fields else 9)


def test_a_callback_that_raises_or_sends_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []

    def on_delivery(delivery: Delivery) -> None:
        told.append(delivery.offset)
        if len(told) < 20:
            producer.send("t", b"again", on_delivery=on_delivery)
        raise ValueError("of no importance")

    with FakeBroker() as broker:
        with Producer(broker.address, producer_type="async", queue_messages=5, queue_time_ms=1) as producer:
            for _ in range(10):
                producer.send("t", b"first", on_delivery=on_delivery)
            producer.flush()
            while len(told) < 29:
                producer.flush()
        assert len(stored(broker)) == len(told) == 29
    assert "delivery callback failed topic=t" in caplog.text
    assert "of no importance" in caplog.text


def test_followed_messages_are_not_the_collectors_business() -> None:
    """Nothing that the collector has to look at is kept for a message that waits."""
    fields: dict[str, Any] = {"producer_type": "async", "queue_time_ms": 60_000, "batch_messages": 10_000}
    with FakeBroker() as broker, Producer(broker.address, **fields) as producer:
        producer.send("t", b"x", partition=0)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(2000):
            producer.send("t", b"x", partition=0, on_delivery=print_nothing)
        assert len(gc.get_objects()) - before < 100


def print_nothing(delivery: Delivery) -> None:
    pass

"""Producers that find real brokers through a real ZooKeeper: brokers that join, die and return, and ZooKeeper away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import fastlog
from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.errors import FastlogError, TransportError, UnsupportedFeatureError
from fastlog.producer.discovery import View
from fastlog.producer.zookeeper_router import ZooKeeperRouter
from fastlog.testing import RunningBroker, RunningZooKeeper
from tests.harness.broker import wait_until
from tests.harness.registration import Tree
from tests.harness.timing import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.java]
SECONDS = PATIENCE
BACK_SECONDS = PATIENCE
"""Two seconds are promised; a machine that is busy with other tests gets five times as much."""
Start = Callable[..., RunningBroker]


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.fixture
def connect(zookeeper: RunningZooKeeper, fastlog_topic: str) -> str:
    return f"{zookeeper.connect}/{fastlog_topic}"


@pytest.fixture
def start(connect: str) -> Iterator[Start]:
    """Starts a broker, and returns once it is registered."""
    with ExitStack() as stack, Tree(connect) as tree:

        def start_one(broker_id: int, **settings: Any) -> RunningBroker:
            given = {"zk_connect": connect, "zk_session_timeout_ms": 1000, "broker_id": broker_id, "partitions": 2}
            made = stack.enter_context(testing.broker(**{**given, **settings}))
            wait_until("it has registered", lambda: tree.id_node(broker_id) is not None, SECONDS)
            return made

        yield start_one


def router(producer: fastlog.Producer) -> ZooKeeperRouter:
    found = producer._router
    assert isinstance(found, ZooKeeperRouter)
    return found


def counts(producer: fastlog.Producer, topic: str = "t") -> dict[int, int]:
    return dict(router(producer).discovery.view.partitions.get(topic, {}))


def payloads(broker: RunningBroker, topic: str = "t") -> list[bytes]:
    with broker.consumer() as consumer:
        return [message.payload for partition in range(2) for message in consumer.messages(topic, partition)]


def test_brokers_are_found_and_joined_and_share_a_new_topic(start: Start, connect: str) -> None:
    """An unknown topic goes to every broker; one that joins gets its share once it has announced the topic."""
    brokers = {1: start(1), 2: start(2)}
    with fastlog.Producer(zk_connect=connect) as producer:
        wait_until(
            "both are seen", lambda: bool(producer.send("t", b"x")) and len(router(producer).links) == 2, SECONDS
        )
        for _ in range(40):
            producer.send("t", b"x")
        wait_until("both have announced it", lambda: counts(producer) == {1: 2, 2: 2}, SECONDS)
        sent = [producer.send("t", b"k", key=f"{key}") for key in range(200)]
        seen = {(found.broker, found.partition) for deliveries in sent for found in deliveries}
        assert seen == {(1, 0), (1, 1), (2, 0), (2, 1)}
        brokers[3] = start(3)
        with fastlog.Producer(brokers[3].address) as other:
            other.send("t", b"x")  # this is how it gets the topic
        wait_until("the third has announced it", lambda: counts(producer) == {1: 2, 2: 2, 3: 2}, SECONDS)
        wait_until("it gets messages", lambda: producer.send("t", b"new")[0].broker == 3, SECONDS)
        delivered = producer.stats().delivered + 1
    assert sum(len(payloads(broker)) for broker in brokers.values()) == delivered


def test_a_broker_dies_and_returns(start: Start, connect: str) -> None:
    """R-27: nothing is lost, a send costs a retry and does not hang, and the broker is used again once it is back."""
    one, two = start(1), start(2)
    stop = threading.Event()
    sent: list[bytes] = []
    errors: list[FastlogError] = []
    slowest = 0.0
    with fastlog.Producer(zk_connect=connect, connect_timeout_ms=1000, acks="flushed") as producer:
        wait_until("one is used", lambda: producer.send("t", b"x")[0].broker == 1, SECONDS)
        wait_until("two is used", lambda: producer.send("t", b"x")[0].broker == 2, SECONDS)
        wait_until("both have announced it", lambda: counts(producer) == {1: 2, 2: 2}, SECONDS)

        def send() -> None:
            nonlocal slowest
            number = 0
            while not stop.is_set():
                payload, began = b"%d" % number, time.monotonic()
                try:
                    producer.send("t", payload, key=None if number % 2 else f"k{number}")
                    sent.append(payload)
                except FastlogError as error:
                    errors.append(error)
                slowest = max(slowest, time.monotonic() - began)
                number += 1
                time.sleep(0.002)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            two.kill()
            wait_until("it has gone", lambda: list(counts(producer)) == [1], SECONDS)
            wait_until("keys go to the other", lambda: producer.send("t", b"x", key="any")[0].broker == 1, SECONDS)
            two.start()
            wait_until("it is back", lambda: producer.send("t", b"x")[0].broker == 2, BACK_SECONDS)
            wait_until("with keys", lambda: counts(producer) == {1: 2, 2: 2}, SECONDS)
            wait_until("messages have been sent all the time", lambda: len(sent) > 20, SECONDS)
        finally:
            stop.set()
            thread.join(SECONDS)
        assert not thread.is_alive()
    assert slowest < PATIENCE
    assert not set(sent) - set(payloads(one)) - set(payloads(two)), errors


def test_a_broker_that_is_back_before_its_session_ends_was_never_gone(
    start: Start, connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So keys choose the same partitions all the time, and what was sent meanwhile waits for it."""
    one, two = start(1), start(2, zk_session_timeout_ms=20_000)
    for broker in (one, two):
        with fastlog.Producer(broker.address) as direct:
            direct.send("t", b"x")
    with fastlog.Producer(zk_connect=connect) as producer, Tree(connect) as tree:
        producer.send("t", b"x")
        wait_until("both have announced it", lambda: counts(producer) == {1: 2, 2: 2}, SECONDS)
        views: list[View] = []
        follow = router(producer)._follow
        monkeypatch.setattr(router(producer).discovery, "_on_change", lambda view: (views.append(view), follow(view)))
        before = tree.id_node(2)
        assert before is not None
        key = next(f"{number}" for number in range(1000) if producer.send("t", b"x", key=f"{number}")[0].broker == 2)
        two.kill()
        two.start()
        assert producer.send("t", b"meanwhile", key=key)[0].broker == 2
        wait_until("it has its place back", lambda: tree.id_node(2) not in (None, before), SECONDS)
        wait_until("its topic is its own", lambda: tree.shows(two, 2, {"t": 2}), SECONDS)  # type: ignore[arg-type]
        router(producer).discovery.read_again(SECONDS)
        assert counts(producer) == {1: 2, 2: 2}
        assert all(view.partitions["t"] == {1: 2, 2: 2} and list(view.addresses) == [1, 2] for view in views)


def test_the_session_expires(start: Start, connect: str, zookeeper: RunningZooKeeper) -> None:
    """A new one is opened, and what changes after that is seen."""
    start(1)
    with fastlog.Producer(zk_connect=connect) as producer:
        producer.send("t", b"x")
        found = router(producer).discovery
        before = found.session_id
        assert before is not None
        zookeeper.expire(before)
        wait_until("another session", lambda: found.session_id not in (None, before), SECONDS)
        producer.send("t", b"x", key="k")
        start(2)
        wait_until("a new broker is seen", lambda: 2 in found.view.addresses, SECONDS)


def test_zookeeper_is_away(start: Start, connect: str, zookeeper: RunningZooKeeper) -> None:
    """Sending goes on without it, with keys too; afterwards changes are seen again."""
    start(1)
    with fastlog.Producer(zk_connect=connect, zk_session_timeout_ms=500) as producer:
        producer.send("t", b"x")
        zookeeper.kill()
        try:
            for number in range(50):
                producer.send("t", b"x", key=f"{number}" if number % 2 else None)
        finally:
            zookeeper.start()
        producer.send("new", b"x")
        wait_until("what is announced is seen", lambda: counts(producer, "new") == {1: 2}, SECONDS)


def test_an_address_that_nobody_can_reach(start: Start, connect: str) -> None:
    """R-9: the error has what was dialled and says that ZooKeeper has it so."""
    start(1, advertised_port=1)
    place = rf"this is the address that broker 1 has in ZooKeeper {connect} \(/brokers/ids/1\)"
    with (
        fastlog.Producer(zk_connect=connect, connect_timeout_ms=300) as producer,
        pytest.raises(TransportError, match=rf"(?s)127\.0\.0\.1:1: Connection refused.*{place}"),
    ):
        producer.send("t", b"x")


def test_topics_of_record_batches_are_written_to_in_one_way(start: Start, connect: str) -> None:
    """By 0.7's protocol, also a partition that is named: what one way has sent is not overtaken by another.

    A key, which would be lost, is refused whatever was sent before.
    """
    broker = start(3)
    with RecordBroker([Address(broker.host, broker.port)], timeout=SECONDS) as records:
        records.create("records", 2, {})
    with fastlog.Producer(zk_connect=connect) as producer:
        for number, partition in enumerate([None, (3, 1), (3, 0), (3, -1), 1]):
            producer.send("records", b"%d" % number, partition=partition)
            with pytest.raises(UnsupportedFeatureError, match=r"for producers with broker\.list"):
                producer.send("records", b"x", partition=partition, headers={"a": "b"})
            for value in (b"x", None):
                with pytest.raises(UnsupportedFeatureError, match=r"give broker\.list in place of zk\.connect"):
                    producer.send("records", value, partition=partition, key="k")
        for refused in (lambda: producer.partitions("records"), lambda: router(producer).keyed_buffers("records")):
            with pytest.raises(UnsupportedFeatureError, match="values alone"):
                refused()
        assert router(producer).record_links == {}
    with fastlog.SimpleConsumer(broker.host, broker.port, timeout=SECONDS) as simple:
        found = [message.payload for number in (0, 1) for message in simple.messages("records", number)]
    assert sorted(found) == [b"0", b"1", b"2", b"3", b"4"]
    with fastlog.Producer(zk_connect=connect, producer_type="async") as producer:  # its compiled path as well
        for partition in ((3, 1), (3, 1)):
            producer.send("records", b"5", partition=partition)
            with pytest.raises(UnsupportedFeatureError, match="values alone"):
                producer.send("records", b"x", partition=partition, key="k")
        assert producer.partitions("not there yet") == [(3, 0)]
        producer.send("of messages", b"6", key="k", partition=(3, 0))
    assert payloads(broker, "of messages") == [b"6"]
    assert payloads(broker, "records").count(b"5") == 2

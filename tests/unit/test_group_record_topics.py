"""Members of a group in ZooKeeper, with topics of record batches among what they are to read: a clear word, once."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Iterator

import pytest

from fastlog.client.addresses import Address
from fastlog.consumer import group, record_lookup
from fastlog.consumer.partitions import Lease
from fastlog.consumer.record_lookup import RecordLookup
from fastlog.consumer.status import GroupState
from fastlog.consumer.stream import Stream
from fastlog.errors import FastlogError, UnsupportedFeatureError
from fastlog.zkpaths import BrokerRegistration, Subscription, broker_path
from tests.harness.fake_kafka import FakeKafka
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.groups import Cluster, Member, fake_member, wait_until
from tests.harness.server import Server
from tests.harness.timing import PATIENCE, sooner_than

UNKNOWN_TOPIC = 3


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_lookup, "_LEAST_PAUSE", 0.01)
    monkeypatch.setattr(record_lookup, "_LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(group, "_TOPICS_SECONDS", PATIENCE)


@pytest.fixture
def bare(tree: FakeZooKeeper) -> Cluster:
    """With topic ``u`` on broker 1, which nobody reaches, as tests of members alone have it."""
    made = Cluster(tree.open())
    made.show("u", {1: 1})
    return made


@pytest.fixture
def kafka(tree: FakeZooKeeper, bare: Cluster) -> Iterator[FakeKafka]:
    """A registered broker with a topic of record batches, ``t``."""
    with FakeKafka() as running:
        register(tree, 2, running)
        yield running


def register(tree: FakeZooKeeper, broker: int, server: Server) -> None:
    tree.write(broker_path(broker), BrokerRegistration("c", "127.0.0.1", server.port).encode())


def started(member: Member) -> list[tuple[str, FastlogError]]:
    """Start it; what its worker is told about topics goes into the list."""
    told: list[tuple[str, FastlogError]] = []
    member.group._work.on_refused = lambda topic, error: told.append((topic, error))
    member.group.start()
    return told


def test_whoever_subscribes_to_one_is_told_what_to_do(tree: FakeZooKeeper, kafka: FakeKafka) -> None:
    member = fake_member(tree, {"t": 1, "u": 1}, "a")
    with pytest.raises(UnsupportedFeatureError) as raised:
        member.group.start()
    error = raised.value
    assert (error.topic, error.broker) == ("t", kafka.address)
    assert "record batches" in str(error) and f"Consumer(brokers='{kafka.address}')" in str(error)
    assert "bootstrap.servers" in str(error) and "zk.connect" in str(error)
    assert member.group.state is GroupState.STOPPED and member.readers.claims == {}


def test_one_that_is_made_later_is_told_once_and_others_are_read(tree: FakeZooKeeper, kafka: FakeKafka) -> None:
    kafka.topic_code = UNKNOWN_TOPIC
    member = fake_member(tree, {"t": 1, "u": 1}, "a")
    told = started(member)
    try:
        assert member.settled().owned == ["u/1-0"]
        assert told == [] and member.group.error is None
        kafka.topic_code = 0
        wait_until("it is told", lambda: told)
        wait_until("it is shown", lambda: member.group.error is told[0][1])
        asked = kafka.connections
        tree.write("/brokers/topics/u/2", b"1")
        wait_until("the other topic goes on", lambda: member.owned == ["u/1-0", "u/2-0"])
        assert member.group.error is told[0][1]
        assert len(told) == 1 and kafka.connections == asked, "what is known is not asked again"
        tree.write("/brokers/topics/t/2", b"1")  # deleted, and made anew as one of Kafka 0.7
        wait_until("it is read", lambda: "t/2-0" in member.owned)
        wait_until("all is well", lambda: member.group.error is None)
        tree.remove("/brokers/topics/t/2")
        wait_until("it is told of the next one", lambda: len(told) == 2)
    finally:
        member.group.stop()


def test_another_session_does_not_tell_it_again(tree: FakeZooKeeper, kafka: FakeKafka) -> None:
    kafka.topic_code = UNKNOWN_TOPIC
    member = fake_member(tree, {"t": 1, "u": 1}, "a")
    told = started(member)
    try:
        kafka.topic_code = 0
        wait_until("it is told", lambda: told)
        asked, first = kafka.connections, member.group.session_id
        assert first is not None
        tree.expire(first)
        wait_until("the next session has asked", lambda: kafka.connections > asked)
        wait_until("it reads on", lambda: member.owned == ["u/1-0"])
        wait_until("it is shown", lambda: member.group.error is told[0][1])
        assert len(told) == 1
    finally:
        member.group.stop()


@pytest.mark.parametrize("pattern", ["t|u", "u"])
def test_a_filter_logs_what_it_leaves_out(
    tree: FakeZooKeeper, kafka: FakeKafka, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    """One line for a topic that it means, none for others; nothing is raised, and the rest is read."""
    caplog.set_level(logging.WARNING, "fastlog.consumer")
    member = fake_member(tree, Subscription({}, pattern, True, 1), "a")
    told = started(member)
    try:
        assert member.settled().owned == ["u/1-0"]
        wait_until("it was asked some times", lambda: kafka.connections > 4)
        lines = [record.getMessage() for record in caplog.records if "record_topics_unread" in record.getMessage()]
        assert [line.split()[:3] for line in lines] == (
            [["event=record_topics_unread", "group=g", "topics=t:"]] if pattern == "t|u" else []
        )
        assert told == [] and member.group.error is None
    finally:
        member.group.stop()


def test_a_filter_says_nothing_of_a_topic_that_is_one_of_0_7_elsewhere(
    tree: FakeZooKeeper, kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    tree.write("/brokers/topics/t/1", b"1")
    with fake_member(tree, Subscription({}, ".*", True, 1), "a") as member:
        assert member.settled().owned == ["t/1-0", "u/1-0"]
        wait_until("it was asked some times", lambda: kafka.connections > 4)
    assert "record_topics_unread" not in caplog.text


class Plain(Server):
    """A broker of Kafka 0.7 at heart: it ends the connection at a request that it does not know."""

    connections = 0

    def serve(self, connection: socket.socket) -> None:
        self.connections += 1
        connection.recv(100)


def test_a_broker_of_0_7_is_not_asked_for_ever(tree: FakeZooKeeper, bare: Cluster) -> None:
    with Plain() as plain, FakeKafka() as kafka:
        register(tree, 2, plain)
        register(tree, 3, kafka)
        kafka.topic_code = UNKNOWN_TOPIC
        with fake_member(tree, {"t": 1, "u": 1}, "a") as member:
            member.settled()
            wait_until("the other one was asked again and again", lambda: kafka.connections > 5)
            assert plain.connections == record_lookup._STRIKES


class Silent(Server):
    """It takes connections, and says nothing."""

    def serve(self, connection: socket.socket) -> None:
        while connection.recv(100):
            pass


def test_a_broker_that_does_not_answer_holds_up_nothing(
    tree: FakeZooKeeper, bare: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member joins, reads, and proves that it lives while the broker is waited for."""
    monkeypatch.setattr(record_lookup, "_ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(group, "_TOPICS_SECONDS", 0.05)
    tree.timeout = 0.4
    with Silent() as silent:
        register(tree, 2, silent)
        with sooner_than(60.0), fake_member(tree, {"t": 1, "u": 1}, "a") as member:
            assert member.settled().owned == ["u/1-0"]
            lease = member.group.lease
            until = lease._until
            wait_until("the lease goes on", lambda: lease._until > until + 2 * tree.timeout)
            assert member.owned == ["u/1-0"] and member.group.sessions == 1


def test_a_group_without_brokers_waits_for_nothing(tree: FakeZooKeeper) -> None:
    with sooner_than(PATIENCE), fake_member(tree, {"t": 1}, "a") as member:
        assert member.settled().group.state is GroupState.NOTHING


@pytest.mark.parametrize("call", ["poll", "batch"])
def test_a_stream_raises_what_it_is_refused_once(call: str) -> None:
    stream = Stream("t", Lease(6.0), timeout=0.0)
    stream.refuse(UnsupportedFeatureError("no"))
    with pytest.raises(UnsupportedFeatureError, match="no"):
        stream.poll() if call == "poll" else next(stream.batches())
    assert not stream.poll()


def test_a_broker_is_asked_when_that_is_due_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a moment after which nobody calls again: the worker waits exactly until then."""
    asked: list[list[str] | None] = []
    monkeypatch.setattr(RecordLookup, "_ask", lambda self, names, addresses: asked.append(names))
    lookup = RecordLookup(lambda: None)
    lookup.follow({"t"}, [Address("127.0.0.1", 1)])
    due = lookup.due
    assert lookup.turn(math.nextafter(due, 0)) == {} and lookup.due == due
    lookup.turn(due)
    assert lookup.due == math.inf
    wait_until("it was asked", lambda: asked == [["t"]])
    lookup.follow(["t"], {Address("127.0.0.1", 1)})
    assert lookup.due == math.inf  # the same question, which is under way

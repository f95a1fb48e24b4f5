"""A broker in a real ZooKeeper: its nodes are those of 0.7, and there as long as it is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fastlog import testing
from fastlog.testing import BrokerStartError, RunningBroker, RunningZooKeeper
from fastlog.tools.cli import fastlog
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, BrokerDidNotStart, wait_until
from tests.harness.registration import BACK_SECONDS, Tree, registered_broker
from tests.harness.timing import PATIENCE, sooner_than

pytestmark = [pytest.mark.slow, pytest.mark.java]
LONG_MS = 40_000
"""A session that lasts longer than any of these tests may take."""
Start = Callable[..., Broker]


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.fixture
def connect(zookeeper: RunningZooKeeper, fastlog_topic: str) -> str:
    """A place of the test's own, which nobody has made yet."""
    return f"{zookeeper.connect}/{fastlog_topic}/logs"


@pytest.fixture
def tree(connect: str) -> Iterator[Tree]:
    with Tree(connect) as made:
        yield made


@pytest.fixture
def start(tmp_path: Path, connect: str) -> Iterator[Start]:
    """Starts a broker that registers; takes the id and what ``Broker`` takes."""
    with ExitStack() as stack:

        def start_one(broker_id: int = 0, **options: Any) -> Broker:
            directory = options.pop("directory", tmp_path / f"broker{broker_id}")
            place = options.pop("connect", connect)
            return stack.enter_context(registered_broker(directory, place, broker_id, **options))

        yield start_one


def produce(broker: Broker, topic: str, partition: int = 0) -> None:
    with broker.connect() as client:
        assert client.produce_ack(topic, partition, raw.entry(b"x")).error == 0


def test_a_deleted_topic_is_shown_no_more(start: Start, tree: Tree, topic: str) -> None:
    """Its node goes with its last broker, and comes back when it is made anew; the others stay."""
    one, two = start(1), start(2)
    for broker in (one, two):
        produce(broker, topic)
        produce(broker, topic + "-stays")
    for number, broker in ((1, one), (2, two)):
        tree.wait_shows(broker, number, {topic: 1, topic + "-stays": 1})
    for number, broker in ((1, one), (2, two)):
        with broker.connect() as client:
            assert client.delete_topic(topic) == (0, 1)
        wait_until("it is not shown", lambda number=number: topic not in tree.counts(number))  # type: ignore[misc]
    wait_until("the topic is not shown", lambda: tree.node(f"/brokers/topics/{topic}") is None)
    assert tree.shows(one, 1, {topic + "-stays": 1}) and tree.shows(two, 2, {topic + "-stays": 1})
    produce(one, topic)
    tree.wait_shows(one, 1, {topic: 1})


def test_nodes_are_those_of_0_7(start: Start, tree: Tree, topic: str) -> None:
    """``creator:host:port``, the creator with the time of the start; the configured count, not the number made."""
    before_ms = int(time.time() * 1000)
    broker = start(5, settings={"num.partitions": 4, "topic.partition.count.map": f"{topic}x:2"})
    node = tree.wait_shows(broker, 5)
    found = re.fullmatch(rb"127\.0\.0\.1-(\d+):127\.0\.0\.1:(\d+)", node.data)
    assert found
    assert before_ms <= int(found[1]) <= time.time() * 1000
    assert int(found[2]) == broker.port
    produce(broker, topic, 2)
    produce(broker, topic + "x")
    tree.wait_shows(broker, 5, {topic: 4, topic + "x": 2})
    assert tree.node("/brokers/topics").owner == 0  # type: ignore[union-attr]
    assert tree.node(f"/brokers/topics/{topic}").data == b""  # type: ignore[union-attr]


def test_topics_that_lie_on_disk_are_announced_at_the_start(start: Start, tree: Tree, topic: str) -> None:
    broker = start()
    produce(broker, topic)
    first = tree.wait_shows(broker, 0, {topic: 1})
    assert broker.stop() == 0
    assert tree.id_node() is None, "the clean stop left the broker in ZooKeeper"
    assert tree.counts() == {}
    broker.start()
    assert tree.wait_shows(broker, 0, {topic: 1}).data != first.data, "another start has another creator"


def test_a_topic_that_is_created_by_command_gives_a_new_broker_its_share(start: Start, tree: Tree, topic: str) -> None:
    """What old producers divide their messages over: every broker below the topic, with all of its partitions."""
    first, second = start(1), start(2)
    produce(first, topic)
    tree.wait_shows(first, 1, {topic: 1})
    tree.wait_shows(second, 2)
    assert tree.session.children(f"/brokers/topics/{topic}") == ["1"]
    command = ["topics", "create", topic, "--partitions", "3", "--brokers", f"127.0.0.1:{second.port}"]
    assert CliRunner().invoke(fastlog, command).exit_code == 0
    tree.wait_shows(second, 2, {topic: 3})
    shown = {
        f"{broker}-{partition}"
        for broker in tree.session.children(f"/brokers/topics/{topic}") or []
        for partition in range(int(tree.counts(int(broker))[topic]))
    }
    assert shown == {"1-0", "2-0", "2-1", "2-2"}


def test_it_serves_without_a_zookeeper_and_registers_when_there_is_one(
    zookeeper: RunningZooKeeper, start: Start, tree: Tree, topic: str
) -> None:
    assert tree.id_node() is None
    zookeeper.kill()
    try:
        broker = start()
        produce(broker, topic)
        broker.wait_log("no ZooKeeper answers .*; clients are served, and it is tried again")
    finally:
        zookeeper.start()
    tree.wait_shows(broker, 0, {topic: 1})


def test_a_start_within_the_session_of_a_dead_one_replaces_its_node(start: Start, tree: Tree, topic: str) -> None:
    """Z-11, T-3: no waiting for a session that lasts 40 s, and of course no dying of it as 0.7 does."""
    broker = start(settings={"zk.sessiontimeout.ms": LONG_MS})
    produce(broker, topic)
    before = tree.wait_shows(broker, 0, {topic: 1})
    broker.kill_all()
    assert tree.id_node() == before, "the dead one's session ended too soon for this test"
    broker.start()
    with sooner_than(LONG_MS / 1000 / 2):
        wait_until("the new node", lambda: tree.shows(broker, 0, {topic: 1}), BACK_SECONDS, 0.01)
    assert tree.id_node() != before


def test_a_start_that_does_not_know_the_dead_one_waits_for_its_session(start: Start, tree: Tree) -> None:
    """So when the files were put on another disk: the node vanishes in time, and until then clients are served."""
    broker = start()
    before = tree.wait_shows(broker)
    broker.kill_all()
    (broker.log_dirs[0] / ".fastlog-creators").unlink()
    broker.start()
    after = tree.wait_shows(broker)
    assert after.owner != before.owner
    assert broker.stop() == 0


def test_a_new_keeper_takes_over_at_once(start: Start, tree: Tree, topic: str) -> None:
    broker = start(settings={"zk.sessiontimeout.ms": LONG_MS})
    produce(broker, topic)
    before = tree.wait_shows(broker, 0, {topic: 1})
    pid = broker.kill("keeper")
    broker.wait_replaced("keeper", pid)
    wait_until("a session of the new keeper", lambda: (tree.id_node() or before).owner != before.owner, BACK_SECONDS)
    after = tree.wait_shows(broker, 0, {topic: 1})
    assert after.data == before.data, "it is still the same start of the broker"


def test_a_stop_does_not_wait_for_a_zookeeper_that_hangs(
    zookeeper: RunningZooKeeper, start: Start, tree: Tree, topic: str
) -> None:
    broker = start()
    produce(broker, topic)
    tree.wait_shows(broker, 0, {topic: 1})
    zookeeper.pause()
    try:
        assert broker.stop() == 0
    finally:
        zookeeper.resume()
    tree.wait_gone()


def test_flags_name_zookeeper_and_the_address(tmp_path: Path, tree: Tree, connect: str) -> None:
    with Broker(tmp_path, arguments=["--zookeeper", connect, "--advertise", "localhost"]) as broker:
        wait_until("it is shown", lambda: tree.id_node(), BACK_SECONDS)
        assert re.fullmatch(rb"localhost-\d+:localhost:%d" % broker.port, tree.id_node().data)  # type: ignore[union-attr]
        assert f"advertised=localhost:{broker.port} zookeeper={connect} " in broker.log_text()
        with broker.connect() as client:
            assert client.metadata([]).host == "localhost"


def test_an_ipv6_address_is_written_for_our_readers(tmp_path: Path, tree: Tree, connect: str) -> None:
    with registered_broker(tmp_path, connect, settings={"host": "::1"}) as broker:
        wait_until("it is shown", lambda: tree.id_node(), BACK_SECONDS)
        node = tree.id_node()
        assert node is not None
        assert node.data.endswith(b":[::1]:%d" % broker.port)
        broker.wait_log("clients of Kafka 0.7.*cannot connect")


def test_zookeeper_may_be_switched_off(start: Start, tree: Tree) -> None:
    broker = start(settings={"enable.zookeeper": "false"})
    produce(broker, "t")
    assert tree.id_node() is None
    assert not (broker.log_dirs[0] / ".fastlog-creators").exists()


@pytest.mark.parametrize("connect", ["h:x", "h:1/a//b"])
def test_a_connect_string_that_makes_no_sense_stops_the_start(tmp_path: Path, connect: str) -> None:
    with pytest.raises(BrokerDidNotStart, match=r"exit code 2\nfastlog-broker: zk\.connect: "):
        registered_broker(tmp_path, connect).__enter__()


def test_brokers_of_a_test_are_shown_when_its_block_begins(connect: str, tree: Tree) -> None:
    with testing.cluster(2, zk_connect=connect):
        assert all(tree.id_node(broker_id) for broker_id in (0, 1))


def test_a_broker_of_a_test_says_when_it_is_not_shown(zookeeper: RunningZooKeeper) -> None:
    """A broker of one's own serves without its ZooKeeper; the block of one that should register does not begin."""
    nobody = "127.0.0.1:9"
    with RunningBroker(settings={"zk_connect": nobody}) as alone:
        assert alone.running
        with pytest.raises(TimeoutError, match=nobody):
            alone.wait_registered(0.1)
    with (
        pytest.raises(BrokerStartError, match="not registered in ZooKeeper within 3 s"),
        testing.broker(zk_connect=nobody, start_timeout=3.0),
    ):
        pytest.fail("its block began")
    with testing.broker(properties={"zk.connect": nobody}, enable_zookeeper=False) as apart:
        assert apart.running


def test_two_brokers_serve_no_clients_of_today(start: Start) -> None:
    """Each would show its part as the whole; alone again, the first serves them, and 0.7's notice nothing."""
    from confluent_kafka import KafkaException, Producer, TopicCollection
    from confluent_kafka.admin import AdminClient

    first = start(0)
    address = {"bootstrap.servers": f"127.0.0.1:{first.port}"}

    def delivered() -> str:
        told: list[Any] = []
        producer = Producer(address | {"message.timeout.ms": 3000, "topic.metadata.refresh.interval.ms": 200})
        producer.produce("today", b"x", on_delivery=lambda error, _message: told.append(error))
        producer.flush(PATIENCE)
        return told[0].name() if told[0] is not None else ""

    assert delivered() == ""
    second = start(1)
    wait_until("the first refuses", lambda: "clients of today's protocol are refused" in first.log_text())
    assert delivered() == "TOPIC_AUTHORIZATION_FAILED"
    admin = AdminClient(address)  # one that is no one's ends at once, and what it was asked with it
    with pytest.raises(KafkaException):
        admin.describe_topics(TopicCollection(["today"]))["today"].result(PATIENCE)
    produce(first, "old")
    produce(second, "old")
    second.stop()
    wait_until("the first serves again", lambda: "are served again" in first.log_text())
    assert delivered() == ""

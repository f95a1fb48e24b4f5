"""Streams of a group against real brokers: restarts, retention, files on this machine; and once with ZooKeeper."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import fastlog
from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.consumer._delivery import GroupMessage
from fastlog.consumer.feed import Phase
from fastlog.consumer.stream import NoMessage
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.errors import ConsumerTimeout
from fastlog.testing import RunningBroker, RunningZooKeeper
from fastlog.zkpaths import BrokerRegistration, broker_path, topic_broker_path
from tests.harness.reading import Reading, wait_until

pytestmark = pytest.mark.slow


def produce(broker: RunningBroker, payloads: list[bytes], topic: str = "t", **settings: object) -> None:
    with fastlog.Producer(broker.address, acks="flushed", **settings) as producer:
        producer.send(topic, payloads, partition=(0, 0))


def take(reading: Reading, count: int) -> list[bytes]:
    found = []
    while len(found) < count:
        message = reading.stream().poll(30)
        assert isinstance(message, GroupMessage), (message, reading.fetchers.states())
        found.append(message.payload)
    return found


def numbered(start: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(start, start + count)]


@pytest.mark.parametrize(("local", "source"), [("off", "socket"), ("auto", "read"), ("map", "map")])
def test_killed_and_restarted_brokers_cost_nothing(local: str, source: str) -> None:
    """A process of it, all of it, and a clean restart: every message once, in order."""
    with (
        testing.broker(partitions=1) as broker,
        Reading(local=local, fetcher_backoff_ms=100, fetch_bytes=4096) as reading,
    ):
        produce(broker, numbered(0, 2000))
        ours = reading.own(broker.port, offset=None)
        found = take(reading, 1000)
        broker.kill("processor-0")
        produce(broker, numbered(2000, 100), compression="gzip")
        found += take(reading, 1100)
        assert reading.state(ours).source == source
        broker.kill()
        assert reading.stream().poll(0.3) in (NoMessage.NO_BROKER, NoMessage.AT_END)
        broker.start()
        produce(broker, numbered(2100, 1000))
        found += take(reading, 1000)
        broker.restart()
        produce(broker, numbered(3100, 100))
        assert found + take(reading, 100) == numbered(0, 3200)
        assert reading.stream().poll(0.05) in (NoMessage.AT_END, NoMessage.NO_DATA)
        assert not reading.jumps


def test_retention_overtakes_a_slow_consumer() -> None:
    """What is in its queue comes first; then it goes on at the oldest message there is, and says what was lost."""
    with (
        testing.broker(
            partitions=1, log_file_size=2000, log_retention_size=4000, log_cleanup_interval_mins=0.001
        ) as broker,
        Reading(fetch_bytes=1000, queued_chunks=1, fetcher_backoff_ms=100) as reading,
    ):
        produce(broker, numbered(0, 100))
        ours = reading.own(broker.port)
        found = take(reading, 10)
        wait_until(lambda: reading.state(ours).phase is Phase.PAUSED)
        for start in range(100, 3000, 100):
            produce(broker, numbered(start, 100))
        with broker.consumer() as simple:
            wait_until(lambda: simple.get_offsets_before("t", 0, fastlog.EARLIEST)[0] > 3000, 20)
        while (message := reading.stream().poll(0.5)) is not NoMessage.AT_END:
            if not message:
                continue
            assert isinstance(message, GroupMessage)
            found.append(message.payload)
        assert found == sorted(found) and found[-1] == b"002999" and len(found) < 3000
        lost = sum(jump.new - jump.old for jump in reading.jumps)
        assert lost == 16 * (3000 - len(found))  # no byte is unaccounted for
        assert reading.fetchers.consumed() == {ours: 16 * 3000}


def test_a_log_directory_that_is_deleted_and_made_anew_is_noticed() -> None:
    """It has grown beyond the offset before anybody asks for more; what it begins with comes, all the same."""
    with testing.broker(partitions=1) as broker, Reading(fetcher_backoff_ms=100) as reading:
        produce(broker, numbered(0, 100))
        ours = reading.own(broker.port, offset=None)
        assert take(reading, 100) == numbered(0, 100)
        wait_until(lambda: reading.fetchers.logs()[ours] > 0)
        made = reading.fetchers.logs()[ours]
        broker.stop()
        shutil.rmtree(broker.data_directory / "t-0")
        broker.start()
        produce(broker, numbered(100, 300))
        assert take(reading, 300) == numbered(100, 300)
        assert [(jump.old, jump.new) for jump in reading.jumps] == [(1600, 0)]
        assert reading.fetchers.logs()[ours] != made


def test_a_partition_that_nobody_has_written_to() -> None:
    with testing.broker(partitions=2) as broker, Reading() as reading:
        ours = reading.own(broker.port, 0, offset=None)
        with broker.consumer() as simple:
            simple.metadata()
        wait_until(lambda: reading.state(ours).failures > 0 or ours in reading.fetchers.consumed())
        produce(broker, [b"first"])
        assert take(reading, 1) == [b"first"]


# -- with ZooKeeper --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(partitions=2) as running:
        yield running


@pytest.fixture
def connect(zookeeper: RunningZooKeeper, broker: RunningBroker, fastlog_topic: str) -> Iterator[str]:
    """A tree of its own in which the broker has a topic named as the test's."""
    path = f"{zookeeper.connect}/{fastlog_topic}"
    with ZooKeeperSession(path, session_timeout=6.0) as session:
        announce(session, broker, fastlog_topic)
        yield path


def announce(session: ZooKeeperSession, broker: RunningBroker, topic: str) -> None:
    """What a broker says of itself, and of a topic."""
    host, port = Address("127.0.0.1", broker.port)
    if session.get(broker_path(0)) is None:
        session.create(broker_path(0), BrokerRegistration("test-1", host, port).encode(), ephemeral=True)
    session.create(topic_broker_path(topic, 0), b"2", ephemeral=True)


@pytest.mark.java
def test_a_member_goes_on_where_the_one_before_stopped(connect: str, broker: RunningBroker, fastlog_topic: str) -> None:
    """Without auto-commit only what was committed counts; the message in hand comes again unless it was done."""
    with fastlog.Producer(broker.address, acks="flushed") as producer:
        for number in range(2):
            producer.send(fastlog_topic, numbered(100 * number, 100), partition=(0, number))
    found: list[bytes] = []
    fields = {"group_id": "g", "consumer_timeout_ms": 5000}
    with fastlog.Consumer(connect, **fields) as consumer:
        (stream,) = consumer.create_message_streams({fastlog_topic: 1})[fastlog_topic]
        found += [next(stream).payload for _ in range(50)]
        assert consumer.wait_assigned(5) and len(consumer.owned) == 2
        wait_until(lambda: None not in consumer.lag().values(), 20)
        assert sum(lag or 0 for lag in consumer.lag().values()) == 16 * 151
    found.pop()  # no other one was asked for: it comes again
    with fastlog.Consumer(connect, auto_commit=False, **fields) as consumer:
        (stream,) = consumer.create_message_streams({fastlog_topic: 1}, acknowledge=True)[fastlog_topic]
        given = [next(stream) for _ in range(50)]
        for message in given:
            stream.done(message)
        consumer.commit_offsets()
        found += [message.payload for message in given]
        next(stream)
    with fastlog.Consumer(connect, consumer_timeout_ms=500, group_id="g") as consumer:
        (stream,) = consumer.create_message_streams_by_filter(whitelist=fastlog_topic)
        with pytest.raises(ConsumerTimeout) as caught:
            while True:
                found += next(stream.batches())
        assert caught.value.reason is NoMessage.AT_END
        assert set(consumer.lag().values()) == {0}
        partition = next(iter(consumer.owned))
        consumer.seek(partition, fastlog.EARLIEST)
        consumer.commit_offsets()
        assert consumer.committed[partition] == 0 and consumer.lag()[partition] == 1600
        consumer.seek_to_time(partition, 2**42)
    assert sorted(found) == numbered(0, 200)


@pytest.mark.java
def test_a_new_topic_joins_a_filter_by_itself(connect: str, broker: RunningBroker, fastlog_topic: str) -> None:
    with fastlog.Consumer(connect, group_id="g") as consumer:
        (stream,) = consumer.create_message_streams_by_filter(whitelist=f"{fastlog_topic}.*")
        produce(broker, [b"old"], fastlog_topic)
        message = stream.poll(30)
        assert isinstance(message, GroupMessage) and message.topic == fastlog_topic
        with ZooKeeperSession(connect, session_timeout=6.0) as session:
            produce(broker, [b"new"], f"{fastlog_topic}-new")
            announce(session, broker, f"{fastlog_topic}-new")
            message = stream.poll(30)
            assert isinstance(message, GroupMessage) and message.topic == f"{fastlog_topic}-new"


@pytest.mark.java
def test_the_end_of_a_program_commits_and_leaves(connect: str, broker: RunningBroker, fastlog_topic: str) -> None:
    """Ctrl-C in a loop over a consumer that nobody closes."""
    produce(broker, numbered(0, 10), fastlog_topic)
    program = (
        "import fastlog, sys, time\n"
        "consumer = fastlog.Consumer(sys.argv[1], group_id='g')\n"
        "(stream,) = consumer.create_message_streams({sys.argv[2]: 1})[sys.argv[2]]\n"
        "for message in stream:\n"
        "    print(message.payload.decode(), flush=True)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", program, connect, fastlog_topic], stdout=-1, stderr=-1, text=True)
    assert run.stdout is not None
    lines = [run.stdout.readline().strip() for _ in range(10)]
    time.sleep(0.2)
    os.kill(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=30)
    assert "KeyboardInterrupt" in said
    assert lines[-1] == "000009"
    with ZooKeeperSession(connect, session_timeout=6.0) as session:
        assert session.children("/consumers/g/ids") == []
        node = session.get(f"/consumers/g/offsets/{fastlog_topic}/0-0")
        assert node is not None and node.data == b"160"

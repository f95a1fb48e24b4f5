"""A consumer whose ZooKeeper is away, silent, late or another one: nothing hangs, and everything says what is wrong."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import fastlog
from fastlog import testing
from fastlog.aio import Consumer as AsyncConsumer
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.consumer._delivery import GroupMessage
from fastlog.consumer.status import GroupState
from fastlog.consumer.stream import NoMessage, Stream
from fastlog.errors import ConfigError, CoordinationError, UnsupportedFeatureError
from fastlog.testing import RunningBroker, RunningZooKeeper
from tests.harness.command_line import Commands
from tests.harness.groups import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.java]
SESSION_MS = 1000
SECONDS = 20.0
Outage = Callable[[RunningZooKeeper], Callable[[], object]]


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.fixture(scope="module")
def broker(zookeeper: RunningZooKeeper) -> Iterator[RunningBroker]:
    with testing.broker(zk_connect=zookeeper.connect, zk_session_timeout_ms=SESSION_MS, partitions=1) as running:
        yield running


def consumer(connect: str, **fields: Any) -> fastlog.Consumer:
    settings: dict[str, Any] = {"group_id": "g", "zk_session_timeout_ms": SESSION_MS, "auto_commit": False, **fields}
    return fastlog.Consumer(connect, **settings)


def produce(broker: RunningBroker, topic: str, *payloads: bytes) -> None:
    with fastlog.Producer(broker.address, acks="flushed") as producer:
        producer.send(topic, list(payloads))


def take(stream: Stream) -> bytes:
    message = stream.poll(SECONDS)
    assert isinstance(message, GroupMessage), message
    return message.payload


def threads_of_groups() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith(("fastlog-group", "fastlog-fetch"))]


def killed(zookeeper: RunningZooKeeper) -> Callable[[], object]:
    zookeeper.kill()
    return zookeeper.start


def paused(zookeeper: RunningZooKeeper) -> Callable[[], object]:
    zookeeper.pause()
    return zookeeper.resume


@pytest.mark.parametrize("outage", [killed, paused])
def test_commit_and_shutdown_while_zookeeper_is_away(
    zookeeper: RunningZooKeeper, broker: RunningBroker, fastlog_topic: str, outage: Outage
) -> None:
    """A commit is refused in bounded time, nothing is handed out once the lease is over, and the end does not hang."""
    produce(broker, fastlog_topic, b"1", b"2", b"3", b"4")
    with ExitStack() as stack:
        made = stack.enter_context(consumer(zookeeper.connect))
        (stream,) = made.create_message_streams({fastlog_topic: 1})[fastlog_topic]
        assert take(stream) == b"1"
        made.commit_offsets()
        assert take(stream) == b"2"
        assert take(stream) == b"3"
        back = outage(zookeeper)
        stack.callback(back)
        with pytest.raises(CoordinationError):
            made.commit_offsets()
        made.commit_offsets(wait=False)
        wait_until("the lease ends", lambda: made.owned == {}, SECONDS)
        assert made.state is GroupState.NO_ZOOKEEPER
        assert stream.poll(0.05) is NoMessage.NOT_ASSIGNED
        began = time.monotonic()
        made.shutdown(timeout=1.0)
        assert time.monotonic() - began < SECONDS
        assert list(stream) == []
        wait_until("its threads end", lambda: not threads_of_groups(), SECONDS)
    with consumer(zookeeper.connect, zk_connection_timeout_ms=int(SECONDS * 1000)) as again:
        (stream,) = again.create_message_streams({fastlog_topic: 1})[fastlog_topic]
        # What was committed may have been before the first message counted; and a server that was only paused carries
        # out afterwards what it was sent meanwhile, though nobody waits for it any more.
        assert take(stream) in ((b"1", b"2", b"3") if outage is paused else (b"1", b"2"))
        while take(stream) != b"4":
            continue


def test_a_zookeeper_that_comes_late_is_waited_for(
    zookeeper: RunningZooKeeper, broker: RunningBroker, fastlog_topic: str
) -> None:
    produce(broker, fastlog_topic, b"1")
    zookeeper.kill()
    late = threading.Timer(0.3, zookeeper.start)
    late.start()
    try:
        with consumer(zookeeper.connect, zk_connection_timeout_ms=int(SECONDS * 1000)) as made:
            (stream,) = made.create_message_streams({fastlog_topic: 1})[fastlog_topic]
            assert take(stream) == b"1"
    finally:
        late.join()


def test_another_path_behind_the_servers_is_said(
    zookeeper: RunningZooKeeper, fastlog_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is there: that is no error, since brokers may come later; but nobody has to guess. Then one comes."""
    place = f"{zookeeper.connect}/{fastlog_topic}"
    with caplog.at_level(logging.WARNING), consumer(place) as made:
        (stream,) = made.create_message_streams({"t": 1})["t"]
        assert made.wait_assigned(SECONDS)
        assert made.state is GroupState.NOTHING
        assert stream.poll(0.01) is NoMessage.NOT_ASSIGNED
        wait_until("it is said", lambda: f"zookeeper={place}: no broker is registered there" in caplog.text, SECONDS)
        with testing.broker(zk_connect=place, partitions=1) as late:
            produce(late, "t", b"1")
            assert take(stream) == b"1"


def test_expressions_that_are_none_are_refused_before_anything_is_asked() -> None:
    with consumer("127.0.0.1:1") as made:
        for bad in ("[", "(", "*", "a**"):
            with pytest.raises(ConfigError, match="no regular expression"):
                made.create_message_streams_by_filter(whitelist=bad)
        assert made.state is GroupState.JOINING


def test_more_threads_than_partitions(zookeeper: RunningZooKeeper, broker: RunningBroker, fastlog_topic: str) -> None:
    """The streams that get nothing say so; the others get everything."""
    produce(broker, fastlog_topic, b"1", b"2")
    with consumer(zookeeper.connect) as made:
        streams = made.create_message_streams({fastlog_topic: 3})[fastlog_topic]
        wait_until("one is read", lambda: len(made.owned) == 1, SECONDS)
        with_some = [stream for stream in streams if stream.partitions]
        assert with_some == streams[:1] and [take(streams[0]), take(streams[0])] == [b"1", b"2"]
        assert [stream.poll(0.01) for stream in streams[1:]] == [NoMessage.NOT_ASSIGNED] * 2
        with consumer(zookeeper.connect) as other:
            (idle,) = other.create_message_streams({fastlog_topic: 1})[fastlog_topic]
            assert other.wait_assigned(SECONDS)
            wait_until("one of them reads", lambda: len(made.owned) + len(other.owned) == 1, SECONDS)
            assert bool(idle.partitions) == bool(other.owned)


def test_the_same_id_twice_is_refused(zookeeper: RunningZooKeeper, broker: RunningBroker, fastlog_topic: str) -> None:
    """T-30: the second one, clearly; the first goes on. Once it has left, the id is free."""
    produce(broker, fastlog_topic, b"1", b"2")
    with consumer(zookeeper.connect, consumer_id="one") as first:
        (stream,) = first.create_message_streams({fastlog_topic: 1})[fastlog_topic]
        assert take(stream) == b"1"
        second = consumer(zookeeper.connect, consumer_id="one")
        with pytest.raises(CoordinationError, match="is the consumer's id used twice"):
            second.create_message_streams({fastlog_topic: 1})
        second.shutdown()
        assert take(stream) == b"2"
        first.commit_offsets()
    with consumer(zookeeper.connect, consumer_id="one") as third:
        (stream,) = third.create_message_streams({fastlog_topic: 1})[fastlog_topic]
        assert take(stream) == b"2"


def test_a_topic_of_record_batches_is_named_as_what_it_is(
    zookeeper: RunningZooKeeper, broker: RunningBroker, fastlog_topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """At once, or when it is made later; with the way that reads it. Other topics are read on."""
    old, new = f"{fastlog_topic}-old", f"{fastlog_topic}-new"
    produce(broker, old, b"1", b"2")
    with (
        RecordBroker([Address(broker.host, broker.port)], timeout=SECONDS) as records,
        consumer(zookeeper.connect, group_id=f"later-{new}") as one,
    ):
        streams = one.create_message_streams({old: 1, new: 1})
        assert take(streams[old][0]) == b"1"
        assert streams[new][0].poll() is NoMessage.NOT_ASSIGNED
        records.create(new, 1, {})
        with pytest.raises(UnsupportedFeatureError, match="record batches"):
            next(streams[new][0])
        assert take(streams[old][0]) == b"2"
    with consumer(zookeeper.connect) as one, pytest.raises(UnsupportedFeatureError, match=f"topic {new}"):
        one.create_message_streams({new: 1})

    async def subscribe() -> None:
        async with AsyncConsumer(zookeeper.connect, group_id="g", topics=new):
            pass

    with pytest.raises(UnsupportedFeatureError, match=r"bootstrap\.servers"):
        asyncio.run(subscribe())
    command = "consume", "--zookeeper", zookeeper.connect, "--group", "g", "--topic", new
    for end in ((), ("--exit-at-end",)):
        ran = Commands(capfd)(*command, *end)
        assert ran.code != 0 and f"fastlog consume --brokers {broker.address}" in ran.err, ran.err
    read = Commands(capfd)("consume", "--brokers", broker.address, "--group", "g", "--topic", new, "--exit-at-end")
    assert (read.code, read.out) == (0, "")

"""The commands that find brokers through a real ZooKeeper, as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import fastlog
from fastlog import testing
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.perf.consuming import MODES, ConsumerOptions, measure_consumer
from fastlog.perf.group_consuming import LIST_MESSAGES
from fastlog.perf.sending import ReportInterval
from fastlog.producer import Crc32Partitioner
from fastlog.testing import RunningBroker, RunningZooKeeper
from tests.harness.broker import wait_until
from tests.harness.command_process import refused, run, started
from tests.harness.registration import Tree

pytestmark = [pytest.mark.slow, pytest.mark.java]
SECONDS = 20.0


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.fixture(scope="module")
def connect(zookeeper: RunningZooKeeper) -> str:
    return f"{zookeeper.connect}/place"


@pytest.fixture(scope="module")
def brokers(connect: str) -> Iterator[dict[int, RunningBroker]]:
    """Two of them, with two partitions each, registered."""
    with ExitStack() as stack, Tree(connect) as tree:
        made = {}
        for number in (1, 2):
            settings = {"zk_connect": connect, "zk_session_timeout_ms": 1000, "broker_id": number, "partitions": 2}
            made[number] = stack.enter_context(testing.broker(**settings))
        wait_until("both are there", lambda: all(tree.id_node(number) is not None for number in made), SECONDS)
        yield made


def stored(brokers: dict[int, RunningBroker], topic: str) -> dict[tuple[int, int], list[bytes]]:
    """What each partition has."""
    found = {}
    for number, broker in brokers.items():
        with broker.consumer() as consumer:
            for partition in range(2):
                found[number, partition] = [message.payload for message in consumer.messages(topic, partition)]
    return found


def announce(brokers: dict[int, RunningBroker], connect: str, topic: str) -> None:
    """Let every broker have the topic, and ZooKeeper show it."""
    for broker in brokers.values():
        assert run("topics", "create", topic, "--brokers", broker.address)[0] == 0
    with Tree(connect) as tree:
        wait_until("it is announced", lambda: all(topic in tree.counts(number) for number in brokers), SECONDS)


def test_keys_choose_among_the_partitions_of_all_brokers(
    brokers: dict[int, RunningBroker], connect: str, topic: str, tmp_path: Path
) -> None:
    """As ``fastlog.Producer`` does: sorted by broker and partition; also by the 0.7 name in a file."""
    announce(brokers, connect, topic)
    lines = [b"key %d\tline %d" % (number % 29, number) for number in range(1000)]
    data = b"".join(line + b"\n" for line in lines)
    common = ("produce", "--topic", topic, "--parse-key", "--keep-key", "--acks", "flushed")
    code, _, err = run(*common, "--zookeeper", connect, data=data)
    assert code == 0 and "produced 1000 messages" in err and "flushed" in err
    places = [(number, partition) for number in brokers for partition in range(2)]
    expected: dict[tuple[int, int], list[bytes]] = {place: [] for place in places}
    for line in lines:
        expected[places[Crc32Partitioner().partition(line.split(b"\t")[0], 4)]].append(line)
    assert stored(brokers, topic) == expected
    path = tmp_path / "producer.properties"
    path.write_text(f"zk.connect={connect}\nbroker.list=\n")
    assert run(*common, "--config", str(path), data=data)[0] == 0
    assert stored(brokers, topic) == {place: 2 * found for place, found in expected.items()}
    with fastlog.Producer(zk_connect=connect) as producer:
        assert producer.partitions(topic) == places


def test_a_broker_goes_while_lines_come(brokers: dict[int, RunningBroker], connect: str, topic: str) -> None:
    """Lines go to the others; keys choose among what there is then."""
    announce(brokers, connect, topic)
    with started("produce", "--zookeeper", connect, "--topic", topic, "--parse-key", "--keyless", "any") as process:
        assert process.stdin is not None

        def say(text: bytes) -> None:
            assert process.stdin is not None
            process.stdin.write(b"".join(b"%d\t%s %d\nno key, %s %d\n" % (n, text, n, text, n) for n in range(50)))
            process.stdin.flush()

        def has(text: bytes, number: int) -> int:
            return sum(
                text in payload for found in stored({1: brokers[1], 2: brokers[2]}, topic).values() for payload in found
            )

        say(b"before")
        wait_until("they are stored", lambda: has(b"before", 0) == 100, SECONDS)
        brokers[2].kill()
        assert process.stderr is not None
        while b"broker 2 is not in ZooKeeper" not in (line := process.stderr.readline()):
            assert line
        say(b"after")
        process.stdin.close()
        process.stdin = None
        _, err = process.communicate(timeout=SECONDS)
        brokers[2].start()
        assert process.returncode == 0 and b"produced 200 messages" in err, err.decode()
    found = stored(brokers, topic)
    assert sum(len(payloads) for payloads in found.values()) == 200
    assert not any(b"after" in payload for partition in range(2) for payload in found[2, partition])
    with Tree(connect) as tree:
        wait_until("it is back", lambda: tree.id_node(2) is not None, SECONDS)


def test_nobody_is_there(brokers: dict[int, RunningBroker], connect: str) -> None:
    """No ZooKeeper, and a path behind it that is another one: each says what is wrong; nothing is made there."""
    common = ("produce", "--topic", "t", "--connect-timeout", "300ms", "--zookeeper")
    code, _, err = run(*common, "127.0.0.1:1/place", data=b"x\n")
    assert code == 3 and "no ZooKeeper answers at 127.0.0.1:1/place" in refused(code, err)[0]
    wrong = connect + "wrong"
    code, _, err = run(*common, wrong, data=b"x\n")
    what, _, todo = refused(code, err)
    assert code == 3 and f"no broker is registered in ZooKeeper {wrong}" in what and "same path" in todo
    with ZooKeeperSession(connect.partition("/")[0]) as session:
        assert session.get("/placewrong") is None


def test_measuring_a_cluster(brokers: dict[int, RunningBroker], connect: str, topic: str) -> None:
    """producer-perf and consumer-perf by the names of 0.7; a group of its own is removed afterwards."""
    announce(brokers, connect, topic)
    arguments = ("--brokerinfo", f"zk.connect={connect}", "--topic", topic, "--messages", "5000", "--json")
    code, out, err = run(*arguments, module="fastlog.tools.producer_perf")
    assert code == 0, err
    sent = json.loads(out)
    assert sent["complete"] and sent["settings"]["zk_connect"] == connect
    arguments = ("--zookeeper", connect, "--topic", topic, "--messages", "5000", "--json")
    code, out, err = run(*arguments, module="fastlog.tools.consumer_perf")
    assert code == 0, err
    read = json.loads(out)
    assert read["complete"] and read["messages"] == 5000 and read["settings"]["zk_connect"] == connect
    assert read["partitions"] == ["1-0", "1-1", "2-0", "2-1"] and 0 < read["join_seconds"] <= read["seconds"]
    with ZooKeeperSession(connect) as session:
        assert not session.children("/consumers")


def test_every_way_of_a_group_reads_the_same(brokers: dict[int, RunningBroker], connect: str, topic: str) -> None:
    """A group that is named goes on where it has committed, and leaves its offsets."""
    announce(brokers, connect, topic)
    with fastlog.Producer(zk_connect=connect, producer_type="async") as producer:
        for number in range(2000):
            producer.send(topic, b"x" * (number % 100), key=f"{number}")
    size = sum(number % 100 for number in range(2000))
    given: dict[str, Any] = {"zk_connect": connect, "topic": topic}
    intervals: list[ReportInterval] = []
    for mode in MODES:
        found = measure_consumer(ConsumerOptions(**given, mode=mode, reporting_interval=300), intervals.append)
        assert found.complete and (found.messages, found.payload_bytes) == (2000, size), mode
        assert [item.all_messages for item in intervals] == [300, 600, 900, 1200, 1500, 1800, 2000], mode
        intervals.clear()
    found = measure_consumer(ConsumerOptions(**given, group="kept", messages=1234, threads=3))
    assert found.complete and found.messages == 1234 and found.threads == 3
    rest = measure_consumer(ConsumerOptions(**given, group="kept"))
    # What a thread was given last comes again.
    assert rest.complete and 2000 - 1234 <= rest.messages <= 2000 - 1234 + 3 * LIST_MESSAGES
    assert measure_consumer(ConsumerOptions(**given, group="kept")).messages == 0
    with ZooKeeperSession(connect) as session:
        assert session.children("/consumers") == ["kept"]

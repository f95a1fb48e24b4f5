"""With a real Kafka 0.7: its consumers in a group with ours, and its brokers as a mirror's source and target.

Its jars are in no package index, so this is collected only where ``FASTLOG_KAFKA_0_7_CLASSPATH`` names them.
"""

from __future__ import annotations

import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import fastlog
from fastlog import testing
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.mirror import Mirror, MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.testing import RunningZooKeeper
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.groups import GROUP, expected_owners, shown_owners
from tests.harness.mirrors import raw_entries
from tests.harness.real_kafka07 import SECONDS, broker, console_consumer, program
from tests.harness.registration import Tree, registered_broker

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]

BROKERS = 2
PARTITIONS = 3
SETTINGS = {"num.partitions": PARTITIONS, "zk.sessiontimeout.ms": 20_000}
"""With sessions that no busy machine ends."""
MORE = 300
"""Messages of each step, which are small enough for every partition to get some."""


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.fixture
def connect(zookeeper: RunningZooKeeper, fastlog_topic: str) -> str:
    """A tree of the test's own, which exists, as 0.7 wants it."""
    place = f"{zookeeper.connect}/{fastlog_topic}"
    ZooKeeperSession(place).close()
    return place


class Ours:
    """A member of fastlog with two streams, which reads until it is left."""

    def __init__(self, connect: str, name: str) -> None:
        self.consumer = fastlog.Consumer(
            zk_connect=connect,
            group_id=GROUP,
            consumer_id=name,
            zk_session_timeout_ms=20_000,
            zk_connection_timeout_ms=60_000,
            auto_commit_interval_ms=200,
            auto_offset_reset="smallest",
        )
        self.lines: list[bytes] = []
        streams = self.consumer.create_message_streams({"t": 2})["t"]
        self._threads = [threading.Thread(target=self._read, args=(stream,), daemon=True) for stream in streams]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: fastlog.Stream) -> None:
        for message in stream:
            self.lines.append(message.payload)

    def leave(self) -> None:
        self.consumer.shutdown()
        for thread in self._threads:
            thread.join(SECONDS)


class Feed:
    """Numbered messages to every partition in turn, and whether they have arrived."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.brokers = brokers
        self.sent: list[bytes] = []

    def send(self) -> list[bytes]:
        """Some more, a part of them compressed."""
        new = [b"message %d" % number for number in range(len(self.sent), len(self.sent) + MORE)]
        places = [(each, number) for each in self.brokers for number in range(PARTITIONS)]
        for index, (each, partition) in enumerate(places):
            with each.connect() as client:
                data = raw.message_set(new[index :: len(places)], codec=raw.GZIP if index % 2 else raw.NONE)
                assert client.produce_ack("t", partition, data, raw.FLUSHED).error == 0
        self.sent += new
        return new


def test_a_group_of_both(connect: str, tmp_path: Path) -> None:
    """They agree on who owns what, and each goes on where the other one stopped: in order, so nothing comes twice."""
    with ExitStack() as stack:
        feed = Feed(
            [
                stack.enter_context(registered_broker(tmp_path / f"{number}", connect, number, settings=SETTINGS))
                for number in range(BROKERS)
            ]
        )
        session = stack.enter_context(ZooKeeperSession(connect, session_timeout=20.0))
        feed.send()

        def owners(threads: int) -> dict[str, str]:
            """Who owns what, once that is what the formula says, of so many threads."""
            found: dict[str, str] = {}

            def agreed() -> bool:
                nonlocal found
                found = shown_owners(session, ["t"])
                return (
                    found == expected_owners(session, ["t"])
                    and len(found) == BROKERS * PARTITIONS
                    and len(set(found.values())) == threads
                )

            wait_until(f"{threads} threads own everything", agreed, SECONDS)
            return found

        def wait_read(*readers: object) -> Counter[bytes]:
            """Until all that was sent has arrived."""

            def lines() -> Counter[bytes]:
                return Counter(line for reader in readers for line in reader.lines)  # type: ignore[attr-defined]

            wait_until("everything is read", lambda: not set(feed.sent) - set(lines()), SECONDS)
            return lines()

        arguments = console_consumer(connect, GROUP, "t")
        theirs = stack.enter_context(program(tmp_path / "07", "first", *arguments, "--from-beginning"))
        owners(1)
        assert wait_read(theirs) == Counter(feed.sent)

        ours = Ours(connect, "aaa")
        stack.callback(ours.leave)
        assert Counter(owner.rpartition("-")[0] for owner in owners(3).values()) == {
            f"{GROUP}_aaa": 4,
            next(name for name in session.children(f"/consumers/{GROUP}/ids") or [] if name != f"{GROUP}_aaa"): 2,
        }
        new = feed.send()
        assert wait_read(theirs, ours) == Counter(feed.sent)
        assert set(new) & set(theirs.lines)
        assert set(new) & set(ours.lines)

        theirs.end()
        owners(2)
        new = feed.send()
        assert wait_read(theirs, ours) == Counter(feed.sent)
        assert set(new) <= set(ours.lines)

        again = stack.enter_context(program(tmp_path / "07", "again", *arguments))
        owners(3)
        feed.send()
        assert wait_read(theirs, ours, again) == Counter(feed.sent)

        ours.leave()
        owners(1)
        new = feed.send()
        assert wait_read(theirs, ours, again) == Counter(feed.sent)
        assert set(new) <= set(again.lines)

        # a member of 0.7 that dies: what it had not committed may come again, from us, and nothing is left out
        last = Ours(connect, "zzz")
        stack.callback(last.leave)
        owners(3)
        feed.send()
        again.end(signal.SIGKILL)
        feed.send()
        owners(2)
        found = wait_read(theirs, ours, again, last)
        assert set(found) == set(feed.sent)
        assert all(count <= 2 for count in found.values())


def log_of(folder: Path) -> bytes:
    """A partition, as its segments hold it."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.kafka")))


def _mirror(source: str, target: dict[str, str]) -> Mirror:
    common = {"groupid": "m", "autocommit.interval.ms": "100", "autooffset.reset": "smallest"}
    sources = (SourceConfig.from_properties("source", {"zk.connect": source, **common}),)
    settings = MirrorSettings.from_properties({"mirror.topics.whitelist": "t"})
    return Mirror(MirrorConfig(sources=sources, target=TargetConfig.from_properties(target), settings=settings))


@pytest.mark.parametrize("how", ["zk.connect", "broker.list"])
def test_a_broker_of_0_7_as_the_target(connect: str, tmp_path: Path, how: str) -> None:
    """It acknowledges nothing, and holds the same bytes all the same; a consumer of 0.7 reads them."""
    source, target = f"{connect}/source", f"{connect}/target"
    for place in (source, target):
        ZooKeeperSession(place).close()

    def stored() -> dict[int, list[bytes]]:
        folders = (tmp_path / "theirs" / "data").glob("t-*")
        return {int(folder.name[2:]): raw_entries(log_of(folder)) for folder in folders}

    with (
        registered_broker(tmp_path / "ours", source, settings=SETTINGS) as one,
        broker(tmp_path / "theirs", target, partitions=PARTITIONS) as (theirs, port),
    ):
        feed = Feed([one])
        feed.send()
        # a topic that a broker of 0.7 has not made is taken to have partition 0, as 0.7 takes it
        mains = ("kafka.producer.ConsoleProducer", "--zookeeper", target, "--topic", "t")
        with program(tmp_path / "07", "producer", *mains, told=b"first\n") as producer, Tree(target) as tree:
            wait_until("0.7 has made the topic", lambda: tree.counts() == {"t": b"%d" % PARTITIONS}, SECONDS)
            wait_until("0.7 has the first message", lambda: sum(map(len, stored().values())) == 1, SECONDS)
            producer.end()
        mirror = _mirror(source, {how: target if how == "zk.connect" else f"0:127.0.0.1:{port}"})
        mirror.start()
        try:
            feed.send()
            held = {number: raw_entries(one.stored_bytes("t", number)) for number in range(PARTITIONS)}
            wanted = Counter(entry for entries in held.values() for entry in entries)

            def arrived() -> bool:
                return not wanted - Counter(entry for entries in stored().values() for entry in entries)

            wait_until("everything is in the log of 0.7", arrived, SECONDS)
        finally:
            mirror.stop()
        found = {
            number: [each for each in entries if raw.deep_payloads(each) != [b"first"]]
            for number, entries in stored().items()
        }
        if how == "zk.connect":
            assert found == held
        else:
            assert Counter(entry for entries in found.values() for entry in entries) == wanted
        arguments = console_consumer(target, "check", "t")
        with program(tmp_path / "theirs", "check", *arguments, "--from-beginning") as reader:
            wait_until("0.7 reads it", lambda: len(reader.lines) > len(feed.sent), SECONDS)
            assert Counter(reader.lines) == Counter([*feed.sent, b"first"])
        theirs.end()
        # it hangs up on what it does not know, which is how it is told from ours; that must be all it complains of
        failures = re.findall(r"^[\w.]+(?:Exception|Error)\b.*", theirs.said, re.M)
        assert all("No mapping found for handler id" in line for line in failures), failures


def test_a_broker_of_0_7_as_the_source(connect: str, tmp_path: Path) -> None:
    """What producers of 0.7 sent, compressed and not, is in our log entry by entry; a mirror goes on where it was."""
    source, target = f"{connect}/source", f"{connect}/target"
    for place in (source, target):
        ZooKeeperSession(place).close()
    sent: list[bytes] = []
    with (
        broker(tmp_path / "theirs", source),
        registered_broker(tmp_path / "ours", target, settings=SETTINGS) as ours,
    ):

        def stored() -> list[bytes]:
            return raw.deep_payloads(ours.stored_bytes("t", 0)) if ours.has_directory("t", 0) else []

        def theirs() -> list[bytes]:
            return raw.deep_payloads(log_of(tmp_path / "theirs/data/t-0"))

        def has_all(payloads: Callable[[], list[bytes]]) -> bool:
            return len(payloads()) >= len(sent)

        for number, compress in enumerate(([], ["--compress"], [])):
            new = [b"line %d of %d" % (line, number) for line in range(MORE)]
            mains = ("kafka.producer.ConsoleProducer", "--zookeeper", source, "--topic", "t", *compress)
            sent += new
            with program(tmp_path / "07", f"producer{number}", *mains, told=b"\n".join(new) + b"\n") as producer:
                wait_until("the broker of 0.7 has it", lambda: has_all(theirs), SECONDS)
                producer.end()  # it does not by itself
            mirror = _mirror(source, {"zk.connect": target})
            mirror.start()
            try:
                wait_until("everything has come", lambda: has_all(stored), SECONDS)
            finally:
                mirror.stop()
            assert stored() == sent
        assert raw_entries(ours.stored_bytes("t", 0)) == raw_entries(log_of(tmp_path / "theirs/data/t-0"))

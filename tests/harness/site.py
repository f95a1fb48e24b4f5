"""Two brokers and a ZooKeeper for the tests of commands, and a client that writes nodes as 0.7 does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient

import fastlog
from fastlog import testing
from fastlog.testing import RunningBroker
from tests.harness.broker import wait_until
from tests.harness.command_line import Commands, Ran

LINES = [b"line %d" % number for number in range(4000)]
"""What the topic ``logs`` holds, over both brokers and all partitions."""


class Site:
    """Two brokers with two partitions each, and a client of ZooKeeper that writes as 0.7 does."""

    def __init__(self, connect: str, brokers: list[RunningBroker]) -> None:
        self.connect = connect
        self.brokers = brokers
        self.client = KazooClient(connect)

    def node(self, path: str, data: str, *, ephemeral: bool = False) -> None:
        """Make or change a node, parents and all."""
        if self.client.exists(path):
            self.client.set(path, data.encode())
        else:
            self.client.create(path, data.encode(), ephemeral=ephemeral, makepath=True)

    def produce(self, broker: int, topic: str, payloads: list[bytes], *, partition: int | None = None) -> None:
        """Send to one broker; returns when all is flushed, and ZooKeeper shows that the broker has the topic."""
        with fastlog.Producer(self.brokers[broker].address, acks="flushed") as producer:
            producer.send(topic, payloads, partition=partition)
        wait_until("the topic is announced", lambda: self.client.exists(f"/brokers/topics/{topic}/{broker}"), 20.0)

    def ends(self, topic: str) -> dict[str, int]:
        """Up to where each partition can be read."""
        found = {}
        for place, broker in enumerate(self.brokers):
            with fastlog.SimpleConsumer(broker.host, broker.port) as consumer:
                for number in (0, 1):
                    found[f"{place}-{number}"] = consumer.get_offsets_before(topic, number, -1)[0]
        return found


@contextmanager
def open_site() -> Iterator[Site]:
    """A site for the length of the block."""
    with testing.zookeeper() as zookeeper:
        connect = f"{zookeeper.connect}/tools"
        with testing.cluster(2, partitions=2, zk_connect=connect) as brokers:
            made = Site(connect, brokers)
            made.client.start()
            for number in range(len(brokers)):
                for start in range(0, len(LINES), 100):
                    made.produce(number, "logs", LINES[start + number : start + 100 : 2])
            try:
                yield made
            finally:
                made.client.stop()
                made.client.close()


class Tools:
    """The commands, with the site's ZooKeeper."""

    def __init__(self, capture: pytest.CaptureFixture[str], connect: str) -> None:
        self._commands = Commands(capture)
        self._connect = connect

    def __call__(self, command: str, *arguments: str) -> Ran:
        return self._commands(*command.split(), "--zookeeper", self._connect, *arguments)

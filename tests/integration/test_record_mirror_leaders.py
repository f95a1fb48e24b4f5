"""``fastlog mirror`` of record batches where two brokers on either side lead every other partition each.

A broker of fastlog shows itself as its whole cluster, so that each pair is made of two with the same topics, of which
the mirror is told who leads what; both would take any request for any partition, and none that is led by the other one
may come.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.client.record_topics import ClusterView
from fastlog.mirror import MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.mirror.records.cluster import RecordCluster
from fastlog.testing import RunningBroker
from tests.integration.test_record_mirror import (
    SESSION,
    append,
    client,
    count,
    records_of,
    running,
    stored,
    wait_for,
)

PARTITIONS = 4
TOPIC = "led"
Pair = tuple[RunningBroker, RunningBroker]


@contextmanager
def pair(directory: Path) -> Iterator[Pair]:
    """Two brokers with one topic of one id: the second one's files begin as a copy of the first one's."""
    with testing.broker(processors=1, directory=directory / "0") as first, client(first) as there:
        there.create(TOPIC, PARTITIONS, {})
    shutil.copytree(directory / "0", directory / "1")
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(testing.broker(processors=1, directory=directory / name, properties=SESSION))
            for name in ("0", "1")
        )
        yield first, second


def addresses(brokers: Pair) -> list[Address]:
    return [Address(broker.host, broker.port) for broker in brokers]


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Pair, Pair]]:
    """Source and target, whose Metadata says that the first broker leads the even partitions, the second the odd."""
    look = RecordCluster.look

    def led(self: RecordCluster, topics: Iterable[str] | None) -> ClusterView:
        found = look(self, topics)
        brokers = next(one for one in map(addresses, (source, target)) if set(one) & set(found.brokers.values()))
        self.view = found._replace(
            brokers=dict(enumerate(brokers)),
            topics={
                name: topic._replace(leaders={partition: partition % 2 for partition in topic.leaders})
                for name, topic in found.topics.items()
            },
        )
        return self.view

    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    with pair(tmp_path / "source") as source, pair(tmp_path / "target") as target:
        monkeypatch.setattr(RecordCluster, "look", led)
        yield source, target


def config(source: Pair, target: Pair) -> MirrorConfig:
    names = [",".join(broker.address for broker in brokers) for brokers in (source, target)]
    given = {
        "bootstrap.servers": names[0],
        "groupid": "mirror",
        "session.timeout.ms": "1000",
        "heartbeat.interval.ms": "50",
        "metadata.max.age.ms": "200",
        "autocommit.interval.ms": "50",
    }
    return MirrorConfig(
        sources=(SourceConfig.from_properties("one", given),),
        target=TargetConfig.from_properties({"bootstrap.servers": names[1]}),
        settings=MirrorSettings.from_properties({"mirror.topics.whitelist": TOPIC}),
    )


def test_each_partition_goes_from_its_leader_to_its_leader(sides: tuple[Pair, Pair]) -> None:
    """While a broker of either side is away its partitions wait and no others; in the end each record is there once."""
    source, target = sides
    written = dict.fromkeys(range(PARTITIONS), 0)

    def write(*partitions: int) -> None:
        for partition in partitions:
            append(source[partition % 2], TOPIC, partition, records_of(partition, 20 + partition), partition)
            written[partition] += 20 + partition

    def has_come(*partitions: int) -> bool:
        return all(count(target[number % 2], TOPIC, number) == written[number] for number in partitions)

    write(*range(PARTITIONS))
    with running(config(source, target)) as mirror:
        (one,) = mirror.sources
        wait_for(mirror, "all is there", lambda: has_come(*range(PARTITIONS)))
        source[1].kill()
        write(0, 2)
        wait_for(mirror, "the even ones go on", lambda: has_come(0, 2))
        wait_for(mirror, "the odd ones wait", lambda: set(one.waiting) == {f"{TOPIC}:1", f"{TOPIC}:3"})
        source[1].start()
        write(1, 3)
        wait_for(mirror, "so do the odd ones again", lambda: has_come(*range(PARTITIONS)))
        target[1].kill()
        write(*range(PARTITIONS))
        wait_for(mirror, "the even ones go on", lambda: has_come(0, 2))
        wait_for(mirror, "the odd ones wait", lambda: set(one.waiting) == {f"{TOPIC}:1", f"{TOPIC}:3"})
        target[1].start()
        wait_for(mirror, "all is there", lambda: has_come(*range(PARTITIONS)))
        wait_for(mirror, "nothing waits", lambda: one.waiting == {} and set(one.lag.values()) == {0})
        assert one.totals.entries == sum(written.values())
    for number in range(PARTITIONS):
        assert stored(target[number % 2], TOPIC, number) == stored(source[number % 2], TOPIC, number)
        assert count(target[1 - number % 2], TOPIC, number) == 0

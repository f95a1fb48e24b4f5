"""A mirror in this process: its sources and its target are fake brokers, and its sources' ZooKeepers are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import pytest

from fastlog.consumer import connector
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.group import Group
from fastlog.mirror import Forwarded, Mirror, MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.zkpaths import BrokerRegistration, PartitionId, broker_path, encode_number, offset_path, topic_broker_path
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.raw_format import entries

GROUP = "m"
NEVER_MS = "3600000"


class Site:
    """From entering to leaving the block. ``sources`` and ``trees`` are by name, and ``target`` is broker 0 of a list.

    Each source has one broker, with id 0. Offsets are committed by the clock only where ``autocommit`` says so.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        names: Sequence[str] = ("one",),
        partitions: int = 1,
        target: FakeBroker | None = None,
        autocommit_ms: str = "20",
        consumer: dict[str, str] | None = None,
        producer: dict[str, str] | None = None,
    ) -> None:
        self.target = target if target is not None else FakeBroker(partitions=partitions)
        self.partitions = partitions
        self.sources = {name: FakeBroker(partitions=partitions) for name in names}
        self.trees = {name: FakeZooKeeper(timeout=5.0) for name in names}
        self._consumer = {
            "groupid": GROUP,
            "local": "off",
            "autocommit.interval.ms": autocommit_ms,
            "rebalance.backoff.ms": "20",
            "fetcher.backoff.ms": "20",
            "zk.connectiontimeout.ms": "1000",
            **(consumer or {}),
        }
        self._producer = producer or {}
        self._stack = ExitStack()

        def group(config: ConsumerConfig, *given: Any, **options: Any) -> Group:
            tree = self.trees[config.zk_connect.partition(":")[0]]
            return Group(config, *given, **options, open_session=lambda on_change, is_wanted: tree.open(on_change))

        monkeypatch.setattr(connector, "Group", group)

    def __enter__(self) -> Self:
        for name, broker in {**self.sources, "target": self.target}.items():
            self._stack.enter_context(broker)
            if name in self.trees:
                session = self.trees[name].open()
                value = BrokerRegistration(f"c-{name}", "127.0.0.1", broker.port)
                session.create(broker_path(0), value.encode(), ephemeral=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, topic: str, name: str = "one") -> None:
        """The source's broker registers a topic with all its partitions."""
        session = self.trees[name].open()
        session.create(topic_broker_path(topic, 0), encode_number(self.partitions), ephemeral=True)

    def put(self, data: bytes, topic: str = "t", partition: int = 0, name: str = "one") -> int:
        """Append to a log of a source; where it ends now."""
        broker = self.sources[name]
        broker.logs[topic, partition] = broker.logs.get((topic, partition), b"") + data
        return len(broker.logs[topic, partition])

    def config(self, **settings: str) -> MirrorConfig:
        """``mirror_`` is put before the names, and ``_`` stands for a point."""
        given = {"topics_whitelist": "t|u|audit", **settings}
        return MirrorConfig(
            sources=tuple(
                SourceConfig.from_properties(name, {"zk.connect": f"{name}:1", **self._consumer})
                for name in self.sources
            ),
            target=TargetConfig.from_properties({"broker.list": f"0:127.0.0.1:{self.target.port}", **self._producer}),
            settings=MirrorSettings.from_properties(
                {f"mirror.{name.replace('_', '.')}": value for name, value in given.items()}
            ),
        )

    @contextmanager
    def running(self, observer: Any = None, **settings: str) -> Iterator[Mirror]:
        """A mirror for the length of the block, which leaves nothing undone."""
        mirror = Mirror(self.config(**settings), observer)
        mirror.start()
        try:
            yield mirror
        except BaseException:
            mirror.stop(0.0)
            raise
        assert mirror.stop() == []

    def stored(self, topic: str = "t", partition: int = 0) -> bytes:
        """What the target's log holds."""
        return self.target.logs.get((topic, partition), b"")

    def committed(self, topic: str = "t", partition: int = 0, name: str = "one") -> int | None:
        """What the group has saved, None for nothing."""
        data = self.trees[name].shown().get(offset_path(GROUP, topic, PartitionId(0, partition)))
        return int(data) if data is not None else None

    def wait_committed(self, offset: int, topic: str = "t", partition: int = 0, name: str = "one") -> None:
        """Wait until exactly this offset is committed."""
        wait_until(
            f"{name} {topic} is committed up to {offset}, not {self.committed(topic, partition, name)}",
            lambda: self.committed(topic, partition, name) == offset,
        )

    def wait_stored(self, size: int, topic: str = "t", partition: int = 0) -> None:
        """Wait until the target's log has at least this many bytes."""
        wait_until(f"{size} bytes of {topic} are there", lambda: len(self.stored(topic, partition)) >= size)


class Told:
    """An observer that notes what it is told, and what was committed at that moment."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.runs: list[Forwarded] = []
        self.early: list[Forwarded] = []
        """What was committed before it was told."""

    def __call__(self, run: Forwarded) -> None:
        committed = self.site.committed(run.source.topic, run.source.partition.partition, run.cluster)
        if committed is not None and committed > run.offset:
            self.early.append(run)
        self.runs.append(run._replace(data=memoryview(bytes(run.data))))


def pieces(data: bytes) -> list[bytes]:
    """The entries of a log, compressed sets closed."""
    return [data[item.offset : item.next_offset] for item in entries(data)]


def is_in_order(source: bytes, target: bytes) -> bool:
    """Whether the target has each entry of the source, none before its turn and no others; some may come again.

    All entries of the source are different ones.
    """
    numbers = {entry: number for number, entry in enumerate(pieces(source))}
    highest = -1
    for entry in pieces(target):
        number = numbers.get(entry)
        if number is None or number > highest + 1:
            return False
        highest = max(highest, number)
    return highest == len(numbers) - 1

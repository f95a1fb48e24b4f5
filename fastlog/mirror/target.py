"""The cluster that is written to: which brokers it has, which partitions of a topic, and connections to them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from fastlog.client.addresses import Address
from fastlog.client.topics import create_topic
from fastlog.errors import FastlogError, error_for
from fastlog.mirror.config import MirrorConfig
from fastlog.mirror.pieces import TargetPartition
from fastlog.mirror.pipe import Pipe
from fastlog.producer._buffer import Quota
from fastlog.producer.brokers import BrokerAddress, Directory, parse_broker_list
from fastlog.producer.discovery import Discovery, OpenSession, View
from fastlog.producer.ledger import Ledger
from fastlog.producer.waiting import Background
from fastlog.retry import Backoff

log = logging.getLogger(__name__)

_LEAST_PAUSE = 0.05
_MOST_PAUSE = 1.0
_UNUSED_SECONDS = 30.0


class MirrorTarget(Protocol):
    """The target as a mirror sees it; for the mirror's thread alone."""

    def partitions(self, topic: str) -> list[TargetPartition] | None:
        """All of a topic, sorted; None while that is not known. Returns at once."""

    def addresses(self) -> Mapping[int, Address]:
        """The addresses of its brokers by id; none while they are not known."""

    def directory(self, broker: int) -> Directory:
        """What is known of a broker that ``partitions`` named."""

    def stop(self) -> None:
        """Ask brokers and ZooKeeper for nothing any more; returns at once."""


class Asking:
    """Asks brokers of a list how many partitions a topic has there, each in a thread that goes on until it knows."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.is_stopping = False
        self._on_change = on_change
        self._since: dict[object, float] = {}
        self._found: dict[object, int | None] = {}

    def known(self, key: object) -> bool:
        """Whether the answer for this key has come."""
        return key in self._found

    def answer(self, key: object) -> int | None:
        """The answer for this key, which has to be known: a number of partitions, or None."""
        return self._found[key]

    def seconds(self, key: object, ask: Callable[[], int | None], what: str) -> float:
        """For how many seconds the answer has been asked for; begins to ask where no thread does."""
        if key not in self._since:
            self._since[key] = time.monotonic()
            Background(lambda: self._ask(key, ask, what), "fastlog-mirror-ask")
        return time.monotonic() - self._since[key]

    def _ask(self, key: object, ask: Callable[[], int | None], what: str) -> None:
        backoff = Backoff(_LEAST_PAUSE, _MOST_PAUSE, 0.25)
        while not self.is_stopping:
            try:
                self._found[key] = ask()
            except FastlogError as error:
                if backoff.is_first:
                    log.warning("%s: %s", what, " ".join(str(error).split()))
                time.sleep(backoff.next())
            else:
                self._on_change()
                return


class ListedTarget:
    """The brokers of ``broker.list``. One that does not answer at first is waited for no longer than a connection."""

    def __init__(self, config: MirrorConfig, on_change: Callable[[], None]) -> None:
        producer = config.target.producer
        assert producer.broker_list is not None
        self._patience = producer.connect_timeout_ms / 1000
        self._directories = {
            broker.id: Directory(broker, self._patience) for broker in parse_broker_list(producer.broker_list)
        }
        self._asking = Asking(on_change)

    def partitions(self, topic: str) -> list[TargetPartition] | None:
        """As ``MirrorTarget``; a plain 0.7 broker tells nothing, and is sure to have partition 0."""
        found, is_whole = [], True
        for broker, directory in self._directories.items():
            key = (broker, topic)
            if self._asking.known(key):
                count = self._asking.answer(key)
                found += [TargetPartition(broker, number) for number in range(1 if count is None else count)]
                continue

            def ask(directory: Directory = directory) -> int | None:
                return directory.partitions_or_none(topic)

            what = f"topic {topic} at {directory.broker.address}"
            is_whole &= self._asking.seconds(key, ask, what) > self._patience
        return sorted(found) if found and is_whole else None

    def addresses(self) -> Mapping[int, Address]:
        """As ``MirrorTarget``."""
        return {broker: directory.broker.address for broker, directory in self._directories.items()}

    def directory(self, broker: int) -> Directory:
        """As ``MirrorTarget``."""
        return self._directories[broker]

    def stop(self) -> None:
        """As ``MirrorTarget``."""
        self._asking.is_stopping = True


class FoundTarget:
    """The brokers that are registered in ZooKeeper. One that has gone keeps its place for a while."""

    def __init__(
        self, config: MirrorConfig, on_change: Callable[[], None], open_session: OpenSession | None = None
    ) -> None:
        producer = config.target.producer
        self._producer = producer
        self._patience = producer.connect_timeout_ms / 1000
        self._grace = config.settings.gone_broker_ms / 1000
        self._directories: dict[int, Directory] = {}
        self._seen: dict[str, dict[int, int]] = {}
        self._gone: dict[int, float] = {}
        self._asking = Asking(on_change)
        self._wake = on_change
        self._discovery = Discovery(producer, Ledger(Quota(1, 1), None), self._follow, open_session)
        self._discovery.start()

    def partitions(self, topic: str) -> list[TargetPartition] | None:
        """As ``MirrorTarget``. A topic that is new to it is made on every broker that can be asked to."""
        self._discovery.follow(topic)
        view = self._discovery.view
        counts = view.partitions.get(topic)
        if not counts or not counts.keys() <= self._directories.keys():
            return None
        if any(not self._is_made(topic, broker) for broker in view.assumed.get(topic, ())):
            return None
        seen = self._seen.setdefault(topic, {})
        seen.update(counts)
        now = time.monotonic()
        for broker in [broker for broker in seen if broker not in counts]:
            if now - self._gone.get(broker, now) >= self._grace:
                del seen[broker]
        return sorted(TargetPartition(broker, number) for broker, count in seen.items() for number in range(count))

    def addresses(self) -> Mapping[int, Address]:
        """As ``MirrorTarget``."""
        return self._discovery.view.addresses

    def directory(self, broker: int) -> Directory:
        """As ``MirrorTarget``."""
        return self._directories[broker]

    def stop(self) -> None:
        """As ``MirrorTarget``."""
        self._asking.is_stopping = True
        self._discovery.stop()

    def _follow(self, view: View) -> None:
        now = time.monotonic()
        for broker, address in view.addresses.items():
            self._gone.pop(broker, None)
            directory = self._directories.get(broker)
            if directory is None:
                self._directories[broker] = Directory(BrokerAddress(broker, address), self._patience, self._hint())
            elif directory.broker.address != address:
                directory.move(address)
        for broker in self._directories.keys() - view.addresses.keys():
            self._gone.setdefault(broker, now)
        self._wake()

    def _hint(self) -> str:
        return f"this is the address that ZooKeeper {self._producer.zk_connect} shows"

    def _is_made(self, topic: str, broker: int) -> bool:
        """Whether nothing more is to be waited for: what a broker is asked to make it announces."""
        directory = self._directories[broker]
        key = (broker, topic)
        seconds = self._asking.seconds(key, lambda: _make(directory, topic), f"making {topic} on broker {broker}")
        if self._asking.known(key) and self._asking.answer(key) is None:
            return True  # plain 0.7 makes it with the first message
        return seconds > self._patience


def make_target(config: MirrorConfig, on_change: Callable[[], None]) -> MirrorTarget:
    """The target of a mirror; ``on_change`` is called, in any thread, when it has something new to tell."""
    return (ListedTarget if config.target.producer.broker_list is not None else FoundTarget)(config, on_change)


class Pipes:
    """The connections to the target: the same number to each broker, shared by lanes."""

    def __init__(self, config: MirrorConfig, target: MirrorTarget, on_change: Callable[[], None]) -> None:
        self._config = config
        self._target = target
        self._on_change = on_change
        self._pipes: dict[tuple[int, int], Pipe] = {}
        self._asked: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()
        self._was_silent = False

    def get(self, broker: int, number: int) -> Pipe:
        """Connection ``number``, modulo how many there are, to a broker; it is made with the first use.

        Who uses it asks for it from time to time: one that nobody asks for is let go of.
        """
        key = broker, number % self._config.settings.producers
        with self._lock:
            pipe = self._pipes.get(key)
            if pipe is None:
                # with a directory of its own: a pipe asks anew what the broker offers each time it connects
                known = self._target.directory(broker)
                directory = Directory(known.broker, self._config.target.producer.connect_timeout_ms / 1000)
                directory.connector.hint = known.connector.hint
                pipe = self._pipes[key] = Pipe(directory, self._config.target, self._on_change)
            elif pipe.directory.broker.address != self._target.directory(broker).broker.address:
                pipe.directory.move(self._target.directory(broker).broker.address)
            self._asked[key] = time.monotonic()
            return pipe

    def sweep(self) -> None:
        """End connections that nobody has asked for in a while: their broker, or what went there, has gone."""
        now = time.monotonic()
        with self._lock:
            for key in [key for key, asked in self._asked.items() if now - asked > _UNUSED_SECONDS]:
                del self._asked[key]
                pipe = self._pipes.pop(key)
                self._was_silent |= not pipe.is_acknowledged
                pipe.stop()

    def stop(self, seconds: float) -> None:
        """Stop all pipes, and wait up to ``seconds`` in all for their threads."""
        pipes = list(self._pipes.values())
        for pipe in pipes:
            pipe.stop()
        deadline = time.monotonic() + seconds
        for pipe in pipes:
            pipe.join(max(0.0, deadline - time.monotonic()))

    @property
    def are_acknowledged(self) -> bool:
        """Every broker that was written to acknowledges what it stores."""
        self._was_silent |= any(not pipe.is_acknowledged for pipe in list(self._pipes.values()))
        return not self._was_silent

    @property
    def errors(self) -> list[str]:
        """A line for each broker that cannot be reached."""
        found = {pipe.directory.broker: pipe.error for pipe in list(self._pipes.values()) if pipe.error is not None}
        return [
            f"broker {broker.id} at {broker.address}: {str(error).splitlines()[0]}" for broker, error in found.items()
        ]


def _make(directory: Directory, topic: str) -> int | None:
    """Create a topic on a broker with as many partitions as it is set to; None for a plain 0.7 broker."""
    count = directory.partitions_or_none(topic)
    if count is None:
        return None
    with directory.connector.connect() as connection:
        answer = create_topic(connection, topic)
    if answer.error:
        raise error_for(answer.error, topic=topic, broker=directory.broker.address)
    return count

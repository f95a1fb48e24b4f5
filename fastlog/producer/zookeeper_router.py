"""Routing by what is registered in ZooKeeper: links to brokers that come, no new messages to those that go.

Keys choose among the same sorted list as in Kafka 0.7.2 (Producer, ZKBrokerPartitionInfo, ProducerPool). A message
without a key goes to a broker as often as the broker has partitions, and the broker picks one of them, so that another
broker can have it when that one dies.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Mapping, Sequence

from fastlog.client.registrations import address_hint, none_registered
from fastlog.errors import (
    ClosedError,
    FastlogError,
    TransportError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.producer._buffer import Buffer
from fastlog.producer._send import Route, Routes
from fastlog.producer.brokers import BrokerAddress, Directory, check_topic
from fastlog.producer.config import ProducerConfig
from fastlog.producer.discovery import Discovery, OpenSession, View
from fastlog.producer.hooks import PartitionChoice
from fastlog.producer.ledger import Ledger
from fastlog.producer.link import Link
from fastlog.producer.partitioners import Partitioner
from fastlog.producer.router import ANY, Router, TopicRoute
from fastlog.producer.waiting import Background, LocklessCondition
from fastlog.retry import Backoff

_LEAST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_MOST_WEIGHT = 1024
_READ_SECONDS = 0.5


class ZooKeeperRoute(TopicRoute):
    """A topic whose brokers are found in ZooKeeper, and may change with every view of it."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.counts: Mapping[int, int] = {}
        """Partitions on the brokers that something can be sent to."""
        self.has_keys = False
        """Keys were used; each buffer costs memory, so there is one for each partition only from then on."""
        self.is_of_records = False
        """Its messages become record batches on the broker, which keep neither a key nor headers of them."""
        self.table: Sequence[tuple[int, Buffer | None]] = ()
        """(broker, buffer) for each partition, sorted by both; no buffer where the broker was never reached."""


class ZooKeeperRouter(Router):
    """A ``Router`` that follows the registrations in ZooKeeper.

    What is derived of them is made anew, by whatever thread noticed a change, and again when another change came in
    between; so no lock is needed, and the last change always counts.
    """

    def __init__(
        self,
        config: ProducerConfig,
        ledger: Ledger,
        partitioner: Partitioner | None,
        fast_routes: Routes | None,
        open_session: OpenSession | None = None,
    ) -> None:
        super().__init__(config, ledger, partitioner, fast_routes)
        self.discovery = Discovery(config, ledger, self._follow, open_session)
        self._state = object()  # another one after each change
        self._changes = LocklessCondition()
        self._asking: set[int] = set()
        self._failures: dict[int, FastlogError] = {}

    def choose(self, topic: str, key: object, partition: PartitionChoice) -> Buffer:
        """See ``Router``; what was chosen by hand is forgotten when brokers have changed meanwhile.

        Raises:
            UnsupportedFeatureError: a key for a topic of record batches, which would lose it.
        """
        state = self._state
        route = self._route(topic)
        if key is not None:
            self._check_keys(route)
        buffer = super().choose(topic, key, partition)
        # Of records compiled code would take a key with a partition that was named before, and drop it.
        if partition is not None and (self._state is not state or route.is_of_records) and route.fast is not None:
            route.fast.forget_by_hand()
        return buffer

    def _first_directories(self) -> dict[int, Directory]:
        return {}

    def at(self, topic: str, broker: int, partition: int) -> Buffer:
        """The buffer of a partition of a broker, also of one that has gone since it was chosen."""
        route = self._topics.get(topic)
        chosen = route.buffers.get((broker, partition)) if route is not None else None
        return chosen or super().at(topic, broker, partition)

    def places(self, topic: str) -> list[tuple[int, int]]:
        """Every partition of the topic that ZooKeeper shows now, sorted by broker and number."""
        route = self._route(topic)
        self._check_keys(route)
        counts = self.discovery.view.partitions[route.topic]
        return [(broker, number) for broker, count in counts.items() for number in range(count)]

    def keyed_buffers(self, topic: str) -> list[Buffer] | None:
        """See ``Router``: one for every partition, also of brokers that were not reached when this was called."""
        route = self._route(topic)
        self._check_keys(route)
        self._by_key(route, b"")
        for broker, buffer in route.table:
            if buffer is None:
                self._check_broker(broker)
        if route.keyed is None:
            raise TransportError(f"the brokers of topic {topic!r} change: not all its partitions can be reached now")
        return route.keyed

    def stop(self) -> None:
        """Let the links send what they have and end."""
        super().stop()
        self.discovery.stop()
        self._changes.notify_all()

    # --- the view ---

    def _follow(self, view: View) -> None:
        """Act on a new view; in the worker of the discovery alone."""
        for broker, address in view.addresses.items():
            directory = self._directories.get(broker)
            if directory is None:
                found = BrokerAddress(broker, address)
                directory = Directory(found, self._config.connect_timeout_ms / 1000, self._hint(broker))
                self._directories[broker] = directory
            link = self.links.get(broker)
            if directory.broker.address != address:
                directory.move(address)
                if link is not None:
                    link.move()
            if link is not None:
                link.set_registered(True)
            self._ask_once(directory)
        for broker, link in list(self.links.items()):
            if broker not in view.addresses and link.is_registered:
                link.set_registered(False)
                self._ledger.log(
                    logging.WARNING,
                    f"gone {broker}",
                    f"broker {broker} is not in ZooKeeper {self._config.zk_connect} any more: new messages go to the"
                    " others, and what waits for a partition of it waits for its return",
                )
        self._changed()

    def _hint(self, broker: int) -> str:
        return address_hint(str(self._config.zk_connect), broker)

    def _changed(self) -> None:
        self._state = object()
        if self.closed:
            self._changes.notify_all()
            return
        for route in list(self._topics.values()):
            self._rebuild(route)
        self._changes.notify_all()

    def _ask_once(self, directory: Directory) -> None:
        """Have a thread ask a broker what it offers, unless that is known or being asked."""
        broker = directory.broker.id
        if directory.offer is None and broker not in self._asking and not self.closed:
            self._asking.add(broker)
            Background(lambda: self._ask_until_answered(directory), "fastlog-producer-ask", self._ledger)

    def _ask_until_answered(self, directory: Directory) -> None:
        broker, backoff = directory.broker.id, Backoff(_LEAST_PAUSE, _LONGEST_PAUSE, 0.25)
        while not self.closed and broker in self.discovery.view.addresses:
            try:
                directory.ask()
                directory.acks(self._config.acks)
            except FastlogError as error:
                self._failures[broker] = error
                self._ledger.log(logging.WARNING, f"ask {broker}", f"cannot use: {' '.join(str(error).split())}")
                self._changed()
                self._stopped.wait(backoff.next())
            else:
                self._failures.pop(broker, None)
                break
        else:
            self._failures.pop(broker, None)
        self._asking.discard(broker)
        self._changed()
        if broker in self.discovery.view.addresses:
            self._ask_once(directory)  # it came back just now

    def _rebuild(self, route: TopicRoute) -> None:
        assert isinstance(route, ZooKeeperRoute)
        while True:
            state = self._state
            if route.fast is not None:
                route.fast.forget_by_hand()
            counts = self.discovery.view.partitions.get(route.topic, {})
            usable = {broker: count for broker, count in counts.items() if self._is_usable(broker)}
            if usable:
                for broker in usable:
                    self._buffer(route, broker, ANY)
                route.counts = usable
                if route.has_keys:
                    route.table = [
                        (broker, self._buffer(route, broker, number) if broker in usable else None)
                        for broker, count in counts.items()
                        for number in range(count)
                    ]
                    keyed = [buffer for _, buffer in route.table if buffer is not None]
                    route.keyed = keyed if len(keyed) == len(route.table) else None
                if route.fast is None:
                    buffers = [self._buffer(route, broker, ANY) for broker in usable]
                    route.fast = Route(buffers, None, random.getrandbits(32))
                self._choose_up(route)
                if self._topics.get(route.topic) is route:
                    self._publish(route)
            if self._state is state:
                return

    def _records(self, route: TopicRoute, broker: int) -> None:
        """None: topics of either kind are written to by 0.7's protocol, whatever way a partition was chosen."""

    def _is_usable(self, broker: int) -> bool:
        directory = self._directories.get(broker)
        return directory is not None and directory.offer is not None and broker not in self._failures

    def _link(self, broker: int) -> Link:
        is_new = broker not in self.links
        link = super()._link(broker)
        if is_new and broker not in self.discovery.view.addresses:
            link.set_registered(False)
        return link

    def _choose_up(self, route: TopicRoute) -> None:
        """Give brokers that seem to work messages without a key as often as they have partitions."""
        assert isinstance(route, ZooKeeperRoute)
        seen: tuple[Mapping[int, int], list[int]] | None = None
        while route.fast is not None:
            counts = route.counts
            up = [broker for broker in counts if self.links[broker].is_up] or list(counts)
            if not up or (seen is not None and seen[0] is counts and seen[1] == up):
                return
            total = sum(counts[broker] for broker in up)
            buffers = []
            for broker in up:
                count = counts[broker] if total <= _MOST_WEIGHT else max(1, counts[broker] * _MOST_WEIGHT // total)
                buffers += [route.buffers[broker, ANY]] * count
            route.fast.choose_from(buffers)
            seen = counts, up

    def _other(self, link: Link, topic: str) -> Link | None:
        """Another link that messages for any partition of the topic may go to."""
        route = self._topics.get(topic)
        counts = route.counts if isinstance(route, ZooKeeperRoute) else {}
        found = [other for broker in counts if (other := self.links[broker]).can_replace(link)]
        return random.choice(found) if found else None

    # --- sending ---

    def _route(self, topic: str) -> ZooKeeperRoute:
        """What is known of a topic, finding out if need be. Raises as ``choose``."""
        route = self._topics.get(topic) or self._resolve(check_topic(topic))
        assert isinstance(route, ZooKeeperRoute)
        return route

    def _check_keys(self, route: ZooKeeperRoute) -> None:
        if route.is_of_records:
            raise UnsupportedFeatureError(
                "a producer with zk.connect writes values alone to a topic of record batches, by the protocol of 0.7\n"
                "give broker.list in place of zk.connect, and keys are stored"
            ).at(topic=route.topic)

    def _note_kind(self, route: ZooKeeperRoute) -> None:
        """Ask of a topic that nobody has announced whether it is one of record batches, which nobody announces."""
        assumed = self.discovery.view.assumed.get(route.topic, frozenset())
        asked = [self._directories[broker] for broker in assumed if self._is_usable(broker)]
        # who does not say so gets what it refuses later
        self._ask(route, asked, self._config.connect_timeout_ms / 1000)
        route.is_of_records = any(directory.records_or_none(route.topic) for directory in asked)

    def _resolve(self, topic: str) -> TopicRoute:
        """Read who has the topic, until one of them can be used or the time is over."""
        self.discovery.wait_for(topic, self._config.zk_connection_timeout_ms / 1000)
        deadline = time.monotonic() + self._config.connect_timeout_ms / 1000
        route = ZooKeeperRoute(topic)
        while True:
            state = self._state
            self._rebuild(route)
            if self.closed:
                raise ClosedError("the producer was closed")
            if route.fast is not None:
                break
            places = self.discovery.view.partitions[topic]
            errors = [self._failures[broker] for broker in places if broker in self._failures]
            left = deadline - time.monotonic()
            is_hopeless = len(errors) == len(places) and any(not isinstance(error, TransportError) for error in errors)
            if left <= 0 or (places and is_hopeless):
                raise self._none_usable(topic, errors)
            self._changes.wait_for(lambda state=state: self._state is not state or self.closed, left)  # type: ignore[misc]
        self._note_kind(route)
        kept = self._topics.setdefault(topic, route)
        self._rebuild(kept)  # of what changed before others could see it
        return kept

    def _none_usable(self, topic: str, errors: Sequence[FastlogError]) -> FastlogError:
        if len(errors) == 1:
            return errors[0]
        if errors:
            return TransportError("\n".join(map(str, errors)))
        place = f"ZooKeeper {self._config.zk_connect}"
        if not self.discovery.view.addresses:
            return none_registered(str(self._config.zk_connect))
        timeout = self._config.connect_timeout_ms / 1000
        return TransportError(f"no broker of {place} for topic {topic!r} answered within {timeout:g} s")

    def _by_key(self, route: TopicRoute, key: object) -> Buffer | None:
        """The buffer that a key chooses from the sorted list of (broker, partition).

        When that broker was never reached, ZooKeeper is read again some times: it may have gone.
        """
        assert isinstance(route, ZooKeeperRoute)
        if not route.table:  # the first key; or another thread's, which has not come to the end of this yet
            route.has_keys = True
            self._rebuild(route)
        if not route.table:
            raise self._none_usable(route.topic, list(self._failures.values()))
        pause = _LEAST_PAUSE
        for attempt in range(self._config.zk_read_retries + 1):
            table = route.table
            broker, buffer = table[self._index(route.topic, key, len(table))]
            if buffer is not None:
                return buffer
            state = self._state
            self._wait_asked(broker)
            if self.closed:
                raise ClosedError("the producer was closed")
            if attempt < self._config.zk_read_retries and self._state is state:
                self.discovery.read_again(_READ_SECONDS)
                self._changes.wait_for(lambda state=state: self._state is not state, pause)  # type: ignore[misc]
                pause *= 2
        table = route.table
        broker, buffer = table[self._index(route.topic, key, len(table))]
        if buffer is not None:
            return buffer
        error = self._failures.get(broker)
        raise error or TransportError(f"broker {broker} of ZooKeeper {self._config.zk_connect} did not answer yet")

    def _wait_asked(self, broker: int) -> None:
        """Wait until a broker has answered for the first time, or could not be reached once."""
        directory = self._directories.get(broker)
        if directory is not None:
            self._ask_once(directory)
        self._changes.wait_for(
            lambda: self._is_usable(broker) or broker in self._failures or self.closed or broker not in self._asking,
            2 * self._config.connect_timeout_ms / 1000 + 1,
        )

    def _brokers(self) -> Collection[int]:
        return self.discovery.view.addresses.keys()

    def _check_broker(self, broker: int) -> None:
        if broker not in self._brokers():
            self.discovery.read_again(_READ_SECONDS)
        if broker not in self._brokers():
            raise WrongPartitionError(f"no broker {broker} is registered in ZooKeeper {self._config.zk_connect}")
        self._wait_asked(broker)
        if broker in self._failures:
            raise self._failures[broker]

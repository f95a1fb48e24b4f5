"""Which buffer a message goes to: brokers, their partitions, and the choice by key, by hand or by chance."""

from __future__ import annotations

import logging
import random
import time
import zlib
from collections.abc import Collection, Iterable, Mapping

from fastlog import arguments
from fastlog.errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    FastlogError,
    TransportError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.producer._buffer import Buffer
from fastlog.producer._send import Route, Routes
from fastlog.producer.brokers import (
    Directory,
    RecordTopic,
    check_topic,
    parse_broker_list,
    record_acks,
)
from fastlog.producer.buffers import check_partition, message_buffer, payload_limit, record_buffer
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import PartitionChoice
from fastlog.producer.ledger import Ledger
from fastlog.producer.link import Link
from fastlog.producer.partitioners import SIGN_MASK, Crc32Partitioner, Partitioner, key_bytes
from fastlog.producer.record_link import RecordLink
from fastlog.producer.waiting import Background, OneShotEvent, wait_ended
from fastlog.retry import Backoff

ANY = -1
_ALL_BITS = 0xFFFFFFFF
_LEAST_PAUSE = 0.02
_LOOK_AGAIN_SECONDS = 1.0
END_SECONDS = 1.0


class TopicRoute:
    """What is known about one topic: partitions by broker id (None: the broker does not tell), and the buffers."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.partitions: dict[int, int | None] = {}
        self.buffers: dict[tuple[int, int], Buffer] = {}
        self.anywhere: dict[int, list[Buffer]] = {}
        """By broker id, the buffers for messages without a key."""
        self.keyed: list[Buffer] | None = None
        self.fast: Route | None = None


class Router:
    """The brokers of one producer. Safe from any thread; the network is asked in threads of their own."""

    def __init__(
        self,
        config: ProducerConfig,
        ledger: Ledger,
        partitioner: Partitioner | None,
        fast_routes: Routes | None,
    ) -> None:
        self.links: dict[int, Link] = {}
        """By broker id, the links for topics of Kafka 0.7's messages."""
        self.record_links: dict[int, RecordLink] = {}
        self.closed = False
        self._config = config
        self._ledger = ledger
        self._custom = partitioner is not None and type(partitioner) is not Crc32Partitioner
        self._partitioner = partitioner or Crc32Partitioner()
        self._fast_routes = fast_routes
        self._directories = self._first_directories()
        self._topics: dict[str, TopicRoute] = {}
        self._looks_for_missing = False
        self._stopped = OneShotEvent()

    def _first_directories(self) -> dict[int, Directory]:
        assert self._config.broker_list is not None
        timeout = self._config.connect_timeout_ms / 1000
        return {broker.id: Directory(broker, timeout) for broker in parse_broker_list(self._config.broker_list)}

    def choose(self, topic: str, key: object, partition: PartitionChoice) -> Buffer:
        """The buffer for messages of a topic.

        Raises:
            TransportError: no broker can be reached, or for a key not all of them.
            InvalidTopicError, WrongPartitionError, UnsupportedFeatureError: the messages cannot go anywhere.
        """
        route = self._topics.get(topic)
        if route is None:
            route = self._resolve(check_topic(topic))
        if partition is not None and partition != ANY:
            named = self._by_hand(route, partition)
            assert route.fast is not None
            wanted = partition[1] if isinstance(partition, tuple) else partition
            if named.partition == wanted:  # not where this side chooses among all of a broker: another one next time
                route.fast.set_by_hand(partition, named)
            return named
        if key is not None and partition is None:
            buffer = self._by_key(route, key)
            if buffer is not None:
                return buffer
        assert route.fast is not None
        buffer = route.fast.buffer_for_any()
        route.fast.turn()
        return buffer

    def at(self, topic: str, broker: int, partition: int) -> Buffer:
        """The buffer of a partition of a broker; -1 for any."""
        if broker == ANY:
            return self.choose(topic, None, partition)
        return self.choose(topic, None, (broker, partition))

    def places(self, topic: str) -> list[tuple[int, int]]:
        """What keys choose from: every partition of the topic, sorted by broker and number; none where keys do nothing.

        Raises as ``choose`` does for a key.
        """
        topic = check_topic(topic)
        route = self._topics.get(topic) or self._resolve(topic)
        return [(buffer.broker, buffer.partition) for buffer in self._keyed(route) or ()]

    def keyed_buffers(self, topic: str) -> list[Buffer] | None:
        """The buffers of all partitions, in the order from which a key's hash chooses; None when keys have no effect.

        Raises:
            TransportError: some of the partitions' brokers cannot be reached.
        """
        self.choose(topic, b"", None)
        return self._topics[topic].keyed

    def knows(self, topic: str, has_key: bool) -> bool:
        """Whether ``choose`` finds a buffer without asking anybody, unless a partition is named by hand."""
        route = self._topics.get(topic)
        return route is not None and (not has_key or route.keyed is not None or None in route.partitions.values())

    def publish(self, topic: str) -> None:
        """Have the compiled path of send() use what is known of a topic."""
        route = self._topics.get(topic)
        if route is not None:
            self._publish(route)

    def every_link(self) -> list[Link]:
        """The links for topics of both kinds: messages, and record batches."""
        return [*list(self.links.values()), *list(self.record_links.values())]

    def is_link_thread(self) -> bool:
        """Whether the caller is one of the sending threads."""
        return any(link.is_this_thread() for link in self.every_link())

    def send_now(self) -> None:
        """Send what is in the buffers without waiting for batches to fill. Does not wait for it; ``flush`` does."""
        for link in self.every_link():
            link.outbox.seal_all()

    def flush(self, seconds: float) -> bool:
        """Return True when all that is in the outboxes now is finished, False when the time is over."""
        deadline = time.monotonic() + seconds if seconds >= 0 else None
        while True:
            moves = self._ledger.moves
            events = [link.request_flush() for link in self.every_link()]
            if not wait_all(events, deadline):
                return False
            if self._ledger.moves == moves:  # else another broker has some of it now
                return True

    def stop(self) -> None:
        """Let the links send what they have and end."""
        self.closed = True
        self._stopped.set()
        for link in self.every_link():
            link.stop()

    def wait_stopped(self, deadline: float) -> None:
        """Return when all threads have ended; links that have not by the deadline give up what they have.

        A thread that hangs, as in asking a broker or ZooKeeper, is waited for ``END_SECONDS``.
        """
        links = self.every_link()
        if not wait_all([link.finished for link in links], deadline):
            for link in links:
                link.abort(ClosedError("the producer was closed before the message was delivered"))
        wait_ended(self._ledger, END_SECONDS)

    # --- finding out ---

    def _resolve(self, topic: str) -> TopicRoute:
        """Ask the brokers about a topic, until one answers or the time is over."""
        timeout = self._config.connect_timeout_ms / 1000
        deadline = time.monotonic() + timeout
        backoff = Backoff(_LEAST_PAUSE, 1.0)
        route = TopicRoute(topic)
        while True:
            errors = self._ask(route, self._directories.values(), 2 * timeout + 1)
            if self.closed:
                raise ClosedError("the producer was closed")
            if route.partitions:
                break
            if time.monotonic() + backoff.seconds >= deadline or not all(
                isinstance(error, TransportError) for error in errors
            ):
                raise (errors[0] if len(errors) == 1 else TransportError("\n".join(map(str, errors)))).at(topic=topic)
            OneShotEvent().wait(backoff.next())
        self._refuse_clusters(route)
        kept = self._open(route)
        if errors:
            self._look_for_missing()
        return kept

    def _refuse_clusters(self, route: TopicRoute) -> None:
        """Each broker of Apache Kafka tells the partitions of all."""
        foreign = [
            str(self._directories[broker].broker.address)
            for broker in route.partitions
            if (offer := self._directories[broker].offer) is not None and offer.only_today
        ]
        if foreign and len(route.partitions) > 1:
            raise ConfigError(
                f"broker.list: {', '.join(foreign)}: name one broker of an Apache Kafka, the one that leads the"
                f" partitions of {route.topic!r}, and none beside it"
            )

    def _ask(self, route: TopicRoute, directories: object, seconds: float) -> list[FastlogError]:
        """Note how many partitions each broker has; the errors of those that did not answer."""
        assert not isinstance(directories, str)
        asked = {
            directory.broker.id: Background(
                lambda directory=directory: directory.partitions_or_none(route.topic),  # type: ignore[misc]
                "fastlog-producer-ask",
                self._ledger,
            )
            for directory in list(directories)  # type: ignore[call-overload]
        }
        errors: list[FastlogError] = []
        deadline = time.monotonic() + seconds
        for broker, work in asked.items():
            try:
                route.partitions[broker] = work.result(max(0.0, deadline - time.monotonic()))
            except FastlogError as error:
                errors.append(error.at(broker=self._directories[broker].broker.address))
        return errors

    def _open(self, route: TopicRoute) -> TopicRoute:
        """Make the links and buffers for what is known of a topic, and let sends use them.

        Returns the topic's route, which is another one when another thread was first: with two, a partition would have
        two buffers, and no order.
        """
        anywhere = [buffer for broker in sorted(route.partitions) for buffer in self._anywhere(route, broker)]
        route.fast = Route(anywhere, None, random.getrandbits(32))
        kept = self._topics.setdefault(route.topic, route)
        self._choose_up(kept)
        self._publish(kept)
        return kept

    def _anywhere(self, route: TopicRoute, broker: int) -> list[Buffer]:
        """The buffers of a broker for messages without a key: of batches, this side chooses the partition."""
        records = self._records(route, broker)
        numbers = (ANY,) if records is None else records.partitions
        buffers = [self._buffer(route, broker, number) for number in numbers]
        route.anywhere[broker] = buffers
        return buffers

    def _records(self, route: TopicRoute, broker: int) -> RecordTopic | None:
        return self._directories[broker].records_or_none(route.topic)

    def _hash_mask(self, route: TopicRoute) -> int:
        """Of the bits of a key's CRC-32 that choose: all where today's clients write, too, as librdkafka has it."""
        kinds = [self._records(route, broker) is not None for broker in route.partitions]
        return _ALL_BITS if kinds and all(kinds) else SIGN_MASK

    def _publish(self, route: TopicRoute) -> None:
        """Have the compiled path of send() use a route; for keys only where they can be hashed there."""
        if self._fast_routes is None or route.fast is None:
            return
        route.fast.set_keyed(None if self._custom else route.keyed, self._hash_mask(route))
        self._fast_routes.set(route.topic, route.fast)
        if self.closed:
            self._fast_routes.clear()

    def _link(self, broker: int) -> Link:
        link = self.links.get(broker)
        if link is None:
            directory = self._directories[broker]
            limit = payload_limit(self._config, directory)
            made = Link(directory, self._config, self._ledger, directory.acks(self._config.acks), limit)
            made.on_state_change = self._choose_up_everywhere
            made.find_other = lambda topic: self._other(made, topic)
            link = self.links.setdefault(broker, made)  # another thread may have been first
            if self.closed:
                link.stop()
                raise ClosedError("the producer was closed")
        link.start()  # here, as a link that is interrupted before it is one of ours would run for ever
        return link

    def _record_link(self, broker: int) -> RecordLink:
        link = self.record_links.get(broker)
        if link is None:
            made = RecordLink(
                self._directories[broker],
                self._config,
                self._ledger,
                record_acks(self._config.acks),
                self._config.max_message_bytes,
            )
            made.on_state_change = self._choose_up_everywhere
            link = self.record_links.setdefault(broker, made)  # another thread may have been first
            if self.closed:
                link.stop()
                raise ClosedError("the producer was closed")
        link.start()
        return link

    def _buffer(self, route: TopicRoute, broker: int, partition: int) -> Buffer:
        buffer = route.buffers.get((broker, partition))
        if buffer is None:
            made = self._made_buffer(route, broker, partition)
            buffer = route.buffers.setdefault((broker, partition), made)
        return buffer

    def _made_buffer(self, route: TopicRoute, broker: int, partition: int) -> Buffer:
        config, topic, directory = self._config, route.topic, self._directories[broker]
        records = self._records(route, broker)
        if records is None:
            return message_buffer(config, directory, self._link(broker), topic, partition)
        check_partition(directory, topic, partition, records)
        return record_buffer(config, directory, self._record_link(broker), topic, partition, records)

    def _by_hand(self, route: TopicRoute, partition: PartitionChoice) -> Buffer:
        number: object = partition
        if isinstance(partition, tuple):
            if len(partition) != 2:
                raise ArgumentError(f"a partition is a number, or (broker id, number), not {partition!r:.60}")
            broker = arguments.whole("broker id", partition[0])
            number = partition[1]
        elif len(self._brokers()) == 1:
            broker = next(iter(self._brokers()))
        else:
            raise ConfigError(f"partition {partition} of which broker? with several, give (broker id, partition)")
        number = arguments.whole("partition", number, -(2**63), 2**63)
        self._check_broker(broker)
        if (buffer := route.buffers.get((broker, number))) is not None:
            return buffer
        if broker not in route.partitions:
            errors = self._ask(route, [self._directories[broker]], 2 * self._config.connect_timeout_ms / 1000 + 1)
            if errors:
                raise errors[0].at(topic=route.topic)
        count = route.partitions[broker]
        if number < ANY or (count is not None and number >= count):
            known = f"broker {broker} has {count} of topic {route.topic!r}" if count is not None else "the least is 0"
            raise WrongPartitionError(f"there is no partition {number}: {known}")
        records = self._records(route, broker)
        if number == ANY and records is not None:
            number = random.choice(records.partitions)
        return self._buffer(route, broker, number)

    def _brokers(self) -> Collection[int]:
        """The ids that messages may be sent to by hand."""
        return self._directories.keys()

    def _check_broker(self, broker: int) -> None:
        if broker not in self._directories:
            raise WrongPartitionError(f"broker.list has no broker {broker}")

    def _by_key(self, route: TopicRoute, key: object) -> Buffer | None:
        """The buffer that a key chooses; None when keys have no effect."""
        keyed = self._keyed(route)
        if keyed is None:
            return None
        if not self._custom and self._hash_mask(route) == _ALL_BITS:
            return keyed[zlib.crc32(key_bytes(key)) % len(keyed)]
        return keyed[self._index(route.topic, key, len(keyed))]

    def _index(self, topic: str, key: object, count: int) -> int:
        index = arguments.whole("the partitioner's choice", self._partitioner.partition(key, count), -(2**63), 2**63)
        if not 0 <= index < count:
            raise WrongPartitionError(f"the partitioner chose {index} of {count} partitions of {topic!r}")
        return index

    def _keyed(self, route: TopicRoute) -> list[Buffer] | None:
        """The buffers of all partitions, sorted by broker and partition; None when brokers do not tell theirs.

        All brokers are needed: with one missing, the same key would go to another partition than before.
        """
        if route.keyed is not None:
            return route.keyed
        missing = [self._directories[broker] for broker in self._directories if broker not in route.partitions]
        if missing:
            errors = self._ask(route, missing, 2 * self._config.connect_timeout_ms / 1000 + 1)
            if errors:
                raise TransportError(f"a key chooses among the partitions of all brokers; {errors[0]}") from errors[0]
        if any(count is None for count in route.partitions.values()):
            if self._custom:
                raise UnsupportedFeatureError(
                    f"a partitioner needs the number of partitions of {route.topic!r};"
                    " a plain 0.7 broker does not tell it"
                )
            self._ledger.log(
                logging.WARNING,
                "no keys",
                "keys have no effect: a plain 0.7 broker does not tell its partitions and chooses one itself",
            )
            return None
        route.keyed = [
            self._buffer(route, broker, number)
            for broker, count in sorted(route.partitions.items())
            for number in self._numbers(route, broker, count or 0)
        ]
        self._publish(route)
        return route.keyed

    def _numbers(self, route: TopicRoute, broker: int, count: int) -> Iterable[int]:
        records = self._records(route, broker)
        return range(count) if records is None else records.partitions

    # --- brokers that come and go ---

    def _other(self, link: Link, topic: str) -> Link | None:
        """Another link that messages for any partition of the topic may go to."""
        return next((other for other in list(self.links.values()) if other.can_replace(link)), None)

    def _choose_up_everywhere(self) -> None:
        for route in list(self._topics.values()):
            self._choose_up(route)

    def _choose_up(self, route: TopicRoute) -> None:
        """Send messages that may go anywhere to brokers that seem to work; to all when none does."""
        if route.fast is None:
            return
        chosen: list[Buffer] | None = None
        while True:  # until no other thread has changed anything meanwhile, or its choice would be lost
            anywhere = list(route.anywhere.items())
            up = [buffer for broker, buffers in anywhere if self._is_up(broker, buffers) for buffer in buffers]
            up = up or [buffer for _, buffers in anywhere for buffer in buffers]
            if up == chosen:
                return
            route.fast.choose_from(up)
            chosen = up

    def _is_up(self, broker: int, buffers: list[Buffer]) -> bool:
        links: Mapping[int, Link] = self.links if buffers[0].lane is None else self.record_links
        return links[broker].is_up

    def _look_for_missing(self) -> None:
        if not self._looks_for_missing:
            self._looks_for_missing = True
            Background(self._find_missing, "fastlog-producer-find", self._ledger)

    def _find_missing(self) -> None:
        """Take brokers into use that could not be reached when a topic was first sent to."""
        while not self._stopped.wait(_LOOK_AGAIN_SECONDS):
            left = False
            for route in list(self._topics.values()):
                for broker in self._unused(route):
                    if self.closed:
                        return
                    if broker not in route.partitions and self._ask(
                        route, [self._directories[broker]], self._config.connect_timeout_ms / 500 + 1
                    ):
                        left = True
                        continue
                    self._anywhere(route, broker)
                    self._choose_up(route)
            if not left:
                break
        self._looks_for_missing = False
        if not self.closed and any(self._unused(route) for route in list(self._topics.values())):
            self._look_for_missing()  # of a topic that came after the last look, and found this thread still there

    def _unused(self, route: TopicRoute) -> list[int]:
        """The brokers that get no messages without a key, as they could not be reached at the topic's first."""
        return [broker for broker in self._directories if broker not in route.anywhere]


def wait_all(events: list[OneShotEvent], deadline: float | None) -> bool:
    """Whether all events are set before the deadline (``time.monotonic``; None: wait for ever)."""
    return all(event.wait(-1.0 if deadline is None else max(0.0, deadline - time.monotonic())) for event in events)

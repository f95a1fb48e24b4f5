"""Whether topics that ZooKeeper does not show are topics of record batches, which a group there cannot read.

Brokers announce their topics of Kafka 0.7 alone, so they are asked by today's Metadata: in a thread that ends with its
answer, at once when topics or brokers have changed, and again after pauses that grow, as a topic may be made later.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection

from fastlog import escaping
from fastlog.client.addresses import Address
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.records import RecordBroker
from fastlog.errors import FastlogError, UnsupportedFeatureError
from fastlog.retry import Backoff

log = escaping.logger(__name__)

_LEAST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_ANSWER_SECONDS = 5.0
_STRIKES = 2
"""A process of a broker that dies at the first request looks as one of Kafka 0.7 does; not so often in a row."""


class RecordLookup:
    """Asks on behalf of a group's worker, whose every call returns at once; ``wake`` is called with each answer."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._names: frozenset[str] | None = frozenset()
        self._addresses: tuple[Address, ...] = ()
        self._found: dict[str, Address] = {}
        self._strikes: dict[Address, int] = {}
        self._answers: deque[dict[str, Address]] = deque()
        self._is_asking = False
        self._is_over = False
        self._backoff = Backoff(_LEAST_PAUSE, _LONGEST_PAUSE, 0.25)
        self.due = float("inf")
        """When ``turn`` has something to begin, on the monotonic clock."""
        self.has_looked = True
        """Whether every registered broker that answers was asked since the topics looked for have changed."""

    def follow(self, names: Collection[str] | None, addresses: Collection[Address]) -> None:
        """Look for these topics, or for all, at these brokers."""
        wanted, places = None if names is None else frozenset(names), tuple(sorted(addresses))
        if (wanted, places) == (self._names, self._addresses):
            return
        if places != self._addresses:
            self._strikes.clear()
        if wanted is not None:
            self._found = {topic: address for topic, address in self._found.items() if topic in wanted}
        is_less = wanted is not None and self._names is not None and wanted <= self._names
        is_known = is_less and places == self._addresses and self.has_looked
        self._names, self._addresses = wanted, places
        if not self._has_work():
            self.due, self.has_looked = float("inf"), True
        elif not is_known:
            self.due, self.has_looked = time.monotonic(), False
            self._backoff.reset()

    def turn(self, now: float) -> dict[str, Address]:
        """Begin to ask if that is due. Returns what was found meanwhile and not before, with a broker that has it."""
        new: dict[str, Address] = {}
        while self._answers:
            self._is_asking = False
            found = self._answers.popleft()
            new |= {topic: found[topic] for topic in found.keys() - self._found.keys() if self._is_wanted(topic)}
            self._found |= new
            if self.due > now:  # nothing has changed since it was begun
                self.has_looked = True
                self.due = now + self._backoff.next() if self._has_work() else float("inf")
        if not self._is_asking and now >= self.due:
            self._is_asking = True
            self.due = float("inf")
            names = None if self._names is None else sorted(self._names - self._found.keys())
            threading.Thread(
                target=self._ask, args=(names, self._addresses), name="fastlog-group-topics", daemon=True
            ).start()
        return new

    def close(self) -> None:
        """Begin no further request; one that is under way is not interrupted."""
        self._is_over = True

    def _is_wanted(self, topic: str) -> bool:
        return self._names is None or topic in self._names

    def _has_work(self) -> bool:
        return bool(self._addresses) and (self._names is None or bool(self._names - self._found.keys()))

    # -- its thread ----------------------------------------------------------------------------------------------------

    def _ask(self, names: list[str] | None, addresses: Collection[Address]) -> None:
        found: dict[str, Address] = {}
        try:
            for address in addresses:
                if not self._is_over and self._strikes.get(address, 0) < _STRIKES:
                    for topic in self._topics_of(address, names):
                        found.setdefault(topic, address)
        finally:
            self._answers.append(found)
            self._wake()

    def _topics_of(self, address: Address, names: list[str] | None) -> list[str]:
        try:
            with RecordBroker([address], timeout=_ANSWER_SECONDS) as broker:
                known = broker.known_topics(names)
        except NotSpokenError:
            self._strikes[address] = self._strikes.get(address, 0) + 1
            return []
        except FastlogError as error:
            log.debug("event=topics_unknown broker=%s: %s", address, error)
            return []
        return [topic for topic, one in known.items() if one.partitions and not (one.code or one.is_internal)]


def cannot_be_read(topic: str, broker: Address) -> UnsupportedFeatureError:
    """The error for a topic of record batches that a group in ZooKeeper was to read."""
    return UnsupportedFeatureError(
        "the topic is one of record batches, and a group in ZooKeeper reads topics of Kafka 0.7 alone\n"
        "let the broker keep the group: bootstrap.servers in place of zk.connect, as in"
        f" Consumer(brokers='{broker}') or fastlog consume --brokers {broker}"
    ).at(topic=topic, broker=broker)

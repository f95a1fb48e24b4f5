"""Where the brokers of a group's partitions are, and what each of them offers."""

from __future__ import annotations

import math
import threading
import time

from fastlog.client.addresses import Address
from fastlog.client.connection import Broker
from fastlog.client.topics import check_described
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.offered import Offers


class Link:
    """Where a broker is, and what it offers."""

    def __init__(self, address: Address, config: ConsumerConfig) -> None:
        self.address = address
        self.broker = Broker([address], config.socket_timeout_ms / 1000)
        self.offers = Offers(self.broker, config.max_message_bytes)
        self._lock = threading.Lock()
        self._logs: dict[str, tuple[float, dict[int, int]]] = {}

    def log_of(self, topic: str, partition: int, since: float) -> int:
        """When the broker's log was made, in ms since 1970; 0: not known. One answer for all partitions of a topic.

        An answer from before ``since`` (``time.monotonic``) does not count. Raises ``TransportError``, ``BrokerError``.
        """
        with self._lock:
            asked, found = self._logs.get(topic, (-math.inf, {}))
            if asked < since:
                asked = time.monotonic()
                metadata = self.broker.metadata_or_none((topic,))
                found = {}
                for described in metadata.topics if metadata is not None else ():
                    if described.name == topic:
                        check_described(described, self.broker.addresses[0])
                        found = {item.partition: item.created_ms for item in described.partitions}
                self._logs[topic] = asked, found
            return found.get(partition, 0)


class Links:
    """The link to each broker by its id, shared by the partitions there; asks anew what it offers after a failure."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._known: dict[int, Link] = {}

    def learn(self, broker: int, address: Address) -> bool:
        """Whether that is news."""
        known = self._known.get(broker)
        if known is not None and known.address == address:
            return False
        self._known[broker] = Link(address, self._config)
        return True

    def get(self, broker: int) -> Link:
        """The link to a broker whose address was learned."""
        return self._known[broker]

    def renew(self, broker: int, failed: Link) -> None:
        """The broker may be another one when it is back: another version, or other limits."""
        if self._known.get(broker) is failed:
            self._known[broker] = Link(failed.address, self._config)

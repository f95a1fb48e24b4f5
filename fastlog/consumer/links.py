"""Where the brokers of a group's partitions are, and what each of them offers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from fastlog.client.addresses import Address
from fastlog.client.connection import Broker
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.record_topics import KnownTopic
from fastlog.client.topics import check_described
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.offered import Offers
from fastlog.consumer.record_reader import RecordRequests, record_channel

_ID_BYTES_SHOWN = 7  # so that the number has no more digits than a time in milliseconds may have where it is kept


class _Known(NamedTuple):
    """What was learned of a topic: when its logs were made, in ms since 1970; or that it is one of record batches."""

    asked: float = -math.inf
    logs: Mapping[int, int] = MappingProxyType({})
    records: KnownTopic | None = None


class BrokerLink:
    """Where a broker is, and what it offers."""

    def __init__(self, address: Address, config: ConsumerConfig) -> None:
        self.address = address
        self.broker = Broker([address], config.socket_timeout_ms / 1000)
        self.offers = Offers(self.broker, config.max_message_bytes)
        self._lock = threading.Lock()
        self._topics: dict[str, _Known] = {}

    def log_of(self, topic: str, partition: int, since: float) -> int:
        """When the broker's log was made, in ms since 1970; 0: not known. One answer for all partitions of a topic.

        A topic of record batches has a number in place of it, which another one of that name has not.
        An answer from before ``since`` (``time.monotonic``) does not count. Raises ``TransportError``, ``BrokerError``.
        """
        known = self._know(topic, since)
        if known.records is not None:
            return int.from_bytes(known.records.id[:_ID_BYTES_SHOWN], "big")
        return known.logs.get(partition, 0)

    def records_of(self, topic: str) -> KnownTopic | None:
        """The topic, if it is one of record batches, by the answer that ``log_of`` saw last. Raises as that does."""
        return self._know(topic, 0.0).records

    def _know(self, topic: str, since: float) -> _Known:
        with self._lock:
            known = self._topics.get(topic, _Known())
            if known.asked < since or known.asked == -math.inf:
                known = self._topics[topic] = self._ask(topic)
            return known

    def _ask(self, topic: str) -> _Known:
        asked = time.monotonic()
        metadata = self.broker.metadata_or_none((topic,))
        for described in metadata.topics if metadata is not None else ():
            if described.name != topic:
                continue
            if described.error and (records := self._records_or_none(topic)) is not None:
                return _Known(asked, records=records)
            check_described(described, self.broker.addresses[0])
            return _Known(asked, {item.partition: item.created_ms for item in described.partitions})
        return _Known(asked)

    def _records_or_none(self, topic: str) -> KnownTopic | None:
        channel = record_channel(self.broker, "consumer")
        try:
            return channel.alone(RecordRequests(channel).topic_or_none, topic)
        except NotSpokenError:
            return None
        finally:
            channel.close()


class Links:
    """The link to each broker by its id, shared by the partitions there; asks anew what it offers after a failure."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._known: dict[int, BrokerLink] = {}

    def learn(self, broker: int, address: Address) -> bool:
        """Take a broker's address; True when it is new or has changed, and a new link was made."""
        known = self._known.get(broker)
        if known is not None and known.address == address:
            return False
        self._known[broker] = BrokerLink(address, self._config)
        return True

    def get(self, broker: int) -> BrokerLink:
        """The link to a broker whose address was learned."""
        return self._known[broker]

    def renew(self, broker: int, failed: BrokerLink) -> None:
        """The broker may be another one when it is back: another version, or other limits."""
        if self._known.get(broker) is failed:
            self._known[broker] = BrokerLink(failed.address, self._config)

"""How far the partitions of a topic go, as their brokers say: what a producer's clock waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastlog.client.addresses import Address
from fastlog.client.connection import MAX_METADATA_BYTES, Broker, Connection, ConnectionEnded
from fastlog.errors import TransportError, error_for
from fastlog.wire import requests, responses

_MOST_PARTITIONS = 10_000
_TRIES = 3


class PartitionEnds(NamedTuple):
    """The offsets of one partition; on a plain 0.7 broker ``log_end`` is the high watermark too."""

    log_start: int
    high_watermark: int
    log_end: int


class Ends(NamedTuple):
    """Log ends and high watermarks, added up over partitions."""

    log_end: int = 0
    high_watermark: int = 0


class TopicOfBroker:
    """Asks one broker about one topic, on a connection that is kept. For one thread; close it."""

    def __init__(self, address: Address, topic: str, partition: int | None, timeout: float) -> None:
        """``partition``: the one to look at; None: all. ``timeout``: seconds for an answer."""
        self.address = address
        self._broker = Broker([address], timeout)
        self._topic = topic
        self._partition = partition
        self._connection: Connection | None = None
        self._plain_partitions: list[int] = []
        self.identity: tuple[object, ...] = (address,)
        """Equal for two addresses of one broker, where the broker says who it is."""
        self.configured = 0
        """How many partitions there may be; 0 when nobody says."""
        first = self._broker.metadata_or_none((topic,))
        self.is_plain = first is None
        """It speaks Kafka 0.7 only, so that what is appended and not flushed yet cannot be seen."""
        if first is not None:
            self.identity = (first.broker_id, first.advertised_host, first.port)
            self.configured = max((found.configured_partitions for found in first.topics), default=0)
        else:
            self._plain_partitions = self._probed() if partition is None else [partition]

    def close(self) -> None:
        """Close the connection; may be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def positions(self) -> dict[int, PartitionEnds]:
        """The partitions that exist, with their offsets.

        Raises:
            TransportError: the broker cannot be reached, or does not answer.
            BrokerError: it refuses the topic.
        """
        if not self.is_plain:
            return self._told()
        found = {}
        for number in self._plain_partitions:
            start = self._offset_or_none(number, requests.TIME_EARLIEST)
            end = self._offset_or_none(number, requests.TIME_LATEST)
            if start is not None and end is not None:
                found[number] = PartitionEnds(start, end, end)
        return found

    def _told(self) -> dict[int, PartitionEnds]:
        # version 1 has what is asked for, and an earlier broker that is measured beside this one knows no other
        version = requests.OWN_VERSION
        answer = responses.decode_metadata(self._request(requests.encode_metadata(0, (self._topic,), version)), version)
        if answer.error:
            raise error_for(answer.error)
        found = {}
        for topic in answer.topics:
            if topic.error:
                raise error_for(topic.error, topic=self._topic)
            for item in topic.partitions:
                if self._partition in (None, item.partition):
                    found[item.partition] = PartitionEnds(item.log_start, item.high_watermark, item.log_end)
        return found

    def _probed(self) -> list[int]:
        """The partitions of a plain 0.7 broker, which closes the connection on the first one that does not exist."""
        for number in range(_MOST_PARTITIONS):
            if self._offset_or_none(number, requests.TIME_LATEST) is None:
                return list(range(number))
        return list(range(_MOST_PARTITIONS))

    def _offset_or_none(self, partition: int, time: int) -> int | None:
        try:
            body = self._request(requests.encode_offsets(self._topic, partition, time, 1))
        except ConnectionEnded:
            return None
        answer = responses.decode_offsets(body)
        return answer.offsets[0] if answer.offsets and not answer.error else None

    def _request(self, frame: bytes) -> bytes:
        """A broken connection is made again: a broker process may have been replaced."""
        for left in reversed(range(_TRIES)):
            try:
                if self._connection is None:
                    self._connection = self._broker.connect(MAX_METADATA_BYTES)
                return self._connection.request(frame)
            except ConnectionEnded:
                self.close()
                if not left:
                    raise
            except BaseException:
                self.close()  # an answer that comes later must not be taken for that of the next request
                raise
        raise AssertionError


class LogEnds:
    """The ends of a topic over all brokers of a list. For one thread; close it."""

    def __init__(self, addresses: Sequence[Address], topic: str, partition: int | None, timeout: float) -> None:
        """Raises ``TransportError`` when one of them does not answer."""
        self._asked: dict[tuple[object, ...], TopicOfBroker] = {}
        for address in addresses:
            found = TopicOfBroker(address, topic, partition, timeout)
            if found.identity in self._asked:
                found.close()  # another address of the same broker
            else:
                self._asked[found.identity] = found

    @property
    def is_plain(self) -> bool:
        """One of the brokers speaks 0.7 only."""
        return any(found.is_plain for found in self._asked.values())

    @property
    def addresses(self) -> dict[tuple[object, ...], Address]:
        """The address of each broker."""
        return {identity: found.address for identity, found in self._asked.items()}

    def close(self) -> None:
        """Close the connections."""
        for found in self._asked.values():
            found.close()

    def positions(self) -> dict[tuple[object, ...], dict[int, PartitionEnds]]:
        """By broker and partition. Raises as ``TopicOfBroker.positions``."""
        return {identity: found.positions() for identity, found in self._asked.items()}

    def ask(self) -> Ends:
        """Ask all brokers; the log ends and high watermarks of all partitions, added up."""
        items = [item for found in self.positions().values() for item in found.values()]
        return Ends(sum(item.log_end for item in items), sum(item.high_watermark for item in items))

    def ask_or_none(self) -> Ends | None:
        """The same; None when a broker does not answer now."""
        try:
            return self.ask()
        except TransportError:
            return None

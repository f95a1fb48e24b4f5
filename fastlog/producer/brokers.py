"""The brokers a producer was given: their addresses, what they offer, and how frames for them begin."""

from __future__ import annotations

from dataclasses import dataclass

from fastlog.client.addresses import Address, parse_brokers
from fastlog.client.connection import Broker
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.records import RecordBroker
from fastlog.client.topics import check_described
from fastlog.errors import (
    ArgumentError,
    ConfigError,
    InvalidTopicError,
    ProtocolError,
    TransportError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.wire import requests
from fastlog.wire.responses import MetadataAnswer

ACKS_BY_NAME = {"none": 0, "appended": requests.ACKS_APPENDED, "flushed": requests.ACKS_FLUSHED}
_MOST_PARTITIONS = 65536
"""What a broker can be set to; each of them costs memory once keys choose among them."""
_FORM = "write broker.list as id:host:port,id:host:port, or as host:port"


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's id, in this producer's list or in ZooKeeper, and its address."""

    id: int
    address: Address


@dataclass(frozen=True, slots=True)
class Offer:
    """What a broker said about itself; limits are -1, and ``own`` is False, for a plain 0.7 broker."""

    own: bool
    max_message_bytes: int = -1
    max_request_bytes: int = -1


def parse_broker_list(text: str) -> list[BrokerAddress]:
    """``id:host:port,…``, or ``host:port,…`` with the ids 0, 1, …; sorted by id.

    Raises:
        ConfigError: an item is malformed, an id is there twice, or only some have one.
    """
    found = []
    items = [item.strip() for item in text.split(",") if item.strip()]
    with_id = [_has_id(item) for item in items]
    if any(with_id) and not all(with_id):
        raise ConfigError(f"broker.list: some brokers have an id and some do not\n{_FORM}")
    for index, item in enumerate(items):
        number, _, address = item.partition(":") if with_id[index] else (str(index), "", item)
        try:
            (parsed,) = parse_brokers(address)
        except ConfigError as error:
            raise ConfigError(f"broker.list: {str(error).splitlines()[0]}\n{_FORM}") from None
        if int(number) > 2**31 - 1:
            raise ConfigError(f"broker.list: {number} is too large for a broker's id")
        found.append(BrokerAddress(int(number), parsed))
    if not found:
        raise ConfigError(f"broker.list is empty\n{_FORM}")
    ids = [broker.id for broker in found]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"broker.list: an id is there twice: {text}")
    return sorted(found, key=lambda broker: broker.id)


def _has_id(item: str) -> bool:
    number, colon, rest = item.partition(":")
    if not colon or not (number.isascii() and number.isdigit()) or not rest:
        return False
    return ":" in rest or not (rest.isascii() and rest.isdigit())


class Directory:
    """What is known of one broker: asked once, kept for good. Safe in several threads; asking twice does no harm."""

    def __init__(
        self, broker: BrokerAddress, connect_timeout: float, hint: str = "is the broker running? check broker.list"
    ) -> None:
        """``hint``: the last line of the error when it cannot be reached."""
        self.broker = broker
        self.connector = Broker([broker.address], connect_timeout)
        self.connector.hint = hint
        self.offer: Offer | None = None
        self._partitions: dict[str, int] = {}

    def move(self, address: Address) -> None:
        """Use another address from the next connection on."""
        self.broker = BrokerAddress(self.broker.id, address)
        self.connector.addresses = [address]

    def ask(self) -> Offer:
        """What the broker offers, asking if need be. Raises ``TransportError``, ``ProtocolError``."""
        if self.offer is None:
            self.offer = _offer(self.connector.metadata_or_none(()))
        return self.offer

    def partitions_or_none(self, topic: str) -> int | None:
        """How many partitions a topic of either kind may have there, asking if need be; None: the broker does not tell.

        Raises:
            TransportError: the broker cannot be reached.
            BrokerError: the topic's name is not allowed there, or this client may not use it.
            ProtocolError: the answer makes no sense.
        """
        known = self._partitions.get(topic)
        if known is not None or (self.offer is not None and not self.offer.own):
            return known
        answer = self.connector.metadata_or_none((topic,))
        self.offer = _offer(answer)
        if answer is None or not self.offer.own:
            return None
        for found in answer.topics:
            if found.name != topic:
                continue
            if found.error == WrongPartitionError.code and (count := self._partitions_of_records(topic)):
                self._partitions[topic] = count
                return count
            check_described(found, self.broker.address)
            count = max(found.configured_partitions, len(found.partitions))
            if count < 1:
                break
            if count > _MOST_PARTITIONS:
                raise ProtocolError(f"{self.broker.address} claims {count} partitions for topic {topic!r}")
            self._partitions[topic] = count
            return count
        raise TransportError(f"{self.broker.address} told nothing about topic {topic!r}")

    def _partitions_of_records(self, topic: str) -> int:
        """How many partitions a topic of record batches has there; 0 when it is none. Raises ``TransportError``."""
        with RecordBroker(self.connector.addresses, timeout=self.connector.timeout) as records:
            try:
                known = records.known_topics([topic]).get(topic)
            except NotSpokenError:
                return 0
        return 0 if known is None or known.code else max(known.partitions, default=-1) + 1

    def acks(self, wanted: str | None) -> int:
        """The acknowledgement to ask this broker for, as the wire has it; 0 for none.

        Raises:
            UnsupportedFeatureError: the broker cannot give what is wanted.
        """
        if self.offer is None:
            raise ValueError("the broker was not asked yet")
        if wanted is None:
            return requests.ACKS_APPENDED if self.offer.own else 0
        if wanted != "none" and not self.offer.own:
            raise UnsupportedFeatureError(
                f"{self.broker.address} speaks plain Kafka 0.7, which acknowledges nothing; set acks=none"
            )
        return ACKS_BY_NAME[wanted]


def _offer(answer: MetadataAnswer | None) -> Offer:
    if answer is None:
        return Offer(own=False)
    if not answer.lowest_own_id <= requests.PRODUCE_ACK <= answer.highest_own_id:
        return Offer(own=False, max_message_bytes=answer.max_message_bytes)
    return Offer(True, answer.max_message_bytes, answer.max_request_bytes)


def frame_header(topic: str, partition: int, acks: int) -> bytes:
    """What a produce request begins with, up to its message set, with zeros for sizes and for the correlation id."""
    if acks:
        return requests.encode_produce_ack(0, acks, topic, partition, b"")
    return requests.encode_produce(topic, partition, b"")


def check_topic(topic: object) -> str:
    """The topic, when it is a possible one.

    Raises:
        InvalidTopicError: it is not, and says why.
    """
    from fastlog.topics import valid_topic

    if not isinstance(topic, str):
        raise ArgumentError(f"a topic is a str, not {type(topic).__name__}")
    reason = valid_topic(topic)
    if reason is not None:
        raise InvalidTopicError(f"topic {topic!r}: {reason}")
    return topic if type(topic) is str else str.__str__(topic)

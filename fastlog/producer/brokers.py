"""The brokers a producer was given: their addresses, what they offer, and how frames for them begin."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from fastlog.client.addresses import Address, parse_brokers
from fastlog.client.connection import Broker
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.record_requests import produce
from fastlog.client.records import RecordBroker, RecordsError, meaning_of
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
from fastlog.kafka_codes import Code
from fastlog.producer.config import ACKS
from fastlog.producer.record_errors import PASSING, error_of
from fastlog.wire import requests
from fastlog.wire.responses import MetadataAnswer

ACKS_BY_NAME = {"none": 0, "appended": requests.ACKS_APPENDED, "flushed": requests.ACKS_FLUSHED}
RECORD_ACKS = {"none": 0, "appended": 1, "flushed": -1}
"""The same for topics of record batches."""
_BATCH_BYTES = 1_048_588
"""The largest batch of a topic whose settings cannot be read: Kafka's default of ``max.message.bytes``."""
_MOST_PARTITIONS = 65536
"""What a broker can be set to; each of them costs memory once keys choose among them."""
CLIENT = "fastlog-producer"
"""What logs of brokers call a producer."""
_FORM = "write broker.list as id:host:port,id:host:port, or as host:port"


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's id, in this producer's list or in ZooKeeper, and its address."""

    id: int
    address: Address


@dataclass(frozen=True, slots=True)
class ProduceOffer:
    """What a broker said about itself; limits are -1, and ``own`` is False, for a plain 0.7 broker."""

    own: bool
    max_message_bytes: int = -1
    max_request_bytes: int = -1
    only_today: bool = False
    """Whether it speaks today's protocol alone, as an Apache Kafka does."""


@dataclass(frozen=True, slots=True)
class RecordTopic:
    """A topic of record batches on one broker."""

    partitions: tuple[int, ...]
    max_batch_bytes: int


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
        self.offer: ProduceOffer | None = None
        self._partitions: dict[str, int] = {}
        self._records: dict[str, RecordTopic] = {}

    def move(self, address: Address) -> None:
        """Use another address from the next connection on."""
        self.broker = BrokerAddress(self.broker.id, address)
        self.connector.addresses = [address]

    def ask(self) -> ProduceOffer:
        """What the broker offers, asking if need be. Raises ``TransportError``, ``ProtocolError``."""
        if self.offer is None:
            self.offer = _offer(self.connector.metadata_or_none(()))
        return self.offer

    def partitions_or_none(self, topic: str) -> int | None:
        """How many partitions a topic of either kind may have there, asking if need be; None: the broker cannot say.

        Raises:
            TransportError: the broker cannot be reached.
            BrokerError, RecordsError: the topic's name is not allowed there, or this client may not use it.
            ProtocolError: the answer is malformed.
        """
        known = self._partitions.get(topic)
        if known is not None or (self.offer is not None and not (self.offer.own or self.offer.only_today)):
            return known
        answer = None
        if self.offer is None or self.offer.own:
            answer = self.connector.metadata_or_none((topic,))
            self.offer = _offer(answer)
        if answer is None:
            return self._partitions_of_kafka(topic)
        if not self.offer.own:
            return None
        for found in answer.topics:
            if found.name != topic:
                continue
            if found.error == WrongPartitionError.code:
                with suppress(NotSpokenError):
                    if (records := self._asked_of_records(topic)) is not None:
                        return self._noted(topic, records)
            check_described(found, self.broker.address)
            count = max(found.configured_partitions, len(found.partitions))
            if count < 1:
                break
            if count > _MOST_PARTITIONS:
                raise ProtocolError(f"{self.broker.address} claims {count} partitions for topic {topic!r}")
            self._partitions[topic] = count
            return count
        raise TransportError(f"{self.broker.address} answered nothing about topic {topic!r}")

    def records_or_none(self, topic: str) -> RecordTopic | None:
        """The topic, if it was found to be one of record batches; asks nobody."""
        return self._records.get(topic)

    def _partitions_of_kafka(self, topic: str) -> int | None:
        """The same of a broker that does not know fastlog's own requests; None: it speaks plain 0.7."""
        try:
            found = self._asked_of_records(topic)
        except NotSpokenError:
            return None
        self.offer = ProduceOffer(own=False, only_today=True)
        if found is None:
            raise WrongPartitionError(
                f"{self.broker.address} has no topic {topic!r}; fastlog topics create --records makes one"
            )
        return self._noted(topic, found)

    def _noted(self, topic: str, records: RecordTopic) -> int:
        count = records.partitions[-1] + 1
        if count > _MOST_PARTITIONS:
            raise ProtocolError(f"{self.broker.address} claims {count} partitions for topic {topic!r}")
        self._records[topic] = records
        self._partitions[topic] = count
        return count

    def _asked_of_records(self, topic: str) -> RecordTopic | None:
        """What there is of a topic of record batches; None when there is no such topic.

        Raises:
            NotSpokenError: the broker does not speak today's protocol.
            TransportError: it cannot be reached, or has the topic only in a while.
            BrokerError, RecordsError: it refuses to tell; as ``error_of``.
        """
        with RecordBroker(self.connector.addresses, timeout=self.connector.timeout) as broker:
            known = broker.known_topics([topic])[topic]
            if known.code and known.code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                error = TransportError(meaning_of(known.code)) if known.code in PASSING else error_of(known.code)
                raise error.at(topic=topic, broker=self.broker.address)
            if not known.partitions:
                return None
            try:
                limit = broker.settings(topic)["max.message.bytes"].value
            except (RecordsError, KeyError):  # who may write need not be allowed to see that
                limit = None
        return RecordTopic(known.partitions, int(limit or _BATCH_BYTES))

    def acks(self, wanted: str | None) -> int:
        """The acknowledgement to ask this broker for, as the wire has it; 0 for none.

        Raises:
            UnsupportedFeatureError: the broker cannot give what is wanted.
        """
        if self.offer is None:
            raise ValueError("the broker was not asked yet")
        wanted = None if wanted is None else ACKS[wanted]
        if wanted is None:
            return requests.ACKS_APPENDED if self.offer.own else 0
        if wanted != "none" and not self.offer.own:
            raise UnsupportedFeatureError(
                f"{self.broker.address} speaks plain Kafka 0.7, which acknowledges nothing; set acks=none"
            )
        return ACKS_BY_NAME[wanted]


def _offer(answer: MetadataAnswer | None) -> ProduceOffer:
    if answer is None:
        return ProduceOffer(own=False)
    if not answer.lowest_own_id <= requests.PRODUCE_ACK <= answer.highest_own_id:
        return ProduceOffer(own=False, max_message_bytes=answer.max_message_bytes)
    return ProduceOffer(True, answer.max_message_bytes, answer.max_request_bytes)


def frame_header(topic: str, partition: int, acks: int) -> bytes:
    """What a produce request begins with, up to its message set, with zeros for sizes and for the correlation id."""
    if acks:
        return requests.encode_produce_ack(0, acks, topic, partition, b"")
    return requests.encode_produce(topic, partition, b"")


def record_acks(wanted: str | None) -> int:
    """The acknowledgement of batches to ask for, as today's protocol has it; 0 for none."""
    return RECORD_ACKS[ACKS[wanted or "appended"]]


def batch_header(topic: str, partition: int, acks: int, timeout_ms: int) -> bytes:
    """What a Produce request begins with, up to its batch, with zeros for sizes and for its number."""
    return produce({(topic, partition): b""}, acks=acks, timeout_ms=timeout_ms).frame(0, CLIENT)


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

"""Where ``fastlog produce`` sends to, and with which settings of the producer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from fastlog.client.connection import Broker
from fastlog.client.records import RecordBroker
from fastlog.client.registrations import address_hint, registered_brokers
from fastlog.errors import ConfigError, FastlogError, TransportError, meaning_of
from fastlog.producer.brokers import parse_broker_list
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import PartitionChoice
from fastlog.producer.waiting import Background
from fastlog.record_batches import HEADER_BYTES
from fastlog.tools import options
from fastlog.tools.deliveries import MOST_MESSAGE_BYTES
from fastlog.tools.report import EXIT_USAGE, CommandError
from fastlog.wire import requests, responses

_STRING_ENCODER = "kafka.serializer.StringEncoder"
_DEFAULTS = {
    "queue.time": "10",
    "queue.size": str(2**31 - 1),  # what is on its way is bounded in bytes by the command itself
    "batch.size": str(2**31 - 1),
    "batch.bytes": str(256 * 1024),
    "delivery.timeout.ms": "30000",
}
_OTHERS_SECONDS = 1.0
_REFUSED = {
    "event.handler": "with a handler nobody knows which line went where",
    "callback.handler": "with a handler nobody knows which line went where",
    "queue.full": "no line is dropped because a queue is full: the command waits",
    "queue.enqueueTimeout.ms": "no line is dropped because a queue is full: the command waits",
}


@dataclass(frozen=True)
class Destination:
    """What is known before the first line is read."""

    config: ProducerConfig
    acks: str
    waits: bool
    """Each batch is finished before the next one is read: 0.7's producer of type sync."""
    max_line_bytes: int
    places: tuple[PartitionChoice, ...]
    """Every partition, sorted by broker and number; none where a broker does not tell its partitions."""
    follows_zookeeper: bool
    """The brokers are those of ZooKeeper, which come and go: ``places`` is what there was at first."""
    of_records: bool = False
    """The topic is one of record batches; ``places`` are the partitions to write to."""

    @property
    def is_once(self) -> bool:
        """What is sent again after a broken connection is stored once."""
        return self.of_records and self.config.idempotence


def settle(brokers: str, brokers_given: bool, timeout: float, topic: str, given: Mapping[str, str]) -> Destination:
    """Ask the brokers, and put the settings together.

    ``given``: settings of the producer by their 0.7 names. A ``broker.list`` or ``zk.connect`` among them counts unless
    ``--brokers`` was given by hand.

    Raises:
        CommandError: the settings contradict each other, or the brokers.
        ConfigError: a setting is unknown or malformed.
        CoordinationError: no ZooKeeper answers.
        TransportError: a broker cannot be reached; of those in ZooKeeper, none.
    """
    texts, waits = _with_defaults(given, timeout)
    for name in ("zk.connect", "broker.list"):
        if not texts.get(name, "").strip() or (brokers_given and name == "zk.connect"):
            texts.pop(name, None)
    zookeeper = texts.get("zk.connect")
    if zookeeper and "broker.list" not in texts:
        texts.setdefault("zk.connectiontimeout.ms", texts["connect.timeout.ms"])
        answers = _ask_registered(zookeeper, timeout, topic)
    elif brokers_given or "broker.list" not in texts:
        broker = options.broker_at(brokers, timeout)
        answers = {0: broker.metadata_or_none((topic,))}
        texts["broker.list"] = f"0:{options.answering_first(broker)[0]}"
    else:
        answers = {
            item.id: options.broker_at(str(item.address), timeout).metadata_or_none((topic,))
            for item in parse_broker_list(texts["broker.list"])
        }
    told = [answer.max_message_bytes for answer in answers.values() if answer is not None]
    plain_limit = [requests.PLAIN_MESSAGE_BYTES] if len(told) < len(answers) else []
    texts.setdefault("max.message.size", str(min([MOST_MESSAGE_BYTES, *told, *plain_limit])))
    config = _config(texts)
    limit = min([config.max_message_bytes, *told])
    plain = any(answer is None or answer.lowest_own_id > requests.PRODUCE_ACK for answer in answers.values())
    acks = config.acks or ("none" if plain else "appended")
    if acks != "none" and plain:
        raise CommandError(
            f"the broker cannot promise {acks!r}",
            "it speaks plain Kafka 0.7, whose produce has no answer",
            "use --acks none",
            EXIT_USAGE,
        )
    places = tuple(_places(answers, topic))
    return Destination(config, acks, waits, limit, () if plain else places, config.zk_connect is not None)


def settle_records(
    records: RecordBroker, topic: str, partition: int | None, given: Mapping[str, str], timeout: float
) -> Destination:
    """The same for a topic of record batches of one broker, where ``partition`` is the only one to write to, or None.

    Raises:
        CommandError: the settings contradict each other, or there is no such partition.
        RecordsError, TransportError: the broker refuses to tell, or cannot be reached.
    """
    texts, waits = _with_defaults(given, timeout)
    texts["broker.list"] = f"0:{records.addresses[0]}"
    texts.setdefault("max.message.size", str(MOST_MESSAGE_BYTES))  # the line's limit is below
    config = _config(texts)
    if config.acks == "none":
        raise CommandError(
            f"{topic} is a topic of records, which a broker always answers for",
            "acks none is for messages of Kafka 0.7",
            "use --acks appended or flushed",
            EXIT_USAGE,
        )
    numbers = records.known_topics([topic])[topic].partitions
    if partition is not None and partition not in numbers:
        raise CommandError(
            f"there is no partition {partition} of {topic}",
            f"the broker has {len(numbers)} of it",
            f"fastlog topics describe {topic} shows them",
            EXIT_USAGE,
        )
    # Of the bytes that a batch may have, codecs may add a little to those of a record, as do its key's length and such.
    most = (int(records.settings(topic)["max.message.bytes"].value or 0) - HEADER_BYTES) * 6 // 7
    places = numbers if partition is None else (partition,)
    limit = min(config.max_message_bytes, most)
    return Destination(config, config.acks or "appended", waits, limit, places, False, of_records=True)


def _with_defaults(given: Mapping[str, str], timeout: float) -> tuple[dict[str, str], bool]:
    """The settings with those of the command beneath them, and whether each batch is to be finished before the next."""
    texts = {**_DEFAULTS, "connect.timeout.ms": str(max(1, round(timeout * 1000))), **given}
    for name, why in _REFUSED.items():
        if texts.get(name, "block").strip() not in ("", "block", "-1"):
            raise CommandError(f"{name} cannot be set here", why, "leave it out", EXIT_USAGE)
        texts.pop(name, None)
    waits = texts.pop("producer.type", "async").strip() == "sync"
    if waits:
        texts["queue.time"] = "0"
    texts["producer.type"] = "async"
    if texts.get("serializer.class", "").strip() == _STRING_ENCODER:
        del texts["serializer.class"]  # the bytes of a line are what it would make of the line
    return texts, waits


def _ask_registered(connect: str, timeout: float, topic: str) -> dict[int, responses.MetadataAnswer | None]:
    """What the brokers in ZooKeeper answer; who does not answer soon after another one is left out, and comes later."""
    deadline = time.monotonic() + timeout
    asked = {}
    for number, address in sorted(registered_brokers(connect, timeout).items()):
        broker = Broker([address], max(1.0, deadline - time.monotonic()))
        broker.hint = address_hint(connect, number)
        asked[number] = Background(lambda broker=broker: broker.metadata_or_none((topic,)), "fastlog-ask")  # type: ignore[misc]
    answers: dict[int, responses.MetadataAnswer | None] = {}
    errors: list[FastlogError] = []
    for number, work in asked.items():
        try:
            answers[number] = work.result(_OTHERS_SECONDS if answers else 2 * timeout + 1)
        except FastlogError as error:
            errors.append(error)
    if not answers:
        raise errors[0] if len(errors) == 1 else TransportError("\n".join(map(str, errors)))
    return answers


def _config(texts: dict[str, str]) -> ProducerConfig:
    try:
        return ProducerConfig.from_properties(texts)
    except ConfigError as error:
        raise CommandError(
            "; ".join(str(error).split("\n")),
            "the value of a setting of the producer cannot be used",
            "fastlog produce --list-settings shows every setting",
            EXIT_USAGE,
        ) from error


def _places(answers: Mapping[int, responses.MetadataAnswer | None], topic: str) -> list[PartitionChoice]:
    found: list[PartitionChoice] = []
    for broker, answer in sorted(answers.items()):
        for described in answer.topics if answer is not None else ():
            if described.name != topic:
                continue
            if described.error:
                raise CommandError(
                    f"topic {topic!r} cannot be written to",
                    meaning_of(described.error),
                    "check --topic",
                    EXIT_USAGE,
                )
            count = max(described.configured_partitions, len(described.partitions))
            found += [(broker, number) for number in range(count)]
    return found

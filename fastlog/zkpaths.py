"""Where fastlog and Kafka 0.7 keep what in ZooKeeper, and how the values are written. Knows no connection.

The paths and values are those of 0.7.2 to the byte, so that brokers, producers and groups of both can share them; what
is read is taken more tolerantly, since other clients wrote it with other spaces.

Source: Kafka 0.7.2 (ZkUtils, Broker, TopicCount, ZookeeperConsumerConnector).
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

from fastlog.addresses import bracketed
from fastlog.errors import CoordinationError

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
BROKER_HOLDINGS = "/brokers/fastlog"
CONSUMERS = "/consumers"

MOST_STREAMS = 10_000
"""Of a member for one topic. More are taken for a value that means something else: each member names them all."""
_MOST_STREAMS_IN_ALL = 10 * MOST_STREAMS
_WILDCARD = re.compile(r"([*!])(\d+)\1(.*)", re.DOTALL | re.ASCII)
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_HOST_CHARACTERS = 255
_SHOWN_CHARACTERS = 100
# What ZooKeeper takes into no path.
_NO_NAME = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class PartitionId(NamedTuple):
    """A partition of a topic on a broker: written ``<broker>-<partition>``. Sorts as numbers."""

    broker: int
    partition: int

    def __str__(self) -> str:
        return f"{self.broker}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> PartitionId:
        """Raises ``CoordinationError`` for anything but two numbers with a dash between."""
        broker, _, partition = text.partition("-")
        numbers = _number_or_none(broker, _INT32_MAX), _number_or_none(partition, _INT32_MAX)
        if None in numbers:
            raise CoordinationError(f"{_shown(text)} does not name a partition: it is not <broker>-<partition>")
        return cls(*numbers)  # type: ignore[arg-type]


class BrokerRegistration(NamedTuple):
    """What a broker says of itself: ``<creator>:<host>:<port>``, the creator being ``<host>-<milliseconds>``."""

    creator: str
    host: str
    port: int

    def encode(self) -> bytes:
        """The bytes of the znode; an IPv6 address stands in brackets, which 0.7 does not understand."""
        host = bracketed(self.host)
        return f"{self.creator}:{host}:{self.port}".encode()

    @classmethod
    def parse(cls, data: bytes) -> BrokerRegistration:
        """Also takes ``host:port``, as the design paper writes it, and ``[address]:port``.

        Raises:
            CoordinationError: it is none of these.
        """
        text = _text(data)
        rest, colon, port_text = text.rpartition(":")
        if colon and rest.endswith("]") and "[" in rest:
            creator, _, host = rest[:-1].rpartition("[")
            creator = creator.rstrip(":")
        else:
            creator, _, host = rest.rpartition(":")
        port = _number_or_none(port_text, 65535)
        if not port or not 0 < len(host) <= _HOST_CHARACTERS or not host.isprintable() or " " in host:
            raise CoordinationError(f"{_shown(text)} is no broker: it is not <creator>:<host>:<port>")
        return cls(creator, host, port)


class Subscription(NamedTuple):
    """What a member of a group reads: topics with a number of streams each, or a filter over all topics."""

    topics: dict[str, int]
    pattern: str = ""
    is_whitelist: bool = True
    streams: int = 0

    @property
    def is_filter(self) -> bool:
        """Whether topics are chosen by a pattern."""
        return self.streams > 0

    def encode(self) -> bytes:
        """The bytes of the znode, spaces as in 0.7."""
        if self.is_filter:
            mark = "*" if self.is_whitelist else "!"
            return f"{mark}{self.streams}{mark}{self.pattern}".encode()
        return (
            "{ " + ",".join(f"{json.dumps(topic)}: {count}" for topic, count in self.topics.items()) + " }"
        ).encode()

    @classmethod
    def parse(cls, data: bytes) -> Subscription:
        """Raises ``CoordinationError`` for what neither 0.7 nor its other clients write."""
        text = _text(data)
        wildcard = _WILDCARD.fullmatch(text)
        if wildcard is not None:
            mark, digits, pattern = wildcard.groups()
            streams = _number_or_none(digits, MOST_STREAMS)
            if not streams:
                raise CoordinationError(
                    f"{_shown(text)} is no subscription: it asks for {_shown(digits)} streams, and 1 to {MOST_STREAMS}"
                    " make sense"
                )
            return cls({}, pattern, mark == "*", streams)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not all(type(count) is int and count >= 0 for count in found.values()):
            raise CoordinationError(
                f"{_shown(text)} is no subscription: it is neither topics with numbers nor a filter"
            )
        if max(found.values(), default=0) > MOST_STREAMS or sum(found.values()) > _MOST_STREAMS_IN_ALL:
            raise CoordinationError(
                f"{_shown(text)} is no subscription: at most {MOST_STREAMS} streams of a topic make sense, and"
                f" {_MOST_STREAMS_IN_ALL} in all"
            )
        for topic in found:
            if topic in ("", ".", "..") or _NO_NAME.search(topic):
                raise CoordinationError(f"{_shown(text)} is no subscription: {_shown(topic)} cannot be a topic")
        return cls(found)


def broker_path(broker: int) -> str:
    """Ephemeral; holds a ``BrokerRegistration``."""
    return f"{BROKER_IDS}/{broker}"


def holdings_path(broker: int) -> str:
    """Persistent, fastlog's own; holds ``encode_holdings``. It tells of a broker that is missing."""
    return f"{BROKER_HOLDINGS}/{broker}"


def encode_holdings(topics: Mapping[str, int]) -> bytes:
    """How many partitions a broker has of each topic: ``{"logs": 2}``."""
    return json.dumps(dict(sorted(topics.items())), separators=(",", ":")).encode()


def parse_holdings(data: bytes) -> dict[str, int]:
    """Raises ``CoordinationError`` for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(count) is int and 0 <= count < 2**31 for count in found.values()):
        raise CoordinationError(f"{_shown(_text(data))} does not say how many partitions of which topics a broker has")
    return found


def topic_path(topic: str) -> str:
    """Its children are the brokers that have the topic."""
    return f"{BROKER_TOPICS}/{topic}"


def topic_broker_path(topic: str, broker: int) -> str:
    """Ephemeral; holds how many partitions the broker has of the topic."""
    return f"{BROKER_TOPICS}/{topic}/{broker}"


def group_path(group: str) -> str:
    """The node below which everything of a group is."""
    return f"{CONSUMERS}/{group}"


def members_path(group: str) -> str:
    """Its children are the ids of the live consumers."""
    return f"{CONSUMERS}/{group}/ids"


def member_path(group: str, consumer: str) -> str:
    """Ephemeral; holds a ``Subscription``."""
    return f"{CONSUMERS}/{group}/ids/{consumer}"


def owners_path(group: str, topic: str) -> str:
    """Its children are the partitions that are owned."""
    return f"{CONSUMERS}/{group}/owners/{topic}"


def owner_path(group: str, topic: str, partition: PartitionId) -> str:
    """Ephemeral; holds the name of the thread that reads the partition."""
    return f"{CONSUMERS}/{group}/owners/{topic}/{partition}"


def offsets_path(group: str, topic: str) -> str:
    """Its children are the partitions of which an offset was committed."""
    return f"{CONSUMERS}/{group}/offsets/{topic}"


def offset_path(group: str, topic: str, partition: PartitionId) -> str:
    """Persistent; holds the offset to go on at."""
    return f"{CONSUMERS}/{group}/offsets/{topic}/{partition}"


def lost_path(group: str, topic: str, partition: PartitionId) -> str:
    """Persistent, fastlog's own; says which messages the group never saw because the broker had removed them."""
    return f"{CONSUMERS}/{group}/fastlog/lost/{topic}/{partition}"


def encode_number(number: int) -> bytes:
    """A partition count or an offset as the data of a node."""
    return b"%d" % number


def parse_number(data: bytes) -> int:
    """A partition count or an offset of 64 bits, which may be -1. Raises ``CoordinationError`` for anything else."""
    text = _text(data).strip()
    digits = text.removeprefix("-")
    number = _number_or_none(digits, _INT64_MAX + (digits != text))
    if number is None:
        raise CoordinationError(f"{_shown(text)} is no number of 64 bits")
    return number if digits == text else -number


def parse_broker_id(text: str) -> int:
    """The name of a broker's node. Raises ``CoordinationError`` for any that no broker writes."""
    number = _number_or_none(text, _INT32_MAX)
    if number is None or str(number) != text:
        raise CoordinationError(f"{_shown(text)} is no broker's id")
    return number


def new_creator(host: str) -> str:
    """What tells this start of a broker from every other one. Holds no colon, since one follows it."""
    return f"{host.replace(':', '.')}-{int(time.time() * 1000)}"


def new_consumer_id(group: str) -> str:
    """``<group>_<host>-<milliseconds>-<eight hexadecimal digits>``, as 0.7 makes it."""
    import uuid  # 5 ms that a broker's start does not need

    return f"{group}_{socket.gethostname()}-{int(time.time() * 1000)}-{uuid.uuid4().hex[:8]}"


def thread_ids(consumer: str, streams: int) -> list[str]:
    """The names of a consumer's threads for one topic."""
    return [f"{consumer}-{number}" for number in range(streams)]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CoordinationError(f"{data[:100]!r} is not text") from None


def _number_or_none(text: str, most: int) -> int | None:
    """Digits as a number, unless it is larger; converts no more of them than such a number can have."""
    if not text.isascii() or not text.isdigit() or len(text.lstrip("0")) > len(str(most)):
        return None
    number = int(text.lstrip("0") or "0")
    return number if number <= most else None


def _shown(text: str) -> str:
    """Data of a node in quotes, cut to a readable length, for an error."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}…"

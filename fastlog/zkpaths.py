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
from typing import NamedTuple

from fastlog.errors import CoordinationError

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CONSUMERS = "/consumers"

_WILDCARD = re.compile(r"([*!])(\d+)\1(.*)", re.DOTALL)
_INT32_MAX = 2**31 - 1


class PartitionId(NamedTuple):
    """A partition of a topic on a broker: written ``<broker>-<partition>``. Sorts as numbers."""

    broker: int
    partition: int

    def __str__(self) -> str:
        return f"{self.broker}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> PartitionId:
        """Raises ``CoordinationError`` for anything but two numbers with a dash between."""
        broker, dash, partition = text.partition("-")
        if not dash or not _is_number(broker) or not _is_number(partition):
            raise CoordinationError(f"{text!r} does not name a partition: it is not <broker>-<partition>")
        return cls(int(broker), int(partition))


class BrokerRegistration(NamedTuple):
    """What a broker says of itself: ``<creator>:<host>:<port>``, the creator being ``<host>-<milliseconds>``."""

    creator: str
    host: str
    port: int

    def encode(self) -> bytes:
        """The bytes of the znode; an IPv6 address stands in brackets, which 0.7 does not understand."""
        host = f"[{self.host}]" if ":" in self.host else self.host
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
        if not host or not _is_number(port_text) or not 0 < int(port_text) < 65536:
            raise CoordinationError(f"{text!r} is no broker: it is not <creator>:<host>:<port>")
        return cls(creator, host, int(port_text))


class Subscription(NamedTuple):
    """What a member of a group reads: topics with a number of streams each, or a filter over all topics."""

    topics: dict[str, int]
    pattern: str = ""
    is_whitelist: bool = True
    streams: int = 0

    @property
    def is_filter(self) -> bool:
        """Topics are chosen by a pattern."""
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
            mark, streams, pattern = wildcard.groups()
            if not 0 < int(streams) <= _INT32_MAX:
                raise CoordinationError(f"{text!r} is no subscription: it asks for {streams} streams")
            return cls({}, pattern, mark == "*", int(streams))
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(type(count) is int and count >= 0 for count in found.values()):
            raise CoordinationError(f"{text!r} is no subscription: it is neither topics with numbers nor a filter")
        return cls(found)


def broker_path(broker: int) -> str:
    """Ephemeral; holds a ``BrokerRegistration``."""
    return f"{BROKER_IDS}/{broker}"


def topic_path(topic: str) -> str:
    """Its children are the brokers that have the topic."""
    return f"{BROKER_TOPICS}/{topic}"


def topic_broker_path(topic: str, broker: int) -> str:
    """Ephemeral; holds how many partitions the broker has of the topic."""
    return f"{BROKER_TOPICS}/{topic}/{broker}"


def group_path(group: str) -> str:
    """All that is known of a group."""
    return f"{CONSUMERS}/{group}"


def members_path(group: str) -> str:
    """Its children are the ids of the consumers that live."""
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
    """A partition count or an offset."""
    return b"%d" % number


def parse_number(data: bytes) -> int:
    """A partition count or an offset, which may be -1. Raises ``CoordinationError`` for anything else."""
    text = _text(data).strip()
    if not _is_number(text.removeprefix("-")) or len(text) > 20:
        raise CoordinationError(f"{text[:100]!r} is no number")
    return int(text)


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


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()

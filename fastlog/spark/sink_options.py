"""The options and the columns of writing to topics: texts in, one checked object out. Knows no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastlog.arguments import INT32
from fastlog.client.addresses import Address
from fastlog.errors import ConfigError
from fastlog.producer.config import ProducerConfig
from fastlog.settings import unknown_name
from fastlog.spark import schema
from fastlog.spark.addresses import ADDRESS_OPTIONS, NamedAddress, check_addresses
from fastlog.spark.values import Parse, counted, one_of, seconds, sized, truth
from fastlog.topics import valid_topic

_REFUSED = {
    "path": "save() takes no path: the topic is named with topic, or by a column of that name",
    "subscribe": "that is for reading: topic is meant",
    "kafka.bootstrap.servers": "this is not Kafka's sink: brokers is meant",
    "kafka.compression.type": "compression is meant",
    "compression.codec": "compression is meant",
    "kafka.acks": "acks is meant: flushed, appended or none",
    "includeheaders": "messages of Kafka 0.7 have no headers; of topics of record batches a column headers is written",
}
_SPARKS_OWN = ("checkpointlocation",)  # a query's, which Spark passes on

TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "broker": ("int",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "schemaId": ("bigint",),
    "deduplicationId": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns that can be written, and their types in Spark's SQL."""

PASSED_OVER = ("offset", "idx", "nextOffset", "server", "timestampType")
"""Columns of the source that are given anew; a frame that was read can be written as it is."""
_ENVELOPES_OWN = ("schemaId",)  # without one there is no place for it

_LARGEST = 2**30


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Everything the sink can be told. Made by ``parse_sink_options``."""

    brokers: tuple[NamedAddress, ...] = ()
    zookeeper: str | None = None
    zookeeper_timeout: float = 6.0
    topic: str | None = None
    acks: str = "flushed"
    compression: str = "none"
    batch_messages: int = INT32
    batch_bytes: int = 2**20
    max_message_bytes: int = 1_000_000
    delivery_timeout: float = 120.0
    connect_timeout: float = 30.0
    envelope: bool = False
    server: str | None = None
    schema: str = schema.FASTLOG
    """Of which kind topics are made that are not there."""

    def producer_config(self, addresses: Mapping[int, Address]) -> ProducerConfig:
        """The settings of a task's producer; ``addresses`` by broker id where no ZooKeeper tells them."""
        fields: dict[str, Any] = {
            "producer_type": "async",
            "acks": self.acks,
            "compression": self.compression,
            "batch_messages": self.batch_messages,
            "batch_bytes": self.batch_bytes,
            "max_message_bytes": self.max_message_bytes,
            "delivery_timeout_ms": max(1, round(self.delivery_timeout * 1000)),
            "connect_timeout_ms": max(1, round(self.connect_timeout * 1000)),
            "queue_messages": INT32,
        }
        if self.zookeeper is None:
            fields["broker_list"] = ",".join(f"{broker}:{address}" for broker, address in sorted(addresses.items()))
        else:
            fields["zk_connect"] = self.zookeeper
            fields["zk_session_timeout_ms"] = max(100, round(self.zookeeper_timeout * 1000))
            fields["zk_connection_timeout_ms"] = max(1, round(self.zookeeper_timeout * 1000))
        return ProducerConfig.from_fields(fields)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write; names are taken in any case.

    Raises:
        ConfigError: a name that is not known, a malformed value, or two that contradict each other; says which.
    """
    given: dict[str, str] = {}
    for name, text in options.items():
        key = name.lower()
        if key in _SPARKS_OWN:
            continue
        if key in _REFUSED:
            raise ConfigError(f"{name}: {_REFUSED[key]}")
        if key not in _FIELDS:
            raise ConfigError(unknown_name(name, OPTION_NAMES))
        given[key] = text
    check_addresses(given)
    if "server" in given and given.get("envelope", "").strip().lower() != "true":
        raise ConfigError("server: it is written into envelopes, and envelope=true is not given")
    fields = {}
    for key, text in given.items():
        name, field, parse = _FIELDS[key]
        fields[field] = parse(name, text)
    return SinkOptions(**fields)


_NOTHING = "void"
"""Spark's type of a column such as ``NULL AS key``."""


def check_columns(fields: Sequence[tuple[str, str]], options: SinkOptions) -> tuple[str, ...]:
    """The name by which each column of a frame is known here, in its order; "" for one that is passed over.

    ``fields`` are the name and the type of each, the type in Spark's SQL.

    Raises:
        ConfigError: a column that has no meaning here or another type, or none that has to be there.
    """
    known = {name.lower(): name for name in (*TYPES, *PASSED_OVER)}
    found: list[str] = []
    for given, kind in fields:
        name = known.get(given.lower())
        if name is None:
            raise ConfigError(f"column {given}: nothing can be written of it; there are {', '.join(TYPES)}")
        if name in PASSED_OVER or (name in _ENVELOPES_OWN and not options.envelope):
            found.append("")
            continue
        if name == "deduplicationId" and not options.envelope:
            raise ConfigError(f"column {given}: it is carried in envelopes, and envelope=true is not given")
        if name in found:
            raise ConfigError(f"column {given}: it is there twice")
        if kind == _NOTHING and name != "value":
            found.append("")  # as if it were not there, which is what null says in every row of the others
            continue
        if kind not in TYPES[name]:
            raise ConfigError(f"column {given}: it is {kind} and must be {' or '.join(TYPES[name])}")
        found.append(name)
    if "value" not in found:
        raise ConfigError("column value: there is none; it holds what is written")
    if options.topic is None and "topic" not in found:
        raise ConfigError("topic: not given, and there is no column of that name")
    if "broker" in found and "partition" not in found:
        raise ConfigError("column broker: it has a meaning only with a column partition")
    return tuple(found)


def _topic(name: str, text: str) -> str:
    reason = valid_topic(text)
    if reason is not None:
        raise ConfigError(f"{name}: {reason}")
    return text


_OPTIONS: tuple[tuple[str, str, Parse], ...] = (
    *ADDRESS_OPTIONS,
    ("topic", "topic", _topic),
    ("acks", "acks", one_of("flushed", "appended", "none")),
    ("compression", "compression", one_of("none", "gzip", "snappy", "lz4", "zstd")),
    ("batch.size", "batch_messages", counted(1, INT32)),
    ("batch.bytes", "batch_bytes", sized(_LARGEST)),
    ("max.message.size", "max_message_bytes", sized(_LARGEST)),
    ("delivery.timeout.ms", "delivery_timeout", seconds),
    ("connect.timeout.ms", "connect_timeout", seconds),
    ("envelope", "envelope", truth),
    ("schema", "schema", one_of(schema.FASTLOG, schema.KAFKA)),
    ("server", "server", lambda name, text: text),
)
_FIELDS = {name.lower(): (name, field, parse) for name, field, parse in _OPTIONS}

OPTION_NAMES = tuple(name for name, _, _ in _OPTIONS)
"""The names of all options of the sink."""

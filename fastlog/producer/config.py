"""The producer's settings: every property of Kafka 0.7.2 that it honours, and fastlog's own.

Source of names and of defaults that are not marked otherwise in their text: Kafka 0.7.2, ``ProducerConfig``,
``SyncProducerConfig`` and ``AsyncProducerConfig``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastlog import batch_codecs, codecs, settings
from fastlog.arguments import INT32, INT64
from fastlog.coordination.addresses import parse_connect
from fastlog.errors import ConfigError
from fastlog.settings import prop
from fastlog.topics import valid_topic

_UINT32 = 2**32 - 1
_LARGEST_MESSAGE = 2**31 - 1 - 2**20
_CODECS = {name: number for number, name in batch_codecs.CODEC_NAMES.items()} | {"0": 0, "1": 1, "2": 2}
ACKS = {"none": "none", "appended": "appended", "flushed": "flushed", "0": "none", "1": "appended"}
ACKS |= {"all": "flushed", "-1": "flushed"}
"""What the broker confirms, by every name that it may be asked for with: today's clients have numbers for it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProducerConfig(settings.Settings):
    """All settings of a producer. Raises ``ConfigError`` for a wrong value, and for values that contradict."""

    broker_list: str | None = prop(
        "broker.list",
        None,
        doc="The brokers, as `id:host:port,id:host:port`, or `host:port` (the ids are then 0, 1, …).",
    )
    zk_connect: str | None = prop(
        "zk.connect",
        None,
        doc="Where ZooKeeper is, instead of `broker.list`: `host:port,host:port`, with `/path` behind for a tree of its"
        " own.",
    )
    zk_session_timeout_ms: int = prop(
        "zk.sessiontimeout.ms",
        6000,
        unit="ms",
        low=100,
        high=INT32,
        doc="with `zk.connect`: how long the session with ZooKeeper may be silent before a new one is opened.",
    )
    zk_connection_timeout_ms: int = prop(
        "zk.connectiontimeout.ms",
        6000,
        unit="ms",
        low=1,
        high=INT32,
        doc="with `zk.connect`: how long the first send to a topic waits for ZooKeeper (0.7: the session's time-out).",
    )
    zk_sync_time_ms: int = prop(
        "zk.synctime.ms",
        2000,
        unit="ms",
        low=1,
        high=INT32,
        doc="with `zk.connect`: the longest pause before ZooKeeper is tried again; the first ones are shorter.",
    )
    zk_read_retries: int = prop(
        "zk.read.num.retries",
        3,
        low=0,
        high=INT32,
        doc="with `zk.connect`: how often ZooKeeper is read again when the chosen broker cannot be used, before send()"
        " raises.",
    )
    producer_type: str = prop(
        "producer.type",
        "sync",
        choices=("sync", "async"),
        doc="`sync`: send() returns when the broker has answered. `async`: it returns when the message is queued.",
    )
    acks: str | None = prop(
        "acks",
        None,
        choices=tuple(ACKS),
        default_text="appended, or none with a plain 0.7 broker",
        doc="What the broker confirms: nothing, that a message is in the log, or that it is on the disk and visible;"
        " 0, 1 and all (or -1) are the same in today's words.",
    )
    idempotence: bool = prop(
        "enable.idempotence",
        True,
        doc="Number the batches for topics of record batches, so that each is stored once and in order, whatever is"
        " sent again; no effect where nothing is confirmed, or on topics of Kafka 0.7. As today's clients have it.",
    )
    serializer_class: str = prop(
        "serializer.class",
        "kafka.serializer.DefaultEncoder",
        doc="Dotted path of the encoder; the names of 0.7's two encoders are known.",
    )
    partitioner_class: str | None = prop(
        "partitioner.class",
        None,
        doc="Dotted path of the partitioner for keys; as in 0.7 not together with `broker.list` (give"
        " `Producer(partitioner=…)` instead); 0.7's default one is known by its name.",
    )
    compression: str = prop(
        "compression.codec",
        "none",
        choices=tuple(_CODECS),
        doc="How messages are compressed; 0.7 writes 0, 1, 2. lz4 and zstd are for topics of record batches alone.",
    )
    compressed_topics: tuple[str, ...] | None = prop(
        "compressed.topics", None, default_text="all", doc="The topics to compress, separated by commas."
    )
    max_message_bytes: int = prop(
        "max.message.size",
        1_000_000,
        unit="bytes",
        low=1,
        high=_LARGEST_MESSAGE,
        doc="Largest payload of a message, and of a whole compressed set. The broker's own limit holds as well.",
    )
    send_buffer_bytes: int | None = prop(
        "buffer.size", None, unit="bytes", low=1, high=INT32, doc="Size of the socket's send buffer (0.7: 102400)."
    )
    connect_timeout_ms: int = prop(
        "connect.timeout.ms", 5000, unit="ms", low=1, high=INT32, doc="How long a first connection is tried for."
    )
    socket_timeout_ms: int = prop(
        "socket.timeout.ms",
        30_000,
        unit="ms",
        low=1,
        high=INT32,
        doc="How long a connection may stand still with something to write or to be answered before it is replaced.",
    )
    reconnect_interval_sends: int | None = prop(
        "reconnect.interval",
        30_000,
        unit="requests",
        low=1,
        high=INT64,
        doc="Requests on one connection before it is replaced by a new one, up to a quarter fewer by chance; -1: no.",
    )
    reconnect_time_interval_ms: int | None = prop(
        "reconnect.time.interval.ms",
        10_000_000,
        unit="ms",
        low=1,
        high=INT64,
        doc="Age of a connection at which it is replaced, up to a quarter less by chance; -1: no end.",
    )
    num_retries: int | None = prop(
        "num.retries",
        None,
        low=0,
        high=INT32,
        default_text="until the delivery time is over",
        doc="How often messages are sent again after a broken connection, or when the broker refuses them for now (0.7:"
        " 0).",
    )
    delivery_timeout_ms: int = prop(
        "delivery.timeout.ms",
        120_000,
        unit="ms",
        low=1,
        high=INT32,
        doc="How long messages that left the queue are tried before they count as failed. fastlog's own.",
    )
    queue_time_ms: int = prop(
        "queue.time", 5000, unit="ms", low=0, high=INT32, doc="async: how long a message waits for its batch to fill."
    )
    queue_messages: int = prop(
        "queue.size", 10_000, unit="messages", low=1, high=INT32, doc="async: how many messages wait in the queue."
    )
    queue_bytes: int = prop(
        "queue.bytes", 64 * 2**20, unit="bytes", low=1, high=INT64, doc="async: how many bytes do. fastlog's own."
    )
    queue_full: str = prop(
        "queue.full",
        "block",
        choices=("block", "raise", "drop"),
        doc="async: what send() does when the queue is full: wait, raise QueueFullError, or drop the message and count"
        " it. fastlog's own.",
    )
    enqueue_timeout_ms: int | None = prop(
        "queue.enqueueTimeout.ms",
        None,
        unit="ms",
        low=0,
        high=INT32,
        default_text="-1, no end",
        doc="async: how long send() waits for room before it raises QueueFullError; 0 raises at once.",
    )
    batch_messages: int = prop(
        "batch.size", 200, unit="messages", low=1, high=INT32, doc="async: messages in one request."
    )
    batch_bytes: int = prop(
        "batch.bytes",
        2**20,
        unit="bytes",
        low=1,
        high=2**30,
        doc="Bytes of messages in one request, unless a single message is larger. fastlog's own.",
    )
    in_flight_bytes: int = prop(
        "in.flight.bytes",
        32 * 2**20,
        unit="bytes",
        low=1,
        high=INT64,
        doc="Bytes on their way to one broker, written or waiting for an answer. fastlog's own.",
    )
    close_timeout_ms: int = prop(
        "close.timeout.ms",
        30_000,
        unit="ms",
        low=0,
        high=INT32,
        doc="How long close(), and the end of the program, wait for messages to be delivered. fastlog's own.",
    )
    event_handler_class: str | None = prop("event.handler", None, doc="async: dotted path of the event handler.")
    event_handler_props: str = prop("event.handler.props", "", doc="async: its properties, as `k=v,k=v`.")
    callback_handler_class: str | None = prop(
        "callback.handler", None, doc="async: dotted path of the callback handler."
    )
    callback_handler_props: str = prop("callback.handler.props", "", doc="async: its properties, as `k=v,k=v`.")

    envelope: bool = prop(
        "envelope",
        False,
        doc="Put every value into an envelope: the time of the send(), the server, and the key if it is bytes or text"
        " (`docs/format.md`). Readers have to know of it. fastlog's own.",
    )
    server: str | None = prop(
        "server.name",
        None,
        default_text="the name of the machine",
        doc="Who the envelopes and the monitoring events say sent it; brings `envelope` with it. fastlog's own.",
    )
    server_id: int | None = prop(
        "server.id",
        None,
        low=0,
        high=_UINT32,
        default_text="CRC-32 of the name",
        doc="The number in the envelopes for it; brings `envelope` with it. fastlog's own.",
    )
    audit_topic: str | None = prop(
        "audit.topic",
        None,
        doc="Number all messages, and send counts of those that were delivered to this topic (`docs/audit.md`); brings"
        " `envelope` with it. fastlog's own.",
    )
    audit_window_ms: int = prop(
        "audit.window.ms",
        60_000,
        unit="ms",
        low=1,
        high=INT32,
        doc="with `audit.topic`: messages are counted by topic and windows of this length. fastlog's own.",
    )
    audit_interval_ms: int = prop(
        "audit.interval.ms",
        10_000,
        unit="ms",
        low=10,
        high=INT32,
        doc="with `audit.topic`: how often what was delivered is counted; also sends what waits in the queue. fastlog's"
        " own.",
    )

    def __post_init__(self) -> None:
        settings.check_fields(self)
        if self.zk_connect is not None and self.broker_list is not None:
            raise ConfigError("broker.list and zk.connect contradict each other: give one of them")
        if self.zk_connect is not None:
            parse_connect(self.zk_connect)
        else:
            self._refuse_zookeeper_only()
        if self.broker_list is None and self.zk_connect is None:
            raise ConfigError(
                "no broker is named: set broker.list=id:host:port,… (Producer('host:port') does), or zk.connect"
            )
        if self.partitioner_class is not None and self.broker_list is not None:
            raise ConfigError(
                "partitioner.class contradicts broker.list, as in 0.7; in Python give Producer(partitioner=…)"
            )
        if self.compressed_topics is not None:
            if self.codec == codecs.NONE:
                raise ConfigError("compressed.topics contradicts compression.codec=none")
            for topic in self.compressed_topics:
                reason = valid_topic(topic)
                if reason is not None:
                    raise ConfigError(f"compressed.topics: topic {topic!r}: {reason}")
        if self.producer_type == "sync":
            self._refuse_async_only()
        if self.queue_full != "block" and self.enqueue_timeout_ms:
            raise ConfigError(f"queue.enqueueTimeout.ms contradicts queue.full={self.queue_full}, which never waits")
        self._check_audit()
        if self.codec:
            batch_codecs.compress(self.codec, b"")  # a missing library is said now, not at the first message

    def _check_audit(self) -> None:
        if self.audit_topic is not None:
            reason = valid_topic(self.audit_topic)
            if reason is not None:
                raise ConfigError(f"audit.topic: {self.audit_topic!r}: {reason}")
        else:
            for field in dataclasses.fields(self):
                if field.name.startswith("audit_") and getattr(self, field.name) != field.default:
                    raise ConfigError(f"{field.metadata['name']} has no effect without audit.topic")

    def _refuse_zookeeper_only(self) -> None:
        for field in dataclasses.fields(self):
            if field.name.startswith("zk_") and getattr(self, field.name) != field.default:
                raise ConfigError(_without_zookeeper(field.metadata["name"]))

    def _refuse_async_only(self) -> None:
        for name, value in (
            ("event.handler", self.event_handler_class),
            ("callback.handler", self.callback_handler_class),
            ("event.handler.props", self.event_handler_props),
            ("callback.handler.props", self.callback_handler_props),
        ):
            if value:
                raise ConfigError(f"{name} contradicts producer.type=sync: handlers work on the queue of an async one")

    @property
    def has_envelope(self) -> bool:
        """Whether values get envelopes: asked for, or brought by a setting that needs them."""
        return self.envelope or not (self.server is None and self.server_id is None and self.audit_topic is None)

    @property
    def codec(self) -> int:
        """The codec's number in a message's attributes: 0 none, 1 gzip, 2 snappy."""
        return _CODECS[self.compression]

    def codec_for(self, topic: str) -> int:
        """The codec for the messages of a topic."""
        return self.codec if self.compressed_topics is None or topic in self.compressed_topics else codecs.NONE

    @classmethod
    def _read(cls, texts: dict[str, str], fields: Mapping[str, Any]) -> dict[str, Any]:
        if not texts.get("zk.connect", "").strip() and fields.get("zk_connect") is None:
            for name in texts:
                if name.startswith("zk.") and name != "zk.connect":
                    raise ConfigError(_without_zookeeper(name))
        for name in ("reconnect.interval", "reconnect.time.interval.ms", "queue.enqueueTimeout.ms"):
            if texts.get(name, "").strip().startswith("-"):
                texts[name] = "-1"  # any negative number is 0.7's "no end"
        values = super()._read(texts, fields)
        if values.get("enqueue_timeout_ms") == 0:
            values.setdefault("queue_full", "raise")
        return values

    @staticmethod
    def _refused(name: str) -> str | None:
        if name in ("host", "port"):
            return f"{name}: that is for SyncProducer(host, port); set broker.list=id:host:port,…"
        return None


def _without_zookeeper(name: str) -> str:
    return f"{name} is about finding brokers through ZooKeeper, and zk.connect is not set"

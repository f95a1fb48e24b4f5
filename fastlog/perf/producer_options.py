"""The options of a measurement of producers, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastlog import codecs
from fastlog.arguments import INT32
from fastlog.client.addresses import Address
from fastlog.client.registrations import registered_brokers
from fastlog.coordination.addresses import parse_connect
from fastlog.errors import ConfigError
from fastlog.perf.figures import Figures
from fastlog.perf.latencies import LatencyHistogram
from fastlog.perf.sending import HOWS
from fastlog.producer.brokers import ACKS_BY_NAME, parse_broker_list
from fastlog.topics import valid_topic

CLOCKS = {
    "log end": "the broker's log end shows every byte",
    "high watermark": "the broker's high watermark shows every byte: flushed and visible to consumers",
    "offsets": "OFFSETS shows every byte, the flush included: a plain 0.7 broker tells nothing of its log end",
    "log end at close": "the log end once the broker had handled all connections; the messages were counted afterwards",
    "reading back": "all messages were read back: a plain 0.7 broker, and compressed sizes are not known beforehand",
}


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """What to send and how. Raises ``ConfigError`` for invalid values."""

    brokers: str = ""
    """As ``broker.list``: ``id:host:port,…`` or ``host:port,…``; all of them get messages."""
    zk_connect: str = ""
    """Instead: the brokers that are registered in this ZooKeeper, as ``zk.connect``."""
    topic: str
    messages: int
    message_size: int = 100
    vary_message_size: bool = False
    """Whether sizes vary from 1 to ``message_size`` bytes."""
    payload_file: Path | None = None
    """Its lines are sent, over and over, instead of random bytes."""
    seed: int = 1
    batch_size: int = 200
    threads: int = 1
    """Each has a producer, and so a connection, of its own."""
    acks: str = "none"
    compression_codec: int = codecs.NONE
    how: str = "send"
    """``send``: one call for each message; ``list``: one for ``batch_size`` messages; ``sync``: the same with a
    producer of type sync, which waits for each (0.7's way without --async)."""
    partition: int | None = None
    """None: the broker chooses for each request."""
    rate: float | None = None
    """Messages a second, over all threads; latencies are measured then."""
    latency: bool = False
    """Measure latencies without a rate: calls take ``batch_size`` messages each then."""
    warm_up: int = 0
    """Messages sent before the clock starts, to the same topic."""
    queue_time_ms: int = 5000
    timeout: float = 30.0
    """Seconds without any progress after which it fails."""
    connect_timeout: float = 10.0
    sample_seconds: float = 0.25
    reporting_interval: int | None = None
    """Messages of a thread between two calls of ``on_interval``."""

    def __post_init__(self) -> None:
        reason = valid_topic(self.topic)
        if reason is not None:
            raise ConfigError(f"topic {self.topic!r}: {reason}")
        if self.zk_connect:
            parse_connect(self.zk_connect)
            if self.brokers:
                raise ConfigError("brokers and zk_connect both name brokers: give one of them")
        else:
            parse_broker_list(self.brokers)
        for name, value, low, high in (
            ("messages", self.messages, 1, 2**63 - 1),
            ("message_size", self.message_size, 0, INT32),
            ("batch_size", self.batch_size, 1, INT32),
            ("threads", self.threads, 1, 1000),
            ("warm_up", self.warm_up, 0, 2**63 - 1),
            ("partition", 0 if self.partition is None else self.partition, 0, INT32),
            ("compression_codec", self.compression_codec, codecs.NONE, codecs.SNAPPY),
            ("reporting_interval", 1 if self.reporting_interval is None else self.reporting_interval, 1, 2**63 - 1),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{name}: {value} is not from {low} to {high}")
        for name, positive in (("rate", self.rate), ("timeout", self.timeout), ("sample_seconds", self.sample_seconds)):
            if positive is not None and not positive > 0:
                raise ConfigError(f"{name}: {positive} is not above 0")
        if self.acks not in ACKS_BY_NAME:
            raise ConfigError(f"acks: {self.acks!r} is none of {', '.join(ACKS_BY_NAME)}")
        if self.how not in HOWS:
            raise ConfigError(f"how: {self.how!r} is none of {', '.join(HOWS)}")
        if self.partition is not None and (self.zk_connect or len(self.addresses()) > 1):
            raise ConfigError("partition: of which broker? give one broker, or no partition")

    def addresses(self) -> list[Address]:
        """Where the brokers are; ZooKeeper is asked if need be.

        Raises:
            CoordinationError: it does not answer.
            TransportError: it shows no broker.
        """
        if self.zk_connect:
            return list(registered_brokers(self.zk_connect, self.connect_timeout).values())
        return [found.address for found in parse_broker_list(self.brokers)]


@dataclass(frozen=True, kw_only=True)
class ProducerFigures(Figures):
    """What was measured; with ``complete`` False what there was when it stopped."""

    options: ProducerOptions
    sent_seconds: float | None
    delivered_seconds: float | None
    clock: str
    """What ``seconds`` ends with: a key of ``CLOCKS``."""
    log_bytes: int | None
    """By how much the log end, or what stands for it, grew; None when the broker did not answer at the end."""
    expected_bytes: int | None
    """By how much it had to grow; None with compression."""
    possible_duplicates: int = 0
    connections: int = 0
    latencies: LatencyHistogram | None = None
    cpu_seconds: float = 0.0
    """Processor time of this process over ``seconds``; reading back what a codec run stored is not part of it."""

    @property
    def missing_bytes(self) -> int:
        """What the log lacks of what was expected."""
        return max(0, (self.expected_bytes or 0) - (self.log_bytes or 0)) if self.expected_bytes is not None else 0


@dataclass(frozen=True, slots=True)
class SendingProgress:
    """How far a run is, told from time to time while it sends."""

    messages: int
    payload_bytes: int
    seconds: float
    latencies: tuple[LatencyHistogram, ...] = ()

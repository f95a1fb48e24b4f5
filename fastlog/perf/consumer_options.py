"""The options of a measurement of consumers, and its figures."""

from __future__ import annotations

from dataclasses import dataclass

from fastlog.client.addresses import parse_brokers
from fastlog.coordination.addresses import parse_connect
from fastlog.errors import ConfigError
from fastlog.perf.figures import Figures
from fastlog.topics import valid_topic

MODES = {
    "messages": "each payload taken by a loop in Python",
    "batches": "lists of payloads",
    "numpy": "arrays over one buffer, no object for a message",
    "arrow": "Arrow record batches, no object for a message",
    "local": "arrays, read from the segment files on this machine instead of the socket",
    "map": "the same with the files mapped: nothing is copied",
}
OF_FILES = {"local": "auto", "map": "map"}
"""Modes that read the segment files, with what a consumer calls it; the others read the socket, also where there are
files."""


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """What to read and how. Raises ``ConfigError`` for invalid values."""

    brokers: str = ""
    """``host:port,…``: the first that answers."""
    zk_connect: str = ""
    """Instead: read as a group does, from all the brokers that are registered in this ZooKeeper (``zk.connect``)."""
    group: str | None = None
    """With ``zk_connect``: the group, which goes on where it has committed and commits; None: one of its own, which is
    removed afterwards."""
    topic: str
    messages: int | None = None
    """How many are read; None: to the end of the log."""
    partition: int | None = None
    """The partition that is read; None: all."""
    fetch_bytes: int = 1024 * 1024
    mode: str = "messages"
    from_latest: bool = False
    """Begin at the end of the log, instead of its start."""
    threads: int | None = None
    """None: one for each partition, at most 10. With fewer threads than partitions each reads its partitions one after
    another to their end, and does not wait for more."""
    socket_buffer_bytes: int | None = None
    timeout: float = 5.0
    """Seconds to wait at the end of the log for messages that are still missing; 0: not at all."""
    connect_timeout: float = 10.0
    sample_seconds: float = 0.25
    reporting_interval: int | None = None

    def __post_init__(self) -> None:
        reason = valid_topic(self.topic)
        if reason is not None:
            raise ConfigError(f"topic {self.topic!r}: {reason}")
        if self.zk_connect:
            parse_connect(self.zk_connect)
            if self.brokers or self.partition is not None:
                raise ConfigError("a group reads all partitions of all brokers: name no broker and no partition")
        elif self.group is not None:
            raise ConfigError(f"group {self.group!r}: a group needs a ZooKeeper")
        else:
            parse_brokers(self.brokers)
        if self.mode not in MODES:
            raise ConfigError(f"mode: {self.mode!r} is none of {', '.join(MODES)}")
        for name, value in (
            ("messages", self.messages),
            ("threads", self.threads),
            ("socket_buffer_bytes", self.socket_buffer_bytes),
            ("reporting_interval", self.reporting_interval),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: {value} is below 1")
        if not self.timeout >= 0 or not self.sample_seconds > 0:
            raise ConfigError("timeout and sample_seconds are not negative, and there is a time between two samples")


@dataclass(frozen=True, kw_only=True)
class ConsumerFigures(Figures):
    """What was measured; with ``complete`` False there were fewer messages than wanted, or it was stopped."""

    options: ConsumerOptions
    idle_seconds: float
    """Waited in vain after that; not in ``seconds``."""
    partitions: tuple[int | str, ...]
    """Their numbers; with a group ``<broker>-<partition>``."""
    threads: int
    source: str
    """``socket``, or with mode ``local`` or ``map`` how the files were read: ``read`` or ``map``."""
    join_seconds: float = 0.0
    """With a group: until the first partition was assigned; part of ``seconds``."""

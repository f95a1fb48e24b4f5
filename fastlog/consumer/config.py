"""The settings of a group's consumer: every property of Kafka 0.7.2 that it honours, and fastlog's own.

Source of names and of defaults that are not marked otherwise in their text: Kafka 0.7.2, ``ConsumerConfig``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from fastlog import settings
from fastlog.arguments import INT32
from fastlog.client.addresses import parse_brokers
from fastlog.coordination.addresses import parse_connect
from fastlog.errors import ConfigError
from fastlog.settings import prop

_NAME = re.compile(r"[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerConfig(settings.Settings):
    """All settings of a consumer of a group. Raises ``ConfigError`` for a wrong value."""

    zk_connect: str = prop(
        "zk.connect", "", doc="Where ZooKeeper is: `host:port,host:port`, with `/path` behind for a tree of its own."
    )
    brokers: str = prop(
        "bootstrap.servers",
        "",
        doc="Where the broker is whose coordinator keeps the group, when no ZooKeeper is named: `host:port`, or several"
        " addresses of one broker, of which the first that answers is taken.",
    )
    group_id: str = prop("groupid", "", default_text="none; required", doc="The name of the group.")
    consumer_id: str | None = prop(
        "consumerid", None, default_text="made anew", doc="The name of this member, which nobody else may use."
    )
    zk_session_timeout_ms: int = prop(
        "zk.sessiontimeout.ms",
        6000,
        unit="ms",
        low=100,
        high=INT32,
        doc="How long a member may be silent before its partitions go to others.",
    )
    session_timeout_ms: int = prop(
        "session.timeout.ms",
        10_000,
        unit="ms",
        low=100,
        high=INT32,
        doc="The same for a group that a broker keeps, within the broker's `group.min.session.timeout.ms` and"
        " `group.max.session.timeout.ms`.",
    )
    heartbeat_interval_ms: int = prop(
        "heartbeat.interval.ms",
        1000,
        unit="ms",
        low=10,
        high=INT32,
        doc="How often a member of a group that a broker keeps sends a heartbeat, and learns whether others have come"
        " or gone; a quarter of the session's time-out if that is less.",
    )
    metadata_max_age_ms: int = prop(
        "metadata.max.age.ms",
        5000,
        unit="ms",
        low=10,
        high=INT32,
        doc="How often a member of a group that a broker keeps looks for new topics and partitions.",
    )
    zk_connection_timeout_ms: int = prop(
        "zk.connectiontimeout.ms",
        6000,
        unit="ms",
        low=1,
        high=INT32,
        doc="How long the first connection to ZooKeeper, or to the broker that keeps the group, is tried for (0.7: the"
        " session's time-out).",
    )
    zk_sync_time_ms: int = prop(
        "zk.synctime.ms",
        2000,
        unit="ms",
        low=1,
        high=INT32,
        doc="The longest pause between tries to become the owner of a partition, unless `rebalance.backoff.ms` is set.",
    )
    rebalance_backoff_ms: int | None = prop(
        "rebalance.backoff.ms",
        None,
        unit="ms",
        low=1,
        high=INT32,
        default_text="zk.synctime.ms",
        doc="The longest pause between tries to become the owner of a partition; the first ones are shorter.",
    )
    rebalance_max_retries: int | None = prop(
        "rebalance.retries.max",
        None,
        low=1,
        high=INT32,
        default_text="no limit",
        doc="Failed tries in a row after which it is reported as an error; they go on all the same (0.7: gives up after"
        " 4).",
    )
    socket_timeout_ms: int = prop(
        "socket.timeout.ms", 30_000, unit="ms", low=1, high=INT32, doc="How long a broker may take for an answer."
    )
    receive_buffer_bytes: int | None = prop(
        "socket.buffersize",
        None,
        unit="bytes",
        low=1,
        high=INT32,
        default_text="the system's",
        doc="Size of the socket's receive buffer (0.7: 65536).",
    )
    fetch_bytes: int = prop(
        "fetch.size",
        1024 * 1024,
        unit="bytes",
        low=1,
        high=2**30,
        doc="Bytes asked for at once, for each partition. A larger message is fetched alone.",
    )
    max_message_bytes: int | None = prop(
        "max.message.size",
        None,
        unit="bytes",
        low=1,
        high=2**30,
        default_text="what the broker allows",
        doc="Largest payload that is fetched. fastlog's own.",
    )
    fetcher_backoff_ms: int = prop(
        "fetcher.backoff.ms",
        1000,
        unit="ms",
        low=1,
        high=INT32,
        doc="The longest pause before a broker that failed is tried again, and between looks at the end of a log of a"
        " plain 0.7 broker.",
    )
    auto_commit: bool = prop("autocommit.enable", True, doc="Whether offsets are committed from time to time.")
    auto_commit_interval_ms: int = prop(
        "autocommit.interval.ms", 10_000, unit="ms", low=1, high=INT32, doc="How often, where they changed."
    )
    auto_commit_max_failures: int | None = prop(
        "autocommit.failures.max",
        10,
        low=1,
        high=INT32,
        doc="After this many automatic commits in a row have failed, streams raise why and hand out nothing more until"
        " one works; -1: never. fastlog's own.",
    )
    queued_chunks: int = prop(
        "queuedchunks.max", 10, low=1, high=INT32, doc="Fetched pieces that wait for one partition's reader."
    )
    auto_offset_reset: str = prop(
        "autooffset.reset",
        "smallest",
        choices=("smallest", "largest"),
        doc="Where to begin without a committed offset, or with one that the broker has no longer; it is committed as"
        " soon as it is known. 0.7 takes any other word for an error at that moment; here it is refused at once.",
    )
    consumer_timeout_ms: int | None = prop(
        "consumer.timeout.ms",
        None,
        unit="ms",
        low=0,
        high=INT32,
        default_text="-1: none",
        doc="How long a stream waits for a message before it raises ConsumerTimeout; -1: for ever.",
    )
    shallow: bool = prop(
        "shallowiterator.enable", False, doc="Hand compressed sets out closed, as mirrors pass them on."
    )
    local: str = prop(
        "local",
        "auto",
        choices=("auto", "read", "map", "shared", "off"),
        doc="Read the broker's files on its own machine instead of the socket; `shared`: also on another one that has"
        " them under the same path. fastlog's own.",
    )

    def __post_init__(self) -> None:
        settings.check_fields(self)
        for name, value in (("groupid", self.group_id), ("consumerid", self.consumer_id)):
            if value is not None and not _NAME.fullmatch(value):
                raise ConfigError(f"{name}: {value!r} cannot be part of a path in ZooKeeper, or is empty")
        if self.zk_connect and self.brokers:
            raise ConfigError(
                "zk.connect and bootstrap.servers: a group is kept in ZooKeeper or by a broker; give one of them"
            )
        if self.zk_connect:
            parse_connect(self.zk_connect)
        elif self.brokers:
            parse_brokers(self.brokers)
        else:
            raise ConfigError(
                "zk.connect: not given, and bootstrap.servers neither: zk.connect=host:port is for a group that"
                " ZooKeeper keeps, bootstrap.servers=host:port for one that a broker keeps"
            )

    @property
    def session_timeout(self) -> float:
        """Seconds after which a silent member counts as dead, by ZooKeeper or the coordinator."""
        return (self.zk_session_timeout_ms if self.zk_connect else self.session_timeout_ms) / 1000

    @property
    def kept_by(self) -> str:
        """What keeps the group's state, with its address, for messages."""
        return f"ZooKeeper at {self.zk_connect}" if self.zk_connect else f"the coordinator of groups at {self.brokers}"

    @property
    def most_backoff(self) -> float:
        """The longest pause between two tries to own a partition, in seconds."""
        return (self.zk_sync_time_ms if self.rebalance_backoff_ms is None else self.rebalance_backoff_ms) / 1000

    @classmethod
    def _read(cls, texts: dict[str, str], fields: Mapping[str, Any]) -> dict[str, Any]:
        for name in ("consumer.timeout.ms", "autocommit.failures.max"):
            if texts.get(name, "").strip().startswith("-"):
                texts[name] = "-1"  # any negative number is 0.7's "for ever"
        return super()._read(texts, fields)

    @staticmethod
    def _refused(name: str) -> str | None:
        if name.startswith("mirror."):
            return f"{name}: that is for a mirror, not for a consumer"
        if name == "auto.commit":
            return "auto.commit: 0.7's console consumer wrote that and nothing read it; autocommit.enable is meant"
        return None

"""The settings of the broker, by what they are about; :class:`fastlog.config.BrokerConfig` is all of them.

Source of names and of defaults that are not marked otherwise in their text: Kafka 0.7.2, ``KafkaConfig``.
"""

# ruff: noqa: RUF009 - prop() returns a dataclass field, which the linter cannot see

from __future__ import annotations

import os
from dataclasses import dataclass

from fastlog.arguments import INT32, INT64
from fastlog.settings import prop

MAX_PROCESSORS = 48
_HOURS = 10**9
_LEAST_HOURS = 0.000001


def _cpu_count() -> int:
    return max(1, min(len(os.sched_getaffinity(0)), MAX_PROCESSORS))


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where clients connect, and what they may speak there."""

    broker_id: int = prop("brokerid", 0, low=0, high=INT32, doc="The number of this broker.")
    hostname: str = prop(
        "hostname",
        "",
        default_text="the bind address",
        doc="The name that clients are to connect to; the machine's name where all its addresses are bound.",
    )
    advertised_port: int | None = prop(
        "advertised.port",
        None,
        low=1,
        high=65535,
        default_text="",
        doc="The port that clients are to connect to, where it is not `port`.",
    )
    host: str = prop(
        "host",
        "127.0.0.1",
        doc="The address to listen on. Any other than loopback needs `insecure`, as there is no login.",
    )
    port: int = prop("port", 9092, low=0, high=65535, doc="The port to listen on; 0 picks a free one and prints it.")
    listeners: str = prop(
        "listeners",
        "",
        doc="Several addresses to listen on, `NAME://HOST:PORT,NAME://HOST:PORT`, instead of `host` and `port`."
        " As in Kafka, `NAME://:PORT` means all addresses. Any other than loopback needs `insecure`, here as well."
        " ZooKeeper shows the first.",
    )
    advertised_listeners: str = prop(
        "advertised.listeners",
        "",
        doc="The addresses that clients of `listeners` are to connect to, `NAME://HOST:PORT,NAME://HOST:PORT`. For one"
        " that is not named here it is the address it listens on; for the first, `hostname` and `advertised.port` where"
        " they are set.",
    )
    listener_security_protocols: str = prop(
        "listener.security.protocol.map",
        "",
        doc="How connections of `listeners` are secured, `NAME:PROTOCOL,NAME:PROTOCOL`. Only `PLAINTEXT` is supported"
        " yet, which is also what a listener has that is not named here, unless its name is that of another protocol"
        " of Kafka.",
    )
    listener_protocols: str = prop(
        "listener.protocol.map",
        "",
        doc="What the clients of `listeners` may speak, `NAME:PROTOCOL,NAME:PROTOCOL`: `kafka-0.7` (with fastlog's own"
        " requests), `kafka` (today's), or `any`, which is also what holds for one that is not named here: the first"
        " request of a connection decides. `host` and `port` are the listener `PLAINTEXT`.",
    )
    insecure: bool = prop("insecure", False, doc="Allow listening on other addresses than loopback without a login.")
    accept_mode: str = prop(
        "accept.mode",
        "handoff",
        choices=("handoff", "direct"),
        doc="`handoff`: the acceptor gives each connection to the least busy processor; `direct`: processors accept.",
    )
    max_connections: int = prop(
        "max.connections", 10_000, low=1, high=2**20, doc="Open connections; one more is closed at once."
    )
    idle_ms: int = prop(
        "connections.max.idle.ms",
        600_000,
        low=1,
        high=INT32,
        unit="ms",
        doc="Silence after which a connection is closed.",
    )
    send_buffer_bytes: int | None = prop(
        "socket.send.buffer",
        None,
        low=1,
        high=INT32,
        unit="bytes",
        default_text="-1",
        doc="SO_SNDBUF of connections; -1 leaves it to the kernel.",
    )
    receive_buffer_bytes: int | None = prop(
        "socket.receive.buffer",
        None,
        low=1,
        high=INT32,
        unit="bytes",
        default_text="-1",
        doc="SO_RCVBUF of connections; -1 leaves it to the kernel.",
    )
    processors: int = prop(
        "num.threads",
        _cpu_count,
        low=1,
        high=MAX_PROCESSORS,
        unit="processes",
        default_text="the number of CPUs",
        doc="Processes that serve connections.",
    )


@dataclass(frozen=True, kw_only=True)
class Topics:
    """Topics and partitions: how they come and go."""

    log_dirs: tuple[str, ...] = prop(
        "log.dir",
        ("./fastlog-data",),
        doc="The directories for the logs, separated by commas; a new partition goes to the emptiest.",
    )
    log_access: str = prop(
        "log.access",
        "owner",
        choices=("owner", "group", "all"),
        doc="Who may read the log files, and so consume from them without the socket: only the user that the broker"
        " runs as (directories 0700, files 0600), its group too (0750, 0640), or everybody (0755, 0644).",
    )
    partitions: int = prop("num.partitions", 1, low=1, high=65536, doc="Partitions of a topic on this broker.")
    partitions_by_topic: dict[str, int] = prop(
        "topic.partition.count.map", dict, low=1, high=65536, default_text="", doc="Partitions of single topics."
    )
    auto_create_topics: bool = prop(
        "auto.create.topics",
        True,
        doc="Let clients create partitions: at the first produce to one, as 0.7 does, and by `create.topic.requests`.",
    )
    create_topic_requests: bool | None = prop(
        "create.topic.requests",
        None,
        default_text="",
        doc="Allow `fastlog topics create`. Where not given: as `auto.create.topics`. `true`"
        " beside `auto.create.topics=false` leaves it as the only way.",
    )
    delete_topic_enable: bool = prop(
        "delete.topic.enable", True, doc="Allow `fastlog topics delete`. Kafka's name; 0.7 cannot delete."
    )
    max_partitions: int = prop(
        "max.partitions", 4096, low=1, high=65536, doc="Partitions this broker can hold, over all topics."
    )
    max_topic_name_length: int = prop(
        "max.topic.name.length", 255, low=1, high=255, unit="UTF-16 units", doc="Longest name of a topic."
    )


@dataclass(frozen=True, kw_only=True)
class Segments:
    """How the segments of a partition are made."""

    segment_bytes: int = prop(
        "log.file.size", 2**30, low=5, high=2**40, unit="bytes", doc="Size at which a new segment is started."
    )
    segment_bytes_by_topic: dict[str, int] = prop(
        "topic.log.file.size", dict, low=5, high=2**40, unit="bytes", default_text="", doc="The same for single topics."
    )
    roll_hours: float = prop(
        "log.roll.hours",
        168.0,
        low=_LEAST_HOURS,
        high=_HOURS,
        unit="hours",
        doc="Age at which a new segment is started.",
    )
    roll_hours_by_topic: dict[str, float] = prop(
        "topic.log.roll.hours",
        dict,
        low=_LEAST_HOURS,
        high=_HOURS,
        unit="hours",
        default_text="",
        doc="The same for single topics.",
    )
    segments_per_partition: int = prop(
        "max.segments.per.partition", 16384, low=4, high=2**20, doc="Segments one partition can hold."
    )
    preallocate: bool = prop(
        "log.preallocate", True, doc="Reserve disk space ahead of the end of partitions under load."
    )
    preallocate_bytes: int = prop(
        "log.preallocate.bytes", 16 * 2**20, low=4096, high=16 * 2**20, unit="bytes", doc="Step of that reservation."
    )
    early_writeback_bytes: int = prop(
        "log.early.writeback.bytes",
        0,
        low=0,
        high=INT32,
        unit="bytes",
        doc="Start writing to disk after this many appended bytes, before a flush is due; 0 leaves it to the kernel.",
    )
    cache_keep_bytes: int | None = prop(
        "log.cache.keep.bytes",
        None,
        low=0,
        high=INT64,
        unit="bytes",
        default_text="-1",
        doc="Of each partition, this many of the newest flushed bytes stay in the page cache; the kernel is asked to"
        " forget those before them. For machines whose memory others need: who reads further back waits for the disk."
        " -1: the kernel decides.",
    )
    recovery_retry_ms: int = prop(
        "recovery.retry.ms",
        1000,
        low=0,
        high=3_600_000,
        unit="ms",
        doc="How soon a partition that its disk has put out of service is recovered while the others serve; twice as "
        "long after each try that fails, up to a minute. 0: with the next start.",
    )


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long messages are kept."""

    retention_hours: float = prop(
        "log.retention.hours",
        168.0,
        low=_LEAST_HOURS,
        high=_HOURS,
        unit="hours",
        doc="Age at which segments are deleted.",
    )
    retention_hours_by_topic: dict[str, float] = prop(
        "topic.log.retention.hours",
        dict,
        low=_LEAST_HOURS,
        high=_HOURS,
        unit="hours",
        default_text="",
        doc="The same for single topics.",
    )
    retention_bytes: int | None = prop(
        "log.retention.size",
        None,
        low=1,
        high=INT64,
        unit="bytes",
        default_text="-1",
        doc="Size of a partition above which its oldest segments are deleted; -1 is no limit.",
    )
    retention_bytes_by_topic: dict[str, int] = prop(
        "topic.log.retention.size",
        dict,
        low=1,
        high=INT64,
        unit="bytes",
        default_text="",
        doc="The same for single topics.",
    )
    retention_policy: str = prop(
        "log.retention.policy", "", doc="A policy of your own, `module:callable`, asked besides time and size."
    )
    cleanup_interval_minutes: float = prop(
        "log.cleanup.interval.mins", 10.0, low=0.0001, high=10**6, unit="minutes", doc="How often retention looks."
    )


@dataclass(frozen=True, kw_only=True)
class Flushing:
    """When appended messages reach the disk."""

    flush_interval_messages: int = prop(
        "log.flush.interval",
        50_000,
        low=1,
        high=INT64,
        unit="messages",
        doc="Most messages of one partition that a power loss can take (M); a flush starts at half of it. 0.7.2: 500.",
    )
    flush_interval_messages_by_topic: dict[str, int] = prop(
        "topic.flush.intervals",
        dict,
        low=1,
        high=INT64,
        unit="messages",
        default_text="",
        doc="The same for single topics.",
    )
    flush_interval_ms: int = prop(
        "log.default.flush.interval.ms",
        1000,
        low=1,
        high=INT32,
        unit="ms",
        doc="Age of the oldest unflushed byte at which a flush starts (S); at twice that appends wait. 0.7.2: 3000.",
    )
    flush_interval_ms_by_topic: dict[str, int] = prop(
        "topic.flush.intervals.ms",
        dict,
        low=1,
        high=INT32,
        unit="ms",
        default_text="",
        doc="The same for single topics.",
    )
    flush_scheduler_interval_ms: int | None = prop(
        "log.default.flush.scheduler.interval.ms",
        None,
        low=1,
        high=INT32,
        unit="ms",
        default_text="",
        doc="Kept for files of 0.7: the value of `log.default.flush.interval.ms` where that is not given.",
    )
    flush_bytes: int = prop(
        "flush.max.unflushed.bytes",
        256 * 2**20,
        low=1,
        high=INT64,
        unit="bytes",
        doc="The most unflushed bytes of one partition (B). A flush starts at half of it.",
    )
    flush_min_interval_ms: int = prop(
        "flush.min.interval.ms",
        1,
        low=0,
        high=INT32,
        unit="ms",
        doc="Least time between two flushes that a waiting reader or producer asked for.",
    )


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of today's protocol, their offsets, and idempotent producers."""

    group_min_session_ms: int = prop(
        "group.min.session.timeout.ms",
        6_000,
        low=0,
        high=INT32,
        unit="ms",
        doc="Shortest session time-out that a member of a group of today's protocol may ask for.",
    )
    group_max_session_ms: int = prop(
        "group.max.session.timeout.ms", 1_800_000, low=1, high=INT32, unit="ms", doc="Longest one."
    )
    group_initial_rebalance_delay_ms: int = prop(
        "group.initial.rebalance.delay.ms",
        3_000,
        low=0,
        high=INT32,
        unit="ms",
        doc="What the first rebalance of an empty group waits for more members.",
    )
    group_max_size: int = prop("group.max.size", 10_000, low=1, high=INT32, doc="The most members of one group.")
    offsets_partitions: int = prop(
        "offsets.topic.num.partitions",
        1,
        low=1,
        high=1024,
        doc="Partitions of `__consumer_offsets`, which is made with the first group; those that it has then, it keeps.",
    )
    offsets_retention_minutes: int = prop(
        "offsets.retention.minutes",
        10_080,
        low=1,
        high=INT32,
        unit="minutes",
        doc="Age at which the offsets of a group without members are forgotten, and then the group.",
    )
    offsets_retention_check_ms: int = prop(
        "offsets.retention.check.interval.ms",
        600_000,
        low=1,
        high=INT32,
        unit="ms",
        doc="How often such offsets are looked for.",
    )
    offset_metadata_bytes: int = prop(
        "offset.metadata.max.bytes",
        4_096,
        low=0,
        high=32_767,
        unit="bytes",
        doc="Longest text that a client may commit with an offset.",
    )
    producer_expiry_ms: int = prop(
        "producer.id.expiration.ms",
        86_400_000,
        low=1,
        high=2**31 - 1,
        unit="ms",
        doc="How long what is known of an idempotent producer is kept after its last batch; then it may begin anew.",
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large messages and requests may be, and how long they may wait."""

    max_message_bytes: int = prop(
        "max.message.size",
        1_000_000,
        low=1,
        high=INT32 - 1024,
        unit="bytes",
        doc="Largest payload of one message, as sent.",
    )
    max_batch_bytes: int = prop(
        "message.max.bytes",
        1_048_588,
        low=0,
        high=INT32,
        unit="bytes",
        doc="Largest record batch of today's clients, as sent and with its head of 61 bytes; Kafka's name and default."
        " A payload of 0.7's is held to `max.message.size`.",
    )
    max_request_bytes: int = prop(
        "max.socket.request.bytes",
        100 * 2**20,
        low=2,
        high=INT32,
        unit="bytes",
        doc="Largest request; a larger one closes the connection.",
    )
    max_inflated_bytes: int = prop(
        "max.inflated.bytes",
        64 * 2**20,
        low=1,
        high=2**40,
        unit="bytes",
        doc="Most bytes that one compressed set may decompress to.",
    )
    max_inflated_depth: int = prop(
        "max.inflated.depth", 8, low=1, high=64, doc="Most compressed sets inside one another."
    )
    max_inflated_messages: int = prop(
        "max.inflated.messages",
        10_000_000,
        low=1,
        high=INT32,
        unit="messages",
        doc="Most messages in one compressed set.",
    )
    request_memory_bytes: int = prop(
        "request.memory.bytes",
        128 * 2**20,
        low=2**16,
        high=2**40,
        unit="bytes",
        doc="Memory of one processor for requests that are not complete, and as much again for answers that are not "
        "sent; connections above it wait.",
    )
    fetch_max_wait_ms: int = prop(
        "fetch.max.wait.ms", 30_000, low=0, high=INT32, unit="ms", doc="Longest time a long poll may ask to wait."
    )


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What is logged and answered about the broker, and what it does beside serving."""

    monitoring_period_seconds: int = prop(
        "monitoring.period.secs", 600, low=1, high=INT32, unit="seconds", doc="How often the counters are logged."
    )
    monitor_address: str = prop(
        "monitor.address",
        "",
        doc="HOST:PORT that answers `/live`, `/ready`, `/health` and `/metrics` over HTTP; port 0 picks a free one"
        " and prints it. Any other host than loopback needs `monitor.token.file`.",
    )
    monitor_token_file: str | None = prop(
        "monitor.token.file",
        None,
        default_text="",
        doc="A file that holds a secret of at least 16 characters: then every request to `monitor.address` needs"
        " `Authorization: Bearer SECRET`.",
    )
    trace_requests: bool = prop("trace.requests", False, doc="Log each request to the logger `fastlog.request`.")
    mirror_file: str | None = prop(
        "mirror.config",
        None,
        default_text="",
        doc="A properties file that says what to mirror from other clusters, in a process of this broker.",
    )


@dataclass(frozen=True, kw_only=True)
class ZooKeeper:
    """Where the broker and its topics are registered."""

    enable_zookeeper: bool | None = prop(
        "enable.zookeeper",
        None,
        default_text="",
        doc="Register this broker and its topics in ZooKeeper. Where not given: when there is a `zk.connect`.",
    )
    zk_connect: str = prop(
        "zk.connect",
        "",
        doc="The servers of ZooKeeper, `host:port,host:port/path`; without a path all lies at its root.",
    )
    zk_connection_timeout_ms: int = prop(
        "zk.connectiontimeout.ms",
        6000,
        low=1,
        high=INT32,
        unit="ms",
        doc="How long one try to reach ZooKeeper may take. The broker serves meanwhile, and tries again.",
    )
    zk_session_timeout_ms: int = prop(
        "zk.sessiontimeout.ms",
        6000,
        low=100,
        high=INT32,
        unit="ms",
        doc="Silence after which ZooKeeper takes this broker for dead and removes its nodes; the server has bounds.",
    )
    zk_sync_time_ms: int = prop(
        "zk.synctime.ms",
        2000,
        low=0,
        high=INT32,
        unit="ms",
        doc="How far a follower of ZooKeeper may be behind: a broker id that another start holds is waited for so much"
        " longer than `zk.sessiontimeout.ms`, before it counts as taken.",
    )

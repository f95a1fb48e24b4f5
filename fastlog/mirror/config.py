"""The settings of a mirror: its sources, its target, and which topics.

Source of the names: Kafka 0.7.2 (MirrorMaker) for the options, Kafka 0.7.0's embedded mirror for ``mirror.topics.…``
and ``mirror.consumer.numthreads``; the others are fastlog's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from fastlog import settings
from fastlog.arguments import INT32
from fastlog.consumer.assignment import TopicFilter
from fastlog.consumer.config import ConsumerConfig
from fastlog.coordination.addresses import parse_connect
from fastlog.errors import ConfigError
from fastlog.producer.config import ProducerConfig
from fastlog.settings import Setting, load_properties, prop
from fastlog.topics import valid_topic

_COMMIT_MS = "1000"
_FETCH_BYTES = "960KiB"
"""Less than the largest message a broker takes by default: no message of such a piece can be too large for it."""
_OF_THE_TARGET = frozenset(
    {
        "broker.list",
        "zk.connect",
        "zk.sessiontimeout.ms",
        "zk.connectiontimeout.ms",
        "zk.synctime.ms",
        "acks",
        "max.message.size",
        "connect.timeout.ms",
        "socket.timeout.ms",
        "batch.bytes",
        "in.flight.bytes",
    }
)
_NOT_OF_A_SOURCE = frozenset({"shallowiterator.enable", "consumer.timeout.ms", "consumerid"})
_OF_A_RECORD_SOURCE = frozenset(
    {
        "bootstrap.servers",
        "groupid",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "metadata.max.age.ms",
        "socket.timeout.ms",
        "fetch.size",
        "autooffset.reset",
        "autocommit.enable",
        "autocommit.interval.ms",
    }
)
_OF_A_RECORD_TARGET = frozenset({"broker.list", "bootstrap.servers", "max.message.size", "socket.timeout.ms"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class MirrorSettings:
    """The settings of a mirror beside those of its consumers and its producer, as a properties file may have them."""

    consumer_configs: tuple[str, ...] | None = prop(
        "mirror.consumer.config",
        None,
        default_text="none; required",
        doc="Properties files, separated by commas, one for each source cluster, with the names of a consumer.",
    )
    producer_config: str | None = prop(
        "mirror.producer.config",
        None,
        default_text="the broker the mirror runs in",
        doc="The properties file of the target, with the names of a producer.",
    )
    whitelist: str | None = prop(
        "mirror.topics.whitelist", None, default_text="none", doc="A regular expression: topics to mirror."
    )
    blacklist: str | None = prop(
        "mirror.topics.blacklist", None, default_text="none", doc="A regular expression: all topics but these."
    )
    streams: int = prop("mirror.consumer.numthreads", 1, low=1, high=1000, doc="Streams of each source.")
    producers: int = prop(
        "mirror.producer.numthreads", 1, low=1, high=1000, doc="Connections to each broker of the target."
    )
    uncommitted_bytes: int = prop(
        "mirror.uncommitted.bytes",
        64 * 2**20,
        unit="bytes",
        low=1,
        high=2**40,
        doc="How far each source partition may be forwarded beyond what is committed: the most that comes twice after"
        " `kill -9`, but for one fetched piece.",
    )
    bad_messages: str = prop(
        "mirror.bad.messages",
        "stop",
        choices=("stop", "skip"),
        doc="What a message does that the target refuses, or that is damaged: its partition stops there and is tried"
        " again, or it is left out, counted and named.",
    )
    gone_broker_ms: int = prop(
        "mirror.gone.broker.ms",
        300_000,
        unit="ms",
        low=0,
        high=INT32,
        doc="How long what belongs to a target broker that has left ZooKeeper waits for it, before others get it.",
    )
    existing_records: str = prop(
        "mirror.existing.records",
        "refuse",
        choices=("refuse", "append"),
        doc="For topics of record batches: what a partition of the target does that has records when its mirroring"
        " begins: it waits, since nobody can tell whether they are the source's, or what comes goes behind them.",
    )
    progress_ms: int = prop(
        "mirror.progress.ms", 5000, unit="ms", low=100, high=INT32, doc="How often the mirror says how far it is."
    )

    audit_stage: str | None = prop(
        "mirror.audit.stage",
        None,
        default_text="none: no counts",
        doc="Count what was forwarded, as a stage of this name of the audit (`docs/audit.md`); each piece is published"
        " in the target before its offset moves.",
    )
    audit_topic: str = prop("mirror.audit.topic", "audit", doc="with `mirror.audit.stage`: the topic of the counts.")

    def __post_init__(self) -> None:
        settings.check_fields(self)
        reason = valid_topic(self.audit_topic)
        if reason is not None:
            raise ConfigError(f"mirror.audit.topic: {self.audit_topic!r}: {reason}")
        if self.audit_stage is None and self.audit_topic != "audit":
            raise ConfigError("mirror.audit.topic has no effect without mirror.audit.stage")
        if (self.whitelist is None) == (self.blacklist is None):
            raise ConfigError("give either a whitelist or a blacklist of topics")
        TopicFilter(self.whitelist if self.whitelist is not None else self.blacklist or "", self.whitelist is not None)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> MirrorSettings:
        """Raises ``ConfigError``: an unknown name, a value that cannot be used, or not exactly one list of topics."""
        return cls(**settings.read_properties(cls, properties))

    @staticmethod
    def describe() -> list[Setting]:
        """Every setting with its name, unit, range, default and meaning."""
        return settings.describe(MirrorSettings)


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """A cluster to read, ``name`` in what the mirror says."""

    name: str
    consumer: ConsumerConfig
    without_effect: tuple[str, ...] = ()

    @property
    def is_of_records(self) -> bool:
        """Topics of record batches are read, by today's protocol."""
        return bool(self.consumer.brokers)

    @classmethod
    def from_properties(cls, name: str, properties: Mapping[str, str]) -> SourceConfig:
        """The settings of a consumer; offsets are committed once a second, and ``fetch.size`` is 960 KiB, unless given.

        Raises:
            ConfigError: they cannot be used, or say that nothing is ever committed.
        """
        given = {"autocommit.interval.ms": _COMMIT_MS, "fetch.size": _FETCH_BYTES, **properties}
        idle = tuple(sorted(_NOT_OF_A_SOURCE & properties.keys()))
        for setting in idle:
            given.pop(setting)
        consumer = ConsumerConfig.from_properties(given)
        if not consumer.auto_commit:
            raise ConfigError(
                f"{name}: autocommit.enable=false would forward everything anew at each start: a mirror commits what"
                " the target has acknowledged, and nothing else"
            )
        if consumer.brokers:
            idle = tuple(sorted(properties.keys() - _OF_A_RECORD_SOURCE))
        return cls(name, consumer, idle)

    @classmethod
    def from_file(cls, path: str | Path) -> SourceConfig:
        """The same of a file, whose name, without its ending, is that of the source."""
        return cls.from_properties(Path(path).stem, load_properties(path))


@dataclasses.dataclass(frozen=True)
class TargetConfig:
    """The settings of the cluster to write to."""

    producer: ProducerConfig
    max_message_bytes: int | None = None
    """The limit that was asked for; None: what each broker allows, and 0.7's default where a broker does not say."""
    without_effect: tuple[str, ...] = ()
    without_effect_on_records: tuple[str, ...] = ()
    """The same where topics of record batches are mirrored."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TargetConfig:
        """The settings of a producer, ``broker.list`` also by the name of today, ``bootstrap.servers``.

        Raises:
            ConfigError: they cannot be used, or name no cluster.
        """
        given = dict(properties)
        if "bootstrap.servers" in given:
            if "broker.list" in given:
                raise ConfigError("bootstrap.servers and broker.list mean the same here: give one of them")
            given["broker.list"] = given.pop("bootstrap.servers")
        producer = ProducerConfig.from_properties(given)
        limit = producer.max_message_bytes if "max.message.size" in given else None
        return cls(
            producer,
            limit,
            tuple(sorted(given.keys() - _OF_THE_TARGET)),
            tuple(sorted(given.keys() - _OF_A_RECORD_TARGET)),
        )

    @classmethod
    def from_file(cls, path: str | Path) -> TargetConfig:
        """The same, read from a properties file. Raises ``ConfigError`` as ``from_properties``."""
        return cls.from_properties(load_properties(path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MirrorConfig:
    """All settings of a mirror.

    Raises:
        ConfigError: there is no source, two are the same cluster, one is the target itself, or something is asked for
            that the kind of their topics does not have.
    """

    sources: tuple[SourceConfig, ...]
    target: TargetConfig
    settings: MirrorSettings

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("a mirror needs a source: give --consumer-config, or mirror.consumer.config")
        if self.is_of_records:
            self._check_records()
            return
        if self.settings.existing_records != "refuse":
            raise ConfigError(
                "mirror.existing.records has no effect on topics of Kafka 0.7: it is for sources with bootstrap.servers"
            )
        places = [_cluster(source.consumer.zk_connect) for source in self.sources]
        for number, place in enumerate(places):
            if place in places[:number]:
                raise ConfigError(f"{self.sources[number].name}: {place} is a source already")
            if self.target.producer.zk_connect and place == _cluster(self.target.producer.zk_connect):
                raise loop_error(self.sources[number].name, f"both are the cluster of ZooKeeper {place}")

    @property
    def is_of_records(self) -> bool:
        """Topics of record batches are mirrored, by today's protocol on both sides; else those of Kafka 0.7."""
        return any(source.is_of_records for source in self.sources)

    @property
    def without_effect_in_target(self) -> tuple[str, ...]:
        """Settings of the target's file that mean nothing here."""
        return self.target.without_effect_on_records if self.is_of_records else self.target.without_effect

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Settings of the mirror that mean nothing here."""
        if not self.is_of_records:
            return ()
        fields = {field.name: field for field in dataclasses.fields(self.settings)}
        names = {
            "producers": "mirror.producer.numthreads",
            "uncommitted_bytes": "mirror.uncommitted.bytes",
            "gone_broker_ms": "mirror.gone.broker.ms",
        }
        return tuple(name for field, name in names.items() if getattr(self.settings, field) != fields[field].default)

    def _check_records(self) -> None:
        for source in self.sources:
            if not source.is_of_records:
                raise ConfigError(
                    f"{source.name}: a mirror has either sources of Kafka 0.7's topics (zk.connect) or of record"
                    " batches (bootstrap.servers): run two mirrors"
                )
        if self.target.producer.broker_list is None:
            raise ConfigError(
                "target: topics of record batches are written by today's protocol: give bootstrap.servers=host:port"
                " instead of zk.connect"
            )
        groups = [source.consumer.group_id for source in self.sources]
        for number, group in enumerate(groups):
            if group in groups[:number]:
                raise ConfigError(
                    f"{self.sources[number].name}: groupid={group} is another source's already: the positions of each"
                    " source are kept in a group of its own in the target"
                )
        if self.settings.audit_stage is not None:
            raise ConfigError("mirror.audit.stage is for topics of Kafka 0.7: those of record batches are not audited")

    @classmethod
    def from_file(cls, path: str | Path, default_target: TargetConfig | None = None) -> MirrorConfig:
        """What a properties file says; files that it names are looked for beside it.

        Raises:
            ConfigError: a file cannot be read or used.
        """
        return cls.from_properties(load_properties(path), path, default_target)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], path: str | Path, default_target: TargetConfig | None = None
    ) -> MirrorConfig:
        """The same with what was read from there."""
        return cls.from_settings(MirrorSettings.from_properties(properties), Path(path).parent, default_target)

    @classmethod
    def from_settings(
        cls, given: MirrorSettings, directory: Path, default_target: TargetConfig | None = None
    ) -> MirrorConfig:
        """The same with settings that were read; relative names of files begin at ``directory``."""
        if given.producer_config is not None:
            target = TargetConfig.from_file(directory / given.producer_config)
        elif default_target is not None:
            target = default_target
        else:
            raise ConfigError("a mirror needs a target: give --producer-config, or mirror.producer.config")
        sources = [SourceConfig.from_file(directory / path) for path in given.consumer_configs or ()]
        return cls(sources=_named_apart(sources), target=target, settings=given)


def loop_error(source: str, why: str) -> ConfigError:
    """A cluster that would be mirrored into itself, for ever."""
    return ConfigError(f"{source} is the target itself: {why}; every message would be forwarded again and again")


def _cluster(connect: str) -> str:
    found = parse_connect(connect)
    return ",".join(sorted(f"{host}:{port}" for host, port in found.servers)) + found.chroot


def _named_apart(sources: list[SourceConfig]) -> tuple[SourceConfig, ...]:
    names = [source.name for source in sources]
    return tuple(
        source
        if names.count(source.name) == 1
        else dataclasses.replace(source, name=f"{source.name} {source.consumer.zk_connect or source.consumer.brokers}")
        for source in sources
    )

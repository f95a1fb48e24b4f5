"""The broker's settings: every property of Kafka 0.7.2 that fastlog honours, and fastlog's own.

Read once at start, passed as arguments, never changed. Each setting stands in ``broker_settings``; here is what holds
between them, and what follows from them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import NamedTuple

from fastlog import settings
from fastlog.broker_settings import (
    Flushing,
    Groups,
    Limits,
    Listening,
    Retention,
    Segments,
    Topics,
    Watching,
    ZooKeeper,
)
from fastlog.errors import ConfigError
from fastlog.listening import (
    ANY_PROTOCOL,
    KAFKA,
    PLAINTEXT,
    PROTOCOLS,
    SECURITY_PROTOCOLS,
    WILDCARDS,
    ListenAddress,
    check_advertised,
    check_monitor,
    check_security,
    is_loopback,
    parse_by_listener,
    parse_listen,
    parse_listeners,
)
from fastlog.settings import Setting, load_properties
from fastlog.topics import valid_topic

__all__ = ["BrokerConfig", "Setting", "TopicSettings", "is_loopback", "load_properties"]


class TopicSettings(NamedTuple):
    """What holds for one topic, overrides applied; durations in milliseconds."""

    partitions: int
    segment_bytes: int
    roll_ms: int
    retention_ms: int
    retention_bytes: int | None
    flush_interval_messages: int
    flush_interval_ms: int
    max_message_bytes: int = 0
    """Of topics of record batches: of one batch; 0: what the broker allows."""
    append_time: bool = False
    """Of topics of record batches: records get the time of their append instead of their own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokerConfig(
    # Fields stand in the reverse order of these.
    ZooKeeper,
    Watching,
    Limits,
    Groups,
    Flushing,
    Retention,
    Segments,
    Topics,
    Listening,
):
    """Everything a broker can be told. Raises ``ConfigError`` for a value of the wrong type or out of range."""

    def __post_init__(self) -> None:
        settings.check_fields(self)
        if not self.host:
            raise ConfigError("host: an address is needed")
        if any(not path for path in self.log_dirs):
            raise ConfigError("log.dir: an empty name is no directory")
        places = [os.path.realpath(path) for path in self.log_dirs]
        for number, path in enumerate(self.log_dirs):
            if places[number] in places[:number]:
                raise ConfigError(f"log.dir: {path} is the directory {places[number]} once more: name each once")
        self._check_topic_names()
        check_advertised(self.hostname)
        check_monitor(self.monitor, has_token=self.monitor_token_file is not None)
        if self.enable_zookeeper and not self.zk_connect:
            raise ConfigError(
                "enable.zookeeper: true, but there is no zk.connect: name the servers with --zookeeper host:port"
            )
        if self.retention_policy and not _is_dotted_callable(self.retention_policy):
            raise ConfigError(f"log.retention.policy: {self.retention_policy!r} is not of the form module:callable")
        self._check_advertised_listeners()
        name = "listener.security.protocol.map"
        secured = parse_by_listener(name, self.listener_security_protocols, SECURITY_PROTOCOLS)
        check_security(name, secured, self.addresses)
        spoken = self.spoken
        unknown = set(self._spoken_by_capitals) - {listener.upper() for listener in self.addresses}
        if unknown:
            raise ConfigError(f"listener.protocol.map: {min(unknown)} is none of the listeners")
        first = next(iter(spoken))
        if self.zookeeper and spoken[first] == KAFKA:
            raise ConfigError(
                f"listener.protocol.map: ZooKeeper shows the first listener to clients of Kafka 0.7, and {first} does "
                "not speak it: put one first that does, or leave out zk.connect"
            )
        for host in (address.host for address in self.addresses.values()):
            if self.insecure or is_loopback(host):
                continue
            raise ConfigError(
                f"refusing to listen on {host}\n"
                "everybody who reaches that address could read and write every topic, as there is no login yet\n"
                "listen on 127.0.0.1, or add --insecure when the network itself is closed to others"
            )

    def _check_advertised_listeners(self) -> None:
        told = parse_listeners("advertised.listeners", self.advertised_listeners) if self.advertised_listeners else {}
        known = {name.upper() for name in self.addresses}
        for name, address in told.items():
            if name.upper() not in known:
                raise ConfigError(f"advertised.listeners: {name} is none of the listeners")
            if not address.port:
                raise ConfigError(f"advertised.listeners: {name}: nobody can connect to port 0")
            if address.host in WILDCARDS:
                raise ConfigError(
                    f"advertised.listeners: {name}: nobody can connect to {address.host}: name this machine"
                )
            check_advertised(address.host)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Return the settings given by property name, defaults for the rest.

        Sizes may be written as ``64MiB`` or ``1GB``, durations as ``100ms``, ``5s``, ``2min``, ``1h``, ``7d``; maps
        as ``topic:value,topic:value``.

        Raises:
            ConfigError: an unknown name (with the nearest one), a malformed value, or one out of range.
        """
        values = settings.read_properties(cls, properties)
        scheduler = values.get("flush_scheduler_interval_ms")
        if scheduler is not None:
            values.setdefault("flush_interval_ms", scheduler)
        return cls(**values)

    def _check_topic_names(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            for topic in value if isinstance(value, dict) else ():
                reason = valid_topic(topic, self.max_topic_name_length)
                if reason is not None:
                    raise ConfigError(f"{item.metadata['name']}: topic {topic!r}: {reason}")

    @staticmethod
    def describe() -> list[Setting]:
        """Every setting with its name, unit, range, default and meaning."""
        return settings.describe(BrokerConfig)

    @property
    def zookeeper(self) -> str:
        """The ``zk.connect`` of the ZooKeeper to register in; empty: none."""
        return "" if self.enable_zookeeper is False else self.zk_connect

    @property
    def creates_on_request(self) -> bool:
        """Whether clients may ask for new topics and partitions."""
        return self.auto_create_topics if self.create_topic_requests is None else self.create_topic_requests

    @property
    def addresses(self) -> dict[str, ListenAddress]:
        """Where to listen, by the name of the listener; the first is the broker's main one. Raises ``ConfigError``."""
        if self.listeners:
            return parse_listeners("listeners", self.listeners)
        return {PLAINTEXT: ListenAddress(self.host.strip("[]"), self.port)}

    @property
    def advertised_addresses(self) -> dict[str, ListenAddress]:
        """What ``advertised.listeners`` says, by the name of the listener. Raises ``ConfigError``."""
        if not self.advertised_listeners:
            return {}
        told = parse_listeners("advertised.listeners", self.advertised_listeners)
        by_name = {name.upper(): address for name, address in told.items()}
        return {name: by_name[name.upper()] for name in self.addresses if name.upper() in by_name}

    @property
    def spoken(self) -> dict[str, str]:
        """What the clients of each listener may speak, one of ``listening.PROTOCOLS``. Raises ``ConfigError``."""
        by_name = self._spoken_by_capitals
        return {name: by_name.get(name.upper(), ANY_PROTOCOL) for name in self.addresses}

    @property
    def _spoken_by_capitals(self) -> dict[str, str]:
        return parse_by_listener("listener.protocol.map", self.listener_protocols, PROTOCOLS)

    @property
    def monitor(self) -> ListenAddress | None:
        """Where health is answered; None: nowhere. Raises ``ConfigError``."""
        return parse_listen("monitor.address", self.monitor_address) if self.monitor_address else None

    def partition_count(self, topic: str) -> int:
        """How many partitions ``topic`` is to have on this broker."""
        return self.partitions_by_topic.get(topic, self.partitions)

    def for_topic(self, topic: str) -> TopicSettings:
        """What holds for ``topic``: its own values where given, else the general ones."""
        return TopicSettings(
            partitions=self.partition_count(topic),
            segment_bytes=self.segment_bytes_by_topic.get(topic, self.segment_bytes),
            roll_ms=_hours_to_ms(self.roll_hours_by_topic.get(topic, self.roll_hours)),
            retention_ms=_hours_to_ms(self.retention_hours_by_topic.get(topic, self.retention_hours)),
            retention_bytes=self.retention_bytes_by_topic.get(topic, self.retention_bytes),
            flush_interval_messages=self.flush_interval_messages_by_topic.get(topic, self.flush_interval_messages),
            flush_interval_ms=self.flush_interval_ms_by_topic.get(topic, self.flush_interval_ms),
        )


def _hours_to_ms(hours: float) -> int:
    return max(1, round(hours * 3_600_000))


def _is_dotted_callable(text: str) -> bool:
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])

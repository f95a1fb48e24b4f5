"""How options say where brokers are: a list of them, or the ZooKeeper that shows them. Knows no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fastlog.client.addresses import Address, parse_brokers
from fastlog.coordination.addresses import parse_connect
from fastlog.errors import ConfigError
from fastlog.spark.values import Parse, number, seconds


@dataclass(frozen=True)
class NamedAddress:
    """Where a broker is; ``broker`` is its id as far as it is known, None where the broker says it itself."""

    address: Address
    broker: int | None = None


def parse_named(name: str, text: str) -> tuple[NamedAddress, ...]:
    """``host:port,3@host:port``. Raises ``ConfigError`` that begins with ``name``."""
    found: list[NamedAddress] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        digits, at, address = item.rpartition("@")
        broker = number(name, digits, 0, 2**31 - 1) if at else None
        try:
            (parsed,) = parse_brokers(address)
        except (ConfigError, ValueError):
            raise ConfigError(f"{name}: {item!r} is none; write host:port, or id@host:port") from None
        found.append(NamedAddress(parsed, broker))
    if not found:
        raise ConfigError(f"{name}: none is named; write for example localhost:9092")
    ids = [item.broker for item in found if item.broker is not None]
    if len(set(ids)) < len(ids) or len({item.address for item in found}) < len(found):
        raise ConfigError(f"{name}: {text!r} names a broker twice")
    return tuple(found)


def check_addresses(given: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` unless these options, named in lower case, say where brokers are, and in one way."""
    ways = ("brokers", "zookeeper", "zk.connect")
    at_most_one(given, ways)
    if not any(name in given for name in ways):
        raise ConfigError("brokers: not given; write for example brokers=localhost:9092, or zookeeper=localhost:2181")
    if "brokers" in given and "zookeeper.timeout.ms" in given:
        raise ConfigError("zookeeper.timeout.ms: brokers are named, so no ZooKeeper is asked")


def at_most_one(given: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise ``ConfigError`` when more than one of these options is given."""
    found = [name for name in names if name.lower() in given]
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(found)} contradict each other: give one of them")


def _connect(name: str, text: str) -> str:
    try:
        return str(parse_connect(text))
    except ConfigError as error:
        raise ConfigError(f"{name}: {str(error).removeprefix('zk.connect: ')}") from None


ADDRESS_OPTIONS: tuple[tuple[str, str, Parse], ...] = (
    ("brokers", "brokers", parse_named),
    ("zookeeper", "zookeeper", _connect),
    ("zk.connect", "zookeeper", _connect),
    ("zookeeper.timeout.ms", "zookeeper_timeout", seconds),
)
"""Name of each option, the field it sets, and how its text is read."""

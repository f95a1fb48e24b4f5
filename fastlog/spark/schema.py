"""The columns of the source: their names, types and order. Knows no Spark.

There are two usual sets of them: fastlog's, in which a message of Kafka 0.7 has its place, and that of Spark's source
for Kafka. Topics of both kinds can be read into either.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastlog.errors import ConfigError

TYPES = {
    "topic": "string",
    "broker": "int",
    "partition": "int",
    "offset": "bigint",
    "idx": "int",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "nextOffset": "bigint",
    "server": "bigint",
    "schemaId": "bigint",
    "deduplicationId": "binary",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Each column and its type in Spark's SQL."""

ENVELOPES_OWN = ("server", "schemaId", "deduplicationId")
"""There are none of these without an envelope."""
FASTLOG, KAFKA = "fastlog", "kafka"
"""The names of the two sets of columns, for the option ``schema``."""
USUAL = ("topic", "broker", "partition", "offset", "idx", "timestamp", "key", "value")
SETS = {
    FASTLOG: USUAL,
    KAFKA: ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
}
MAYBE_NULL = ("timestamp", "key", "headers", *ENVELOPES_OWN)

_NAMES = {name.lower(): name for name in TYPES}


def parse_columns(text: str) -> tuple[str, ...]:
    """``topic,offset,value`` as names in the order given, whatever their case.

    Raises:
        ConfigError: a name that is not known or stands there twice, or none at all.
    """
    found: list[str] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name = _NAMES.get(item.lower())
        if name is None:
            raise ConfigError(f"columns: there is no column {item!r}; there are {', '.join(TYPES)}")
        if name in found:
            raise ConfigError(f"columns: {name} is named twice")
        found.append(name)
    if not found:
        raise ConfigError("columns: none is named")
    return tuple(found)


def ddl(columns: Sequence[str]) -> str:
    """The schema of these columns in Spark's SQL."""
    return ", ".join(f"{name} {TYPES[name]}" for name in columns)


def usual_set(columns: Sequence[str]) -> str | None:
    """Which of the usual sets columns are, with or without those that come on request; None: they were chosen."""
    for name, usual in SETS.items():
        if tuple(columns[: len(usual)]) == usual and set(columns[len(usual) :]) <= {
            "nextOffset",
            "headers",
            *ENVELOPES_OWN,
        }:
            return name
    return None


def check_schema(fields: Sequence[tuple[str, str, bool]]) -> None:
    """Check (name, type, may be null) of each column of a schema that a user gave.

    Raises:
        ConfigError: a column that the source has not, or has with another type or sometimes without a value.
    """
    for name, kind, nullable in fields:
        if name not in TYPES:
            near = f"; {_NAMES[name.lower()]} is meant" if name.lower() in _NAMES else ""
            raise ConfigError(f"schema: there is no column {name!r}{near}; there are {', '.join(TYPES)}")
        if kind != TYPES[name]:
            raise ConfigError(f"schema: the column {name} is {TYPES[name]}, not {kind}")
        if not nullable and name in MAYBE_NULL:
            raise ConfigError(f"schema: the column {name} may be null")
    if len({name for name, _, _ in fields}) < len(fields):
        raise ConfigError("schema: a column stands there twice")


def check_envelope(columns: Sequence[str], has_envelope: bool) -> None:
    """Raise ``ConfigError`` when a column comes from envelopes, and the messages have none."""
    for name in columns:
        if name in ENVELOPES_OWN and not has_envelope:
            raise ConfigError(f"{name}: it comes from envelopes, which messages have where envelope=true says so")

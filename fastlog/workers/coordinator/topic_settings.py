"""What each key of a topic's configuration does here: one table, from which the one in ``docs/kafka.md`` is checked.

A key is obeyed, or taken and shown without having any effect here, or taken at one value alone; any other key, and any
other value, is refused with error 40 (INVALID_CONFIG), so that nobody relies on what does not happen.

Source: Apache Kafka 4.2 (TopicConfig) for names, defaults and ranges.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fastlog.config import BrokerConfig, TopicSettings

UNLIMITED_MS = 2**63 - 1
MOST_SEGMENT_BYTES = 2**31 - 1
MOST_INT = 2**31 - 1
MOST_LONG = 2**63 - 1
MOST_FIRST_OFFSET = 2**62
MOST_FLUSH_MS = 2**40
"""About 35 years."""


class Effect(enum.Enum):
    """Whether a topic's setting has an effect, is only accepted, or is only displayed."""

    OBEYED = "obeyed"
    SHOWN = "taken and shown, without effect"
    FIXED = "taken at this value alone"


class Type(enum.IntEnum):
    """Of a value, by the numbers that DescribeConfigs has for them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Key(NamedTuple):
    """One key: ``default`` is what holds where the topic says nothing, as text, by the broker's own settings."""

    name: str
    type: Type
    effect: Effect
    default: Callable[[BrokerConfig], str]
    low: float = 0
    high: float = 0
    allowed: tuple[str, ...] = ()
    """The values that a STRING or a LIST may have; empty: any."""
    note: str = ""


class InvalidSettingError(ValueError):
    """A key or a value that is refused; the text is for the client."""


def _always(text: str) -> Callable[[BrokerConfig], str]:
    return lambda _: text


def _key(name: str, kind: Type, effect: Effect, default: str, low: float = 0, high: float = 0) -> Key:
    return Key(name, kind, effect, _always(default), low, high)


FIRST_OFFSETS = "fastlog.first.offsets"
"""Where each partition of a topic that is made begins, separated by commas; no setting of one that is there."""

KEYS = {
    key.name: key
    for key in (
        Key("cleanup.policy", Type.LIST, Effect.OBEYED, _always("delete"), allowed=("delete", "compact"),
            note="a topic that is compacted and not deleted from keeps all its records: there is no cleaner yet"),
        Key("retention.ms", Type.LONG, Effect.OBEYED, lambda c: str(c.for_topic("").retention_ms), -1, MOST_LONG,
            note="-1: for ever"),
        Key("retention.bytes", Type.LONG, Effect.OBEYED, lambda c: str(-1 if c.retention_bytes is None
            else c.retention_bytes), -1, MOST_LONG, note="-1: any size"),
        Key("segment.bytes", Type.INT, Effect.OBEYED, lambda c: str(min(c.segment_bytes, MOST_SEGMENT_BYTES)), 14,
            MOST_INT),
        Key("segment.ms", Type.LONG, Effect.OBEYED, lambda c: str(c.for_topic("").roll_ms), 1, MOST_LONG),
        Key("flush.messages", Type.LONG, Effect.OBEYED, lambda c: str(c.flush_interval_messages), 1, MOST_LONG),
        Key("flush.ms", Type.LONG, Effect.OBEYED, lambda c: str(c.flush_interval_ms), 1, MOST_LONG),
        Key("max.message.bytes", Type.INT, Effect.OBEYED, lambda c: str(c.max_batch_bytes), 0, MOST_INT,
            note="of a batch"),
        Key("message.timestamp.type", Type.STRING, Effect.OBEYED, _always("CreateTime"),
            allowed=("CreateTime", "LogAppendTime")),
        Key("compression.type", Type.STRING, Effect.FIXED, _always("producer"), allowed=("producer",),
            note="batches are stored as they come"),
        Key("min.insync.replicas", Type.INT, Effect.FIXED, _always("1"), 1, 1, note="a broker is a cluster of one"),
        Key("message.format.version", Type.STRING, Effect.SHOWN, _always("3.0-IV1")),
        Key("message.downconversion.enable", Type.BOOLEAN, Effect.SHOWN, _always("true")),
        _key("message.timestamp.before.max.ms", Type.LONG, Effect.SHOWN, str(MOST_LONG), 0, MOST_LONG),
        _key("message.timestamp.after.max.ms", Type.LONG, Effect.FIXED, "3600000", 3600000, 3600000),
        _key("delete.retention.ms", Type.LONG, Effect.SHOWN, "86400000", 0, MOST_LONG),
        _key("file.delete.delay.ms", Type.LONG, Effect.SHOWN, "60000", 0, MOST_LONG),
        _key("index.interval.bytes", Type.INT, Effect.SHOWN, "4096", 0, MOST_INT),
        _key("max.compaction.lag.ms", Type.LONG, Effect.SHOWN, str(MOST_LONG), 1, MOST_LONG),
        _key("min.compaction.lag.ms", Type.LONG, Effect.SHOWN, "0", 0, MOST_LONG),
        _key("min.cleanable.dirty.ratio", Type.DOUBLE, Effect.SHOWN, "0.5", 0, 1),
        _key("preallocate", Type.BOOLEAN, Effect.SHOWN, "false"),
        _key("segment.index.bytes", Type.INT, Effect.SHOWN, "10485760", 4, MOST_INT),
        _key("segment.jitter.ms", Type.LONG, Effect.SHOWN, "0", 0, MOST_LONG),
        _key("unclean.leader.election.enable", Type.BOOLEAN, Effect.SHOWN, "false"),
    )
}  # fmt: skip
"""The settings of topics by name."""


def first_offsets(text: str, partitions: int) -> list[int]:
    """Where each partition of a new topic begins.

    Raises:
        InvalidSettingError: it does not fit that number of partitions.
    """
    try:
        found = [_whole(each.strip()) for each in text.split(",")]
    except ValueError:
        found = []
    if len(found) != partitions or not all(0 <= each <= MOST_FIRST_OFFSET for each in found):
        raise InvalidSettingError(
            f"Invalid value {text!r} for configuration {FIRST_OFFSETS}: it is an offset for each of {partitions}"
            " partitions, separated by commas"
        )
    return found


def checked(given: Mapping[str, str | None]) -> dict[str, str]:
    """The settings that a topic is given, as they are kept: each key known, each value one that it may have.

    A value of None asks for the default, and is left out.

    Raises:
        InvalidSettingError: one of them is refused.
    """
    return {name: _checked(name, value) for name, value in given.items() if value is not None or name not in KEYS}


def _checked(name: str, value: str | None) -> str:
    key = KEYS.get(name)
    if name.startswith("fastlog."):
        raise InvalidSettingError(f"{name} is a setting of topics of Kafka 0.7, not of those made by clients of today")
    if key is None or value is None:
        raise InvalidSettingError(f"Unknown topic config name: {name}")
    text = value.strip()
    try:
        match key.type:
            case Type.BOOLEAN:
                valid = text.lower() in ("true", "false")
            case Type.LIST:
                parts = [part.strip() for part in text.split(",")]
                valid = bool(text) and set(parts) <= set(key.allowed)
            case Type.STRING:
                valid = not key.allowed or text in key.allowed
            case _:
                number = float(text) if key.type is Type.DOUBLE else _whole(text)
                valid = key.low <= number <= key.high
    except ValueError:
        valid = False
    if not valid:
        allowed = " or ".join(key.allowed) or f"{key.low:g} to {key.high:g}"
        if key.type is Type.BOOLEAN:
            allowed = "true or false"
        why = f" ({key.note})" if key.effect is Effect.FIXED and key.note else ""
        raise InvalidSettingError(f"Invalid value {value!r} for configuration {name}: here it is {allowed}{why}")
    return text


def _whole(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise ValueError(text)
    return int(text)


def applied(config: BrokerConfig, topic: str, given: Mapping[str, str]) -> TopicSettings:
    """What holds for a topic that was given these settings, which ``checked`` has seen; the broker's for the others."""
    base = config.for_topic(topic)
    settings = base._replace(segment_bytes=min(base.segment_bytes, MOST_SEGMENT_BYTES))
    if "retention.ms" in given:
        limit = _or_unlimited(given["retention.ms"])
        settings = settings._replace(retention_ms=UNLIMITED_MS if limit is None else limit)
    if "retention.bytes" in given:
        settings = settings._replace(retention_bytes=_or_unlimited(given["retention.bytes"]))
    policy = [part.strip() for part in given.get("cleanup.policy", "delete").split(",")]
    if "delete" not in policy:
        settings = settings._replace(retention_ms=UNLIMITED_MS, retention_bytes=None)
    if "segment.bytes" in given:
        settings = settings._replace(segment_bytes=int(given["segment.bytes"]))
    if "segment.ms" in given:
        settings = settings._replace(roll_ms=int(given["segment.ms"]))
    if "flush.messages" in given:
        settings = settings._replace(flush_interval_messages=int(given["flush.messages"]))
    if "flush.ms" in given:
        settings = settings._replace(flush_interval_ms=min(int(given["flush.ms"]), MOST_FLUSH_MS))
    if "max.message.bytes" in given:
        settings = settings._replace(max_message_bytes=int(given["max.message.bytes"]))
    return settings._replace(append_time=given.get("message.timestamp.type") == "LogAppendTime")


def _or_unlimited(text: str) -> int | None:
    number = int(text)
    return None if number < 0 else number

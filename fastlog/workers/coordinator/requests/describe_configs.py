"""DescribeConfigs (32), versions 1 to 4: the settings of topics, and of this broker.

Those of a topic of 0.7 are the broker's and cannot be altered; two more tell consoles what its offsets are.

Version 1 added where a value comes from and its synonyms, 3 its type and a text about it.

Source: Apache Kafka 4.2 (ConfigHelper).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from fastlog.config import BrokerConfig
from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Fields, Request
from fastlog.workers.coordinator.context import Context, Handler, error
from fastlog.workers.coordinator.loop import Wait
from fastlog.workers.coordinator.topic_settings import KEYS, Effect, Type
from fastlog.workers.coordinator.topics import ILLEGAL_NAME, is_legal_name

TOPIC, BROKER = 2, 4
UNASKED: Mapping[str, Any] = {"documentation": None, "synonyms": []}
OF_THE_BROKERS_OWN = {"cleanup.policy": "compact"}
"""Settings of a topic that the broker keeps for itself: its latest records stay, whatever retention says."""
DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG = 1, 4, 5
OF_KAFKA07 = (
    ("fastlog.format", "messages", "A topic of Kafka 0.7: today's clients read it, and cannot write to it."),
    ("fastlog.offsets", "bytes", "Offsets, and so lag, count bytes of the log and not records."),
)
"""Name, value and text of what answers have for topics of 0.7 alone."""


def handle(request: Request, context: Context) -> Handler:
    """Answer from memory."""
    fields = request.fields
    has_texts = bool(getattr(fields, "include_documentation", False))
    hidden = ([] if has_texts else ["documentation"]) + ([] if fields.include_synonyms else ["synonyms"])
    results = []
    for resource in fields.resources:
        code, message, rows = _describe(resource, context)
        wanted = resource.configuration_keys
        if wanted:  # an empty list asks for all, as no list does
            rows = [row for row in rows if row["name"] in wanted]
        results.append(
            {
                **error(code, message),
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": [{**row, **{name: UNASKED[name] for name in hidden}} for row in rows],
            }
        )
    return {"throttle_time": 0, "results": results}
    yield from no_wait()


def no_wait() -> Generator[Wait, Any, None]:
    """What a handler that waits for nothing has at its end, to be a task as the others are."""
    yield from ()


def _describe(resource: Any, context: Context) -> tuple[Code, str | None, list[dict[str, Any]]]:
    name, broker = resource.resource_name, context.broker
    if resource.resource_type == TOPIC:
        if not context.may(Operation.DESCRIBE_CONFIGS, name):
            return Code.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.", []
        if not is_legal_name(name):
            return Code.INVALID_TOPIC_EXCEPTION, ILLEGAL_NAME, []
        if broker.topics.of_kafka07(name):
            return Code.NONE, None, rows_of_kafka07(broker.config, name)
        if not broker.topics.partitions(name):
            return Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.", []
        given = OF_THE_BROKERS_OWN if name.startswith("__") else broker.topics.settings(name)
        return Code.NONE, None, topic_rows(broker.config, given)
    if resource.resource_type == BROKER:
        if not context.may_on_cluster(Operation.DESCRIBE_CONFIGS):
            return Code.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.", []
        if name not in ("", str(broker.config.broker_id)):
            return Code.INVALID_REQUEST, f"this is broker {broker.config.broker_id}, and there is no other", []
        return Code.NONE, None, broker_rows(broker.config)
    return Code.INVALID_REQUEST, f"resource type {resource.resource_type} is not one of topic (2) and broker (4)", []


def topic_rows(config: BrokerConfig, given: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each key of a topic's configuration: its own value, or the one that holds where it has none."""
    rows = []
    for key in KEYS.values():
        is_own = key.name in given
        source = DYNAMIC_TOPIC_CONFIG if is_own else DEFAULT_CONFIG
        text = {Effect.OBEYED: "", Effect.SHOWN: "Has no effect here.", Effect.FIXED: "Has this value alone."}[
            key.effect
        ]
        rows.append(
            _row(key.name, given[key.name] if is_own else key.default(config), source, key.type, text or key.note)
        )
    return rows


def rows_of_kafka07(config: BrokerConfig, topic: str) -> list[dict[str, Any]]:
    """The same for a topic of 0.7: what it is, and the broker's settings for it by Kafka's names."""
    held = config.for_topic(topic)
    rows = [_row(name, value, DYNAMIC_TOPIC_CONFIG, Type.STRING, text) for name, value, text in OF_KAFKA07]
    for name, value in (
        ("cleanup.policy", "delete"),
        ("retention.ms", str(held.retention_ms)),
        ("retention.bytes", str(-1 if held.retention_bytes is None else held.retention_bytes)),
        ("segment.bytes", str(held.segment_bytes)),
        ("segment.ms", str(held.roll_ms)),
        ("flush.messages", str(held.flush_interval_messages)),
        ("flush.ms", str(held.flush_interval_ms)),
        ("min.insync.replicas", "1"),
    ):
        rows.append(_row(name, value, STATIC_BROKER_CONFIG, KEYS[name].type, "Of the broker, for this topic."))
    return [{**row, "read_only": True} for row in rows]


def broker_rows(config: BrokerConfig) -> list[dict[str, Any]]:
    """A row for each of the broker's own settings, by its name here; they are read when it starts."""
    rows = []
    for setting in config.describe():
        value = _shown(getattr(config, setting.field))
        rows.append({**_row(setting.name, value, STATIC_BROKER_CONFIG, Type.STRING, setting.doc), "read_only": True})
    return rows


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ",".join(f"{name}:{each}" for name, each in value.items())
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _row(name: str, value: str, source: int, kind: Type, text: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "value": value, "read_only": False, "is_sensitive": False}
    synonyms: list[Fields] = [{"name": name, "value": value, "source": source}]
    return {
        **row,
        "config_source": source,
        "synonyms": synonyms,
        "config_type": int(kind),
        "documentation": text or None,
    }

"""AlterConfigs (33), versions 0 to 2, and IncrementalAlterConfigs (44), 0 and 1: settings of topics.

The first gives a topic of record batches these settings and no others, the second changes some of those it has. The
versions of each differ in their encoding alone. What this broker was configured with is read when it starts, and is not
changed by a request.

Source: Apache Kafka 4.2 (ConfigurationControlManager, ConfigAdminManager).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any

from fastlog.config import BrokerConfig
from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator import topic_settings
from fastlog.workers.coordinator.codec import Fields, Request
from fastlog.workers.coordinator.context import Context, Handler, error
from fastlog.workers.coordinator.loop import Wait
from fastlog.workers.coordinator.requests.describe_configs import BROKER, TOPIC
from fastlog.workers.coordinator.topic_settings import KEYS, InvalidSettingError, Type
from fastlog.workers.coordinator.topics import ILLEGAL_NAME, Outcome, is_legal_name

INCREMENTAL = 44


class Change(enum.IntEnum):
    """What the second does with one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _RefusedError(Exception):
    """A request that is wrong, whatever the topic has now."""


def handle(request: Request, context: Context) -> Handler:
    """One topic after the other: what is refused for one is done for the others."""
    fields = request.fields
    named = Counter((resource.resource_type, resource.resource_name) for resource in fields.resources)
    responses: list[Fields] = []
    for resource in fields.resources:
        if named[resource.resource_type, resource.resource_name] > 1:
            outcome = Outcome(Code.INVALID_REQUEST, "Each resource must appear at most once.")
        else:
            outcome = yield from _alter(resource, request.key == INCREMENTAL, fields.validate_only, context)
        responses.append(
            {
                **error(outcome.code, outcome.message),
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return {"throttle_time": 0, "responses": responses}


def _alter(resource: Any, is_incremental: bool, validate_only: bool, context: Context) -> Generator[Wait, Any, Outcome]:
    name, broker = resource.resource_name, context.broker
    if resource.resource_type == BROKER:
        if not context.may_on_cluster(Operation.ALTER_CONFIGS):
            return Outcome(Code.CLUSTER_AUTHORIZATION_FAILED, "Authorization failed.")
        return Outcome(
            Code.INVALID_REQUEST,
            "the broker's settings are read when it starts: change its configuration, and start it again",
        )
    if resource.resource_type != TOPIC:
        what = f"resource type {resource.resource_type} is not topic (2), the one whose settings can be changed"
        return Outcome(Code.INVALID_REQUEST, what)
    if not context.may(Operation.ALTER_CONFIGS, name):
        return Outcome(Code.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    if not name:
        return Outcome(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
    if not is_legal_name(name):
        return Outcome(Code.INVALID_TOPIC_EXCEPTION, ILLEGAL_NAME)

    def change(held: Mapping[str, str]) -> dict[str, str]:
        wanted = _changed(held, resource.configs, broker.config) if is_incremental else _only(resource.configs)
        return topic_settings.checked(wanted)

    try:
        _check(resource.configs, is_incremental)
        return (yield from broker.topics.alter(name, change, validate_only))
    except _RefusedError as refused:
        return Outcome(Code.INVALID_REQUEST, str(refused))
    except InvalidSettingError as invalid:
        return Outcome(Code.INVALID_CONFIG, str(invalid))


def _check(configs: Any, is_incremental: bool) -> None:
    counts = Counter(each.name for each in configs)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise _RefusedError(f"Error due to duplicate config keys: {', '.join(twice)}")
    for each in configs:
        kind = each.config_operation if is_incremental else Change.SET
        if kind not in set(Change):
            raise _RefusedError(f"Unknown operation type {kind} for {each.name}")
        if each.value is None and kind != Change.DELETE:
            raise _RefusedError(f"Null value not supported for : {each.name}")


def _only(configs: Any) -> dict[str, str | None]:
    return {each.name: each.value for each in configs}


def _changed(held: Mapping[str, str], configs: Any, broker: BrokerConfig) -> dict[str, str | None]:
    found: dict[str, str | None] = dict(held)
    for each in configs:
        match each.config_operation:
            case Change.SET:
                found[each.name] = each.value
            case Change.DELETE:
                found.pop(each.name, None)
            case kind:
                found[each.name] = _list_of(each, Change(kind), held, broker)
    return found


def _list_of(config: Any, kind: Change, held: Mapping[str, str], broker: BrokerConfig) -> str:
    """A list with the parts that are named, or without them; where the topic has none of its own, of the default."""
    key = KEYS.get(config.name)
    if key is None or key.type is not Type.LIST:
        raise InvalidSettingError(f"Can't {kind.name} to key {config.name} because its type is not LIST.")
    parts = _parts(held.get(config.name, key.default(broker)))
    named = _parts(config.value)
    if kind == Change.APPEND:
        parts += [part for part in named if part not in parts]
    else:
        parts = [part for part in parts if part not in named]
    return ",".join(parts)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]

"""OffsetFetch (9), versions 1 to 8: where groups have come to, as far as it is durable; -1 where nothing is known.

Version 2 added that no list of topics means all, 3 the leader epoch, 7 that the answer waits for transactions, of which
there are none; 8 several groups.

Source: Apache Kafka 4.2 (KafkaApis.handleOffsetFetchRequest).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler
from fastlog.workers.coordinator.groups.records import Offset

UNKNOWN = Offset(-1, -1, "", -1)


def handle(request: Request, context: Context) -> Handler:
    """Answer from memory."""
    fields = request.fields
    not_ready = yield from context.broker.groups.ready()
    if not hasattr(fields, "groups"):
        code, topics = _of_group(fields.group_id, fields.topics, context, not_ready)
        if code and request.version < 2:
            topics = _refused(fields.topics, code)
        return {"throttle_time": 0, "error_code": int(code), "topics": topics}
    rows = []
    for group in fields.groups:
        code, topics = _of_group(group.group_id, group.topics, context, not_ready)
        rows.append({"group_id": group.group_id, "topics": topics, "error_code": int(code)})
    return {"throttle_time": 0, "groups": rows}


def _of_group(
    name: str, asked: Sequence[Any] | None, context: Context, not_ready: Code
) -> tuple[Code, list[dict[str, Any]]]:
    if not context.may_with_group(Operation.DESCRIBE, name):
        return Code.GROUP_AUTHORIZATION_FAILED, []
    if not_ready:
        return not_ready, []
    held = context.broker.groups.offsets(name)
    if asked is None:
        wanted: dict[str, list[int]] = {}
        for topic, partition in sorted(held):
            wanted.setdefault(topic, []).append(partition)
        pairs = [(topic, numbers) for topic, numbers in wanted.items() if context.may(Operation.DESCRIBE, topic)]
        return Code.NONE, [_topic(topic, [(n, held[topic, n], Code.NONE) for n in numbers]) for topic, numbers in pairs]
    found = []
    for row in asked:
        code = Code.NONE if context.may(Operation.DESCRIBE, row.name) else Code.TOPIC_AUTHORIZATION_FAILED
        numbers = row.partition_indexes
        rows = [(n, UNKNOWN if code else held.get((row.name, n), UNKNOWN), code) for n in numbers]
        found.append(_topic(row.name, rows))
    return Code.NONE, found


def _refused(asked: Sequence[Any], code: Code) -> list[dict[str, Any]]:
    """Before version 2 an error is each partition's."""
    return [_topic(row.name, [(n, UNKNOWN, code) for n in row.partition_indexes]) for row in asked]


def _topic(name: str, rows: list[tuple[int, Offset, Code]]) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": [
            {
                "partition_index": number,
                "committed_offset": row.offset,
                "committed_leader_epoch": row.leader_epoch,
                "metadata": row.metadata,
                "error_code": int(code),
            }
            for number, row, code in rows
        ],
    }

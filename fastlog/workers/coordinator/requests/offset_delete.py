"""OffsetDelete (47), version 0: forgets where a group has come to in partitions that none of its members reads.

Source: Apache Kafka 4.2 (KafkaApis.handleOffsetDeleteRequest, OffsetMetadataManager.deleteOffsets).
"""

from __future__ import annotations

from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler
from fastlog.workers.coordinator.errors import Code


def handle(request: Request, context: Context) -> Handler:
    """Wait for the flush."""
    fields = request.fields
    codes = {topic.name: _refusal(topic.name, context) for topic in fields.topics}
    places = [
        (topic.name, row.partition_index)
        for topic in fields.topics
        for row in topic.partitions
        if not codes[topic.name]
    ]
    code = Code.GROUP_AUTHORIZATION_FAILED
    if context.may_with_group(Operation.DELETE, fields.group_id):
        code, used = yield from context.broker.groups.delete_offsets(fields.group_id, places)
        codes |= dict.fromkeys(
            used & {name for name, found in codes.items() if not found}, Code.GROUP_SUBSCRIBED_TO_TOPIC
        )
    rows = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": row.partition_index, "error_code": int(codes[topic.name])}
                for row in topic.partitions
            ],
        }
        for topic in fields.topics
    ]
    return {"error_code": int(code), "throttle_time": 0, "topics": [] if code else rows}


def _refusal(topic: str, context: Context) -> Code:
    if not context.may(Operation.READ, topic):
        return Code.TOPIC_AUTHORIZATION_FAILED
    return Code.NONE if context.broker.topics.takes_offsets(topic) else Code.UNKNOWN_TOPIC_OR_PARTITION

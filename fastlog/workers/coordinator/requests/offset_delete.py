"""OffsetDelete (47), version 0: forgets where a group has come to in partitions that none of its members reads.

Source: Apache Kafka 4.2 (KafkaApis.handleOffsetDeleteRequest, OffsetMetadataManager.deleteOffsets).
"""

from __future__ import annotations

from collections.abc import Sequence

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler


def handle(request: Request, context: Context) -> Handler:
    """Wait for the flush."""
    fields = request.fields
    codes: dict[tuple[str, int], Code] = {}
    for topic in fields.topics:
        found = _refusals(topic.name, [row.partition_index for row in topic.partitions], context)
        codes |= {(topic.name, number): code for number, code in found.items()}
    code = Code.GROUP_AUTHORIZATION_FAILED
    if context.may_with_group(Operation.DELETE, fields.group_id):
        places = [place for place, refused in codes.items() if not refused]
        code, used = yield from context.broker.groups.delete_offsets(fields.group_id, places)
        codes |= {place: Code.GROUP_SUBSCRIBED_TO_TOPIC for place in places if place[0] in used}
    rows = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": row.partition_index, "error_code": int(codes[topic.name, row.partition_index])}
                for row in topic.partitions
            ],
        }
        for topic in fields.topics
    ]
    return {"error_code": int(code), "throttle_time": 0, "topics": [] if code else rows}


def _refusals(topic: str, partitions: Sequence[int], context: Context) -> dict[int, Code]:
    if not context.may(Operation.READ, topic):
        return dict.fromkeys(partitions, Code.TOPIC_AUTHORIZATION_FAILED)
    taken = context.broker.topics.takes_offsets(topic, partitions)
    return {number: Code.NONE if taken[number] else Code.UNKNOWN_TOPIC_OR_PARTITION for number in partitions}

"""OffsetCommit (8), versions 2 to 9: keeps where a group has come to; answered when it is durable.

Version 5 took away the time to keep them, which is not looked at in those before: ``offsets.retention.minutes`` holds.
Version 6 added the leader epoch, 7 static members. A disk that takes longer than 5 s gets error 7, and the commit may
become so afterwards. An offset of a topic of 0.7 is the position in bytes that 0.7's consumers have in ZooKeeper.

Source: Apache Kafka 4.2 (KafkaApis.handleOffsetCommitRequest, OffsetMetadataManager.commitOffset).
"""

from __future__ import annotations

from collections.abc import Sequence

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler
from fastlog.workers.coordinator.requests.join_group import MOST_NAME_BYTES


def handle(request: Request, context: Context) -> Handler:
    """Refuse what cannot be kept, and keep the rest in one write."""
    fields = request.fields
    codes: dict[tuple[str, int], Code] = {}
    rows: dict[tuple[str, int], tuple[int, int, str]] = {}
    code = Code.NONE
    if not context.may_with_group(Operation.READ, fields.group_id):
        code = Code.GROUP_AUTHORIZATION_FAILED
    elif len(fields.group_id.encode()) > MOST_NAME_BYTES:
        code = Code.INVALID_GROUP_ID
    for topic in fields.topics:
        refused = {} if code else refusals(topic.name, [row.partition_index for row in topic.partitions], context)
        for row in topic.partitions:
            place = topic.name, row.partition_index
            text = row.committed_metadata or ""
            codes[place] = code or refused[row.partition_index]
            if not codes[place] and len(text.encode()) > context.broker.config.offset_metadata_bytes:
                codes[place] = Code.OFFSET_METADATA_TOO_LARGE
            if not codes[place]:
                rows[place] = row.committed_offset, getattr(row, "committed_leader_epoch", -1), text
    if not code:
        generation = getattr(fields, "generation_id_or_member_epoch", -1)
        member = fields.member_id, getattr(fields, "group_instance_id", None), generation
        kept = yield from context.broker.groups.commit(fields.group_id, member, rows)
        codes |= dict.fromkeys(rows, kept)
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": row.partition_index,
                        "error_code": int(codes[topic.name, row.partition_index]),
                    }
                    for row in topic.partitions
                ],
            }
            for topic in fields.topics
        ],
    }


def refusals(topic: str, partitions: Sequence[int], context: Context) -> dict[int, Code]:
    """Why nothing can be kept of partitions, each by its number; NONE where it can."""
    if not context.may(Operation.READ, topic):
        return dict.fromkeys(partitions, Code.TOPIC_AUTHORIZATION_FAILED)
    if topic.startswith("__"):
        return dict.fromkeys(partitions, Code.UNKNOWN_TOPIC_OR_PARTITION)
    taken = context.broker.topics.takes_offsets(topic, partitions)
    return {number: Code.NONE if taken[number] else Code.UNKNOWN_TOPIC_OR_PARTITION for number in partitions}

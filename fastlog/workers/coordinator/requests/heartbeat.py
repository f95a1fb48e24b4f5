"""Heartbeat (12), versions 0 to 4: a member is there, and learns when it has to join again. Version 3: static members.

Source: Apache Kafka 4.2 (GroupMetadataManager.classicGroupHeartbeat).
"""

from __future__ import annotations

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler
from fastlog.workers.coordinator.requests.join_group import is_valid


def handle(request: Request, context: Context) -> Handler:
    """Answer from memory."""
    fields = request.fields
    if not context.may_with_group(Operation.READ, fields.group_id):
        code = Code.GROUP_AUTHORIZATION_FAILED
    elif not is_valid(fields.group_id):
        code = Code.INVALID_GROUP_ID
    else:
        member = fields.member_id, getattr(fields, "group_instance_id", None), fields.generation_id
        code = yield from context.broker.groups.heartbeat(fields.group_id, member)
    return {"throttle_time": 0, "error_code": int(code)}

"""SyncGroup (14), versions 0 to 5: the leader assigns, every member gets its part; answered when it is kept.

Version 3 added static members, 5 the protocol, which is compared with the group's.

Source: Apache Kafka 4.2 (GroupMetadataManager.classicGroupSync).
"""

from __future__ import annotations

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler
from fastlog.workers.coordinator.groups.members import Synced
from fastlog.workers.coordinator.requests.join_group import is_valid


def handle(request: Request, context: Context) -> Handler:
    """Wait for the leader."""
    fields = request.fields
    if not context.may_with_group(Operation.READ, fields.group_id):
        synced = Synced(Code.GROUP_AUTHORIZATION_FAILED)
    elif not is_valid(fields.group_id):
        synced = Synced(Code.INVALID_GROUP_ID)
    else:
        synced = yield from context.broker.groups.sync(
            fields.group_id,
            (fields.member_id, getattr(fields, "group_instance_id", None), fields.generation_id),
            (getattr(fields, "protocol_type", None), getattr(fields, "protocol_name", None)),
            {each.member_id: each.assignment for each in fields.assignments},
        )
    return {
        "throttle_time": 0,
        "error_code": int(synced.code),
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }

"""LeaveGroup (13), versions 0 to 5: members leave, without waiting for their sessions to end.

Version 3 made them several, named by their ids or their instance ids; 5 added a reason, which is not looked at.

Source: Apache Kafka 4.2 (GroupMetadataManager.classicGroupLeave).
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
    has_several = hasattr(fields, "members")
    if has_several:
        who = [(each.member_id, each.group_instance_id) for each in fields.members]
    else:
        who = [(fields.member_id, None)]
    found: list[tuple[str, Code]] = []
    if not context.may_with_group(Operation.READ, fields.group_id):
        code = Code.GROUP_AUTHORIZATION_FAILED
    elif not is_valid(fields.group_id):
        code = Code.INVALID_GROUP_ID
    else:
        code, found = yield from context.broker.groups.leave(fields.group_id, who)
    if not has_several:
        return {"throttle_time": 0, "error_code": int(code or found[0][1])}
    rows = [
        {"member_id": member_id, "group_instance_id": instance_id, "error_code": int(left)}
        for (_, instance_id), (member_id, left) in zip(who, found, strict=False)
    ]
    return {"throttle_time": 0, "error_code": int(code), "members": rows}

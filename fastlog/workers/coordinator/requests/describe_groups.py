"""DescribeGroups (15), versions 0 to 5: a group's state and its members, their assignments once it is stable.

Version 3 added the operations that the client may do, 4 instance ids. A group that is not known is called Dead.

Source: Apache Kafka 4.2 (KafkaApis.handleDescribeGroupsRequest, ClassicGroup.describe).
"""

from __future__ import annotations

from typing import Any

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler
from fastlog.workers.coordinator.groups.machine import Group, State

UNASKED = -(2**31)
DEAD = "Dead"
OPERATIONS = (Operation.READ, Operation.DELETE, Operation.DESCRIBE)


def handle(request: Request, context: Context) -> Handler:
    """Answer from memory."""
    not_ready = yield from context.broker.groups.ready()
    with_operations = getattr(request.fields, "include_authorized_operations", False)
    rows = []
    for name in request.fields.groups:
        code = not_ready
        if not context.may_with_group(Operation.DESCRIBE, name):
            code = Code.GROUP_AUTHORIZATION_FAILED
        allowed = UNASKED
        if with_operations and not code:
            allowed = sum(1 << int(each) for each in OPERATIONS if context.may_with_group(each, name))
        described = _described(name, context) if not code else _row("", "", "", [])
        rows.append({"error_code": int(code), "group_id": name, **described, "authorized_operations": allowed})
    return {"throttle_time": 0, "groups": rows}


def _described(name: str, context: Context) -> dict[str, Any]:
    groups = context.broker.groups
    group = groups.group(name)
    if group is None:
        return _row(State.EMPTY.value if groups.is_known(name) else DEAD, "", "", [])
    is_stable = group.state is State.STABLE
    protocol = (group.protocol or "") if is_stable else ""
    return _row(group.state.value, group.protocol_type, protocol, _members(group, is_stable))


def _members(group: Group, is_stable: bool) -> list[dict[str, Any]]:
    return [
        {
            "member_id": each.member_id,
            "group_instance_id": each.instance_id,
            "client_id": each.client_id,
            "client_host": each.client_host,
            "member_metadata": each.metadata(group.protocol) if is_stable else b"",
            "member_assignment": each.assignment if is_stable else b"",
        }
        for each in group.members.values()
    ]


def _row(state: str, kind: str, protocol: str, members: list[dict[str, Any]]) -> dict[str, Any]:
    return {"group_state": state, "protocol_type": kind, "protocol_data": protocol, "members": members}

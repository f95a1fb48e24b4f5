"""ListGroups (16), versions 0 to 4: all groups that the client may see; version 4 added their states, and a choice.

Source: Apache Kafka 4.2 (KafkaApis.handleListGroupsRequest).
"""

from __future__ import annotations

from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler
from fastlog.workers.coordinator.groups.machine import State


def handle(request: Request, context: Context) -> Handler:
    """Answer from memory."""
    groups = context.broker.groups
    code = yield from groups.ready()
    wanted = {state.lower() for state in getattr(request.fields, "states_filter", ())}
    sees_all = context.may_on_cluster(Operation.DESCRIBE)
    rows = []
    for name in [] if code else groups.names():
        group = groups.group(name)
        state = (group.state if group is not None else State.EMPTY).value
        if (not wanted or state.lower() in wanted) and (sees_all or context.may_with_group(Operation.DESCRIBE, name)):
            kind = group.protocol_type if group is not None else ""
            rows.append({"group_id": name, "protocol_type": kind, "group_state": state})
    return {"throttle_time": 0, "error_code": int(code), "groups": rows}

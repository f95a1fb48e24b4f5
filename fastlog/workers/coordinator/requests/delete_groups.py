"""DeleteGroups (42), versions 0 to 2: forgets groups that have no members, with all they have committed.

Source: Apache Kafka 4.2 (KafkaApis.handleDeleteGroupsRequest).
"""

from __future__ import annotations

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler


def handle(request: Request, context: Context) -> Handler:
    """Wait for the flush of each."""
    rows = []
    for name in dict.fromkeys(request.fields.groups_names):
        code = Code.GROUP_AUTHORIZATION_FAILED
        if context.may_with_group(Operation.DELETE, name):
            code = yield from context.broker.groups.delete(name)
        rows.append({"group_id": name, "error_code": int(code)})
    return {"throttle_time": 0, "results": rows}

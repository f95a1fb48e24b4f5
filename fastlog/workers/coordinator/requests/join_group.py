"""JoinGroup (11), versions 0 to 9: a member joins a group; answered when the rebalance that this begins is complete.

Version 1 added the time that a rebalance may take, 4 the id that a new member gets before it joins, 5 static
members, 7 the kind of protocol in the answer, 8 a reason, which is not looked at, 9 that a static leader need not
assign.

Source: Apache Kafka 4.2 (GroupCoordinatorService.joinGroup) for the order of the checks and the codes.
"""

from __future__ import annotations

from datetime import timedelta

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler
from fastlog.workers.coordinator.groups.members import Joined, Joining

MOST_NAME_BYTES = 1000
"""Of a group's, an instance's and a protocol's name; the records that keep them have room for 32,767."""
MOST_METADATA_BYTES = 1 << 20
"""Of all that one member says of itself."""
MOST_CLIENT_ID = 200
"""Characters of it that are kept."""


def handle(request: Request, context: Context) -> Handler:
    """Wait for the others; the request's bytes are let go before that."""
    fields = request.fields
    joined = Joined(_refusal(request, context), fields.member_id)
    if not joined.code:
        asked = _asked(request, context)
        context.let_go()
        joined = yield from context.broker.groups.join(fields.group_id, asked)
    is_nullable = request.version >= 7
    return {
        "throttle_time": 0,
        "error_code": int(joined.code),
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol if joined.protocol is not None or is_nullable else "",
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "metadata": each.metadata}
            for each in joined.members
        ],
    }


def is_valid(group: str) -> bool:
    """Whether a group of members may have this name."""
    return 0 < len(group.encode()) <= MOST_NAME_BYTES


def _refusal(request: Request, context: Context) -> Code:
    fields, config = request.fields, context.broker.config
    if not context.may_with_group(Operation.READ, fields.group_id):
        return Code.GROUP_AUTHORIZATION_FAILED
    if not is_valid(fields.group_id):
        return Code.INVALID_GROUP_ID
    if not config.group_min_session_ms <= _ms(fields.session_timeout) <= config.group_max_session_ms:
        return Code.INVALID_SESSION_TIMEOUT
    names = [fields.protocol_type, getattr(fields, "group_instance_id", None) or ""]
    names += [protocol.name for protocol in fields.protocols]
    size = sum(len(protocol.metadata) for protocol in fields.protocols)
    if max(len(name.encode()) for name in names) > MOST_NAME_BYTES or size > MOST_METADATA_BYTES:
        return Code.INVALID_REQUEST
    return Code.NONE


def _asked(request: Request, context: Context) -> Joining:
    fields = request.fields
    session_ms = _ms(fields.session_timeout)
    return Joining(
        fields.member_id,
        getattr(fields, "group_instance_id", None),
        request.client_id[:MOST_CLIENT_ID],
        f"/{context.client.host}",
        session_ms,
        max(0, _ms(fields.rebalance_timeout)) if request.version >= 1 else session_ms,
        fields.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in fields.protocols),
        needs_id=request.version >= 4,
        skips_assignment=request.version >= 9,
    )


def _ms(time: timedelta) -> int:
    return time // timedelta(milliseconds=1)

"""FindCoordinator (10), versions 0 to 4: this broker, for every group.

Version 1 added the kind of what is coordinated, 4 several at once. There are no transactions: a transactional id gets a
fatal error at once (53), as from InitProducerId, not one that is tried again until a time-out.

Source: Apache Kafka 4.2 (KafkaApis.handleFindCoordinatorRequest).
"""

from __future__ import annotations

from typing import Any

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler, error
from fastlog.workers.coordinator.requests.describe_configs import no_wait

GROUP, TRANSACTION = 0, 1


def handle(request: Request, context: Context) -> Handler:
    """Answer from memory."""
    fields = request.fields
    kind = getattr(fields, "key_type", GROUP)
    if not hasattr(fields, "coordinator_keys"):
        return {"throttle_time": 0, **_found(kind, fields.key, context)}
    rows = [{"key": key, **_found(kind, key, context)} for key in fields.coordinator_keys]
    return {"throttle_time": 0, "coordinators": rows}
    yield from no_wait()


def _found(kind: int, key: str, context: Context) -> dict[str, Any]:
    nowhere = {"node_id": -1, "host": "", "port": -1}
    if kind == TRANSACTION:
        return error(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "there are no transactions yet") | nowhere
    if kind != GROUP:
        return error(Code.INVALID_REQUEST, f"coordinators of kind {kind} are not known") | nowhere
    if not context.may_with_group(Operation.DESCRIBE, key):
        return error(Code.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.") | nowhere
    listener = context.broker.listeners[context.client.listener]
    return error(Code.NONE) | {
        "node_id": context.broker.config.broker_id,
        "host": listener.advertised_host,
        "port": listener.advertised_port,
    }

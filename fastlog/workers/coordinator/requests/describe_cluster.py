"""DescribeCluster (60), versions 0 and 1: this broker, which is all of its cluster.

Version 1 added which kind of endpoint is asked for; there are no controllers of their own (error 114), and no other
kinds (115).

Source: Apache Kafka 4.2 (KafkaApis.handleDescribeCluster).
"""

from __future__ import annotations

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Fields, Request
from fastlog.workers.coordinator.context import Context, Handler, error
from fastlog.workers.coordinator.requests.describe_configs import no_wait

BROKERS, CONTROLLERS = 1, 2
UNASKED = -(2**31)
OPERATIONS = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


def handle(request: Request, context: Context) -> Handler:
    """Answer from memory; host and port are those that this listener advertises."""
    broker, fields = context.broker, request.fields
    listener = broker.listeners[context.client.listener]
    kind = getattr(fields, "endpoint_type", BROKERS)
    if kind == CONTROLLERS:
        return _refused(Code.MISMATCHED_ENDPOINT_TYPE, "this cluster has no controllers of their own")
    if kind != BROKERS:
        return _refused(Code.UNSUPPORTED_ENDPOINT_TYPE, f"endpoints of kind {kind} are not known")
    allowed = UNASKED
    if fields.include_cluster_authorized_operations:
        allowed = sum(1 << int(each) for each in OPERATIONS if context.may_on_cluster(each))
    node = {
        "broker_id": broker.config.broker_id,
        "host": listener.advertised_host,
        "port": listener.advertised_port,
        "rack": None,
    }
    return {
        **error(Code.NONE),
        "throttle_time": 0,
        "endpoint_type": kind,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.config.broker_id,
        "brokers": [node],
        "cluster_authorized_operations": allowed,
    }
    yield from no_wait()


def _refused(code: Code, message: str) -> Fields:
    nothing: Fields = {"cluster_id": "", "controller_id": -1, "brokers": [], "cluster_authorized_operations": UNASKED}
    return {**error(code, message), "throttle_time": 0, "endpoint_type": BROKERS, **nothing}

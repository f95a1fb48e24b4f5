"""InitProducerId (22), versions 0 to 4, for idempotent producers: a number that no producer has had, and epoch 0.

Version 3 added the number and epoch that the producer has, both or neither; one without a transactional id gets a new
number whatever they are. There are no transactions yet: a transactional id gets a fatal error at once (53), not one
that is tried again until a time-out.

Source: Apache Kafka 4.2 (TransactionCoordinator.handleInitProducerId).
"""

from __future__ import annotations

import logging

from fastlog.errors import FastlogError
from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler

log = logging.getLogger(__name__)

NONE = -1


def handle(request: Request, context: Context) -> Handler:
    """Wait for the flush of the block that the number is from, where it is the first of it."""
    fields, topics = request.fields, context.broker.topics
    had = getattr(fields, "producer_id", NONE), getattr(fields, "producer_epoch", NONE)
    producer_id, code = NONE, Code.NONE
    if fields.transactional_id == "" or (NONE in had and had != (NONE, NONE)):
        code = Code.INVALID_REQUEST
    elif fields.transactional_id is not None:
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not context.may_on_cluster(Operation.IDEMPOTENT_WRITE):
        code = Code.CLUSTER_AUTHORIZATION_FAILED
    elif not topics.is_ready:
        code = Code.COORDINATOR_LOAD_IN_PROGRESS
    else:
        try:
            producer_id = yield from topics.producer_ids.new()
        except (OSError, FastlogError) as error:
            log.error("no producer id: %s", error)
            code = Code.COORDINATOR_NOT_AVAILABLE
    epoch = NONE if code else 0
    return {"throttle_time": 0, "error_code": int(code), "producer_id": producer_id, "producer_epoch": epoch}

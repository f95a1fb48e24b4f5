"""CreatePartitions (37), versions 0 to 3: more partitions for topics of either kind.

The versions differ in their encoding and in the errors that a quota gives, of which there are none.

Source: Apache Kafka 4.2 (ReplicationControlManager.createPartitions).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Context, Handler, deadline, error
from fastlog.workers.coordinator.topics import Outcome, Pending


def handle(request: Request, context: Context) -> Handler:
    """Begin all, then wait for them together, for as long as the client said."""
    fields = request.fields
    until = deadline(fields.timeout)
    counts = Counter(topic.name for topic in fields.topics)
    begun = [
        (topic.name, _begin(topic, context, fields.validate_only)) for topic in fields.topics if counts[topic.name] == 1
    ]
    answers = []
    for name, found in begun:
        outcome = found if isinstance(found, Outcome) else (yield from found.wait(until))
        answers.append({"name": name, **error(outcome.code, outcome.message)})
    for name, count in counts.items():
        if count > 1:
            answers.append({"name": name, **error(Code.INVALID_REQUEST, "Duplicate topic name.")})
    return {"throttle_time": 0, "results": answers}


def _begin(topic: Any, context: Context, validate_only: bool) -> Outcome | Pending:
    topics, config = context.broker.topics, context.broker.config
    if not context.may(Operation.ALTER, topic.name):
        return Outcome(Code.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    refused = topics.refusal_to_grow(topic.name, topic.count)
    if refused is not None:
        return refused
    if topic.assignments is not None:
        more = topic.count - topics.shown_count(topic.name)
        if len(topic.assignments) != more:
            return Outcome(Code.INVALID_REPLICA_ASSIGNMENT, f"{more} partitions are new, and need as many assignments")
        if any(tuple(each.broker_ids) != (config.broker_id,) for each in topic.assignments):
            return Outcome(Code.INVALID_REPLICA_ASSIGNMENT, "this broker is the only one of the cluster")
    if validate_only:
        return Outcome()
    if not config.creates_on_request:
        return Outcome(Code.POLICY_VIOLATION, "create.topic.requests forbids it")
    return topics.grow(topic.name, topic.count)

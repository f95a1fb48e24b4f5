"""DeleteTopics (20), versions 1 to 6: deletes topics of either kind, by name or, from version 6 on, by id.

Version 5 added messages to errors. Answered when the name can be used again.

Source: Apache Kafka 4.2 (ControllerApis.deleteTopics).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import ZERO_ID, Request
from fastlog.workers.coordinator.context import Context, Handler, deadline, error
from fastlog.workers.coordinator.topics import Outcome, Pending


def handle(request: Request, context: Context) -> Handler:
    """Begin all, then wait for them together, for as long as the client said."""
    fields = request.fields
    until = deadline(fields.timeout)
    begun = [(*asked, _begin(*asked, context)) for asked in _asked(fields)]
    answers = []
    for name, topic_id, found in begun:
        outcome = found if isinstance(found, Outcome) else (yield from found.wait(until))
        shown = name if name is not None else context.broker.topics.by_id(topic_id) if not outcome.code else None
        if outcome.topic is not None:
            shown, topic_id = outcome.topic.name, outcome.topic.topic_id
        answers.append({**error(outcome.code, outcome.message), "name": shown, "topic_id": topic_id})
    return {"throttle_time": 0, "responses": answers}


def _asked(fields: Any) -> Sequence[tuple[str | None, bytes]]:
    """Name and id of each topic; of the two one is given, the name before version 6."""
    if hasattr(fields, "topic_names"):
        return [(name, ZERO_ID) for name in fields.topic_names]
    return [(each.name, each.topic_id.bytes if each.topic_id is not None else ZERO_ID) for each in fields.topics]


def _begin(name: str | None, topic_id: bytes, context: Context) -> Outcome | Pending:
    broker = context.broker
    if not broker.config.delete_topic_enable:
        return Outcome(Code.TOPIC_DELETION_DISABLED, "delete.topic.enable forbids it")
    if (name is None) == (topic_id == ZERO_ID):
        return Outcome(Code.INVALID_REQUEST, "a topic is named by its name or by its id, and not by both")
    if name is None:
        name = broker.topics.by_id(topic_id)
        if name is None or not context.may(Operation.DESCRIBE, name):
            return Outcome(Code.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if not context.may(Operation.DELETE, name):
        return Outcome(Code.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    return broker.topics.delete(name)

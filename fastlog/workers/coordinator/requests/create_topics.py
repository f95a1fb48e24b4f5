"""CreateTopics (19), versions 2 to 7: makes topics of record batches.

Version 5 added the topic's settings and its number of partitions to the answer, 7 the topic's id. A topic's replication
factor is 1, which -1 stands for; a manual assignment names this broker for each partition. One that is only to be
validated is answered as if it had been made.

Source: Apache Kafka 4.2 (ReplicationControlManager) for the order of the checks and the codes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator import topic_settings
from fastlog.workers.coordinator.codec import ZERO_ID, Fields, Request
from fastlog.workers.coordinator.context import Context, Handler, deadline, error
from fastlog.workers.coordinator.requests.describe_configs import topic_rows
from fastlog.workers.coordinator.topics import ILLEGAL_NAME, Outcome, Pending, is_legal_name


def handle(request: Request, context: Context) -> Handler:
    """Begin all that can be made, then wait for them together, for as long as the client said."""
    fields = request.fields
    until = deadline(fields.timeout)
    counts = Counter(topic.name for topic in fields.topics)
    begun: list[tuple[Any, Outcome | Pending]] = []
    for topic in fields.topics:
        if counts[topic.name] == 1:
            begun.append((topic, _begin(topic, context, fields.validate_only)))
    answers = []
    for topic, found in begun:
        outcome = found if isinstance(found, Outcome) else (yield from found.wait(until))
        answers.append(_answer(topic, outcome, context))
    for name, count in counts.items():
        if count > 1:
            answers.append(_refused(name, Outcome(Code.INVALID_REQUEST, "Duplicate topic name.")))
    return {"throttle_time": 0, "topics": answers}


def _begin(topic: Any, context: Context, validate_only: bool) -> Outcome | Pending:
    topics, config = context.broker.topics, context.broker.config
    refused = _refusal(topic, context)
    if refused is not None:
        return refused
    count = _count(topic, context)
    nothing = [each.name for each in topic.configs if each.value is None]
    if nothing:
        return Outcome(Code.INVALID_CONFIG, f"Null value not supported for topic configs: {', '.join(nothing)}")
    try:
        given = {each.name: each.value for each in topic.configs}
        begin = given.pop(topic_settings.FIRST_OFFSETS, None)
        settings = topic_settings.checked(given)
        if begin is not None:
            topic_settings.first_offsets(begin, count)
            settings[topic_settings.FIRST_OFFSETS] = begin
    except topic_settings.InvalidSettingError as wrong:
        return Outcome(Code.INVALID_CONFIG, str(wrong))
    refused = topics.refusal(topic.name, count)
    if refused is not None or validate_only:
        return refused or Outcome()
    if not config.creates_on_request:
        return Outcome(Code.POLICY_VIOLATION, "create.topic.requests forbids it")
    return topics.create(topic.name, count, settings)


def _refusal(topic: Any, context: Context) -> Outcome | None:
    name = topic.name
    if not context.may(Operation.CREATE, name):
        return Outcome(Code.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    if not is_legal_name(name):
        return Outcome(Code.INVALID_TOPIC_EXCEPTION, ILLEGAL_NAME)
    if name.startswith("__"):
        return Outcome(Code.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: names that begin with __ are the broker's")
    if topic.assignments:
        if topic.replication_factor != -1 or topic.num_partitions != -1:
            text = "a manual assignment goes with neither a number of partitions nor a replication factor"
            return Outcome(Code.INVALID_REQUEST, text)
        numbers = sorted(each.partition_index for each in topic.assignments)
        if numbers != list(range(len(numbers))):
            return Outcome(Code.INVALID_REPLICA_ASSIGNMENT, "partitions are to be numbered from 0, each once")
        if any(tuple(each.broker_ids) != (context.broker.config.broker_id,) for each in topic.assignments):
            return Outcome(Code.INVALID_REPLICA_ASSIGNMENT, "this broker is the only one of the cluster")
        return None
    if topic.replication_factor not in (-1, 1):
        return Outcome(
            Code.INVALID_REPLICATION_FACTOR,
            f"replication factor {topic.replication_factor}: a cluster of one broker has 1 (or -1, which means it)",
        )
    if topic.num_partitions != -1 and topic.num_partitions < 1:
        return Outcome(Code.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    return None


def _count(topic: Any, context: Context) -> int:
    if topic.assignments:
        return len(topic.assignments)
    if topic.num_partitions == -1:
        return context.broker.config.partition_count(topic.name)
    return int(topic.num_partitions)


def _answer(topic: Any, outcome: Outcome, context: Context) -> Fields:
    if outcome.code:
        return _refused(topic.name, outcome)
    rows = topic_rows(context.broker.config, {each.name: each.value for each in topic.configs})
    return {
        **error(Code.NONE),
        "name": topic.name,
        "topic_id": outcome.topic.topic_id if outcome.topic is not None else ZERO_ID,
        "num_partitions": _count(topic, context),
        "replication_factor": 1,
        "topic_config_error_code": 0,
        "configs": rows,
    }


def _refused(name: str, outcome: Outcome) -> Fields:
    return {
        **error(outcome.code, outcome.message),
        "name": name,
        "topic_id": ZERO_ID,
        "num_partitions": -1,
        "replication_factor": -1,
        "topic_config_error_code": 0,
        "configs": [],
    }

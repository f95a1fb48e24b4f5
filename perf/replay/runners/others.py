"""The systems that fastlog is measured against: the C pair, its own broker under a C load generator."""

from __future__ import annotations

from perf.ceiling import loadgen, pair
from perf.figures.results import Run
from perf.replay.scenarios import Consume, Produce, Scenario
from perf.replay.stage import MESSAGE_BYTES, TOPIC, ReplayError, Stage, numbers


def ceiling(stage: Stage, scenario: Scenario) -> dict[str, Run]:
    """The C pair with the batch, fetch size, message size and flush policy of the scenario."""
    messages = int(stage.options.messages * scenario.share)
    _, size = stage.options.payloads(scenario.message_bytes if isinstance(scenario, Produce) else MESSAGE_BYTES)
    stage.warm(messages, size)
    policy = stage.all_of(scenario.settings)
    with stage.place() as directory:
        if isinstance(scenario, Produce):
            found = pair.produce(messages, scenario.batch, size, policy, directory)
        elif isinstance(scenario, Consume):
            found = pair.consume(messages, scenario.fetch_bytes, MESSAGE_BYTES, policy, directory)
        else:
            raise ReplayError(f"the ceiling has no {type(scenario).__name__}")
    return {"rate": Run(value=float(found["rate"]), detail=numbers(found))}


def broker_alone(stage: Stage, scenario: Scenario) -> dict[str, Run]:
    """fastlog's broker under the C load generator, which encodes once and checks nothing."""
    messages = int(stage.options.messages * scenario.share)
    if isinstance(scenario, Produce):
        _, size = stage.options.payloads(scenario.message_bytes)
        stage.warm(messages, size)
        with stage.broker(scenario.settings) as broker:
            place = {"port": broker.port, "topic": TOPIC, "messages": messages}
            found = loadgen.run("produce", {**place, "batch": scenario.batch, "size": size})
    elif isinstance(scenario, Consume):
        backlog = stage.backlog()
        place = {"port": backlog.broker.port, "topic": TOPIC, "max_bytes": scenario.fetch_bytes}
        found = loadgen.run("fetch", place)
        messages = backlog.messages
    else:
        raise ReplayError(f"the load generator has no {type(scenario).__name__}")
    if found["messages"] != messages:
        raise ReplayError(f"{found['messages']} messages instead of {messages}")
    return {"rate": Run(value=float(found["rate"]), detail=numbers(found))}

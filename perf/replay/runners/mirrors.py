"""A mirror at full speed: one process between two brokers."""

from __future__ import annotations

from perf.figures.results import Run
from perf.replay.runners.shown import HOST, shown
from perf.replay.scenarios import Mirrored
from perf.replay.stage import MESSAGE_BYTES, TOPIC, Stage, create_topic, wait_appended


def mirrored(stage: Stage, scenario: Mirrored) -> dict[str, Run]:
    """The round's backlog, as consumers read it; from the first run that was acknowledged to the last."""
    backlog = stage.backlog()
    stage.warm(backlog.messages)
    with shown(stage, backlog.broker.port) as connect, stage.broker(scenario.settings) as target:
        create_topic(target.port, TOPIC, 1)
        options = {"connect": connect, "target": f"0:{HOST}:{target.port}", "topic": TOPIC}
        found = stage.run("mirror", messages=backlog.messages, **options)
        wait_appended(target.port, (TOPIC,), backlog.bytes)
    detail = {**found, "mb_per_second": found["rate"] * MESSAGE_BYTES / 1e6}
    return {"rate": Run(value=found["rate"], detail=detail)}

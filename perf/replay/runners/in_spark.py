"""Jobs of Spark: counting a topic, loading, writing one; and the same count by Spark's own source for Kafka, and by one
that returns a prebuilt batch again and again.
"""

from __future__ import annotations

from pathlib import Path

from perf.figures.results import Run
from perf.peers.kafka import Kafka
from perf.replay.in_spark import connector_jars, without_connector
from perf.replay.scenarios import SPARK_KAFKA, InSpark
from perf.replay.stage import TOPIC, ReplayError, Stage, create_topic, numbers


def in_spark(stage: Stage, scenario: InSpark) -> dict[str, Run]:
    """The median of the warm runs of one session."""
    messages = _messages(stage, scenario)
    stage.warm(messages * (1 if scenario.job == "count" else 1 + scenario.runs))
    with stage.broker({**scenario.settings, "num.partitions": scenario.partitions}) as broker:
        shared = {"port": broker.port, "topic": TOPIC, "messages": messages, "runs": scenario.runs}
        if scenario.job == "write":
            create_topic(broker.port, TOPIC, scenario.partitions)
            found = stage.run("spark-write", **shared, acks=scenario.acks)
        elif scenario.job == "load":
            stage.fill(broker, TOPIC, messages)
            with stage.place() as directory:
                found = stage.run("spark-load", **shared, directory=str(directory))
        else:
            stage.fill(broker, TOPIC, messages)
            found = stage.run("spark-count", **shared, direct=scenario.direct)
    return {"rate": Run(value=float(found["rate"]), detail=numbers(found))}


def ceiling(stage: Stage, scenario: InSpark) -> dict[str, Run]:
    """The same count of a source that has nothing to do."""
    if scenario.job != "count":
        raise ReplayError(f"the ceiling has no {scenario.job}")
    found = stage.run("spark-count-prebuilt", messages=_messages(stage, scenario), runs=scenario.runs)
    return {"rate": Run(value=float(found["rate"]), detail=numbers(found))}


def by_kafkas_source(stage: Stage, scenario: InSpark) -> dict[str, Run]:
    """The same count of as many messages in Apache Kafka."""
    jars = connector_jars()
    if scenario.job != "count" or jars is None:
        raise ReplayError("Spark's source for Kafka only counts, and needs its jars")
    messages = _messages(stage, scenario)
    stage.warm(messages)
    kafka = Kafka()
    with stage.place() as directory:
        try:
            kafka.start(directory)
            kafka.produce(messages)
            address, topic = kafka.place
            found = stage.run(
                "spark-count-kafka", address=address, topic=topic, messages=messages, runs=scenario.runs, jars=jars
            )
        finally:
            kafka.stop()
    return {"rate": Run(value=float(found["rate"]), detail=numbers(found))}


def missing_connector() -> str | None:
    """Why Spark's source for Kafka cannot be measured here, in one line; None where it can."""
    return without_connector() or Kafka().available()


def connector() -> str:
    """Which jars are measured, and on what they read."""
    names = (Path(one).stem for one in (connector_jars() or "").split(","))
    return f"{SPARK_KAFKA}: {', '.join(names)}; {Kafka().version()}"


def _messages(stage: Stage, scenario: InSpark) -> int:
    return max(1, int(stage.options.messages * scenario.share))

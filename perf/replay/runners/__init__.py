"""What runs a scenario: one function for each kind, and others for the systems that fastlog is measured against.

Each returns its numbers by the names that figures take (``Figure.takes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from perf.ceiling import batches as batch_programs
from perf.ceiling import pair, programs
from perf.figures.results import CEILING, OURS, Run
from perf.replay import peers, scenarios
from perf.replay.runners import batches, clients, in_spark, mirrors, others, storage, streams, sweep
from perf.replay.scenarios import BROKER_ALONE, SPARK_KAFKA, Scenario
from perf.replay.stage import Stage

Numbers = Mapping[str, Run]

_OURS: Mapping[type[Scenario], Callable[[Stage, Any], Numbers]] = {
    scenarios.Produce: clients.produce,
    scenarios.Consume: clients.consume,
    scenarios.CodecAlone: clients.codec_alone,
    scenarios.FanOut: streams.fan_out,
    scenarios.Mirrored: mirrors.mirrored,
    scenarios.Tail: streams.tail,
    scenarios.Latency: streams.latency,
    scenarios.Recovery: storage.recovery,
    scenarios.Memory: storage.memory,
    scenarios.Stored: storage.stored,
    scenarios.FlushPolicy: sweep.flush_policy,
    scenarios.InSpark: in_spark.in_spark,
    scenarios.ProduceBatches: batches.produce,
    scenarios.FetchBatches: batches.fetch,
    scenarios.CheckBatches: batches.check_alone,
    scenarios.SingleMessages: batches.single_messages,
    scenarios.FirstAnswer: batches.first_answer,
}


def run(stage: Stage, scenario: Scenario, system: str) -> Numbers:
    """One run of a scenario on one system.

    Raises:
        FastlogError, RuntimeError, OSError: it could not be measured; the message says why.
    """
    if system in (OURS, scenario.systems[0]):
        return _OURS[type(scenario)](stage, scenario)
    if system == CEILING and isinstance(scenario, scenarios.InSpark):
        return in_spark.ceiling(stage, scenario)
    if system == CEILING and isinstance(scenario, scenarios.OfBatches):
        return batches.ceiling(stage, scenario)
    if system == CEILING:
        return others.ceiling(stage, scenario)
    if system == BROKER_ALONE:
        return others.broker_alone(stage, scenario)
    if system == SPARK_KAFKA and isinstance(scenario, scenarios.InSpark):
        return in_spark.by_kafkas_source(stage, scenario)
    return peers.measure(stage, scenario, system)


def missing(systems: Iterable[str]) -> dict[str, str]:
    """For each system other than fastlog and the peers that cannot be measured here the reason, in one line."""
    wanted = set(systems)
    found = {}
    try:
        pair.build()
        batch_programs.build()
    except programs.CannotBuild as error:
        found = dict.fromkeys({CEILING, BROKER_ALONE} & wanted, " ".join(str(error).split()))
    without = in_spark.missing_connector() if SPARK_KAFKA in wanted else None
    return found if without is None else {**found, SPARK_KAFKA: without}


def described(systems: Iterable[str]) -> list[str]:
    """For a reader of the result: what exactly those are whose names do not say it."""
    return [in_spark.connector()] if SPARK_KAFKA in systems else []

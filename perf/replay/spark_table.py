"""The scenarios of Spark with their goals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perf.figures.results import CEILING, OURS, Goal
from perf.replay.scenarios import SPARK_KAFKA, Figure, InSpark

SHARE = 0.5


def in_spark() -> Iterator[InSpark]:
    """All of them, in the order in which they take turns."""
    yield _job(
        "spark-count",
        "Spark counts a topic over sockets, offset and value",
        1.2e6,
        job="count",
        systems=(OURS, CEILING, SPARK_KAFKA),
    )
    yield _job(
        "spark-count-direct",
        "Spark counts a topic from the broker's files",
        2.5e6,
        job="count",
        systems=(OURS, CEILING),
        direct="only",
    )
    yield _job(
        "spark-load", "Spark loads a topic into a new Delta table, its start included", 0.3e6, job="load", runs=3
    )
    yield _job("spark-write", "Spark writes a topic, acknowledged when flushed", 0.6e6, job="write")


def _job(name: str, title: str, goal: float, **fields: Any) -> InSpark:
    figure = Figure(name=name, title=title, section="spark", goal=Goal(value=goal))
    return InSpark(figures=(figure,), block="spark", share=SHARE, most_rounds=3, **fields)

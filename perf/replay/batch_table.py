"""The scenarios of record batches: today's protocol under the C generator, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator

from perf.figures.results import CEILING, OURS, Better, Goal
from perf.replay.scenarios import (
    CheckBatches,
    FetchBatches,
    Figure,
    FirstAnswer,
    ProduceBatches,
    Scenario,
    SingleMessages,
)

BLOCK = "batches"
PAIR = (OURS, CEILING)
SHARE = 0.5
SINGLE_SHARE = 0.1
FLUSHED_SHARE = 0.05
MANY, FEW = 1000, 12
BATCH_BYTES = 16_384
LARGE_BATCH_BYTES = 1_000_000
"""What a broker takes that is told nothing (``max.message.size``)."""
FIRST_ANSWER_SECONDS = 0.5
MAX_PSS_BYTES = 80_000_000
MOST_SYNCS = 10.0
SLOWER_MS = 4
IN_FLIGHT = 5
"""Requests that a producer has under way: ``max.in.flight.requests.per.connection`` of Java's by default."""


def of_batches() -> Iterator[Scenario]:
    """All of them, in the order in which they take turns."""
    yield from _broker()
    yield from _partitions()
    yield from _codecs()
    yield FirstAnswer(
        figures=(
            _figure("first-answer", "Start to first answer", Goal(value=FIRST_ANSWER_SECONDS), "seconds", "s"),
            _figure("whole-memory", "All processes (PSS) afterwards", Goal(value=MAX_PSS_BYTES), "bytes", "bytes"),
        ),
        block=BLOCK,
    )


def _figure(name: str, title: str, goal: Goal | None = None, takes: str = "rate", unit: str = "messages/s") -> Figure:
    better: Better = "higher" if unit == "messages/s" else "lower"
    return Figure(
        name=f"batches-{name}", title=title, section="batches", takes=takes, unit=unit, better=better, goal=goal
    )


def _broker() -> Iterator[Scenario]:
    for size, text, goal in (
        (BATCH_BYTES, "16k", Goal(value=5.0e6, ceiling_ratio=0.6)),
        (LARGE_BATCH_BYTES, "1m", None),
    ):
        yield ProduceBatches(
            figures=(_figure(f"produce-{text}", f"Batches of {size:,} bytes, appended", goal),),
            block=BLOCK,
            systems=PAIR,
            share=SHARE,
            batch_bytes=size,
        )
    yield FetchBatches(
        figures=(_figure("fetch-1m", "Batches of 16,384 bytes, read 1 MiB at a time", Goal(ceiling_ratio=0.6)),),
        block=BLOCK,
        systems=PAIR,
        share=SHARE,
    )
    yield SingleMessages(
        figures=(_figure("single-0.7", "One message a request, fastlog's protocol, 16 connections"),),
        block=BLOCK,
        share=SINGLE_SHARE,
        connections=16,
    )
    goal = Goal(of="batches-single-0.7", of_ratio=0.5)
    yield ProduceBatches(
        figures=(_figure("single", "One record a batch, 16 connections", goal),),
        block=BLOCK,
        systems=PAIR,
        share=SINGLE_SHARE,
        connections=16,
        batch_records=1,
    )


def _partitions() -> Iterator[Scenario]:
    for count in (FEW, MANY):
        goals: list[Goal | None] = [None, None]
        if count == MANY:
            goals = [Goal(of=f"batches-{kind}-{FEW}", of_ratio=0.5) for kind in ("produce", "fetch")]
        yield ProduceBatches(
            figures=(_figure(f"produce-{count}", f"Batches over {count:,} partitions, appended", goals[0]),),
            block=BLOCK,
            systems=PAIR,
            share=SHARE,
            partitions=count,
        )
        yield FetchBatches(
            figures=(_figure(f"fetch-{count}", f"{count:,} partitions read in turn", goals[1]),),
            block=BLOCK,
            systems=PAIR,
            share=SHARE,
            partitions=count,
        )
    for slower_ms in (0, SLOWER_MS):
        name = "flushed-slow" if slower_ms else "flushed"
        title = f"Batches over {MANY:,} partitions, flushed" + f", each sync {slower_ms} ms longer" * bool(slower_ms)
        yield ProduceBatches(
            figures=(
                _figure(name, title),
                _figure(f"{name}-p99", f"{title}: p99 in syncs", Goal(value=MOST_SYNCS), "p99_syncs", "ratio"),
            ),
            block=BLOCK,
            share=FLUSHED_SHARE,
            partitions=MANY,
            acks=-1,
            window=IN_FLIGHT,
            slower_sync_ms=slower_ms,
        )


def _codecs() -> Iterator[Scenario]:
    for codec in ("lz4", "zstd"):
        goal = Goal(of=f"batches-check-{codec}", of_ratio=0.8)
        for connections, text, wanted in ((1, "-1", None), (2, "", goal)):
            title = f"{codec} batches of log lines, appended, over {connections} connection{'s'[: connections - 1]}"
            yield ProduceBatches(
                figures=(_figure(f"{codec}{text}", title, wanted),),
                block=BLOCK,
                share=SHARE,
                codec=codec,
                partitions=connections,
                connections=connections,
            )
        yield CheckBatches(
            figures=(_figure(f"check-{codec}", f"The check of {codec} batches alone, one core"),),
            block=BLOCK,
            share=SHARE,
            codec=codec,
        )

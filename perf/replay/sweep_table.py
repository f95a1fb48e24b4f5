"""The scenarios of the flush sweep: which policies are compared, and which of them the defaults are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from perf.replay.scenarios import PAGE_CACHE, Figure, FlushPolicy, Scenario
from perf.replay.stage import Options

SWEEP_MESSAGES = (500, 10_000, 50_000, 1_000_000)
SWEEP_MS = (50, 1_000)
SWEEP_WRITEBACK = (0, 8 * 2**20)
SWEEP_CACHE = (-1, 0)
DEFAULTS = (50_000, 1_000, True, 0, -1)
"""M, S, preallocation, early write-back and bytes kept cached of a broker that
is told nothing: the point of the sweep that they are."""


def sweep(options: Options) -> Iterator[Scenario]:
    """Every combination, but that pages are dropped (fadvise) only where nothing else differs from the defaults."""
    quick = options.quick
    every = product(
        SWEEP_MESSAGES[2:] if quick else SWEEP_MESSAGES,
        SWEEP_MS[1:] if quick else SWEEP_MS,
        (True, False),
        SWEEP_WRITEBACK,
        SWEEP_CACHE,
    )
    points = [point for point in every if point[4] == -1 or point[2:4] == DEFAULTS[2:4]]
    for number, (messages, milliseconds, preallocate, writeback, keep) in enumerate(points):
        policy = f"M {messages:,}, S {milliseconds} ms"
        policy += f", {'' if preallocate else 'no '}preallocation"
        policy += f", write-back each {writeback // 2**20} MiB" if writeback else ""
        policy += ", pages dropped once flushed" if keep == 0 else ""
        policy += " (the defaults)" if (messages, milliseconds, preallocate, writeback, keep) == DEFAULTS else ""
        name = f"sweep-{messages}-{milliseconds}-{'p' if preallocate else 'n'}-{writeback // 2**20}"
        name += "-d" if keep == 0 else ""
        place: dict[str, Any] = {"section": "sweep", "x": float(number), "x_title": "policy"}
        yield FlushPolicy(
            figures=(
                Figure(name=name, title=f"Throughput: {policy}", **place),
                Figure(
                    name=f"{name}-latency",
                    title=f"p99 from intended send to consumed, 1,000/s: {policy}",
                    takes="p99_ms",
                    unit="ms",
                    better="lower",
                    **place,
                ),
                Figure(
                    name=f"{name}-at-risk",
                    title=f"Most bytes appended and not flushed: {policy}",
                    takes="at_risk_bytes",
                    unit="bytes",
                    better="lower",
                    **place,
                ),
                Figure(
                    name=f"{name}-age",
                    title=f"Longest time that bytes were not flushed: {policy}",
                    takes="at_risk_ms",
                    unit="ms",
                    better="lower",
                    **place,
                ),
            ),
            block="sweep",
            most_rounds=2,
            share=0.1,
            settings={
                "log.flush.interval": messages,
                "log.default.flush.interval.ms": milliseconds,
                "flush.max.unflushed.bytes": PAGE_CACHE["flush.max.unflushed.bytes"],
                "log.preallocate": "true" if preallocate else "false",
                "log.early.writeback.bytes": writeback,
                "log.cache.keep.bytes": keep,
            },
            rate=1_000,
            seconds=min(options.seconds, 1.0),
        )

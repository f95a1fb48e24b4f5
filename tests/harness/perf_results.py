"""Made-up results with the shape of real ones: every section and system, spreads, timelines, absent peers; seeded."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import product
from typing import Any

from perf.figures.results import OURS, Goal, Result, Run, Series

MACHINE = {
    "commit": "07015e4f2a1f6f2b7b7d0f7f0f3f6a2f8d1e9c55",
    "cpu": "AMD EPYC 9R45",
    "cpus": 2,
    "memory_bytes": 24_696_061_952,
    "kernel": "6.18.44",
    "file_system": {"type": "ext4", "device": "/dev/vda", "options": "rw,relatime"},
    "tcp_congestion_control": "bbr",
    "c_compiler": "cc (Debian 12.2.0-14) 12.2.0",
    "python": "3.11.7",
    "packages": {"Cython": "3.3.1", "psutil": "7.0.0", "python-snappy": "0.7.3", "click": "8.2.1"},
}
SETTINGS = {
    "processors": 2,
    "flush_policy": {
        "log.flush.interval": 1_000_000,
        "log.default.flush.interval.ms": 1000,
        "log.flush.bytes": 268_435_456,
    },
    "messages": 10_000_000,
    "payload": {"kind": "random", "seed": 1, "bytes": 200},
}
NO_KAFKA = "KAFKA_HOME is not set, so there is no Apache Kafka distribution to start"
NO_ACTIVEMQ = "the Debian package activemq is not installed (no /usr/share/activemq/bin/activemq)"


class Sample:
    """Makes series whose repetitions lie around a middle, always the same ones for the same seed."""

    def __init__(self, rounds: int = 5, seed: int = 1) -> None:
        self.rounds = rounds
        self.random = random.Random(seed)
        self.series: list[Series] = []

    def near(self, middle: float, share: float = 0.06) -> float:
        """A random value around ``middle``."""
        return middle * self.random.gauss(1, share)

    def add(
        self,
        scenario: str,
        system: str,
        middle: float | None,
        *,
        detail: dict[str, float] | None = None,
        timeline: float | None = None,
        share: float = 0.06,
        absent: str | None = None,
        **fields: Any,
    ) -> None:
        """Add one series around ``middle``; ``timeline``: the seconds a run took; None for an absent system."""
        runs = []
        for _ in range(self.rounds if middle is not None else 0):
            assert middle is not None
            value = self.near(middle, share)
            points = None
            if timeline:
                count = 40
                points = tuple(((n + 1) * timeline / count, self.near(value, 0.1)) for n in range(count))
            near = {name: self.near(number, 0.12) for name, number in (detail or {}).items()}
            runs.append(Run(value=value, detail=near, timeline=points))
        fields = {"unit": "messages/s", "better": "higher", **fields}
        self.series.append(Series(scenario=scenario, system=system, runs=tuple(runs), absent=absent, **fields))

    def throughput(self) -> None:
        """The paper's two figures and their variants, with the peers."""
        rows: Sequence[tuple[str, str, str, Goal | None, float | None, dict[str, float]]] = (
            ("produce-batch-50", "Producer, batches of 50, send() once per message", "producer",
             Goal(value=4.0e6, ceiling_ratio=0.45), 400_000,
             {"fastlog": 4.21e6, "fastlog-broker": 7.2e6, "ceiling": 9.1e6, "rabbitmq-classic": 37e3,
              "rabbitmq-stream": 760e3}),
            ("produce-lists-50", "Producer, batches of 50, lists of messages", "producer",
             Goal(value=5.5e6, ceiling_ratio=0.6), None, {"fastlog": 5.2e6, "ceiling": 9.1e6}),
            ("produce-batch-1", "Producer, batch 1, pipelined", "producer", Goal(value=2.5e6), 50_000,
             {"fastlog": 2.61e6, "ceiling": 4.4e6, "rabbitmq-classic": 36e3, "rabbitmq-stream": 410e3}),
            ("produce-acked-50", "Producer, acknowledged on append, batch 50", "producer",
             Goal(of="produce-batch-50", of_ratio=0.8), None, {"fastlog": 3.5e6, "rabbitmq-stream": 690e3}),
            ("consume-iterate", "Consumer, iterating payloads one by one, CRC checked", "consumer", Goal(value=8e6),
             22_000, {"fastlog": 8.9e6, "ceiling": 27e6, "rabbitmq-classic": 41e3, "rabbitmq-stream": 9.9e6}),
            ("consume-numpy", "Consumer, numpy batches, CRC checked", "consumer",
             Goal(value=14e6, ceiling_ratio=0.5), None, {"fastlog": 16.9e6, "ceiling": 27e6}),
        )  # fmt: skip
        for scenario, title, section, goal, published, systems in rows:
            common = {"title": title, "section": section, "parameters": {"batch": 50, "messages": 10_000_000}}
            for system, middle in systems.items():
                peer = system.startswith("rabbitmq")
                seconds = (200_000 if system == "rabbitmq-classic" else 1e7) / middle
                self.add(
                    scenario, system, middle, timeline=seconds, share=0.03 if peer else 0.06,
                    goal=goal if system == "fastlog" else None, paper=published if system == "fastlog" else None,
                    detail={"cpu_s": 2 * seconds}, **common,
                )  # fmt: skip
            if "rabbitmq-stream" in systems:
                self.add(scenario, "activemq", None, absent=NO_ACTIVEMQ, **common)
                self.add(scenario, "kafka", None, absent=NO_KAFKA, **common)

    def curves(self) -> None:
        """Add series for the charts of the 0.7 site."""
        curves: dict[str, tuple[str, Sequence[float], float]] = {
            "batch-size": ("messages per batch", (1, 10, 50, 100, 200, 500, 1000), 4.4e6),
            "consumers": ("consumers", (1, 4, 16), 16e6),
            "producers": ("producers", (1, 2, 4, 8), 4.2e6),
            "topics": ("topics", (1, 10, 50, 100), 3.9e6),
            "stored-data": ("bytes stored", (0, 5e9, 10e9, 20e9), 4.1e6),
        }
        for name, (x_title, places, middle) in curves.items():
            for x in places:
                common: dict[str, Any] = {
                    "title": f"{name} {x:g}", "section": f"curve:{name}", "x": x, "x_title": x_title,
                }  # fmt: skip
                bend = x / (x + 2) if name == "batch-size" else 1
                self.add(f"{name}-{x:.0f}", "fastlog", middle * bend, **common)
                if name in {"batch-size", "consumers"}:
                    self.add(f"{name}-{x:.0f}", "ceiling", middle * bend * 1.9, **common)

    def latency(self) -> None:
        """Add end-to-end latencies at a fixed rate."""
        rows = (
            ("latency-defaults", "End to end at 10,000 msg/s, defaults (flush on demand)", Goal(value=8.6), 3.1),
            ("latency-flushed", "End to end at 10,000 msg/s, acknowledged on flush", Goal(value=2.6), 1.2),
        )
        for scenario, title, goal, middle in rows:
            for system, factor in (("fastlog", 1.0), ("rabbitmq-stream", 1.6)):
                p99 = middle * factor
                detail = {"p50": p99 * 0.3, "p95": p99 * 0.7, "p99": p99, "p99.9": p99 * 2.6, "max": p99 * 7}
                self.add(
                    scenario, system, p99, detail=detail, title=title, section="latency", unit="ms", better="lower",
                    goal=goal if system == "fastlog" else None, parameters={"rate": 10_000, "seconds": 10},
                )  # fmt: skip

    def sweep(self) -> None:
        """Four M, two S, preallocation and write-back; three figures of each."""
        for messages, ms, preallocate, mib in product(
            (500, 10_000, 50_000, 1_000_000), (50, 1000), (True, False), (0, 8)
        ):
            rate = 4.4e6 * (1 - 0.9 / (1 + messages / 3000)) * (1.12 if preallocate else 1)
            policy = f"M {messages:,}, S {ms} ms, {'' if preallocate else 'no '}preallocation, write-back {mib} MiB"
            policy += " (the defaults)" if (messages, ms, preallocate, mib) == (50_000, 1000, True, 0) else ""
            settings = {
                "log.flush.interval": messages, "log.default.flush.interval.ms": ms,
                "log.preallocate": "true" if preallocate else "false", "log.early.writeback.bytes": mib * 2**20,
                "flush.max.unflushed.bytes": 268_435_456,
            }  # fmt: skip
            common: dict[str, Any] = {"section": "sweep", "parameters": {"rate": 1000, "settings": settings}}
            name = f"sweep-{messages}-{ms}-{'p' if preallocate else 'n'}-{mib}"
            self.add(name, "fastlog", rate, title=f"Throughput: {policy}", **common)
            lower: dict[str, Any] = {"better": "lower", **common}
            self.add(f"{name}-latency", "fastlog", 0.4 + ms / 90, unit="ms", title=f"p99 latency: {policy}", **lower)
            risk = min(messages, rate * ms / 1000) * 210 * (0.6 if mib else 1)
            self.add(f"{name}-at-risk", "fastlog", risk, unit="bytes", title=f"Data at risk: {policy}", **lower)

    def resources(self) -> None:
        """Add series for recovery and memory."""
        self.add("recovery-1gb", "fastlog", 0.31, title="Recovery of a 1 GB segment without a checkpoint", unit="s",
                 section="recovery", better="lower", goal=Goal(value=0.5), detail={"bytes": 1.07e9})  # fmt: skip
        for backlog in ("empty log", "10 GB of backlog"):
            self.add(f"memory-{backlog.split()[0]}", "fastlog", 31e6, title=f"PSS of the largest process, {backlog}",
                     section="memory", unit="bytes", better="lower", goal=Goal(value=40e6), share=0.01,
                     detail={"acceptor_bytes": 12e6, "processor_bytes": 31e6, "keeper_bytes": 18e6})  # fmt: skip

    def result(self, **fields: Any) -> Result:
        """Everything added so far as one result."""
        return Result(**{
            "title": "fastlog against the paper, the ceiling and its peers",
            "command": "python -m perf replay --rounds 5 --output perf/results/replay.json",
            "started": "2026-03-14T09:26:53Z",
            "seconds": 4231.7,
            "machine": MACHINE,
            "settings": SETTINGS,
            "warm_up": "5 GB of memory touched and freed before each run; one run of each scenario thrown away",
            "series": tuple(self.series),
            **fields,
        })  # fmt: skip


def full_result(rounds: int = 5, seed: int = 1) -> Result:
    """A result with everything in it."""
    sample = Sample(rounds, seed)
    sample.throughput()
    sample.curves()
    sample.latency()
    sample.sweep()
    sample.resources()
    return sample.result()


def one(**fields: Any) -> Series:
    """A series of the producer section with two runs, unless ``fields`` say otherwise."""
    given: dict[str, Any] = {
        "scenario": "s", "system": OURS, "title": "T", "section": "producer", "unit": "messages/s", "better": "higher",
        "runs": (Run(value=1.0), Run(value=2.0)),
    }  # fmt: skip
    return Series(**{**given, **fields})


def result(*series: Series, **fields: Any) -> Result:
    """A result with these series, on the machine of ``Sample``."""
    return dataclasses.replace(Sample().result(), series=series, **fields)


def texts(page: str) -> str:
    """What a reader reads: the page without its tags, spaces of all widths made equal."""

    class Text(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []

        def handle_data(self, data: str) -> None:
            self.found.append(data)

    parser = Text()
    parser.feed(re.sub("<style>.*</style>", "", page, flags=re.DOTALL))
    return re.sub(r"[\s\u00a0\u202f\u2009]+", " ", " ".join(parser.found))

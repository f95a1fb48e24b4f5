"""``python -m perf.ceiling``: the broker's ceiling on this machine, with every repetition and the spread.

Scenarios take turns (A B C A B C …) and each produce run begins with warmed memory: on a virtual machine the first
touch of a page can cost more than everything that is measured, so single or unwarmed runs cannot be compared.
"""

from __future__ import annotations

import json
import mmap
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from fastlog.perf import machine
from perf.ceiling import loadgen, programs
from tests.harness.broker import Broker

ROOT = Path(__file__).resolve().parents[2]
PAGE_CACHE_POLICY = {
    "log.flush.interval": 1_000_000,
    "log.default.flush.interval.ms": 1000,
    "flush.max.unflushed.bytes": 268_435_456,
}
MADV_POPULATE_WRITE = 23
MESSAGE_BYTES = 200
ENTRY_BYTES = MESSAGE_BYTES + 10
MAX_PSS_BYTES = 40_000_000


@dataclass(frozen=True)
class Scenario:
    """One figure: how ``loadgen`` is called, and what is asked of the broker (messages a second)."""

    name: str
    mode: str
    options: dict[str, object]
    wanted_rate: float | None = None


SCENARIOS = (
    Scenario("produce batch 50", "produce", {"batch": 50}, 4e6),
    Scenario("produce batch 1", "produce", {"batch": 1}, 2.5e6),
    Scenario("acked batch 50, window 256", "produce-acked", {"batch": 50, "window": 256}),
    Scenario("fetch 1 MB", "fetch", {"max_bytes": 1 << 20}, 12e6),
    Scenario("fetch 300 kB", "fetch", {"max_bytes": 300_000}),
)


@dataclass
class Figure:
    """What all runs of one scenario measured."""

    scenario: Scenario
    runs: list[dict[str, Any]] = field(default_factory=list)

    def summary(self, key: str = "rate") -> dict[str, float]:
        """Median, lowest and highest of one value over the runs."""
        values = [run[key] for run in self.runs]
        return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def warm_memory(size: int) -> None:
    """Touches and frees ``size`` bytes, so that the host has given this machine the pages that the next run takes."""
    with mmap.mmap(-1, size) as area:
        try:
            area.madvise(MADV_POPULATE_WRITE)
        except OSError:  # a kernel before 5.14
            for position in range(0, size, mmap.PAGESIZE):
                area[position] = 1


def measure(broker: Broker, figures: Sequence[Figure], messages: int, warm_bytes: int) -> None:
    """Adds one run to every figure; each produce run writes a topic of its own, fetches read the last one."""
    topic = ""
    for number, figure in enumerate(figures):
        scenario = figure.scenario
        options = dict(scenario.options)
        if scenario.mode != "fetch":
            topic = f"ceiling-{number}"
            options |= {"messages": messages, "size": MESSAGE_BYTES}
            warm_memory(warm_bytes)
        result = loadgen.run(scenario.mode, {"port": broker.port, "topic": topic, **options})
        if result["messages"] != messages:
            raise RuntimeError(f"{scenario.name}: {result['messages']} messages instead of {messages}")
        figure.runs.append(result)
        click.echo(f"  {scenario.name:30}{result['rate'] / 1e6:8.2f} M/s", err=True)


def measure_memory(
    directory: Path, processors: int, settings: dict[str, object], small: int, large: int
) -> dict[str, dict[str, int]]:
    """Proportional set size of each process: idle, then with a small and with the large backlog written and read."""
    sizes = {}
    with Broker(directory, processors=processors, settings=settings) as broker:
        sizes["idle"] = broker.memory()
        for name, messages in (("small backlog", small), ("large backlog", large)):
            place = {"port": broker.port, "topic": "memory"}
            loadgen.run("produce", {**place, "messages": messages, "size": MESSAGE_BYTES})
            loadgen.run("fetch", place)
            time.sleep(0.2)
            sizes[f"{name} ({messages * ENTRY_BYTES} bytes)"] = broker.memory()
        broker.stop()
    return sizes


def table(figures: Sequence[Figure]) -> str:
    """The figures as a table of text."""
    lines = [f"{'messages a second (millions)':30}{'median':>9}{'low':>9}{'high':>9}{'wanted':>9}{'visible':>9}"]
    for figure in figures:
        rate = figure.summary()
        wanted = figure.scenario.wanted_rate
        line = f"{figure.scenario.name:30}" + "".join(f"{rate[key] / 1e6:9.2f}" for key in ("median", "low", "high"))
        line += f"{wanted / 1e6:9.1f}" if wanted else f"{'':9}"
        if figure.scenario.mode == "produce":
            line += f"{figure.summary('visible_rate')['median'] / 1e6:9.2f}"
        lines.append(line)
    return "\n".join(lines)


def memory_table(sizes: dict[str, dict[str, int]]) -> str:
    """Memory for people, a row for each process."""
    roles = sorted({role for one in sizes.values() for role in one})
    lines = [f"{'memory (PSS, MB)':20}" + "".join(f"{name:>34}" for name in sizes)]
    for role in roles:
        lines.append(f"{role:20}" + "".join(f"{one.get(role, 0) / 1e6:34.1f}" for one in sizes.values()))
    return "\n".join(lines)


def _quick(context: click.Context, _parameter: click.Parameter, chosen: bool) -> None:
    if chosen:
        context.default_map = {"repetitions": 2, "messages": 1_000_000, "backlog_bytes": 210_000_000}


@click.command()
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1, 1000))
@click.option("--messages", default=10_000_000, show_default=True, type=click.IntRange(1))
@click.option("--processors", default=2, show_default=True, type=click.IntRange(1, 256))
@click.option(
    "--backlog-bytes",
    default=2_100_000_000,
    show_default=True,
    type=click.IntRange(ENTRY_BYTES),
    help="The large backlog of the memory part.",
)
@click.option("--set", "extra", multiple=True, metavar="NAME=VALUE", help="A further broker setting, by its 0.7 name.")
@click.option(
    "--quick",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_quick,
    help="Two repetitions of 1,000,000 messages, 210 MB of backlog, where nothing else is said.",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write everything as JSON here.")
def main(
    repetitions: int,
    messages: int,
    processors: int,
    backlog_bytes: int,
    extra: tuple[str, ...],
    output: Path | None,
) -> None:
    """Measure the broker alone: one connection, 200-byte messages, page-cache flush policy."""
    settings: dict[str, object] = {**PAGE_CACHE_POLICY, **dict(item.partition("=")[::2] for item in extra)}
    warm_bytes = messages * ENTRY_BYTES * 5 // 4
    try:
        loadgen.build()
    except programs.CannotBuild as error:
        raise click.ClickException(str(error)) from None
    scratch = ROOT / ".tmp"
    scratch.mkdir(exist_ok=True)
    figures = [Figure(scenario) for scenario in SCENARIOS]
    for repetition in range(repetitions):
        click.echo(f"repetition {repetition + 1} of {repetitions}", err=True)
        # A broker and files of its own for each: deleting them frees the page cache for the next.
        with (
            tempfile.TemporaryDirectory(dir=scratch) as directory,
            Broker(Path(directory), processors=processors, settings=settings) as broker,
        ):
            measure(broker, figures, messages, warm_bytes)
            broker.stop()
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        memory = measure_memory(
            Path(directory), processors, settings, 10_000_000 // ENTRY_BYTES, backlog_bytes // ENTRY_BYTES
        )
    click.echo(table(figures))
    click.echo()
    click.echo(memory_table(memory))
    if output:
        report = {
            "figure": "the broker alone, one connection, messages of 200 bytes",
            "command": f"python -m perf.ceiling --repetitions {repetitions} --messages {messages}"
            f" --processors {processors} --backlog-bytes {backlog_bytes}" + "".join(f" --set {item}" for item in extra),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine.describe(scratch),
            "processors": processors,
            "settings": settings,
            "warm_up": f"{warm_bytes} bytes touched and freed before each produce run; fetches read what was written",
            "messages": messages,
            "payload_bytes": MESSAGE_BYTES,
            "entry_bytes": ENTRY_BYTES,
            "figures": [
                {**asdict(figure.scenario), "rate": figure.summary(), "runs": figure.runs} for figure in figures
            ],
            "memory_pss_bytes": memory,
            "memory_limit_bytes": MAX_PSS_BYTES,
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(report, indent=1) + "\n")
        click.echo(f"\nwritten to {output}")

"""``python -m perf.machine``: what this machine does without fastlog, every repetition and the spread."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from fastlog.perf import machine
from perf.command import EXIT_FAILED, Size, run, say
from perf.figures.results import Result, Run, Series, save
from perf.figures.text import figure, table
from perf.machine import probes
from perf.machine.probes import Probe

ROOT = Path(__file__).resolve().parents[2]
BUSY = (0, 2, 4)
SYSTEM = "machine"
WARM_UP = "as much memory as a run writes is touched and freed before; probes take turns"

Making = Callable[[Path], AbstractContextManager[Sequence[Probe]]]


@click.group()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 1000), help="How often all take turns.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write everything as JSON here.")
@click.option(
    "--scratch",
    default=ROOT / ".tmp",
    type=click.Path(file_okay=False, path_type=Path),
    help="On the disk that is meant; files lie there while they are needed.  [.tmp]",
)
@click.pass_context
def main(context: click.Context, rounds: int, out: Path | None, scratch: Path) -> None:
    """What this machine gives to programs of a few lines, without fastlog."""
    context.obj = {"rounds": rounds, "out": out, "scratch": scratch}


@main.command("disk-read")
@click.option("--bytes", "size", default="1GiB", show_default=True, type=Size(), help="Of the file.")
@click.pass_obj
def disk_read(shared: Mapping[str, Any], size: int) -> int:
    """Read a file that is not in memory: through the page cache and past it, by one thread and by several."""
    return measure("Reading from the disk", lambda directory: probes.disk_read(directory, size), **shared)


@main.command("small-writes")
@click.option("--bytes", "size", default="1GiB", show_default=True, type=Size(), help="Written in each run.")
@click.pass_obj
def small_writes(shared: Mapping[str, Any], size: int) -> int:
    """Write 1 MiB at a time, and a message set of 10.5 kB at a time, into one file and into 400 in turn."""
    return measure("Small writes", lambda directory: probes.small_writes(directory, size), **shared)


@main.command()
@click.option("--rate", default="462MB", show_default=True, type=Size(), help="Bytes a second that are written.")
@click.option("--interval-ms", default=2.0, show_default=True, type=click.FloatRange(0.05, 1000), help="Between two.")
@click.option("--seconds", default=2.5, show_default=True, type=click.FloatRange(0.01, 60), help="Of each run.")
@click.option("--busy", multiple=True, default=BUSY, show_default=True, type=click.IntRange(0, 64), help="Busy loops.")
@click.pass_obj
def flushes(shared: Mapping[str, Any], rate: int, interval_ms: float, seconds: float, busy: tuple[int, ...]) -> int:
    """Write and flush at a fixed rate, beside processes that do nothing but take the cores."""

    def make(directory: Path) -> AbstractContextManager[Sequence[Probe]]:
        loops = tuple(dict.fromkeys(busy))
        return probes.flushes(directory, rate=rate, interval_ms=interval_ms, seconds=seconds, busy=loops)

    return measure("Flushes at a fixed rate", make, **shared)


@main.command()
@click.option("--count", default=5000, show_default=True, type=click.IntRange(1), help="Sleeps of each run.")
@click.pass_obj
def sleeps(shared: Mapping[str, Any], count: int) -> int:
    """Sleep for a millisecond, again and again: how late it ends."""
    return measure("Sleeps", lambda _directory: probes.sleeps(count), **shared)


def measure(title: str, making: Making, *, rounds: int, out: Path | None, scratch: Path) -> int:
    """Let the probes take turns, print the figures, and keep them in ``out``; 1 when a probe could not be run.

    One that fails is told of and passed over from then on, as where a file system knows no direct reads.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    described = machine.describe(scratch)  # the load that was there before
    started, clock = time.gmtime(), time.monotonic()

    def result(series: tuple[Series, ...], notes: tuple[str, ...]) -> Result:
        return Result(
            title=title,
            command=shlex.join(["python", "-m", "perf.machine", *sys.argv[1:]]),
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", started),
            seconds=round(time.monotonic() - clock, 1),
            machine=described,
            settings={},
            warm_up=WARM_UP,
            series=series,
            notes=notes,
        )

    if out is not None:
        save(result((), ()), out, trial=True)
    runs: dict[str, list[Run]] = {}
    absent: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=scratch, prefix="machine-") as directory, making(Path(directory)) as found:
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for probe in found:
                if probe.name not in absent:
                    try:
                        runs.setdefault(probe.name, []).append(probe.measure())
                    except OSError as error:
                        absent[probe.name] = str(error)
                        say(f"  {probe.name}: {error}")
        series = tuple(_series(probe, runs.get(probe.name, []), absent.get(probe.name)) for probe in found)
    _show(series)
    if out is not None:
        save(result(series, tuple(f"{name} failed: {reason}" for name, reason in absent.items())), out)
        say(f"written to {out}")
    return EXIT_FAILED if absent else 0


def _series(probe: Probe, runs: Sequence[Run], absent: str | None) -> Series:
    return Series(
        scenario=probe.name,
        system=SYSTEM,
        title=probe.title,
        section="machine",
        unit=probe.unit,
        better=probe.better,
        parameters=probe.parameters,
        runs=tuple(runs),
        absent=None if runs else absent,
    )


def _show(series: Sequence[Series]) -> None:
    rows = []
    for one in series:
        found = one.summary()
        values = [figure(value, one.unit) for value in (found.median, found.low, found.high)] if found else ["–"] * 3
        rows.append((one.scenario, *values, str(len(one.runs)), one.absent or one.title))
    for line in table(("probe", "median", "low", "high", "runs", "what"), rows, right=(1, 2, 3, 4)):
        click.echo(line)


if __name__ == "__main__":
    run(main, "python -m perf.machine")

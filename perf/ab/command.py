"""``python -m perf ab``: the command line, the turns, and the judgement."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from fastlog.perf import machine
from perf.ab import instructions
from perf.ab.checkouts import Checkout, checkout
from perf.ab.steps import STEPS, Step
from perf.command import EXIT_FAILED, EXIT_INTERRUPTED, say
from perf.figures.flushing import flush_policy
from perf.figures.results import Result, Run, Series, save
from perf.figures.summary import Ratio, ratio_of_medians
from perf.figures.text import figure, table
from perf.replay.scenarios import PAGE_CACHE
from perf.replay.stage import MESSAGE_BYTES

PAIRS = 15
MESSAGES = 3_000_000
LEAST_RATIO = 0.97
MOST_INSTRUCTIONS = 1.03
SCRATCH = Path(".tmp")
WARM_UP = (
    "before each step as much memory as it writes is touched and freed; each has a broker of its own, whose files are"
    " gone afterwards; the side that goes first changes from pair to pair"
)
SIDES = ("a", "b")


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--pairs", default=PAIRS, show_default=True, type=click.IntRange(1, 1000), help="Turns of each step.")
@click.option("--messages", default=MESSAGES, show_default=True, type=click.IntRange(100), help="Of a full step.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Steps that match. May be given again.")
@click.option(
    "--no-instructions", "counts", is_flag=True, flag_value=False, default=True, help="Count none: valgrind is needed."
)
@click.option("--list", "only_list", is_flag=True, help="Show the steps, and measure nothing.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The result file.  [.tmp/ab-….json]")
@click.option(
    "--scratch",
    default=SCRATCH,
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where logs are written while they are needed, and commits are checked out.",
)
def ab(
    a: str,
    b: str,
    pairs: int,
    messages: int,
    only: tuple[str, ...],
    counts: bool,
    only_list: bool,
    out: Path | None,
    scratch: Path,
) -> int:
    """Measure checkout B against checkout A, in turns.

    A and B are directories, commits of this repository, or `baseline` (the commit in perf/baseline). Both are built
    here. A step of B is slower when, over at least 15 pairs, the whole 95 % interval of its ratio lies below 0.97;
    B costs more when a message takes more than 1.03 times the instructions in processors and flusher. The exit code is
    1 when either is so.
    """
    steps = [step for step in STEPS if not only or any(fnmatchcase(step.name, pattern) for pattern in only)]
    if not steps:
        raise click.UsageError(f"no step matches {' '.join(only)}; --list shows them")
    if only_list:
        for step in steps:
            click.echo(f"{step.name:20}{step.title}")
        return 0
    if counts and (reason := instructions.missing()):
        raise click.UsageError(f"{reason}: install it, or give --no-instructions")
    scratch.mkdir(parents=True, exist_ok=True)
    sides = {name: checkout(text, scratch) for name, text in zip(SIDES, (a, b), strict=True)}
    out = out or scratch / time.strftime("ab-%Y%m%d-%H%M%S.json", time.gmtime())
    return _Comparison(sides, steps, messages, scratch, out).run(pairs, counts)


class _Comparison:
    """Everything that was measured so far, kept in the result file after every pair."""

    def __init__(self, sides: dict[str, Checkout], steps: list[Step], messages: int, scratch: Path, out: Path) -> None:
        self._sides, self._steps, self._messages, self._scratch, self._out = sides, steps, messages, scratch, out
        self._runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
        self._counts: dict[tuple[str, str], instructions.Counts] = {}
        self._notes: list[str] = []
        self._started, self._clock = time.gmtime(), time.monotonic()
        self._machine = machine.describe(scratch)

    def run(self, pairs: int, counts: bool) -> int:
        """Measure, print and judge; the exit code."""
        try:
            for number in range(pairs):
                order = SIDES if number % 2 == 0 else SIDES[::-1]
                for step in self._steps:
                    self._pair(step, order, f"pair {number + 1} of {pairs}")
                self._save()
            if counts:
                self._count()
        except KeyboardInterrupt:
            self._notes.append("stopped by a signal before everything was measured")
            self._save()
            return EXIT_INTERRUPTED
        self._save()
        passed = self._judged()
        say(f"written to {self._out}")
        return 0 if passed else EXIT_FAILED

    def _pair(self, step: Step, order: tuple[str, ...], where: str) -> None:
        for name in order:
            self._runs[step.name, name].append(step.run(self._sides[name], self._messages, self._scratch))
        values = {name: figure(self._runs[step.name, name][-1].value, step.unit) for name in SIDES}
        say(f"{where}: {step.name:20}a {values['a']:>14}  b {values['b']:>14}")

    def _count(self) -> None:
        counted = {step.name for step in instructions.counted_steps()}
        for step in self._steps:
            if step.name in counted:
                for name in SIDES:
                    say(f"counting instructions: {step.name} of {name}")
                    self._counts[step.name, name] = instructions.count(step, self._sides[name], self._scratch)

    def _series(self) -> tuple[Series, ...]:
        return tuple(
            Series(
                scenario=step.name,
                system=name,
                title=step.title,
                section=step.section,
                unit=step.unit,
                better=step.better,
                parameters=self._parameters(step.name, name),
                runs=tuple(self._runs[step.name, name]),
                absent=None if self._runs[step.name, name] else "it was not reached",
            )
            for step in self._steps
            for name in SIDES
        )

    def _parameters(self, step: str, name: str) -> dict[str, Any]:
        found = self._counts.get((step, name))
        return {} if found is None else {"instructions_per_message": dataclasses.asdict(found)}

    def _save(self) -> None:
        save(
            Result(
                title=f"a: {self._sides['a']}, b: {self._sides['b']}",
                command=shlex.join(["python", "-m", "perf", *sys.argv[1:]]),
                started=time.strftime("%Y-%m-%dT%H:%M:%SZ", self._started),
                seconds=round(time.monotonic() - self._clock, 1),
                machine=self._machine,
                settings={
                    **{name: str(side) for name, side in self._sides.items()},
                    "processors": 2,
                    "flush_policy": flush_policy(PAGE_CACHE),
                    "messages": self._messages,
                    "payload": {"kind": "random", "seed": 1, "bytes": MESSAGE_BYTES},
                },
                warm_up=WARM_UP,
                series=self._series(),
                notes=tuple(self._notes),
            ),
            self._out,
        )

    def _judged(self) -> bool:
        """Print both tables; whether b is neither slower nor costs more."""
        rows = []
        passed = True
        for step in self._steps:
            values = {name: [run.value for run in self._runs[step.name, name]] for name in SIDES}
            ratio = speed_ratio(step, values["a"], values["b"])
            verdict = judged(ratio)
            passed = passed and verdict != SLOWER
            medians = [figure(sorted(values[name])[len(values[name]) // 2], step.unit) for name in SIDES]
            rows.append((step.name, *medians, str(ratio), str(ratio.runs), verdict))
        for line in table(("step", "a", "b", "b is as fast as a times", "pairs", ""), rows, right=(1, 2, 3, 4)):
            click.echo(line)
        more = []
        for step in self._steps:
            if (step.name, "b") not in self._counts:
                continue
            for role in ("processors", "flusher"):
                a, b = (getattr(self._counts[step.name, name], role) for name in SIDES)
                # of what is next to nothing, a ratio says nothing
                costs = b > a * MOST_INSTRUCTIONS and b - a > 1.0
                passed = passed and not costs
                ratio_text = f"{b / a:.3f}" if a > 0 else "–"
                more.append((step.name, role, f"{a:.1f}", f"{b:.1f}", ratio_text, "costs more" if costs else ""))
        if more:
            click.echo()
            heads = ("instructions per message", "of the", "a", "b", "ratio", "")
            for line in table(heads, more, right=(2, 3, 4)):
                click.echo(line)
        return passed


SLOWER = "slower"


def speed_ratio(step: Step, a: list[float], b: list[float]) -> Ratio:
    """How many times as fast b is, paired; above 1 is better for latencies, too."""
    return ratio_of_medians(b, a, paired=True) if step.better == "higher" else ratio_of_medians(a, b, paired=True)


def judged(ratio: Ratio) -> str:
    """The verdict on a ratio, for the table; empty where it is not slower."""
    if ratio.high < LEAST_RATIO:
        return SLOWER if ratio.runs >= PAIRS else f"slower, if {PAIRS} pairs say so"
    return ""

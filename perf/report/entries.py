"""The series of one file or of several, in the order and under the names in which they are shown."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perf.figures.results import CEILING, CURVE, Goal, Result, Series
from perf.figures.summary import Ratio
from perf.report.systems import look_of, rank

_REPLAY = "python -m perf replay"
_MOST_NAMES = 8
_DIGITS = re.compile(r"\d[\d.,_]*")


@dataclass(frozen=True)
class Entry:
    """One series with the file it came from; ``mark`` names that file where two have the same scenario and system."""

    series: Series
    result: Result
    mark: str = ""

    @property
    def name(self) -> str:
        """The system for readers, with the file's letter where that is needed."""
        name = look_of(self.series.system).name
        return f"{name} ({self.mark})" if self.mark else name

    @property
    def ceiling(self) -> Ratio | None:
        """How many times the ceiling of the same file it is; None for the ceiling itself."""
        if self.series.system == CEILING:
            return None
        return self.result.ratio(self.series, self.result.find(self.series.scenario, CEILING))

    @property
    def goal_value(self) -> float | None:
        """The strictest part of the goal as a value in the unit of the series; None without one."""
        goal = self.series.goal or Goal()
        found = [goal.value] if goal.value is not None else []
        for scenario, system, share in (
            (self.series.scenario, CEILING, goal.ceiling_ratio),
            (goal.of or "", self.series.system, goal.of_ratio),
        ):
            base = self.result.find(scenario, system) if share is not None else None
            spread = base.summary() if base else None
            if spread is not None and share is not None:
                found.append(spread.median * share)
        return (max if self.series.better == "higher" else min)(found, default=None)

    @property
    def family(self) -> str:
        """The scenario without its numbers: what the points of one line of a curve have in common."""
        return _DIGITS.sub("#", self.series.scenario)


def entries_of(results: Sequence[Result]) -> list[Entry]:
    """An entry for every series of every result file."""
    times = Counter((one.scenario, one.system) for result in results for one in result.series)
    return [
        Entry(one, result, mark if times[one.scenario, one.system] > 1 else "")
        for mark, result in zip(marks(len(results)), results, strict=True)
        for one in result.series
    ]


def again(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The commands that measure these entries again: a replay of just them where the file came from a replay."""
    found: dict[str, dict[str, None]] = {}
    for entry in entries:
        name = entry.series.scenario
        if entry.series.section.startswith(CURVE):
            name = _DIGITS.sub("*", name)
        found.setdefault(entry.result.command, {})[name] = None
    commands = []
    for command, names in found.items():
        patterns = list(names)
        if len(names) > _MOST_NAMES:
            same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*patterns, strict=False))
            prefix = "".join(letters[0] for letters in same)
            patterns = [f"{prefix}*"] if prefix else []
        if command.startswith(_REPLAY) and patterns:
            command = " ".join([_REPLAY, *(f"--only {shlex.quote(pattern)}" for pattern in patterns)])
        commands.append(command)
    return tuple(dict.fromkeys(commands))


def marks(count: int) -> list[str]:
    """A letter for each file: A, B, …; numbers when the letters do not suffice."""
    return [chr(ord("A") + number) if count <= 26 else str(number + 1) for number in range(count)]


def by_scenario(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The entries of each scenario, scenarios as they came, systems in their order."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.series.scenario, []).append(entry)
    return {
        name: sorted(group, key=lambda entry: (rank(entry.series.system), entry.mark)) for name, group in found.items()
    }


def by_unit(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The entries of each unit: what can stand on one axis."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.series.unit, []).append(entry)
    return found

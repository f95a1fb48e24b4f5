"""Judges two result files: for each series both have, how many times the first file's figure the second one's is.

A difference counts as shown only when the 95 % interval of the ratio of medians excludes 1 and both sides have at
least ``MIN_RUNS`` runs. The files come from different times, so runs are not paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from perf.figures.results import Better, Result, Series
from perf.figures.summary import MIN_RUNS, Ratio, Summary, ratio_of_medians

NOTHING_SHOWN = "no difference shown"
_MACHINE = ("cpu", "cpus", "memory_bytes", "kernel", "tcp_congestion_control", "c_compiler", "python")
_SETTINGS = ("processors", "flush_policy", "messages", "payload")
_OURS_TO_CHANGE = ("fastlog",)
_BUSY = 0.5
_WORDS = {"bytes": ("smaller", "larger"), "ratio": ("better", "worse")}


@dataclass(frozen=True)
class Row:
    """One scenario on one system in both files. ``a`` and ``b`` are None where a file has no runs of it.

    ``ratio``: b over a, in the unit of the series. ``speed``: the same turned so that above 1 is better.
    """

    scenario: str
    system: str
    title: str
    unit: str
    better: Better
    a: Summary | None
    b: Summary | None
    ratio: Ratio | None
    verdict: str
    note: str = ""

    @property
    def speed(self) -> Ratio | None:
        """The ratio, or its inverse where lower values are better."""
        if self.ratio is None or self.better == "higher":
            return self.ratio
        found = self.ratio
        return Ratio(1 / found.value, 1 / found.high, 1 / found.low, found.runs, found.paired)

    def is_below(self, limit: float) -> bool:
        """Whether b is shown to be worse than ``limit`` times a: the whole interval lies below, of enough runs."""
        return self.speed is not None and self.speed.runs >= MIN_RUNS and self.speed.high < limit


@dataclass(frozen=True)
class Comparison:
    """What two files have to say about each other, and why a reader should doubt it."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The comparison as plain data for JSON."""
        return {"rows": [asdict(row) for row in self.rows], "warnings": list(self.warnings)}


def compare(a: Result, b: Result) -> Comparison:
    """Judge every series that is in either file, in the order of ``b``, then what only ``a`` has."""
    rows = [_row(a.find(series.scenario, series.system), series) for series in b.series]
    rows += [_row(series, None) for series in a.series if b.find(series.scenario, series.system) is None]
    return Comparison(tuple(rows), tuple(_warnings(a, b, rows)))


def _row(a: Series | None, b: Series | None) -> Row:
    shown = b if b is not None else a
    assert shown is not None
    ours = a.summary() if a is not None else None
    theirs = b.summary() if b is not None else None

    def made(ratio: Ratio | None, verdict: str, note: str = "") -> Row:
        return Row(
            shown.scenario, shown.system, shown.title, shown.unit, shown.better, ours, theirs, ratio, verdict, note
        )

    for name, series in (("a", a), ("b", b)):
        if series is None:
            return made(None, f"not in {name}")
        if series.absent is not None:
            return made(None, f"absent in {name}", series.absent)
    assert a is not None
    assert b is not None
    if (a.unit, a.better) != (b.unit, b.better):
        return made(None, "not comparable", f"{a.unit} ({a.better}) against {b.unit} ({b.better})")
    if min(*a.values, *b.values) <= 0:
        return made(None, "not comparable", "a value is not above 0")
    ratio = ratio_of_medians(b.values, a.values)
    changed = sorted(name for name in {*a.parameters, *b.parameters} if _differ(a.parameters, b.parameters, name))
    notes = [f"other {', '.join(changed)}"] if changed else []
    if ratio.runs < MIN_RUNS:
        notes.append(f"too few runs: {len(a.runs)} and {len(b.runs)}, at least {MIN_RUNS} each")
        return made(ratio, NOTHING_SHOWN, "; ".join(notes))
    faster, slower = _WORDS.get(b.unit, ("faster", "slower"))
    verdict = NOTHING_SHOWN
    if ratio.low > 1:
        verdict = faster if b.better == "higher" else slower
    elif ratio.high < 1:
        verdict = slower if b.better == "higher" else faster
    return made(ratio, verdict, "; ".join(notes))


def _warnings(a: Result, b: Result, rows: list[Row]) -> Iterator[str]:
    for name in _MACHINE:
        if _differ(a.machine, b.machine, name):
            yield f"other machine: {name} is {a.machine.get(name)!r} in a, {b.machine.get(name)!r} in b"
    yield from _inside("file system", a.machine.get("file_system"), b.machine.get("file_system"), ())
    yield from _inside("package", a.machine.get("packages"), b.machine.get("packages"), _OURS_TO_CHANGE)
    for name in _SETTINGS:
        if _differ(a.settings, b.settings, name):
            yield f"other settings: {name} is {a.settings.get(name)!r} in a, {b.settings.get(name)!r} in b"
    if a.warm_up != b.warm_up:
        yield f"other warm-up: {a.warm_up!r} in a, {b.warm_up!r} in b"
    for name, result in (("a", a), ("b", b)):
        load, cpus = result.machine.get("load_average"), result.machine.get("cpus")
        if isinstance(load, list) and load and isinstance(cpus, int) and load[0] > _BUSY * cpus:
            yield f"{name} was measured on a busy machine: load {load[0]:.1f} on {cpus} processors when it began"
        yield from (f"{name}: {note}" for note in result.notes)
    if any(row.a and row.b and min(row.a.n, row.b.n) < MIN_RUNS for row in rows):
        yield f"series with fewer than {MIN_RUNS} runs can show no difference"


def _differ(a: Mapping[str, Any], b: Mapping[str, Any], name: str) -> bool:
    return bool(a.get(name) != b.get(name))


def _inside(what: str, a: Any, b: Any, but: tuple[str, ...]) -> Iterator[str]:
    a, b = (a if isinstance(a, dict) else {}), (b if isinstance(b, dict) else {})
    for name in sorted({*a, *b} - set(but)):
        if _differ(a, b, name):
            yield f"other {what}: {name} is {a.get(name)!r} in a, {b.get(name)!r} in b"

"""The file that measurements are kept in: JSON, schema 1.

    schema      1
    title, command, started (UTC), seconds (all of it)
    machine     what it was measured on (``machine.describe``)
    settings    what holds for every series: processors, flush policy, messages, payload
    warm_up     what was done before a run so that it can be compared
    notes       what a reader must know: series that failed half-way, a run that was interrupted
    series      one object for each (scenario, system); see ``Series``

Run i of every series belongs to round i, since scenarios take turns; therefore ratios inside one file are paired.
Medians and intervals are computed when they are shown and never stored.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from perf.figures import reading
from perf.figures.reading import ResultsError
from perf.figures.summary import Ratio, Summary, ratio_of_medians, summary

SCHEMA = 1
UNITS = ("messages/s", "ms", "s", "bytes", "MB/s", "ratio")
SECTIONS = ("producer", "consumer", "latency", "batches", "spark", "sweep", "recovery", "memory", "machine")
CURVE = "curve:"
"""Sections that begin so hold the points of one curve; each series has an ``x``."""

OURS = "fastlog"
CEILING = "ceiling"
SYSTEMS = ("fastlog", "fastlog-broker", "ceiling", "rabbitmq-classic", "rabbitmq-stream", "activemq", "kafka")
"""In the order in which they are shown: fastlog's clients and broker; its broker under a C load generator; the ceiling
(the C pair, or a source of Spark's that has nothing to do); the peers. A file may name others."""

Better = Literal["higher", "lower"]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a series has to reach; each part that is not None.

    ``value`` in the unit of the series (with ``better`` "lower": at most). ``ceiling_ratio``: of the series of the same
    scenario whose system is "ceiling". ``of_ratio``: of the scenario ``of``, same system.
    """

    value: float | None = None
    ceiling_ratio: float | None = None
    of: str | None = None
    of_ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One repetition. ``detail`` holds further numbers by name; ``timeline`` points of seconds and value."""

    value: float
    detail: Mapping[str, float] = field(default_factory=dict)
    timeline: tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Everything that was measured of one scenario on one system; ``absent`` says why there are no runs."""

    scenario: str
    system: str
    title: str
    section: str
    unit: str
    better: Better
    x: float | None = None
    x_title: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    goal: Goal | None = None
    paper: float | None = None
    runs: tuple[Run, ...] = ()
    absent: str | None = None

    @property
    def values(self) -> tuple[float, ...]:
        """The value of each run."""
        return tuple(run.value for run in self.runs)

    def summary(self) -> Summary | None:
        """The spread of the values; None without runs."""
        return summary(self.values) if self.runs else None

    def detail(self, name: str) -> tuple[float, ...]:
        """One of the further numbers, of each run that has it."""
        return tuple(run.detail[name] for run in self.runs if name in run.detail)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measurement with everything that is needed to judge it."""

    title: str
    command: str
    started: str
    seconds: float
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    warm_up: str
    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()

    def find(self, scenario: str, system: str = OURS) -> Series | None:
        """The series of one scenario on one system; None when there is none."""
        return next((one for one in self.series if one.scenario == scenario and one.system == system), None)

    def ratio(self, series: Series, to: Series | None) -> Ratio | None:
        """How many times ``to`` a series is, both of this file; None where that cannot be said."""
        if to is None or not series.runs or not to.runs or min(to.values) <= 0:
            return None
        return ratio_of_medians(series.values, to.values, paired=True)

    def goal_parts(self, series: Series) -> list[GoalPart]:
        """Each part of the goal of a series with what was reached; empty without a goal."""
        goal, found = series.goal, series.summary()
        parts: list[GoalPart] = []
        if goal is None:
            return parts
        if goal.value is not None:
            reached = found.median if found else None
            parts.append(GoalPart("value", goal.value, reached, series.better))
        if goal.ceiling_ratio is not None:
            ratio = self.ratio(series, self.find(series.scenario, CEILING))
            reached = ratio.value if ratio else None
            parts.append(GoalPart("of the ceiling", goal.ceiling_ratio, reached, "higher", ratio))
        if goal.of is not None and goal.of_ratio is not None:
            ratio = self.ratio(series, self.find(goal.of, series.system))
            reached = ratio.value if ratio else None
            parts.append(GoalPart(f"of {goal.of}", goal.of_ratio, reached, series.better, ratio))
        return parts


@dataclass(frozen=True)
class GoalPart:
    """One thing that was asked for (``what``: "value", or "of …" for a ratio); ``reached`` is None without runs.

    ``ratio`` has the interval of a ratio, by rounds; a goal is judged by the medians alone.
    """

    what: str
    wanted: float
    reached: float | None
    better: Better
    ratio: Ratio | None = field(default=None, compare=False)

    @property
    def met(self) -> bool | None:
        """Whether the median reached it; None when it was not measured."""
        if self.reached is None:
            return None
        return self.reached >= self.wanted if self.better == "higher" else self.reached <= self.wanted


def save(result: Result, path: Path, *, trial: bool = False) -> None:
    """Write a result; a file that was there is replaced as a whole or not at all.

    ``trial``: leave the file as it is, and only fail as writing would: for before what takes an hour.

    Raises:
        ResultsError: it is not one that ``load`` would take.
        OSError: it cannot be written.
    """
    document = {"schema": SCHEMA, **dataclasses.asdict(result)}
    for series in document["series"]:
        for run in series["runs"]:
            if run["timeline"] is None:
                del run["timeline"]
    read(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1, ensure_ascii=False)
            out.write("\n")
        if trial:
            part.unlink()
            return
        part.chmod(0o644)  # mkstemp makes it for the owner alone
        part.replace(path)
    except BaseException:
        part.unlink()
        raise


def load(path: Path) -> Result:
    """Read a result.

    Raises:
        ResultsError: it is none, or one of another schema; says file and place.
        OSError: it cannot be read.
    """
    with reading.named(path):
        return read(reading.document(path))


def read(document: Any) -> Result:
    """Take a file's content.

    Raises:
        ResultsError: it is no result, or one of another schema; says where.
    """
    fields = reading.mapping(document, "the file")
    if fields.get("schema") != SCHEMA:
        raise ResultsError(f"schema: {fields.get('schema')!r}, this version reads {SCHEMA}")
    result = Result(
        title=reading.text(fields, "title", ""),
        command=reading.text(fields, "command", ""),
        started=reading.text(fields, "started", ""),
        seconds=reading.number(reading.needed(fields, "seconds", ""), "seconds"),
        machine=reading.mapping(reading.needed(fields, "machine", ""), "machine"),
        settings=reading.mapping(reading.needed(fields, "settings", ""), "settings"),
        warm_up=reading.text(fields, "warm_up", ""),
        series=reading.each(reading.needed(fields, "series", ""), "series", _series),
        notes=reading.each(fields.get("notes", []), "notes", reading.line),
    )
    seen = set()
    for number, one in enumerate(result.series):
        if (one.scenario, one.system) in seen:
            raise ResultsError(f"series[{number}]: {one.scenario} on {one.system} is there twice")
        seen.add((one.scenario, one.system))
    return result


def _series(value: Any, where: str) -> Series:
    fields = reading.mapping(value, where)
    reading.known(fields, Series, where)
    section = reading.text(fields, "section", where)
    if section not in SECTIONS and not (section.startswith(CURVE) and section != CURVE):
        raise ResultsError(f"{where}.section: {section!r} is none of {', '.join(SECTIONS)}, {CURVE}<name>")
    goal = fields.get("goal")
    found = Series(
        scenario=reading.text(fields, "scenario", where),
        system=reading.text(fields, "system", where),
        title=reading.text(fields, "title", where),
        section=section,
        unit=reading.one_of(fields, "unit", UNITS, where),
        better=cast("Better", reading.one_of(fields, "better", ("higher", "lower"), where)),
        x=reading.number_or_none(fields, "x", where),
        x_title=reading.text_or_none(fields, "x_title", where),
        parameters=reading.mapping(fields.get("parameters", {}), f"{where}.parameters"),
        goal=None if goal is None else _goal(goal, f"{where}.goal"),
        paper=reading.number_or_none(fields, "paper", where),
        runs=reading.each(reading.needed(fields, "runs", where), f"{where}.runs", _run),
        absent=reading.text_or_none(fields, "absent", where),
    )
    if section.startswith(CURVE) and found.x is None:
        raise ResultsError(f"{where}.x: missing, the section is a curve")
    if found.absent is not None and found.runs:
        raise ResultsError(f"{where}: absent ({found.absent}), and has runs")
    if found.absent is None and not found.runs:
        raise ResultsError(f"{where}: no runs, and absent does not say why")
    return found


def _goal(value: Any, where: str) -> Goal:
    fields = reading.mapping(value, where)
    reading.known(fields, Goal, where)
    goal = Goal(
        value=reading.number_or_none(fields, "value", where),
        ceiling_ratio=reading.number_or_none(fields, "ceiling_ratio", where),
        of=reading.text_or_none(fields, "of", where),
        of_ratio=reading.number_or_none(fields, "of_ratio", where),
    )
    if (goal.of is None) != (goal.of_ratio is None):
        raise ResultsError(f"{where}: of and of_ratio go together")
    return goal


def _run(value: Any, where: str) -> Run:
    fields = reading.mapping(value, where)
    reading.known(fields, Run, where)
    detail = reading.mapping(fields.get("detail", {}), f"{where}.detail")
    timeline = fields.get("timeline")
    return Run(
        value=reading.number(reading.needed(fields, "value", where), f"{where}.value"),
        detail={name: reading.number(number, f"{where}.detail.{name}") for name, number in detail.items()},
        timeline=None if timeline is None else reading.each(timeline, f"{where}.timeline", _point),
    )


def _point(value: Any, where: str) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ResultsError(f"{where}: not a pair of seconds and value")
    return reading.number(value[0], where), reading.number(value[1], where)

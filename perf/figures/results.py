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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from fastlog.errors import FastlogError
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

_LARGEST = 1e300
"""No measurement comes near; sums and differences of what is beyond it are no numbers, and so no axis holds them."""

_T = TypeVar("_T")


class ResultsError(FastlogError):
    """The file is no result of a measurement that this version can read."""


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
    _result(document)
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
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # nested deeper than anything that was written here
        raise ResultsError(f"{path}: no JSON: {error}") from error
    try:
        return _result(document)
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from None


def _result(document: Any) -> Result:
    fields = _object(document, "the file")
    if fields.get("schema") != SCHEMA:
        raise ResultsError(f"schema: {fields.get('schema')!r}, this version reads {SCHEMA}")
    result = Result(
        title=_text(fields, "title", ""),
        command=_text(fields, "command", ""),
        started=_text(fields, "started", ""),
        seconds=_number(_needed(fields, "seconds", ""), "seconds"),
        machine=_object(_needed(fields, "machine", ""), "machine"),
        settings=_object(_needed(fields, "settings", ""), "settings"),
        warm_up=_text(fields, "warm_up", ""),
        series=_each(_needed(fields, "series", ""), "series", _series),
        notes=_each(fields.get("notes", []), "notes", _line),
    )
    seen = set()
    for number, one in enumerate(result.series):
        if (one.scenario, one.system) in seen:
            raise ResultsError(f"series[{number}]: {one.scenario} on {one.system} is there twice")
        seen.add((one.scenario, one.system))
    return result


def _series(value: Any, where: str) -> Series:
    fields = _object(value, where)
    _known(fields, Series, where)
    section = _text(fields, "section", where)
    if section not in SECTIONS and not (section.startswith(CURVE) and section != CURVE):
        raise ResultsError(f"{where}.section: {section!r} is none of {', '.join(SECTIONS)}, {CURVE}<name>")
    goal = fields.get("goal")
    found = Series(
        scenario=_text(fields, "scenario", where),
        system=_text(fields, "system", where),
        title=_text(fields, "title", where),
        section=section,
        unit=_one_of(fields, "unit", UNITS, where),
        better=cast("Better", _one_of(fields, "better", ("higher", "lower"), where)),
        x=_number_or_none(fields, "x", where),
        x_title=_text_or_none(fields, "x_title", where),
        parameters=_object(fields.get("parameters", {}), f"{where}.parameters"),
        goal=None if goal is None else _goal(goal, f"{where}.goal"),
        paper=_number_or_none(fields, "paper", where),
        runs=_each(_needed(fields, "runs", where), f"{where}.runs", _run),
        absent=_text_or_none(fields, "absent", where),
    )
    if section.startswith(CURVE) and found.x is None:
        raise ResultsError(f"{where}.x: missing, the section is a curve")
    if found.absent is not None and found.runs:
        raise ResultsError(f"{where}: absent ({found.absent}), and has runs")
    if found.absent is None and not found.runs:
        raise ResultsError(f"{where}: no runs, and absent does not say why")
    return found


def _goal(value: Any, where: str) -> Goal:
    fields = _object(value, where)
    _known(fields, Goal, where)
    goal = Goal(
        value=_number_or_none(fields, "value", where),
        ceiling_ratio=_number_or_none(fields, "ceiling_ratio", where),
        of=_text_or_none(fields, "of", where),
        of_ratio=_number_or_none(fields, "of_ratio", where),
    )
    if (goal.of is None) != (goal.of_ratio is None):
        raise ResultsError(f"{where}: of and of_ratio go together")
    return goal


def _run(value: Any, where: str) -> Run:
    fields = _object(value, where)
    _known(fields, Run, where)
    detail = _object(fields.get("detail", {}), f"{where}.detail")
    timeline = fields.get("timeline")
    return Run(
        value=_number(_needed(fields, "value", where), f"{where}.value"),
        detail={name: _number(number, f"{where}.detail.{name}") for name, number in detail.items()},
        timeline=None if timeline is None else _each(timeline, f"{where}.timeline", _point),
    )


def _point(value: Any, where: str) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ResultsError(f"{where}: not a pair of seconds and value")
    return _number(value[0], where), _number(value[1], where)


def _each(value: Any, where: str, read: Callable[[Any, str], _T]) -> tuple[_T, ...]:
    if not isinstance(value, list | tuple):
        raise ResultsError(f"{where}: not a list")
    return tuple(read(item, f"{where}[{number}]") for number, item in enumerate(value))


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ResultsError(f"{where}: not an object")
    return value


def _known(fields: Mapping[str, Any], kind: type, where: str) -> None:
    unknown = sorted(set(fields) - {one.name for one in dataclasses.fields(kind)})
    if unknown:
        raise ResultsError(f"{where}: unknown: {', '.join(unknown)}")


def _needed(fields: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in fields:
        raise ResultsError(f"{_place(where, name)}: missing")
    return fields[name]


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    return _line(_needed(fields, name, where), _place(where, name))


def _text_or_none(fields: Mapping[str, Any], name: str, where: str) -> str | None:
    return None if fields.get(name) is None else _line(fields[name], _place(where, name))


def _line(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ResultsError(f"{where}: {value!r} is no text")
    if any("\ud800" <= letter <= "\udfff" for letter in value):  # JSON can escape half of a pair; nothing can print it
        raise ResultsError(f"{where}: {value!r} is no text of whole characters")
    return value


def _one_of(fields: Mapping[str, Any], name: str, choices: Sequence[str], where: str) -> str:
    value = _text(fields, name, where)
    if value not in choices:
        raise ResultsError(f"{_place(where, name)}: {value!r} is none of {', '.join(choices)}")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ResultsError(f"{where}: {value!r} is no number")
    return value


def _number_or_none(fields: Mapping[str, Any], name: str, where: str) -> float | None:
    return None if fields.get(name) is None else _number(fields[name], _place(where, name))


def _place(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name

"""The goals: what was asked for, what was reached, and whether that is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perf.figures.results import CEILING, GoalPart
from perf.figures.summary import Ratio
from perf.report import numbers
from perf.report.entries import Entry
from perf.report.markup import Markup, element, join

_MOST = 2.0  # times the goal: further out bars end


def summary_line(entries: Sequence[Entry]) -> str:
    """How many goals were met, in one sentence; empty where there are none."""
    parts = [part.met for entry in entries for part in entry.result.goal_parts(entry.series)]
    if not parts:
        return ""
    said = [f"{parts.count(True)} of {len(parts)} goals met"]
    if parts.count(False):
        said.append(f"{parts.count(False)} missed")
    if parts.count(None):
        said.append(f"{parts.count(None)} not measured")
    return ", ".join(said) + "."


def table(entries: Sequence[Entry]) -> Markup | None:
    """One row for each thing that was asked for; None where nothing was."""
    bodies = [_body(entry, parts) for entry in entries if (parts := entry.result.goal_parts(entry.series))]
    if not bodies:
        return None
    heads = ("Scenario", "Goal", "Reached", "Low – high", "Of the ceiling", "Reached ÷ goal", "")
    classes = ("", "", "num", "num", "num", "", "")
    head = element(
        "tr",
        *(element("th", text, scope="col", class_=name or None) for text, name in zip(heads, classes, strict=True)),
    )
    return element("table", element("thead", head), join(bodies), class_="goals")


def wanted(entry: Entry, part: GoalPart) -> str:
    """A part of a goal in words: "≥ 4.00 M msg/s", "≥ 0.45 of the ceiling"."""
    if part.what == "value":
        return numbers.wanted(part.wanted, entry.series.unit, part.better)
    sign = "≥" if part.better == "higher" else "≤"
    goal = entry.series.goal
    base = (
        entry.result.find(goal.of, entry.series.system) if goal and goal.of and part.what == f"of {goal.of}" else None
    )
    return f"{sign} {part.wanted:g} {f'of “{base.title}”' if base else part.what}"


def _body(entry: Entry, parts: Sequence[GoalPart]) -> Markup:
    rows = []
    series, found = entry.series, entry.series.summary()
    for number, part in enumerate(parts):
        cells = []
        if number == 0:
            name = element("span", entry.name, class_="sub") if entry.mark or series.system != "fastlog" else None
            reason = element("span", f"absent: {series.absent}", class_="sub") if series.absent else None
            cells.append(element("th", series.title, name, reason, scope="rowgroup", rowspan=len(parts)))
        ratio = _ratio(entry, part)
        reached = "–"
        if part.reached is not None:
            reached = (
                numbers.quantity(part.reached, series.unit) if part.what == "value" else numbers.digits(part.reached)
            )
        spread = "–"
        if found and part.what == "value":
            spread = f"{numbers.spread(found, series.unit)} ({found.n})"
        elif ratio:
            spread = numbers.interval(ratio)
        cells += [
            element("td", wanted(entry, part), class_="wanted"),
            element("td", reached, class_="num strong"),
            element("td", spread, class_="num"),
        ]
        if number == 0:
            ceiling = entry.ceiling
            text = join([numbers.digits(ceiling.value), _small(numbers.interval(ceiling))]) if ceiling else "–"
            cells.append(element("td", text, class_="num", rowspan=len(parts)))
        cells += [element("td", _gauge(part), class_="times"), element("td", _verdict(part))]
        rows.append(element("tr", *cells))
    return element("tbody", *rows)


def _small(text: str) -> Markup:
    return element("span", text, class_="sub")


def _ratio(entry: Entry, part: GoalPart) -> Ratio | None:
    goal = entry.series.goal
    if part.what == "value" or goal is None:
        return None
    if part.what == "of the ceiling":
        return entry.result.ratio(entry.series, entry.result.find(entry.series.scenario, CEILING))
    return entry.result.ratio(entry.series, entry.result.find(goal.of or "", entry.series.system))


def _verdict(part: GoalPart) -> Markup:
    if part.met is None:
        return element("span", "not measured", class_="verdict none")
    word, sign, name = ("met", "✓", "met") if part.met else ("missed", "✗", "missed")
    return element("span", f"{sign} {word}", class_=f"verdict {name}")


def _gauge(part: GoalPart) -> Markup | None:
    """A bar from the goal's line outwards: to the right when it was met, to the left when it was missed."""
    if part.reached is None:
        return None
    times = _times(part)
    end = 50 + 50 * math.log(min(max(times, 1 / _MOST), _MOST), _MOST)
    place = f"left: {min(end, 50):.1f}%; width: {abs(end - 50):.1f}%"
    bar = element("span", class_="met" if part.met else "missed", style=place)
    return join([element("span", bar, class_="gauge"), f" ×\u2009{numbers.digits(times)}"])


def _times(part: GoalPart) -> float:
    """How many times as good as wanted: above 1 is better, whichever direction that is."""
    reached = part.reached or 0.0
    over, under = (reached, part.wanted) if part.better == "higher" else (part.wanted, reached)
    if under <= 0:
        return _MOST if part.met else 0.0
    return over / under

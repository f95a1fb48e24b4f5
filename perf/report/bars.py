"""Bars with every repetition as a dot: what was reached, by whom, and what was asked for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from perf.figures.results import OURS, Better
from perf.figures.summary import Summary
from perf.report import numbers
from perf.report.canvas import LINE_HEIGHT, SMALL, TEXT, Canvas
from perf.report.markup import Markup
from perf.report.scales import Scale, fitted, scale_for, text_width, wrapped
from perf.report.systems import class_of, look_of

_LABELS = 176.0  # wide drawings have the names in a column left of the plot and the values in one right of it
_VALUES = 178.0


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One system: its repetitions, or why there are none; a published figure is one value without a spread."""

    name: str
    system: str
    values: tuple[float, ...] = ()
    found: Summary | None = None
    goal: float | None = None
    absent: str | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """What is compared with each other: one scenario."""

    title: str
    better: Better
    bars: Sequence[Bar]


def draw(groups: Sequence[Group], unit: str, width: float, key: str, title: str) -> Markup:
    """Draw the groups one below the other on one common axis; logarithmic when the values are far apart."""
    canvas = Canvas(width)
    left, right = (2.0, width - 10.0) if canvas.narrow else (_LABELS, width - _VALUES)
    scale = scale_for(_all_values(groups), left, right)
    heights = _heights(groups, canvas)
    both = sum(heights) > 500
    top = 20.0 if both else 4.0
    bottom = top + sum(heights)
    canvas.grid(scale, _labels(scale, unit), top, bottom, both=both)
    y = top
    spreads = max((text_width(_spread(bar, unit), SMALL) for group in groups for bar in group.bars), default=0.0)
    for group, height in zip(groups, heights, strict=True):
        _group(canvas, group, scale, y, unit, canvas.width - spreads - (10 if spreads else 0))
        y += height
    kind = "logarithmic axis" if scale.log else "linear axis from 0"
    canvas.text(left, bottom + 2 * LINE_HEIGHT + 3, f"{numbers.unit_title(unit)}, {kind}", "a")
    return canvas.svg(bottom + 2 * LINE_HEIGHT + 10, key, title, description(groups, unit))


def description(groups: Sequence[Group], unit: str) -> str:
    """What the plot says, in words."""
    said = []
    for group in groups:
        rows = [
            f"{bar.name} {numbers.quantity(bar.found.median, unit)}" if bar.found else f"{bar.name} not measured"
            for bar in group.bars
        ]
        said.append(f"{group.title}: {', '.join(rows)}.")
    return " ".join(said)


def _all_values(groups: Sequence[Group]) -> list[float]:
    bars = [bar for group in groups for bar in group.bars]
    return [value for bar in bars for value in (*bar.values, *((bar.goal,) if bar.goal is not None else ()))]


def _labels(scale: Scale, unit: str) -> list[tuple[float, str]]:
    """As many ticks as fit beside each other."""
    for most in range(9, 1, -1):
        found = [(value, numbers.tick(value, unit)) for value in scale.ticks(most)]
        places = [(scale(value), text_width(label, SMALL) / 2 + 5) for value, label in found]
        if all(a + half <= b - other for (a, half), (b, other) in itertools.pairwise(places)):
            return found
    return found[:1]


def _heights(groups: Sequence[Group], canvas: Canvas) -> list[float]:
    heights = []
    for group in groups:
        heading = len(_heading(group, canvas)) * LINE_HEIGHT + 14
        heights.append(heading + sum(_bar_height(bar, canvas) for bar in group.bars))
    return heights


def _heading(group: Group, canvas: Canvas) -> list[str]:
    return wrapped(group.title, canvas.width - 4, TEXT * 1.08, 2)


def _bar_height(bar: Bar, canvas: Canvas) -> float:
    if not canvas.narrow:
        return 21.0 if bar.found else max(21.0, LINE_HEIGHT * len(_reason(bar, canvas)) + 7)
    return 36.0 if bar.found else LINE_HEIGHT * (1 + len(_reason(bar, canvas))) + 7


def _reason(bar: Bar, canvas: Canvas) -> list[str]:
    width = canvas.width - 8 if canvas.narrow else canvas.width - _LABELS
    return wrapped(f"absent: {bar.absent or 'no reason given'}", width, TEXT, 2)


def _group(canvas: Canvas, group: Group, scale: Scale, y: float, unit: str, medians: float) -> None:
    heading = _heading(group, canvas)
    y += 10
    for row in heading:
        canvas.text(0, y + 9, row, "h", full=group.title)
        y += LINE_HEIGHT
    y += 4
    for bar in group.bars:
        height = _bar_height(bar, canvas)
        _bar(canvas, bar, scale, y, height, unit, medians)
        y += height


def _bar(canvas: Canvas, bar: Bar, scale: Scale, y: float, height: float, unit: str, medians: float) -> None:
    middle = y + (24.0 if canvas.narrow else height / 2)
    base = y + 12 if canvas.narrow else middle + 4
    if bar.found is None:
        name_width = canvas.width if canvas.narrow else _LABELS - 8
        canvas.text(0, base, fitted(bar.name, name_width, TEXT), "t muted", full=bar.name)
        x, row_y = (0.0, base + LINE_HEIGHT) if canvas.narrow else (_LABELS, y + LINE_HEIGHT)
        for number, row in enumerate(_reason(bar, canvas)):
            canvas.text(x, row_y + number * LINE_HEIGHT, row, "n", full=bar.absent)
        return
    _value(canvas, bar, bar.found, base, unit, medians)
    look, colour = look_of(bar.system), class_of(bar.system)
    median = scale(bar.found.median)
    if scale.log:
        canvas.line(scale.start, middle, scale(bar.found.low), middle, f"leader {colour}")
    else:
        zero = scale(0)
        canvas.rect(min(zero, median), middle - 5, abs(median - zero), 10, f"bar {colour}")
    if bar.goal is not None:
        goal = scale(bar.goal)
        canvas.line(goal, middle - 9, goal, middle + 9, "goal")
    if len(bar.values) > 1:
        canvas.line(median, middle - 7, median, middle + 7, f"median {colour}")
    for number, value in enumerate(bar.values, 1):
        told = f"{bar.name}, repetition {number}: {numbers.quantity(value, unit)}"
        canvas.point(scale(value), middle, look.shape, colour, title=told)


def _value(canvas: Canvas, bar: Bar, found: Summary, base: float, unit: str, medians: float) -> None:
    """Name on the left; the median ends at ``medians``, and right of it stand the outermost values."""
    value = numbers.quantity(found.median, unit)
    room = medians - text_width(value, TEXT) - 8 if canvas.narrow else _LABELS - 8
    canvas.text(0, base, fitted(bar.name, room, TEXT), "t strong" if bar.system == OURS else "t", full=bar.name)
    canvas.text(medians, base, value, "v", anchor="end")
    canvas.text(canvas.width, base, _spread(bar, unit), "a", anchor="end")


def _spread(bar: Bar, unit: str) -> str:
    return numbers.spread(bar.found, unit) if bar.found and bar.found.n > 1 else ""

"""Bars with every repetition as a dot: what was reached, by whom, and what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perf.figures.results import OURS, Better
from perf.figures.summary import Summary
from perf.report import drawing, numbers
from perf.report.drawing import INK, LINE_HEIGHT, QUIET, SMALL, TEXT
from perf.report.systems import look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 21.0  # pixels of a bar
_NAME, _HEADING, _REASON = 26, 74, 74  # letters in a line
_MEDIAN, _SPREAD = 92.0, 102.0  # pixels right of the axes: where the one ends and the other begins
_TALL = 500.0  # with the labels of its axis above as well


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
    unit: str
    better: Better
    bars: Sequence[Bar]


def figure(groups: Sequence[Group], *, alone: bool = False) -> Figure:
    """Draw the groups one below the other on one common axis; logarithmic when the values are far apart.

    ``alone``: each group by itself, as shares of its longest bar; its unit may be another.
    """
    unit = groups[0].unit
    heights = [_height(group) for group in groups]
    values = [value for group in groups for bar in group.bars for value in _values(bar)]
    with drawing.figure(sum(heights) + 56) as (made, axes):
        log = drawing.axis(axes, "x", [0.0, 1.0] if alone else values, "" if alone else unit)
        axes.grid(visible=False, axis="y")
        axes.tick_params(length=0, labelbottom=not alone, labeltop=sum(heights) > _TALL and not alone)
        kind = "logarithmic axis" if log else "linear axis from 0"
        axes.set_xlabel("" if alone else f"{numbers.unit_title(unit)}, {kind}", loc="left")
        axes.set_ylim(sum(heights), 0)
        names: dict[float, Bar] = {}
        y = 0.0
        for group, height in zip(groups, heights, strict=True):
            longest = max((abs(value) for bar in group.bars for value in _values(bar)), default=0.0)
            names |= _group(axes, group, y, longest or 1.0 if alone else 1.0, log=log)
            y += height
        axes.set_yticks(list(names), ["\n".join(drawing.rows_of(bar.name, _NAME, 1)) for bar in names.values()])
        for label, bar in zip(axes.get_yticklabels(), names.values(), strict=True):
            label.set(size=TEXT, color=INK if bar.found else QUIET, weight="bold" if bar.system == OURS else "normal")
    return made


def description(groups: Sequence[Group]) -> str:
    """The bars as a sentence, for those who do not see the plot."""
    said = []
    for group in groups:
        rows = [
            f"{bar.name} {numbers.quantity(bar.found.median, group.unit)}" if bar.found else f"{bar.name} not measured"
            for bar in group.bars
        ]
        said.append(f"{group.title}: {', '.join(rows)}.")
    return " ".join(said)


def _values(bar: Bar) -> list[float]:
    return [*bar.values, *([bar.goal] if bar.goal is not None else [])]


def _reason(bar: Bar) -> list[str]:
    return drawing.rows_of(f"absent: {bar.absent or 'no reason given'}", _REASON, 2)


def _bar_height(bar: Bar) -> float:
    return _ROW if bar.found else max(_ROW, LINE_HEIGHT * len(_reason(bar)) + 6)


def _height(group: Group) -> float:
    heading = LINE_HEIGHT * len(drawing.rows_of(group.title, _HEADING, 2)) + 13
    return heading + sum(map(_bar_height, group.bars))


def _group(axes: Axes, group: Group, y: float, one: float, *, log: bool) -> dict[float, Bar]:
    """Draw a group from ``y`` down, its values in units of ``one``; return where its bars' names belong."""
    heading = drawing.rows_of(group.title, _HEADING, 2)
    _beside(axes, "\n".join(heading), (0, y + 10), 0, va="top", weight="bold", size=TEXT + 1)
    y += LINE_HEIGHT * len(heading) + 13
    found: dict[float, Bar] = {}
    for bar in group.bars:
        height = _bar_height(bar)
        middle = y + height / 2
        if bar.found is None:
            _beside(axes, "\n".join(_reason(bar)), (0, middle), 4, style="italic", color=QUIET, size=SMALL)
        else:
            _bar(axes, bar, bar.found, middle, group.unit, one, log=log)
        found[middle] = bar
        y += height
    return found


def _bar(axes: Axes, bar: Bar, found: Summary, y: float, unit: str, one: float, *, log: bool) -> None:
    colour = look_of(bar.system).light
    median, low = drawing.placed([found.median / one, found.low / one])
    if log:
        axes.hlines(y, axes.get_xlim()[0], low, color=colour, alpha=0.55, linestyle=(0, (1, 3)), linewidth=1)
    else:
        axes.barh(y, median, 10, color=colour, alpha=0.26)
    if bar.goal is not None:
        goal = drawing.placed([bar.goal / one])
        axes.plot(goal * 2, [y - 9, y + 9], color=INK, linewidth=1.6, linestyle=(0, (2, 1.5)))
    if len(bar.values) > 1:
        axes.plot([median] * 2, [y - 7, y + 7], color=colour, linewidth=2.2)
    values = drawing.placed([value / one for value in bar.values])
    (dots,) = axes.plot(values, [y] * len(values), **drawing.mark(bar.system))
    told = enumerate(bar.values, 1)
    drawing.explain(dots, [f"{bar.name}, repetition {n}: {numbers.quantity(value, unit)}" for n, value in told])
    _beside(axes, numbers.quantity(found.median, unit), (1, y), _MEDIAN, ha="right", weight="bold")
    if found.n > 1:
        _beside(axes, numbers.spread(found, unit), (1, y), _SPREAD, color=QUIET, size=SMALL)


def _beside(axes: Axes, text: str, place: tuple[float, float], right: float, **style: Any) -> None:
    """Write at a share of the axes' width and at a row, so many pixels right of there."""
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, place, xytext=(right, 0), annotation_clip=False, **{**where, **style})

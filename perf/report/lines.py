"""Lines with every repetition as a dot: a value over time, over size, over percentiles; named beside the plot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perf.report import drawing, numbers
from perf.report.drawing import LINE_HEIGHT, QUIET, SMALL
from perf.report.systems import look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_POINTS = 240  # of one line; more than that are not seen at this width
_NAME, _NAME_ROWS, _TITLE = 26, 3, 90  # letters in a row beside the plot, and in the title of an axis
_DASHES = ("solid", (0, (4, 2)), (0, (1, 2)), (0, (5, 1.5, 1, 1.5)), (0, (7, 2)), (0, (3, 1.5, 1, 1.5, 1, 1.5)))

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line. ``points``: what it goes through; ``dots``: single repetitions; ``ghosts``: lines of repetitions.

    ``variant`` tells lines of one system apart (0 is drawn whole, others dashed). A line of one point is a mark, a
    ``level`` one goes all the way across.
    """

    name: str
    system: str
    points: Sequence[Point] = ()
    dots: Sequence[Point] = ()
    ghosts: Sequence[Sequence[Point]] = ()
    variant: int = 0
    marks: bool = True
    level: float | None = None

    @property
    def places(self) -> list[Point]:
        """Everything that has to be on the plot."""
        return [*self.points, *self.dots, *itertools.chain(*self.ghosts)]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What the axes say; ``x_ticks`` fixes them where values are no plain numbers. ``x_marks``: values to write
    instead of round ones. ``x_from_zero``: linear, from 0, whatever the values."""

    x_title: str
    y_unit: str
    y_title: str
    x_unit: str = ""
    x_ticks: Sequence[tuple[float, str]] | None = None
    x_marks: Sequence[float] = ()
    x_from_zero: bool = False


def figure(lines: Sequence[Line], labels: Labels) -> Figure:
    """Draw the lines on common axes; an axis is logarithmic when its values are far apart."""
    names = [drawing.rows_of(line.name, _NAME, _NAME_ROWS) for line in lines]
    tall = sum(LINE_HEIGHT * len(rows) + 6 for rows in names)
    with drawing.figure(max(300.0, tall + 40)) as (made, axes):
        levels = [line.level for line in lines if line.level is not None]
        y_log = drawing.axis(axes, "y", [*levels, *(y for line in lines for _, y in line.places)], labels.y_unit)
        xs = [x for line in lines for x, _ in line.places]
        if labels.x_ticks is not None:
            xs = [x for x, _ in labels.x_ticks]
            room = (max(xs) - min(xs)) / 40 or 1.0
            axes.set_xlim(min(xs) - room, max(xs) + room)
        x_log = labels.x_ticks is None and drawing.axis(
            axes, "x", [0.0, *xs] if labels.x_from_zero else xs, labels.x_unit, zero=labels.x_from_zero
        )
        written = labels.x_ticks or [(x, numbers.tick(x, labels.x_unit)) for x in sorted(set(labels.x_marks))]
        if written:
            drawing.marks(axes, written, log=x_log)
        axes.grid(visible=False, axis="x")
        axes.set_title(_axis_title(labels.y_title, y_log), loc="left", size=SMALL, color=QUIET)
        axes.set_xlabel(_axis_title(labels.x_title, x_log), loc="left")
        for line, rows in zip(lines, names, strict=True):
            _line(axes, line, "\n".join(rows), labels)
        if lines:
            made.legend(loc="outside right upper", labelcolor="linecolor", handlelength=2.6)
    return made


def description(lines: Sequence[Line], labels: Labels) -> str:
    """The lines as a sentence, for those who do not see the plot."""
    told: Callable[[float], str] = lambda value: numbers.quantity(value, labels.y_unit)  # noqa: E731
    said = []
    for line in lines:
        if line.level is not None:
            said.append(f"{line.name}: {told(line.level)}.")
        elif line.points:
            ys = [y for _, y in line.points]
            between = f"between {told(min(ys))} and {told(max(ys))}"
            said.append(f"{line.name}: from {told(ys[0])} to {told(ys[-1])}, {between}.")
    return f"{labels.y_title} against {labels.x_title}. " + " ".join(said)


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most as many points as can be seen: neighbours are put together as their mean."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    size = -(-len(points) // _MOST_POINTS)
    found = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        found.append((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)))
    return found


def _axis_title(title: str, log: bool) -> str:
    return drawing.rows_of(f"{title}{', logarithmic' if log else ''}", _TITLE, 1)[0]


def _line(axes: Axes, line: Line, name: str, labels: Labels) -> None:
    look = look_of(line.system)
    dashes = _DASHES[line.variant % len(_DASHES)]
    if line.level is not None:
        axes.axhline(*drawing.placed([line.level]), color=look.light, linewidth=1.8, linestyle=(0, (1, 3)), label=name)
        return
    for ghost in line.ghosts:
        axes.plot(*_columns(thinned(ghost)), color=look.light, linewidth=1, alpha=0.28)
    axes.plot(*_columns(line.dots), color=look.light, linestyle="none", marker="o", markersize=3.4, alpha=0.5, mew=0)
    shown = line.marks or len(line.points) == 1
    points = line.points if shown else thinned(line.points)
    mark = drawing.mark(line.system) if shown else {"color": look.light}
    (drawn,) = axes.plot(*_columns(points), **{**mark, "linestyle": dashes}, linewidth=1.9, label=name)
    if shown:
        told = [(numbers.short(x, labels.x_unit), numbers.quantity(y, labels.y_unit)) for x, y in points]
        drawing.explain(drawn, [f"{line.name}, {x}: {y}" for x, y in told])


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return drawing.placed([x for x, _ in points]), drawing.placed([y for _, y in points])

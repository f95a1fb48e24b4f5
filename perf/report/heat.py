"""A table of small squares: how a value depends on many settings at once. The darker, the better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.patches import Rectangle

from perf.figures.results import OURS, Better
from perf.report import drawing, numbers
from perf.report.drawing import INK, LINE_HEIGHT, QUIET, SMALL
from perf.report.systems import look_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELL = 20.0
_FAINT, _STRONG = 0.04, 0.58
"""Opacity of the worst square and of the best, on which letters can still be read."""
_LETTERS = 90  # in a line of squares


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One measured quantity for each (row, column); places that were not measured are left out."""

    title: str
    unit: str
    better: Better
    cells: Mapping[tuple[int, int], float]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The settings that the rows and the columns differ in, and their values in words; ``chosen`` cells get a frame."""

    down: Sequence[str]
    rows: Sequence[Sequence[str]]
    across: Sequence[str]
    columns: Sequence[Sequence[str]]
    chosen: Set[tuple[int, int]] = frozenset()


def figure(panel: Panel, grid: Grid) -> Figure:
    """Draw a panel on its grid: the values of settings that go down are left of it, of those across above it."""
    rows, columns = len(grid.rows), max(len(grid.columns), 1)
    letters = max(3, _LETTERS // columns)
    colour = look_of(OURS).light
    gap, line = columns / drawing.WIDTH, 1 / _CELL  # a pixel
    with drawing.figure(rows * _CELL + LINE_HEIGHT * len(grid.across) + 34) as (made, axes):
        axes.set(xlim=(0, columns), ylim=(rows, 0))
        axes.grid(visible=False)
        axes.tick_params(length=0, labelbottom=False, labeltop=True)
        axes.spines[:].set_visible(False)
        axes.set_xticks([place + 0.5 for place in range(columns)], ["\n".join(_cut(c, letters)) for c in grid.columns])
        axes.set_yticks([place + 0.5 for place in range(rows)], [" · ".join(_cut(row, 16)) for row in grid.rows])
        names = "\n".join([*(f"{name} →" for name in _cut(grid.across, 24)), f"{' · '.join(_cut(grid.down, 24))} ↓"])
        axes.annotate(
            names, (0, 1), xytext=(-6, 4), xycoords="axes fraction", textcoords="offset points", ha="right",
            size=SMALL, color=QUIET,
        )  # fmt: skip
        for (row, column), value in panel.cells.items():
            told = f"{', '.join(_told(grid, row, column))}: {numbers.quantity(value, panel.unit)}"
            opacity = _FAINT + (_STRONG - _FAINT) * _share(value, panel)
            square = Rectangle((column, row), 1 - gap, 1 - line, facecolor=colour, alpha=opacity, linewidth=0)
            drawing.explain(axes.add_patch(square), [told])
        for row in range(rows):
            for column in range(columns):
                text = _written(panel.cells.get((row, column)), panel.unit, letters)
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center_baseline", size=SMALL)
        for row, column in sorted(grid.chosen & panel.cells.keys()):
            frame = Rectangle((column + gap, row + line), 1 - 3 * gap, 1 - 3 * line, fill=False, edgecolor=INK)
            axes.add_patch(frame).set_linewidth(2)
    return made


def description(panel: Panel, grid: Grid) -> str:
    """The grid as a sentence, for those who do not see the plot."""
    best = (max if panel.better == "higher" else min)(panel.cells.values(), default=math.nan)
    size = f"{len(grid.rows)} by {len(grid.columns)} settings"
    return f"{panel.title} for {size}; the best is {numbers.quantity(best, panel.unit)}."


def _cut(texts: Sequence[str], letters: int) -> list[str]:
    return [drawing.rows_of(text, letters, 1)[0] for text in texts]


def _told(grid: Grid, row: int, column: int) -> list[str]:
    values = (*grid.rows[row], *grid.columns[column])
    return [f"{name} {value}" for name, value in zip((*grid.down, *grid.across), values, strict=True)]


def _written(value: float | None, unit: str, letters: int) -> str:
    """A value in its square, with two digits that count where three have no room."""
    text = "–" if value is None else numbers.short(value, unit)
    return text if value is None or len(text) <= letters else numbers.tick(float(f"{value:.2g}"), unit)


def _share(value: float, panel: Panel) -> float:
    """From 0, the worst, to 1, by place between the extremes; by magnitude when they are far apart."""
    low, high = min(panel.cells.values()), max(panel.cells.values())
    if low == high:
        return 1.0
    if low > 0 and high / drawing.FAR_APART > low:
        low, high, value = math.log10(low), math.log10(high), math.log10(value)
    share = (value / 2 - low / 2) / (high / 2 - low / 2)
    return share if panel.better == "higher" else 1 - share

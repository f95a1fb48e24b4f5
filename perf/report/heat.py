"""A table of small squares: how a value depends on many settings at once. The darker, the better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from perf.figures.results import Better
from perf.report import numbers
from perf.report.canvas import LINE_HEIGHT, SMALL, Canvas
from perf.report.markup import Markup
from perf.report.scales import fitted, text_width

_CELL = 20.0
SHADES = 8


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


def draw(panel: Panel, grid: Grid, width: float, key: str, title: str) -> Markup:
    """Draw a panel on its grid: settings that go down have a column of values, those that go across a line of them."""
    canvas = Canvas(width)
    edges, left = _edges(grid, canvas)
    cell = (width - left - 1) / max(len(grid.columns), 1)
    top = LINE_HEIGHT * (len(grid.across) + 1) + 8
    for number, name in enumerate(grid.across):
        y = 11 + number * LINE_HEIGHT
        canvas.text(left - 8, y, fitted(name, left - 8, SMALL), "a", anchor="end", full=name)
        for place, column in enumerate(grid.columns):
            text = fitted(column[number], cell - 2, SMALL)
            canvas.text(left + (place + 0.5) * cell, y, text, "a", anchor="middle", full=column[number])
    for name, edge in zip(grid.down, edges, strict=True):
        canvas.text(edge, top - 6, name, "a", anchor="end")
    shade = _shades(panel)
    before: Sequence[str] = ()
    for number, row in enumerate(grid.rows):
        y = top + number * _CELL
        for place, (text, edge) in enumerate(zip(row, edges, strict=True)):
            if row[: place + 1] != before[: place + 1]:  # a value that goes on is not written again
                canvas.text(edge, y + 14, text, "a", anchor="end")
        before = row
        for place, column in enumerate(grid.columns):
            x, value = left + place * cell, panel.cells.get((number, place))
            if value is None:
                canvas.text(x + cell / 2, y + 14, "–", "a", anchor="middle")
                continue
            names = zip((*grid.down, *grid.across), (*row, *column), strict=True)
            told = f"{', '.join(f'{name} {text}' for name, text in names)}: {numbers.quantity(value, panel.unit)}"
            canvas.rect(x + 0.5, y + 0.5, cell - 1, _CELL - 1, f"heat q{shade(value)}", told)
            text = numbers.short(value, panel.unit)
            shown = text if text_width(text, SMALL) <= cell - 1 else numbers.tick(float(f"{value:.2g}"), panel.unit)
            canvas.text(x + cell / 2, y + 14, shown, f"hv q{shade(value)}", anchor="middle")
    for number, place in sorted(grid.chosen & panel.cells.keys()):
        canvas.rect(left + place * cell + 1, top + number * _CELL + 1, cell - 2, _CELL - 2, "chosen")
    best = (max if panel.better == "higher" else min)(panel.cells.values(), default=math.nan)
    size = f"{len(grid.rows)} by {len(grid.columns)} settings"
    said = f"{panel.title} for {size}; the best is {numbers.quantity(best, panel.unit)}."
    return canvas.svg(top + len(grid.rows) * _CELL + 2, key, title, said)


def _edges(grid: Grid, canvas: Canvas) -> tuple[list[float], float]:
    """Where each column of row values ends, and where the squares begin."""
    edges, x = [], 0.0
    for place, name in enumerate(grid.down):
        x += max(text_width(text, SMALL) for text in (name, *(row[place] for row in grid.rows)))
        edges.append(x)
        x += 6.0 if canvas.narrow else 12.0
    names = max((text_width(name, SMALL) + 8 for name in grid.across), default=0.0)
    left = max(x, min(names, canvas.width * 0.3))
    return [edge + left - x for edge in edges], left


def _shades(panel: Panel) -> Callable[[float], int]:
    """Map a value to its shade, 0 the worst, by place between the extremes; by magnitude when they are far apart."""
    values = list(panel.cells.values())
    log = bool(values) and min(values) > 0 and max(values) / min(values) > 20

    def level(value: float) -> float:
        return math.log10(value) if log else value

    low, high = (level(min(values)), level(max(values))) if values else (0.0, 1.0)

    def shade(value: float) -> int:
        share = (level(value) / 2 - low / 2) / (high / 2 - low / 2) if high > low else 1.0
        return round((share if panel.better == "higher" else 1 - share) * (SHADES - 1))

    return shade

"""A table of small squares: how a value depends on many settings at once. The darker, the better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fastlog.perf.report import numbers
from fastlog.perf.report.canvas import LINE_HEIGHT, SMALL, Canvas
from fastlog.perf.report.markup import Markup
from fastlog.perf.report.scales import fitted, text_width, wrapped
from fastlog.perf.results import Better

_CELL = 20.0
SHADES = 8


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One measured quantity for each (row, column); places that were not measured are left out."""

    title: str
    unit: str
    better: Better
    cells: Mapping[tuple[int, int], float]


def draw(
    panel: Panel,
    rows: Sequence[str],
    columns: Sequence[Sequence[str]],
    chosen: set[tuple[int, int]],
    width: float,
    key: str,
    title: str,
) -> Markup:
    """Draw a panel; a column's name is one line for each of its settings; ``chosen`` cells get a frame."""
    canvas = Canvas(width)
    left = min(max((text_width(row, SMALL) for row in rows), default=0) + 10, width * (0.3 if canvas.narrow else 0.25))
    cell = (width - left - 1) / max(len(columns), 1)
    heads = [[line for part in column for line in wrapped(part, cell - 4, SMALL, 2)] for column in columns]
    top = LINE_HEIGHT * max((len(head) for head in heads), default=0) + 6
    for number, (column, head) in enumerate(zip(columns, heads, strict=True)):
        for line, text in enumerate(head):
            y = top - 6 - LINE_HEIGHT * (len(head) - 1 - line)
            canvas.text(left + (number + 0.5) * cell, y, text, "a", anchor="middle", full=", ".join(column))
    shade = _shades(panel)
    for number, row in enumerate(rows):
        y = top + number * _CELL
        canvas.text(left - 8, y + 14, fitted(row, left - 8, SMALL), "a", anchor="end", full=row)
        for place in range(len(columns)):
            x = left + place * cell
            value = panel.cells.get((number, place))
            if value is None:
                canvas.text(x + cell / 2, y + 14, "–", "a", anchor="middle")
                continue
            told = f"{row}; {', '.join(columns[place])}: {numbers.quantity(value, panel.unit)}"
            canvas.rect(x + 0.5, y + 0.5, cell - 1, _CELL - 1, f"heat q{shade(value)}", told)
            text = fitted(numbers.short(value, panel.unit), cell - 2, SMALL)
            canvas.text(x + cell / 2, y + 14, text, f"hv q{shade(value)}", anchor="middle")
    for number, place in sorted(chosen & panel.cells.keys()):
        canvas.rect(left + place * cell + 1, top + number * _CELL + 1, cell - 2, _CELL - 2, "chosen")
    best = (max if panel.better == "higher" else min)(panel.cells.values(), default=math.nan)
    said = (
        f"{panel.title} for {len(rows)} by {len(columns)} settings; the best is {numbers.quantity(best, panel.unit)}."
    )
    return canvas.svg(top + len(rows) * _CELL + 2, key, title, said)


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

"""Figures the way people read them: values with their unit, and tables with aligned columns."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_PER_UNIT = {"messages/s": "msg/s", "bytes": "B"}


def figure(value: float, unit: str) -> str:
    """A value with its unit in three significant digits or so: ``4.12 Mmsg/s``, ``38.5 MB``, ``0.412 ms``."""
    if unit in _PER_UNIT:
        for step, prefix in _STEPS:
            if abs(value) >= step:
                return f"{_digits(value / step)} {prefix}{_PER_UNIT[unit]}"
        return f"{_digits(value)} {_PER_UNIT[unit]}"
    return _digits(value) if unit == "ratio" else f"{_digits(value)} {unit}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lines with aligned columns; those in ``right`` are aligned at their end."""
    cells = [list(header), *map(list, rows)]
    widths = [max(_width(line[column]) for line in cells) for column in range(len(header))]
    lines = []
    for line in cells:
        padded = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            space = " " * (width - _width(cell))
            padded.append(space + cell if column in right else cell + space)
        lines.append("  ".join(padded).rstrip())
    return lines


def _digits(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)

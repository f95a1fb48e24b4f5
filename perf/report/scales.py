"""Where values go on an axis, which of them are written beside it, and how wide a text will be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LOG_SPAN = 20.0
"""Values further apart than this many times get a logarithmic axis: on a linear one the smallest is not seen."""

_LEAST, _MOST = 1e-300, 1e300  # beyond them powers of ten are no numbers any more

# Helvetica's advance widths in thousandths of the font size; Arial and Liberation Sans have the same.
_WIDTHS = {
    character: width
    for width, characters in {
        222: "ijl'\u202f",
        278: " !,./:;[]\\ft|I\u00a0·",
        333: "()-r`{}",
        389: '*"^',
        500: "ckscvxyzJ",
        584: "+<=>~≥≤×±−",
        611: "FTZ",
        667: "ABEKPSVXY&",
        722: "CDHNRUw",
        778: "GOQ",
        833: "mM",
        944: "W%",
        1000: "—…@",
    }.items()
    for character in characters
}
_SAFETY = 1.06  # other fonts are wider, and a gap looks better than two labels that touch


def text_width(text: str, size: float) -> float:
    """About how wide a text is, rather too wide than too narrow."""
    wide = sum(_WIDTHS.get(character, 556 if ord(character) < 0x1100 else 1000) for character in text)
    return wide * size / 1000 * _SAFETY


def fitted(text: str, width: float, size: float) -> str:
    """The text, cut and ended with an ellipsis where it is wider than ``width``."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def wrapped(text: str, width: float, size: float, lines: int) -> list[str]:
    """The text in at most ``lines`` lines, broken between words where that is possible; the last one may be cut."""
    rows: list[str] = []
    words = text.split()
    while words and len(rows) < lines:
        if len(rows) == lines - 1:
            rows.append(fitted(" ".join(words), width, size))
            break
        row = words.pop(0)
        while words and text_width(f"{row} {words[0]}", size) <= width:
            row += " " + words.pop(0)
        rows.append(fitted(row, width, size))
    return rows


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high`` laid on pixels from ``start`` to ``end`` (which may be the smaller one)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; one outside is put on the edge."""
        return self.start + (self.end - self.start) * min(max(self._share(value), 0.0), 1.0)

    def _share(self, value: float) -> float:
        if self.log:
            if value <= 0:
                return 0.0
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        # halves: the difference of two huge numbers may not be a number
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)

    def ticks(self, most: int) -> list[float]:
        """At most ``most`` round values, in order."""
        return _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)


def scale_for(values: Sequence[float], start: float, end: float, *, zero: bool = True, log: bool = True) -> Scale:
    """A scale that holds all values and ends at round ones.

    Logarithmic when they are far apart and ``log`` allows it, else from 0 where ``zero`` asks for it.
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if log and low > 0 and high / LOG_SPAN > low:
        low, high = _round_log(max(low, _LEAST), -1), _round_log(min(max(high, _LEAST * 100), _MOST), 1)
        return Scale(low, high, start, end, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    step = _step(low, high, 6)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end)


def tight_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale from the lowest to the highest value, logarithmic when they are far apart."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if low == high:
        return scale_for(values, start, end, zero=False)
    if low > 0 and high / LOG_SPAN > low:
        return Scale(max(low, _LEAST), max(high, _LEAST * 100), start, end, log=True)
    return Scale(low, high, start, end)


def _round_log(value: float, direction: int) -> float:
    """The next of 1, 2, 5 times a power of ten in a direction; a value that is one already stays."""
    power = math.floor(math.log10(value))
    steps = [nice * 10.0**place for place in (power, power + 1) for nice in (1, 2, 5)]
    if direction > 0:
        return next(step for step in steps if step >= value * (1 - 1e-9))
    return next(step for step in reversed(steps) if step <= value * (1 + 1e-9))


def _step(low: float, high: float, most: int) -> float:
    raw = (high / most - low / most) or 1.0
    power = math.floor(math.log10(raw))
    power = min(max(power, -300), 300)
    return next(
        (nice * 10.0**power for nice in (1, 2, 2.5, 5, 10) if nice * 10.0**power >= raw * 0.999), 10.0 ** (power + 1)
    )


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    step = _step(low, high, most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**p for p in range(first, last + 1) for f in factors if low <= f * 10.0**p <= high]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def spaced(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places apart until each is ``gap`` from the next, between ``low`` and ``high`` as far as there is room.

    The order stays, and so does the middle of each cluster. Returns the new places in the order of the old.
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    clusters: list[list[float]] = []  # [sum of wanted places, count]; a cluster lies gap-spaced around its mean
    for index in order:
        clusters.append([places[index], 1])
        while len(clusters) > 1 and _top(clusters[-1], gap, low, high) - _bottom(clusters[-2], gap, low, high) < gap:
            total, count = clusters.pop()
            clusters[-1][0] += total
            clusters[-1][1] += count
    result = [0.0] * len(places)
    turn = iter(order)
    for cluster in clusters:
        for number in range(int(cluster[1])):
            result[next(turn)] = _top(cluster, gap, low, high) + number * gap
    return result


def _top(cluster: list[float], gap: float, low: float, high: float) -> float:
    height = (cluster[1] - 1) * gap
    return max(low, min(cluster[0] / cluster[1] - height / 2, high - height))


def _bottom(cluster: list[float], gap: float, low: float, high: float) -> float:
    return _top(cluster, gap, low, high) + (cluster[1] - 1) * gap

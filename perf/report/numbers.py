"""Quantities for readers: three digits that count, a prefix, a unit."""

from __future__ import annotations

import math
from datetime import datetime

from perf.figures.results import Better
from perf.figures.summary import Ratio, Summary

UNIT_NAMES = {"messages/s": "msg/s", "bytes": "B", "ratio": "", "us": "µs"}
_UNIT_TITLES = {"messages/s": "Messages per second", "MB/s": "MB per second", "ms": "Milliseconds", "s": "Seconds"}
NARROW = "\u202f"
"""A narrow space that no line breaks at: between a number and its prefix."""
_PREFIXED = {"messages/s", "bytes", ""}
_PREFIXES = ("", "k", "M", "G", "T", "P")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def unit_title(unit: str) -> str:
    """A unit as the title of an axis."""
    return _UNIT_TITLES.get(unit, unit.capitalize())


def digits(value: float) -> str:
    """Three significant digits of a number that needs no prefix: 0.0123, 1.20, 45.6, 1,240."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.0005 or size >= 999_500_000:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPT)}".replace("-", "−")
    decimals = max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    # 9.996 has become 10.00: a digit more than three
    if decimals and sum(character.isdigit() for character in text.lstrip("-0.")) > 3:
        text = text[:-1].rstrip(".")
    return text.replace("-", "−")


def short(value: float, unit: str = "") -> str:
    """The number with its prefix, without its unit: "4.21 M", "842". For axes and crowded places."""
    if unit not in _PREFIXED or not math.isfinite(value):
        return digits(value)
    power = 0
    size = abs(value)
    while size >= 999.5 and power < len(_PREFIXES) - 1:
        size /= 1000
        power += 1
    return f"{digits(value / 1000**power)}{NARROW}{_PREFIXES[power]}".rstrip(NARROW)


def tick(value: float, unit: str = "") -> str:
    """A number of an axis: ``short`` without the zeros that only show precision."""
    number, space, prefix = short(value, unit).partition(NARROW)
    if "." in number and "·" not in number:
        number = number.rstrip("0").rstrip(".")
    return number + space + prefix


def quantity(value: float, unit: str) -> str:
    """The number with prefix and unit: "4.21 M msg/s", "0.102 ms", "38.2 MB"."""
    name = UNIT_NAMES.get(unit, unit)
    number = short(value, unit)
    if unit == "bytes":
        return number + ("" if NARROW in number else NARROW) + name
    return f"{number}\u00a0{name}" if name else number


def spread(found: Summary, unit: str) -> str:
    """The outermost values, without their unit: "4.10 – 4.33 M"."""
    low, high = short(found.low, unit), short(found.high, unit)
    if low == high:
        return low
    low_number, _, low_prefix = low.partition(NARROW)
    return f"{low_number if low_prefix == high.partition(NARROW)[2] else low} – {high}"


def interval(ratio: Ratio) -> str:
    """The 95 % interval of a ratio; one pair has none."""
    return f"{digits(ratio.low)} – {digits(ratio.high)}" if ratio.runs > 1 else "one run, no interval"


def wanted(value: float, unit: str, better: Better) -> str:
    """What a goal asks for: "≥ 4.00 M msg/s"."""
    return f"{'≥' if better == 'higher' else '≤'} {quantity(value, unit)}"


def plain(value: float) -> str:
    """A number that was chosen, not measured: all its digits, thousands marked from 10,000 on."""
    if isinstance(value, int) or value.is_integer():
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.0f}"
    return f"{value:,.6g}"


def chosen_size(count: float) -> str:
    """A size that was chosen: in powers of two where it is one of their multiples, like "8 MiB"."""
    for step, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= step and count % step == 0:
            return f"{count / step:.0f} {name}"
    return quantity(count, "bytes")


def place(value: float, unit: str) -> str:
    """A place on an axis that is a size, "2 kB", or a plain number."""
    if unit != "bytes":
        return plain(value)
    number = tick(value, unit)
    return f"{number}{'' if number[-1].isalpha() else NARROW}B"


def duration(seconds: float) -> str:
    """How long something took, for people: "42 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 60:
        return f"{digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def moment(text: str) -> str:
    """A time stamp as people write it; what is none is left as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return text

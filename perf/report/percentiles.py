"""The percentiles among the further numbers of a run, found by their names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

PERCENTILE = re.compile(
    r"(?:(?P<what>.+?)[_. ])??(?:p(?P<share>\d+(?:[._]\d+)?)|(?P<top>max))(?:_(?P<unit>ns|us|ms|s))?"
)
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_FEWEST = 3  # a single percentile beside others is a figure of its own, and no line
TOP = math.inf
"""Stands for the maximum where a share is asked for."""


def percentiles(detail: Mapping[str, float], unit: str) -> dict[str, dict[float, float]]:
    """The percentiles among a run's details, in ``unit``, by what they are of ("" when the names do not say).

    Names are "p99", "p99.9", "p99_9_ms", "visible_p50", "max": a share below 100, or without its point ("p999").
    """
    found: dict[str, dict[float, float]] = {}
    for name, value in detail.items():
        match = PERCENTILE.fullmatch(name)
        if match is None:
            continue
        factor = SECONDS[match["unit"]] / SECONDS[unit] if match["unit"] and unit in SECONDS else 1.0
        digits = (match["share"] or "").replace("_", ".")
        if digits and float(digits) >= 100:
            digits = f"{digits[:2]}.{digits[2:]}"
        found.setdefault(match["what"] or "", {})[float(digits) if digits else TOP] = value * factor
    return {what: values for what, values in found.items() if len(values) >= _FEWEST}


def nines(share: float) -> float:
    """The place of a percentile on an axis that gives each further nine the same room."""
    return -math.log10(max(1 - share / 100, 1e-9))

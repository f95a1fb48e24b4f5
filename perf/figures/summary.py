"""Statistics of repeated measurements: the spread, and a 95 % interval for a ratio of medians.

Rates and latencies are skewed, and few, so nothing here assumes a distribution: intervals come from the bootstrap
(percentiles of the ratio over resampled runs), with a seed, so that the same runs always give the same interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 10_000
SEED = 1
MIN_RUNS = 5
"""Fewer runs on a side show no difference: of equal things, the interval excludes 1 by chance in 7 % of all cases with
four runs and four, in 3 % with five and five."""


@dataclass(frozen=True)
class Summary:
    """How many values there were, the one in the middle, and the outermost ones."""

    n: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """A ratio of medians with the interval that holds it in 95 % of resamplings.

    ``paired``: whole rounds were resampled, so what disturbed both sides of a round does not widen it. ``runs`` is the
    smaller number of runs; with one on a side the interval says nothing, and is the value itself.
    """

    value: float
    low: float
    high: float
    runs: int
    paired: bool

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f} … {self.high:.3f}]"


def summary(values: Sequence[float]) -> Summary:
    """The spread of at least one value.

    Raises:
        ValueError: there is none, or one is no finite number.
    """
    _check(values)
    return Summary(len(values), statistics.median(values), min(values), max(values))


def ratio_of_medians(values: Sequence[float], base: Sequence[float], *, paired: bool = False) -> Ratio:
    """How many times the median of ``base`` the median of ``values`` is.

    ``paired``: run i of both belongs to the same round; when one has more runs, the last ones are left out.

    Raises:
        ValueError: one has no runs, or a value of ``base`` is not above 0.
    """
    import numpy as np  # only where figures are judged: commands that measure start without it

    if paired:
        both = min(len(values), len(base))
        values, base = values[:both], base[:both]
    _check(values)
    _check(base)
    if min(base) <= 0:
        raise ValueError("no ratio to a value that is not above 0")
    generator = np.random.default_rng(SEED)
    ours, theirs = np.asarray(values, dtype=float), np.asarray(base, dtype=float)
    picked = generator.integers(len(ours), size=(RESAMPLES, len(ours)))
    picked_base = picked if paired else generator.integers(len(theirs), size=(RESAMPLES, len(theirs)))
    ratios = np.median(ours[picked], axis=1) / np.median(theirs[picked_base], axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    value = statistics.median(values) / statistics.median(base)
    return Ratio(value, float(low), float(high), min(len(values), len(base)), paired)


def _check(values: Sequence[float]) -> None:
    if not values:
        raise ValueError("no runs")
    if not all(math.isfinite(value) for value in values):
        raise ValueError("a value is no finite number")

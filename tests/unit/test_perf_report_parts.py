"""What the report is made of: goals, published figures, percentiles, numbers, labels, scales, markup."""

import dataclasses
import re
from collections.abc import Sequence

import pytest

from perf.figures.results import CEILING, SYSTEMS, Goal, Run
from perf.figures.summary import Ratio, Summary
from perf.report import numbers, paper, scales
from perf.report.markup import element
from perf.report.page import render
from perf.report.percentiles import percentiles
from perf.report.systems import LOOKS
from tests.harness.perf_results import one, result, texts


def test_goals_show_each_part_with_its_own_ratio() -> None:
    """Value, share of the ceiling, share of another scenario: each with what was reached and a verdict."""
    runs = tuple(Run(value=value) for value in (4e6, 4.2e6, 4.4e6))
    base = one(runs=tuple(Run(value=value) for value in (8e6, 8e6, 8e6)), scenario="base", title="Alone")
    goal = Goal(value=4e6, ceiling_ratio=0.6, of="base", of_ratio=0.5)
    page = render([result(one(goal=goal, runs=runs), dataclasses.replace(base, scenario="s", system=CEILING), base)])
    table = texts(page.partition("<table")[2].partition("</table>")[0])
    assert "≥ 4.00 M msg/s 4.20 M msg/s 4.00 – 4.40 M (3)" in table
    assert "≥ 0.6 of the ceiling 0.525 0.500 – 0.550" in table
    assert "≥ 0.5 of “Alone” 0.525" in table
    assert table.count("✓ met") == 2 and table.count("✗ missed") == 1


def test_published_curves_have_the_unit_of_the_measured_ones() -> None:
    """The site's MB/s are 5000 messages of 200 bytes; other curves and units have none."""
    batch = paper.curve_or_none("batch-size")
    assert batch is not None and batch.points_in("messages/s")[0] == (1, 87_500)
    assert batch.points_in("ms") == []
    stored = paper.curve_or_none("stored")
    assert stored is not None and stored.level_in("messages/s") == 150_000
    assert paper.curve_or_none("message-size") is None


def test_names_of_percentiles() -> None:
    """The ways to write them, with units and with what they are of; one alone makes no line."""
    detail = {"p50": 1.0, "p99.9": 3.0, "max": 9.0, "lag_p50_us": 500.0, "lag_p999_us": 2000.0, "lag_p95": 1.5}
    detail |= {"count": 7.0, "fdatasync_p99_ms": 1.0}
    assert percentiles(detail, "ms") == {
        "": {50.0: 1.0, 99.9: 3.0, float("inf"): 9.0},
        "lag": {50.0: 0.5, 99.9: 2.0, 95.0: 1.5},
    }


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4_212_345.0, "messages/s", "4.21 M msg/s"),
        (37_149.0, "messages/s", "37.1 k msg/s"),
        (999_600.0, "messages/s", "1.00 M msg/s"),
        (0.0, "messages/s", "0 msg/s"),
        (0.1018, "ms", "0.102 ms"),
        (9.996, "ms", "10.0 ms"),
        (1240.4, "ms", "1,240 ms"),
        (38_200_000.0, "bytes", "38.2 MB"),
        (512.0, "bytes", "512 B"),
        (0.4512, "ratio", "0.451"),
        (1.5e-7, "s", "1.50·10⁻⁷ s"),
        (-2.5, "ms", "−2.50 ms"),
        (1e300, "bytes", "1.00·10²⁸⁵ PB"),
    ],
)
def test_quantities(value: float, unit: str, text: str) -> None:
    """Three digits that count, with prefix and unit."""
    assert re.sub(r"[\u00a0\u202f]", " ", numbers.quantity(value, unit)) == text


def test_spreads_and_intervals() -> None:
    """One prefix where both ends have it; an interval only where there was more than one pair."""
    plain = {ord("\u202f"): " "}
    assert numbers.spread(Summary(3, 2e6, 1.5e6, 2.5e6), "messages/s").translate(plain) == "1.50 – 2.50 M"
    assert numbers.spread(Summary(3, 2e6, 9e5, 2.5e6), "messages/s").translate(plain) == "900 k – 2.50 M"
    assert numbers.interval(Ratio(0.5, 0.4, 0.6, 5, True)) == "0.400 – 0.600"
    assert numbers.interval(Ratio(0.5, 0.5, 0.5, 1, True)) == "one run, no interval"
    assert numbers.chosen_size(8 * 2**20) == "8 MiB"
    assert [numbers.place(x, "bytes").translate(plain) for x in (20, 2000.0, 2e10)] == ["20 B", "2 kB", "20 GB"]
    assert numbers.place(20_000.0, "") == "20,000"
    assert numbers.duration(4231.7) == "1 h 10 min"
    assert numbers.moment("2026-03-14T09:26:53Z") == "2026-03-14 09:26 UTC"
    assert numbers.moment("yesterday") == "yesterday"


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], []),
        ([50.0], [50.0]),
        ([10.0, 50.0], [10.0, 50.0]),
        ([50.0, 50.0], [45.0, 55.0]),
        ([55.0, 50.0, 54.0], [63.0, 43.0, 53.0]),
        ([0.0, 0.0, 0.0], [0.0, 10.0, 20.0]),
        ([100.0, 98.0, 80.0], [100.0, 90.0, 80.0]),
    ],
)
def test_labels_move_apart(places: Sequence[float], expected: Sequence[float]) -> None:
    """As little as needed, in their order, inside of the plot."""
    assert scales.spaced(places, 10.0, 0.0, 100.0) == pytest.approx(expected)


def test_scales_end_at_round_values() -> None:
    """From 0 when values are near each other, logarithmic when they are not; ticks are round and inside."""
    near = scales.scale_for([3.1, 9.7], 0.0, 100.0)
    assert (near.low, near.high, near.log) == (0.0, 10.0, False)
    assert near.ticks(6) == [0, 2, 4, 6, 8, 10]
    far = scales.scale_for([37_000.0, 9.1e6], 0.0, 100.0)
    assert (far.low, far.high, far.log) == (20_000.0, 1e7, True)
    assert far.ticks(9) == [2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7]
    assert far(37_000.0) < far(1e5) < far(9.1e6) <= 100


def test_markup_escapes_and_leaves_out() -> None:
    """What is None is left out, names become attributes, text becomes text."""
    made = element("a", "<&", None, class_='x"y', text_anchor=None, x=1.0, y=2.345, hidden=True)
    assert made == '<a class="x&quot;y" x="1" y="2.35" hidden>&lt;&amp;</a>'


def test_every_known_system_has_a_look() -> None:
    """Each in a colour and a shape of its own, in light and in dark."""
    assert set(SYSTEMS) < set(LOOKS)
    for part in ("light", "dark", "shape", "name"):
        assert len({getattr(look, part) for look in LOOKS.values()}) == len(LOOKS)

"""What the report is made of: goals, published figures, percentiles, numbers, axes, drawings, markup."""

import dataclasses
import math
import re
import xml.etree.ElementTree as ET

import pytest

from perf.figures.results import CEILING, SYSTEMS, Goal, Run
from perf.figures.summary import Ratio, Summary
from perf.report import drawing, lines, numbers, paper
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
    ("values", "log", "ends"),
    [
        ([3.1, 9.7], False, (0.0, 9.7)),
        ([-5.0, 3.0], False, (-5.0, 3.0)),
        ([1.0, 20.0], False, (0.0, 20.0)),
        ([37_000.0, 9.1e6], True, (37_000.0, 9.1e6)),
        ([1.0, 20.5], True, (1.0, 20.5)),
        ([0.0, 1e6], False, (0.0, 1e6)),
        ([2.0, math.inf, math.nan], False, (0.0, 2.0)),
        ([7.0], False, (0.0, 7.0)),
        ([], False, (0.0, 1.0)),
    ],
)
def test_axes_hold_every_value(values: list[float], log: bool, ends: tuple[float, float]) -> None:
    """From 0 when values are near each other, logarithmic when they are not; no ends far from the values."""
    with drawing.figure(200) as (_, axes):
        assert drawing.axis(axes, "x", values, "messages/s") is log
        assert drawing.axis(axes, "y", values, "messages/s") is log
        low, high = axes.get_xlim()
        assert (low, high) == axes.get_ylim() and axes.get_yscale() == axes.get_xscale() == ("log" if log else "linear")
    assert low <= ends[0] and ends[1] < high
    assert low == 0 if ends[0] == 0 else low < ends[0]
    if not log:
        assert ends[0] - low + high - ends[1] <= (ends[1] - ends[0]) * 0.06


def test_ticks_are_round() -> None:
    """And few; of a logarithmic axis 1, 2, 5 or 1, 3 or powers of ten, by how long it is."""
    for values, expected in (
        ([0.0, 9.7], ["0", "2", "4", "6", "8"]),
        ([37_000.0, 9.1e5], ["50 k", "100 k", "200 k", "500 k"]),
        ([0.9, 9.1e3], ["1", "3", "10", "30", "100", "300", "1 k", "3 k", "10 k"]),
        ([0.9, 9.1e6], ["1", "10", "100", "1 k", "10 k", "100 k", "1 M", "10 M"]),
    ):
        with drawing.figure(200) as (made, axes):
            drawing.axis(axes, "x", values, "messages/s")
            made.draw_without_rendering()
            low, high = axes.get_xlim()
            shown = [tick.get_text() for tick in axes.get_xticklabels() if low <= tick.get_position()[0] <= high]
        assert [text.replace("\u202f", " ") for text in shown] == expected


def test_an_axis_that_need_not_begin_with_zero() -> None:
    """Has its values and a little room."""
    with drawing.figure(200) as (_, axes):
        assert not drawing.axis(axes, "x", [100.0, 140.0], "", zero=False)
        assert axes.get_xlim() == (99.0, 141.0)


@pytest.mark.parametrize(("log", "kept"), [(False, ["1", "3 k", "10 k"]), (True, ["1", "3 k", "10 k"])])
def test_marks_that_would_touch_are_left_out(log: bool, kept: list[str]) -> None:
    """Of two too near each other the first is written; each where its value is."""
    with drawing.figure(200) as (made, axes):
        axes.set_xscale("log" if log else "linear")
        axes.set_xlim(1, 10_000)
        drawing.marks(axes, [(1.0, "1"), (1.1, "2"), (3000.0, "3 k"), (3001.0, "4 k"), (10_000.0, "10 k")], log=log)
        made.draw_without_rendering()
        shown = [(tick.get_position()[0], tick.get_text()) for tick in axes.get_xticklabels()]
    assert [text for _, text in shown if text] == kept
    assert [place for place, _ in shown] == [1.0, 3000.0, 10_000.0]


def test_values_that_nothing_measures_are_put_on_the_edge() -> None:
    """Signs and zeros stay."""
    assert drawing.placed([0.0, 1e300, -1e300, 5e-324, -5e-324, 7.0]) == [0.0, 1e60, -1e60, 1e-60, -1e-60, 7.0]


def test_a_drawing_is_a_part_of_a_page_or_a_file() -> None:
    """The same parts: with the page's variables and ids of its own, or with colours and a name space."""
    with drawing.figure(100) as (made, axes):
        (dots,) = axes.plot([1.0, 2.0], [3.0, 4.0], **drawing.mark("kafka"))
        drawing.explain(dots, ["one & all", "<two>"])
        axes.set_title("$x_1$ & <y>", style="italic", color=drawing.QUIET)
    inside = ET.fromstring(drawing.embedded(made, "k", "T\x00", "D<"))
    assert inside.attrib == {
        "viewBox": "0 0 760 100", "style": "stroke-linejoin: round", "role": "img", "aria-labelledby": "k-t k-d",
    }  # fmt: skip
    assert [(n.tag, n.get("id"), n.text) for n in inside][:2] == [("title", "k-t", "T\ufffd"), ("desc", "k-d", "D<")]
    assert [node.text for point in inside.iter("use") for node in point] == ["one & all", "<two>"]
    (text,) = (node for node in inside.iter("text") if node.text == "$x_1$ & <y>")
    assert "font-style: italic" in text.get("style", "") and "fill: var(--quiet)" in text.get("style", "")
    assert all("font-family" not in node.get("style", "") for node in inside.iter())
    assert all(node.get("id", "k-").startswith("k-") for node in inside.iter()) and not list(inside.iter("style"))
    named = {node.get("id") for node in inside.iter()}
    shown = [node.attrib["href"] for node in inside.iter("use")]
    assert shown and {name.removeprefix("#") for name in shown} <= named
    outside = ET.fromstring(drawing.standalone(made, "T"))
    space = "{http://www.w3.org/2000/svg}"
    assert outside.tag == f"{space}svg" and outside[0].text == "T" and "sans-serif" in outside.attrib["font-family"]
    assert "background: #ffffff" in outside.attrib["style"]
    (text,) = (node for node in outside.iter(f"{space}text") if node.text == "$x_1$ & <y>")
    assert "fill: #5a6370" in text.get("style", "") and "var(" not in str([node.attrib for node in outside.iter()])


def test_long_lines_are_thinned() -> None:
    """To means of neighbours, which keep the whole; short ones stay as they are."""
    assert lines.thinned([(1.0, 2.0)] * 240) == [(1.0, 2.0)] * 240
    assert lines.thinned([(float(n), n % 2.0) for n in range(480)]) == [(2 * n + 0.5, 0.5) for n in range(240)]
    assert len(lines.thinned([(float(n), 1.0) for n in range(481)])) == 161


def test_markup_escapes_and_leaves_out() -> None:
    """What is None is left out, names become attributes, text becomes text."""
    made = element("a", "<&", None, class_='x"y', text_anchor=None, x=1.0, y=2.345, hidden=True)
    assert made == '<a class="x&quot;y" x="1" y="2.35" hidden>&lt;&amp;</a>'


def test_every_known_system_has_a_look() -> None:
    """Each in a colour and a shape of its own, in light and in dark."""
    assert set(SYSTEMS) < set(LOOKS)
    for part in ("light", "dark", "marker", "name"):
        assert len({getattr(look, part) for look in LOOKS.values()}) == len(LOOKS)

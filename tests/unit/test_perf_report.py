"""The report of measurements: a page that loads nothing, says everything, and holds for whatever a file holds."""

import contextlib
import dataclasses
import html
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from perf.__main__ import main
from perf.figures.results import CEILING, OURS, Goal, Result, Run, save
from perf.report import drawing, numbers, paper
from perf.report.markup import Markup
from perf.report.page import render
from perf.report.systems import LOOKS
from tests.harness.perf_results import NO_KAFKA, Sample, full_result, one, result, texts

HOSTILE = (
    '</title></svg><script>alert(1)</script><img src=x onerror="alert(2)"> & \' " \x00\x1b\ud800\u202eevil ]]> <!--'
)


@pytest.fixture(scope="module")
def rendered() -> tuple[str, list[Figure]]:
    """The page of everything, and what was drawn for it."""
    figures: list[Figure] = []
    embedded = drawing.embedded

    def keep(made: Figure, *words: str) -> Markup:
        figures.append(made)
        return embedded(made, *words)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drawing, "embedded", keep)
        return render([full_result()]), figures


@pytest.fixture(scope="module")
def full(rendered: tuple[str, list[Figure]]) -> str:
    return rendered[0]


def drawings(page: str) -> list[ET.Element]:
    """Every drawing of a page, parsed as XML."""
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


class Balance(HTMLParser):
    """Fails on an end tag that ends nothing, and keeps what was never ended, ids, and tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self.open.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Balance:
    balance = Balance()
    balance.feed(page)
    balance.close()
    assert balance.open == []
    return balance


def check(page: str) -> list[ET.Element]:
    """What holds for every page: tags match, ids differ, drawings are XML with title, text and finite places."""
    balance = parsed(page)
    assert len(balance.ids) == len(set(balance.ids))
    found = drawings(page)
    for shown in found:
        assert shown.findtext("title") and shown.findtext("desc")
        assert set((shown.get("aria-labelledby") or "").split()) <= set(balance.ids)
        named = {node.get("id") for node in shown.iter()}
        for node in shown.iter():
            for name, value in node.attrib.items():
                assert not re.search(r"\b(nan|inf)\b", value), (node.tag, name, value)
                if name in {"href", "clip-path"}:  # of another drawing they would show its parts
                    assert value.removeprefix("url(").removesuffix(")").removeprefix("#") in named
    return found


def figures_of(results: list[Result], monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """What ``render`` draws."""
    found: list[Figure] = []

    def keep(made: Figure, *_: str) -> Markup:
        found.append(made)
        return Markup("")

    with monkeypatch.context() as patched:
        patched.setattr(drawing, "embedded", keep)
        render(results)
    return found


def assert_nothing_touches(made: Figure) -> list[str]:
    """No text of a drawing lies on another or reaches out of it, in the letters that it is measured with."""
    canvas = FigureCanvasAgg(made)
    canvas.draw()
    for axes in made.axes:
        for labels, (low, high), which in (
            (axes.get_xticklabels(), axes.get_xlim(), 0),
            (axes.get_yticklabels(), sorted(axes.get_ylim()), 1),
        ):
            for label in labels:  # those of ticks beyond the ends are not drawn
                label.set_visible(low <= label.get_position()[which] <= high)
    width, height = made.bbox.width, made.bbox.height
    shown = [text for text in made.findobj(Text) if text.get_visible() and text.get_text()]  # type: ignore[attr-defined]
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in shown]
    for number, (text, box) in enumerate(boxes):
        assert box.x0 >= -1 and box.y0 >= -3 and box.x1 <= width + 1 and box.y1 <= height + 1, (text, box)
        for other, its in boxes[:number]:
            over = min(box.x1, its.x1) - max(box.x0, its.x0), min(box.y1, its.y1) - max(box.y0, its.y0)
            assert min(over) < 3, (text, other)
    return [text for text, _ in boxes]


# --- the whole page ---


@pytest.mark.slow
def test_the_page_is_well_formed(full: str) -> None:
    """Each plot is there, and one gauge for each goal that was measured."""
    assert len(check(full)) == 21
    assert full.count('class="gauge"') == 14


@pytest.mark.slow
def test_nothing_is_loaded_and_nothing_runs(full: str) -> None:
    """No element or attribute names anything outside of the page, and the page forbids it as well."""
    for tag, attributes in parsed(full).tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "image", "base"}
        assert not any(name in {"src", "srcset", "xlink:href"} or name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert tag != "style" or not attributes  # the drawings have none of their own
    assert full.count("url(") == full.count("url(#") and full.count("<style") == 1
    assert "@import" not in full and "http" not in full.replace("http-equiv", "")
    assert "default-src 'none'" in html.unescape(full)


@pytest.mark.slow
def test_everything_that_was_measured_is_named(full: str) -> None:
    """Every series with its system and its median, the machine, the settings, the reasons of what is absent."""
    text = texts(full)
    for series in full_result().series:
        assert LOOKS[series.system].name in text
        if not series.section.startswith(("curve", "sweep")):
            assert series.title in text
        found = series.summary()
        if found:
            median = re.sub(r"[\u00a0\u202f]", " ", numbers.quantity(found.median, series.unit))
            assert median in text, series.scenario
        else:
            assert f"absent: {series.absent}" in text
    for said in (
        "AMD EPYC 9R45",
        "6.18.44",
        "ext4",
        "24.7 GB",
        "log.flush.interval 1,000,000",
        "07015e4f2a1f",
        "Warm-up",
    ):
        assert said in text
    assert "13 of 14 goals met, 1 missed." in text
    assert f"Apache Kafka is absent: {NO_KAFKA}." in text
    for figure in paper.FIGURES:
        assert figure.what in text and figure.source in text


@pytest.mark.slow
def test_every_series_is_in_a_drawing(full: str) -> None:
    """Each system has its mark and its name in the drawings, also for those who cannot see them."""
    found = drawings(full)
    described = " ".join(shown.findtext("desc") or "" for shown in found)
    drawn = {
        name for shown in found for node in shown.iter("use") for name in re.findall(r"--([-\w]+)", str(node.attrib))
    }
    for system in ("fastlog", "fastlog-broker", "ceiling", "rabbitmq-classic", "rabbitmq-stream", "published"):
        assert f"s-{system}" in drawn
    for name in ("fastlog", "ceiling", "RabbitMQ stream", "Kafka 0.7, published", "Apache Kafka not measured"):
        assert name in described


@pytest.mark.slow
def test_each_repetition_says_what_it_is(full: str) -> None:
    """Under the pointer: of each dot its system and its value, of each square its settings."""
    told = {node.text or "" for shown in drawings(full) for point in shown.iter("use") for node in point.iter("title")}
    series = full_result().find("produce-batch-50")
    assert series is not None
    for number, value in enumerate(series.values, 1):
        assert f"fastlog, repetition {number}: {numbers.quantity(value, 'messages/s')}" in told
    squares = [n.text or "" for shown in drawings(full) for path in shown.iter("path") for n in path.iter("title")]
    assert len(squares) == 3 * 32 and len(set(squares)) == 3 * 32
    assert all(re.fullmatch(r"M [\d,]+, S, ms \d+, preallocate (on|–), write-back (8 MiB|–): .+", s) for s in squares)


@pytest.mark.slow
def test_colours_are_those_of_the_page(full: str) -> None:
    """Light and dark: the drawings name variables, each of which the style sheet has for both."""
    sheet = full.partition("<style>")[2].partition("</style>")[0]
    light, _, dark = sheet.partition("prefers-color-scheme: dark")
    used = set(re.findall(r"var\(--([-\w]+)\)", full)) - {"system"}
    assert {"ink", "quiet", "grid", "s-fastlog", "s-published"} < used
    for name in used:
        assert f"--{name}: #" in light and f"--{name}: #" in dark, name
    for shown in drawings(full):
        assert not re.search("#[0-9a-f]{6}", " ".join(node.get("style", "") for node in shown.iter()))


@pytest.mark.slow
def test_labels_keep_apart(rendered: tuple[str, list[Figure]]) -> None:
    """No two texts of a drawing lie on each other."""
    assert len(rendered[1]) == 21
    for made in rendered[1]:
        assert_nothing_touches(made)


@pytest.mark.slow
def test_how_to_measure_it_again(full: str) -> None:
    """Commands name the scenarios of a plot; many of one kind by what their names begin with."""
    text = texts(full)
    assert "python -m perf replay --only produce-acked-50" in text
    assert "python -m perf replay --only 'batch-size-*'" in text
    assert "python -m perf replay --only 'sweep-*'" in text
    assert "--only" not in texts(render([result(one(), command="./measure --all")]))


# --- odd results ---


@pytest.mark.parametrize("field", ["title", "scenario", "system", "absent", "x_title", "parameters", "detail", "note"])
def test_hostile_text_stays_text(field: str) -> None:
    """Whatever a file says is shown and nothing else: no tag, no control character, no turned direction."""
    given: dict[str, Any] = {"x": 1.0, "section": "curve:batch"} if field == "x_title" else {}
    if field == "absent":
        given = {"runs": ()}
    if field == "parameters":
        given = {"parameters": {HOSTILE: {HOSTILE: HOSTILE}}}
    elif field == "detail":
        given = {"runs": (Run(value=1.0, detail={HOSTILE: 3.0}),)}
    elif field != "note":
        given[field] = HOSTILE
    machine = {"commit": HOSTILE, HOSTILE: [HOSTILE]}
    page = render([result(one(**given), title=HOSTILE, command=HOSTILE, machine=machine, notes=(HOSTILE,))])
    check(page)
    tags = {tag for tag, _ in parsed(page).tags}
    assert not tags & {"script", "img"}
    assert not re.search("[\x00\x1b\ud800\u202e]", page)
    assert page.encode()
    assert "alert(1)" in texts(page)


def test_long_names_are_cut_and_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names longer than there is room are cut in the drawing; title and table have them whole."""
    long = "a system with a name that goes on and on " * 4
    title = "A scenario that explains at length what it does, under which conditions and why " * 3
    series = [
        one(system=system, title=title, runs=(Run(value=n * 10.0**n, timeline=((1.0, 5.0), (2.0, 6.0 * n))),))
        for n, system in enumerate((OURS, CEILING, long, long.upper()), 1)
    ]
    curve = [
        one(scenario=f"c-{x}", system=system, section="curve:x", x=x, x_title=title, title=title)
        for x in (1.0, 1e9)
        for system in (OURS, CEILING, long)
    ]
    found = figures_of([result(*series, *curve)], monkeypatch)
    assert len(found) == 3
    for made in found:
        assert any("…" in text for text in assert_nothing_touches(made))
    page = render([result(*series, *curve)])
    check(page)
    assert long.strip() in texts(page)


@pytest.mark.parametrize(
    "values",
    [(0.0, 0.0), (5e-324, 1e-300), (1e290, 1e300), (1e-9, 1e9), (-5.0, 3.0), (1.0, 1.0 + 1e-15)],
)
@pytest.mark.parametrize("section", ["producer", "latency", "curve:size", "sweep"])
def test_any_number_can_be_drawn(values: tuple[float, ...], section: str) -> None:
    """Huge, tiny, negative, equal and zero values, as bars, lines and squares; every place stays a finite one."""
    runs = tuple(
        Run(
            value=value,
            detail={"p50": value, "p99": value, "max": value} if section == "latency" else {"bytes": value},
        )
        for value in values
    )
    timed = tuple(
        dataclasses.replace(run, timeline=((0.0, run.value), (0.0, run.value), (1.0, run.value))) for run in runs
    )
    unit = "ms" if section == "latency" else "bytes"
    series = [
        one(
            scenario=f"s{number}", system=system, section=section, unit=unit, better="lower",
            runs=runs if number else timed, x=value, x_title="x", goal=Goal(value=values[0], ceiling_ratio=0.5),
            parameters={"m": value, "b": True}, title=f"Value: {number}",
        )
        for number, value in enumerate((*values, 0.5))
        for system in (OURS, CEILING)
    ]  # fmt: skip
    assert check(render([result(*series)]))


def test_a_result_with_nothing_in_it() -> None:
    """The header and the published figures are shown; sections without content are not."""
    page = render([result(title="", machine={}, settings={}, warm_up="")])
    check(page)
    text = texts(page)
    assert "Measurements" in text and "Published figures" in text
    for heading in ("Goals", "Producers", "Side by side", "Latency"):
        assert f">{heading}<" not in page
    with pytest.raises(ValueError):
        render([])


@pytest.mark.slow
def test_the_same_results_give_the_same_page() -> None:
    """Byte for byte, in another process too, so that a difference between two pages is one between their files."""
    made = "from tests.harness.perf_results import one, result; from perf.report.page import render"
    script = f"{made}; print(render([result(one(), one(section='curve:x', x=1.0, scenario='c'))]), end='')"
    own = os.environ.get("PYTHONHASHSEED", "random")
    environment = {**os.environ, "PYTHONHASHSEED": "2" if own == "1" else "1"}
    environment |= {"SOURCE_DATE_EPOCH": "1", "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env=environment)
    assert done.stdout.decode() == render([result(one(), one(section="curve:x", x=1.0, scenario="c"))])


def test_only_absent_systems() -> None:
    """A section in which nothing ran still says who is absent, and why; its goal was not measured."""
    absent = one(runs=(), absent="the disk is full", goal=Goal(value=1.0))
    curve = one(scenario="c", runs=(), absent="no time left", section="curve:x", x=1.0)
    sweep = one(scenario="w", runs=(), absent="no room", section="sweep")
    page = render([result(absent, curve, sweep)])
    check(page)
    text = texts(page)
    for said in (
        "absent: the disk is full",
        "Absent: fastlog: no time left",
        "Absent: no room",
        "1 goals, 1 not measured",
    ):
        assert said.replace("1 goals, ", "0 of 1 goals met, ") in text


@pytest.mark.slow
def test_one_run_has_no_spread() -> None:
    """A single repetition is shown as that, without a spread and without an interval."""
    sample = Sample(rounds=1)
    sample.latency()
    page = render([result(one(), one(system=CEILING), *sample.series)])
    check(page)
    text = texts(page)
    assert "one run" in text and "one run, no interval" in text


def test_systems_that_are_not_known_are_shown() -> None:
    """A file may name others: they have a name and a colour of their own."""
    page = render([result(one(), one(system="nats"), one(system="redis"))])
    check(page)
    assert "nats" in texts(page) and "redis" in texts(page)
    assert re.search(r"var\(--s-other-\d\)", page)


def test_several_files_keep_apart() -> None:
    """What two files measured is shown twice, under their letters; each is compared with its own ceiling."""
    slow = result(one(runs=(Run(value=1e6),)), one(system=CEILING, runs=(Run(value=2e6),)), title="before")
    fast = result(one(runs=(Run(value=4e6),)), one(system=CEILING, runs=(Run(value=5e6),)), title="after")
    text = texts(render([slow, fast]))
    for said in ("A: before", "B: after", "fastlog (A)", "fastlog (B)", "0.500 (one run", "0.800 (one run"):
        assert said in text
    assert "(A)" not in texts(render([slow, result(one(system="kafka"), title="peers")]))


def test_what_files_share_is_said_once() -> None:
    """And of each file what differs; a fact that one file alone has stands with that file."""
    first = result(one(), title="before")
    machine = {**first.machine, "kernel": "7.0-new", "hypervisor": "kvm"}
    text = texts(render([first, dataclasses.replace(first, title="after", machine=machine)]))
    files, _, common = text.partition("The same for all files:")
    assert common.partition("Goals")[0].count("Warm-up") == 1 and "Warm-up" not in files
    for said in ("A: before", "B: after", "File Kernel Hypervisor", "7.0-new kvm", f"{first.machine['kernel']} –"):
        assert said in files
    assert "7.0-new" not in common
    assert "The same for all files" not in texts(render([first]))


# --- the command ---


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    """A page for one file or more; its own input is never overwritten, and no half page is left."""
    source, page = tmp_path / "a.json", tmp_path / "report.html"
    save(result(one()), source)
    page.write_text("old")
    run = CliRunner().invoke(main, ["report", str(source), str(source), "--out", str(page)])
    assert run.exit_code == 0, run.output
    assert page.read_text(encoding="utf-8") == render([result(one()), result(one())])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "report.html"]
    shown = CliRunner().invoke(main, ["report", str(source), "--out", "-"])
    assert shown.stdout == render([result(one())])
    (tmp_path / "elsewhere").mkdir()
    with contextlib.chdir(tmp_path / "elsewhere"):
        run = CliRunner().invoke(main, ["report", str(source)])
        assert run.exit_code == 0 and Path("a.html").read_text(encoding="utf-8") == shown.stdout
    refused = CliRunner().invoke(main, ["report", str(source), "--out", str(source)])
    assert "one of the results" in str(refused.exception)
    assert source.read_text().startswith("{")


def test_the_command_refuses_what_is_no_result(tmp_path: Path) -> None:
    """Another JSON file is an error that names it, and nothing is written."""
    source = tmp_path / "other.json"
    source.write_text('{"schema": 99}')
    run = CliRunner().invoke(main, ["report", str(source), "--out", str(tmp_path / "r.html")])
    assert "other.json" in str(run.exception) and "schema" in str(run.exception)
    assert not (tmp_path / "r.html").exists()

"""The page: what was measured and on what, the goals, then section by section plots with every number beside them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perf.figures.beside import Beside
from perf.figures.results import CURVE, OURS, Result
from perf.report import drawing, goals, numbers, paper, sections, sweep, tables
from perf.report.beside import plots as beside_plots
from perf.report.beside import table as beside_table
from perf.report.entries import Entry, by_scenario, entries_of, marks
from perf.report.markup import Markup, command_line, element, join
from perf.report.sections import Plot
from perf.report.style import sheet
from perf.report.systems import look_of, rank

_SECTIONS = {
    "producer": "Producers",
    "consumer": "Consumers",
    "latency": "Latency",
    "batches": "Record batches",
    "spark": "Spark",
    "sweep": "Flush settings",
    "recovery": "Recovery",
    "memory": "Memory",
    "machine": "The machine without fastlog",
}

BESIDE = "fastlog beside Apache Kafka"
_COMMIT_DIGITS = 12
_UNNAMEABLE = re.compile("[^a-z0-9]+")
_NAME = 60  # letters of an image's name


@dataclass(frozen=True)
class Folded:
    """Plots that are shown when they are asked for."""

    said: str
    plots: Sequence[Plot]


Content = Sequence[Markup | Plot | Folded]


@dataclass(frozen=True)
class Part:
    """A section of the page; ``key`` makes its ids and the names of its images."""

    key: str
    title: str
    content: Content


def render(results: Sequence[Result], beside: Sequence[Beside] = ()) -> str:
    """Return the report of one or more results as one HTML document.

    Of several files the first gives the title. Where two measured the same scenario on the same system, both are shown
    under the letters of their files; ratios only ever compare what one file measured. ``beside``: files that set
    fastlog beside Apache Kafka, each in a section of its own.

    Raises:
        ValueError: there is neither.
    """
    if not results and not beside:
        raise ValueError("a report needs at least one result")
    entries = entries_of(results)
    shown = parts(results, beside)
    title = (results[0].title if results else BESIDE) or "Measurements"
    body = element(
        "main",
        element(
            "header",
            element("h1", title),
            *([_lede(results, entries)] if results else []),
            element("nav", *(element("a", part.title, href=f"#{part.key}") for part in shown), aria_label="Sections"),
            *([_facts(results)] if results else []),
            *(element("p", f"Note: {note}") for result in results for note in result.notes),
        ),
        *(element("section", element("h2", part.title, id=part.key), *_written(part)) for part in shown),
        element("footer", "Written by python -m perf report. No script, nothing loaded from elsewhere."),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        element("title", title),
        element("style", Markup(sheet())),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', body), lang='en')}\n"


def images(shown: Sequence[Part]) -> dict[str, bytes]:
    """Every drawing of the sections as an SVG file, by its name: the section's and the drawing's."""
    found: dict[str, bytes] = {}
    for part in shown:
        for number, plot in enumerate(_plots(part.content)):
            name = f"{part.key}-{_UNNAMEABLE.sub('-', plot.title.lower()).strip('-')[:_NAME]}"
            name = f"{name}-{number}" if f"{name}.svg" in found else name
            found[f"{name}.svg"] = drawing.standalone(plot.figure, plot.title)
    return found


def parts(results: Sequence[Result], beside: Sequence[Beside] = ()) -> list[Part]:
    """The sections that have something to show."""
    found = list(_parts(entries_of(results))) if results else []
    for number, one in enumerate(beside):
        key = f"beside-{number}" if number else "beside"
        said = element("p", one.said)
        found.append(Part(key, BESIDE, [said, *beside_plots(one), beside_table(one)] if one.figures else []))
    return [part for part in found if part.content]


def _plots(content: Content) -> Iterable[Plot]:
    for item in content:
        if isinstance(item, Plot):
            yield item
        elif isinstance(item, Folded):
            yield from item.plots


def _written(part: Part) -> Iterable[Markup]:
    number = itertools.count()
    for item in part.content:
        if isinstance(item, Plot):
            yield _figure(f"{part.key}-{next(number)}", item)
        elif isinstance(item, Folded):
            within = [_figure(f"{part.key}-{next(number)}", plot) for plot in item.plots]
            yield element("details", element("summary", item.said), *within)
        else:
            yield item


def _parts(entries: Sequence[Entry]) -> Iterable[Part]:
    """Yield each section of the page; one without results has no content."""
    goal_table = goals.table(entries)
    yield Part("goals", "Goals", [tables.scrolled(goal_table, "Goals")] if goal_table else [])
    yield Part("systems", "Side by side", _side_by_side(entries))
    plain = {name: [e for e in entries if e.series.section == name] for name in _SECTIONS}
    for name in ("producer", "consumer"):
        found = [*sections.bar_plots(plain[name]), *sections.timeline_plots(plain[name], compared=True)]
        others = list(sections.timeline_plots(plain[name], compared=False))
        more = [Folded(f"Over time: {len(others)} more scenarios", others)] if others else []
        yield Part(name, _SECTIONS[name], [*found, *more])
    for number, name in enumerate(
        dict.fromkeys(e.series.section for e in entries if e.series.section.startswith(CURVE))
    ):
        curve = list(sections.curve_plots([e for e in entries if e.series.section == name], name.removeprefix(CURVE)))
        heading = name.removeprefix(CURVE).replace("-", " ").replace("_", " ").capitalize()
        yield Part(f"curve-{number}", f"Curve: {heading}", curve)
    found = [*sections.latency_plots(plain["latency"]), *sections.bar_plots(plain["latency"])]
    yield Part("latency", "Latency", found)
    yield Part("sweep", _SECTIONS["sweep"], _sweep(plain["sweep"]))
    for name in ("batches", "spark", "recovery", "memory", "machine"):
        yield Part(name, _SECTIONS[name], list(sections.bar_plots(plain[name])))
    yield Part("published", "Published figures", _published())


def _lede(results: Sequence[Result], entries: Sequence[Entry]) -> Markup:
    when = ", ".join(dict.fromkeys(numbers.moment(result.started) for result in results))
    taken = numbers.duration(sum(result.seconds for result in results))
    said = goals.summary_line(entries)
    return join(
        [
            element("p", f"{said} " if said else "", class_="lede strong") if said else "",
            element("p", f"Measured {when}; {taken} in all.", class_="lede quiet"),
        ]
    )


def _facts(results: Sequence[Result]) -> Markup:
    """What it was measured on and how: of several files first what differs between them, then what they share."""
    facts = [dict(_facts_of(result)) for result in results]
    names = dict.fromkeys(name for fact in facts for name in fact)
    shared = [name for name in names if all(fact.get(name) == facts[0].get(name) for fact in facts)]
    rows = [part for name in shared for part in (element("dt", name), element("dd", facts[0][name]))]
    common = element("dl", *rows) if rows else Markup("")
    if len(results) == 1:
        return common
    differing = [name for name in names if name not in shared]
    head = element("tr", *(element("th", name, scope="col") for name in ("File", *differing)))
    files = [
        element(
            "tr",
            element("th", f"{mark}: {result.title}", scope="row"),
            *(element("td", fact.get(name, "–")) for name in differing),
        )
        for mark, result, fact in zip(marks(len(results)), results, facts, strict=True)
    ]
    table = element("table", element("thead", head), element("tbody", *files, class_="flat"), class_="files")
    return join([tables.scrolled(table, "Files"), element("p", "The same for all files:", class_="quiet"), common])


def _facts_of(result: Result) -> Iterable[tuple[str, object]]:
    yield "Command", command_line(result.command)
    machine = dict(result.machine)
    commit, plus, changes = str(machine.pop("commit", "unknown")).partition("+")
    yield "Commit", element("code", commit[:_COMMIT_DIGITS], plus, changes)
    processor = f"{machine.pop('cpu', 'unknown processor')}, {machine.pop('cpus', '?')} processors"
    memory = machine.pop("memory_bytes", None)
    if isinstance(memory, int | float):
        processor += f", {numbers.quantity(memory, 'bytes')} of memory"
    yield "Machine", processor
    yield "Kernel", tables.plain(machine.pop("kernel", "unknown"))
    yield "File system", tables.plain(machine.pop("file_system", "unknown"))
    for name, value in result.settings.items():
        yield _worded(name), tables.plain(value)
    yield "Warm-up", result.warm_up or "none"
    for name, value in machine.items():
        yield _worded(name), tables.plain(value)


def _worded(name: str) -> str:
    words = name.replace("_", " ").replace("-", " ")
    return words[:1].upper() + words[1:]


def _figure(key: str, plot: Plot) -> Markup:
    notes = [element("p", note) for note in plot.notes]
    notes += [element("p", "Again: ", command_line(command)) for command in plot.again]
    return element(
        "figure",
        element("h3", plot.title),
        element("div", drawing.embedded(plot.figure, key, plot.title, plot.description), class_="plot"),
        element("figcaption", *notes),
        plot.table,
        class_="plotted",
    )


def _side_by_side(entries: Sequence[Entry]) -> list[Markup]:
    """Scenarios against systems, medians in the cells, for those that more than one system ran or published."""
    groups = {
        name: group
        for name, group in by_scenario(entries).items()
        if not group[0].series.section.startswith((CURVE, "sweep"))
        and (len({e.series.system for e in group}) > 1 or group[0].series.paper is not None)
    }
    if not groups:
        return []
    columns = sorted({(rank(e.series.system), e.series.system, e.mark, e.name) for g in groups.values() for e in g})
    columns = [c for c in columns if any(_same(e, c) and e.series.runs for g in groups.values() for e in g)]
    published = any(e.series.paper is not None for g in groups.values() for e in g)
    head = [element("th", "Scenario", scope="col")]
    head += [element("th", name, scope="col", class_="num wrap") for *_, name in columns]
    head += [element("th", "Kafka 0.7, published", scope="col", class_="num wrap")] if published else []
    rows = []
    for group in groups.values():
        first = group[0].series
        cells = [element("th", first.title, scope="row")]
        for column in columns:
            entry = next((e for e in group if _same(e, column)), None)
            cells.append(_cell(entry, group))
        if published:
            value = next((e.series.paper for e in group if e.series.paper is not None), None)
            cells.append(element("td", "–" if value is None else numbers.quantity(value, first.unit), class_="num"))
        rows.append(element("tr", *cells))
    table = element(
        "table", element("thead", element("tr", *head)), element("tbody", *rows, class_="flat"), class_="side"
    )
    absent: dict[str, dict[str, None]] = {}
    for entry in entries:
        if entry.series.absent:
            absent.setdefault(look_of(entry.series.system).name, {})[entry.series.absent] = None
    return [
        element("p", "Medians; below each, how many times as much fastlog reached in the same run."),
        tables.scrolled(table, "Side by side"),
        *(element("p", f"{name} is absent: {'; '.join(reasons)}.", class_="quiet") for name, reasons in absent.items()),
    ]


def _same(entry: Entry, column: tuple[int, str, str, str]) -> bool:
    return (entry.series.system, entry.mark) == column[1:3]


def _cell(entry: Entry | None, group: Sequence[Entry]) -> Markup:
    if entry is None:
        return element("td", "–", class_="num")
    found = entry.series.summary()
    if found is None:
        return element("td", "absent", class_="num quiet")
    ratio = tables.over(tables.own_of(group, entry), entry)
    below = element("span", f"×\u2009{numbers.digits(ratio.value)}", class_="sub") if ratio else None
    weight = "num strong" if entry.series.system == OURS else "num"
    return element("td", numbers.quantity(found.median, entry.series.unit), below, class_=weight)


def _sweep(entries: Sequence[Entry]) -> list[Markup | Plot]:
    """Heat maps, then every setting with every number."""
    if not entries:
        return []
    absent = {e.series.absent: None for e in entries if e.series.absent}
    shown: list[Markup | Plot] = []
    for result in {id(e.result): e.result for e in entries if e.series.runs}.values():
        one = sweep.Sweep([entry for entry in entries if entry.result is result])
        shown += [*sweep.plots(one), sweep.table(one)]
    return [*shown, *(element("p", f"Absent: {reason}", class_="quiet") for reason in absent)]


def _published() -> list[Markup]:
    head = element("tr", *(element("th", text, scope="col") for text in ("What", "Value", "Note", "Source")))
    rows = [
        element(
            "tr",
            element("th", figure.what, scope="row"),
            element(
                "td",
                numbers.quantity(figure.value, figure.unit) if figure.value is not None else "no number",
                class_="num",
            ),
            element("td", figure.note, class_="note"),
            element("td", figure.source, class_="note quiet"),
        )
        for figure in paper.FIGURES
    ]
    return [
        element("p", f"The paper: {paper.PAPER_CONDITIONS}"),
        element("p", f"The site: {paper.SITE_CONDITIONS}"),
        tables.scrolled(
            element("table", element("thead", head), element("tbody", *rows, class_="flat")), "Published figures"
        ),
    ]

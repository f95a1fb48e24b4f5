"""The page: what was measured and on what, the goals, then section by section plots with every number beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perf.figures.results import CURVE, OURS, Result
from perf.report import goals, numbers, paper, sections, sweep, tables
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

_COMMIT_DIGITS = 12


def render(results: Sequence[Result]) -> str:
    """Return the report of one or more results as one HTML document.

    Of several files the first gives the title. Where two measured the same scenario on the same system, both are shown
    under the letters of their files; ratios only ever compare what one file measured.

    Raises:
        ValueError: there is no result.
    """
    if not results:
        raise ValueError("a report needs at least one result")
    entries = entries_of(results)
    parts = [part for part in _parts(entries) if part[2]]
    title = results[0].title or "Measurements"
    body = element(
        "main",
        element(
            "header",
            element("h1", title),
            _lede(results, entries),
            element("nav", *(element("a", name, href=f"#{key}") for key, name, _ in parts), aria_label="Sections"),
            _facts(results),
            *(element("p", f"Note: {note}") for result in results for note in result.notes),
        ),
        *(element("section", element("h2", name, id=key), *content) for key, name, content in parts),
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


def _parts(entries: Sequence[Entry]) -> Iterable[tuple[str, str, list[Markup]]]:
    """Key, heading and content of each section; those without content are left out by the caller."""
    goal_table = goals.table(entries)
    yield "goals", "Goals", [tables.scrolled(goal_table, "Goals")] if goal_table else []
    yield "systems", "Side by side", _side_by_side(entries)
    plain = {name: [e for e in entries if e.series.section == name] for name in _SECTIONS}
    for name in ("producer", "consumer"):
        found = [*sections.bar_plots(plain[name]), *sections.timeline_plots(plain[name], compared=True)]
        others = _figures(f"{name}-others", list(sections.timeline_plots(plain[name], compared=False)))
        more = element("details", element("summary", f"Over time: {len(others)} more scenarios"), *others)
        yield name, _SECTIONS[name], [*_figures(name, found), *([more] if others else [])]
    for number, name in enumerate(
        dict.fromkeys(e.series.section for e in entries if e.series.section.startswith(CURVE))
    ):
        found = list(sections.curve_plots([e for e in entries if e.series.section == name], name.removeprefix(CURVE)))
        heading = name.removeprefix(CURVE).replace("-", " ").replace("_", " ").capitalize()
        yield f"curve-{number}", f"Curve: {heading}", _figures(f"curve-{number}", found)
    found = [*sections.latency_plots(plain["latency"]), *sections.bar_plots(plain["latency"])]
    yield "latency", "Latency", _figures("latency", found)
    yield "sweep", _SECTIONS["sweep"], _sweep(plain["sweep"])
    for name in ("batches", "spark", "recovery", "memory", "machine"):
        yield name, _SECTIONS[name], _figures(name, list(sections.bar_plots(plain[name])))
    yield "published", "Published figures", _published()


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


def _figures(key: str, plots: Sequence[Plot]) -> list[Markup]:
    return [_figure(f"{key}-{number}", plot) for number, plot in enumerate(plots)]


def _figure(key: str, plot: Plot) -> Markup:
    notes = [element("p", note) for note in plot.notes]
    notes += [element("p", "Again: ", command_line(command)) for command in plot.again]
    return element(
        "figure",
        element("h3", plot.title),
        element("div", *plot.both(key), class_="plot"),
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


def _sweep(entries: Sequence[Entry]) -> list[Markup]:
    """Heat maps, then every setting with every number."""
    if not entries:
        return []
    absent = {e.series.absent: None for e in entries if e.series.absent}
    shown: list[Markup] = []
    for number, result in enumerate({id(e.result): e.result for e in entries if e.series.runs}.values()):
        one = sweep.Sweep([entry for entry in entries if entry.result is result])
        shown += [*_figures(f"sweep-{number}", sweep.plots(one)), sweep.table(one)]
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

"""Tables: every number that a plot draws, with its unit and its spread, for readers who want it exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perf.figures.results import OURS
from perf.figures.summary import Ratio, summary
from perf.report import numbers
from perf.report.entries import Entry, by_scenario
from perf.report.markup import Markup, element, join
from perf.report.percentiles import PERCENTILE
from perf.report.systems import variable_of

_MOST_OPEN = 40  # rows: longer tables wait until they are asked for


@dataclass(frozen=True)
class Column:
    """A heading, and whether numbers stand below it."""

    title: str
    number: bool = False


def headed(columns: Sequence[Column], bodies: Sequence[Markup], class_: str | None = None) -> Markup:
    """A table of bodies below a row of headings."""
    row = (element("th", one.title, scope="col", class_="num" if one.number else None) for one in columns)
    return element("table", element("thead", element("tr", *row)), join(bodies), class_=class_)


def scrolled(table: Markup, name: str) -> Markup:
    """A table that is scrolled sideways, by keyboard too, where the screen is narrower."""
    return element("div", table, class_="scroll", role="region", tabindex="0", aria_label=name)


def folded(table: Markup, name: str, rows: int) -> Markup:
    """A table that can be put away; a long one is, until it is asked for or printed."""
    return element("details", element("summary", name), scrolled(table, name), open=rows <= _MOST_OPEN)


def of_series(entries: Sequence[Entry], title: str) -> Markup:
    """A heading for each scenario, with what was run, and a row for each system."""
    groups = by_scenario(entries)
    compared, detailed = _has_ratio(entries), any(map(_details, entries))
    columns = [Column("System"), *_figures(compared), *([Column("Also measured, medians")] if detailed else [])]
    bodies = []
    for group in groups.values():
        first = group[0].series
        said = plain(_told(first.parameters))
        sub = element("span", said, class_="sub") if first.parameters else None
        rows = [element("tr", element("th", first.title, sub, scope="colgroup", colspan=len(columns)), class_="head")]
        for entry in group:
            details = [element("td", _details(entry), class_="note small")] if detailed and entry.series.runs else []
            rows.append(element("tr", _system(entry), *_cells(entry, group, compared, len(columns) - 1), *details))
        bodies.append(element("tbody", *rows))
    return folded(headed(columns, bodies), f"Every number: {title}", sum(len(group) + 1 for group in groups.values()))


def of_curve(entries: Sequence[Entry], title: str, x_title: str, x_unit: str, several: bool) -> Markup:
    """A row for each point; ``several``: with its title, since a system has more than one line."""
    compared = _has_ratio(entries)
    columns = [Column(x_title[:1].upper() + x_title[1:], number=True), Column("System")]
    columns += [*([Column("Scenario")] if several else []), *_figures(compared)]
    groups = by_scenario(sorted(entries, key=lambda entry: entry.series.x or 0.0))
    rows, before = [], None
    for group in groups.values():
        for entry in group:
            x = numbers.place(entry.series.x or 0.0, x_unit)
            title_cell = [element("td", entry.series.title, class_="note")] if several else []
            cells = [element("td", "" if x == before else x, class_="num"), _system(entry), *title_cell]
            left = len(columns) - len(cells)
            rows.append(
                element("tr", *cells, *_cells(entry, group, compared, left), class_=None if x == before else "new")
            )
            before = x
    return folded(headed(columns, [element("tbody", *rows, class_="points")]), f"Every number: {title}", len(rows))


def of_timelines(entries: Sequence[Entry], title: str) -> Markup:
    """How each system's runs went on: the median over repetitions of the mean rate in each quarter, and extremes."""
    columns = [Column("System"), *(Column(f"{name} quarter", True) for name in ("1st", "2nd", "3rd", "4th"))]
    columns += [Column("Slowest point", True), Column("Fastest point", True), Column("Length", True)]
    rows = []
    for entry in entries:
        unit = entry.series.unit
        timelines = [run.timeline for run in entry.series.runs if run.timeline]
        quarters = zip(*(_quarters(timeline) for timeline in timelines), strict=True)
        values = [value for timeline in timelines for _, value in timeline]
        shown = [*(summary(quarter).median for quarter in quarters), min(values), max(values)]
        length = numbers.duration(summary([timeline[-1][0] for timeline in timelines]).median)
        cells = [element("td", numbers.quantity(value, unit), class_="num") for value in shown]
        rows.append(element("tr", _system(entry), *cells, element("td", length, class_="num")))
    return folded(headed(columns, [element("tbody", *rows)]), f"In numbers: {title}", len(rows))


def _quarters(timeline: Sequence[tuple[float, float]]) -> list[float]:
    """The mean of the values in each quarter of the time; one without a point takes the nearest point's value."""
    length = timeline[-1][0] or 1.0
    found = []
    for quarter in range(4):
        low, high = quarter * length / 4, (quarter + 1) * length / 4
        inside = [value for at, value in timeline if low < at <= high]
        nearest = min(timeline, key=lambda point: abs(point[0] - (low + high) / 2))[1]
        found.append(sum(inside) / len(inside) if inside else nearest)
    return found


def of_percentiles(
    rows: Sequence[tuple[Entry, str, Mapping[float, float]]], shares: Mapping[float, str], title: str
) -> Markup:
    """A row for each line of a latency plot, a column for each percentile."""
    several = len({(entry.series.scenario, what) for entry, what, _ in rows}) > 1
    columns = [
        Column("System"),
        *([Column("What")] if several else []),
        *(Column(name, True) for _, name in sorted(shares.items())),
    ]
    columns.append(Column("Runs", True))
    made = []
    for entry, what, values in rows:
        unit = entry.series.unit
        cells = [
            element("td", numbers.quantity(values[share], unit) if share in values else "–", class_="num")
            for share in sorted(shares)
        ]
        name = [element("td", f"{entry.series.title}, {what}" if what else entry.series.title, class_="note")]
        made.append(
            element(
                "tr",
                _system(entry),
                *(name if several else []),
                *cells,
                element("td", len(entry.series.runs), class_="num"),
            )
        )
    return folded(headed(columns, [element("tbody", *made, class_="flat")]), f"Every number: {title}", len(made))


def over(own: Entry | None, entry: Entry) -> Ratio | None:
    """How many times another system's figure of the same file our own is."""
    if own is None or own is entry or own.result is not entry.result:
        return None
    return own.result.ratio(own.series, entry.series)


def own_of(group: Sequence[Entry], entry: Entry) -> Entry | None:
    """Our own figure that an entry can be compared with: the same scenario in the same file."""
    return next((one for one in group if one.series.system == OURS and one.result is entry.result), None)


def plain(value: object) -> str:
    """A setting in one line: "name value" pairs, numbers with their thousands marked."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {plain(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int | float):
        return numbers.plain(value)
    return str(value)


def _told(parameters: Mapping[str, object]) -> dict[str, object]:
    """What of the parameters a reader needs: not what is nothing, and the settings of the broker one by one."""
    found: dict[str, object] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            found |= value
        elif value is not None and name != "command":
            found[name] = value
    return found


def _figures(compared: bool) -> list[Column]:
    columns = [Column("Runs", True), Column("Median", True), Column("Low – high", True)]
    return [*columns, *([Column("fastlog ÷ it, 95 % interval", True)] if compared else [])]


def _has_ratio(entries: Sequence[Entry]) -> bool:
    return any(own_of(g, e) is not None and own_of(g, e) is not e for g in by_scenario(entries).values() for e in g)


def _system(entry: Entry) -> Markup:
    colour = f"--system: var(--{variable_of(entry.series.system)})"
    return element("th", entry.name, scope="row", class_="system", style=colour)


def _cells(entry: Entry, group: Sequence[Entry], compared: bool, columns: int) -> Iterator[Markup]:
    series, found = entry.series, entry.series.summary()
    if found is None:
        yield element("td", f"absent: {series.absent}", colspan=columns, class_="quiet")
        return
    yield element("td", found.n, class_="num")
    yield element("td", numbers.quantity(found.median, series.unit), class_="num strong")
    yield element("td", numbers.spread(found, series.unit) if found.n > 1 else "one run", class_="num")
    if compared:
        ratio = over(own_of(group, entry), entry)
        yield element(
            "td", f"{numbers.digits(ratio.value)} ({numbers.interval(ratio)})" if ratio else "–", class_="num"
        )


def _details(entry: Entry) -> str:
    names = dict.fromkeys(name for run in entry.series.runs for name in run.detail)
    if entry.series.section == "latency":  # percentiles have a table of their own
        names = {name: None for name in names if not PERCENTILE.fullmatch(name)}
    told = []
    for name in names:
        words, value = name.replace("_", " "), summary(entry.series.detail(name)).median
        if name.endswith("_bytes") or name == "bytes":
            told.append(f"{words.removesuffix(' bytes')} {numbers.quantity(value, 'bytes')}")
        elif name.endswith(("_ms", "_s", "_us")):
            told.append(f"{words.rpartition(' ')[0]} {numbers.digits(value)} {words.rpartition(' ')[2]}")
        else:
            told.append(f"{words} {numbers.short(value)}")
    return " · ".join(told)

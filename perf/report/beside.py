"""fastlog beside Apache Kafka under the same clients: pairs of bars with their ratio, and every number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perf.figures.beside import COMPARED, Beside, Figure
from perf.figures.summary import summary
from perf.report import bars, numbers, tables
from perf.report.markup import Markup, element
from perf.report.sections import Plot
from perf.report.systems import look_of
from perf.report.tables import Column

_PARTITIONS = re.compile(r"(?P<row>.+), (?P<partitions>\d+ partitions)")
_FAMILIES = {
    "rate": "Rate",
    "broker_cpu_per_million": "Broker processor time per million records",
    "broker_cpu_but_flushes": "The same without its flushes",
    "machine_cpu_per_million": "Processor time of the machine per million records, with the client",
    "client_cpu_us": "Client processor time per record",
}
_LATENCY = "Latency"
_NAMES = {
    "first_answer_seconds": "from its start to its first answer",
    "memory_pss_bytes": "memory of all its processes",
}
_NOTE = (
    "Each pair of bars by itself: the longer one reaches the end. Above it how many times Apache Kafka's figure "
    "fastlog's is: the median of the rounds, and the lowest and the highest."
)


def plots(one: Beside) -> Iterator[Plot]:
    """A plot of pairs for each kind of figure and each number of partitions."""
    found: dict[tuple[str, str], list[Figure]] = {}
    paced = {figure.row for figure in one.figures if figure.unit == "ms"}
    for figure in one.figures:
        if not (figure.name == "rate" and figure.row in paced):  # a pace that was chosen is no speed
            found.setdefault(_place(figure), []).append(figure)
    for (family, partitions), figures in found.items():
        title = ", ".join(filter(None, (family, partitions)))
        groups = [_group(figure, family) for figure in figures]
        less = all(figure.better == "lower" for figure in figures)
        yield Plot(
            title=title,
            figure=bars.figure(groups, alone=True),
            description=bars.description(groups),
            notes=(_NOTE, *(["Less is better."] if less else [])),
            again=(one.command,),
        )


def table(one: Beside) -> Markup:
    """The table of one comparison, with a row for each figure."""
    names = [look_of(system).name for system in COMPARED]
    columns = [Column("What"), Column("Figure"), *(Column(name, True) for name in names)]
    columns += [Column(f"{names[0]} ÷ {names[1]}", True), Column("Low – high", True)]
    rows, before = [], None
    for figure in one.figures:
        cells = [element("th", "" if figure.row == before else figure.row, scope="row")]
        cells.append(element("td", _words(figure.name)))
        for system in COMPARED:
            values = figure.values.get(system)
            text = numbers.quantity(summary(values).median, figure.unit) if values else "–"
            cells.append(element("td", text, class_="num strong"))
        ratio, low, high = ("–" if value is None else numbers.digits(value) for value in _ratio(figure))
        cells += [element("td", ratio, class_="num"), element("td", f"{low} – {high}", class_="num")]
        rows.append(element("tr", *cells, class_=None if figure.row == before else "new"))
        before = figure.row
    made = tables.headed(columns, [element("tbody", *rows, class_="points")])
    return tables.folded(made, f"Every number: {one.command}", len(rows))


def _place(figure: Figure) -> tuple[str, str]:
    """The plot that a figure belongs to: its kind, and its row's partitions, which what is of no topic lacks."""
    row = _PARTITIONS.fullmatch(figure.row)
    if row is None:
        return figure.row[:1].upper() + figure.row[1:], ""
    family = _LATENCY if figure.unit == "ms" else _FAMILIES.get(figure.name, _words(figure.name).capitalize())
    return family, row["partitions"]


def _group(figure: Figure, family: str) -> bars.Group:
    row = _PARTITIONS.fullmatch(figure.row)
    parts = [row["row"]] if row else []
    parts += [] if family in _FAMILIES.values() else [_words(figure.name)]
    ratio, low, high = (numbers.digits(value) if value is not None else "" for value in _ratio(figure))
    said = f": {ratio} × {look_of(COMPARED[1]).name}" if ratio else ""
    said += f" ({low} – {high})" if len(figure.ratios) > 1 else ""
    shown = [
        bars.Bar(
            name=look_of(system).name,
            system=system,
            values=figure.values.get(system, ()),
            found=summary(figure.values[system]) if system in figure.values else None,
            absent=None if system in figure.values else "not measured",
        )
        for system in COMPARED
    ]
    return bars.Group(title=f"{', '.join(parts)}{said}", unit=figure.unit, better=figure.better, bars=shown)


def _ratio(figure: Figure) -> Sequence[float | None]:
    return figure.ratio, min(figure.ratios, default=None), max(figure.ratios, default=None)


def _words(name: str) -> str:
    """A figure's name as readers say it: "p99", "client cpu"."""
    known = _NAMES.get(name)
    if known is not None:
        return known
    short = re.sub(r"_(ms|us|bytes|seconds|mb_per_second)(?=_|$)", "", name)
    return re.sub(r"^p(\d\d)(\d+)$", r"p\1.\2", short).replace("_", " ")

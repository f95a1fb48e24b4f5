"""The flush sweep: every combination of settings, and for each what it costs and what it puts at risk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from perf.report import heat, numbers, tables
from perf.report.entries import Entry, again
from perf.report.markup import Markup, element
from perf.report.sections import Plot
from perf.report.tables import Column

_MOST_COLUMNS = 16
_DEFAULTS = "the defaults"  # in the title of the series measured with them
_NAMES = {
    "log.flush.interval": "M",
    "log.default.flush.interval.ms": "S, ms",
    "flush.max.unflushed.bytes": "B",
    "log.preallocate": "preallocate",
    "log.early.writeback.bytes": "write-back",
    "log.cache.keep.bytes": "keep cached",
}
_LETTERS = "M and S: the most messages of a partition that a power loss can take, and the age at which a flush starts."
_SWITCHES = {"true": True, "false": False}

Point = tuple[object, ...]


class Sweep:
    """The series of one file's sweep, by what was measured (the title up to its colon) and by settings."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = [entry for entry in entries if entry.series.runs]
        self.settings = varied(self.entries)
        self.kinds: dict[str, dict[Point, Entry]] = {}
        for entry in self.entries:
            kind = entry.series.title.partition(":")[0]
            self.kinds.setdefault(kind, {})[self.point(entry)] = entry

    def point(self, entry: Entry) -> Point:
        """The values of the settings that differ, in their order."""
        parameters = flat(entry)
        return tuple(parameters.get(name) for name in self.settings)


def flat(entry: Entry) -> dict[str, object]:
    """The parameters with the broker's settings among them; switches as such."""
    found: dict[str, object] = {}
    for name, value in entry.series.parameters.items():
        found |= value if isinstance(value, Mapping) else {name: value}
    return {name: _SWITCHES.get(v, v) if isinstance(v, str) else v for name, v in found.items()}


def varied(entries: Sequence[Entry]) -> dict[str, list[object]]:
    """The settings that differ between the entries, each with its values in order."""
    flattened = [flat(entry) for entry in entries]
    found: dict[str, list[object]] = {}
    for name in dict.fromkeys(name for one in flattened for name in one):
        values: list[object] = []
        for one in flattened:
            value = one.get(name)
            if not isinstance(value, str | int | float | None):
                break
            if value not in values:
                values.append(value)
        else:
            if len(values) > 1:
                found[name] = sorted(values, key=lambda v: (isinstance(v, str), v is not None, 0 if v is None else v))
    return found


def plots(sweep: Sweep) -> list[Plot]:
    """One heat map for each measured quantity; none where the settings make no grid."""
    settings = sweep.settings
    long = sorted((name for name in settings if _is_long(name, settings[name])), key=lambda n: -len(settings[n]))[:2]
    down = [name for name in settings if name in long] or list(settings)[:1]
    across = [name for name in settings if name not in down]
    rows = list(product(*(settings[name] for name in down)))
    columns = list(product(*(settings[name] for name in across)))
    if not down or len(columns) > _MOST_COLUMNS:
        return []
    place_of = {
        tuple(dict(zip((*down, *across), (*row, *column), strict=True))[name] for name in settings): (y, x)
        for y, row in enumerate(rows)
        for x, column in enumerate(columns)
    }
    grid = heat.Grid(
        down=[_name(name) for name in down],
        rows=[[_value(name, value) for name, value in zip(down, row, strict=True)] for row in rows],
        across=[_name(name) for name in across],
        columns=[[_value(name, value) for name, value in zip(across, column, strict=True)] for column in columns],
        chosen={place_of[sweep.point(entry)] for entry in sweep.entries if _DEFAULTS in entry.series.title},
    )
    return [_plot(kind, points, grid, place_of) for kind, points in sweep.kinds.items() if len(points) > 1]


def _plot(kind: str, points: Mapping[Point, Entry], grid: heat.Grid, place_of: Mapping[Point, tuple[int, int]]) -> Plot:
    first = next(iter(points.values())).series
    cells = {place_of[point]: found.median for point, e in points.items() if (found := e.series.summary())}
    panel = heat.Panel(title=kind, unit=first.unit, better=first.better, cells=cells)
    unit = numbers.UNIT_NAMES.get(first.unit, first.unit)
    better = "more" if first.better == "higher" else "less"
    notes = [f"Medians{f' in {unit}' if unit else ''}; {better} is better, and the stronger the colour the better."]
    notes += [_LETTERS] if {"M", "S, ms"} <= {*grid.down, *grid.across} else []
    notes += ["The frame marks the defaults."] if grid.chosen else []
    return Plot(
        title=kind,
        figure=heat.figure(panel, grid),
        description=heat.description(panel, grid),
        notes=tuple(notes),
        again=again(points.values()),
    )


def table(sweep: Sweep) -> Markup:
    """A row for each combination of settings, with every quantity's median and spread."""
    columns = [Column(_name(name), True) for name in sweep.settings]
    columns += [Column(kind, True) for kind in sweep.kinds] + [Column("Runs", True)]
    points = sorted({sweep.point(entry) for entry in sweep.entries}, key=lambda point: _order(sweep, point))
    rows = []
    for point in points:
        cells = [_value(name, value) for name, value in zip(sweep.settings, point, strict=True)]
        found = [kind.get(point) for kind in sweep.kinds.values()]
        default = any(entry and _DEFAULTS in entry.series.title for entry in found)
        runs = max(len(entry.series.runs) for entry in found if entry)
        shown = [element("td", cell, class_="num") for cell in cells] + [_figure(entry) for entry in found]
        shown.append(element("td", runs, class_="num"))
        rows.append(element("tr", *shown, class_="strong" if default else None))
    made = tables.headed(columns, [element("tbody", *rows, class_="flat")])
    return tables.folded(made, "Every number: flush settings, medians with the lowest and the highest below", len(rows))


def _figure(entry: Entry | None) -> Markup:
    found = entry.series.summary() if entry else None
    if entry is None or found is None:
        return element("td", "–", class_="num")
    unit = entry.series.unit
    below = element("span", numbers.spread(found, unit), class_="sub") if found.n > 1 else None
    return element("td", numbers.quantity(found.median, unit), below, class_="num")


def _order(sweep: Sweep, point: Point) -> tuple[int, ...]:
    return tuple(values.index(value) for values, value in zip(sweep.settings.values(), point, strict=True))


def _is_long(name: str, values: Sequence[object]) -> bool:
    """Whether a setting goes down: one of the two that every sweep is about, or a number with many values."""
    if any(isinstance(value, bool | str) for value in values):
        return False
    return len(values) > 2 or name in {"log.flush.interval", "log.default.flush.interval.ms"}


def _name(name: str) -> str:
    return _NAMES.get(name) or name.replace("_", " ").replace(".", " ")


def _value(name: str, value: object) -> str:
    """A value as a reader scans it: switches and what is 0 as "on" and "–", bytes with their prefix."""
    if isinstance(value, bool) or value is None:
        return "on" if value else "–"
    if isinstance(value, int | float):
        if name.endswith((".bytes", "_bytes")):
            return numbers.chosen_size(value) if value else "–"
        return numbers.plain(value)
    return str(value)

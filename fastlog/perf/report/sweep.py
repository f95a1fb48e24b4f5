"""The flush sweep: every combination of settings, and for each what it costs and what it puts at risk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from fastlog.perf.report import heat, numbers
from fastlog.perf.report.entries import Entry
from fastlog.perf.report.sections import Plot
from fastlog.perf.results import Better
from fastlog.perf.summary import summary

_MOST_COLUMNS = 16
_CHOSEN = "default"
_NAMES = {
    "log.flush.interval": "M",
    "log.default.flush.interval.ms": "S",
    "flush.max.unflushed.bytes": "B",
    "log.preallocate": "preallocate",
    "log.early.writeback.bytes": "write-back",
}
"""The names under which docs speak of them."""
_LETTERS = "A flush is due after M messages or S milliseconds, whichever comes first."

_DETAILS: tuple[tuple[str, str, str, Better], ...] = (
    ("p99", "Latency, 99th percentile", "ms", "lower"),
    ("risk", "Data at risk", "bytes", "lower"),
)
"""A word in the name of a detail, what it is, its unit where the name does not end in one, and which way is better."""
_UNITS = {"_ms": "ms", "_s": "s", "_bytes": "bytes", "_messages": ""}


def flat(entry: Entry) -> dict[str, object]:
    """The parameters with the broker's settings among them."""
    found: dict[str, object] = {}
    for name, value in entry.series.parameters.items():
        found |= value if isinstance(value, Mapping) else {name: value}
    return found


def varied(entries: Sequence[Entry]) -> dict[str, list[object]]:
    """The settings that differ between the entries, each with its values in order."""
    names = dict.fromkeys(name for entry in entries for name in flat(entry))
    found: dict[str, list[object]] = {}
    for name in names:
        values: list[object] = []
        for entry in entries:
            value = flat(entry).get(name)
            if not isinstance(value, str | int | float | bool | None):
                break
            if value not in values:
                values.append(value)
        else:
            if len(values) > 1 and name != _CHOSEN:
                found[name] = sorted(values, key=lambda v: (isinstance(v, str), v is None, v if v is not None else 0))
    return found


def plots(entries: Sequence[Entry]) -> list[Plot]:
    """One heat map for each measured quantity; none where the settings make no grid."""
    measured = [entry for entry in entries if entry.series.runs]
    settings = varied(measured)
    long = sorted((name for name in settings if _is_long(settings[name])), key=lambda name: -len(settings[name]))[:2]
    down = [name for name in settings if name in long] or list(settings)[:1]
    across = [name for name in settings if name not in down]
    rows = list(product(*(settings[name] for name in down)))
    columns = list(product(*(settings[name] for name in across)))
    if len(measured) < 2 or not rows or len(columns) > _MOST_COLUMNS:
        return []
    places = {}
    for entry in measured:
        parameters = flat(entry)
        row, column = tuple(parameters.get(n) for n in down), tuple(parameters.get(n) for n in across)
        places[rows.index(row), columns.index(column)] = entry
    row_names = [" · ".join(_said(name, value) for name, value in zip(down, row, strict=True)) for row in rows]
    column_names = [[_said(name, value) for name, value in zip(across, column, strict=True)] for column in columns]
    chosen = {place for place, entry in places.items() if entry.series.parameters.get(_CHOSEN)}
    found = []
    for panel in _panels(places):
        found.append(
            Plot(
                title=panel.title,
                draw=lambda width, key, panel=panel: heat.draw(  # type: ignore[misc]
                    panel, row_names, column_names, chosen, width, key, panel.title
                ),
                notes=(
                    f"Medians{f' in {numbers.UNIT_NAMES.get(panel.unit, panel.unit)}' if panel.unit else ''}; "
                    f"{'more' if panel.better == 'higher' else 'less'} is better, and the stronger the colour "
                    "the better.",
                    _LETTERS,
                    *(("The frame marks the defaults.",) if chosen else ()),
                ),
            )
        )
    return found


def _panels(places: dict[tuple[int, int], Entry]) -> list[heat.Panel]:
    first = next(iter(places.values())).series
    values = {place: found.median for place, entry in places.items() if (found := entry.series.summary())}
    title = {"messages/s": "Throughput", "MB/s": "Throughput"}.get(first.unit, "Value")
    panels = [heat.Panel(title=title, unit=first.unit, better=first.better, cells=values)]
    names = dict.fromkeys(name for entry in places.values() for run in entry.series.runs for name in run.detail)
    for word, title, unit, better in _DETAILS:
        for name in names:
            if word not in name or name.startswith(("p99.9", "p99_9", "p999")):
                continue
            unit = next((known for ending, known in _UNITS.items() if name.endswith(ending)), unit)
            cells = {place: summary(runs).median for place, e in places.items() if (runs := e.series.detail(name))}
            panels.append(heat.Panel(title=title, unit=unit, better=better, cells=cells))
            break
    return panels


def _is_long(values: Sequence[object]) -> bool:
    return len(values) > 2 and all(isinstance(value, int | float | None) for value in values)


def _said(name: str, value: object) -> str:
    """A setting and its value as a reader scans them: "M 10,000", "S 100 ms", "preallocate", "no fadvise"."""
    short = _NAMES.get(name) or name.replace("_", " ").replace(".", " ")
    if isinstance(value, bool) or value is None:
        return short if value else f"no {short}"
    if isinstance(value, int | float):
        if name.endswith(".bytes") or name.endswith("_bytes"):
            return f"{short} {numbers.quantity(value, 'bytes')}" if value else f"no {short}"
        unit = "ms" if name.endswith((".ms", "_ms")) else ""
        return f"{short.removesuffix(' ms')} {numbers.plain(value)} {unit}".rstrip()
    return f"{short} {value}"

"""What each part of the page shows: which entries go into which plot and which table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perf.figures.summary import summary
from perf.report import bars, lines, numbers, paper, tables
from perf.report.entries import Entry, again, by_scenario, by_unit
from perf.report.markup import Markup
from perf.report.percentiles import SECONDS, TOP, nines, percentiles
from perf.report.systems import PUBLISHED, rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_MARKS = 14  # places on a curve that are written below its axis one by one
_BARS = (
    "Each dot is one repetition, the upright stroke their median. A dashed stroke is the goal. "
    "On the right: the median, then the lowest and the highest repetition."
)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One figure: its drawing, also in words, with what a reader must know, the commands that measure it again, and
    its numbers as a table."""

    title: str
    figure: Figure
    description: str
    notes: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    table: Markup | None = None


def bar_plots(entries: Sequence[Entry]) -> Iterator[Plot]:
    """One plot of bars for each unit, one group for each scenario."""
    for unit, same in by_unit(entries).items():
        title = f"{numbers.unit_title(unit)}, every scenario"
        groups = [_group(group) for group in by_scenario(same).values()]
        notes = [_BARS]
        if not all(entry.series.better == "higher" for entry in same):
            notes.append("Less is better.")
        if any(bar.system == PUBLISHED for group in groups for bar in group.bars):
            notes.append("Published figures were measured by others on other machines; see the list of them.")
        yield Plot(
            title=title,
            figure=bars.figure(groups),
            description=bars.description(groups),
            notes=tuple(notes),
            again=again(same),
            table=tables.of_series(same, title),
        )


def _group(entries: Sequence[Entry]) -> bars.Group:
    first = entries[0].series
    shown = [
        bars.Bar(
            name=entry.name,
            system=entry.series.system,
            values=entry.series.values,
            found=entry.series.summary(),
            goal=entry.goal_value,
            absent=entry.series.absent,
        )
        for entry in entries
    ]
    published = next((entry.series.paper for entry in entries if entry.series.paper is not None), None)
    if published is not None:
        shown.append(
            bars.Bar(name="Kafka 0.7, published", system=PUBLISHED, values=(published,), found=summary([published]))
        )
    return bars.Group(title=first.title, unit=first.unit, better=first.better, bars=shown)


def timeline_plots(entries: Sequence[Entry], *, compared: bool) -> Iterator[Plot]:
    """For each scenario with timelines: the rate as the runs went on, every system on one plot.

    ``compared``: those that have something beside fastlog, a system or a published figure; else the others.
    """
    for group in by_scenario(entries).values():
        shown = [entry for entry in group if any(run.timeline for run in entry.series.runs)]
        beside = len(shown) > 1 or any(entry.series.paper is not None for entry in group)
        if shown and beside == compared:
            yield _timeline(shown)


def _timeline(entries: Sequence[Entry]) -> Plot:
    unit, title = entries[0].series.unit, f"{entries[0].series.title}: over time"
    totals = [_sent(run.timeline)[-1][0] for entry in entries for run in entry.series.runs if run.timeline]
    rate = unit in {"messages/s", "MB/s"}
    alike = rate and min(totals) > 0 and max(totals) / min(totals) < 3
    if alike:
        what = "messages" if unit == "messages/s" else "MB"
        x_title, note = (
            f"{what} so far",
            f"As in figures 4 and 5 of the paper, the x axis counts the {what} of the run.",
        )
    elif rate:
        x_title = "share of the run (1 = all of it)"
        note = "The systems were given different amounts, so the x axis is the share of each run's own amount."
    else:
        x_title, note = "seconds since the start", "The x axis is the time since the start of the run."
    drawn = []
    for entry in entries:
        middle = entry.series.summary()
        runs = [(abs(run.value - (middle.median if middle else 0)), run) for run in entry.series.runs if run.timeline]
        paths = []
        for _, run in runs:
            points = _sent(run.timeline or ()) if rate else list(run.timeline or ())
            total = points[-1][0] or 1.0
            paths.append([(x if alike or not rate else x / total, y) for x, y in points])
        nearest = min(range(len(runs)), key=lambda number: runs[number][0])
        others = [path for number, path in enumerate(paths) if number != nearest]
        drawn.append(
            lines.Line(name=entry.name, system=entry.series.system, points=paths[nearest], ghosts=others, marks=False)
        )
    published = next((entry.series.paper for entry in entries if entry.series.paper is not None), None)
    if published is not None:
        drawn.append(lines.Line(name="published mean", system=PUBLISHED, level=published))
    labels = lines.Labels(
        x_title=x_title, x_unit=unit if alike else "", y_unit=unit, y_title=numbers.unit_title(unit), x_from_zero=True
    )
    return Plot(
        title=title,
        figure=lines.figure(drawn, labels),
        description=lines.description(drawn, labels),
        notes=("Strong: the repetition nearest to the median. Faint: the others.", note),
        again=again(entries),
        table=tables.of_timelines(entries, title),
    )


def _sent(timeline: Sequence[tuple[float, float]] | None) -> list[tuple[float, float]]:
    """Turn (seconds, rate since the point before) into (amount so far, rate)."""
    found, before, amount = [], 0.0, 0.0
    for seconds, rate in timeline or ():
        amount += max(seconds - before, 0.0) * rate
        before = seconds
        found.append((amount, rate))
    return found


def curve_plots(entries: Sequence[Entry], name: str) -> Iterator[Plot]:
    """One plot for each unit: a line for each system and family of scenarios, and the published points."""
    for unit, same in by_unit(entries).items():
        x_title = next((entry.series.x_title for entry in same if entry.series.x_title), name)
        title = f"{numbers.unit_title(unit)} against {x_title}"
        drawn = _curve_lines([entry for entry in same if entry.series.runs])
        several = len({(line.system, line.variant) for line in drawn}) > len({line.system for line in drawn})
        notes = ["Each dot is one repetition; the line goes through the medians."]
        if drawn:
            line, note = _published_line(same, name, unit)
            drawn += [line] if line else []
            notes += [note] if note else []
        absent = [f"{entry.name}: {entry.series.absent}" for entry in same if entry.series.absent]
        notes += [f"Absent: {text}" for text in dict.fromkeys(absent)]
        size = "bytes" if re.search(r"\bbytes?\b", x_title.lower()) else ""
        marks = {x for line in drawn for x, _ in line.points}
        labels = lines.Labels(
            x_title=x_title,
            x_unit=size,
            x_marks=sorted(marks) if len(marks) <= _MOST_MARKS else (),
            y_unit=unit,
            y_title=numbers.unit_title(unit),
        )
        yield Plot(
            title=title,
            figure=lines.figure(drawn, labels),
            description=lines.description(drawn, labels),
            notes=tuple(notes),
            again=again(same),
            table=tables.of_curve(same, title, x_title, size, several),
        )


def _published_line(entries: Sequence[Entry], name: str, unit: str) -> tuple[lines.Line | None, str]:
    """What was published of a curve, and a note that says where: the chart of the site, else the file's figures."""
    label = "Kafka 0.7, published"
    known = paper.curve_or_none(name)
    points, level = (known.points_in(unit), known.level_in(unit)) if known else ([], None)
    if known is None or (not points and level is None):
        own = sorted({(s.x or 0.0, s.paper) for s in (entry.series for entry in entries) if s.paper is not None})
        return (lines.Line(name=label, system=PUBLISHED, points=own) if own else None), ""
    note = f"Published: {paper.SITE}{f'; {known.note}' if known.note else ''}."
    return lines.Line(name=label, system=PUBLISHED, points=points, level=level), note


def _curve_lines(entries: Sequence[Entry]) -> list[lines.Line]:
    families: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: rank(entry.series.system)):
        families.setdefault((entry.series.system, entry.mark, entry.family), []).append(entry)
    for key in [key for key, family in families.items() if len(family) == 1]:  # "stored-full" and "stored-empty"
        families.setdefault((*key[:2], ""), []).extend(families.pop(key))
    count = {key[:2]: [other[2] for other in families if other[:2] == key[:2]] for key in families}
    drawn = []
    for key, family in families.items():
        among = count[key[:2]]
        points = sorted((e.series.x or 0.0, found.median) for e in family if (found := e.series.summary()))
        drawn.append(
            lines.Line(
                name=family[0].name + (f", {_without_numbers(family[0].series.title)}" if len(among) > 1 else ""),
                system=key[0],
                points=points,
                dots=[
                    (e.series.x or 0.0, value) for e in family for value in e.series.values if len(e.series.runs) > 1
                ],
                variant=among.index(key[2]),
            )
        )
    return drawn


def _without_numbers(title: str) -> str:
    return " ".join(re.sub(r"\b\d[\d.,]*\b", "", title).split()).strip(" ,")


def latency_plots(entries: Sequence[Entry]) -> Iterator[Plot]:
    """Latency against the percentile: one plot for each scenario, or one for all where only one system was measured."""
    shown = [entry for entry in entries if entry.series.unit in SECONDS and _has_percentiles(entry)]
    if len({entry.name for entry in shown}) < 2:
        if shown:
            yield _latency(shown, "Latency by percentile", lambda entry: entry.series.title)
        return
    for group in by_scenario(shown).values():
        yield _latency(group, group[0].series.title, lambda entry: entry.name)


def _has_percentiles(entry: Entry) -> bool:
    return any(percentiles(run.detail, entry.series.unit) for run in entry.series.runs)


def _latency(entries: Sequence[Entry], title: str, named: Callable[[Entry], str]) -> Plot:
    unit = entries[0].series.unit
    found = [[percentiles(run.detail, entry.series.unit) for run in entry.series.runs] for entry in entries]
    known = {share for runs in found for run in runs for values in run.values() for share in values}
    top = 1.0 + max(nines(share) for share in known - {TOP})
    shares = {top if share == TOP else nines(share): "max" if share == TOP else f"{share:g} %" for share in known}
    drawn: list[lines.Line] = []
    rows = []
    for entry, runs in zip(entries, found, strict=True):
        for what in dict.fromkeys(what for run in runs for what in run):
            paths = [
                sorted((top if share == TOP else nines(share), value) for share, value in run[what].items())
                for run in runs
                if what in run
            ]
            words = what.replace("_", " ")
            line = lines.Line(
                name=f"{named(entry)}, {words}" if words else named(entry),
                system=entry.series.system,
                points=_medians(paths),
                ghosts=paths if len(paths) > 1 else (),
                variant=sum(line.system == entry.series.system for line in drawn),
            )
            drawn.append(line)
            rows.append((entry, words, dict(line.points)))
    labels = lines.Labels(
        x_title="share of the messages that were at least as fast",
        x_ticks=sorted(shares.items()),
        y_unit=unit,
        y_title=numbers.unit_title(unit),
    )
    return Plot(
        title=title,
        figure=lines.figure(drawn, labels),
        description=lines.description(drawn, labels),
        notes=(
            "Timed from the moment at which a message was meant to be sent, so that a stall is not hidden.",
            "Strong: the median of the repetitions at each percentile. Faint: each repetition. Less is better.",
        ),
        again=again(entries),
        table=tables.of_percentiles(rows, shares, title),
    )


def _medians(paths: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    values: dict[float, list[float]] = {}
    for path in paths:
        for x, y in path:
            values.setdefault(x, []).append(y)
    return [(x, summary(ys).median) for x, ys in sorted(values.items())]

"""The page of a run: what was promised and kept, four plots with the kills in them, and the list of the kills."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perf.report import drawing
from perf.report.markup import Markup, element, join
from perf.report.systems import variables
from scripts.demo_spark.evidence import Commit, Verdict, Windows, share_of
from scripts.demo_spark.kills import Hit
from scripts.demo_spark.lines import CENTRAL, TICK, WINDOW_MS, Sent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 280.0
_BIN_SECONDS = 2
_INK = {"dc1": "#1f6fb4", "dc2": "#3aa0a0", CENTRAL: "#8a5fb0", "table": "#c2571a", "late": "#b08a00"}
_KINDS = {
    "broker": ("#c23030", "a whole cluster"),
    "process": ("#e08a8a", "one process of a cluster"),
    "mirror": ("#8a5fb0", "the mirror"),
    "job": ("#c2571a", "a job of Spark with its Java machine"),
    "store": ("#7a8290", "the object store stood still"),
}
_STYLE = """
:root { color-scheme: light; %s }
body { font: 15px/1.5 sans-serif; color: var(--ink); max-width: 800px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; } p { margin: .3rem 0; }
.verdict { font-size: 1.3rem; font-weight: 600; padding: .6rem .9rem; border-left: 6px solid; }
.right { border-color: #2e8b57; background: #eef7f1; } .wrong { border-color: #c23030; background: #fbeeee; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .1rem .9rem .1rem 0; }
td:first-child { font-variant-numeric: tabular-nums; text-align: right; } svg { width: 100%%; height: auto; }
"""


@dataclass(frozen=True)
class Run:
    """All that the page shows. Times in seconds since 1970, in tables and diaries in ms."""

    began: float
    ended: float
    diaries: Mapping[str, Sequence[Sent]]
    mirrored: Sequence[tuple[float, int]]
    """How many records the central cluster had when."""
    commits: Sequence[Commit]
    windows: Windows
    hits: Sequence[Hit]
    verdict: Verdict
    told: Sequence[str]
    """The lines that the demo printed while it ran."""


def page_of(run: Run) -> str:
    """The page as HTML, with everything in it."""
    verdict = run.verdict
    colours = {"ink": drawing.INK, "quiet": drawing.QUIET, "grid": drawing.GRID, "paper": drawing.PAPER, **variables()}
    style = _STYLE % " ".join(f"--{name}: {value};" for name, value in colours.items())
    title = "From two datacenters into a table, under kills"
    body = [
        element("h1", title),
        element("p", verdict, class_=f"verdict {'right' if verdict.is_right else 'wrong'}"),
        element("p", f"{len(run.hits)} times something was killed or stopped, in {run.ended - run.began:.0f} s."),
        *_section("Rates", "rates", _rates(run), "Lines a second: acknowledged in the datacenters, in the central"
                  " cluster, in the table."),
        *_section("From the producer to the table", "latency", _latencies(run), "How long the rows of each transaction"
                  f" took, by the producers' times. Of all: half within {verdict.latency_ms['p50'] / 1000:.1f} s, 99 %"
                  f" within {verdict.latency_ms['p99'] / 1000:.1f} s."),
        *_section("Counts against the audit", "counts", _counts(run), "Page views in windows of"
                  f" {WINDOW_MS / 1000:g} s: acknowledged, told to the audit by the producers, counted by Spark."
                  f" The audit says: {_states(run.windows.states)}."),
        *_section("Difference", "difference", _difference(run), "Counts and late messages together minus what producers"
                  f" told the audit, by window. {run.windows.late.total():,} messages were late for their window, and"
                  " are in a table of their own."),
        element("h2", "Kills"),
        element("table", *(_row(hit, run.began) for hit in run.hits)),
        element("h2", "Said on the way"),
        element("pre", "\n".join(run.told)),
    ]  # fmt: skip
    head = element("head", element("meta", charset="utf-8"), element("title", title), element("style", Markup(style)))
    return f"<!doctype html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _section(title: str, key: str, made: Figure, text: str) -> Iterable[Markup]:
    return element("h2", title), element("p", text), drawing.embedded(made, key, title, text)


def _row(hit: Hit, began: float) -> Markup:
    back = f"back after {hit.back - hit.at:.1f} s"
    return element("tr", *(element("td", text) for text in (f"{hit.at - began:.1f} s", hit.what, back)))


def _states(states: Counter[str]) -> Markup:
    return join((f"{count} {state}" for state, count in sorted(states.items())), ", ") or Markup("nothing")


def rates(moments: Iterable[tuple[float, int]], began: float, ended: float) -> list[tuple[float, float]]:
    """A second, in the middle of each bin, of what came at moments, a number each."""
    bins: Counter[int] = Counter()
    for at, count in moments:
        bins[int((at - began) // _BIN_SECONDS)] += count
    last = max(0, int((ended - began) // _BIN_SECONDS))
    return [((number + 0.5) * _BIN_SECONDS, bins[number] / _BIN_SECONDS) for number in range(last + 1)]


def increases(totals: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """What has come between each look at a total and the next."""
    return [(at, now - before) for (_, before), (at, now) in itertools.pairwise(totals)]


def _rates(run: Run) -> Figure:
    with _drawing(run, "lines a second", names_kills=True) as (made, axes):
        for sender, diary in run.diaries.items():
            if sender != TICK:
                moments = [(batch.acknowledged_ms / 1000, batch.count) for batch in diary if batch.acknowledged_ms]
                _line(axes, rates(moments, run.began, run.ended), _INK[sender], f"acknowledged, {sender}")
        _line(axes, rates(increases(run.mirrored), run.began, run.ended), _INK[CENTRAL], "in the central cluster")
        moments = [(commit.at_ms / 1000, len(commit.values)) for commit in run.commits]
        _line(axes, rates(moments, run.began, run.ended), _INK["table"], "in the table", "dashed")
        axes.set_ylim(bottom=0)
    return made


def _latencies(run: Run) -> Figure:
    with _drawing(run, "seconds") as (made, axes):
        for share, name, dashes in ((0.5, "half of the rows", "solid"), (0.99, "99 % of the rows", "dashed")):
            points = [
                (commit.at_ms / 1000 - run.began, share_of(ordered, share) / 1000)
                for commit in run.commits
                if (ordered := commit.latencies_ms)
            ]
            _line(axes, points, _INK["table"], name, dashes, mark="o")
        axes.set_ylim(bottom=0)
    return made


def _counts(run: Run) -> Figure:
    windows = run.windows
    with _drawing(run, "page views in a window") as (made, axes):
        for found, name, colour, look in (
            (windows.acknowledged, "acknowledged", _INK["dc1"], {"linestyle": "-", "linewidth": 4.0, "alpha": 0.35}),
            (
                windows.told,
                "told to the audit",
                _INK[CENTRAL],
                {"linestyle": "none", "marker": "s", "fillstyle": "none"},
            ),
            (windows.counted, "counted", _INK["table"], {"linestyle": "none", "marker": "x"}),
            (windows.late, "late", _INK["late"], {"linestyle": "none", "marker": "v"}),
        ):
            points = [(window / 1000 - run.began, found[window]) for window in sorted(found)]
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.plot(xs, ys, color=colour, label=name, markersize=5, mec=colour, mew=1.2, **look)
        axes.set_ylim(bottom=0)
    return made


def _difference(run: Run) -> Figure:
    windows = run.windows
    with _drawing(run, "page views too many in a window", height=_HEIGHT / 2) as (made, axes):
        known = sorted(windows.told | windows.counted | windows.late)
        differences = [windows.counted[at] + windows.late[at] - windows.told[at] for at in known]
        axes.bar([at / 1000 - run.began for at in known], differences, width=WINDOW_MS / 1000, color=_INK["dc1"])
        most = max(1, *(abs(item) for item in differences), 1)
        axes.set_ylim(-most, most)
    return made


def _line(
    axes: Axes, points: Sequence[tuple[float, float]], colour: str, name: str, dashes: str = "solid", mark: str = ""
) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    axes.plot(xs, ys, color=colour, label=name, linestyle=dashes, marker=mark or None, markersize=3, linewidth=1.6)


class _drawing:
    """A drawing over the time of a run, to be drawn on until the block ends; the kills and the names of all lines come
    then."""

    def __init__(self, run: Run, title: str, *, names_kills: bool = False, height: float = _HEIGHT) -> None:
        self._run = run
        self._title = title
        self._names_kills = names_kills
        self._figure = drawing.figure(height)

    def __enter__(self) -> tuple[Figure, Axes]:
        self._made, self._axes = self._figure.__enter__()
        return self._made, self._axes

    def __exit__(self, *given: object) -> None:
        run, axes = self._run, self._axes
        axes.set_xlim(0, max(run.ended - run.began, 1.0))
        axes.set_xlabel("seconds", loc="left")
        axes.set_title(self._title, loc="left", size=drawing.SMALL, color=drawing.QUIET)
        axes.grid(visible=False, axis="x")
        for kind, (colour, name) in _KINDS.items():
            label = name if self._names_kills else None
            for hit in run.hits:
                if hit.kind == kind:
                    x = hit.at - run.began
                    axes.axvline(
                        x, color=colour, linewidth=0.9, alpha=0.7, linestyle=(0, (2, 2)), label=label, zorder=0
                    )
                    label = None
        if axes.get_legend_handles_labels()[1]:
            self._made.legend(loc="outside right upper")
        self._figure.__exit__(*given)  # type: ignore[arg-type]

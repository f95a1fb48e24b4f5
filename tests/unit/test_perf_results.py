"""Result files: what is kept comes back, what is damaged is named, statistics are those of a calculation by hand."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastlog.perf import machine
from perf.figures.flushing import flush_policy
from perf.figures.results import CEILING, Goal, GoalPart, Result, ResultsError, Run, Series, load, save
from perf.figures.summary import Ratio, Summary, ratio_of_medians, summary


def series(scenario: str = "produce-batch-50", system: str = "fastlog", **fields: Any) -> Series:
    """A series of rates; ``values`` are its runs."""
    values = fields.pop("values", (4.0, 5.0, 6.0))
    given: dict[str, Any] = {
        "title": "Producer, batches of 50",
        "section": "producer",
        "unit": "messages/s",
        "better": "higher",
        "runs": tuple(Run(value=value) for value in values),
    }
    return Series(scenario=scenario, system=system, **{**given, **fields})


def result(*found: Series, **fields: Any) -> Result:
    """A result with these series."""
    given: dict[str, Any] = {
        "title": "A measurement",
        "command": "python -m perf replay",
        "started": "2026-01-02T03:04:05Z",
        "seconds": 12.5,
        "machine": {"cpus": 2, "kernel": "6.1"},
        "settings": {"processors": 2, "messages": 10},
        "warm_up": "memory touched before each run",
        "series": found,
    }
    return Result(**{**given, **fields})


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    """Every field survives the file, timelines and absent series included; an older file is replaced as a whole."""
    path = tmp_path / "new" / "result.json"
    kept = result(
        series(
            runs=(Run(value=1.5, detail={"seconds": 2}, timeline=((0.0, 1.0), (0.5, 2.0))), Run(value=3.0)),
            goal=Goal(value=4e6, ceiling_ratio=0.45, of="produce-batch-1", of_ratio=0.8),
            paper=400_000.0,
            parameters={"batch": 50, "codec": "none"},
        ),
        series(system="kafka", runs=(), absent="FASTLOG_PERF_KAFKA is not set"),
        series("latency", section="curve:rate", unit="ms", better="lower", x=1000, x_title="messages a second"),
        notes=("stopped after round 2 of 5",),
    )
    save(result(), path)
    save(kept, path)
    assert load(path) == kept
    assert list(path.parent.iterdir()) == [path]
    assert "timeline" not in json.loads(path.read_text())["series"][0]["runs"][1]


def test_a_result_that_cannot_be_read_is_not_written(tmp_path: Path) -> None:
    """What ``load`` would refuse never replaces a good file."""
    path = tmp_path / "result.json"
    save(result(series()), path)
    with pytest.raises(ResultsError, match=r"series\[0\].runs\[0\].value: nan is no number"):
        save(result(series(values=(float("nan"),))), path)
    assert load(path) == result(series())
    assert list(tmp_path.iterdir()) == [path]


def edited(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["series"][0][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(schema=2), "schema: 2, this version reads 1"),
        (lambda document: document.pop("machine"), "machine: missing"),
        (lambda document: document.update(series={}), "series: not a list"),
        (lambda document: document.update(seconds=True), "seconds: True is no number"),
        (
            lambda document: document["series"].append(document["series"][0]),
            "produce-batch-50 on fastlog is there twice",
        ),
        (lambda document: document["series"][0].pop("title"), r"series\[0\].title: missing"),
        (edited("unit", "miles"), r"series\[0\].unit: 'miles' is none of messages/s, ms, s"),
        (edited("better", "more"), r"series\[0\].better: 'more' is none of higher, lower"),
        (edited("section", "curve:"), r"series\[0\].section: 'curve:' is none of"),
        (edited("section", "curve:batch"), r"series\[0\].x: missing, the section is a curve"),
        (edited("colour", "red"), r"series\[0\]: unknown: colour"),
        (edited("runs", []), r"series\[0\]: no runs, and absent does not say why"),
        (edited("absent", "no gcc"), r"series\[0\]: absent \(no gcc\), and has runs"),
        (edited("goal", {"of": "other"}), r"series\[0\].goal: of and of_ratio go together"),
        (edited("runs", [{"value": "4"}]), r"series\[0\].runs\[0\].value: '4' is no number"),
        (edited("runs", [{"value": 1e308}]), r"series\[0\].runs\[0\].value: 1e\+308 is no number"),
        (edited("runs", [{"value": 10**400}]), r"series\[0\].runs\[0\].value: 10+ is no number"),
        (edited("title", "\ud800"), r"series\[0\].title: '.ud800' is no text of whole characters"),
        (edited("runs", [{"value": 4, "detail": {"p99": None}}]), r"runs\[0\].detail.p99: None is no number"),
        (edited("runs", [{"value": 4, "timeline": [[1, 2, 3]]}]), r"timeline\[0\]: not a pair of seconds and value"),
    ],
)
def test_a_damaged_file_is_refused_by_place(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    """The error names the file, the place in it and what was found there."""
    path = tmp_path / "result.json"
    save(result(series()), path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ResultsError, match=message) as refused:
        load(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    """Text, half a file and bytes that are no text are errors of their own kind, not tracebacks."""
    for data in (b"hello", b'{"schema": 1', b"\xff\xfe\x00", b"[" * 100_000):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(ResultsError, match="no JSON"):
            load(tmp_path / "x")


def test_the_spread() -> None:
    """Median, lowest, highest and count, also of an even number of runs and of one."""
    assert summary([5, 1, 4]) == Summary(3, 4, 1, 5)
    assert summary([4, 1, 2, 10]) == Summary(4, 3, 1, 10)
    assert summary([7]) == Summary(1, 7, 7, 7)
    with pytest.raises(ValueError, match="no runs"):
        summary([])


def test_the_interval_of_a_ratio() -> None:
    """Of constants it is the ratio; of three runs the whole range, as 7 in 27 resamplings have the lowest median."""
    assert ratio_of_medians([6, 6, 6], [3, 3, 3]) == Ratio(2, 2, 2, 3, False)
    assert ratio_of_medians([8], [2]) == Ratio(4, 4, 4, 1, False)
    found = ratio_of_medians([10, 20, 30], [1, 1, 1])
    assert (found.value, found.low, found.high) == (20, 10, 30)
    assert found == ratio_of_medians([10, 20, 30], [1, 1, 1])  # the seed is fixed


def test_rounds_that_were_disturbed_together_do_not_widen_the_interval() -> None:
    """Each round gives twice the base: paired, every resampling gives 2; unpaired, the rounds' own spread shows."""
    base = [10.0, 30.0, 20.0, 50.0, 40.0]
    values = [2 * value for value in base]
    paired = ratio_of_medians(values, base, paired=True)
    assert (paired.low, paired.value, paired.high) == (2, 2, 2)
    loose = ratio_of_medians(values, base)
    assert loose.value == 2
    assert loose.low < 1 < 3 < loose.high
    # A round that one side lacks is left out for both.
    assert ratio_of_medians([*values, 10_000.0], base, paired=True) == paired


@pytest.mark.parametrize("base", [[], [0.0, 1.0], [-1.0], [float("inf")]])
def test_no_ratio_to_nothing(base: list[float]) -> None:
    """Without runs, and to values that are not above 0, there is none."""
    with pytest.raises(ValueError, match=r"no runs|not above 0|no finite number"):
        ratio_of_medians([1.0], base)


def test_goals_are_judged_against_the_same_file() -> None:
    """Value, share of the ceiling and share of another scenario; unknown where one side was not measured."""
    found = result(
        series(goal=Goal(value=4.5, ceiling_ratio=0.6, of="alone", of_ratio=0.5)),
        series(system=CEILING, values=(10.0, 10.0, 10.0)),
        series("alone", values=(8.0, 8.0, 8.0)),
    )
    parts = found.goal_parts(found.series[0])
    assert parts == [
        GoalPart("value", 4.5, 5.0, "higher"),
        GoalPart("of the ceiling", 0.6, 0.5, "higher"),
        GoalPart("of alone", 0.5, 0.625, "higher"),
    ]
    assert [part.met for part in parts] == [True, False, True]
    lonely = result(found.series[0])
    assert [part.met for part in lonely.goal_parts(lonely.series[0])] == [True, None, None]
    slow = series(values=(9.0,), unit="ms", better="lower", goal=Goal(value=8.0))
    assert [part.met for part in result(slow).goal_parts(slow)] == [False]
    absent = dataclasses.replace(series(goal=Goal(value=1.0)), runs=(), absent="not built")
    assert [part.met for part in result(absent).goal_parts(absent)] == [None]


def test_the_machine_is_described_as_plain_data(tmp_path: Path) -> None:
    """It fits into a result, names versions and file system, and the policy is that of the broker's configuration."""
    described = machine.describe(tmp_path)
    assert {"commit", "cpu", "kernel", "file_system", "load_average", "packages"} <= set(described)
    save(result(series(), machine=described), tmp_path / "x")
    assert load(tmp_path / "x").machine == described
    policy = flush_policy({"log.flush.interval": 500, "log.preallocate": False})
    assert (policy["log.flush.interval"], policy["log.preallocate"]) == (500, False)
    assert policy["flush.max.unflushed.bytes"] == 268_435_456

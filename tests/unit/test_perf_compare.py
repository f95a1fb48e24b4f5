"""Comparing two result files: verdicts, warnings, the table, and the exit code."""

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perf.__main__ import main
from perf.compare.comparison import NOTHING_SHOWN, compare
from perf.figures import summary
from perf.figures.results import save
from tests.unit.test_perf_results import result, series

ROOT = Path(__file__).parents[2]
LOW, HIGH = (1.0, 1.1, 1.15, 1.2, 1.3), (2.0, 2.1, 2.15, 2.2, 2.3)


@pytest.mark.parametrize(
    ("a", "b", "fields", "verdict"),
    [
        (LOW, HIGH, {}, "faster"),
        (HIGH, LOW, {}, "slower"),
        (LOW, HIGH, {"unit": "ms", "better": "lower"}, "slower"),
        (HIGH, LOW, {"unit": "s", "better": "lower"}, "faster"),
        (HIGH, LOW, {"unit": "bytes", "better": "lower"}, "smaller"),
        (LOW, LOW, {}, NOTHING_SHOWN),
        ((1.0, 2.0, 3.0, 4.0, 5.0), (2.0, 3.0, 4.0, 5.0, 6.0), {}, NOTHING_SHOWN),
        (LOW[:4], HIGH[:4], {}, NOTHING_SHOWN),  # wholly apart, and still too few
        ((0.0, 1.0), (1.0, 1.0), {}, "not comparable"),
    ],
)
def test_verdicts(a: tuple[float, ...], b: tuple[float, ...], fields: dict[str, Any], verdict: str) -> None:
    """The interval decides, in the direction in which the series gets better."""
    (row,) = compare(result(series(values=a, **fields)), result(series(values=b, **fields))).rows
    assert row.verdict == verdict
    assert bool("too few runs" in row.note) == (len(a) == 4)


def test_a_row_below_a_limit() -> None:
    """Only a whole interval below it counts, and where lower is better the ratio is turned."""
    (row,) = compare(result(series(values=HIGH)), result(series(values=LOW))).rows
    assert row.ratio is not None
    assert row.is_below(row.ratio.high + 0.001)
    assert not row.is_below(row.ratio.high)
    (slower,) = compare(
        result(series(values=LOW, unit="ms", better="lower")), result(series(values=HIGH, unit="ms", better="lower"))
    ).rows
    assert slower.speed is not None
    assert slower.ratio is not None
    assert slower.speed.high == pytest.approx(1 / slower.ratio.low)
    assert slower.is_below(0.95)


def test_too_few_runs_fail_nobody() -> None:
    """One pair, however far apart, shows nothing to ``--fail-below`` either."""
    (row,) = compare(result(series(values=HIGH[:1])), result(series(values=LOW[:1]))).rows
    assert row.speed is not None
    assert row.speed.high < 0.95
    assert not row.is_below(0.95)


def test_equal_things_are_seldom_called_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all the ways in which runs of one thing can fall to two files, at most 5 % show a difference."""
    monkeypatch.setattr(summary, "RESAMPLES", 1000)
    first, *others = (100.0 + number for number in range(2 * summary.MIN_RUNS))
    verdicts = []
    for more in combinations(others, summary.MIN_RUNS - 1):  # the other half is the same with a and b exchanged
        b = tuple(value for value in others if value not in more)
        (row,) = compare(result(series(values=(first, *more))), result(series(values=b))).rows
        verdicts.append(row.verdict)
    assert "faster" in verdicts
    assert verdicts.count(NOTHING_SHOWN) >= 0.95 * len(verdicts)


def test_what_is_on_one_side_only_is_said() -> None:
    """A series that is missing, and one that was absent, have no ratio and a verdict that says where."""
    a = result(series("old"), series("peer", runs=(), absent="not installed"))
    b = result(series("new"), series("peer"))
    assert [(row.scenario, row.verdict, row.ratio) for row in compare(a, b).rows] == [
        ("new", "not in a", None),
        ("peer", "absent in a", None),
        ("old", "not in b", None),
    ]


def test_differences_that_make_a_comparison_doubtful_are_warnings() -> None:
    """Machine, settings, parameters, warm-up, load and notes; equal files give none, but for too few runs."""
    same = result(series(values=LOW))
    assert compare(same, same).warnings == ()
    other = result(
        series(values=LOW, parameters={"batch": 1}),
        machine={"cpus": 2, "kernel": "6.18", "load_average": [1.9, 1, 1], "packages": {"numpy": "2", "fastlog": "1"}},
        settings={"processors": 4, "messages": 10},
        warm_up="none",
        notes=("stopped after round 1 of 5",),
    )
    found = compare(same, other)
    text = "\n".join(found.warnings)
    for part in ("kernel is '6.1' in a, '6.18' in b", "processors is 2 in a, 4 in b", "other package: numpy"):
        assert part in text
    for part in ("other warm-up", "load 1.9 on 2 processors", "b: stopped after round 1 of 5"):
        assert part in text
    assert "fastlog is" not in text  # what is compared may differ
    assert found.rows[0].note == "other batch"
    few = result(series())
    assert compare(few, few).warnings == ("series with fewer than 5 runs can show no difference",)


def call(tmp_path: Path, *arguments: str, a: Any = None, b: Any = None) -> Result:
    save(a or result(series(values=LOW)), tmp_path / "a.json")
    save(b or result(series(values=HIGH)), tmp_path / "b.json")
    return CliRunner().invoke(
        main,
        ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), *arguments],
        standalone_mode=False,
    )


def test_the_table(tmp_path: Path) -> None:
    """Columns are aligned: each starts, or ends, at the same place in every line."""
    a = result(series(values=tuple(value * 1e6 for value in LOW)), series("b", values=LOW))
    b = result(series(values=tuple(value * 1e6 for value in HIGH)), series("b", values=LOW))
    header, first, second = call(tmp_path, a=a, b=b).stdout.splitlines()
    assert first.split()[:7] == ["produce-batch-50", "fastlog", "1.15", "Mmsg/s", "2.15", "Mmsg/s", "1.870"]
    assert first.endswith("5, 5  faster")
    assert header.index("verdict") == first.index("faster") == second.index(NOTHING_SHOWN)
    assert header.index("b / a") + 5 == first.index("1.870") + 5 == second.index("1.000") + 5


def test_json_has_everything(tmp_path: Path) -> None:
    """Rows with ratio and interval, warnings, and what failed."""
    found = json.loads(call(tmp_path, "--json", "--fail-below", "3").stdout)
    (row,) = found["rows"]
    assert (row["verdict"], row["a"]["median"], row["ratio"]["runs"]) == ("faster", 1.15, 5)
    assert found["warnings"] == []
    assert found["failed"] == [{"scenario": "produce-batch-50", "system": "fastlog"}]


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--fail-below", "1.5"), 0), (("--fail-below", "3"), 1)])
def test_the_exit_code(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    """A difference alone is no failure; one below the limit is."""
    assert call(tmp_path, *arguments).return_value == code


def test_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    """Files without a common series, a pattern that fits nothing, and a file that is no result do not pass quietly."""
    for found in (call(tmp_path, "--only", "x*"), call(tmp_path, a=result(series("other")))):
        assert "nothing was compared" in str(found.exception)
    (tmp_path / "no.json").write_text("{}")
    found = CliRunner().invoke(
        main, ["compare", str(tmp_path / "no.json"), str(tmp_path / "a.json")], standalone_mode=False
    )
    assert "no.json: schema: None, this version reads 1" in str(found.exception)


@pytest.mark.parametrize("name", ["compare", "report"])
def test_help_is_as_that_of_all_commands(name: str) -> None:
    """Examples first, as they are called; exit codes last."""
    found = CliRunner().invoke(main, [name, "--help"], prog_name="python -m perf")
    lines = found.stdout.split("\n")
    assert found.exit_code == 0 and lines[0] == "Examples:" and "Exit codes:" in lines
    assert all(line.startswith(f"  python -m perf {name} ") for line in lines[1:3]) and lines[3] == ""


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -m perf compare`` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "perf", "compare", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=50
    )


@pytest.mark.slow
def test_the_program_ends_with_the_code_of_the_command(tmp_path: Path) -> None:
    """Below a limit 1, no result 2 with what, why and what to do; ``--debug`` shows where it was."""
    a, b, no = (str(tmp_path / name) for name in ("a.json", "b.json", "no.json"))
    save(result(series(values=HIGH)), Path(a))
    save(result(series(values=LOW)), Path(b))
    Path(no).write_text("{}")
    below = program(a, b, "--fail-below", "0.9")
    assert below.returncode == 1 and "below 0.9: produce-batch-50" in below.stderr
    refused = program(a, no)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 3
    assert "why: it is not what python -m perf replay writes" in refused.stderr
    assert "Traceback" in program("--debug", a, no).stderr

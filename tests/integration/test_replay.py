"""``python -m perf replay`` as a user calls it: real brokers, real clients, small."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click.testing
import psutil
import pytest
from click.testing import CliRunner

from perf.__main__ import main
from perf.compare.comparison import compare
from perf.figures.results import Result, load

ROOT = Path(__file__).parents[2]
WITHIN = 60.0


def replay(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Started with its scratch and its result below ``tmp_path``; in a session of its own, as from a terminal."""
    place = ["--scratch", str(tmp_path / "scratch"), "--out", str(tmp_path / "result.json"), "--no-peers"]
    return subprocess.Popen(
        [sys.executable, "-m", "perf", "replay", *place, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and output; killed, with everything it started, when it takes too long."""
    try:
        out, error = process.communicate(timeout=WITHIN)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, error


def left_behind(tmp_path: Path) -> list[object]:
    """Files in the scratch directory, and processes that know it once those have gone that the kernel ends."""
    deadline = time.monotonic() + WITHIN
    while processes := [
        one.info["cmdline"]
        for one in psutil.process_iter(["cmdline"])
        if any(str(tmp_path) in word for word in one.info["cmdline"] or ())
    ]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)  # a broker that was just being started: its processes end with their supervisor
    return [*(tmp_path / "scratch").iterdir(), *processes]


def rates(result: Result) -> dict[tuple[str, str], int]:
    return {(series.scenario, series.system): len(series.runs) for series in result.series}


@pytest.mark.slow
def test_a_tiny_replay(tmp_path: Path) -> None:
    """One scenario of most kinds, through the real code: every series has its run, and nothing is left."""
    names = ("produce-send-50-flushed", "consume-numpy", "latency-1000-default", "recovery*")
    options = [word for name in names for word in ("--only", name)]
    code, out, error = ended(replay(tmp_path, "--messages", "2000", "--rounds", "1", *options))
    assert code == 0, error
    result = load(tmp_path / "result.json")
    assert rates(result) == {
        ("produce-send-50-flushed", "fastlog"): 1,
        ("consume-numpy", "fastlog"): 1,
        ("consume-numpy", "ceiling"): 1,
        ("latency-1000-default", "fastlog"): 1,
        ("latency-1000-default-beside-disk", "fastlog"): 1,
        ("recovery", "fastlog"): 1,
        ("recovery-per-gb", "fastlog"): 1,
        ("recovery-in-doubt", "fastlog"): 1,
    }
    assert result.notes == ()
    produced = result.find("produce-send-50-flushed")
    assert produced is not None
    assert (produced.runs[0].detail["messages"], produced.runs[0].detail["log_bytes"]) == (2000, 2000 * 210)
    for name in ("produce-send-50-flushed", "consume-numpy"):
        series = result.find(name)
        assert series is not None
        assert series.runs[0].detail["client_cpu_ns"] > 0 <= series.runs[0].detail["broker_cpu_ns"]
    latency = result.find("latency-1000-default")
    assert latency is not None
    detail = latency.runs[0].detail
    assert 0 < detail["p50_ms"] <= detail["p99_ms"] <= detail["p99_9_ms"] <= detail["max_ms"]
    assert detail["count"] == 200
    assert result.settings["messages"] == 2000
    assert result.settings["flush_policy"]["log.flush.interval"] == 1_000_000
    assert "consume-numpy" in out
    (row, *_) = compare(result, result).rows
    assert (row.scenario, row.verdict) == ("produce-send-50-flushed", "no difference shown")
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_a_tiny_replay_of_record_batches(tmp_path: Path) -> None:
    """One scenario of each kind, on fastlog and on the ceiling: everything that was sent was acknowledged, and read."""
    names = ("produce-16k", "fetch-12", "single", "single-0.7", "lz4", "check-lz4", "first-answer")
    options = [word for name in names for word in ("--only", f"batches-{name}")]
    code, _, error = ended(replay(tmp_path, "--messages", "20000", "--rounds", "1", *options))
    assert code == 0, error
    result = load(tmp_path / "result.json")
    assert result.notes == ()
    pairs = {"produce-16k", "fetch-12", "single"}
    assert rates(result) == {
        **{(f"batches-{name}", "fastlog"): 1 for name in (*names, "whole-memory")},
        **{(f"batches-{name}", "ceiling"): 1 for name in pairs},
    }
    for name in pairs:
        counts = [one.runs[0].detail["messages"] for one in result.series if one.scenario == f"batches-{name}"]
        assert counts == [2000 if name == "single" else 10_000] * 2
    produced = result.find("batches-produce-16k")
    assert produced is not None
    assert 0 < produced.runs[0].detail["p50_ms"] <= produced.runs[0].detail["p99_ms"]
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_an_interrupted_replay_leaves_a_result_and_nothing_else(tmp_path: Path) -> None:
    """Ctrl-C in the second round: exit code 130, the first round is in the file, with a note."""
    process = replay(tmp_path, "--messages", "2000", "--rounds", "1000", "--only", "produce-send-50-appended")
    path = tmp_path / "result.json"
    deadline = time.monotonic() + WITHIN
    while not path.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the brokers as well
    code, _, error = ended(process)
    assert code == 130, error
    result = load(path)
    assert result.notes == ("stopped by a signal before everything was measured",)
    assert len(result.series[0].runs) >= 1
    assert left_behind(tmp_path) == []


def call(tmp_path: Path, *arguments: str) -> click.testing.Result:
    """The same command in this process, for what ends before anything is started."""
    place = ["--scratch", str(tmp_path / "scratch"), "--out", str(tmp_path / "result.json"), "--no-peers"]
    return CliRunner().invoke(main, ["replay", *place, *arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--only", "stored", "--stored-bytes", "1000TB"), "are needed in"),
        (("--only", "produce-*", "--only", "no-such-thing"), "no scenario matches no-such-thing"),
        (("--set", "log.flash=1"), "unknown setting"),
        (("--set", "log.flash"), "is not NAME=VALUE"),
        (("--set", "log.dir=/tmp"), "--scratch"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(
    tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    """Too little space, an unknown scenario, an unknown setting: an error, no result."""
    found = call(tmp_path, *arguments)
    assert text in str(found.exception)
    assert not (tmp_path / "result.json").exists()


def test_the_list_runs_nothing(tmp_path: Path) -> None:
    """It shows each scenario with its goal."""
    found = call(tmp_path, "--list", "--only", "topics-100")
    assert found.exception is None
    (line,) = found.stdout.splitlines()[1:]
    assert line.startswith("topics-100 ")
    assert "0.7 of topics-1 " in line
    assert not (tmp_path / "scratch").exists()

"""The replay: scenarios as data, rounds that alternate and survive failures, and what is computed from samples."""

import contextlib
import errno
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fastlog.errors import ConfigError
from perf import __main__, interrupts
from perf.ceiling import pair
from perf.figures.flushing import flush_policy
from perf.figures.results import CEILING, CURVE, OURS, SECTIONS, Result, Run, load
from perf.replay import in_spark, runners, streams, table
from perf.replay.rounds import Rounds, Task, series_of, tasks
from perf.replay.runners import others
from perf.replay.runners.sweep import Sample, longest_unflushed
from perf.replay.scenarios import BLOCKS, PEERS, SPARK_KAFKA, Figure, FlushPolicy, InSpark, Produce, Scenario
from perf.replay.stage import Options, ReplayError, Stage, TooLittleSpaceError

ROOT = Path(__file__).parents[2]
ALL = table.scenarios(Options())
FIGURES = [figure for scenario in ALL for figure in scenario.figures]


def test_names_are_unique() -> None:
    """A series is found by its name."""
    names = [figure.name for figure in FIGURES]
    assert sorted(set(names)) == sorted(names)


def test_what_stands_beside_lines_has_their_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceiling of lines of 3 bytes is no one of 200; curves about other sizes stay random."""
    options = Options(messages=100, scratch=tmp_path, payload_file=tmp_path / "lines", line_bytes=3)
    assert options.payloads() == (tmp_path / "lines", 3)
    assert options.payloads(20) == (None, 20)
    assert Options().payloads() == (None, 200)
    sizes: list[int] = []
    monkeypatch.setattr(pair, "produce", lambda _messages, _batch, size, *_: sizes.append(size) or {"rate": 1.0})
    scenario = Produce(figures=(Figure(name="p", title="p", section="producer"),), block="producer")
    with Stage(options, print) as stage:
        others.ceiling(stage, scenario)
    assert sizes == [3]
    assert table.needed_bytes((scenario,), options, 1) == 100 * (3 + 10)


def test_a_payload_file_is_read_before_anything_runs(tmp_path: Path) -> None:
    """An empty one is refused then, and not by one scenario after the other."""
    (tmp_path / "empty").touch()
    (tmp_path / "lines").write_bytes(b"1\n22\n666666")
    given = {name: None for name in ("rounds", "messages", "scratch")} | {"quick": True, "extra": ()}
    given |= {"processors": 2, "seed": 1}
    with pytest.raises(ConfigError, match="no whole line"):
        __main__._options(given | {"payload_file": tmp_path / "empty"}, None)
    options, _ = __main__._options(given | {"payload_file": tmp_path / "lines"}, None)
    assert options.line_bytes == 3


class FakeRuns:
    """A replay of nothing, whose result file cannot be written while its scratch directory has files."""

    def __init__(self, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scratch, self.ran, self._save = scratch, 0, __main__.save
        monkeypatch.setattr(__main__.runners, "run", self.run)
        monkeypatch.setattr(__main__, "save", self.save)

    def run(self, *_: object) -> dict[str, Run]:
        self.ran += 1
        return {"rate": Run(value=1.0)}

    def save(self, result: Result, path: Path, *, trial: bool = False) -> None:
        if any(self.scratch.glob("perf-*")):
            raise OSError(errno.ENOSPC, "no space left")
        self._save(result, path, trial=trial)


def replayed(scratch: Path, out: Path) -> Any:
    arguments = ["replay", "--quick", "--no-peers", "--only", "consume-arrow", "--rounds", "2"]
    return CliRunner().invoke(__main__.main, [*arguments, "--scratch", str(scratch), "--out", str(out)])


def test_a_result_that_finds_no_room_is_written_when_the_logs_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at the end of a round does not end the replay, and one at its end loses nothing."""
    fake = FakeRuns(tmp_path / "scratch", monkeypatch)
    found = replayed(tmp_path / "scratch", tmp_path / "out.json")
    assert found.exception is None
    assert fake.ran == 2
    assert [len(series.runs) for series in load(tmp_path / "out.json").series] == [2]


def test_a_result_file_that_cannot_be_written_is_told_of_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not after an hour; a result that is there stays until there is another."""
    fake = FakeRuns(tmp_path / "scratch", monkeypatch)
    (tmp_path / "file").write_text("kept")
    found = replayed(tmp_path / "scratch", tmp_path / "file" / "out.json")
    assert isinstance(found.exception, OSError)
    assert fake.ran == 0
    assert (tmp_path / "file").read_text() == "kept"


def test_the_reason_of_a_failure_in_spark_is_that_of_the_worker() -> None:
    text = "[TASK] Job aborted\n  File x.py\nfastlog.errors.DeliveryError: 5 messages\n\tat org.x\nSQLSTATE: 38000"
    assert in_spark._reason(text) == "fastlog.errors.DeliveryError: 5 messages"
    assert in_spark._reason("Java heap space\nat x") == "Java heap space"
    assert in_spark._reason("") == "no reason was given"


def test_jars_of_kafkas_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, or a directory of them; without any the system is absent, with the variable's name."""
    monkeypatch.delenv(in_spark.JARS_VARIABLE, raising=False)
    assert in_spark.JARS_VARIABLE in runners.missing({SPARK_KAFKA})[SPARK_KAFKA]
    monkeypatch.setenv(in_spark.JARS_VARIABLE, str(tmp_path))
    assert in_spark.connector_jars() is None
    for name in ("b.jar", "a.jar"):
        (tmp_path / name).touch()
    assert in_spark.connector_jars() == f"{tmp_path}/a.jar,{tmp_path}/b.jar"
    assert "no spark-sql-kafka" in runners.missing({SPARK_KAFKA})[SPARK_KAFKA]
    for name in in_spark.JARS:
        (tmp_path / f"{name}1.jar").touch()
    monkeypatch.delenv("FASTLOG_KAFKA_HOME", raising=False)
    assert "FASTLOG_KAFKA_HOME" in runners.missing({SPARK_KAFKA})[SPARK_KAFKA]
    monkeypatch.setenv(in_spark.JARS_VARIABLE, f"{tmp_path}/a.jar,{tmp_path}/c.jar")
    assert f"{tmp_path}/c.jar" in runners.missing({SPARK_KAFKA})[SPARK_KAFKA]


def test_a_result_names_the_jars_of_kafkas_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the Kafka that they read; there is nothing to say of systems whose names say it."""
    libraries = tmp_path / "libs"
    libraries.mkdir()
    for path in (tmp_path / "spark-sql-kafka-0-10_2.13-4.2.0.jar", libraries / "kafka-clients-4.2.1.jar"):
        path.touch()
    monkeypatch.setenv(in_spark.JARS_VARIABLE, str(tmp_path))
    monkeypatch.setenv("FASTLOG_KAFKA_HOME", str(tmp_path))
    assert runners.described({SPARK_KAFKA, "kafka"}) == [
        "spark-kafka: spark-sql-kafka-0-10_2.13-4.2.0; Apache Kafka 4.2.1"
    ]
    assert runners.described({"kafka"}) == []


def test_every_scenario_can_be_run_and_shown() -> None:
    """Its kind has a runner, its block a place in the order, its figures a section; points of curves have a place."""
    for scenario in ALL:
        assert type(scenario) in runners._OURS
        assert scenario.block in BLOCKS
        assert scenario.parameters()["settings"] == dict(scenario.settings)
    for series in series_of(tasks(ALL, 1, ["kafka"])):
        assert series.absent == "it was not reached"
        assert series.section in SECTIONS or series.section.startswith(CURVE), series.section
        assert not series.section.startswith("curve:") or series.x is not None


def test_goals_are_measured_beside_what_they_refer_to() -> None:
    """A goal that is a ratio to another figure, or to the ceiling, has both sides in one block, round by round."""
    owner = {figure.name: scenario for scenario in ALL for figure in scenario.figures}
    for figure in FIGURES:
        if figure.goal is not None and figure.goal.of is not None:
            assert owner[figure.goal.of].block == owner[figure.name].block, figure.name
        if figure.goal is not None and figure.goal.ceiling_ratio is not None:
            assert CEILING in owner[figure.name].systems
            assert figure is owner[figure.name].figures[0]


def test_the_goals_of_the_project_are_there() -> None:
    """Every goal that was set, by its figure."""
    goals = {figure.name: figure.goal for figure in FIGURES if figure.goal is not None}
    values = {name: goal.value for name, goal in goals.items() if goal.value is not None}
    assert values == {
        "produce-send-50": 4.0e6,
        "produce-list-50": 5.5e6,
        "produce-send-1": 2.5e6,
        "tail": 2.0e6,
        "tail-paced": 2.0e6,
        "tail-lag": 50,
        "consume-payloads": 8e6,
        "consume-lists": 14e6,
        "consume-numpy": 14e6,
        "consume-files": 25e6,
        "latency-10000-default-beside-disk": 8.0,
        "latency-10000-flushed-beside-disk": 2.0,
        "recovery": 0.5,
        "memory-small": 40e6,
        "memory-large": 40e6,
        "spark-count": 1.2e6,
        "spark-count-direct": 2.5e6,
        "spark-load": 0.3e6,
        "spark-write": 0.6e6,
        "batches-produce-16k": 5.0e6,
        "batches-flushed-p99": 10.0,
        "batches-flushed-slow-p99": 10.0,
        "batches-first-answer": 0.5,
        "batches-whole-memory": 80e6,
    }
    ratios = {name: (goal.of, goal.of_ratio) for name, goal in goals.items() if goal.of is not None}
    assert ratios == {
        "produce-send-50-appended": ("produce-send-50", 0.8),
        "produce-send-50-flushed": ("produce-send-50", 0.5),
        "produce-gzip-50": ("codec-gzip", 0.8),
        "produce-snappy-50": ("codec-snappy", 0.8),
        "group-payloads": ("consume-payloads", 0.8),
        "group-lists": ("consume-lists", 0.8),
        "mirror": ("consume-payloads", 0.5),
        "fan-out-4": ("fan-out-1", 1.0),
        "fan-out-4-produce": ("fan-out-4-produce-alone", 0.5),
        "fan-out-16": ("fan-out-1", 1.0),
        "fan-out-16-produce": ("fan-out-16-produce-alone", 0.5),
        "topics-100": ("topics-1", 0.7),
        "stored-full": ("stored-empty", 0.95),
        "batches-single": ("batches-single-0.7", 0.5),
        "batches-produce-1000": ("batches-produce-12", 0.5),
        "batches-fetch-1000": ("batches-fetch-12", 0.5),
        "batches-lz4": ("batches-check-lz4", 0.8),
        "batches-zstd": ("batches-check-zstd", 0.8),
    }
    assert {name: goal.ceiling_ratio for name, goal in goals.items() if goal.ceiling_ratio is not None} == {
        "produce-send-50": 0.45,
        "produce-list-50": 0.6,
        "consume-lists": 0.5,
        "consume-numpy": 0.5,
        "batches-produce-16k": 0.6,
        "batches-fetch-1m": 0.6,
    }
    (stored,) = (scenario for scenario in ALL if scenario.name == "stored-full")
    assert (stored.turns(1), stored.turns(21)) == (7, 21)


def test_the_sweep_has_every_combination_and_names_the_defaults() -> None:
    """Once each; one of them is what a broker has that is told nothing."""
    points = [scenario for scenario in ALL if isinstance(scenario, FlushPolicy)]
    assert len({tuple(sorted(scenario.settings.items())) for scenario in points}) == len(points) == 4 * 2 * (2 * 2 + 1)
    (default,) = (scenario for scenario in points if "(the defaults)" in scenario.figures[0].title)
    assert flush_policy(default.settings) == flush_policy({})


def test_patterns_choose_by_name_and_by_block() -> None:
    """A figure's name brings its whole scenario, a block everything of it, nothing everything."""
    assert [scenario.name for scenario in table.selected(ALL, ("tail-lag",))] == ["tail-paced"]
    assert {scenario.block for scenario in table.selected(ALL, ("sweep", "latency"))} == {"sweep", "latency"}
    assert table.selected(ALL, ()) == ALL
    assert table.selected(ALL, ("no-such",)) == ()


def test_space_is_asked_for_before_anything_is_written(tmp_path: Path) -> None:
    """The largest scenario counts; too little is an error that says how much, and leaves nothing."""
    stored = table.needed_bytes(table.selected(ALL, ("stored",)), Options(), 5)
    assert 20e9 + 8 * 2e6 * 210 <= stored < 25e9
    assert table.needed_bytes(table.selected(ALL, ("produce-list-50",)), Options(messages=1000), 5) == 210_000
    with Stage(Options(scratch=tmp_path), print) as stage:
        with pytest.raises(TooLittleSpaceError, match=r"are needed in .*, .* are free"):
            stage.require_space(2**60)
        assert list(tmp_path.iterdir()) == [stage.directory]
    assert list(tmp_path.iterdir()) == []


# --- rounds ---


def made_up(name: str, **fields: Any) -> Scenario:
    figures = (Figure(name=name, title=name, section="producer"),)
    return Produce(figures=figures, block=fields.pop("block", "producer"), **fields)


class Played:
    """A stage that does nothing, and a measurement that notes what it was asked for."""

    def __init__(self, failing: Mapping[tuple[str, int], BaseException] | None = None) -> None:
        self.asked: list[str] = []
        self.counts: dict[str, int] = {}
        self.failing = failing or {}
        self.ended: list[str] = []
        self.stage: Any = SimpleNamespace(
            end_round=lambda: self.ended.append("round"), end_block=lambda: self.ended.append("block")
        )

    def measure(self, stage: object, scenario: Scenario, system: str) -> Mapping[str, Run]:
        key = f"{scenario.name}/{system}"
        self.asked.append(key)
        number = self.counts[key] = self.counts.get(key, 0) + 1
        if (key, number) in self.failing:
            raise self.failing[key, number]
        return {"rate": Run(value=float(number))}

    def play(self, found: list[Task]) -> Rounds:
        rounds = Rounds(self.stage, found, self.measure, lambda text: None)
        with contextlib.suppress(KeyboardInterrupt):
            rounds.run()
        return rounds


def test_scenarios_take_turns() -> None:
    """A B A B, not A A B B; with each the systems it is compared with; blocks one after another."""
    played = Played()
    found = tasks([made_up("a", systems=(OURS, CEILING)), made_up("b"), made_up("c", block="latency")], 2, [])
    played.play(found)
    assert played.asked == [
        *("a/fastlog", "a/ceiling", "b/fastlog") * 2,
        *("c/fastlog",) * 2,
    ]
    assert played.ended[:3] == ["round", "round", "block"]
    assert played.ended.count("block") == len(BLOCKS)


def test_rounds_of_a_scenarios_own() -> None:
    """Some need a fixed number of rounds, some allow fewer, and peers take part in few."""
    found = tasks(
        [made_up("fixed", least_rounds=7), made_up("few", most_rounds=3), made_up("peers", systems=(OURS, PEERS))],
        5,
        ["kafka", "activemq"],
    )
    assert [(task.scenario.name, task.system, task.rounds) for task in found] == [
        ("fixed", "fastlog", 7),
        ("few", "fastlog", 3),
        ("peers", "fastlog", 5),
        ("peers", "kafka", 3),
        ("peers", "activemq", 3),
    ]


def test_a_scenario_that_fails_is_noted_and_left_out() -> None:
    """What it gave before stays, the others go on, and no later run takes the place of the one that failed."""
    played = Played({("a/fastlog", 2): RuntimeError("no\nluck"), ("b/fastlog", 1): OSError("disk")})
    found = tasks([made_up("a"), made_up("b"), made_up("c")], 3, [])
    rounds = played.play(found)
    assert played.counts == {"a/fastlog": 2, "b/fastlog": 1, "c/fastlog": 3}
    a, b, c = series_of(found)
    assert (a.values, a.absent) == ((1.0,), None)
    assert (b.values, b.absent) == ((), "disk")
    assert c.values == (1.0, 2.0, 3.0)
    assert rounds.failed
    assert rounds.notes == ["b on fastlog failed in round 1: disk", "a on fastlog failed in round 2: no luck"]


def test_an_interrupted_replay_keeps_what_it_has() -> None:
    """Everything is let go of, and the series hold the runs that were whole."""
    played = Played({("b/fastlog", 2): KeyboardInterrupt()})
    found = tasks([made_up("a"), made_up("b")], 3, [])
    played.play(found)
    assert [series.values for series in series_of(found)] == [(1.0, 2.0), (1.0,)]
    assert played.ended == ["round", "round", "block"]


def test_what_is_absent_is_not_tried() -> None:
    """It is a series without runs that says why."""
    played = Played()
    found = tasks([made_up("a", systems=(OURS, PEERS))], 2, ["kafka"])
    found[1].absent = "not installed"
    assert not played.play(found).failed
    assert played.asked == ["a/fastlog"] * 2
    assert [(series.system, series.absent) for series in series_of(found)] == [
        ("fastlog", None),
        ("kafka", "not installed"),
    ]


# --- what is computed ---


def test_how_long_bytes_were_not_flushed() -> None:
    """From the sample that first saw the oldest of them to the last one that saw them unflushed."""
    samples = [
        Sample(0.0, 0, 0),
        Sample(1.0, 0, 100),
        Sample(2.0, 0, 300),
        Sample(4.0, 100, 300),  # the first hundred waited until here at most: seen unflushed at 2.0
        Sample(7.0, 100, 300),  # the rest has been there since 2.0
        Sample(8.0, 300, 300),
    ]
    assert longest_unflushed(samples) == 5.0
    assert longest_unflushed(samples[:3]) == 1.0
    assert longest_unflushed([]) == 0.0


def test_stamps_are_cut_out_of_a_batch() -> None:
    """One for each message, from the place where its payload starts; other sizes are noticed."""
    buffer = np.zeros(5 + 3 * 30, np.uint8)
    for number in range(3):
        at = 5 + 30 * number + 10
        buffer[at : at + 8] = np.frombuffer((1000 + number).to_bytes(8, "little"), np.uint8)
    batch = SimpleNamespace(buffer=buffer, starts=np.array([15, 45, 75]))
    assert streams._stamps(batch, 20).tolist() == [1000, 1001, 1002]
    assert streams._stamps(SimpleNamespace(buffer=buffer, starts=np.array([45])), 20).tolist() == [1001]
    with pytest.raises(RuntimeError, match="not of the size"):
        streams._stamps(SimpleNamespace(buffer=buffer, starts=np.array([15, 44, 75])), 21)


def test_percentiles_by_hand() -> None:
    """Of 0, 1, …, 1000 ms."""
    found = streams.percentiles(np.arange(1001) * 1_000_000)
    assert found == {
        "p50_ms": 500, "p95_ms": 950, "p99_ms": 990, "p99_9_ms": 999, "max_ms": 1000, "mean_ms": 500, "count": 1001,
    }  # fmt: skip


def test_a_signal_in_the_middle_of_a_fork_is_not_lost() -> None:
    """Python drops what its handlers around a fork raise, and a signal is often handled there."""
    program = """
import os, signal, time
from perf.interrupts import take_signals

take_signals()
parent = os.getpid()
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
try:
    child = os.fork()
    if os.getpid() != parent:
        os._exit(0)
    time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(7)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=50, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 7, run.stderr
    assert run.stderr == ""


def test_a_signal_that_is_raised_again_does_not_kill_a_program_that_ends() -> None:
    """It was lost, and something else has ended the program before it came again."""
    program = """
import signal, time
from perf.interrupts import take_signals

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(0.1)

take_signals()
last = Last()
signal.setitimer(signal.ITIMER_REAL, 0.03)
raise SystemExit(7)
"""
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=50).returncode == 7


def test_a_signal_that_was_taken_does_not_come_again() -> None:
    """It was lost, and seen by what failed because of it: what is done at the end is done."""
    program = """
import os, signal, time
from perf import interrupts

interrupts.take_signals()
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
parent = os.getpid()
try:
    child = os.fork()
    if os.getpid() != parent:
        os._exit(0)
    interrupts.end()
except KeyboardInterrupt:
    time.sleep(0.1)
    raise SystemExit(7)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=50, stderr=subprocess.PIPE, text=True)
    assert (run.returncode, run.stderr) == (7, "")


def test_what_fails_after_a_signal_is_no_failed_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal tells the brokers as well, and their end may be seen before the signal is."""
    monkeypatch.setattr(interrupts.signal, "signal", lambda number, handler: None)

    def broken(*_: object) -> dict[str, Run]:
        monkeypatch.setattr(interrupts, "_came", True)
        raise OSError("the broker has ended")

    with Stage(Options(scratch=tmp_path), lambda text: None) as stage:
        playing = Rounds(stage, tasks(ALL[:1], 1, []), broken, lambda text: None)
        with pytest.raises(KeyboardInterrupt):
            playing.run()
        assert not playing.failed and not playing.notes


@pytest.mark.parametrize("rows", [1, 9_999, 10_000, 700_000])
def test_the_ceiling_of_spark_has_every_row_once(rows: int) -> None:
    """In as many tasks as the source of fastlog makes of so many bytes."""
    prebuilt = pytest.importorskip("perf.replay.prebuilt")
    reader = prebuilt.PrebuiltSource({"rows": str(rows), "value_bytes": "200"}).reader(None)
    parts = reader.partitions()
    assert len(parts) == -(-rows * 210 // 2**26)
    counts = [sum(batch.num_rows for batch in reader.read(part)) for part in parts]
    assert sum(counts) == rows
    batch = next(reader.read(parts[0]))
    assert batch.schema.names == ["offset", "value"]
    assert len(batch["value"][0].as_py()) == 200


def test_the_ceiling_of_spark_is_of_counting_alone(tmp_path: Path) -> None:
    """No other job has one, and a scenario that asks for it nevertheless fails with the reason."""
    with_ceiling = {scenario.name for scenario in ALL if isinstance(scenario, InSpark) and CEILING in scenario.systems}
    assert with_ceiling == {"spark-count", "spark-count-direct"}
    (load,) = (scenario for scenario in ALL if scenario.name == "spark-load")
    with Stage(Options(scratch=tmp_path), lambda text: None) as stage, pytest.raises(ReplayError, match="no load"):
        runners.run(stage, load, CEILING)

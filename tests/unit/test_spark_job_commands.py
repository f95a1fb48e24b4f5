"""The command lines of Spark's jobs: what they give to the work behind them, and what they refuse before a Spark is
started; the session of a job, and its errors."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from fastlog import errors
from fastlog.errors import ConfigError
from fastlog.segment_files import MAX_OFFSET
from fastlog.spark import environment
from fastlog.spark.jobs import audit, command, counts, expire, join, load, optimize, parameters, vacuum
from fastlog.spark.jobs.command import LazySpark
from fastlog.spark.jobs.load import parse_place, starting_options
from fastlog.spark.lake import Lake
from fastlog.spark.storage import TableLocation
from fastlog.spark.upkeep import Expired, JoinReport
from fastlog.tools import signals
from fastlog.tools.report import CommandError

SOURCE = ("--brokers", "h:1", "--topic", "t")


def run(what: click.Command, *given: object) -> Any:
    """What a command line has done: its exit code, what it wrote, and all that it said; 2 is one that was refused."""
    done = CliRunner().invoke(what, [*map(str, given)], standalone_mode=False)
    code = done.return_value if done.exception is None else 2
    error = done.exception
    said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    return SimpleNamespace(code=code, stdout=done.stdout, stderr=done.stderr, said=f"{done.output}{said}")


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts back those of signals that a command takes for its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# -- load --------------------------------------------------------------------------------------------------------------


class Loading:
    """Takes the place of a loader."""

    def __init__(self, lake: Any, wanted: Any, spark: Any, rejected: Any) -> None:
        self.lake, self.wanted, self.spark, self.rejected = lake, wanted, spark, rejected
        self.totals = SimpleNamespace(to_json=lambda: {"rows": 7})
        self.ran: dict[str, Any] = {}

    def run(self, **how: Any) -> None:
        self.ran = how
        if self.wanted.attempts == 3:
            raise signals.Interrupted(signal.SIGTERM)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Loading]:
    """The loads that were run."""
    made: list[Loading] = []

    def loading(*given: Any) -> Loading:
        made.append(Loading(*given))
        return made[-1]

    monkeypatch.setattr(load, "Loader", loading)
    return made


def test_what_a_load_is_told(tmp_path: Path, loads: list[Loading]) -> None:
    """Each option comes where it belongs; the summary is the one line on stdout."""
    Lake(tmp_path / "table").create(pa.schema([("a", pa.string())]), [])
    done = run(
        load.load_command, *SOURCE, "--topic", "u", "--table", tmp_path / "table", "--starting", "latest", "--from",
        "5", "--time", "x", "--column", "n=1", "--partition-by", "topic,n", "--compression", "zstd", "--rejected",
        tmp_path / "rejected", "--most-rejected", 9, "--optimize-at", 4, "--skip-lost", "--every", "2s", "--max-bytes",
        "1KiB", "--attempts", 6, "--no-progress", "-o", "envelope=true", "--conf", "spark.x=1", "--master", "local[9]",
    )  # fmt: skip
    assert done.code == 0, done.said
    (one,) = loads
    wanted = one.wanted
    assert wanted.source.items() >= {("brokers", "h:1"), ("subscribe", "t,u"), ("envelope", "true")}
    assert (wanted.starting, wanted.fail_on_data_loss, wanted.max_bytes) == ({"startingOffsets": "latest"}, False, 1024)
    assert (wanted.time, wanted.columns, wanted.partition_by) == ("x", {"n": "1"}, ("topic", "n"))
    assert (wanted.compression, wanted.attempts, wanted.most_rejected) == ("zstd", 6, 9)
    assert (wanted.optimize_at, wanted.shown) == (4, False)
    assert (str(one.lake), str(one.rejected)) == (str(tmp_path / "table"), str(tmp_path / "rejected"))
    assert (one.ran["every"], one.ran["again_from"].time_ms) == (2.0, 5)
    assert (one.spark._name, one.spark._master) == ("fastlog load", "local[9]")
    assert one.spark._settings == {"spark.ui.enabled": "false", "spark.x": "1"}
    assert json.loads(done.stdout) == {
        "job": "load", "table": str(tmp_path / "table"), "version": 0, "rows": 7, "stopped": 0,
    }  # fmt: skip


def test_what_a_load_does_that_is_told_nothing(tmp_path: Path, loads: list[Loading]) -> None:
    done = run(load.load_command, *SOURCE, "--table", tmp_path / "table")
    assert done.code == 0, done.said
    (one,) = loads
    wanted = one.wanted
    assert (wanted.starting, wanted.fail_on_data_loss, wanted.max_bytes) == (
        {"startingOffsets": "earliest"},
        True,
        2**30,
    )
    assert (wanted.time, wanted.columns, wanted.partition_by, wanted.compression) == (None, {}, None, "snappy")
    assert (wanted.attempts, wanted.most_rejected, wanted.optimize_at, wanted.shown) == (5, 1000, None, True)
    assert (one.rejected, one.ran) == (None, {"every": None, "again_from": None})


def test_a_load_that_a_signal_ends(tmp_path: Path, loads: list[Loading]) -> None:
    """Its summary comes all the same, and says so."""
    done = run(load.load_command, *SOURCE, "--table", tmp_path / "table", "--attempts", 3)
    assert done.code == 143
    assert json.loads(done.stdout).items() >= {("rows", 7), ("stopped", 143)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--rejected", "r"), "--rejected: there is no --column and no --time that could fail"),
        (("--from", "earliest"), "--from: there is no table in"),
        (("--column", "offset=1"), "the column offset: the table has one of that name"),
        (("--column", "Date=1"), "the column Date: the table has one of that name"),
        (("--optimize-at", "1"), "--optimize-at"),
        (("--most-rejected", "0"), "--most-rejected"),
        (("--attempts", "0"), "--attempts"),
        (("--max-bytes", "0"), "--max-bytes"),
        (("--starting", "soon"), "'soon' is neither a time"),
        (("--storage-option", "secret"), "--storage-option: write --storage-option KEY=VALUE"),
        (("--storage-option", "a=b"), "--storage-option: is for tables at URLs, and none is given"),
    ],
)
def test_a_load_that_cannot_be(tmp_path: Path, loads: list[Loading], given: tuple[str, ...], said: str) -> None:
    """A word that may be a secret is not shown."""
    done = run(load.load_command, *SOURCE, "--table", tmp_path / "table", *given)
    assert done.code != 0
    assert said in done.said
    assert "secret" not in done.said
    assert loads == []


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [("0", 0), (str(MAX_OFFSET), MAX_OFFSET), ("1970-01-01T00:00:00.0016Z", 2), ("1970-01-01T01:00:00", 3_600_000),
     ("1970-01-01T01:00:00+01:00", 0)],
)  # fmt: skip
def test_times(text: str, time_ms: int) -> None:
    """In ms since 1970; of UTC where nothing else is said."""
    assert (parse_place(text).kind, parse_place(text).time_ms) == ("time", time_ms)
    expected = {"startingTimestamp": str(time_ms), "startingOffsetsByTimestampStrategy": "latest"}
    assert starting_options(text) == expected


@pytest.mark.parametrize("text", ["-1", str(MAX_OFFSET + 1), "1969-12-31T23:59:59Z"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is no time since 1970"):
        parse_place(text)


def test_other_beginnings() -> None:
    for text in ("earliest", "LATEST", '{"t": {"0-0": 5}}'):
        assert starting_options(text) == {"startingOffsets": text}


# -- tables of a command -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["upkeep", "job"])
def test_options_of_a_store_come_to_its_tables(monkeypatch: pytest.MonkeyPatch, kind: str, tmp_path: Path) -> None:
    """And to those alone; also where one of several is at a URL."""
    seen: list[Any] = []
    given = ("--storage-option", "a=b", "--storage-option", "c=d=e")
    if kind == "upkeep":
        monkeypatch.setattr(parameters, "opened", lambda place: seen.append(place) or SimpleNamespace(exists=False))
        done = run(optimize.optimize_command, "--table", "s3://b/t", *given)
        assert "--table: there is no table in" in done.said
    else:

        def load_seen(topics: Any, table: Any, *_: object, rejected: Any = None, **__: object) -> None:
            seen.extend((table, rejected))
            raise ConfigError("that is enough")

        monkeypatch.setattr(load, "load", load_seen)
        run(load.load_command, *SOURCE, "--table", "s3://b/t", "--rejected", tmp_path / "r", "--column", "n=1", *given)
        assert seen.pop() == TableLocation(str(tmp_path / "r"))
    assert seen == [TableLocation("s3://b/t", {"a": "b", "c": "d=e"})]


def test_a_table_of_iceberg_where_there_is_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is no directory; where it may be one, its options are for its files."""
    for what, more in (
        (counts.counts_command, ("--window", "60s", *SOURCE)),
        (join.join_command, ("--with", "u", "--on", "key", "--within", "60s", *SOURCE)),
        (vacuum.vacuum_command, ()),
    ):
        done = run(what, "--table", "iceberg:c/n.t", *more)
        assert (done.code, "is a table of Iceberg; here it has to be one of Delta" in done.said) == (2, True)
    seen: list[Any] = []
    monkeypatch.setattr(parameters, "opened", lambda place: seen.append(place) or SimpleNamespace(exists=False))
    run(optimize.optimize_command, "--table", "iceberg:c/n.t", "--storage-option", "a=b")
    run(optimize.optimize_command, "--table", "iceberg:c/n.t")
    assert seen == [TableLocation("iceberg:c/n.t", {"a": "b"}), TableLocation("iceberg:c/n.t")]


def test_a_table_that_has_to_be_there(tmp_path: Path) -> None:
    given = ("--on", "key", "--table", tmp_path / "t", *SOURCE)
    done = run(join.join_command, "--with-table", tmp_path / "x", *given)
    assert (done.code, "there is nothing of that name" in done.said) == (2, True)


@pytest.mark.parametrize("given", ["s3://b/state", "ftp://h/state"])
def test_a_state_in_a_store_is_refused(tmp_path: Path, given: str) -> None:
    done = run(counts.counts_command, *SOURCE, "--window", "60s", "--table", "s3://b/t", "--checkpoint", given)
    assert done.code == 2 and "in a directory of this machine" in done.said


# -- counts and join ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "given", "said"),
    [
        (counts.counts_command, ("--window", "60s", "--late-table", "l"), "--late-table needs a --table"),
        (counts.counts_command, ("--window", "60s", "--by", "N=1"), "--by N: there is a column of that name"),
        (counts.counts_command, ("--window", "60s", "--by", "bytes=1"), "--by bytes: there is a column"),
        (counts.counts_command, ("--window", "60", "--slide", "61"), "--slide is for --window, and not longer"),
        (join.join_command, ("--table", "t", "--on", "key"), "give one of --with and --with-table"),
        (join.join_command, ("--table", "t", "--on", "key", "--with", "u", "--with-table", "/"), "give one of"),
        (join.join_command, ("--table", "t", "--on", "key", "--with", "u"), "--within is for --with, which needs it"),
        (join.join_command, ("--table", "t", "--on", "key", "--with-table", "/", "--within", "60s"), "--within is for"),
        (join.join_command, ("--table", "t", "--on", "key", "--with-table", "/", "--late-table", "l"),
         "--late-table is for --with: against a table nothing is late"),
    ],
)  # fmt: skip
def test_queries_that_cannot_be(what: click.Command, given: tuple[str, ...], said: str) -> None:
    done = run(what, *SOURCE, *given)
    assert done.code != 0
    assert said in done.said


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What queries were told to fill, with what."""
    seen: list[tuple[Any, ...]] = []

    def fill(*given: Any) -> tuple[int, dict[str, Any]]:
        seen.append(given)
        return 5, {"job": given[0]}

    for module in (counts, join):
        monkeypatch.setattr(module, "fill_table", fill)
    return seen


def test_what_counts_are_told(tmp_path: Path, filled: list[tuple[Any, ...]]) -> None:
    """Late messages of each source go to their table; a window of just the slide is one."""
    done = run(
        counts.counts_command, *SOURCE, "--table", tmp_path / "t", "--window", "60s", "--slide", "60s",
        "--late", "300s", "--by", "who=key", "--late-table", tmp_path / "late", "--every", "7s",
        "--attempts", 2, "--max-bytes", "1KiB",
    )  # fmt: skip
    assert (done.code, json.loads(done.stdout)) == (5, {"job": "counts"})
    ((name, job, conf, sink, make),) = filled
    assert (name, job.every, job.attempts, job.late, conf) == ("counts", 7.0, 2, 300.0, {})
    assert job.streamed == {"startingOffsets": "earliest", "maxBytesPerTrigger": "1024"}
    assert (str(sink.lake), sink._moments) == (str(tmp_path / "t"), ("window_end",))
    (side,) = sink._late_rows._sides
    assert (side.source["subscribe"], side.columns) == ("t", ("window_start", "window_end"))
    assert str(sink.late_table.lake) == str(tmp_path / "late")
    asked: list[dict[str, str]] = []

    class Reader:
        def __init__(self) -> None:
            self.readStream = self

        def format(self, name: str) -> Reader:
            return self

        def options(self, **given: str) -> Reader:
            asked.append(given)
            return self

        def load(self) -> str:
            return "frame"

    windows: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts.Windows, "counted", lambda self, frame, late: windows.append((self, frame, late)))
        make(Reader())
    ((of, frame, late),) = windows
    assert (frame, late, of._length, of._slide, of._gap, of._by) == ("frame", 300.0, 60.0, 60.0, None, {"who": "key"})
    assert asked[0].items() >= {("maxBytesPerTrigger", "1024"), ("subscribe", "t"), ("startingOffsets", "earliest")}


@pytest.mark.parametrize("keep", [False, True])
def test_what_a_join_is_told(
    tmp_path: Path, filled: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    """Of the other topic what is not said is as of the first one."""
    sides: list[tuple[Any, ...]] = []
    monkeypatch.setattr(join, "_timed", lambda *given: sides.append(given))
    given = (
        "--table",
        tmp_path / "t",
        "--with",
        "u",
        "--on",
        "key",
        "--within",
        "60s",
        "--late-table",
        tmp_path / "l",
    )
    more = ("--keep-unmatched",) if keep else ()
    assert run(join.join_command, *SOURCE, *given, *more).code == 5
    assert run(join.join_command, *SOURCE, *given, "--other-on", "o", "--other-time", "x", *more).code == 5
    on = None if keep else "key"
    assert sides == [
        ("left", on, "timestamp"), ("right", "key", "timestamp"), ("left", on, "timestamp"), ("right", "o", "x"),
    ]  # fmt: skip
    _, _, _, sink, make = filled[0]
    assert sink._moments == ("left_time", "right_time")
    assert [side.source["subscribe"] for side in sink._late_rows._sides] == ["t", "u"]
    made: list[tuple[Any, ...]] = []

    class Side:
        def __init__(self, *given: Any) -> None:
            self.given = given

        def withWatermark(self, name: str, delay: str) -> tuple[Any, ...]:
            return (*self.given[1:], name, delay)

    monkeypatch.setattr(join, "_side", lambda spark, source, *given: Side(source["subscribe"], *given))
    monkeypatch.setattr(join, "_with_topic", lambda *given: made.append(given))
    make(None)
    delay = "600000 milliseconds"
    assert made == [
        (
            ("left", "key", "timestamp", "left_time", delay), ("right", "key", "timestamp", "right_time", delay), 60.0,
            0.0, "left" if keep else "inner",
        )
    ]  # fmt: skip


def test_a_join_with_a_table_has_one_time(
    tmp_path: Path, filled: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users.csv").touch()
    given = ("--table", tmp_path / "t", "--with-table", tmp_path / "users.csv", "--on", "key")
    assert run(join.join_command, *SOURCE, *given, "--other-on", "user").code == 5
    _, _, _, sink, make = filled[0]
    assert (sink._moments, sink.late_table) == (("left_time",), None)
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(join, "_side", lambda spark, source, *given: given)
    monkeypatch.setattr(join, "_static", lambda spark, place: str(place))
    monkeypatch.setattr(join, "_with_table", lambda *given: made.append(given))
    make(None)
    assert made == [(("left", "key", "timestamp"), str(tmp_path / "users.csv"), "user", "inner")]


# -- upkeep ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    Lake(tmp_path / "table").create(pa.schema([("topic", pa.string()), ("date", pa.date32())]), ["date"])
    return tmp_path / "table"


@pytest.mark.parametrize("shown", [True, False])
def test_what_the_upkeep_of_a_table_is_told(table: Path, monkeypatch: pytest.MonkeyPatch, shown: bool) -> None:
    seen: list[Any] = []

    def join_files(lake: Any, options: Any, say: Any) -> JoinReport:
        say("joined")
        seen.append(options)
        return JoinReport(files_before=3)

    def gone(lake: Any, before: date, *, dry_run: bool) -> Expired:
        seen.append((before, dry_run))
        return Expired(2, None, 5, 9)

    def vacuumed(self: Lake, hours: int | None, *, dry_run: bool) -> list[str]:
        seen.append((hours, dry_run))
        return ["a", "b"]

    monkeypatch.setattr(optimize, "join_files", join_files)
    monkeypatch.setattr(expire, "expire", gone)
    monkeypatch.setattr(Lake, "vacuum", vacuumed)
    quiet = () if shown else ("--no-progress",)
    done = run(
        optimize.optimize_command,
        "--table",
        table,
        "--target-size",
        9,
        "--at-least",
        3,
        "--compression",
        "gzip",
        *quiet,
    )
    assert (done.code, "joined" in done.stderr) == (0, shown)
    assert json.loads(done.stdout).items() >= {("job", "optimize"), ("files_before", 3), ("version", 0)}
    assert (seen[0].target_bytes, seen[0].at_least, seen[0].compression, seen[0].gradual) == (9, 3, "gzip", False)
    today = datetime.now(UTC).date()
    done = run(expire.expire_command, "--table", table, "--keep-days", 3, "--dry-run", *quiet)
    assert seen[1] in [(today - timedelta(days=3 - late), True) for late in (0, 1)]
    assert (done.code, f"2 files of days before {seen[1][0]}" in done.stderr) == (0, shown)
    assert json.loads(done.stdout) == {
        "job": "expire", "table": str(table), "before": seen[1][0].isoformat(), "dry_run": True, "files": 2,
        "rows": None, "size_bytes": 5, "version": 9,
    }  # fmt: skip
    done = run(vacuum.vacuum_command, "--table", table, "--keep-hours", 4, *quiet)
    assert (done.code, " a\n" in done.stderr and " b\n" in done.stderr) == (0, shown)
    assert json.loads(done.stdout) == {
        "job": "vacuum", "table": str(table), "version": 0, "files": 2, "keep_hours": 4, "dry_run": False,
    }  # fmt: skip
    run(vacuum.vacuum_command, "--table", table, "--dry-run")
    assert seen[2:] == [(4, False), (None, True)]


def test_limits_of_upkeep(table: Path) -> None:
    for what, *given in (
        (optimize.optimize_command, "--at-least", 1), (optimize.optimize_command, "--target-size", 0),
        (expire.expire_command, "--keep-days", -1), (vacuum.vacuum_command, "--keep-hours", 0),
    ):  # fmt: skip
        assert run(what, "--table", table, *given).code == 2
    assert run(expire.expire_command, "--table", table, "--keep-days", 0).code == 0
    assert run(optimize.optimize_command, "--table", table, "--at-least", 2, "--target-size", 1).code == 0
    assert run(vacuum.vacuum_command, "--table", table, "--keep-hours", 1).code == 0


@pytest.mark.parametrize("job", [audit, counts, expire, join, load, optimize, vacuum])
def test_each_job_is_a_command(job: Any, capsys: pytest.CaptureFixture[str], handlers: None) -> None:
    """Which leaves the process with its exit code, and says in what was wrong where its options stand."""
    name = job.__name__.rpartition(".")[2]
    with pytest.raises(SystemExit) as left:
        job.main(["--help"])
    assert left.value.code == 0
    assert f"python -m fastlog.spark.jobs.{name}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        job.main(["--nosuch"])
    assert left.value.code == 2


# -- the Spark of a job ------------------------------------------------------------------------------------------------


class Started:
    """A session and its context."""

    def __init__(self, chosen: bool = False) -> None:
        self.levels: list[str] = []
        self.stopped = 0
        self.over = False
        self._chosen = chosen

    sparkContext = property(lambda self: self)
    _jsc = property(lambda self: None if self.over is None else self)

    def getConf(self) -> Started:
        return self

    def contains(self, name: str) -> bool:
        assert name == "spark.log.level"
        return self._chosen

    def setLogLevel(self, level: str) -> None:
        self.levels.append(level)

    def sc(self) -> Started:
        return self

    def isStopped(self) -> bool:
        return bool(self.over)

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Started, tuple[Any, ...], Mapping[str, Any]]]]:
    """What was started, a session or a context, and how it was asked for."""
    pytest.importorskip("pyspark")
    found: list[tuple[Started, tuple[Any, ...], Mapping[str, Any]]] = []

    def start(*given: Any, **named: Any) -> Started:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as pyspark takes it for itself
        found.append((Started(), given, named))
        return found[-1][0]

    monkeypatch.setattr(environment, "session", start)
    monkeypatch.setattr(environment, "context", start)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    before = signal.getsignal(signal.SIGINT)
    yield found
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["session", "context"])
def test_a_spark_is_started_once_and_ended_by_who_started_it(started: list[Any], name: str) -> None:
    """With the settings of the job; what Spark logs is for a user to say, and SIGINT stays what it was."""
    interrupt = signal.getsignal(signal.SIGINT)
    with LazySpark("load", "local[3]", {"spark.y": "2", "spark.ui.enabled": "true"}) as spark:
        assert (started, spark.has_ended) == ([], False)
        one = getattr(spark, name)
        assert getattr(spark, name) is one
        assert spark.context is one
        ((made, given, named),) = started
        assert (given, named["master"]) == (("fastlog load",), "local[3]")
        assert named["settings"] == {"spark.ui.enabled": "true", "spark.y": "2"}
        assert made.levels == ["FATAL"]
        assert signal.getsignal(signal.SIGINT) is interrupt
        assert not spark.has_ended
        made.over = True
        assert spark.has_ended
        made.over = None
        assert spark.has_ended
    assert made.stopped == 1
    spark.close()
    assert made.stopped == 1


def test_a_session_of_a_context_that_is_there_ends_both(started: list[Any]) -> None:
    """The context came first: it is this job's, and its level is set once."""
    with LazySpark("load", None, {}) as spark:
        context: Any = spark.context
        session: Any = spark.session
    assert (context.levels, session.levels) == (["FATAL"], [])
    assert (session.stopped, context.stopped) == (1, 0)


def test_a_spark_of_somebody_else_stays(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is its level changed, nor is it ended; its context is that of its session."""
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", object())
    with LazySpark("load", None, {}) as spark:
        assert spark.context is started[0][0]
    assert (started[0][0].levels, started[0][0].stopped) == ([], 0)


def test_a_spark_in_another_thread_leaves_signals_alone(started: list[Any]) -> None:
    """Python has them in the first thread alone, and fails in others."""
    found: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "session", lambda *_, **__: Started())

        def work() -> None:
            with LazySpark("load", None, {}) as spark, command.batches_unbroken():
                found.append(spark.session)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(found) == 1


def test_handlers_of_signals_are_put_back(handlers: None) -> None:
    def own(number: int, frame: object) -> None:
        pytest.fail("nobody sends one")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, own)
    with command.batches_unbroken():
        assert signal.getsignal(signal.SIGINT) is not own
        assert signal.getsignal(signal.SIGTERM) is not own
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == [own, own]


# -- errors and values -------------------------------------------------------------------------------------------------


def test_what_an_error_is_about() -> None:
    """The last error of ours that Spark tells of; a name that is none of ours is none."""
    made = command.own_error(RuntimeError("fastlog.errors.ConfigError: one\nfastlog.errors.TransportError: two"))
    assert (type(made), str(made)) == (errors.TransportError, "two")
    own = errors.DataLossError("x")
    assert command.own_error(own) is own
    for text in ("fastlog.errors.Nothing: x", "fastlog.errors.annotations: x", "ConfigError: x"):
        assert command.own_error(RuntimeError(text)) is None
    spark_errors = pytest.importorskip("pyspark.errors")
    assert command.is_of_expression(spark_errors.ArithmeticException("x"))
    assert not command.is_of_expression(spark_errors.ArithmeticException("fastlog.errors.TransportError: x"))
    assert not command.is_of_expression(ArithmeticError("x"))
    told = command.for_good(spark_errors.AnalysisException("x"))
    assert isinstance(told, CommandError)
    plain = ValueError("x")
    assert command.for_good(plain) is plain
    assert command.for_good(own) is own
    assert command.may_pass(OSError(5, "Input/output error"))
    for error in (FileNotFoundError(2, "x"), NotADirectoryError(20, "x"), IsADirectoryError(21, "x")):
        assert not command.may_pass(error)
    assert not command.may_pass(spark_errors.ArithmeticException("x"))


def test_values_as_json_has_them() -> None:
    assert command.as_text(b"a\xff") == "a\\xff"
    assert command.as_text(bytearray(b"a")) == "a"
    east = timezone(timedelta(hours=2))
    assert command.as_text(datetime(2026, 5, 17, 10, tzinfo=east)) == "2026-05-17T08:00:00+00:00"
    assert command.as_text(date(2026, 5, 17)) == "2026-05-17"
    assert (command.interval(0.0015), command.interval(60)) == ("2 milliseconds", "60000 milliseconds")


@pytest.mark.parametrize("shown", [True, False])
def test_progress_is_said_to_who_wants_it(capsys: pytest.CaptureFixture[str], shown: bool) -> None:
    command.say("hello", shown)
    found = capsys.readouterr()
    assert found.err.endswith(" hello\n") == shown
    assert (found.out, found.err == "") == ("", not shown)

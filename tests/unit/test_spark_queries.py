"""Queries that fill a table: a batch that comes again is recognised, progress is counted once, tries are as many as
they may be. Spark is made up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastlog.errors import ConfigError, DataLossError, TableConflictError, TransportError
from fastlog.spark.entries import NewFile, stats_of
from fastlog.spark.jobs import command, streams
from fastlog.spark.jobs.latency import MessageLatencies
from fastlog.spark.jobs.streams import QueryRun, TableSink, left_out
from fastlog.spark.lake import Lake
from fastlog.spark.staging import TableStaging
from fastlog.tools import signals
from fastlog.tools.report import CommandError

SCHEMA = pa.schema([("count", pa.int64())])
TIMES = pa.schema([(name, pa.timestamp("us", tz="UTC")) for name in ("left", "right")])


class Frame:
    """A batch of rows; ``runs`` counts how often somebody ran it, for files or for nothing."""

    def __init__(self, *rows: int, query: str = "q") -> None:
        self.rows = list(rows)
        self.runs: list[str] = []
        self.sparkSession = SimpleNamespace(
            sparkContext=SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query}.__getitem__)
        )
        self.write = self

    def format(self, name: str) -> Frame:
        self.runs.append(name)
        return self

    def mode(self, name: str) -> Frame:
        assert name == "overwrite"
        return self

    def save(self) -> None:
        self.runs.append("saved")


@pytest.fixture
def sink_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TableSink]:
    """Makes a sink of the table in a directory."""
    numbers = iter(range(1000))

    def write(self: TableStaging, frame: Any) -> list[NewFile]:
        frame.runs.append("files")
        name = f"{next(numbers)}.parquet"
        path = self._lake.directory / name
        pq.write_table(pa.table({"count": frame.rows}, SCHEMA), path)
        return [NewFile(name, path.stat().st_size, {}, len(frame.rows), stats_of(len(frame.rows)))]

    monkeypatch.setattr(streams, "arrow_schema", lambda frame: SCHEMA)
    monkeypatch.setattr(TableStaging, "write", write)
    return lambda path: TableSink(Lake(path / "table"), "counts", [], False)


def rows_in(path: Path, table: str = "table") -> list[int]:
    from deltalake import DeltaTable

    found: list[int] = DeltaTable(str(path / table)).to_pyarrow_table()["count"].to_pylist()
    return sorted(found)


def test_each_batch_is_in_the_table_once(tmp_path: Path, sink_of: Callable[..., TableSink]) -> None:
    """One that comes again brings nothing, and is run all the same for the state that it leaves."""
    sink = sink_of(tmp_path)
    sink(Frame(1, 2), 0)
    sink(Frame(3), 1)
    again = [Frame(30), Frame(10, 20)]
    sink(again[0], 1)
    sink(again[1], 0)
    sink(Frame(), 2)
    sink(Frame(4), 4)
    assert rows_in(tmp_path) == [1, 2, 3, 4]
    assert [frame.runs for frame in again] == [["noop", "saved"], ["noop", "saved"]]
    assert (sink.rows, sink.batches, sink.passed_over) == (4, 4, 2)
    assert Lake(tmp_path / "table").number("fastlog.query:q") == 4


def test_batches_of_another_process_are_recognised_and_of_another_query_are_not(
    tmp_path: Path, sink_of: Callable[..., TableSink]
) -> None:
    """The number is by query: a new one begins at 0 again."""
    sink_of(tmp_path)(Frame(1), 0)
    second = sink_of(tmp_path)
    second(Frame(1), 0)
    second(Frame(2), 1)
    second(Frame(3, query="other"), 0)
    assert rows_in(tmp_path) == [1, 2, 3]
    assert (second.rows, second.batches, second.passed_over) == (2, 2, 1)
    notes = [notes for _, notes in Lake(tmp_path / "table").history() if "batch" in notes]
    assert [(found["query"], found["batch"], found["rows"]) for found in notes] == [
        ("other", 0, 1), ("q", 1, 1), ("q", 0, 1),
    ]  # fmt: skip


def test_a_batch_that_another_writer_brought_meanwhile_leaves_no_files(
    tmp_path: Path, sink_of: Callable[..., TableSink]
) -> None:
    sink, other = sink_of(tmp_path), sink_of(tmp_path)
    sink(Frame(1), 0)

    late = Frame(2)
    original = TableStaging.write

    def write(self: TableStaging, frame: Any) -> list[NewFile]:
        if frame is late:
            other(Frame(2), 1)
        return original(self, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableStaging, "write", write)
        with pytest.raises(TableConflictError):
            sink(late, 1)
    assert (sink.rows, sink.batches) == (1, 1)
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 2
    sink(Frame(2), 1)
    assert (rows_in(tmp_path), sink.passed_over) == ([1, 2], 1)


def test_rows_that_do_not_fit_the_table(tmp_path: Path, sink_of: Callable[..., TableSink]) -> None:
    Lake(tmp_path / "table").create(pa.schema([("other", pa.string())]), [])
    with pytest.raises(ConfigError, match="column other"):
        sink_of(tmp_path)(Frame(1), 0)


def test_a_table_whose_state_is_lost_is_not_gone_on_with(tmp_path: Path, sink_of: Callable[..., TableSink]) -> None:
    sink = sink_of(tmp_path)
    with sink.alone():
        sink(Frame(1), 0)
    with pytest.raises(ConfigError, match="state is lost"), sink.alone():
        pass
    sink.checkpoint.mkdir(parents=True)
    (sink.checkpoint / "metadata").write_text("{}")
    with sink.alone():
        pass
    assert (sink.checkpoint / "metadata").exists()


# -- runs --------------------------------------------------------------------------------------------------------------


def test_how_long_rows_took_and_how_far_a_query_is_behind(
    tmp_path: Path, sink_of: Callable[..., TableSink], monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    """By the latest moment of a row, which may be one that lasts; of rows without one nothing is known."""
    monkeypatch.setattr(streams, "arrow_schema", lambda frame: TIMES)
    sink = TableSink(Lake(tmp_path / "table"), "join", [], False, moments=("left", "right"))
    now = time.time()

    def write(self: TableStaging, frame: Any) -> list[NewFile]:
        ago = ([50, 20, None, 60], [20, 90, None, None])
        moments = [[age if age is None else datetime.fromtimestamp(now - age, UTC) for age in ages] for ages in ago]
        path = self._lake.directory / "f.parquet"
        pq.write_table(pa.table([pa.array(some, TIMES.field(0).type) for some in moments], TIMES), path)
        return [NewFile("f.parquet", path.stat().st_size, {}, 4, stats_of(4))]

    monkeypatch.setattr(TableStaging, "write", write)
    sink.span_ms = 5000
    sink(Frame(), 0)
    found = sink.latencies.to_json()
    late = time.time() - now
    assert found is not None and 14_800 < found["p50"] < 15_300 + late * 1000
    assert 54_000 < found["p99"] < 56_000 + late * 1000
    end = {"v": 1, "topics": {"t": {"0-0": [0, 10]}}}
    latest = {"v": 1, "topics": {"t": {"0-0": [25, 25]}}}
    busy = progress(0, 1, sources=[{"latestOffset": latest, "endOffset": end}])
    idle = progress(1, 0, done=False, sources=[{"latestOffset": latest, "endOffset": latest}])
    for looks, behind in (([], None), ([busy], 15), ([busy, idle], 0)):
        run, of_run, _ = run_of(Query(looks))
        of_run.latencies = sink.latencies
        run()
        told = run.to_json()
        assert told["latency_ms"] == found
        assert told["behind"] == (None if behind is None else {"bytes": behind, "records": 0})


def progress(batch: int, rows: int, *, done: bool = True, **fields: Any) -> SimpleNamespace:
    """What a query says of a trigger."""
    found = {
        "batchId": batch,
        "durationMs": {"addBatch": 5} if done else {},
        "numInputRows": rows,
        "stateOperators": [],
        "sources": [],
        **fields,
    }
    return SimpleNamespace(json=json.dumps(found))


class Query:
    """Ends after so many looks, at each of which ``recent`` has grown; or raises."""

    def __init__(self, *looks: list[SimpleNamespace], error: Exception | None = None) -> None:
        self._looks = list(looks)
        self._error = error
        self.recentProgress: list[SimpleNamespace] = []
        self.stopped = 0
        self.waited: list[float] = []

    def awaitTermination(self, seconds: float) -> bool:
        self.waited.append(seconds)
        if self._looks:
            self.recentProgress = self._looks.pop(0)
        if not self._looks and self._error is not None:
            raise self._error
        return not self._looks

    def stop(self) -> None:
        self.stopped += 1


class Stream:
    """What a query is made of; remembers how it was started."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.options: dict[str, Any] = {}
        self.writeStream = self

    def foreachBatch(self, sink: Any) -> Stream:
        self.options["sink"] = sink
        return self

    def outputMode(self, mode: str) -> Stream:
        self.options["mode"] = mode
        return self

    def option(self, name: str, value: str) -> Stream:
        self.options[name] = value
        return self

    def trigger(self, **how: Any) -> Stream:
        self.options.update(how)
        return self

    def start(self) -> Query:
        return self.query


class Sink:
    """As far as a run asks."""

    def __init__(self) -> None:
        self.batches = self.rows = self.passed_over = 0
        self.latencies = MessageLatencies()
        self.checkpoint = Path("/table/_fastlog/checkpoint")
        self.late_summary = None
        self.held = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.held += 1
        yield


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it waited each time; it does not."""
    found: list[float] = []
    monkeypatch.setattr(command, "wait", found.append)
    return found


def run_of(*queries: Query, every: float | None = None, attempts: int = 3) -> tuple[QueryRun, Any, list[Stream]]:
    made = [Stream(query) for query in queries]
    left = iter(made)
    sink: Any = Sink()
    return QueryRun(sink, lambda: next(left), every=every, attempts=attempts), sink, made  # type: ignore[arg-type,return-value]


def test_each_batch_is_counted_once(waits: list[float]) -> None:
    """However often its progress is seen; a trigger with nothing to do has the number of the batch to come."""
    first, second = progress(0, 10), progress(1, 5, eventTime={"watermark": "w1"})
    observed = {
        "fastlogtimestamp": {"without_time": 3, "without_key": 5}, "fastlogother": {"without_time": None}, "x": {},
    }  # fmt: skip
    third = progress(2, 7, observedMetrics=observed, stateOperators=[{"numRowsDroppedByWatermark": 2}, {}])
    fourth = progress(3, 1, observedMetrics={"fastlogtimestamp": {"without_time": 1, "without_key": 2}})
    idle = progress(2, 100, done=False)
    run, sink, _ = run_of(Query([first], [first, second, idle], [second, idle, third, third], [third, fourth]))
    run()
    assert (run.read_rows, run.without_time, run.without_key, run.late, run.watermark) == (23, 4, 7, 2, "w1")
    assert sink.held == 1
    found = run.to_json()
    names = ("read_rows", "late", "without_time", "without_key", "watermark", "failures")
    assert {name: found[name] for name in names} == {
        "read_rows": 23, "late": 2, "without_time": 4, "without_key": 7, "watermark": "w1", "failures": 0,
    }  # fmt: skip


def test_nothing_was_read(waits: list[float]) -> None:
    run, _, _ = run_of(Query([progress(0, 0, done=False)]))
    run()
    found = run.to_json()
    assert found["seconds"] >= 0
    del found["seconds"]
    assert found == {
        "batches": 0, "passed_over": 0, "rows": 0, "read_rows": 0, "late": 0, "late_table": None, "without_time": 0,
        "without_key": 0, "watermark": None, "failures": 0, "latency_ms": None, "behind": None,
    }  # fmt: skip


def test_what_was_left_out_in_words() -> None:
    """Each kind with what can be done; nothing where everything is in a row."""
    nothing = {"late": 0, "late_table": None, "without_time": 0, "without_key": 0}
    assert left_out(nothing) == ""
    some = {**nothing, "late": 3, "without_time": 2, "without_key": 1}
    told = "3 late, by --late; 2 without a time: --time gives them one; 1 without a key: --on is null"
    assert left_out(some) == told
    assert left_out({**some, "late_table": {"table": "/t", "rows": 0}}) == told.partition("; ")[2]
    assert left_out({**nothing, "late": 3, "late_table": {"table": "/t", "rows": 5}}) == "5 late, by --late (kept)"


@pytest.mark.parametrize(("late", "no_progress", "told"), [(3, False, True), (0, False, False), (3, True, False)])
def test_what_was_left_out_is_said_in_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], late: int, no_progress: bool, told: bool
) -> None:
    """Unless it is nothing, or nobody wants to hear."""
    found = {"late": late, "late_table": None, "without_time": 0, "without_key": 0}
    made: Any = SimpleNamespace(to_json=lambda: found)
    monkeypatch.setattr(streams, "QueryRun", lambda *given, **options: type("Made", (), {
        "__call__": lambda self: None, "to_json": lambda self: made.to_json(),
    })())  # fmt: skip
    job: Any = SimpleNamespace(master=None, every=None, attempts=1, no_progress=no_progress)
    sink: Any = SimpleNamespace(lake=SimpleNamespace(reload=lambda: None, version=5))
    code, summary = streams.fill_table("counts", job, {}, sink, lambda spark: None)  # type: ignore[arg-type,return-value]
    assert (code, summary["version"], summary["late"]) == (0, 5, late)
    assert ("counts: left out: 3 late, by --late\n" in capsys.readouterr().err) == told


# -- late rows ---------------------------------------------------------------------------------------------------------


class LateFrames:
    """The late rows of each batch."""

    def __init__(self, frames: dict[int, Frame | None]) -> None:
        self.frames = frames

    def of(self, session: Any, checkpoint: Path, batch: int) -> Any:
        assert checkpoint.name == "checkpoint"
        return self.frames[batch]


def test_late_rows_are_in_their_table_before_the_batch_is_in_its_own(
    tmp_path: Path, sink_of: Callable[..., TableSink]
) -> None:
    """Each once, wherever a batch was cut off; one without any costs no transaction."""
    frames = {0: None, 1: Frame(10, 11), 2: Frame(), 3: Frame(12)}
    late = Lake(tmp_path / "late")
    sink_of(tmp_path)

    def sink() -> TableSink:
        return TableSink(Lake(tmp_path / "table"), "counts", [], False, late=(Lake(tmp_path / "late"), found))

    found: Any = LateFrames(frames)
    first = sink()
    first(Frame(1), 0)
    assert not late.exists
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TableConflictError):
        real = Lake.commit

        def commit(self: Lake, change: Any) -> None:
            if self.location.text.endswith("/table"):
                raise TableConflictError("made up")
            real(self, change)

        patch.setattr(Lake, "commit", commit)
        first(Frame(2), 1)
    late.reload()
    version = late.version
    second = sink()
    for batch in (1, 2, 3, 3):
        second(Frame(batch + 1), batch)
    late.reload()
    assert (late.version, late.number("fastlog.query:q")) == (version + 1, 3)
    assert rows_in(tmp_path) == [1, 2, 3, 4]
    assert rows_in(tmp_path, "late") == [10, 11, 12]
    assert first.late_summary == {"table": str(tmp_path / "late"), "rows": 2}
    assert second.late_summary == {"table": str(tmp_path / "late"), "rows": 1}
    assert (second.rows, second.batches, second.passed_over) == (3, 3, 1)
    assert sink_of(tmp_path).late_summary is None


def test_the_tables_of_a_query_are_two_and_both_are_its_own(tmp_path: Path, sink_of: Callable[..., TableSink]) -> None:
    sink_of(tmp_path)
    with pytest.raises(ConfigError, match="is the table that is filled"):
        TableSink(Lake(tmp_path / "t"), "counts", [], False, late=(Lake(tmp_path / "t"), LateFrames({})))  # type: ignore[arg-type]
    made = [
        TableSink(Lake(tmp_path / name), "counts", [], False, late=(Lake(tmp_path / "late"), LateFrames({})))  # type: ignore[arg-type]
        for name in ("one", "two")
    ]
    with made[0].alone(), pytest.raises(TableConflictError, match="late: another process"), made[1].alone():
        pass


@pytest.mark.parametrize(
    ("every", "trigger"),
    [
        (None, {"availableNow": True}),
        (5.0, {"processingTime": "5000 milliseconds"}),
        (0.0004, {"processingTime": "1 milliseconds"}),
        (0.0016, {"processingTime": "2 milliseconds"}),
    ],
)
def test_how_a_query_is_started(waits: list[float], every: float | None, trigger: dict[str, Any]) -> None:
    run, sink, (stream,) = run_of(Query([]), every=every)
    run()
    assert stream.options == {
        "sink": sink, "mode": "append", "checkpointLocation": "file:///table/_fastlog/checkpoint", **trigger,
    }  # fmt: skip
    assert stream.query.waited == [1]


def test_a_query_that_fails_is_started_again_and_counted_from_its_beginning(waits: list[float]) -> None:
    """Batches of a try that failed were done; the next try may do one of them again."""
    failed = Query([progress(0, 10)], [progress(0, 10), progress(1, 5)], error=TransportError("away"))
    run, _, _ = run_of(failed, Query([progress(1, 5), progress(2, 1)]))
    run()
    assert (run.read_rows, run.failures) == (21, 1)
    assert waits == [0, 0.4]


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_query_fails_as_often_as_it_may(waits: list[float], attempts: int) -> None:
    """In a row, with nothing done in between."""
    queries = [Query([], error=OSError("full")) for _ in range(attempts + 1)]
    run, _, streams_made = run_of(*queries, attempts=attempts)
    with pytest.raises(CommandError, match=f"failed {attempts} times"):
        run()
    assert run.failures == attempts
    assert [len(stream.query.waited) for stream in streams_made] == [1] * attempts + [0]
    assert waits == [pytest.approx(0.2 * 2**number) for number in range(1, attempts)]


def test_what_was_done_between_two_failures_begins_the_count_anew(waits: list[float]) -> None:
    queries = [Query([], error=TransportError("away")) for _ in range(4)]
    run, sink, made = run_of(*queries, Query([]), attempts=2)
    for stream in made[1:4]:
        original = stream.start

        def start(original: Callable[[], Query] = original) -> Query:
            sink.batches += 1
            return original()

        stream.start = start  # type: ignore[method-assign]
    run()
    assert run.failures == 4
    assert waits == [0.4] * 4


@pytest.mark.parametrize("error", [DataLossError("gone"), ConfigError("no"), TypeError("no")])
def test_what_would_fail_again_ends_it(waits: list[float], error: Exception) -> None:
    run, _, made = run_of(Query([], error=error), Query([]))
    with pytest.raises(type(error)):
        run()
    assert (run.failures, waits) == (0, [])
    assert made[1].query.waited == []


def test_a_signal_stops_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it had done is counted."""

    def interrupted(seconds: float) -> None:
        raise signals.Interrupted(15)

    monkeypatch.setattr(command, "wait", interrupted)
    run, _, (stream,) = run_of(Query([progress(0, 4)], []))
    with pytest.raises(signals.Interrupted):
        run()
    assert (stream.query.stopped, run.read_rows) == (1, 4)

"""The tables of queries: whose they are in an object store, what another process has brought, and what is told of it.

Spark, and the object store, are made up.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastlog.errors import ConfigError, DataLossError, TableConflictError, TableUnavailableError, TableWriteError
from fastlog.spark.entries import NewFile, stats_of
from fastlog.spark.jobs import command, streams
from fastlog.spark.jobs.streams import QueryRun, TableSink
from fastlog.spark.lake import Lake, NumberStep, TableChange
from fastlog.spark.staging import TableStaging
from fastlog.spark.storage import TableLocation
from fastlog.tools import signals
from fastlog.tools.report import CommandError

SCHEMA = pa.schema([("count", pa.int64())])
QUERY = "f2c3a1de-0000-4000-8000-123456789abc"
NUMBER = uuid.UUID(QUERY).int >> 65
OTHER = "01c3a1de-0000-4000-8000-123456789abc"


class Frame:
    """A batch of rows of a query."""

    def __init__(self, *rows: int, query: str = QUERY) -> None:
        self.rows = list(rows)
        context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query}.__getitem__)
        self.sparkSession = SimpleNamespace(sparkContext=context)
        self.write = SimpleNamespace(format=lambda name: SimpleNamespace(mode=lambda how: self))

    def save(self) -> None:
        """Of the format that keeps nothing."""


class Store:
    """A table in an object store, as far as a query asks; others may have the same ``table``."""

    def __init__(self, table: dict[str, Any] | None = None, text: str = "s3://b/t") -> None:
        self.location = TableLocation(text)
        self.table = table if table is not None else {}
        self._seen: dict[str, Any] = {}
        self.changes: list[TableChange] = []
        self.reload()

    def __str__(self) -> str:
        return self.location.text

    @property
    def exists(self) -> bool:
        return "columns" in self._seen

    def reload(self) -> None:
        self._seen = dict(self.table)

    def create(self, schema: Any, partition_by: Any) -> None:
        self.table.setdefault("columns", schema.names)
        self.reload()

    def check_schema(self, schema: Any, partition_by: Any) -> None:
        if self._seen["columns"] != schema.names:
            raise ConfigError("other columns")

    def number(self, name: str) -> int | None:
        return self._seen.get(name)

    def commit(self, change: TableChange) -> None:
        self.reload()
        for name, step in change.steps.items():
            if self._seen.get(name) != step.before:
                raise TableConflictError(f"{name} is {self._seen.get(name)}")
        self.table.update({name: step.after for name, step in change.steps.items()})
        self.changes.append(change)
        self.reload()


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> list[NewFile]:
    """Those that were discarded; a batch has one file for each row."""
    discarded: list[NewFile] = []
    numbers = iter(range(1000))

    def write(self: TableStaging, frame: Any) -> list[NewFile]:
        made = []
        for row in frame.rows:
            name, size = f"{next(numbers)}.parquet", 1
            if self._location.is_local:
                path = self._location.directory / name
                pq.write_table(pa.table({"count": [row]}, SCHEMA), path)
                size = path.stat().st_size
            made.append(NewFile(name, size, {}, 1, stats_of(1)))
        return made

    monkeypatch.setattr(streams, "arrow_schema", lambda frame: SCHEMA)
    monkeypatch.setattr(TableStaging, "write", write)
    monkeypatch.setattr(TableStaging, "discard", lambda self, gone: discarded.extend(gone))
    return discarded


def sink_of(store: Any, state: Path | None, *, shown: bool = False, **more: Any) -> TableSink:
    return TableSink(store, "counts", [], shown, state, **more)


def written_state(directory: Path, query: str = QUERY, *commits: str) -> Path:
    """The state of a query that has brought batches; the directory that is given for it."""
    checkpoint = directory / "checkpoint"
    (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    for name in commits:
        (checkpoint / "commits" / name).touch()
    return directory


# -- whose a table is --------------------------------------------------------------------------------------------------


def test_where_the_state_of_a_query_is(tmp_path: Path) -> None:
    """Inside a table in a directory and nowhere else; of one in an object store where the user says."""
    with pytest.raises(ConfigError, match=r"s3://b/t: give a directory with --checkpoint"):
        sink_of(Store(), None)
    with pytest.raises(ConfigError, match="--checkpoint: the state of a table in a directory is kept inside it"):
        sink_of(Lake(tmp_path / "table"), tmp_path / "state")
    assert sink_of(Store(), tmp_path / "state").checkpoint == tmp_path / "state" / "checkpoint"
    inside = sink_of(Lake(tmp_path / "table"), None).checkpoint
    assert inside == tmp_path / "table" / "_fastlog" / "checkpoint"


def test_a_table_in_an_object_store_knows_its_query(tmp_path: Path) -> None:
    """No lock keeps another query from filling it: the first batch writes the query down, and each has to find it."""
    store = Store()
    sink = sink_of(store, tmp_path)
    sink(Frame(1, 2), 0)
    sink(Frame(3), 1)
    name = f"fastlog.query:{QUERY}"
    assert [change.steps for change in store.changes] == [
        {name: NumberStep(None, 0), "fastlog.query": NumberStep(None, NUMBER)},
        {name: NumberStep(0, 1), "fastlog.query": NumberStep(NUMBER, NUMBER)},
    ]
    assert 0 < NUMBER < 2**63, "a number that a table can remember"
    notes = {"job": "counts", "query": QUERY, "batch": 1, "rows": 1}
    assert (store.changes[1].notes, store.changes[1].removed) == (notes, ())
    with pytest.raises(TableConflictError, match=r"fastlog\.query is"):
        sink_of(Store(store.table), tmp_path)(Frame(1, query=OTHER), 0)


def test_a_table_in_a_directory_has_a_lock_for_that(tmp_path: Path) -> None:
    sink_of(Lake(tmp_path / "table"), None)(Frame(1), 0)
    lake = Lake(tmp_path / "table")
    assert (lake.names("fastlog.query"), lake.number("fastlog.query")) == ([f"fastlog.query:{QUERY}"], None)


@pytest.mark.parametrize(
    ("table", "query", "commits", "refused"),
    [
        ({}, None, (), None),  # nothing is there yet
        ({}, QUERY, (), None),  # it was killed before its first batch
        ({}, QUERY, (".0.crc",), None),
        ({}, QUERY, ("0",), "has nothing of what .* says was brought there: give another --checkpoint"),
        ({"columns": ["count"]}, None, (), "of a query whose state is lost"),
        ({"columns": ["count"], "fastlog.query": NUMBER}, QUERY, ("0",), None),
        ({"columns": ["count"], "fastlog.query": NUMBER}, OTHER, ("0",), "is the state of another query"),
        ({"columns": ["count"], "fastlog.query": NUMBER}, OTHER, (), "is the state of another query"),
    ],
)
def test_a_state_and_a_table_that_are_not_of_one_query(
    tmp_path: Path, table: dict[str, Any], query: str | None, commits: tuple[str, ...], refused: str | None
) -> None:
    if query is not None:
        written_state(tmp_path, query, *commits)
    sink = sink_of(Store(table), tmp_path)
    if refused is None:
        with sink.alone():
            return
    with pytest.raises(ConfigError, match=refused), sink.alone():
        pytest.fail("it is used all the same")


def test_two_queries_of_one_state(tmp_path: Path) -> None:
    """The directory of the state has a lock; the table in an object store has none."""
    with (
        sink_of(Store(), tmp_path).alone(),
        pytest.raises(TableConflictError, match="another process fills this table"),
        sink_of(Store(), tmp_path).alone(),
    ):
        pytest.fail("both fill it")


# -- what others have brought ------------------------------------------------------------------------------------------


def test_what_another_process_has_brought_meanwhile_is_found(tmp_path: Path) -> None:
    """A batch is looked for in the table as it is now, not as it was when the query began."""
    table = {"columns": ["count"]}
    first, second = sink_of(Store(table), tmp_path / "1"), sink_of(Store(table), tmp_path / "2")
    for batch in (0, 1):
        first(Frame(batch), batch)
        second(Frame(batch), batch)
    assert (first.batches, first.passed_over) == (2, 0)
    assert (second.batches, second.passed_over, second.rows) == (0, 2, 0)


@pytest.mark.parametrize(
    ("error", "discarded"),
    [(TableConflictError("x"), True), (TableWriteError("x"), True), (TableUnavailableError("x"), False)],
)
def test_files_of_a_batch_that_is_refused(
    tmp_path: Path, files: list[NewFile], error: Exception, discarded: bool
) -> None:
    """They go; those of a transaction of which nobody knows whether it came stay: it may name them."""
    store = Store()
    sink = sink_of(store, tmp_path)

    def refuse(change: TableChange) -> None:
        raise error

    store.commit = refuse  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        sink(Frame(1, 2), 0)
    assert len(files) == (2 if discarded else 0)
    assert (sink.rows, sink.batches) == (0, 0)


# -- what is told ------------------------------------------------------------------------------------------------------


class LateFrames:
    """The late rows of each batch."""

    def __init__(self, *frames: Frame | None) -> None:
        self.frames = frames

    def of(self, session: Any, checkpoint: Path, batch: int) -> Any:
        return self.frames[batch]


@pytest.mark.parametrize("shown", [True, False])
def test_each_batch_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: bool) -> None:
    said: list[str] = []
    monkeypatch.setattr(command, "note", lambda text: said.append(text.partition(" ")[2]))
    monkeypatch.setattr(TableLocation, "filesystem", _no_store)
    late: Any = (Lake(tmp_path / "late"), LateFrames(None, Frame(7), Frame()))
    sink = sink_of(Store(), tmp_path, shown=shown, moments=("count",), late=late)
    for batch, rows in ((0, (1, 2)), (1, (3,)), (1, (3,)), (2, ())):
        sink(Frame(*rows), batch)
    expected = [
        "how long its messages took is not known: s3://b/t: it is away",
        "batch 0: 2 rows",
        "batch 1: 1 late rows",
        "how long its messages took is not known: s3://b/t: it is away",
        "batch 1: 1 row",
        "batch 1: is in the table already",
        "how long its messages took is not known: s3://b/t: it is away",
        "batch 2: 0 rows",
    ]
    assert said == (expected if shown else [])


def _no_store(self: TableLocation) -> Any:
    raise OSError("it is away")


# -- runs --------------------------------------------------------------------------------------------------------------


class Sink:
    """As far as a run asks."""

    batches = 0
    checkpoint = Path("/table/_fastlog/checkpoint")

    @contextmanager
    def alone(self) -> Iterator[None]:
        yield


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it waited each time; it does not."""
    found: list[float] = []
    monkeypatch.setattr(command, "wait", found.append)
    return found


def failing_run(error: Exception, attempts: int) -> QueryRun:
    def make() -> Any:
        raise error

    return QueryRun(Sink(), make, every=None, attempts=attempts)  # type: ignore[arg-type]


def test_the_longest_pause_is_ten_seconds(waits: list[float]) -> None:
    """And the error of ours is what ends it, rather than how often it came."""
    run = failing_run(TableUnavailableError("s3://b/t: away"), 9)
    with pytest.raises(TableUnavailableError, match="s3://b/t: away"):
        run()
    assert waits == [pytest.approx(0.2 * 2**number) for number in range(1, 6)] + [10.0] * 3
    assert run.failures == 9


def test_what_failed_is_said_with_how_often_it_may(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(command, "say", said.append)
    with pytest.raises(CommandError, match="the query failed 3 times"):
        failing_run(OSError("no room"), 3)()
    assert said == ["failed, 1 of 3: no room", "failed, 2 of 3: no room"]


def test_a_loss_that_a_task_found_ends_a_query(waits: list[float]) -> None:
    """Spark tells of it in words of its own; the next try would read behind it."""
    spark_errors = pytest.importorskip("pyspark.errors")
    told = "[STREAM_FAILED] Traceback\nfastlog.errors.DataLossError: bytes 1 to 2 are gone\n"
    run = failing_run(spark_errors.StreamingQueryException(told), 5)
    with pytest.raises(DataLossError, match="bytes 1 to 2 are gone"):
        run()
    assert (run.failures, waits) == (0, [])


class Spark:
    """The Spark of a job, with what it was asked for."""

    def __init__(self, *given: object) -> None:
        self.given = given
        self.session = object()
        self.open = 0

    def __enter__(self) -> Spark:
        self.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open -= 1


STOPPED = [(None, 0), (signals.Interrupted(15), 143), (signals.Interrupted(2), 130)]


@pytest.mark.parametrize(("stopped", "code"), STOPPED)
def test_a_job_is_one_query_in_one_spark(monkeypatch: pytest.MonkeyPatch, stopped: Exception | None, code: int) -> None:
    """Its summary has the version that the table has then, however it ended."""
    seen: list[Any] = []
    sparks: list[Spark] = []

    class Query:
        def __init__(self, sink: Any, make: Callable[[], Any], *, every: float | None, attempts: int) -> None:
            seen.extend((sink, make, every, attempts))

        def __call__(self) -> None:
            assert sparks[0].open == 1
            seen.append(seen[1]())
            if stopped is not None:
                raise stopped

        def to_json(self) -> dict[str, Any]:
            return {"rows": 7, "late": 0, "late_table": None, "without_time": 0, "without_key": 0}

    def spark_of(*given: object) -> Spark:
        sparks.append(Spark(*given))
        return sparks[0]

    monkeypatch.setattr(streams, "QueryRun", Query)
    monkeypatch.setattr(command, "LazySpark", spark_of)
    lake = SimpleNamespace(version=3)
    lake.reload = lambda: setattr(lake, "version", 4)
    job: Any = SimpleNamespace(master="local[7]", every=2.5, attempts=6, no_progress=False)
    sink: Any = SimpleNamespace(lake=lake)
    found = streams.fill_table("counts", job, {"spark.x": "1"}, sink, lambda spark: ("frame of", spark))  # type: ignore[arg-type,return-value]
    assert found[0] == code
    assert found[1].items() >= {"job": "counts", "version": 4, "rows": 7}.items()
    (spark,) = sparks
    assert (spark.given, spark.open) == (("counts", "local[7]", {"spark.x": "1"}), 0)
    assert (seen[0], seen[2:4], seen[4]) == (sink, [2.5, 6], ("frame of", spark.session))

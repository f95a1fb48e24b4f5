"""The steps of a load, one by one: what is replaced and what stays, which files may have rows of a range, messages that
are rejected, what is counted and told. With Delta's library and a fake broker; Spark is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from fastlog.errors import ConfigError, TableConflictError, TableUnavailableError, TableWriteError, TransportError
from fastlog.spark.behind import Behind
from fastlog.spark.entries import ActiveFile, NewFile
from fastlog.spark.jobs import command, loader
from fastlog.spark.jobs.expressions import Expressions
from fastlog.spark.jobs.load_plan import LoadBatch
from fastlog.spark.jobs.loader import Loader, LoadTotals, rejected_schema
from fastlog.spark.jobs.rejects import Rejected
from fastlog.spark.lake import Lake, TableChange
from fastlog.spark.offsets import OffsetRange, OffsetSpec
from fastlog.spark.staging import TableStaging
from fastlog.spark.storage import TableLocation, located
from fastlog.spark.table_files import TableFiles
from tests.harness import made_up_frames
from tests.harness.fake_broker import FakeBroker
from tests.harness.made_up_frames import Frame
from tests.harness.small_loads import Context, expected, load_options, put
from tests.harness.spark import partition_of
from tests.harness.timing import patch_time

ONE, TWO = partition_of("t/0-0"), partition_of("t/0-1")


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        yield fake


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it waited each time; it does not."""
    found: list[float] = []
    monkeypatch.setattr(command, "wait", found.append)
    return found


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a load tells, without the time of day and how long it took."""
    found: list[str] = []
    monkeypatch.setattr(command, "note", lambda text: found.append(text.partition(" ")[2]))
    return found


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Lets frames of rows be read from a table, and be written to it; the files that were read each time."""
    made_up_frames.use(monkeypatch)
    read: list[list[str]] = []

    def read_table(session: Any, place: TableLocation, files: Sequence[ActiveFile]) -> Frame:
        read.append(sorted(file.path for file in files))
        rows = []
        for file in files:
            for row in pq.read_table(place.directory / file.path, partitioning=None).to_pylist():
                rows.append({**file.values, **row})
        return Frame(rows)

    def write(self: TableStaging, frame: Any) -> list[NewFile]:
        lake: Any = self._lake
        schema = pa.schema([item for item in lake.schema if item.name not in ("topic", "date")])
        files = TableFiles(lake.directory, schema, ("topic", "date"), "none")
        for row in frame.rows:
            values = {name: row[name] for name in schema.names}
            files.add((row["topic"], str(row["date"])), pa.RecordBatch.from_pylist([values], schema=schema))
        return files.finish()

    monkeypatch.setattr(loader, "read_table", read_table)
    monkeypatch.setattr(TableStaging, "write", write)
    return read


def loader_of(
    path: Path, broker: FakeBroker, context: Context | None = None, rejected: Any = None, **fields: Any
) -> Loader:
    spark: Any = SimpleNamespace(context=context or Context(), session=object(), has_ended=False)
    return Loader(Lake(path / "table"), load_options(broker, **fields), spark, rejected)


def rows_in(path: Path) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value, in their order."""
    table = DeltaTable(str(path / "table")).to_pyarrow_table()
    columns = [table[name].to_pylist() for name in ("partition", "offset", "value")]
    return sorted(zip(*columns, strict=True))


def files_on_disk(path: Path) -> set[str]:
    return {str(found.relative_to(path / "table")) for found in (path / "table").glob("topic=*/**/*.parquet")}


# -- replaced ----------------------------------------------------------------------------------------------------------


def test_what_is_loaded_again_takes_the_place_of_what_was_there(
    tmp_path: Path, broker: FakeBroker, frames: list[list[str]], waits: list[float], said: list[str]
) -> None:
    """Of the range alone: rows beside it in the same files stay, files without it are not looked at, and a try that
    failed leaves no file and is not counted."""
    middle = put(broker, 0, 10)
    loader_of(tmp_path, broker).run()
    put(broker, 10, 10)
    put(broker, 100, 6, 1)
    loader_of(tmp_path, broker).run()
    before = rows_in(tmp_path)
    first_ones = {file.path for file in Lake(tmp_path / "table").files() if file.rows == 5}
    place = sorted(offset for number, offset, _ in before if number == 0)[14]
    assert place > middle
    context = Context()

    def fail(run: int) -> None:
        if run < 3:
            raise TransportError("a broker is away")

    context.before = fail
    again = loader_of(tmp_path, broker, context, shown=True)
    again.run(again_from=OffsetSpec("offsets", by_partition=((ONE, place),)))
    assert rows_in(tmp_path) == before
    found = again.totals.to_json()
    names = ("batches", "rows", "replaced_rows", "failures", "latency_ms", "files")
    assert {name: found[name] for name in names} == {
        "batches": 1, "rows": 6, "replaced_rows": 6, "failures": 2, "latency_ms": None, "files": 4,
    }  # fmt: skip
    assert len(frames) == 3
    touched = set(frames[0])
    assert touched and all(set(paths) == touched for paths in frames)
    there = {file.path for file in Lake(tmp_path / "table").files()}
    assert not touched & there
    assert first_ones & there
    assert files_on_disk(tmp_path) == there | touched
    notes = Lake(tmp_path / "table").history()[0][1]
    assert (notes["job"], notes["batch"], notes["rows"], "behind" in notes) == ("load", 2, 6, False)
    size = len(broker.logs["t", 0]) - place
    assert said[-3:-1] == [f"batch 2: {size} bytes of 1 partition", "batch 2: adding 4 files"]
    assert said[-1].startswith("batch 2: 6 rows in ") and said[-1].endswith(" s")


def test_nothing_is_replaced_where_the_table_ends(tmp_path: Path, broker: FakeBroker, frames: list[list[str]]) -> None:
    end = put(broker, 0, 10)
    loader_of(tmp_path, broker).run()
    version = Lake(tmp_path / "table").version
    loader_of(tmp_path, broker).run(again_from=OffsetSpec("offsets", by_partition=((ONE, end),)))
    assert (Lake(tmp_path / "table").version, frames) == (version, [])


@pytest.mark.parametrize(
    ("error", "stay"),
    [(TableConflictError("x"), False), (TableWriteError("x"), False), (TableUnavailableError("x"), True)],
)
def test_files_of_a_refused_replacement(
    tmp_path: Path,
    broker: FakeBroker,
    frames: list[list[str]],
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    stay: bool,
) -> None:
    """New ones and kept ones go; those of a transaction of which nobody knows whether it came stay."""
    put(broker, 0, 10)
    loader_of(tmp_path, broker).run()
    before = files_on_disk(tmp_path)

    def refuse(self: Lake, change: TableChange) -> None:
        raise error

    monkeypatch.setattr(Lake, "commit", refuse)
    made = loader_of(tmp_path, broker, attempts=1)
    with pytest.raises(type(error)):
        made.run(again_from=OffsetSpec("offsets", by_partition=((ONE, 0),)))
    assert (files_on_disk(tmp_path) > before) == stay
    assert (made.totals.rows, made.totals.replaced_rows, made.totals.batches) == (0, 0, 0)


# -- which files may have rows of a range ------------------------------------------------------------------------------

FILE = [(1, 2, 100), (3, 5, 200)]
"""Broker, partition and offset of two rows."""


@pytest.mark.parametrize(
    ("name", "interval", "may"),
    [
        ("t/1-2", (100, 101), True),
        ("t/1-2", (99, 100), False),
        ("t/1-2", (200, 300), True),
        ("t/1-2", (201, 300), False),
        ("t/1-2", (0, 1000), True),
        ("t/3-5", (150, 151), True),
        ("t/0-2", (0, 1000), False),
        ("t/4-2", (0, 1000), False),
        ("t/1-1", (0, 1000), False),
        ("t/1-6", (0, 1000), False),
        ("u/1-2", (0, 1000), False),
    ],
)
def test_a_file_is_looked_at_by_its_bounds(tmp_path: Path, name: str, interval: tuple[int, int], may: bool) -> None:
    """To the offset; what a footer does not tell may be anything, and so may the topic where no path has it."""
    columns = {key: [row[at] for row in FILE] for at, key in enumerate(("broker", "partition", "offset"))}
    pq.write_table(pa.table(columns), tmp_path / "all")
    pq.write_table(pa.table(columns), tmp_path / "none", write_statistics=False)
    pq.write_table(pa.table(columns), tmp_path / "some", write_statistics=["broker"])
    lake: Any = SimpleNamespace(location=located(tmp_path))
    batch = LoadBatch({partition_of("v/9-9"): OffsetRange(0, 1), partition_of(name): OffsetRange(*interval)}, {}, {})

    def asked(file: str, **values: str) -> bool:
        return loader._may_hold(lake, ActiveFile(file, 1, values), batch)

    assert asked("all", topic="t") == may
    assert asked("none", topic="t") == name.startswith("t")
    assert asked("some", topic="t") == (name.startswith("t") and name[2] in "13")
    assert asked("none")
    assert asked("all") == (may or name.startswith("u"))
    assert not asked("all", topic="w")


# -- counted -----------------------------------------------------------------------------------------------------------


def test_a_run_is_the_sum_of_its_batches() -> None:
    """Its ranges go from the first to the last; bytes are of messages, and records of the others."""
    records = partition_of("r/0-0")
    totals = LoadTotals()
    kind = frozenset([records])
    totals.add(LoadBatch({ONE: OffsetRange(10, 30), records: OffsetRange(5, 9)}, {}, {}, kind), 7, 2)
    lost = {ONE: [OffsetRange(30, 35)], records: [OffsetRange(9, 12)]}
    totals.add(LoadBatch({ONE: OffsetRange(35, 40), TWO: OffsetRange(0, 8)}, lost, {}, kind), 3, 1)
    totals.add(LoadBatch({ONE: OffsetRange(0, 10)}, {ONE: [OffsetRange(40, 42)]}, {}, kind), 1, 1)
    totals.behind = Behind(5, 6)
    found = totals.to_json()
    assert found.pop("seconds") >= 0
    found.pop("rows_per_second")
    assert found == {
        "batches": 3, "rows": 11, "replaced_rows": 0, "rejected": 0, "files": 4, "joined_files": 0, "bytes": 43,
        "ranges": {"r": {"0-0": [5, 9]}, "t": {"0-0": [0, 40], "0-1": [0, 8]}},
        "lost": {"r": {"0-0": [[9, 12]]}, "t": {"0-0": [[30, 35], [40, 42]]}},
        "lost_bytes": 7, "lost_records": 3, "failures": 0, "latency_ms": None, "behind": {"bytes": 5, "records": 6},
    }  # fmt: skip


def test_the_speed_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_time(monkeypatch, loader, monotonic=lambda: 14.0)
    assert LoadTotals(rows=10, started=10.0).to_json().items() >= {("rows_per_second", 2), ("seconds", 4.0)}
    assert LoadTotals(rows=10, started=14.0).to_json()["rows_per_second"] is None


@pytest.mark.parametrize(
    ("sizes", "words"),
    [((0, 0), "0 bytes"), ((5, 0), "5 bytes"), ((0, 6), "6 records"), ((5, 6), "5 bytes and 6 records")],
)
def test_sizes_in_words(sizes: tuple[int, int], words: str) -> None:
    assert loader._counted(sizes) == words


def test_each_batch_is_told_of(tmp_path: Path, broker: FakeBroker, said: list[str], waits: list[float]) -> None:
    """With how far it is behind, as long as there is more."""
    end = put(broker, 0, 20)
    loader_of(tmp_path, broker, shown=True, max_bytes=end - 1).run()
    lines = [line.partition(" in ")[0] + line.partition(" s,")[2] for line in said]
    first = Lake(tmp_path / "table").history()[1][1]["ranges"]["t"]["0-0"]
    assert lines == [
        "begins with 1 partition",
        f"batch 0: {first[1]} bytes of 1 partition",
        "batch 0: adding 2 files",
        f"batch 0: 19 rows {end - first[1]} bytes behind",
        f"batch 1: {end - first[1]} bytes of 1 partition",
        "batch 1: adding 1 file",
        "batch 1: 1 row",
    ]
    notes = [notes for _, notes in Lake(tmp_path / "table").history() if "batch" in notes]
    assert [found["behind"] for found in notes] == [
        {"bytes": 0, "records": 0}, {"bytes": end - first[1], "records": 0},
    ]  # fmt: skip
    assert len({found["run"] for found in notes}) == 1


def test_a_load_that_says_nothing(tmp_path: Path, broker: FakeBroker, said: list[str]) -> None:
    put(broker, 0, 2)
    loader_of(tmp_path, broker).run()
    assert said == []


# -- what a table is partitioned by ------------------------------------------------------------------------------------


def test_a_table_stays_partitioned_as_it_is(tmp_path: Path) -> None:
    """Whoever says nothing goes on with it; a new one is by topic and day."""

    def columns(name: str, *given: str) -> tuple[str, ...]:
        wanted: Any = SimpleNamespace(partition_by=given or None)
        return loader._partition_columns(Lake(tmp_path / name), wanted)

    assert columns("new") == ("topic", "date")
    assert columns("new", "date", "topic") == ("date", "topic")
    with pytest.raises(ConfigError, match="--partition-by date,Date: names a column twice"):
        columns("new", "date", "Date")
    for name, parts in (("by_date", ["date"]), ("plain", [])):
        schema = pa.schema([("date", pa.date32()), ("offset", pa.int64())])
        Lake(tmp_path / name).create(schema, parts)
        assert columns(name) == tuple(parts)
    assert columns("by_date", "date") == ("date",)
    with pytest.raises(ConfigError, match="is partitioned by date, which stays as it is"):
        columns("by_date", "topic", "date")
    with pytest.raises(ConfigError, match="is partitioned by nothing, which stays as it is"):
        columns("plain", "date")


KINDS = {
    "text": pa.string(), "small": pa.int8(), "large": pa.int64(), "day": pa.date32(), "part": pa.float64(),
    "bytes": pa.binary(), "time": pa.timestamp("us", tz="UTC"), "yes": pa.bool_(),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_what_can_be_a_path(name: str) -> None:
    """Texts, whole numbers and days; and a file has a column of its own at least."""
    schema = pa.schema(list(KINDS.items()))
    if name in ("text", "small", "large", "day"):
        loader._check_partitions(schema, ["text", name])
        with pytest.raises(ConfigError, match="one column at least has to be in the files"):
            loader._check_partitions(pa.schema([(name, KINDS[name])]), [name])
        return
    with pytest.raises(ConfigError, match=f"--partition-by {name}: is {KINDS[name]}".replace("[", r"\[")):
        loader._check_partitions(schema, ["text", name])


def test_a_column_that_is_not_there() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    loader._check_partitions(schema, [])
    with pytest.raises(ConfigError, match="--partition-by c: the columns are a, b"):
        loader._check_partitions(schema, ["a", "c"])


def test_a_table_that_cannot_be_partitioned_so_is_not_made(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, 0, 2)
    monkeypatch.setattr(Loader, "_schema", pa.schema([("topic", pa.string()), ("value", pa.binary())]))
    with pytest.raises(ConfigError, match="--partition-by value: is binary"):
        loader_of(tmp_path, broker, partition_by=("value",)).run()
    assert not Lake(tmp_path / "table").exists


# -- messages that are rejected ----------------------------------------------------------------------------------------


class Rejecting:
    """The table of what was rejected, as far as a load asks for it; ``events`` are shared with whoever looks."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.exists = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.events.append("alone")
        yield
        self.events.append("left")

    def catch_up(self) -> None:
        self.events.append("catch up")

    def write(self, messages: pa.Table, today: date) -> list[NewFile]:
        assert today == datetime.now(UTC).date()
        self.events.append(f"write {messages.num_rows}")
        return [NewFile(f"{row}.parquet", 1, {}, 1, "") for row in range(messages.num_rows)]

    def told(self, rejected: Rejected) -> tuple[dict[str, Any], dict[str, Any]]:
        self.events.append(f"told {rejected.rows} {sorted(map(str, rejected.replaced))}")
        return {}, {"rejected": rejected.rows}

    def discard(self, rejected: Rejected) -> None:
        self.events.append(f"discard {rejected.rows}")


class Refused:
    """Messages that an expression fails on."""

    def __init__(self, count: int, events: list[str]) -> None:
        self._table = pa.table({"offset": list(range(count))})
        self._events = events

    def limit(self, most: int) -> Refused:
        self._events.append(f"limit {most}")
        self._table = self._table.slice(0, most)
        return self

    def toArrow(self) -> pa.Table:
        return self._table


Made = Callable[..., tuple[Loader, list[str]]]


@pytest.fixture
def rejecting(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, frames: list[list[str]], waits: list[float]
) -> Made:
    """Makes a load of a column on which ``refused`` of its messages fail, and what it does."""
    spark_errors = pytest.importorskip("pyspark.errors")
    events: list[str] = []
    put(broker, 0, 4)

    def make(refused: int, error: Exception | None = None, **fields: Any) -> tuple[Loader, list[str]]:
        made = loader_of(tmp_path, broker, columns={"n": "1"}, **fields)
        made._rejects = Rejecting(events)  # type: ignore[assignment]

        def computed(*given: Any) -> list[NewFile]:
            events.append("all")
            raise error or spark_errors.ArithmeticException("[DIVIDE_BY_ZERO] Division by zero")

        @contextmanager
        def parted(self: Expressions, frame: Any, now: datetime) -> Iterator[Any]:
            events.append("parted")
            yield Frame([]), Refused(refused, events)

        def told(self: Expressions, session: Any, rows: pa.Table) -> pa.Table:
            return rows.append_column("reason", [[f"why {offset}" for offset in rows["offset"].to_pylist()]])

        monkeypatch.setattr(Loader, "_computed", computed)
        monkeypatch.setattr(
            Loader, "_schema", pa.schema([("topic", pa.string()), ("date", pa.date32()), ("n", pa.int8())])
        )
        monkeypatch.setattr(Loader, "_frame", lambda self, ranges: ranges)
        monkeypatch.setattr(Expressions, "parted", parted)
        monkeypatch.setattr(Expressions, "refused", told)
        return made, events

    return make


def test_messages_are_parted_once_one_was_found_that_fails(rejecting: Made, broker: FakeBroker) -> None:
    """From then on at once. What another load has left is added before anything else, and this batch's behind it."""
    made, events = rejecting(3)
    made.run()
    one = ["catch up", "all", "parted", "limit 1001", "write 3", "told 3 []", "catch up", "catch up"]
    assert events == ["alone", *one, "left"]
    assert (made.totals.rejected, made.totals.rows, made.totals.batches) == (3, 0, 1)
    assert made._lake.history()[0][1]["rejected"] == 3
    events.clear()
    put(broker, 4, 1)
    made.run()
    assert events == ["alone", *(event for event in one if event != "all"), "left"]
    assert made.totals.rejected == 6


@pytest.mark.parametrize("most", [1, 3])
def test_as_many_as_may_be_are_rejected_and_not_one_more(rejecting: Made, most: int) -> None:
    made, events = rejecting(most, most_rejected=most)
    made.run()
    assert f"write {most}" in events
    events.clear()
    made, events = rejecting(most + 1, most_rejected=most)
    put_more: Any = made
    put_more._rejecting = True
    with pytest.raises(
        ConfigError, match=f"more than {most} messages of a batch would be rejected, such as one with why 0:"
    ):
        made._parted(made._rejects, Frame([]), datetime.now(UTC))  # type: ignore[arg-type]
    assert events == ["parted", f"limit {most + 1}"]


def test_who_has_no_table_for_them_is_told_of_the_error(rejecting: Made) -> None:
    made, events = rejecting(1, attempts=1)
    made._rejects = None
    with pytest.raises(Exception, match="Division by zero"):
        made.run()
    assert events == ["all"]


def test_an_error_of_another_kind_parts_no_messages(rejecting: Made) -> None:
    """Such as a broker that is away: the next try goes well."""
    made, events = rejecting(1, TransportError("away"), attempts=2)
    with pytest.raises(TransportError):
        made.run()
    assert events == ["alone", "catch up", "all", "catch up", "all"]
    assert not made._rejecting


def test_files_of_rejected_messages_go_with_their_batch(rejecting: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the others cannot be written, and where its transaction is refused."""
    made, events = rejecting(2, attempts=1)

    def full(self: TableStaging, frame: Any) -> list[NewFile]:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TableStaging, "write", full)
        with pytest.raises(Exception, match="No space left"):
            made.run()
    assert events[-2:] == ["write 2", "discard 2"]
    events.clear()
    commit = Lake.commit

    def refuse(self: Lake, change: TableChange) -> None:
        if "batch" in change.notes:
            raise TableWriteError("no room")
        commit(self, change)

    monkeypatch.setattr(Lake, "commit", refuse)
    with pytest.raises(TableWriteError):
        made.run()
    assert events[-2:] == ["told 2 []", "discard 2"]
    assert made.totals.rejected == 0


def test_without_expressions_nothing_can_be_rejected(tmp_path: Path, broker: FakeBroker) -> None:
    """Such a table is not opened for it."""
    assert loader_of(tmp_path, broker, rejected=Lake(tmp_path / "r"))._rejects is None
    for given in ({"time": "timestamp"}, {"columns": {"n": "1"}}):
        assert loader_of(tmp_path, broker, rejected=Lake(tmp_path / "r"), **given)._rejects is not None


def test_the_columns_of_rejected_messages() -> None:
    found = rejected_schema(("offset", "value"))
    assert found == pa.schema(
        [("topic", pa.string()), ("offset", pa.int64()), ("value", pa.binary()), ("reason", pa.string())]
    )


# -- which columns -----------------------------------------------------------------------------------------------------


def test_headers_are_in_the_table_where_they_are_asked_for(tmp_path: Path, broker: FakeBroker) -> None:
    """Unless a column of the user's has their name."""
    asked = {"source": {"includeHeaders": "true"}}
    assert "headers" not in loader_of(tmp_path, broker)._columns
    assert loader_of(tmp_path, broker, **asked)._columns[-1] == "headers"
    assert "headers" not in loader_of(tmp_path, broker, columns={"headers": "1"}, **asked)._columns


@pytest.mark.parametrize(
    ("given", "by_sql"),
    [({}, False), ({"time": "timestamp"}, True), ({"columns": {"n": "1"}}, True), ({"partition_by": ("date",)}, True),
     ({"partition_by": ("topic", "date")}, False)],
)  # fmt: skip
def test_sql_is_for_what_a_user_gives(tmp_path: Path, broker: FakeBroker, given: dict[str, Any], by_sql: bool) -> None:
    assert loader_of(tmp_path, broker, **given)._by_sql == by_sql


def test_what_is_lost_is_for_the_driver_to_find(tmp_path: Path, broker: FakeBroker) -> None:
    """A worker that passed over it would leave rows out that nobody counts."""
    made = loader_of(tmp_path, broker, fail_on_data_loss=False)
    assert (made._options.fail_on_data_loss, made._options.loss_option) == (False, "--skip-lost")
    plan: Any = SimpleNamespace(tasks=lambda batch: ["tasks of", batch])
    batch: Any = object()
    options, tasks = made._in_tasks(plan, batch)
    assert options.fail_on_data_loss
    assert tasks == ["tasks of", batch]


def test_values_are_those_that_were_put(tmp_path: Path, broker: FakeBroker) -> None:
    put(broker, 0, 3)
    loader_of(tmp_path, broker).run()
    assert [value for _, _, value in rows_in(tmp_path)] == expected((0, 3))

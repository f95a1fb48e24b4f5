"""Loads into Iceberg tables, with a fake broker and no Java: each message once, whatever fails, for every reader."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner

from fastlog.errors import ConfigError, TableConflictError, TableUnavailableError
from fastlog.spark.entries import NewFile
from fastlog.spark.iceberg import IcebergLake, IcebergStaging
from fastlog.spark.jobs import command
from fastlog.spark.jobs.counts import counts_command
from fastlog.spark.jobs.expire import expire_command
from fastlog.spark.jobs.load_plan import BATCHES, offset_name
from fastlog.spark.jobs.loader import Loader
from fastlog.spark.jobs.optimize import optimize_command
from fastlog.spark.jobs.rejects import Rejected, Rejects
from fastlog.spark.jobs.vacuum import vacuum_command
from fastlog.spark.lake import NumberStep, TableChange
from fastlog.spark.offsets import OffsetRange
from fastlog.spark.table_files import TableFiles
from fastlog.spark.upkeep import JoinOptions, expire, join_files
from tests.harness.fake_broker import FakeBroker
from tests.harness.object_store import open_object_store
from tests.harness.small_loads import Context, expected, load_options, put
from tests.harness.spark import partition_of

pytest.importorskip("pyiceberg", reason="pip install '.[iceberg]'")
from pyiceberg.manifest import ManifestContent
from pyiceberg.utils.config import Config

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAME = "iceberg:tried/lake.logs"
SCHEMA = pa.schema([("topic", pa.string()), ("date", pa.date32()), ("n", pa.int64())])


class Killed(BaseException):
    """The load was killed."""


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a file, whose tables are in a directory, in the environment as a user has it."""
    monkeypatch.setenv("PYICEBERG_CATALOG__TRIED__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__TRIED__WAREHOUSE", f"file://{tmp_path}/warehouse")
    # A process reads the environment once.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        yield fake


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(command, "wait", found.append)
    return found


def loader_of(broker: FakeBroker, context: Context | None = None, **fields: Any) -> Loader:
    spark: Any = SimpleNamespace(context=context or Context(), has_ended=False)
    return Loader(IcebergLake(NAME), load_options(broker, **fields), spark)


def table() -> Any:
    """As every program that knows the catalog opens it."""
    from pyiceberg.catalog import load_catalog

    return load_catalog("tried").load_table("lake.logs")


def values_in() -> list[bytes]:
    rows = table().scan().to_arrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    return [bytes(value) for value in rows["value"].to_pylist()]


def made(partition_by: tuple[str, ...] = ("topic", "date")) -> IcebergLake:
    lake = IcebergLake(NAME)
    lake.create(SCHEMA, partition_by)
    return lake


def test_a_new_database_that_two_processes_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is quicker, so that its tables are there when this one is about to make them."""
    import sqlalchemy
    from pyiceberg.catalog.sql import SqlCatalog

    create, made_by_this = SqlCatalog.create_tables, []

    def create_late(catalog: SqlCatalog) -> None:
        create(catalog)
        made_by_this.append(catalog)
        with catalog.engine.connect() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE iceberg_tables (a INTEGER)"))

    monkeypatch.setattr(SqlCatalog, "create_tables", create_late)
    assert not IcebergLake(NAME).exists
    assert len(made_by_this) == 1
    made()
    assert IcebergLake(NAME).exists


def test_a_database_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__TRIED__URI", f"sqlite:///{tmp_path}/away/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with pytest.raises(TableUnavailableError, match="unable to open database file"):
        IcebergLake(NAME)


def written(lake: IcebergLake, rows: pa.RecordBatch, number: int) -> None:
    """Rows of a table without partitions, as tasks write them."""

    def write(place: Any) -> list[NewFile]:
        files = TableFiles(place, rows.schema, (), "snappy")
        files.add((), rows)
        return files.finish()

    step = NumberStep(lake.number("fastlog:t/0-0"), number)
    lake.commit(TableChange({"fastlog:t/0-0": step}, IcebergStaging(lake, (), "snappy").write_by(write)))


# -- loads -------------------------------------------------------------------------------------------------------------


def test_all_of_it_is_in_the_table_with_where_it_goes_on(broker: FakeBroker) -> None:
    ends = [put(broker, 0, 50), put(broker, 100, 30, 1)]
    loader = loader_of(broker)
    loader.run()
    assert values_in() == expected((0, 50), (100, 30))
    lake = IcebergLake(NAME)
    for number, end in enumerate(ends):
        assert lake.number(offset_name(partition_of(f"t/0-{number}"))) == end
    assert lake.number(BATCHES) == 0
    assert lake.partition_columns == ["topic", "date"]
    assert (loader.totals.rows, loader.totals.failures) == (80, 0)
    assert loader.totals.to_json()["latency_ms"] is not None
    (last, *_), *_ = [(notes, number) for number, notes in lake.history()]
    assert (last["rows"], last["batch"]) == (80, 0)
    put(broker, 50, 5)
    again = loader_of(broker)
    again.run()
    assert again.totals.rows == 5
    assert values_in() == expected((0, 55), (100, 30))
    before = IcebergLake(NAME).version
    loader_of(broker).run()
    assert IcebergLake(NAME).version == before


def test_every_reader_finds_the_rows(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have no ids of columns, and no columns of what the table is partitioned by: readers find them all the
    same."""
    import polars

    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    put(broker, 0, 20)
    loader_of(broker).run()
    opened = table()
    names = ["topic", "date", "offset", "value"]
    rows = sorted(opened.scan().select(*names).to_arrow().to_pylist(), key=lambda row: row["offset"])
    assert [row["value"] for row in rows] == expected((0, 20))
    assert {(row["topic"], str(row["date"])) for row in rows} == {("t", "2023-11-14"), ("t", "2023-11-15")}
    frame = polars.scan_iceberg(opened, reader_override="native").select(names).sort("offset").collect()
    assert frame.to_dicts() == rows
    connection = opened.scan().to_duckdb("logs")
    assert connection.sql('SELECT count(DISTINCT "offset"), min(topic), max("date") FROM logs').fetchall() == [
        (20, "t", date(2023, 11, 15))
    ]
    one_day = opened.scan(row_filter="date = '2023-11-14'")
    assert one_day.to_arrow().num_rows == 10
    assert len(list(one_day.plan_files())) == 1


STEPS = ("behind the tasks", "before the beginning is written down", "behind that", "before the commit", "behind it")


@pytest.mark.parametrize("step", STEPS)
def test_whatever_step_it_was_killed_at_each_message_is_there_once(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    put(broker, 0, 20)
    context = Context()

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if step == "behind the tasks":
            context.after = kill
        else:
            _kill_at_commit(patch, number=1 if "commit" in step or step == "behind it" else 0, behind="behind" in step)
        with pytest.raises(Killed):
            loader_of(broker, context).run()
    put(broker, 20, 10)
    loader = loader_of(broker)
    loader.run()
    assert values_in() == expected((0, 30))
    assert loader.totals.rows == (10 if step == "behind it" else 30)


def _kill_at_commit(patch: pytest.MonkeyPatch, number: int, *, behind: bool) -> None:
    attempt = IcebergLake._attempt
    seen: list[TableChange] = []

    def killed(self: IcebergLake, change: TableChange, identity: str) -> None:
        seen.append(change)
        if len(seen) == number + 1:
            if behind:
                attempt(self, change, identity)
            raise Killed
        attempt(self, change, identity)

    patch.setattr(IcebergLake, "_attempt", killed)


def test_tasks_that_run_twice_bring_their_rows_once(broker: FakeBroker) -> None:
    put(broker, 0, 20)
    context = Context()
    context.times = 2
    loader_of(broker, context).run()
    assert values_in() == expected((0, 20))


def test_two_loads_of_one_table_are_both_exact(broker: FakeBroker, waits: list[float]) -> None:
    """The second one is quicker, in the middle of a batch of the first: that batch is refused, its files are gone, and
    it is planned anew."""
    put(broker, 0, 20)
    loader_of(broker).run()
    put(broker, 20, 10)
    context = Context()

    def other(run: int) -> None:
        if run == 1:
            put(broker, 30, 5)
            loader_of(broker).run()

    context.after = other
    first = loader_of(broker, context)
    first.run()
    assert (first.totals.rows, first.totals.failures) == (0, 1)
    assert values_in() == expected((0, 35))
    there = {Path(task.file.file_path) for task in table().scan().plan_files()}
    directory = IcebergLake(NAME).location.directory
    assert {path for path in directory.rglob("*.parquet")} == {Path(str(path).removeprefix("file:")) for path in there}


def test_a_column_that_comes_later_is_null_before() -> None:
    lake = made(())
    written(lake, pa.record_batch({"topic": ["x"], "date": [date(2020, 1, 1)], "n": [1]}, schema=SCHEMA), 1)
    lake.check_schema(pa.schema([*SCHEMA, ("text", pa.string())]), [], growing=True)
    grown = IcebergLake(NAME)
    assert grown.schema == pa.schema([*SCHEMA, ("text", pa.string())])
    rows = {"topic": ["x"], "date": [date(2020, 1, 1)], "n": [2], "text": ["y"]}
    written(grown, pa.record_batch(rows, schema=grown.schema), 2)
    found = table().scan().select("n", "text").to_arrow().sort_by("n").to_pylist()
    assert found == [{"n": 1, "text": None}, {"n": 2, "text": "y"}]


def test_what_does_not_fit_is_refused() -> None:
    lake = made()
    parts = ["topic", "date"]
    with pytest.raises(ConfigError, match="the column n is int64 in the table, and string in what is to be added"):
        lake.check_schema(SCHEMA.set(2, pa.field("n", pa.string())), parts)
    with pytest.raises(ConfigError, match="the column n is int64 in the table, and not there in what"):
        lake.check_schema(pa.schema([*SCHEMA][:2]), parts, growing=True)
    with pytest.raises(ConfigError, match="the table has N in other upper and lower case"):
        lake.check_schema(pa.schema([*SCHEMA, ("N", pa.string())]), parts, growing=True)
    with pytest.raises(ConfigError, match=r"is partitioned by \['topic', 'date'\], not by \['topic'\]"):
        lake.check_schema(SCHEMA, ["topic"])
    assert IcebergLake(NAME).schema == SCHEMA


KILLED = """
import sys
from types import SimpleNamespace
from fastlog.spark.iceberg import IcebergLake
from fastlog.spark.jobs.loader import Loader
from tests.harness.object_store import open_object_store
from tests.harness.small_loads import Context, load_options
name, port = sys.argv[1:]
spark = SimpleNamespace(context=Context(), has_ended=False)
print("begun", flush=True)
Loader(IcebergLake(name), load_options(SimpleNamespace(port=int(port)), max_bytes=300, attempts=50), spark).run()
"""


def test_two_loads_that_are_killed_again_and_again(broker: FakeBroker) -> None:
    """At whatever moment of writing files, of pyiceberg's own and of the catalog's; and both at once."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    source = random.Random(seed)
    put(broker, 0, 120)
    loader_of(broker, max_bytes=300)  # the catalog is there
    command = [sys.executable, "-c", KILLED, NAME, str(broker.port)]
    kills = 0
    for _ in range(4):
        with ExitStack() as stack:
            processes = [
                stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
                for _ in range(2)
            ]
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == b"begun\n"
            time.sleep(source.uniform(0.1, 2))
            for process in processes:
                kills += process.poll() is None
                process.kill()
    assert kills
    loader_of(broker).run()
    assert values_in() == expected((0, 120))


def test_files_in_an_object_store(broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog's options are for what pyiceberg writes there, those of the store for what tasks write."""
    put(broker, 0, 20)
    with open_object_store() as store:
        settings = {
            "URI": f"sqlite:///{tmp_path}/stored.db",
            "WAREHOUSE": store.url("warehouse"),
            "S3__ENDPOINT": store.options["AWS_ENDPOINT_URL"],
            "S3__ACCESS_KEY_ID": store.options["AWS_ACCESS_KEY_ID"],
            "S3__SECRET_ACCESS_KEY": store.options["AWS_SECRET_ACCESS_KEY"],
            "S3__REGION": store.options["AWS_REGION"],
        }
        for name, value in settings.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__TRIED__{name}", value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        for count in (0, 10):
            if count:
                put(broker, 20, count)
            spark: Any = SimpleNamespace(context=Context(), has_ended=False)
            Loader(IcebergLake(NAME, store.options), load_options(broker), spark).run()
        assert values_in() == expected((0, 30))
        assert all(task.file.file_path.startswith("s3://") for task in table().scan().plan_files())


# -- changes -----------------------------------------------------------------------------------------------------------


def test_of_two_changes_that_found_the_same_numbers_one_is_refused() -> None:
    """Also where neither brings files: pyiceberg itself would put the second behind the first."""
    first, second = made(), IcebergLake(NAME)
    first.commit(TableChange({"fastlog:t/0-0": NumberStep(None, 5)}))
    with pytest.raises(TableConflictError, match="fastlog:t/0-0 is 5, not None"):
        second.commit(TableChange({"fastlog:t/0-0": NumberStep(None, 7)}))
    assert IcebergLake(NAME).number("fastlog:t/0-0") == 5
    assert IcebergLake(NAME).names("fastlog:") == ["fastlog:t/0-0"]
    second.commit(TableChange({"fastlog:t/0-1": NumberStep(None, 7)}))  # another number: nothing is in its way
    assert IcebergLake(NAME).names("fastlog:") == ["fastlog:t/0-0", "fastlog:t/0-1"]


def test_what_others_do_to_the_table_is_let_pass() -> None:
    """Their snapshots, and those that go; the numbers stay."""
    lake = made(())
    lake.commit(TableChange({"fastlog:t/0-0": NumberStep(None, 5)}))
    table().append(pa.table({"topic": ["x"], "date": [date(2020, 1, 1)], "n": [1]}, schema=SCHEMA))
    lake.commit(TableChange({"fastlog:t/0-0": NumberStep(5, 6)}))
    opened = table()
    opened.maintenance.expire_snapshots().by_ids([item.snapshot_id for item in opened.snapshots()[:-1]]).commit()
    assert IcebergLake(NAME).number("fastlog:t/0-0") == 6
    assert table().scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("is_in", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_for(is_in: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = made()
    attempt = IcebergLake._attempt
    lost: list[bool] = []

    def loses(self: IcebergLake, change: TableChange, identity: str) -> None:
        if lost:
            return attempt(self, change, identity)
        lost.append(True)
        if is_in:
            attempt(self, change, identity)
        raise ConnectionResetError("the answer is lost")

    monkeypatch.setattr(IcebergLake, "_attempt", loses)
    lake.commit(TableChange({"fastlog:t/0-0": NumberStep(None, 5)}))
    assert lake.number("fastlog:t/0-0") == 5
    assert len(lake.history()) == 1


def test_a_catalog_that_does_not_answer_is_asked_again_and_then_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = made()
    tries: list[int] = []

    def fails(*_: object) -> None:
        tries.append(1)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(IcebergLake, "_attempt", fails)
    with pytest.raises(TableUnavailableError, match=r"iceberg:tried/lake\.logs: .*Connection refused"):
        lake.commit(TableChange({"fastlog:t/0-0": NumberStep(None, 5)}))
    assert len(tries) == 3
    assert lake.number("fastlog:t/0-0") is None


def test_values_of_partitions_are_typed(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.string()), ("day", pa.date32()), ("number", pa.int32()), ("n", pa.int64())])
    lake = IcebergLake(NAME)
    lake.create(schema, ["text", "day", "number"])
    staging = IcebergStaging(lake, lake.partition_columns, "snappy")

    def write(place: Any) -> list[NewFile]:
        files = TableFiles(place, pa.schema([schema.field("n")]), lake.partition_columns, "snappy")
        for values in [("a b/%41", "1969-12-31", "-3"), (None, None, None)]:
            files.add(values, pa.record_batch({"n": pa.array([1, 2], pa.int64())}))
        return files.finish()

    lake.commit(TableChange({"fastlog:t/0-0": NumberStep(None, 5)}, staging.write_by(write)))
    rows = table().scan().to_arrow().sort_by("number").to_pylist()
    assert rows == [
        *({"text": "a b/%41", "day": date(1969, 12, 31), "number": -3, "n": n} for n in (1, 2)),
        *({"text": None, "day": None, "number": None, "n": n} for n in (1, 2)),
    ]


# -- what a table needs to live ----------------------------------------------------------------------------------------


def filled(*parts: tuple[str | None, list[int]]) -> IcebergLake:
    """A table with a file for each day and its numbers."""
    lake = made()
    for number, (day, values) in enumerate(parts):
        step = NumberStep(number - 1 if number else None, number)
        lake.commit(TableChange({"fastlog:t/0-0": step}, files_of(lake, day, values)))
    return lake


def files_of(lake: IcebergLake, day: str | None, values: list[int], topic: str = "a b/%41") -> list[NewFile]:
    def write(place: Any) -> list[NewFile]:
        files = TableFiles(place, pa.schema([SCHEMA.field("n")]), ("topic", "date"), "none")
        files.add((topic, day), pa.record_batch({"n": pa.array(values, pa.int64())}))
        return files.finish()

    return IcebergStaging(lake, lake.partition_columns, "none").write_by(write)


def numbers() -> list[int]:
    """What a reader finds, sorted."""
    return sorted(table().scan().to_arrow()["n"].to_pylist())


def operations() -> list[str]:
    return [snapshot.summary.operation.value for snapshot in table().snapshots()]


def test_files_of_a_table() -> None:
    lake = filled(("2026-11-20", [1, 2]), (None, [3]))
    none, day = lake.files()
    assert (none.values, none.rows) == ({"topic": "a b/%41", "date": None}, 1)
    assert (day.values, day.rows) == ({"topic": "a b/%41", "date": "2026-11-20"}, 2)
    assert day.modified_ms < none.modified_ms <= time.time() * 1000
    path = lake.location.directory / day.path
    assert day.size_bytes == path.stat().st_size
    opened = table()
    opened.maintenance.expire_snapshots().by_ids([opened.snapshots()[0].snapshot_id]).commit()
    lake.reload()
    none, day = lake.files()
    assert day.modified_ms < none.modified_ms


def test_small_files_become_one() -> None:
    """Each row stays, in the order in which they came; who follows the table learns that none is new; numbers stay."""
    lake = filled(("2026-11-20", [5, 6]), ("2026-11-20", [1]), (None, [4]), (None, [3]), ("2026-01-01", [2]))
    before = {file.path for file in lake.files()}
    joined = join_files(lake, JoinOptions())
    assert (joined.files_before, joined.files_after, joined.rows, joined.conflicts) == (4, 2, 5, 0)
    assert numbers() == [1, 2, 3, 4, 5, 6]
    assert operations() == ["append"] * 5 + ["replace"]
    assert table().scan(row_filter="date = '2026-11-20'").to_arrow()["n"].to_pylist() == [5, 6, 1]
    assert table().scan(row_filter="date IS NULL").to_arrow()["n"].to_pylist() == [4, 3]
    assert table().current_snapshot().summary.additional_properties["total-records"] == "6"
    assert lake.number("fastlog:t/0-0") == 4
    assert len(lake.files()) == 3
    assert len({file.path for file in lake.files()} & before) == 1
    assert join_files(lake, JoinOptions()).transactions == 0
    (_, notes), *_ = lake.history(1)
    assert (notes["job"], notes["files"], notes["rows"]) == ("optimize", 4, 5)
    assert len(lake.history(2)) == 2
    old = table().scan(snapshot_id=table().snapshots()[4].snapshot_id).to_arrow()
    assert sorted(old["n"].to_pylist()) == [1, 2, 3, 4, 5, 6]  # who reads an older version reads it on


def test_files_go_whatever_the_warehouse_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory called data, as the one with the files of a table is."""
    monkeypatch.setenv("PYICEBERG_CATALOG__TRIED__WAREHOUSE", f"file://{tmp_path}/data/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    lake = filled(("2026-11-20", [1]), ("2026-11-20", [2]), ("2026-01-01", [3]))
    join_files(lake, JoinOptions())
    assert numbers() == [1, 2, 3]
    expire(lake, date(2026, 6, 1))
    assert numbers() == [1, 2]


def test_files_are_known_in_the_form_that_other_writers_give_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark writes file:/path for file:///path."""
    lake = filled(("2026-11-20", [1]), ("2026-11-20", [2]))
    paths = {file.path for file in lake.files()}
    (location,) = {table().location()}
    for one, other in (("file:///", "file:/"), (location, "s3a://b/t"), (location, "s3n://b/t")):
        with monkeypatch.context() as patch:
            found = [(n, SimpleNamespace(file_path=file.file_path.replace(one, other, 1), spec_id=file.spec_id,
                                         partition=file.partition, file_size_in_bytes=1, record_count=1))
                     for n, file in lake._data_files()]  # fmt: skip
            patch.setattr(IcebergLake, "_data_files", lambda self, found=found: found)
            if one == location:
                patch.setattr("pyiceberg.table.Table.location", lambda self: "s3://b/t")
            assert {file.path for file in lake.files()} == paths


@pytest.mark.parametrize("behind", [False, True])
def test_a_join_that_is_killed(monkeypatch: pytest.MonkeyPatch, behind: bool) -> None:
    lake = filled(("2026-11-20", [1]), ("2026-11-20", [2]))
    with monkeypatch.context() as patch:
        _kill_at_commit(patch, number=0, behind=behind)
        with pytest.raises(Killed):
            join_files(lake, JoinOptions())
    assert numbers() == [1, 2]
    again = join_files(IcebergLake(NAME), JoinOptions())
    assert again.transactions == (0 if behind else 1)
    assert numbers() == [1, 2]
    assert len(IcebergLake(NAME).files()) == 1


def test_a_join_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a load adds meanwhile disturbs nothing; what another one has removed is not brought back."""
    lake = filled(("2026-11-20", [1]), ("2026-11-20", [2]), ("2026-01-01", [3]), ("2026-01-01", [4]))
    attempt = IcebergLake._attempt
    others: list[Any] = [
        lambda other: other.commit(
            TableChange({"fastlog:t/0-0": NumberStep(3, 9)}, files_of(other, "2026-11-20", [5]))
        ),
        lambda other: expire(other, date(2026, 6, 1)),
    ]

    def meanwhile(self: IcebergLake, change: TableChange, identity: str) -> None:
        if change.same_rows and others:
            others.pop(0)(IcebergLake(NAME))
        attempt(self, change, identity)

    monkeypatch.setattr(IcebergLake, "_attempt", meanwhile)
    joined = join_files(lake, JoinOptions())
    assert others == []
    assert joined.conflicts == 1
    assert numbers() == [1, 2, 5]
    assert [file.rows for file in lake.files()] == [3]
    there = {Path(task.file.file_path.removeprefix("file://")) for task in table().scan().plan_files()}
    unused = set(lake.location.directory.rglob("*.parquet")) - there
    assert len(unused) == 5  # what was there before, and nothing of the refused join
    assert IcebergLake(NAME).number("fastlog:t/0-0") == 9


def test_old_days_go() -> None:
    lake = filled(("2026-11-20", [1]), (None, [2]), ("2026-01-01", [3, 4]))
    assert expire(lake, date(2026, 6, 1), dry_run=True).rows == 2
    assert numbers() == [1, 2, 3, 4]
    gone = expire(lake, date(2026, 6, 1))
    assert (gone.files, gone.rows) == (1, 2)
    assert numbers() == [1, 2]
    assert operations()[-1] == "delete"
    assert lake.number("fastlog:t/0-0") == 2


def test_the_commands_of_upkeep(capsys: pytest.CaptureFixture[str]) -> None:
    filled(("2026-11-20", [1]), ("2026-11-20", [2]), ("2016-01-01", [3]))
    run = CliRunner().invoke(optimize_command, ["--table", NAME], standalone_mode=False)
    assert (run.return_value, json.loads(run.stdout)["files_before"]) == (0, 2)
    run = CliRunner().invoke(expire_command, ["--table", NAME, "--keep-days", "3000"], standalone_mode=False)
    assert (run.return_value, json.loads(run.stdout)["rows"]) == (0, 1)
    assert numbers() == [1, 2]
    for given, command_of in ((["--table", NAME], vacuum_command), (["--topic", "t", "--table", NAME], counts_command)):
        run = CliRunner().invoke(command_of, given)
        assert run.exit_code == 2
        assert f"{NAME}: is a table of Iceberg; here it has to be one of Delta" in run.stderr


def test_a_load_joins_files(broker: FakeBroker) -> None:
    for number in range(4):
        put(broker, number * 10, 10)
        loader = loader_of(broker, optimize_at=2)
        loader.run()
    assert loader.totals.joined_files == 4
    assert values_in() == expected((0, 40))
    assert len(IcebergLake(NAME).files()) == 2


def test_files_of_other_writers_that_are_not_what_they_seem(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled(("2026-11-20", [1]), ("2026-11-20", [2]))
    opened = table()
    opened.append(pa.table({"topic": ["x"], "date": [date(2020, 1, 1)], "n": [7]}, schema=SCHEMA))
    lake.reload()
    assert [file.values["topic"] for file in lake.files()].count("x") == 1  # pyiceberg's own are where ours are
    with monkeypatch.context() as patch:
        patch.setattr("pyiceberg.manifest.ManifestFile.content", property(lambda self: ManifestContent.DELETES))
        with pytest.raises(ConfigError, match="another writer has deleted rows without writing their files anew"):
            lake.files()
    with monkeypatch.context() as patch:
        patch.setattr("fastlog.spark.iceberg._DATA", "elsewhere")
        with pytest.raises(ConfigError, match=r"data/.*parquet of another writer is at another place"):
            lake.files()
    with table().update_spec() as update:
        update.remove_field("date")
    lake.reload()
    with pytest.raises(ConfigError, match="or partitioned in another way"):
        lake.files()


def test_a_column_that_was_renamed() -> None:
    lake = filled(("2026-11-20", [1]), ("2026-11-20", [2]))
    with table().update_schema() as update:
        update.rename_column("n", "m")
    lake.reload()
    with pytest.raises(ConfigError, match="a column is called m and n in its files"):
        join_files(lake, JoinOptions())


# -- messages that are rejected ----------------------------------------------------------------------------------------

REJECTED = "iceberg:tried/lake.rejected"
MESSAGES = pa.schema([("topic", pa.string()), ("broker", pa.int32()), ("partition", pa.int32()),
                      ("offset", pa.int64()), ("reason", pa.string())])  # fmt: skip


def rejected(offsets: list[int]) -> pa.Table:
    rows = [{"topic": "t", "broker": 0, "partition": 0, "offset": offset, "reason": "x"} for offset in offsets]
    return pa.Table.from_pylist(rows, schema=MESSAGES)


def rejected_offsets() -> list[int]:
    from pyiceberg.catalog import load_catalog

    rows = load_catalog("tried").load_table("lake.rejected").scan().to_arrow()
    assert set(rows["date"].to_pylist()) <= {date(2026, 11, 20)}
    return sorted(rows["offset"].to_pylist())


def test_what_was_rejected_is_added_once_whoever_does_it() -> None:
    """By the load, or by the next one where it was killed before; also where both do. A replacement takes out what it
    takes the place of."""
    filled_one = made()

    def batch(offsets: list[int], replaced: Any = {}) -> Rejects:  # noqa: B006
        rejects = Rejects(IcebergLake(REJECTED), IcebergLake(NAME), MESSAGES, "snappy")
        what = Rejected(rejects.write(rejected(offsets), date(2026, 11, 20)), replaced)
        steps, notes = rejects.told(what)
        filled_one.reload()
        filled_one.commit(TableChange(steps, (), (), notes))
        rejects._filled.reload()
        return rejects

    killed = batch([1, 2, 3])
    assert rejected_offsets() == []
    others = Rejects(IcebergLake(REJECTED), IcebergLake(NAME), MESSAGES, "snappy")
    others.catch_up()
    killed.catch_up()
    assert rejected_offsets() == [1, 2, 3]
    batch([2, 4], {partition_of("t/0-0"): OffsetRange(2, 5)}).catch_up()
    assert rejected_offsets() == [1, 2, 4]
    batch([], {partition_of("t/0-0"): OffsetRange(0, 2)}).catch_up()
    assert rejected_offsets() == [2, 4]
    batch([], {partition_of("t/0-1"): OffsetRange(0, 9), partition_of("u/0-0"): OffsetRange(0, 9)}).catch_up()
    assert rejected_offsets() == [2, 4]


def test_the_table_that_is_filled_is_not_the_other_one() -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="is the table that is filled"):
            Rejects(IcebergLake(NAME), IcebergLake(NAME), MESSAGES, "snappy")
        made()
    other = IcebergLake(NAME)
    other._name = "iceberg:alias/lake.logs"
    with pytest.raises(ConfigError, match="is the table that is filled"):
        Rejects(other, IcebergLake(NAME), MESSAGES, "snappy")


# -- usage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["iceberg:tried", "iceberg:tried/", "iceberg:tried/logs", "iceberg:/lake.logs"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(ConfigError, match=r"write iceberg:CATALOG/NAMESPACE\.TABLE"):
        IcebergLake(name)


def test_a_catalog_that_nobody_has_told_of() -> None:
    with pytest.raises(ConfigError, match="PYICEBERG_CATALOG__OTHER__URI"):
        IcebergLake("iceberg:other/lake.logs")

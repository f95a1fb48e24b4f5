"""What an Iceberg table says of itself, how often a commit is tried, and forms of values and places, without a
catalog."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fastlog.errors import ConfigError, TableConflictError, TableUnavailableError
from fastlog.spark import iceberg
from fastlog.spark.entries import NewFile
from fastlog.spark.iceberg import IcebergLake, IcebergStaging, opened, staging_of, upkeep_of
from fastlog.spark.lake import METADATA, Lake, NumberStep, TableChange
from fastlog.spark.staging import TableStaging, Upkeep
from fastlog.spark.storage import TableLocation, located
from tests.harness.timing import patch_time

pytest.importorskip("pyiceberg", reason="pip install '.[iceberg]'")
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, RESTError

NAME = "iceberg:c/n.t"


def snapshot(number: int | None, notes: str | None, *, summary: bool = True) -> Any:
    more = {} if notes is None else {METADATA: notes}
    found = SimpleNamespace(additional_properties=more) if summary else None
    return SimpleNamespace(sequence_number=number, summary=found)


def lake_of(table: Any = None) -> IcebergLake:
    """One whose table is made up."""
    made = IcebergLake.__new__(IcebergLake)
    made._name, made._identifier, made._storage_options, made._table = NAME, "n.t", {"a": "b"}, table
    made._catalog = SimpleNamespace(load_table=lambda name: table)  # type: ignore[assignment]
    return made


def test_a_table_that_is_not_there() -> None:
    lake = lake_of()
    assert (lake.exists, lake.version, lake.partition_columns, lake.files(), lake.history()) == (False, -1, [], [], [])
    assert (lake.number("a"), lake.names("a"), str(lake)) == (None, [], NAME)

    def missing(name: str) -> Any:
        raise NoSuchTableError(name)

    there = lake_of(SimpleNamespace())
    there._catalog.load_table = missing  # type: ignore[method-assign]
    there.reload()
    assert not there.exists


def test_what_a_table_says_of_itself() -> None:
    """Its numbers are properties; its history is of the changes that were made here, the newest first."""
    properties = {"fastlog:t/0-1": "7", "fastlog:t/0-0": "5", "fastlog.batches": "3"}
    snapshots = [
        snapshot(None, '{"n": 0}'), snapshot(4, '{"n": 1}'), snapshot(5, None), snapshot(6, None, summary=False),
        snapshot(7, '{"n": 2}'),
    ]  # fmt: skip
    table = SimpleNamespace(
        properties=properties, snapshots=lambda: snapshots, history=lambda: snapshots,
        spec=lambda: SimpleNamespace(fields=[SimpleNamespace(name="topic"), SimpleNamespace(name="date")]),
        metadata=SimpleNamespace(table_uuid=5), location=lambda: "s3://b/t/",
    )  # fmt: skip
    lake = lake_of(table)
    assert (lake.exists, lake.version, lake.partition_columns, lake.identity) == (True, 5, ["topic", "date"], "5")
    assert (lake.number("fastlog:t/0-0"), lake.number("fastlog:t/0-2")) == (5, None)
    assert lake.names("fastlog:") == ["fastlog:t/0-0", "fastlog:t/0-1"]
    assert lake.history() == [(7, {"n": 2}), (4, {"n": 1}), (0, {"n": 0})]
    assert lake.history(1) == [(7, {"n": 2})]
    assert lake.location == TableLocation("s3://b/t/data", {"a": "b"})


@pytest.mark.parametrize(
    ("location", "path", "below"),
    [
        ("file:/w/t/", "file:///w/t/data/a/f", "a/f"),
        ("/w/t", "file:/w/t/data/f", "f"),
        ("s3a://b/t", "s3://b/t/data/f", "f"),
        ("s3://b/t", "s3n://b/t/data/f", "f"),
        ("s3://b/t", "s3://b/t2/data/f", None),
        ("s3://b/t", "s3://b/t/metadata/f", None),
        ("s3://b/t", "s3://b/t/data2/f", None),
    ],
)
def test_where_a_file_is(location: str, path: str, below: str | None) -> None:
    """Below the table's place, in whatever form its writer has it."""
    assert lake_of(SimpleNamespace(location=lambda: location))._below(path) == below


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), "7", "7"), (pa.int32(), "-3", -3), (pa.date32(), "1970-01-02", 1),
        (pa.date32(), "1969-12-31", -1), (pa.date32(), None, None), (pa.string(), None, None),
    ],
)  # fmt: skip
def test_values_of_partitions(kind: pa.DataType, text: str | None, value: Any) -> None:
    assert iceberg._value(text, kind) == value
    assert iceberg._text(value, kind) == text


def test_types_are_those_of_a_load() -> None:
    of_iceberg = pa.large_list(pa.struct([pa.field("k", pa.large_string()), pa.field("v", pa.large_binary())]))
    assert iceberg._plain(of_iceberg) == pa.list_(pa.struct([("k", pa.string()), ("v", pa.binary())]))
    assert iceberg._plain(pa.list_(pa.large_string())) == pa.list_(pa.string())
    assert iceberg._plain(pa.int64()) == pa.int64()


# -- commits -----------------------------------------------------------------------------------------------------------

PAUSES = [0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 14]


@pytest.mark.parametrize(
    ("error", "raised", "pauses"),
    [
        (CommitFailedException("another was quicker"), TableConflictError, PAUSES),
        (ConnectionResetError("away"), TableUnavailableError, PAUSES[:2]),
        (RESTError("away"), TableUnavailableError, PAUSES[:2]),
    ],
)
def test_how_often_a_commit_is_tried(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception], pauses: list[float]
) -> None:
    """Behind one that was quicker the numbers are looked at anew each time; it is one change, whatever try it is."""
    slept: list[float] = []
    patch_time(monkeypatch, iceberg, sleep=slept.append)
    lake = lake_of(SimpleNamespace(properties={}, snapshots=lambda: []))
    tried: list[str] = []
    looked: list[int] = []

    def fail(self: IcebergLake, change: TableChange, identity: str) -> None:
        tried.append(identity)
        raise error

    reload = IcebergLake.reload
    monkeypatch.setattr(IcebergLake, "_attempt", fail)
    monkeypatch.setattr(IcebergLake, "reload", lambda self: looked.append(1) or reload(self))
    with pytest.raises(raised, match=f"{NAME}: .*{error}"):
        lake.commit(TableChange({"a": NumberStep(None, 1)}))
    assert slept == pauses
    assert len(tried) == len(looked) == len(pauses) + 1
    assert len(set(tried)) == 1


def test_a_commit_that_another_writer_has_made_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused at the next look, and not tried until nobody is patient any more."""
    table = SimpleNamespace(properties={}, snapshots=lambda: [])
    tried: list[int] = []

    def fail(self: IcebergLake, change: TableChange, identity: str) -> None:
        tried.append(1)
        table.properties["a"] = "5"
        raise CommitFailedException("x")

    patch_time(monkeypatch, iceberg, sleep=lambda seconds: None)
    monkeypatch.setattr(IcebergLake, "_attempt", fail)
    with pytest.raises(TableConflictError, match="another writer has changed the table: a is 5, not None"):
        lake_of(table).commit(TableChange({"a": NumberStep(None, 1)}))
    assert tried == [1]


@pytest.mark.parametrize("text", ["first line\nsecond", ""])
def test_a_catalog_is_told_of_in_one_line(text: str) -> None:
    """An error of another kind is a bug, and stays what it is."""

    def fail(error: Exception) -> Callable[[], None]:
        def ask() -> None:
            raise error

        return ask

    told = text.partition("\n")[0] or r"RESTError\(''\)"
    with pytest.raises(TableUnavailableError, match=f"^{NAME}: {told}$") as caught:
        lake_of()._asked(fail(RESTError(text)))
    assert caught.value.__cause__ is None
    with pytest.raises(TableUnavailableError) as caught:
        lake_of()._asked(fail(OSError("y" * 600)))
    assert str(caught.value) == f"{NAME}: {'y' * 500}"
    with pytest.raises(KeyError):
        lake_of()._asked(fail(KeyError("x")))
    assert lake_of()._asked(lambda: 5) == 5


# -- files -------------------------------------------------------------------------------------------------------------


def staging_in(place: TableLocation) -> IcebergStaging:
    class Placed(IcebergStaging):
        _location = place  # type: ignore[assignment]

    return Placed(lake_of(), ("topic",), "none")


def test_files_stay_where_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory that is made; each directory above them is on the disk before a snapshot names them."""
    synced: list[Path] = []
    monkeypatch.setattr(iceberg, "sync", synced.append)
    data = tmp_path / "t" / "data"
    staging = staging_in(located(data))
    files = [NewFile(name, 1, {}, 1, "") for name in ("topic=a/1", "topic=b/2")]

    def write(place: Any) -> list[NewFile]:
        assert place == data
        for file in files:
            (place / file.path).parent.mkdir()
            (place / file.path).touch()
        return files

    with staging.alone():
        assert staging.write_by(write) == files
    assert sorted(synced) == [data, data / "topic=a", data / "topic=b"]
    assert sorted(path.name for path in data.rglob("*") if path.is_file()) == ["1", "2"]
    (data / "topic=b" / "2").unlink()
    with pytest.raises(ConfigError, match="the driver does not see what the tasks wrote: is the directory shared"):
        staging.write_by(lambda place: files)


def test_files_in_a_store_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "sync", lambda path: pytest.fail("there is no directory"))
    files = [NewFile("a", 1, {}, 1, "")]
    place = located("s3://b/t")
    seen: list[object] = []
    assert staging_in(place).write_by(lambda found: seen.append(found) or files) == files
    assert seen == [place]


def test_a_table_is_of_the_kind_that_its_name_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the options that came with its place, or beside it."""
    lake = Lake(tmp_path / "t")
    assert type(staging_of(lake, (), "none")) is TableStaging
    assert type(upkeep_of(lake, "none")) is Upkeep
    other = lake_of()
    assert type(staging_of(other, (), "none")) is IcebergStaging
    assert type(upkeep_of(other, "none")) is IcebergStaging
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(iceberg, "IcebergLake", lambda *given: made.append(given))
    opened(TableLocation(NAME, {"x": "y"}), {"z": "1"})
    opened(NAME, {"z": "1"})
    assert made == [(NAME, {"x": "y"}), (NAME, {"z": "1"})]
    assert isinstance(opened(tmp_path / "t"), Lake)


def test_days_of_tables_are_those_of_the_calendar() -> None:
    assert iceberg._text(iceberg._value("2026-11-20", pa.date32()), pa.date32()) == date(2026, 11, 20).isoformat()

"""Tables: a change is in them once or not at all, with its numbers; and what readers are told of files."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import CommitProperties, DeltaTable, Transaction

from fastlog.errors import ConfigError, TableConflictError, TableWriteError
from fastlog.spark.entries import NewFile, stats_of
from fastlog.spark.jobs.audit import audit_command
from fastlog.spark.jobs.counts import counts_command
from fastlog.spark.jobs.join import join_command
from fastlog.spark.jobs.load import load, load_command
from fastlog.spark.lake import Lake, NumberStep, TableChange, bounds_in
from fastlog.spark.staging import TableStaging
from fastlog.spark.storage import local_path

SCHEMA = pa.schema([("topic", pa.string()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])


def made(path: Path) -> Lake:
    """An empty table."""
    lake = Lake(path / "table")
    lake.create(SCHEMA, ["topic"])
    return lake


def written(lake: Lake, name: str, *offsets: int, topic: str = "t") -> NewFile:
    """A file beside the table."""
    path = lake.directory / f"topic={topic}" / f"{name}.parquet"
    path.parent.mkdir(exist_ok=True)
    times = [datetime(2015, 5, 17, tzinfo=UTC) + timedelta(microseconds=offset) for offset in offsets]
    rows = {"offset": pa.array(offsets, pa.int64()), "timestamp": pa.array(times, SCHEMA.field("timestamp").type)}
    pq.write_table(pa.table(rows), path)
    stats = stats_of(pq.read_metadata(path).num_rows)
    return NewFile(str(path.relative_to(lake.directory)), path.stat().st_size, {"topic": topic}, len(offsets), stats)


def offsets_in(lake: Lake) -> list[int]:
    """What a reader finds."""
    return sorted(DeltaTable(str(lake.directory)).to_pyarrow_table().column("offset").to_pylist())


def test_files_and_numbers_come_together(tmp_path: Path) -> None:
    lake = made(tmp_path)
    lake.commit(
        TableChange(
            {"a": NumberStep(None, 5), "b": NumberStep(None, 0)}, [written(lake, "x", 1, 2)], notes={"why": "a test"}
        )
    )
    lake.commit(TableChange({"a": NumberStep(5, 9)}, [written(lake, "y", 3)]))
    again = Lake(lake.directory)
    assert (again.number("a"), again.number("b"), again.number("c")) == (9, 0, None)
    assert offsets_in(lake) == [1, 2, 3]
    assert [notes.get("why") for _, notes in again.history()] == [None, "a test", None]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/data/t", "/data/t"),
        ("data/a:b", "data/a:b"),
        ("file:///data/a%20b", "/data/a b"),
        ("file:/data/t", "/data/t"),
        ("FILE://localhost/data/t", "/data/t"),
        (Path("file:///data/a%20b"), "/data/a b"),
    ],
)
def test_paths_and_urls_of_them(given: Path | str, path: str) -> None:
    assert local_path(given) == Path(path)


@pytest.mark.parametrize(
    "given",
    ["ftp://bucket/t", "s3:///t", "s3a:/t", "dbfs:/mnt/t", "gs:///t", Path("s3://b/t"), "file://host/t"],
)
def test_a_table_is_never_made_in_a_directory_that_has_the_name_of_a_url(
    given: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By none of the jobs, nor from Python."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"of this machine, or mounted|another machine|write \w+://BUCKET/TABLE"):
        Lake(given)
    with pytest.raises(ConfigError):
        load("t", given, brokers="127.0.0.1:1")
    for command, option in (
        (load_command, "--table"),
        (counts_command, "--table"),
        (join_command, "--with-table"),
        (audit_command, "--loaded"),
    ):
        result = CliRunner().invoke(command, ["--topic", "t", option, str(given)])
        assert result.exit_code == 2
        assert option in result.output and (" machine" in result.output or "BUCKET" in result.output)
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_is_not_there_yet_has_no_history(tmp_path: Path) -> None:
    assert Lake(tmp_path / "table").history() == []
    assert Lake(tmp_path / "table").history(1) == []


def test_names_of_numbers(tmp_path: Path) -> None:
    """Also of those whose transactions have gone into a checkpoint."""
    lake = Lake(tmp_path / "table")
    assert lake.names("a") == []
    lake = made(tmp_path)
    lake.commit(TableChange({"a:1": NumberStep(None, 5), "b:1": NumberStep(None, 0)}))
    DeltaTable(str(lake.directory)).create_checkpoint()
    lake.commit(TableChange({"a:1": NumberStep(5, 6), "a:2": NumberStep(None, 0)}))
    assert (lake.names("a:"), lake.names("b:"), lake.names("c")) == (["a:1", "a:2"], ["b:1"], [])


def test_a_change_that_does_not_fit_leaves_the_table_as_it_is(tmp_path: Path) -> None:
    """A number is another one, or a file that is to go is gone; also when that happened behind the writer's back."""
    lake = made(tmp_path)
    lake.commit(TableChange({"a": NumberStep(None, 5)}, [written(lake, "x", 1)]))
    other = Lake(lake.directory)
    (file,) = other.files()
    other.commit(TableChange({"a": NumberStep(5, 6)}))
    version = other.version
    for change in (
        TableChange({"a": NumberStep(5, 7)}, [written(lake, "y", 2)]),
        TableChange({"a": NumberStep(None, 7)}),
    ):
        with pytest.raises(TableConflictError, match=r"a is 6, not"):
            lake.commit(change)
    lake.reload()
    lake.commit(TableChange({"a": NumberStep(6, 7)}, [written(lake, "z", 3)], [file]))
    with pytest.raises(TableConflictError, match=f"has removed {file.path}"):
        lake.commit(TableChange({"a": NumberStep(7, 8)}, [], [file]))
    assert (Lake(lake.directory).version, offsets_in(lake)) == (version + 1, [3])


def test_what_others_do_to_the_same_table_is_let_pass(tmp_path: Path) -> None:
    """Two writers with numbers of their own, in turns, each with a view that is out of date."""
    lake, other = made(tmp_path), Lake(tmp_path / "table")
    for turn in range(5):
        for name, one in (("a", lake), ("b", other)):
            one.commit(
                TableChange({name: NumberStep(turn - 1 if turn else None, turn)}, [written(one, f"{name}{turn}", turn)])
            )
    assert offsets_in(lake) == sorted([*range(5), *range(5)])


def test_numbers_outlive_the_log(tmp_path: Path) -> None:
    """They are in the checkpoints of the log, unlike the notes, and not where a clean-up removes them."""
    lake = made(tmp_path)
    lake.commit(TableChange({"a": NumberStep(None, 5)}, [written(lake, "x", 1)]))
    DeltaTable(str(lake.directory)).create_checkpoint()
    for path in sorted((lake.directory / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    again = Lake(lake.directory)
    assert (again.number("a"), offsets_in(again)) == (5, [1])
    again.commit(TableChange({"a": NumberStep(5, 6)}, [written(lake, "y", 2)]))
    assert offsets_in(again) == [1, 2]


def test_files_are_named_as_they_lie_there(tmp_path: Path) -> None:
    """Their bounds and values are those of the rows, and they can be removed by what is said of them."""
    lake = made(tmp_path)
    file = written(lake, "x", 7, 3, topic="a%20b%3Dc")._replace(values={"topic": "a b=c"})
    lake.commit(TableChange({"a": NumberStep(None, 1)}, [file, written(lake, "y", 9)]))
    found = {item.values["topic"]: item for item in lake.files()}
    assert found["a b=c"].path == file.path
    assert bounds_in(lake.location, found["a b=c"].path, ["offset"]) == {"offset": (3, 7)}
    lake.commit(TableChange({"a": NumberStep(1, 2)}, [], [found["a b=c"]]))
    assert offsets_in(lake) == [9]


def test_filters_find_what_is_there(tmp_path: Path) -> None:
    """Readers pass over no file that holds what they look for, whichever column they ask."""
    lake = made(tmp_path)
    lake.commit(TableChange({"a": NumberStep(None, 1)}, [written(lake, "x", 1, 2), written(lake, "y", 3)]))
    dataset = DeltaTable(str(lake.directory)).to_pyarrow_dataset()
    last = pa.scalar(datetime(2015, 5, 17, microsecond=3, tzinfo=UTC), SCHEMA.field("timestamp").type)
    assert dataset.to_table(filter=pc.field("timestamp") >= last).column("offset").to_pylist() == [3]
    assert dataset.to_table(filter=pc.field("offset") < 2).num_rows == 1
    assert bounds_in(lake.location, lake.files()[0].path, ["offset", "nosuch"]).keys() == {"offset"}


def test_columns_that_do_not_fit_are_named(tmp_path: Path) -> None:
    lake = made(tmp_path)
    lake.check_schema(SCHEMA, ["topic"])
    with pytest.raises(ConfigError, match="the column offset is int64 in the table, and int32 in what is to be added"):
        lake.check_schema(SCHEMA.set(1, pa.field("offset", pa.int32())), ["topic"])
    with pytest.raises(ConfigError, match="the column x is not there in the table, and string"):
        lake.check_schema(SCHEMA.append(pa.field("x", pa.string())), ["topic"])
    with pytest.raises(ConfigError, match=r"partitioned by \['topic'\], not by \[\]"):
        lake.check_schema(SCHEMA, [])


def test_numbers_of_another_library_count(tmp_path: Path) -> None:
    """Whoever writes a number as Delta does is believed."""
    lake = made(tmp_path)
    moved = CommitProperties(app_transactions=[Transaction("a", 3)])
    table = DeltaTable(str(lake.directory))
    table.create_write_transaction([], "append", table.schema(), ["topic"], commit_properties=moved)
    with pytest.raises(TableConflictError, match="a is 3, not None"):
        lake.commit(TableChange({"a": NumberStep(None, 1)}))


def test_a_full_disk_is_no_other_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = made(tmp_path)
    file = written(lake, "x", 1)

    def write(*_given: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", write)
        with pytest.raises(TableWriteError, match="No space left"):
            lake.commit(TableChange({"a": NumberStep(None, 1)}, [file]))
    assert lake.files() == [] and lake.number("a") is None
    lake.commit(TableChange({"a": NumberStep(None, 1)}, [file]))
    assert offsets_in(lake) == [1]


def test_files_are_moved_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full has no room for files that nobody will add."""
    lake = made(tmp_path)
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == "2.parquet":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, target)

    found = []
    place = tmp_path / "place"
    for name in ("1", "2"):
        path = place / f"topic={name}" / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"rows")
        found.append(NewFile(str(path.relative_to(place)), 4, {"topic": name}, 1, stats_of(1)))
    staging = TableStaging(lake, ["topic"], "none")
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="No space left"):
        staging._moved(place, found)
    assert list(lake.directory.rglob("*.parquet")) == []


def test_who_fills_a_table_is_named_to_the_next(tmp_path: Path) -> None:
    """By the process, also where another had the lock before; once it is gone, its lock is free."""
    lake = made(tmp_path)
    lake.work_directory.mkdir(parents=True, exist_ok=True)
    (lake.work_directory / "lock").write_text("99999999\n")
    first, second = (TableStaging(lake, ["topic"], "none") for _ in range(2))
    with (
        first.alone(),
        pytest.raises(TableConflictError, match=rf"another process fills this table \(pid {os.getpid()}\)$"),
        second.alone(),
    ):
        pass
    with second.alone():
        assert (lake.work_directory / "lock").read_text() == f"{os.getpid()}\n"


# -- columns that come later -------------------------------------------------------------------------------------------

X = pa.field("x", pa.int32())


def test_columns_that_come_later(tmp_path: Path) -> None:
    """They are null in the rows that are there; what else does not fit adds none of them."""
    lake = made(tmp_path)
    lake.commit(TableChange({"a": NumberStep(None, 1)}, [written(lake, "x", 1)]))
    for schema, told in (
        (SCHEMA.append(X).set(1, pa.field("offset", pa.int32())), "the column offset is int64 in the table, and int32"),
        (SCHEMA.append(X).remove(1), "the column offset is int64 in the table, and not there in what is to be added"),
        (SCHEMA.append(X).append(pa.field("Topic", pa.string())), "the table has Topic in other upper and lower case"),
    ):
        with pytest.raises(ConfigError, match=told):
            lake.check_schema(schema, ["topic"], growing=True)
    with pytest.raises(ConfigError, match=r"partitioned by \['topic'\], not by \[\]"):
        lake.check_schema(SCHEMA.append(X), [], growing=True)
    assert Lake(lake.directory).column_names == ["topic", "offset", "timestamp"]
    lake.check_schema(SCHEMA.append(pa.field("x", pa.int32(), nullable=False)), ["topic"], growing=True)
    assert lake.column_names == ["topic", "offset", "timestamp", "x"]
    rows = DeltaTable(str(lake.directory)).to_pyarrow_table()
    assert rows["x"].to_pylist() == [None] and rows.schema.field("x").type == pa.int32()
    assert (lake.number("a"), lake.history()[0][1]["columns"]) == (1, ["x"])
    version = lake.version
    lake.check_schema(SCHEMA.append(X), ["topic"], growing=True)
    assert lake.version == version
    lake.commit(TableChange({"a": NumberStep(1, 2)}, [written(lake, "y", 2)]))
    assert offsets_in(lake) == [1, 2]


def test_two_writers_bring_the_same_column_and_another_one(tmp_path: Path) -> None:
    """Each with a view that is out of date: the first decides of which type it is."""
    lake, other, third = made(tmp_path), Lake(tmp_path / "table"), Lake(tmp_path / "table")
    lake.check_schema(SCHEMA.append(X), ["topic"], growing=True)
    both = SCHEMA.append(pa.field("y", pa.string())).append(X)
    other.check_schema(both, ["topic"], growing=True)
    assert other.column_names == ["topic", "offset", "timestamp", "x", "y"]
    with pytest.raises(ConfigError, match="the column x is int32 in the table, and string in what is to be added"):
        third.check_schema(both.set(4, pa.field("x", pa.string())), ["topic"], growing=True)


def test_a_column_that_cannot_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, or others are quicker all the time; and one that is there although its writer was told no."""
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.table import TableAlterer

    lake = made(tmp_path)
    real = TableAlterer.add_columns

    def failing(error: Exception, *, before: bool = True) -> None:
        def add(self: TableAlterer, *given: Any, **named: Any) -> None:
            if not before:
                real(self, *given, **named)
            raise error

        monkeypatch.setattr(TableAlterer, "add_columns", add)

    failing(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(TableWriteError, match="No space left"):
        lake.check_schema(SCHEMA.append(X), ["topic"], growing=True)
    failing(CommitFailedError("others"))
    with pytest.raises(TableConflictError, match="others"):
        lake.check_schema(SCHEMA.append(X), ["topic"], growing=True)
    failing(CommitFailedError("others"), before=False)
    lake.check_schema(SCHEMA.append(X), ["topic"], growing=True)
    assert lake.column_names[-1] == "x"
    failing(DeltaError("broken"))
    with pytest.raises(TableWriteError, match="broken"):
        lake.check_schema(SCHEMA.append(X).append(pa.field("z", pa.int32())), ["topic"], growing=True)

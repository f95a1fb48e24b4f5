"""The steps by which files come to a table, and what is left when one of them fails: places and locks of writers,
files in an object store, tries of a transaction, what Spark is given to read. The object store is made up."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from fastlog.errors import (
    ConfigError,
    TableConflictError,
    TableUnavailableError,
    TableWriteError,
)
from fastlog.spark import lake as lake_module
from fastlog.spark import staging as staging_module
from fastlog.spark import table_files, upkeep
from fastlog.spark.entries import ActiveFile, NewFile, stats_of
from fastlog.spark.frame_files import _Made, _TableReader, _Writer
from fastlog.spark.lake import Lake, NumberStep, TableChange, read_table
from fastlog.spark.staging import TableStaging, Upkeep
from fastlog.spark.storage import Output, TableLocation, located
from fastlog.spark.table_files import TableFiles, rows_of_file, values_path
from fastlog.spark.upkeep import expire
from tests.harness.timing import patch_time

SCHEMA = pa.schema([("topic", pa.string()), ("date", pa.date32()), ("offset", pa.int64())])
ROWS = pa.record_batch([pa.array([1, 2, 3], pa.int64())], names=["offset"])


def made(path: Path, partition_by: Sequence[str] = ("topic", "date")) -> Lake:
    lake = Lake(path / "table")
    lake.create(SCHEMA, partition_by)
    return lake


def written(lake: Lake, topic: str = "t", day: str = "2026-11-20") -> list[NewFile]:
    """A file beside the table."""
    files = TableFiles(lake.directory, ROWS.schema, ("topic", "date"), "none")
    files.add((topic, day), ROWS)
    return files.finish()


# -- places and locks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "inside", "does"),
    [(TableStaging, "_fastlog", "fills this table"), (Upkeep, "_fastlog/upkeep", "joins the files of this table")],
)
def test_what_a_dead_writer_left_goes_and_nothing_else(tmp_path: Path, kind: Any, inside: str, does: str) -> None:
    """Not the state of a query, nor what the one has under way who joins files."""
    lake = made(tmp_path)
    given: tuple[Any, ...] = (["topic"], "none") if kind is TableStaging else ("none",)
    work = lake.directory / inside
    for name in ("left", "checkpoint", "upkeep"):
        (work / name).mkdir(parents=True)
        (work / name / "file").touch()
    (work / "note").touch()
    writer, other = kind(lake, *given), kind(lake, *given)
    with writer.alone():
        assert sorted(path.name for path in work.iterdir()) == ["checkpoint", "lock", "note", "upkeep"]
        assert (work / "upkeep" / "file").exists() and (work / "checkpoint" / "file").exists()
        (work / "lock").write_text("")
        with pytest.raises(TableConflictError, match=rf"another process {does} \(pid unknown\)$"), other.alone():
            pytest.fail("both have it")
    with other.alone():
        assert (work / "lock").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("fails", [False, True])
def test_a_place_is_a_new_one_each_time_and_gone_afterwards(tmp_path: Path, fails: bool) -> None:
    lake = made(tmp_path)
    staging = TableStaging(lake, ["topic", "date"], "none")
    seen: list[Path] = []

    def write(place: Any) -> list[NewFile]:
        seen.append(place)
        files = TableFiles(place, ROWS.schema, ("topic", "date"), "none")
        files.add(("t", "2026-11-20"), ROWS)
        found = files.finish()
        assert (place / found[0].path).is_file()
        if fails:
            raise OSError(28, "No space left on device")
        return found

    for _ in range(2):
        if fails:
            with pytest.raises(OSError, match="No space left"):
                staging.write_by(write)
        else:
            (file,) = staging.write_by(write)
            assert (lake.directory / file.path).is_file()
    assert len(set(seen)) == 2
    assert all(place.parent == lake.work_directory and not place.exists() for place in seen)
    assert len(list(lake.directory.rglob("*.parquet"))) == (0 if fails else 2)


def test_files_that_the_driver_does_not_see_are_not_moved(tmp_path: Path) -> None:
    """None of them, though it sees some: the directory is not shared."""
    lake = made(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    (place / "1.parquet").touch()
    files = [NewFile(f"{name}.parquet", 1, {}, 1, stats_of(1)) for name in (1, 2)]
    with pytest.raises(ConfigError, match="the driver does not see what the tasks wrote: is the directory shared"):
        TableStaging(lake, [], "none")._settled(place, files)
    assert (place / "1.parquet").exists()
    assert list(lake.directory.glob("*.parquet")) == []


def test_each_directory_of_a_moved_file_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the table's own, which may have got a new name in it; behind the moves. Where that fails, files go."""
    lake = made(tmp_path)
    place = tmp_path / "place"
    files = []
    for name in ("a/b/1", "a/c/2"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).touch()
        files.append(NewFile(name, 1, {}, 1, stats_of(1)))
    synced: list[Path] = []

    def sync(path: Path) -> None:
        assert all((lake.directory / file.path).exists() for file in files)
        synced.append(path)
        if len(synced) > 4:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(staging_module, "sync", sync)
    staging = TableStaging(lake, [], "none")
    assert staging._settled(place, files) == files
    assert sorted(synced) == [lake.directory / name for name in ("", "a", "a/b", "a/c")]
    for file in files:
        (lake.directory / file.path).rename(place / file.path)
    with pytest.raises(OSError, match="Input/output"):
        staging._settled(place, files)
    assert not any((lake.directory / file.path).exists() for file in files)


def test_no_tasks_are_no_files(tmp_path: Path) -> None:
    """Spark is not asked, and no place is made."""
    staging = TableStaging(made(tmp_path), ["topic", "date"], "none")
    nothing: Any = None
    assert staging.write_messages(nothing, [], nothing, (), date(2026, 11, 20)) == []
    assert staging.write_computed(nothing, [], nothing, nothing) == []
    staging.discard([])
    assert not (tmp_path / "table" / "_fastlog").exists()


# -- an object store ---------------------------------------------------------------------------------------------------


class Store:
    """A file system whose files are bytes in memory; ``short`` loses that many of each, ``fails`` names a step."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.closed: list[str] = []
        self.deleted: list[str] = []
        self.short = 0
        self.fails = ""

    def _step(self, name: str) -> None:
        if self.fails == name:
            raise OSError(f"cannot {name}")

    def open_output_stream(self, name: str) -> Any:
        self._step("open")
        self.files[name] = bytearray()

        def close() -> None:
            self._step("close")
            self.closed.append(name)

        def write(data: bytes) -> None:
            self._step("write")
            self.files[name] += data

        return SimpleNamespace(write=write, tell=lambda: len(self.files[name]), close=close)

    def get_file_info(self, name: str) -> Any:
        assert name in self.closed, "looked at before it is whole"
        return SimpleNamespace(size=len(self.files[name]) - self.short)

    def delete_file(self, name: str) -> None:
        if name == "gone":
            raise FileNotFoundError(name)
        self.deleted.append(name)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made_up = Store()
    monkeypatch.setattr(TableLocation, "filesystem", lambda self: made_up)
    return made_up


def test_a_file_in_a_store_is_as_large_there_as_what_was_sent(store: Store) -> None:
    output = Output(located("s3://b/t"))
    for lost in (0, 1, -1):
        stream = output.open("a/b")
        stream.write(b"12345")
        store.short = lost
        if not lost:
            assert output.finish("a/b") == 5
            continue
        with pytest.raises(TableUnavailableError, match=f"s3://b/t: 5 bytes of a/b were sent, and it has {5 - lost}"):
            output.finish("a/b")
    assert store.closed == ["a/b"] * 3
    with pytest.raises(KeyError):
        output.finish("a/b")  # it is done


@pytest.mark.parametrize("fails", ["open", "write", "close"])
def test_a_store_that_fails_is_told_of_by_its_place(store: Store, fails: str) -> None:
    output = Output(located("s3://b/t"))
    store.fails = fails
    with pytest.raises(TableUnavailableError, match=f"s3://b/t: cannot {fails}"):
        stream = output.open("a")
        with output.writing():
            stream.write(b"1")
        output.finish("a")


def test_files_are_removed_from_a_store_as_far_as_that_can_be(store: Store) -> None:
    """One that is gone, or that the store keeps, does not save the others."""
    located("s3://b/t").remove(["a", "gone", "b"])
    assert store.deleted == ["a", "b"]


def test_files_are_removed_from_a_directory(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    located(tmp_path).remove(["gone", "b"])
    assert list(tmp_path.iterdir()) == []


def test_a_table_in_a_store_has_its_files_where_they_stay(store: Store) -> None:
    """No place beside it, no lock, no move."""
    lake: Any = SimpleNamespace(location=located("s3://b/t"), partition_columns=["topic"])
    for staging in (TableStaging(lake, ["topic"], "none"), Upkeep(lake, "none")):
        files = [NewFile("a", 1, {}, 1, "")]
        seen: list[object] = []
        with staging.alone():
            assert staging.write_by(lambda place: seen.append(place) or files) == files  # noqa: B023
        assert seen == [lake.location]
    staging.discard(files)
    assert store.deleted == ["a"]


def test_an_error_of_a_directory_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^x$"), located(tmp_path).reached():
        raise OSError("x")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "OSError"),
        ("a\n\n  ↳ b \n", "a: b"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("x <?xml v?><E><Code>NoSuch</Code><Message>not there</Message></E>", "x NoSuch: not there"),
        ("y" * 600, "y" * 500),
        ("with s3cr3t-part and s3cr3t", "with ***-part and ***"),
        ("abc stays", "abc stays"),
        ("sent sig=a%2Bbc and a+bc", "sent *** and ***"),
    ],
)
def test_an_error_in_one_line_without_credentials(monkeypatch: pytest.MonkeyPatch, text: str, told: str) -> None:
    """What is shorter than four letters stands in any text."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    options = {"aws_secret_access_key": "s3cr3t", "token": "abc", "sas": "?sv=1&sig=a%2Bbc", "region": "with"}
    assert TableLocation("s3://b/t", options).plain(OSError(text)) == told


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_file_that_was_not_written_to_for_longest_is_finished_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as may be are open, and not one fewer."""
    monkeypatch.setattr(table_files, "_MOST_OPEN_FILES", 2)
    files = TableFiles(tmp_path, ROWS.schema, ("name",), "none")
    for name in "abacab":
        files.add((name,), ROWS)
    found = [(file.values["name"], file.rows) for file in files.finish()]
    assert found == [("b", 3), ("c", 3), ("a", 9), ("b", 3)]


def test_what_waits_is_counted_without_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", 2 * ROWS.nbytes)
    files = TableFiles(tmp_path, ROWS.schema, ("name",), "none")
    waiting = []
    for name in "aaab":
        files.add((name,), ROWS)
        waiting.append(files._waiting_bytes // ROWS.nbytes)
    assert waiting == [1, 0, 1, 2]
    files._finish(("a",))
    assert files._waiting_bytes == ROWS.nbytes


def test_row_groups_go_to_the_disk_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each file what came since the last one, so that at the end there is one row group to wait for."""
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", ROWS.nbytes)
    begun: dict[Path, list[int]] = {}

    def begin(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED, "the one with which Linux begins to write"
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        assert offset + length == path.stat().st_size
        assert offset == sum(begun.get(path, []))
        begun.setdefault(path, []).append(length)
        raise OSError(errno.EINVAL, "no advice is taken here")

    monkeypatch.setattr(os, "posix_fadvise", begin)
    files = TableFiles(tmp_path, ROWS.schema, ("name",), "none")
    for name in "abba":
        files.add((name,), ROWS)
    assert sorted(path.parent.name for path in begun) == ["name=a", "name=b"]
    assert all(len(lengths) == 2 and min(lengths) > ROWS.nbytes for lengths in begun.values())
    assert [file.rows for file in files.finish()] == [6, 6]


def test_an_error_leaves_no_file_open(tmp_path: Path) -> None:
    """Another one that comes of closing them tells nobody more."""
    files = TableFiles(tmp_path, ROWS.schema, ("name",), "none")
    closed: list[str] = []
    for name in "ab":
        files.add((name,), ROWS)

        def close(name: str = name) -> None:
            closed.append(name)
            raise OSError("again")

        files._open[name,].close = close  # type: ignore[method-assign]
    files.close()
    assert closed == ["a", "b"]
    files.close()
    assert closed == ["a", "b"]
    assert files.finish() == []


def test_a_file_has_what_readers_look_for(tmp_path: Path) -> None:
    """Bounds of what is searched, checksums of pages, dictionaries of what comes again."""
    names = ("offset", "partition", "key", "value")
    kinds = (pa.int64(), pa.int32(), pa.binary(), pa.binary())
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    rows = pa.RecordBatch.from_pylist([{"offset": 1, "partition": 2, "key": b"k", "value": b"v"}], schema)
    files = TableFiles(tmp_path, schema, (), "zstd")
    files.add((), rows)
    (file,) = files.finish()
    group = pq.ParquetFile(tmp_path / file.path).metadata.row_group(0)
    columns = {names[at]: group.column(at) for at in range(4)}
    assert {name for name, column in columns.items() if column.is_stats_set} == {"offset", "partition"}
    assert {name for name, column in columns.items() if column.has_dictionary_page} == {"partition", "key"}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert (file.size_bytes, file.rows, file.stats) == ((tmp_path / file.path).stat().st_size, 1, stats_of(1))
    assert "/" not in file.path and file.path.endswith(".parquet")
    whole = (tmp_path / file.path).read_bytes()
    at = whole.index(b"\x28\xb5\x2f\xfd") + 6  # in the first page that is compressed
    (tmp_path / file.path).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    there = ActiveFile(file.path, 1, {})
    with pytest.raises(OSError, match=r"CRC|checksum"):
        list(rows_of_file(located(tmp_path).filesystem(), there, schema, verified=True))


def test_where_files_of_values_are() -> None:
    assert values_path({"a": "x/y z", "b": None, "c": "é="}) == "a=x%2Fy%20z/b=__HIVE_DEFAULT_PARTITION__/c=%C3%A9%3D/"
    assert values_path({}) == ""


def test_rows_of_a_file_have_the_columns_of_the_table(tmp_path: Path) -> None:
    """From the file, from the values of its path, which are right where the file has another one, or null."""
    pq.write_table(pa.table({"b": pa.array([1, 2], pa.int32()), "day": ["x", "x"], "more": [1, 2]}), tmp_path / "f")
    schema = pa.schema([("day", pa.date32()), ("b", pa.int64()), ("late", pa.string()), ("n", pa.int32())])
    file = ActiveFile("f", 1, {"day": "2026-11-20", "n": "7"})
    (rows,) = rows_of_file(located(tmp_path).filesystem(), file, schema)
    assert rows.schema == schema
    assert rows.to_pylist() == [{"day": date(2026, 11, 20), "b": b, "late": None, "n": 7} for b in (1, 2)]
    with pytest.raises(FileNotFoundError):
        list(rows_of_file(located(tmp_path).filesystem(), file._replace(path="g"), schema))


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    patch_time(monkeypatch, lake_module, sleep=found.append)
    return found


STORE_SLEEPS = [0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 14]
LOCAL_SLEEPS = [0.01 * attempt for attempt in range(19)]


@pytest.mark.parametrize(
    ("local", "error", "raised", "tries"),
    [
        (True, CommitFailedError("x"), TableConflictError, LOCAL_SLEEPS),
        (True, DeltaError("x"), TableWriteError, LOCAL_SLEEPS),
        (True, OSError("x"), TableWriteError, LOCAL_SLEEPS),
        (False, CommitFailedError("x"), TableUnavailableError, STORE_SLEEPS),
        (False, DeltaError("x"), TableUnavailableError, STORE_SLEEPS[:2]),
        (False, OSError("x"), TableUnavailableError, STORE_SLEEPS[:2]),
    ],
)
def test_how_often_a_transaction_is_tried(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sleeps: list[float],
    local: bool,
    error: Exception,
    raised: type[Exception],
    tries: list[float],
) -> None:
    """A store that does not answer has been asked for minutes each time; what it has said may have a credential in
    it, and is not chained."""
    lake = made(tmp_path)
    if not local:
        lake.location = TableLocation("s3://b/t")
        monkeypatch.setattr(Lake, "reload", lambda self: None)
        monkeypatch.setattr(Lake, "history", lambda self, most=None: [])
        monkeypatch.setattr(Lake, "number", lambda self, name: None)
    attempts: list[str] = []

    def fail(self: Lake, change: TableChange, identity: str) -> None:
        attempts.append(identity)
        raise error

    monkeypatch.setattr(Lake, "_attempt", fail)
    with pytest.raises(raised, match="could not be changed: x") as caught:
        lake.commit(TableChange({"a": NumberStep(None, 1)}))
    assert sleeps == pytest.approx(tries)
    assert len(attempts) == len(tries) + 1
    assert len(set(attempts)) == 1
    assert caught.value.__cause__ is (error if local else None)


def test_a_transaction_that_is_in_is_found_behind_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeps: list[float]
) -> None:
    """Its answer was lost, and others have come since: it is not brought again."""
    lake, other = made(tmp_path), Lake(tmp_path / "table")
    real = Lake._attempt

    def lost(self: Lake, change: TableChange, identity: str) -> None:
        real(self, change, identity)
        if self is lake:
            for number in range(3):
                other.reload()
                other.commit(TableChange({"b": NumberStep(number - 1 if number else None, number)}))
            raise OSError("the answer is lost")

    monkeypatch.setattr(Lake, "_attempt", lost)
    lake.commit(TableChange({"a": NumberStep(None, 1)}, written(lake)))
    assert (lake.number("a"), lake.number("b"), lake.version) == (1, 2, 4)
    assert DeltaTable(str(lake.directory)).to_pyarrow_table().num_rows == 3
    assert sleeps == []


def test_numbers_are_asked_for_once_until_the_table_is_looked_at_anew(tmp_path: Path) -> None:
    lake, other = made(tmp_path), Lake(tmp_path / "table")
    assert (lake.number("a"), lake.version) == (None, 0)
    other.commit(TableChange({"a": NumberStep(None, 1)}))
    assert (lake.number("a"), lake.version) == (None, 0)
    lake.reload()
    assert (lake.number("a"), lake.version) == (1, 1)
    assert (Lake(tmp_path / "none").version, Lake(tmp_path / "none").exists) == (-1, False)


def test_files_of_days_that_others_change_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times, each with what the table has then; days that are asked for alone change nothing."""
    lake = made(tmp_path)
    lake.commit(TableChange({"a": NumberStep(None, 1)}, written(lake) + written(lake, day="2026-11-21")))
    tried: list[int] = []

    def refuse(self: Lake, change: TableChange) -> None:
        tried.append(len(change.removed))
        raise TableConflictError("another writer")

    monkeypatch.setattr(Lake, "commit", refuse)
    assert expire(lake, date(2026, 11, 21), dry_run=True).files == 1
    assert expire(lake, date(2026, 11, 20)).files == 0
    assert tried == []
    with pytest.raises(TableConflictError, match="another writer"):
        expire(lake, date(2026, 11, 21))
    assert tried == [1] * upkeep._TRIES == [1] * 10


# -- what Spark reads --------------------------------------------------------------------------------------------------


class Reader:
    """A Spark that notes what it is asked for."""

    def __init__(self) -> None:
        self.read = self
        self.asked: list[Any] = []

    def createDataFrame(self, rows: Any, schema: Any) -> Any:
        return ["nothing", rows, schema.names]

    def schema(self, schema: Any) -> Reader:
        self.asked.append(schema.names)
        return self

    def option(self, name: str, value: str) -> Reader:
        self.asked.append((name, value))
        return self

    def parquet(self, *paths: str) -> Any:
        return [*self.asked, *paths]


def test_a_table_as_a_frame(tmp_path: Path) -> None:
    """The files of now by their names, whatever letters are in them; of some files and columns, those alone."""
    pytest.importorskip("pyspark.sql.pandas.types")
    lake = made(tmp_path)
    ask: Callable[..., Any] = read_table
    assert ask(Reader(), lake.directory) == ["nothing", [], SCHEMA.names]
    lake.commit(TableChange({"a": NumberStep(None, 1)}, written(lake, "a b") + written(lake)))
    files = lake.files()
    root = ("basePath", f"file://{lake.directory}")
    found = ask(Reader(), lake.directory, columns=["offset"])
    assert found[:2] == [["offset"], root]
    assert sorted(found[2:]) == sorted(f"file://{lake.directory}/{file.path}" for file in files)
    (one,) = [file for file in files if file.values["topic"] == "a b"]
    assert ask(Reader(), lake.directory, [one]) == [SCHEMA.names, root, f"file://{lake.directory}/{one.path}"]
    assert ask(Reader(), lake.directory, []) == ["nothing", [], SCHEMA.names]
    with pytest.raises(ConfigError, match="there is no Delta table"):
        ask(Reader(), tmp_path / "none")
    with pytest.raises(ConfigError, match=r"Spark takes values from paths, and x\.parquet does not have them"):
        ask(Reader(), lake.directory, [one._replace(path="x.parquet")])


def test_tasks_share_the_files_of_a_table(tmp_path: Path) -> None:
    """Each file is one task's, and no task is without one."""
    for number in range(5):
        pq.write_table(pa.table({"n": [number]}), tmp_path / f"{number}")
    files = [ActiveFile(str(number), 1, {}) for number in range(5)]
    schema = pa.schema([("n", pa.int64())])
    for tasks, parts in ((2, [[0, 2, 4], [1, 3]]), (9, [[0], [1], [2], [3], [4]]), (1, [[0, 1, 2, 3, 4]])):
        reader = _TableReader(located(tmp_path), files, schema, tasks)
        found = [[row["n"] for rows in reader.read(part) for row in rows.to_pylist()] for part in reader.partitions()]
        assert found == parts


def test_what_tasks_tell_is_all_there_is(tmp_path: Path) -> None:
    """One that has told nothing has nothing."""
    file = NewFile("a", 1, {"x": None}, 2, "s")
    seen: list[Any] = []
    files: Any = SimpleNamespace(write=lambda batches: seen.append(batches) or [file])
    writer = _Writer(files, str(tmp_path / "told"))
    made_files = writer.write(iter([ROWS]))
    assert made_files.files == [file]
    assert list(seen[0]) == [ROWS]
    writer.commit([made_files, None, _Made([])])
    assert (tmp_path / "told").read_text() == '[["a", 1, {"x": null}, 2, "s"]]'


@pytest.mark.parametrize(
    ("local", "error", "raised"),
    [
        (True, CommitFailedError("x"), TableConflictError),
        (True, DeltaError("x"), TableWriteError),
        (False, CommitFailedError("x"), TableConflictError),
        (False, DeltaError("x"), TableUnavailableError),
    ],
)
def test_columns_that_another_writer_was_in_the_way_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool, error: Exception, raised: type[Exception]
) -> None:
    """A conflict is told from a table that cannot be written, or a store that does not answer; it is read anew."""
    lake = made(tmp_path)
    if not local:
        lake.location = TableLocation("s3://b/t")
    reloads: list[Lake] = []
    monkeypatch.setattr(Lake, "reload", lambda self: reloads.append(self))

    def fail(*_: object, **__: object) -> None:
        raise error

    lake._table = SimpleNamespace(alter=SimpleNamespace(add_columns=fail))  # type: ignore[assignment]
    with pytest.raises(raised, match="could not be changed: x"):
        lake._add_columns([pa.field("b", pa.int64())])
    assert reloads == [lake]

"""What a table needs to live: files are joined and days let go beside a load, each row stays what it was, and a file
that anybody may still read stays where it is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from fastlog.errors import ConfigError, FastlogError, TableConflictError, TableUnavailableError, TableWriteError
from fastlog.spark import upkeep
from fastlog.spark.entries import ActiveFile, NewFile
from fastlog.spark.jobs import expire as expiring
from fastlog.spark.jobs.expire import expire_command, first_day
from fastlog.spark.jobs.loader import Loader
from fastlog.spark.jobs.optimize import optimize_command
from fastlog.spark.jobs.vacuum import vacuum_command
from fastlog.spark.lake import Lake, NumberStep, TableChange
from fastlog.spark.staging import TableStaging, Upkeep
from fastlog.spark.storage import located
from fastlog.spark.table_files import TableFiles
from fastlog.spark.upkeep import Expired, JoinOptions, bins_of, expire, join_files
from tests.harness.fake_broker import FakeBroker
from tests.harness.object_store import open_object_store
from tests.harness.small_loads import Context, expected, load_options, put

SCHEMA = pa.schema([("topic", pa.string()), ("date", pa.date32()), ("offset", pa.int64()), ("value", pa.binary())])
HOUR_MS = 3_600_000


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        yield fake


def made(path: Path) -> Lake:
    """An empty table."""
    lake = Lake(path / "table")
    lake.create(SCHEMA, ["topic", "date"])
    return lake


def written(lake: Lake, offsets: Sequence[int], topic: str = "t", day: str | None = "2026-11-20") -> list[NewFile]:
    """A file beside the table."""
    files = TableFiles(lake.directory, pa.schema([SCHEMA.field(2), SCHEMA.field(3)]), ("topic", "date"), "none")
    values = [b"%06d" % offset for offset in offsets]
    files.add((topic, day), pa.record_batch([pa.array(offsets, pa.int64()), values], schema=files.schema))
    return files.finish()


def filled(path: Path, *parts: Sequence[int], **where: Any) -> Lake:
    """A table with a file for each."""
    lake = made(path)
    for number, offsets in enumerate(parts):
        lake.commit(
            TableChange({"a": NumberStep(number - 1 if number else None, number)}, written(lake, offsets, **where))
        )
    return lake


def offsets_in(lake: Lake) -> list[int]:
    """What a reader finds, in the order in which it does."""
    found: list[int] = DeltaTable(str(lake.directory)).to_pyarrow_table().column("offset").to_pylist()
    return found


def loader_of(path: Path, broker: FakeBroker, **fields: Any) -> Loader:
    spark: Any = SimpleNamespace(context=Context(), has_ended=False)
    return Loader(Lake(path / "table"), load_options(broker, **fields), spark)


def values_in(path: Path) -> list[bytes]:
    """What a reader of a loaded table finds, sorted."""
    table = DeltaTable(str(path / "table")).to_pyarrow_table()
    rows = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
    return [value for _, _, value in sorted(rows)]


# -- which files -------------------------------------------------------------------------------------------------------


def files_of(sizes: Sequence[int], values: str = "t") -> list[ActiveFile]:
    return [ActiveFile(f"{values}/{n}", size, {"topic": values}, n) for n, size in enumerate(sizes)]


@given(st.lists(st.integers(1, 120), max_size=40), st.integers(2, 5), st.booleans())
def test_files_are_joined_up_to_a_size_and_once(sizes: list[int], at_least: int, gradual: bool) -> None:
    """Each in one of them at most; what is made so has nothing left to be joined with."""
    options = JoinOptions(target_bytes=100, at_least=at_least, gradual=gradual)
    files = files_of(sizes)
    bins = bins_of(files, ["topic"], options)
    taken = [file for some in bins for file in some]
    assert len({file.path for file in taken}) == len(taken)
    for some in bins:
        assert len(some) >= at_least
        assert sum(file.size_bytes for file in some) <= 100
        assert some == sorted(some, key=lambda file: file.modified_ms)
    if not gradual and at_least == 2:
        after = [file.size_bytes for file in files if file not in taken]
        after += [sum(file.size_bytes for file in some) for some in bins]
        assert bins_of(files_of(after), ["topic"], options) == []


def test_only_files_of_the_same_values_are_joined() -> None:
    files = [
        *files_of([1, 1], "b"),
        *files_of([1, 1, 1], "a"),
        *files_of([1], "c"),
        ActiveFile("n", 1, {"topic": None}),
    ]
    assert [[file.path for file in some] for some in bins_of(files, ["topic"], JoinOptions())] == [
        ["a/0", "a/1", "a/2"],
        ["b/0", "b/1"],
    ]
    assert len(bins_of(files, [], JoinOptions())) == 1


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([1, 1, 1, 60], [[1, 1, 1]]),  # a large one is not written anew for some small ones
        ([20, 10, 10], [[10, 10, 20]]),
        ([41, 10, 10], []),  # more than twice as large as they are together
        ([1, 2, 40], []),
    ],
)
def test_gradual_joins_leave_large_files_alone(sizes: list[int], joined: list[list[int]]) -> None:
    options = JoinOptions(target_bytes=100, at_least=3, gradual=True)
    found = bins_of(files_of(sizes), ["topic"], options)
    assert [sorted(file.size_bytes for file in some) for some in found] == joined


def test_a_table_that_is_joined_again_and_again_writes_a_row_a_few_times() -> None:
    """4,000 files of one byte, joined whenever sixteen are there: each byte is written fewer than ten times."""
    options = JoinOptions(target_bytes=10_000, at_least=16, gradual=True)
    sizes: list[int] = []
    wrote = 0
    for _ in range(4000):
        sizes.append(1)
        for some in bins_of(files_of(sizes), ["topic"], options):
            for file in some:
                sizes.remove(file.size_bytes)
            size = sum(file.size_bytes for file in some)
            sizes.append(size)
            wrote += size
    assert sum(sizes) == 4000
    assert len(sizes) < 48
    assert wrote < 40_000


# -- joined ------------------------------------------------------------------------------------------------------------


def test_joined_files_have_every_row_in_its_order(tmp_path: Path) -> None:
    """The numbers of the table stay, the old files stay on the disk, and no row of it counts as new."""
    lake = filled(tmp_path, range(10, 20), range(10), [30], topic="a b=c%2F")
    lake.commit(TableChange({}, written(lake, [99], topic="other")))
    joined = join_files(lake, JoinOptions())
    assert (joined.files_before, joined.files_after, joined.rows, joined.transactions) == (3, 1, 21, 1)
    assert joined.bytes_after < joined.bytes_before
    (file,) = [file for file in lake.files() if file.values["topic"] != "other"]
    assert file.rows == 21 and file.path.startswith("topic=a%20b%3Dc%252F/date=2026-11-20/")
    rows = pq.read_table(lake.directory / file.path, partitioning=None)
    assert rows["offset"].to_pylist() == [*range(10, 20), *range(10), 30]
    assert rows["value"].to_pylist() == [b"%06d" % offset for offset in rows["offset"].to_pylist()]
    assert sorted(offsets_in(lake)) == [*range(20), 30, 99]
    assert lake.number("a") == 2
    assert len(list(lake.directory.rglob("*.parquet"))) == 5
    log = (lake.directory / "_delta_log" / f"{lake.version:020}.json").read_text()
    actions = [json.loads(line) for line in log.splitlines()]
    changes = [item[name]["dataChange"] for item in actions for name in ("add", "remove") if name in item]
    assert changes == [False] * 4
    assert lake.history()[0][1]["job"] == "optimize" and lake.history()[0][1]["rows"] == 21
    assert join_files(lake, JoinOptions()).transactions == 0


def test_a_table_without_partitions_or_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "table")
    lake.create(SCHEMA, [])
    assert join_files(lake, JoinOptions()).to_json()["files_before"] == 0


def test_each_gigabyte_is_a_transaction_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one of them that another writer refuses does not take the others with it."""
    monkeypatch.setattr("fastlog.spark.upkeep._CHANGE_BYTES", 1)
    lake = made(tmp_path)
    for topic in "ab":
        for offset in range(2):
            lake.commit(TableChange({}, written(lake, [offset], topic)))
    refused, others = [], []
    commit = Lake.commit

    def in_turn(self: Lake, change: TableChange) -> None:
        if change.removed[0].values["topic"] == "b":
            others.append(change)
        elif not others:
            refused.append(change)
            raise TableConflictError("another writer")
        commit(self, change)

    monkeypatch.setattr(Lake, "commit", in_turn)
    joined = join_files(lake, JoinOptions())
    assert (joined.transactions, joined.conflicts, joined.files_before, joined.files_after) == (2, 1, 4, 2)
    assert sorted(offsets_in(lake)) == [0, 0, 1, 1]
    for file in refused[0].added:
        assert not (lake.directory / file.path).exists()


def test_a_transaction_that_is_just_full_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_CHANGE_BYTES", 30)
    bins = [[ActiveFile(f"{number}", size, {})] for number, size in enumerate((10, 20, 29, 1, 30, 5))]
    assert [[file.size_bytes for files in share for file in files] for share in upkeep._shares(bins)] == [
        [10, 20], [29, 1], [30], [5],
    ]  # fmt: skip


@pytest.mark.parametrize("error", [TableConflictError, TableWriteError])
def test_who_is_always_refused_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[FastlogError]
) -> None:
    """And leaves no file that is not the table's."""
    lake = filled(tmp_path, [1], [2])
    before = set(lake.directory.rglob("*.parquet"))

    def refuse(self: Lake, change: TableChange) -> None:
        raise error("another writer")

    monkeypatch.setattr(Lake, "commit", refuse)
    with pytest.raises(error, match="another writer"):
        join_files(lake, JoinOptions())
    with pytest.raises(error, match="another writer"):
        expire(lake, date(2027, 1, 1))
    assert set(lake.directory.rglob("*.parquet")) == before


def while_joining(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once, when files are written and not part of the table yet."""
    write_by = Upkeep.write_by
    left = [act]

    def acting(self: Upkeep, write: Any) -> Any:
        found = write_by(self, write)
        if left:
            left.pop()()
        return found

    monkeypatch.setattr(Upkeep, "write_by", acting)


def test_a_load_goes_on_meanwhile(tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in range(0, 30, 10):
        put(broker, first, 10)
        loader_of(tmp_path, broker).run()
    put(broker, 30, 10)
    while_joining(monkeypatch, lambda: loader_of(tmp_path, broker).run())
    joined = join_files(Lake(tmp_path / "table"), JoinOptions())
    assert (joined.files_before, joined.files_after, joined.conflicts) == (6, 2, 0)
    assert values_in(tmp_path) == expected((0, 40))


def test_files_that_others_have_removed_meanwhile_are_not_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither days that were let go, nor what another process has joined."""
    lake = made(tmp_path)
    for offset in range(2):
        lake.commit(TableChange({}, written(lake, [offset], day="2026-01-01")))
        lake.commit(TableChange({}, written(lake, [10 + offset], day="2026-02-01")))
    with monkeypatch.context() as patch:
        while_joining(patch, lambda: expire(Lake(lake.directory), date(2026, 2, 1)))
        joined = join_files(lake, JoinOptions())
    assert (joined.conflicts, joined.files_before, joined.files_after) == (1, 2, 1)
    assert offsets_in(lake) == [10, 11]
    lake.commit(TableChange({}, written(lake, [12], day="2026-02-01")))
    while_joining(monkeypatch, lambda: DeltaTable(str(lake.directory)).optimize.compact())
    joined = join_files(lake, JoinOptions())
    assert (joined.conflicts, joined.transactions) == (1, 0)
    assert sorted(offsets_in(lake)) == [10, 11, 12]


def test_one_process_joins_at_a_time_beside_one_that_loads(tmp_path: Path) -> None:
    lake = filled(tmp_path, [1], [2])
    with TableStaging(lake, ["topic", "date"], "none").alone():
        assert join_files(lake, JoinOptions()).files_before == 2
    with (
        Upkeep(lake, "none").alone(),
        pytest.raises(TableConflictError, match=rf"another process joins the files of this table \(pid {os.getpid()}"),
    ):
        join_files(lake, JoinOptions())


def test_a_load_that_begins_leaves_what_a_join_has_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next join removes what a killed one has left."""
    lake = filled(tmp_path, [1], [2])
    half = lake.work_directory / "upkeep" / "half"
    half.mkdir(parents=True)
    with TableStaging(lake, ["topic", "date"], "none").alone():
        assert half.exists()
    join_files(lake, JoinOptions())
    assert not half.exists()


STEPS = ("while it writes", "before the move", "behind the move", "behind the commit")


@pytest.mark.parametrize("step", STEPS)
def test_whatever_step_a_join_was_killed_at_each_message_is_there_once(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    for first in (0, 10):
        put(broker, first, 10)
        loader_of(tmp_path, broker).run()
    with monkeypatch.context() as patch:
        _kill_at(step, patch)
        with pytest.raises(Killed):
            join_files(Lake(tmp_path / "table"), JoinOptions())
    assert values_in(tmp_path) == expected((0, 20))
    put(broker, 20, 10)
    loader_of(tmp_path, broker).run()
    join_files(Lake(tmp_path / "table"), JoinOptions())
    assert values_in(tmp_path) == expected((0, 30))
    lake = Lake(tmp_path / "table")
    assert len(lake.files()) == 2
    assert sorted(path.name for path in (lake.work_directory / "upkeep").iterdir()) == ["lock"]


def _kill_at(step: str, patch: pytest.MonkeyPatch) -> None:
    def kill(*_: object, **__: object) -> None:
        raise Killed

    commit, add = Lake.commit, TableFiles.add

    def killing_add(self: TableFiles, values: Any, rows: Any) -> None:
        add(self, values, rows)
        raise Killed

    def killing_commit(self: Lake, change: TableChange) -> None:
        if step == "behind the commit":
            commit(self, change)
        raise Killed

    if step == "while it writes":
        patch.setattr(TableFiles, "add", killing_add)
    elif step == "before the move":
        patch.setattr(Path, "rename", kill)
    else:
        patch.setattr(Lake, "commit", killing_commit)


def test_a_damaged_file_stays_as_it_is(tmp_path: Path) -> None:
    """What can be read of it does not take its place."""
    lake = filled(tmp_path, range(200), range(200, 400))
    path, damaged = next(
        (path, bytearray(path.read_bytes()))
        for path in lake.directory.glob("topic=*/date=*/*")
        if b"000100" in path.read_bytes()
    )
    damaged[damaged.index(b"000100")] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(OSError, match="CRC"):
        join_files(lake, JoinOptions())
    assert len(lake.files()) == 2
    assert path.read_bytes() == bytes(damaged)


def test_a_file_with_other_rows_than_the_log_says_stays_as_it_is(tmp_path: Path) -> None:
    lake = made(tmp_path)
    lake.commit(TableChange({}, written(lake, [1, 2])))
    (file,) = written(lake, [3, 4])
    lake.commit(TableChange({}, [file._replace(stats='{"numRecords": 3}')]))
    with pytest.raises(TableWriteError, match=f"{file.path} has 2 rows, and the table's log says 3"):
        join_files(lake, JoinOptions())
    assert sorted(offsets_in(lake)) == [1, 2, 3, 4]


# -- in a load ---------------------------------------------------------------------------------------------------------


def test_a_load_joins_files_once_there_are_so_many(tmp_path: Path, broker: FakeBroker) -> None:
    """Of two days: a file of each with each batch."""
    found = []
    for turn in range(6):
        put(broker, 10 * turn, 10)
        one = loader_of(tmp_path, broker, optimize_at=3)
        one.run()
        found.append((len(Lake(tmp_path / "table").files()), one.totals.to_json()["joined_files"]))
    assert found == [(2, 0), (4, 0), (2, 6), (4, 0), (2, 6), (4, 0)]
    assert values_in(tmp_path) == expected((0, 60))


def test_a_join_that_fails_ends_no_load(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastlog.spark.upkeep._written", fail)
    for turn in range(3):
        put(broker, 10 * turn, 10)
        loader_of(tmp_path, broker, optimize_at=2, shown=True).run()
    assert values_in(tmp_path) == expected((0, 30))
    assert "small files stay as they are: [Errno 28] No space left" in capsys.readouterr().err


def test_nothing_is_joined_where_nothing_came(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a batch every second costs when the topic rests is not paid for with a look at every file."""
    for turn in range(2):
        put(broker, 10 * turn, 10)
        loader_of(tmp_path, broker).run()
    monkeypatch.setattr(Lake, "files", lambda self: pytest.fail("looked"))
    loader_of(tmp_path, broker, optimize_at=2).run()


# -- retention ---------------------------------------------------------------------------------------------------------


def of_days(path: Path, *days: str | None) -> Lake:
    """A table with a file of each."""
    lake = made(path)
    for offset, day in enumerate(days):
        lake.commit(
            TableChange({"a": NumberStep(offset - 1 if offset else None, offset)}, written(lake, [offset], day=day))
        )
    return lake


def test_days_before_one_go_in_one_transaction(tmp_path: Path) -> None:
    """A file without a day stays, and so do the numbers of the table."""
    lake = of_days(tmp_path, "2026-01-01", "2026-01-02", "2026-01-03", None, "0001-01-01")
    version = lake.version
    sizes = {file.values["date"]: file.size_bytes for file in lake.files()}
    gone = expire(lake, date(2026, 1, 3), dry_run=True)
    size = sizes["2026-01-01"] + sizes["2026-01-02"] + sizes["0001-01-01"]
    assert gone == Expired(3, 3, size, version)
    assert len(offsets_in(lake)) == 5
    gone = expire(lake, date(2026, 1, 3))
    assert gone == Expired(3, 3, size, version + 1)
    assert sorted(offsets_in(lake)) == [2, 3]
    assert lake.number("a") == 4
    _, notes = lake.history()[0]
    assert (notes["job"], notes["before"], notes["files"], notes["rows"]) == ("expire", "2026-01-03", 3, 3)
    assert expire(lake, date(2026, 1, 3)) == Expired(0, 0, 0, version + 1)


def test_rows_that_are_not_known_are_not_made_up(tmp_path: Path) -> None:
    lake = made(tmp_path)
    (file,) = written(lake, [1], day="2026-01-01")
    (empty,) = written(lake, [2], day="2025-12-31")
    lake.commit(TableChange({}, [file._replace(stats="{}"), empty._replace(stats='{"numRecords": 0}')]))
    assert expire(lake, date(2026, 1, 2), dry_run=True).rows is None
    assert expire(lake, date(2026, 1, 1), dry_run=True).rows == 0


def test_days_go_beside_another_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has joined two of their files meanwhile: the new one goes."""
    lake = of_days(tmp_path, "2026-01-01", "2026-01-01", "2026-01-02")
    commit = Lake.commit
    others = [lambda: join_files(Lake(lake.directory), JoinOptions())]

    def slow(self: Lake, change: TableChange) -> None:
        if others:
            others.pop()()
        commit(self, change)

    monkeypatch.setattr(Lake, "commit", slow)
    assert expire(lake, date(2026, 1, 2)).files == 1
    assert offsets_in(lake) == [2]


def test_a_table_without_days_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "table")
    lake.create(SCHEMA, ["topic"])
    with pytest.raises(ConfigError, match=r"partitioned by \['topic'\], and not by date"):
        expire(lake, date(2026, 1, 1))


@pytest.mark.parametrize(("days", "first"), [(0, "2026-11-20"), (19, "2026-11-01"), (10**6, "0001-01-01")])
def test_the_first_day_that_stays(days: int, first: str) -> None:
    assert first_day(days, date(2026, 11, 20)) == date.fromisoformat(first)


# -- files that are no part of a table ---------------------------------------------------------------------------------


def aged(path: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(path, (then, then))


def test_files_go_once_no_reader_can_have_begun_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were removed by the time of that, those that never were part of the table by their own."""
    lake = filled(tmp_path, [1], [2], topic="a b=c%2F")
    old = {file.path for file in lake.files()}
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr("fastlog.spark.lake.time", SimpleNamespace(time=lambda: real() - 3 * 3600, sleep=time.sleep))
        join_files(lake, JoinOptions())
    young, lost = written(lake, [3]), written(lake, [4])
    aged(lake.directory / lost[0].path, 3)
    half = lake.work_directory / "dead" / "half.parquet"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"x")
    aged(half, 10_000)
    for path in old:
        aged(lake.directory / path, 100)
    assert lake.vacuum(None, dry_run=False) == []
    assert lake.vacuum(4, dry_run=False) == []
    everything = set(lake.directory.rglob("*.parquet"))
    assert set(lake.vacuum(2, dry_run=True)) == {*old, lost[0].path}
    assert set(lake.directory.rglob("*.parquet")) == everything
    assert set(lake.vacuum(2, dry_run=False)) == {*old, lost[0].path}
    assert everything - set(lake.directory.rglob("*.parquet")) == {
        lake.directory / path for path in (*old, lost[0].path)
    }
    assert sorted(offsets_in(lake)) == [1, 2]
    assert (lake.directory / young[0].path).exists() and half.exists()
    lake.commit(TableChange({"a": NumberStep(1, 2)}, young))
    assert sorted(offsets_in(lake)) == [1, 2, 3]


def test_a_version_that_is_read_can_be_read_on(tmp_path: Path) -> None:
    """Through a join, a day that is let go and a vacuum."""
    lake = of_days(tmp_path, "2026-01-01", "2026-01-01", "2026-01-02")
    reader = DeltaTable(str(lake.directory)).to_pyarrow_dataset()
    join_files(lake, JoinOptions())
    expire(lake, date(2026, 1, 2))
    lake.vacuum(1, dry_run=False)
    assert sorted(reader.to_table().column("offset").to_pylist()) == [0, 1, 2]
    assert offsets_in(lake) == [2]


def test_a_vacuum_that_fails_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled(tmp_path, [1])

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(DeltaTable, "vacuum", fail)
    with pytest.raises(TableWriteError, match=r"could not be cleaned: .*Input/output error"):
        lake.vacuum(1, dry_run=False)


# -- commands ----------------------------------------------------------------------------------------------------------


def run(command: Any, *given: object) -> dict[str, Any]:
    result = CliRunner().invoke(command, [str(item) for item in given], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = of_days(tmp_path, "2026-01-01", "2026-01-01", "2026-01-02")
    table = ("--table", lake.directory)
    found = run(optimize_command, *table, "--compression", "zstd", "--at-least", 3)
    assert found["files_before"] == 0
    assert run(optimize_command, *table, "--target-size", "1")["files_before"] == 0
    found = run(optimize_command, *table, "--compression", "zstd")
    assert (found["job"], found["table"], found["files_before"], found["rows"]) == ("optimize", str(lake), 2, 2)
    lake.reload()
    assert found["version"] == lake.version
    (file,) = [file for file in lake.files() if file.values["date"] == "2026-01-01"]
    footer = pq.read_metadata(lake.directory / file.path)
    assert footer.row_group(0).column(0).compression == "ZSTD"

    monkeypatch.setattr(expiring, "datetime", SimpleNamespace(now=lambda zone: datetime(2026, 1, 5, tzinfo=zone)))
    found = run(expire_command, *table, "--keep-days", 3, "--dry-run")
    assert (found["before"], found["files"], found["rows"], found["dry_run"]) == ("2026-01-02", 1, 2, True)
    found = run(expire_command, *table, "--keep-days", 3)
    assert (found["job"], found["files"], found["rows"], found["dry_run"]) == ("expire", 1, 2, False)
    assert offsets_in(lake) == [2]

    (lost,) = written(lake, [4])
    aged(lake.directory / lost.path, 3)
    found = run(vacuum_command, *table, "--keep-hours", 2, "--dry-run")
    assert (found["job"], found["files"], found["dry_run"], found["keep_hours"]) == ("vacuum", 1, True, 2)
    assert run(vacuum_command, *table)["files"] == 0
    result = CliRunner().invoke(vacuum_command, ["--table", str(lake.directory), "--keep-hours", "2"])
    assert lost.path in result.stderr and not (lake.directory / lost.path).exists()
    assert CliRunner().invoke(vacuum_command, ["--table", str(lake.directory), "--keep-hours", "0"]).exit_code == 2


@pytest.mark.parametrize(("command", "more"), [
    (optimize_command, ()), (vacuum_command, ()), (expire_command, ("--keep-days", 1)),
])  # fmt: skip
def test_a_command_for_a_table_that_is_not_there(tmp_path: Path, command: Any, more: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError, match="--table: there is no table in"):
        run(command, "--table", tmp_path / "nothing", *more)
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(ConfigError, match="--storage-option: is for tables at URLs"):
        run(command, "--table", tmp_path / "nothing", "--storage-option", "AWS_REGION=x", *more)


# -- in an object store ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_table_in_an_object_store(broker: FakeBroker) -> None:
    """Joined beside a load, through a commit whose answer is lost and an upload that is cut; then its days go, and its
    files."""
    with open_object_store() as store:
        table = located(store.url("upkeep"), store.options)

        def load(first: int) -> None:
            put(broker, first, 10)
            spark: Any = SimpleNamespace(context=Context(), has_ended=False)
            Loader(Lake(table), load_options(broker), spark).run()

        def rows() -> list[bytes]:
            found = DeltaTable(table.text, storage_options=table.given_options).to_pyarrow_table()
            places = zip(found["offset"].to_pylist(), found["value"].to_pylist(), strict=True)
            return [value for _, value in sorted(places)]

        load(0)
        load(10)
        store.fail("PUT", r"_delta_log/0*\d+\.json", "lose")
        joined = join_files(Lake(table), JoinOptions())
        assert [fault.split()[0] for fault in store.done()] == ["lose"]
        assert (joined.files_before, joined.files_after, rows()) == (4, 2, expected((0, 20)))
        load(20)
        for method in ("PUT", "GET"):
            store.fail(method, r"\.parquet", "cut", count=10)
            with pytest.raises(TableUnavailableError):
                join_files(Lake(table), JoinOptions())
            assert store.done()
        assert (len(Lake(table).files()), rows()) == (4, expected((0, 30)))
        joined = join_files(Lake(table), JoinOptions())
        assert (joined.files_before, joined.files_after, rows()) == (4, 2, expected((0, 30)))
        lake = Lake(table)
        assert expire(lake, date(2023, 11, 15)).rows == 15
        assert rows() == [value for value in expected((0, 30)) if int(value.split()[1]) % 2]
        names = [name for name in store.names() if name.endswith(".parquet")]
        assert len(names) > 1 and lake.vacuum(1, dry_run=False) == []
        assert [name for name in store.names() if name.endswith(".parquet")] == names

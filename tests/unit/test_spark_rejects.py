"""Messages that an expression cannot take, between two tables of Delta: each is in its own once, wherever a load was
killed, and what nobody knows any more is said rather than left out. Without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from fastlog.errors import ConfigError, TableConflictError, TableWriteError
from fastlog.spark.entries import NewFile
from fastlog.spark.jobs.rejects import REJECTED, Rejected, Rejects
from fastlog.spark.lake import Lake, NumberStep, TableChange
from fastlog.spark.offsets import OffsetRange
from fastlog.spark.staging import TableStaging
from tests.harness.spark import partition_of

FILLED = pa.schema([("topic", pa.string()), ("value", pa.binary())])
MESSAGES = pa.schema([("topic", pa.string()), ("broker", pa.int32()), ("partition", pa.int32()),
                      ("offset", pa.int64()), ("reason", pa.string())])  # fmt: skip
DAY = date(2026, 11, 20)
Place = tuple[str, int, int, int]


def messages(*places: Place) -> pa.Table:
    """Of topic, broker, partition and offset."""
    names = MESSAGES.names[:4]
    rows = [{**dict(zip(names, place, strict=True)), "reason": f"x of {place[3]}"} for place in places]
    return pa.Table.from_pylist(rows, schema=MESSAGES)


@pytest.fixture
def filled(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "table")
    lake.create(FILLED, [])
    return lake


def rejects_of(path: Path) -> Rejects:
    """What another process has."""
    return Rejects(Lake(path / "rejected"), Lake(path / "table"), MESSAGES, "snappy")


def batch(path: Path, *places: Place, replaced: Any = None) -> Rejects:
    """A batch of the table that is filled, with these messages rejected; they are in no table of their own yet."""
    rejects = rejects_of(path)
    made = Rejected(rejects.write(messages(*places), DAY), replaced or {})
    steps, notes = rejects.told(made)
    filled = Lake(path / "table")
    filled.commit(TableChange(steps, (), (), notes))
    rejects._filled.reload()
    return rejects


def rows_in(path: Path) -> list[Place]:
    table = DeltaTable(str(path / "rejected")).to_pyarrow_table().to_pylist()
    assert all((row["date"], row["reason"]) == (DAY, f"x of {row['offset']}") for row in table)
    return sorted((row["topic"], row["broker"], row["partition"], row["offset"]) for row in table)


def at(*offsets: int, topic: str = "t", broker: int = 0, partition: int = 0) -> list[Place]:
    return [(topic, broker, partition, offset) for offset in offsets]


# -- written, told, added ----------------------------------------------------------------------------------------------


def test_messages_are_written_and_part_of_no_table_yet(tmp_path: Path, filled: Lake) -> None:
    """By topic and the day of the loading; without messages the table is there, and no file."""
    rejects = rejects_of(tmp_path)
    assert rejects.write(messages(), DAY) == []
    lake = Lake(tmp_path / "rejected")
    assert (lake.exists, lake.partition_columns) == (True, ["topic", "date"])
    assert lake.column_names == ["topic", "date", "broker", "partition", "offset", "reason"]
    made = rejects.write(messages(*at(1, 2), *at(3, topic="u")), DAY)
    assert [(file.values, file.rows) for file in made] == [
        ({"topic": "t", "date": "2026-11-20"}, 2), ({"topic": "u", "date": "2026-11-20"}, 1),
    ]  # fmt: skip
    assert Rejected(made, {}).rows == 3
    for file in made:
        assert pq.read_schema(lake.directory / file.path).names == ["broker", "partition", "offset", "reason"]
    assert rows_in(tmp_path) == []
    rejects.discard(Rejected(made, {}))
    assert list(lake.directory.glob("topic=*/date=*/*")) == []


def test_a_batch_says_what_it_has_rejected(tmp_path: Path, filled: Lake) -> None:
    """In its transaction: the number of its entry, one more each time, and all that it takes to add the files."""
    rejects = rejects_of(tmp_path)
    nothing = Rejected([], {})
    replaced = {partition_of("t/0-1"): OffsetRange(3, 9)}
    assert rejects.told(Rejected([], replaced)) == ({}, {}), "there is no table of them"
    made = Rejected(rejects.write(messages(*at(1, 2)), DAY), replaced)
    assert rejects.told(nothing) == ({}, {})
    lake = Lake(tmp_path / "rejected")
    name = f"fastlog.rejected:{lake.identity}"
    for before, number in ((None, 1), (1, 2)):
        steps, notes = rejects.told(made)
        assert steps == {name: NumberStep(before, number)}
        assert notes == {
            REJECTED: {
                "table": str(lake), "id": lake.identity, "number": number, "rows": 2,
                "files": [list(made.files[0])], "replaced": {"t": {"0-1": [3, 9]}},
            }
        }  # fmt: skip
        rejects._filled.commit(TableChange(steps, (), (), notes))  # type: ignore[union-attr]
    assert rejects.told(Rejected([], replaced))[0] == {name: NumberStep(2, 3)}, "replaced alone is said as well"


def test_a_load_that_was_killed_between_the_two_is_made_up_for(tmp_path: Path, filled: Lake) -> None:
    """By whoever comes next, once, in the order of the batches; of each filled table its own are counted."""
    killed = batch(tmp_path, *at(1, 2))
    batch(tmp_path, *at(3))
    assert rows_in(tmp_path) == []
    next_one = rejects_of(tmp_path)
    next_one.catch_up()
    assert rows_in(tmp_path) == at(1, 2, 3)
    lake = Lake(tmp_path / "rejected")
    name = f"fastlog.rejected:{filled.identity}"
    assert (lake.number(name), lake.names("fastlog.rejected:")) == (2, [name])
    told = [{name: notes[name] for name in ("job", "rows")} for _, notes in lake.history(2)]
    assert told == [{"job": "load", "rows": 1}, {"job": "load", "rows": 2}]
    version = lake.version
    for late in (killed, next_one, rejects_of(tmp_path)):
        late._filled.reload()
        late.catch_up()
    lake.reload()
    assert (rows_in(tmp_path), lake.version) == (at(1, 2, 3), version)


def test_nothing_was_ever_rejected(tmp_path: Path, filled: Lake) -> None:
    rejects_of(tmp_path).catch_up()
    assert not Lake(tmp_path / "rejected").exists
    rejects = rejects_of(tmp_path)
    rejects.write(messages(), DAY)
    version = Lake(tmp_path / "rejected").version
    rejects.catch_up()
    assert Lake(tmp_path / "rejected").version == version


def test_two_that_add_the_same_at_once(tmp_path: Path, filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is refused, looks again, and goes on; its own files of it are gone."""
    batch(tmp_path, *at(1, 2)).catch_up()
    batch(tmp_path, *at(5), replaced={partition_of("t/0-0"): OffsetRange(2, 3)})
    first, second = rejects_of(tmp_path), rejects_of(tmp_path)
    commit = Lake.commit

    def commit_behind(self: Lake, change: TableChange) -> None:
        monkeypatch.setattr(Lake, "commit", commit)
        second._filled.reload()
        second.catch_up()
        commit(self, change)

    monkeypatch.setattr(Lake, "commit", commit_behind)
    first.catch_up()
    assert rows_in(tmp_path) == at(1, 5)
    lake = Lake(tmp_path / "rejected")
    there = {str(path.relative_to(lake.directory)) for path in lake.directory.glob("topic=*/date=*/*.parquet")}
    replaced = {path for path in there if path not in {file.path for file in lake.files()}}
    assert len(replaced) == 1, "the file that the second one has replaced, and none of the first one's"


def test_a_refusal_for_another_reason_ends_it(tmp_path: Path, filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried again it would be refused again, for ever."""
    batch(tmp_path, *at(1))
    rejects = rejects_of(tmp_path)
    refused: list[TableChange] = []

    def refuse(self: Lake, change: TableChange) -> None:
        refused.append(change)
        raise TableConflictError("another writer has removed a file")

    monkeypatch.setattr(Lake, "commit", refuse)
    with pytest.raises(TableConflictError, match="has removed a file"):
        rejects.catch_up()
    assert len(refused) == 1


# -- what nobody knows any more ----------------------------------------------------------------------------------------


def test_an_entry_is_found_however_many_transactions_came_behind_it(tmp_path: Path, filled: Lake) -> None:
    """Beyond those that are looked at first."""
    batch(tmp_path, *at(1))
    filled.reload()
    for number in range(25):
        filled.commit(
            TableChange({"n": NumberStep(number - 1 if number else None, number)}, notes={REJECTED: "of another kind"})
        )
    rejects_of(tmp_path).catch_up()
    assert rows_in(tmp_path) == at(1)


def test_an_entry_that_the_history_has_no_more(tmp_path: Path, filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is that of another table, or of another number, taken for it."""
    batch(tmp_path, *at(1))
    real = Lake.history

    def history(self: Lake, most: int | None = None) -> list[tuple[int, dict[str, Any]]]:
        changed: list[tuple[int, dict[str, Any]]] = []
        for version, notes in real(self, most):
            entry = notes.get(REJECTED)
            if entry:
                changed += [
                    (version, {REJECTED: {**entry, "id": "another"}}),
                    (version, {REJECTED: {**entry, "number": 2}}),
                ]
        return changed  # fmt: skip

    monkeypatch.setattr(Lake, "history", history)
    with pytest.raises(TableWriteError, match="whose history does not have them any more"):
        rejects_of(tmp_path).catch_up()
    assert rows_in(tmp_path) == []


def test_a_file_that_was_removed_before_it_was_added(tmp_path: Path, filled: Lake) -> None:
    """A vacuum took it for one that nobody wants."""
    batch(tmp_path, *at(1), *at(2, topic="u"))
    lake = Lake(tmp_path / "rejected")
    (path,) = lake.directory.glob("topic=u/date=*/*.parquet")
    path.unlink()
    with pytest.raises(TableWriteError, match=f"{path.relative_to(lake.directory)} has rejected messages, and was"):
        rejects_of(tmp_path).catch_up()
    assert rows_in(tmp_path) == []


# -- replaced ----------------------------------------------------------------------------------------------------------

PLACES = [*at(1, 2, 3, 4), *at(2, partition=1), *at(2, broker=1), *at(2, 3, topic="u")]


@pytest.mark.parametrize(
    ("replaced", "left"),
    [
        ({"t/0-0": (2, 4)}, [place for place in PLACES if place not in at(2, 3)]),
        ({"t/0-0": (1, 2)}, [place for place in PLACES if place not in at(1)]),
        ({"t/0-0": (4, 5)}, [place for place in PLACES if place not in at(4)]),
        ({"t/0-0": (5, 9)}, PLACES),
        ({"t/0-0": (0, 1)}, PLACES),
        ({"t/0-2": (0, 9), "v/0-0": (0, 9)}, PLACES),
        ({"t/0-1": (2, 3), "t/0-0": (0, 3)}, [*at(3, 4), *at(2, broker=1), *at(2, 3, topic="u")]),
        ({"t/1-0": (0, 9), "u/0-0": (3, 4)}, [*at(1, 2, 3, 4), *at(2, partition=1), *at(2, topic="u")]),
        ({"u/0-0": (0, 9)}, [place for place in PLACES if place[0] == "t"]),
    ],
)
def test_what_a_batch_takes_the_place_of_goes(
    tmp_path: Path, filled: Lake, replaced: dict[str, tuple[int, int]], left: Sequence[Place]
) -> None:
    """Messages of its ranges, of their partitions alone; files without one stay as they are."""
    batch(tmp_path, *PLACES).catch_up()
    before = {file.path for file in Lake(tmp_path / "rejected").files()}
    ranges = {partition_of(name): OffsetRange(*interval) for name, interval in replaced.items()}
    batch(tmp_path, *at(7), replaced=ranges).catch_up()
    assert rows_in(tmp_path) == sorted([*left, *at(7)])
    after = {file.path for file in Lake(tmp_path / "rejected").files()}
    touched = {place[0] for place in PLACES if place not in left}
    assert {path for path in before if path not in after} == {
        path for path in before if path.partition("/")[0].removeprefix("topic=") in touched
    }


# -- two tables --------------------------------------------------------------------------------------------------------


def test_the_two_tables_are_not_one(tmp_path: Path, filled: Lake) -> None:
    """Neither by name, where it is not there yet either, nor under two names."""
    for name in ("table", "nothing"):
        with pytest.raises(ConfigError, match="is the table that is filled: give another place"):
            Rejects(Lake(tmp_path / name), Lake(tmp_path / name), MESSAGES, "snappy")
    (tmp_path / "link").symlink_to(tmp_path / "table")
    with pytest.raises(ConfigError, match="is the table that is filled"):
        Rejects(Lake(tmp_path / "link"), Lake(tmp_path / "table"), MESSAGES, "snappy")
    rejects_of(tmp_path)


def test_a_table_with_other_columns_is_refused(tmp_path: Path, filled: Lake) -> None:
    """What is new to it is added; what is another thing under its name is not."""
    Lake(tmp_path / "rejected").create(
        pa.schema([("topic", pa.string()), ("date", pa.date32()), ("offset", pa.string())]), ["topic", "date"]
    )
    with pytest.raises(ConfigError, match="the column offset is string"):
        rejects_of(tmp_path).write(messages(*at(1)), DAY)


def test_one_process_rejects_into_a_table_at_a_time(tmp_path: Path, filled: Lake) -> None:
    with (
        rejects_of(tmp_path).alone(),
        pytest.raises(TableConflictError, match="another process fills this table"),
        rejects_of(tmp_path).alone(),
    ):
        pytest.fail("both have it")


def test_a_failure_while_files_are_written_leaves_none(
    tmp_path: Path, filled: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejects = rejects_of(tmp_path)
    moved: list[NewFile] = []

    def fail(self: TableStaging, place: Any, made: Sequence[NewFile]) -> list[NewFile]:
        moved.extend(made)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TableStaging, "_settled", fail)
    with pytest.raises(OSError, match="No space left"):
        rejects.write(messages(*at(1)), DAY)
    assert len(moved) == 1
    lake = Lake(tmp_path / "rejected")
    assert list(lake.directory.rglob("*.parquet")) == []

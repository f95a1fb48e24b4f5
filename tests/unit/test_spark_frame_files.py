"""Rows of Spark's as files of a table: each in the file of its values, with the types of the table; and back again."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastlog.errors import ConfigError
from fastlog.spark import table_files
from fastlog.spark.entries import ActiveFile, NewFile
from fastlog.spark.frame_files import FrameFiles, _TableReader, _Writer
from fastlog.spark.storage import TableLocation

pytest.importorskip("pyspark.sql.datasource")

SCHEMA = pa.schema(
    [("topic", pa.string()), ("date", pa.date32()), ("n", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))]
)
MAY, JUNE = date(2015, 5, 17), date(2015, 6, 1)


def batch(*rows: tuple[str | None, date | None, int]) -> pa.RecordBatch:
    """As Spark hands it over: with times in the zone of its session."""
    times = pa.array([datetime(2015, 1, 1, tzinfo=UTC)] * len(rows), pa.timestamp("us", tz="Asia/Tokyo"))
    topics, days, numbers = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(topics, pa.string()), pa.array(days, pa.date32()), pa.array(numbers, pa.int64()), times]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


def rows_in(place: Path, files: list[NewFile]) -> dict[tuple[str | None, ...], list[int]]:
    found = {}
    for file in files:
        table = pq.read_table(place / file.path, partitioning=None)
        assert table.schema.names == [name for name in SCHEMA.names if name not in file.values]
        assert table.schema.field("time").type == SCHEMA.field("time").type
        assert (file.rows, file.size_bytes) == (table.num_rows, (place / file.path).stat().st_size)
        found[tuple(file.values.values())] = table["n"].to_pylist()
    return found


def test_rows_go_to_the_files_of_their_values_in_order(tmp_path: Path) -> None:
    files = FrameFiles(tmp_path, SCHEMA, ("topic", "date"), "zstd")
    made = files.write(
        iter(
            [
                batch(("a", MAY, 1), ("b", MAY, 2), ("a", JUNE, 3), ("a", MAY, 4), (None, MAY, 5), ("a", None, 6)),
                batch(),
                batch(("b", MAY, 7), ("b", JUNE, 8)),
                batch(("a", MAY, 9)),
            ]
        )
    )
    assert rows_in(tmp_path, made) == {
        ("a", "2015-05-17"): [1, 4, 9],
        ("b", "2015-05-17"): [2, 7],
        ("a", "2015-06-01"): [3],
        ("b", "2015-06-01"): [8],
        (None, "2015-05-17"): [5],
        ("a", None): [6],
    }
    assert {file.path.rpartition("/")[0] for file in made if file.values["topic"] is None} == {
        "topic=__HIVE_DEFAULT_PARTITION__/date=2015-05-17"
    }


def test_a_table_without_partitions_and_a_task_without_rows(tmp_path: Path) -> None:
    files = FrameFiles(tmp_path, SCHEMA, (), "none")
    assert files.write(iter([batch()])) == [] and list(tmp_path.iterdir()) == []
    made = files.write(iter([batch(("a", MAY, 1)), batch(("b", MAY, 2))]))
    assert rows_in(tmp_path, made) == {(): [1, 2]}


def test_what_tasks_tell_reaches_the_driver(tmp_path: Path) -> None:
    import json

    writer = _Writer(FrameFiles(tmp_path, SCHEMA, ("topic",), "none"), str(tmp_path / "told"))
    messages = [writer.write(iter([batch(("a", MAY, 1), ("b", MAY, 2))])), writer.write(iter([batch()])), None]
    writer.commit(messages)
    told = [NewFile(*file) for file in json.loads((tmp_path / "told").read_text())]
    assert told == [file for message in messages[:2] if message for file in message.files] and len(told) == 2


def test_a_worker_without_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a worker does not see what the driver made"):
        FrameFiles(tmp_path / "no", SCHEMA, (), "none").write(iter([batch()]))


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_rows_come_back_with_their_values(tmp_path: Path, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that a file has not are null; those that are not asked for are not there."""
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", 1)
    made = FrameFiles(tmp_path, SCHEMA, ("topic", "date"), "none").write(
        iter([batch(("a", MAY, 1), (None, JUNE, 2), ("a", MAY, 3)), batch(("a", MAY, 4))])
    )
    schema = pa.schema([("date", pa.date32()), ("later", pa.float64()), ("n", pa.int64()), ("topic", pa.string())])
    active = [ActiveFile(file.path, file.size_bytes, file.values) for file in made]
    reader: Any = _TableReader(TableLocation(str(tmp_path)), active, schema, tasks)
    parts = reader.partitions()
    assert len(parts) == min(tasks, len(made))
    found = [row for part in parts for rows in reader.read(part) for row in pa.Table.from_batches([rows]).to_pylist()]
    assert sorted(found, key=lambda row: row["n"]) == [
        {"date": JUNE if n == 2 else MAY, "later": None, "n": n, "topic": None if n == 2 else "a"} for n in range(1, 5)
    ]

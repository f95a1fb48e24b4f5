"""The files that a task writes with columns that Spark gives back: every row once with its own, or none at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fastlog.errors import RangeIncompleteError, TableWriteError
from fastlog.message import encode_set
from fastlog.spark import columns, computed_files, table_files
from fastlog.spark.computed_files import Computed, ComputedFiles, Waiting
from fastlog.spark.entries import NewFile
from fastlog.spark.options import parse_options
from fastlog.spark.plans import Task
from tests.harness.consumers import with_log

pytest.importorskip("pyspark.sql.datasource")

TODAY = date(2011, 6, 12)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("date", pa.date32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("value", pa.binary()),
        ("size", pa.int32()),
    ]
)
VALUES = [b"%d" % at * (at % 7) for at in range(200)]


def files_at(place: Path, address: str, *, partition_by: tuple[str, ...] = ("topic", "date")) -> ComputedFiles:
    quick = {"fetch.numRetries": "1", "fetch.retryIntervalMs": "1", "direct": "off"}
    options = parse_options({"brokers": address, "subscribe": "t", **quick}, streaming=False)
    return ComputedFiles(place, partition_by, "none", Computed(SCHEMA, ("size",), ("value",), TODAY, options), "run")


def computed(given: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """What Spark makes of it, in batches of its own size; it takes some ahead."""
    taken = pa.Table.from_batches(list(given))
    made = taken.select(["offset"]).append_column("size", pc.binary_length(taken["value"]))
    for batch in made.combine_chunks().to_batches(max_chunksize=rows):
        yield pa.RecordBatch.from_arrays(batch.columns, names=["offset", "a name that does not matter"])


def written(files: ComputedFiles, port: int, size: int, waiting: Path, rows: int) -> list[NewFile]:
    task = Task("t", 0, 0, "127.0.0.1", port, 0, size)
    return files.write(computed(files.read(task, waiting), rows), waiting)


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_each_row_once_with_its_own(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BATCH_BYTES", 300)
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", 1000)
    data = encode_set(VALUES)
    with with_log(data) as fake:
        made = written(files_at(tmp_path, fake.address), fake.port, len(data), tmp_path / "waiting", rows)
    assert [(file.values, file.rows) for file in made] == [({"topic": "t", "date": "2011-06-12"}, len(VALUES))]
    table = pq.read_table(tmp_path / made[0].path, partitioning=None)
    assert table.schema.names == ["offset", "timestamp", "value", "size"]
    assert table.schema.field("size").type == pa.int32()
    assert table["value"].to_pylist() == VALUES and table["size"].to_pylist() == [len(value) for value in VALUES]
    assert table["offset"].to_pylist() == sorted(table["offset"].to_pylist()) and table["offset"][0].as_py() == 0
    assert not (tmp_path / "waiting").exists()


def test_the_day_of_a_time_that_is_computed(tmp_path: Path) -> None:
    """Spark hands it over in the zone of its session; a day is one of UTC."""
    data = encode_set(VALUES[:3])
    late = datetime(2015, 5, 17, 23, 30, tzinfo=UTC)
    times = pa.array([late, None, late + timedelta(hours=1)], pa.timestamp("us", tz="Asia/Tokyo"))
    with with_log(data) as fake:
        files = files_at(tmp_path, fake.address)
        wanted = replace(files.wanted, columns=("timestamp", "size"))
        files = replace(files, wanted=wanted)
        given = pa.Table.from_batches(files.read(Task("t", 0, 0, "127.0.0.1", fake.port, 0, len(data)), tmp_path / "w"))
    sizes = pa.array([0, 1, 2], pa.int32())
    made = files.write(
        iter([pa.record_batch([given["offset"].combine_chunks(), times, sizes], names=["a", "b", "c"])]), tmp_path / "w"
    )
    assert {file.values["date"]: file.rows for file in made} == {"2015-05-17": 1, "2015-05-18": 1, "2011-06-12": 1}


@pytest.mark.parametrize("change", ["fewer", "more", "others", "none"])
def test_other_rows_than_spark_was_given_are_no_files(tmp_path: Path, change: str) -> None:
    data = encode_set(VALUES)
    with with_log(data) as fake:
        files, waiting = files_at(tmp_path, fake.address), tmp_path / "waiting"
        given = list(files.read(Task("t", 0, 0, "127.0.0.1", fake.port, 0, len(data)), waiting))
    (batch,) = computed(iter(given), 1000)
    batches = {
        "fewer": [batch.slice(0, len(VALUES) - 1)],
        "more": [batch, batch.slice(0, 1)],
        "others": [batch.slice(1), batch.slice(0, 1)],
        "none": [],
    }[change]
    with pytest.raises(TableWriteError, match=r"Spark gave back (fewer|other) rows than it was given"):
        files.write(iter(batches), waiting)
    assert not waiting.exists()


def test_spark_has_a_task_for_each_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And both of its processes find the place by the batch and the task that they work for."""
    data = encode_set(VALUES)
    half = len(encode_set(VALUES[:100]))
    number = [0]
    monkeypatch.setattr(computed_files, "_waiting_place", lambda run: tmp_path / "waiting" / run / str(number[0]))
    made: list[NewFile] = []
    with with_log(data) as fake:
        files = files_at(tmp_path, fake.address)
        tasks = [Task("t", 0, 0, "127.0.0.1", fake.port, *ends) for ends in ((0, half), (half, len(data)))]
        reader = computed_files._ComputedReader(files, tasks)
        for number[0], part in enumerate(reader.partitions()):
            assert part.value == tasks[number[0]]
            made += files.write(computed(reader.read(part), 1000))
    found = [pq.read_table(tmp_path / file.path, partitioning=None)["value"].to_pylist() for file in made]
    assert found == [VALUES[:100], VALUES[100:]]
    assert list((tmp_path / "waiting" / "run").iterdir()) == []


def test_a_range_that_cannot_be_read_leaves_nothing_that_waits(tmp_path: Path) -> None:
    data = encode_set(VALUES)
    with with_log(data) as fake:
        files = files_at(tmp_path, fake.address)
        with pytest.raises(RangeIncompleteError):
            list(files.read(Task("t", 0, 0, "127.0.0.1", fake.port, 0, len(data) + 100), tmp_path / "waiting"))
    assert not (tmp_path / "waiting").exists()


def test_what_waits_is_gone_once_it_is_taken(tmp_path: Path) -> None:
    """One file at a time is open; who has given up does not disturb the other side."""
    putting, taking = Waiting(tmp_path / "w"), Waiting(tmp_path / "w")
    assert taking.take(5) is None and not taking.left
    batches = [pa.record_batch([pa.array(range(at, at + 4))], names=["n"]) for at in (0, 4)]
    for batch in batches:
        putting.put(batch)
    taken = []
    for most, files in ((3, 1), (3, 1), (100, 0)):
        found = taking.take(most)
        assert found is not None
        taken.append(found["n"].to_pylist())
        assert len(list((tmp_path / "w").iterdir())) == files
    assert taken == [[0, 1, 2], [3], [4, 5, 6, 7]] and not taking.left and taking.take(1) is None
    putting.put(batches[0])
    assert taking.left
    shutil.rmtree(tmp_path / "w")
    putting.put(batches[0])
    assert not (tmp_path / "w").exists()

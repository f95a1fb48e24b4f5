"""The files that a task writes by itself: every row once, in the file of its day, and bounded memory and files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from fastlog.codecs import GZIP
from fastlog.envelope import Envelope, wrap
from fastlog.errors import ConfigError, RangeIncompleteError
from fastlog.message import encode_set
from fastlog.spark import table_files
from fastlog.spark.entries import NewFile
from fastlog.spark.jobs.command import own_error
from fastlog.spark.options import parse_options
from fastlog.spark.plans import Task
from fastlog.spark.row_files import RowFiles
from tests.harness.consumers import with_log

COLUMNS = ("partition", "offset", "idx", "timestamp", "key", "value")
TODAY = date(2011, 6, 12)


def written(data: bytes, directory: Path, *, end: int | None = None, **given: str) -> list[NewFile]:
    """What a task over a log makes of it."""
    with with_log(data) as fake:
        quick = {"fetch.numRetries": "1", "fetch.retryIntervalMs": "1", "direct": "off"}
        options = parse_options({"brokers": fake.address, "subscribe": "t", **quick, **given}, streaming=False)
        task = Task("t", 0, 0, "127.0.0.1", fake.port, 0, len(data) if end is None else end)
        return RowFiles(directory, COLUMNS, "snappy", TODAY, options).write(task)


def day_of(file: NewFile) -> date:
    return date.fromisoformat(file.values["date"] or "")


def rows_in(directory: Path, files: Sequence[NewFile]) -> dict[date, list[dict[str, Any]]]:
    """The rows of each day, in the order of the files; times in µs since 1970."""
    found: dict[date, list[dict[str, Any]]] = {}
    for file in files:
        table = pq.read_table(directory / file.path, partitioning=None)
        place = table.schema.get_field_index("timestamp")
        times = table.column(place).cast(pa.int64())  # Python has no such years as some times have
        rows = table.set_column(place, "timestamp", times).to_pylist()
        assert len(rows) == file.rows
        found.setdefault(day_of(file), []).extend(rows)
    return found


def at(moment: datetime, payload: bytes, **more: Any) -> bytes:
    return wrap(payload, Envelope(round(moment.timestamp() * 1000), 0, **more))


def test_rows_as_the_source_has_them(tmp_path: Path) -> None:
    plain = encode_set([b"one", b""])
    data = plain + encode_set([b"two", b"three"], GZIP)
    files = written(data, tmp_path)
    assert [file.rows for file in files] == [4]
    (rows,) = rows_in(tmp_path, files).values()
    assert [(row["offset"], row["idx"], row["value"]) for row in rows] == [
        (0, 0, b"one"),
        (13, 0, b""),
        (len(plain), 0, b"two"),
        (len(plain), 1, b"three"),
    ]
    assert {(row["partition"], row["timestamp"], row["key"]) for row in rows} == {(0, None, None)}
    assert day_of(files[0]) == TODAY
    assert written(b"", tmp_path) == []


def test_days_are_those_of_utc(tmp_path: Path) -> None:
    """Also before 1970; a message without an envelope, or with a time that has no day, is of today."""
    eve = datetime(2015, 5, 17, 23, 59, 59, 999000, UTC)
    old = datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)
    payloads = [
        at(eve, b"eve", key=b"k"),
        at(eve + timedelta(milliseconds=1), b"day"),
        b"bare",
        at(old, b"old"),
        wrap(b"far", Envelope(2**50, 0)),
        at(eve, b"again"),
    ]
    files = written(encode_set(payloads), tmp_path, envelope="true", failOnBadEnvelope="false")
    found = rows_in(tmp_path, files)
    assert {day: [row["value"] for row in rows] for day, rows in found.items()} == {
        date(2015, 5, 17): [b"eve", b"again"],
        date(2015, 5, 18): [b"day"],
        TODAY: [b"bare", b"far"],
        date(1969, 12, 31): [b"old"],
    }
    assert found[date(2015, 5, 17)][0]["timestamp"] == round(eve.timestamp() * 1e6)
    assert found[date(2015, 5, 17)][0]["key"] == b"k"


def test_memory_and_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More days than files may be open, in turns: files are finished early, rows wait for no more than their share."""
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", 4000)
    monkeypatch.setattr(table_files, "_MOST_OPEN_FILES", 3)
    small = {"envelope": "true", "fetch.size": "1000"}
    first = datetime(2015, 1, 1, tzinfo=UTC)
    payloads = [at(first + timedelta(days=number % 5), b"%099d" % number) for number in range(500)]
    files = written(encode_set(payloads), tmp_path, **small)
    assert len(files) > 5
    found = rows_in(tmp_path, files)
    assert len(found) == 5
    values = [int(row["value"]) for rows in found.values() for row in rows]
    assert sorted(values) == list(range(500))
    one_day = written(encode_set([at(first, b"%099d" % number) for number in range(500)]), tmp_path, **small)
    (file,) = one_day
    assert pq.ParquetFile(tmp_path / file.path).num_row_groups > 10
    assert [int(row["value"]) for row in rows_in(tmp_path, one_day)[day_of(file)]] == list(range(500))


@pytest.mark.parametrize(
    ("group_bytes", "waiting_bytes", "groups"),
    [
        (10**9, 10**9, {"a": [5], "b": [2]}),
        (160, 10**9, {"a": [2, 2, 1], "b": [2]}),
        (10**9, 400, {"a": [3, 2], "b": [2]}),
    ],
)
def test_rows_wait_for_a_row_group_and_for_no_more_than_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int, waiting_bytes: int, groups: dict[str, list[int]]
) -> None:
    """A file with enough for one writes it; where all files together have too much, the one with most of it does."""
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", group_bytes)
    monkeypatch.setattr(table_files, "MOST_WAITING_BYTES", waiting_bytes)
    one = pa.record_batch([pa.array(range(10), pa.int64())], names=["n"])  # 80 bytes
    files = table_files.TableFiles(tmp_path, one.schema, ("name",), "none")
    for name in "aababaa":
        files.add((name,), one)
    for file in files.finish():
        footer = pq.ParquetFile(tmp_path / file.path).metadata
        sizes = [footer.row_group(at).num_rows // 10 for at in range(footer.num_row_groups)]
        assert sizes == groups[file.values["name"] or ""]


def test_a_range_that_is_not_complete_gives_no_files(tmp_path: Path) -> None:
    data = encode_set([b"one", b"two"])
    with pytest.raises(RangeIncompleteError, match="could not be read beyond"):
        written(data, tmp_path, end=len(data) + 100)


def test_a_directory_that_this_worker_does_not_see(tmp_path: Path) -> None:
    """Before anything is read. The job takes it from Spark's text as what it is, and does not try again."""
    with pytest.raises(
        ConfigError, match=f"{tmp_path}/other: a worker does not see .*: is the directory shared"
    ) as caught:
        written(encode_set([b"one"]), tmp_path / "other")
    told = RuntimeError(f"Traceback\nfastlog.errors.ConfigError: {caught.value}\n")
    assert isinstance(own_error(told), ConfigError)


def test_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        written(encode_set([b"x" * 1000] * 1000), _full_disk(tmp_path))


def _full_disk(tmp_path: Path) -> Path:
    """A directory in which every file that is opened is ``/dev/full``."""

    class Full(type(tmp_path)):  # type: ignore[misc]
        def __truediv__(self, name: Any) -> Path:
            return Path("/dev/full")

    return Full(tmp_path)

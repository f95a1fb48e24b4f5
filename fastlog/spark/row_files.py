"""Parquet files out of the messages of one task. Runs in Spark's workers; needs pyarrow, knows no Spark.

Rows that need no expression of Spark's SQL take this way: through the Java machine and its Parquet writer each of them
costs about thirty times as much.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from fastlog.errors import ConfigError
from fastlog.spark.columns import ARROW_TYPES
from fastlog.spark.lake import sync
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import Task
from fastlog.spark.reading import read_rows

ROW_GROUP_BYTES = 64 * 2**20
"""About; what all files of one task hold in memory before it is written."""

_EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
"""Since 1970, those that every reader of tables can name. A time outside of them gives no day."""

_MOST_OPEN_FILES = 64
_NO_BOUNDS = ("key", "value")
"""Columns that nobody searches by their smallest and largest value, which may be as long as a message."""
_NO_DICTIONARY = ("offset", "value")
"""Columns whose values hardly ever come twice."""


class Written(NamedTuple):
    """A file that is complete and on the disk."""

    path: str
    """Below the directory that was given."""
    day: date
    rows: int


@dataclass(frozen=True)
class RowFiles:
    """How the messages of a task become files; goes to the workers. ``columns`` are those of the files, in order.

    Files are parted by the day, in UTC, of the time that a message carries; ``today`` is for those whose time has none.
    """

    directory: Path
    columns: tuple[str, ...]
    compression: str
    today: date
    options: SourceOptions

    def write(self, task: Task) -> list[Written]:
        """Write every message of a task; return when the files are on the disk.

        Files have names of their own, so that a task that runs twice at once does not disturb itself.

        Raises:
            ConfigError: this worker has no such directory.
            RangeIncompleteError, DataLossError: as ``read_task``.
            OSError: a file could not be written.
        """
        if not self.directory.is_dir():
            raise ConfigError(f"{self.directory}: a worker does not see what the driver made: is the directory shared?")
        files = _Files(self)
        try:
            for batch in read_rows(task, self.options, [(name, True) for name in self.columns]):
                for day, rows in self._by_day(batch):
                    files.add(day, rows)
            return files.finish()
        finally:
            files.close()

    def _by_day(self, batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
        times = batch.column("timestamp")
        if times.null_count == len(times):
            yield self.today, batch
            return
        # Without its zone a time is cast as what it is in UTC.
        days = times.cast(pa.timestamp("us")).cast(pa.date32()).cast(pa.int32())
        has_day = pc.and_(pc.greater_equal(days, FIRST_DAY), pc.less_equal(days, LAST_DAY))
        days = pc.if_else(pc.fill_null(has_day, False), days, pa.scalar((self.today - _EPOCH).days, pa.int32()))
        distinct = pc.unique(days).to_pylist()
        for day in distinct:
            rows = batch if len(distinct) == 1 else batch.filter(pc.equal(days, day))
            yield _EPOCH + timedelta(days=day), rows


class _File:
    """The file of one day, and the rows that wait for it."""

    def __init__(self, plan: RowFiles, day: date) -> None:
        self.day = day
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._name = f"{uuid.uuid4().hex}.parquet"
        self._path = plan.directory / self._name
        self._schema = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in plan.columns])
        self._writer = pq.ParquetWriter(
            self._path,
            self._schema,
            compression=plan.compression,
            use_dictionary=[name for name in plan.columns if name not in _NO_DICTIONARY],
            write_statistics=[name for name in plan.columns if name not in _NO_BOUNDS],
            write_page_checksum=True,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        self._rows += rows.num_rows

    def write(self) -> None:
        """What waits, as one row group."""
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._waiting, self.waiting_bytes = [], 0
            self._writer.write_table(table, row_group_size=table.num_rows)

    def finish(self) -> Written:
        self.write()
        self._writer.close()
        sync(self._path)
        return Written(self._name, self.day, self._rows)

    def close(self) -> None:
        self._writer.close()


class _Files:
    """The open files of a task, and those that are done."""

    def __init__(self, plan: RowFiles) -> None:
        self._plan = plan
        self._open: dict[date, _File] = {}
        self._done: list[Written] = []
        self._waiting_bytes = 0

    def add(self, day: date, rows: pa.RecordBatch) -> None:
        file = self._open.pop(day, None)
        if file is None:
            if len(self._open) == _MOST_OPEN_FILES:
                self._finish(next(iter(self._open)))
            file = _File(self._plan, day)
        self._open[day] = file  # the last one now: the first is the one that was not written to for longest
        before = file.waiting_bytes
        file.add(rows)
        self._waiting_bytes += file.waiting_bytes - before
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            largest = max(self._open.values(), key=lambda one: one.waiting_bytes)
            self._waiting_bytes -= largest.waiting_bytes
            largest.write()

    def finish(self) -> list[Written]:
        for day in list(self._open):
            self._finish(day)
        return self._done

    def close(self) -> None:
        """Whatever is still open is not wanted any more: another error than the one that led here tells nobody more."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.close()
        self._open = {}

    def _finish(self, day: date) -> None:
        file = self._open[day]
        self._waiting_bytes -= file.waiting_bytes
        self._done.append(file.finish())
        del self._open[day]


def row_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of a table of such files."""
    parts = [pa.field("topic", pa.string()), pa.field("date", pa.date32())]
    return pa.schema(parts + [pa.field(name, ARROW_TYPES[name]) for name in columns])

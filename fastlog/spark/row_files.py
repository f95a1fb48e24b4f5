"""Parquet files out of the messages of one task. Runs in Spark's workers; needs pyarrow, knows no Spark.

Rows that need no expression of Spark's SQL take this way: through the Java machine each of them costs many times as
much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from fastlog.spark.columns import ARROW_TYPES
from fastlog.spark.entries import NewFile
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import Task
from fastlog.spark.storage import TableLocation
from fastlog.spark.table_files import TableFiles
from fastlog.spark.task_rows import read_rows

_EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
"""Since 1970, those that every reader of tables can name. A time outside of them gives no day."""


@dataclass(frozen=True)
class RowFiles:
    """How the messages of a task become files; goes to the workers. ``columns`` are those of the files, in order.

    Files are parted by the day, in UTC, of the time that a message carries; ``today`` is for those whose time has none.
    """

    place: Path | TableLocation
    columns: tuple[str, ...]
    compression: str
    today: date
    options: SourceOptions

    def write(self, task: Task) -> list[NewFile]:
        """Write every message of a task; return when the files are on the disk, or in the object store.

        Raises:
            ConfigError: this worker has no such directory.
            RangeIncompleteError, DataLossError: as ``read_task``.
            OSError, TableUnavailableError: a file could not be written.
        """
        schema = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in self.columns])
        with closing(TableFiles(self.place, schema, ("topic", "date"), self.compression)) as files:
            for batch in read_rows(task, self.options, [(name, True) for name in self.columns]):
                for day, rows in self._by_day(batch):
                    files.add((task.topic, day.isoformat()), rows)
            return files.finish()

    def _by_day(self, batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
        days = days_of(batch.column("timestamp"), self.today)
        distinct = pc.unique(days).to_pylist()
        for day in distinct:
            yield day, batch if len(distinct) == 1 else batch.filter(pc.equal(days, pa.scalar(day, pa.date32())))


def days_of(times: pa.Array, today: date) -> pa.Array:
    """The day in UTC of each time, or ``today`` where there is none that has a name."""
    if times.null_count == len(times):
        return pa.repeat(pa.scalar(today, pa.date32()), len(times))
    # Without its zone a time is cast as what it is in UTC.
    days = times.cast(pa.timestamp("us")).cast(pa.date32()).cast(pa.int32())
    has_day = pc.and_(pc.greater_equal(days, FIRST_DAY), pc.less_equal(days, LAST_DAY))
    otherwise = pa.scalar((today - _EPOCH).days, pa.int32())
    return pc.if_else(pc.fill_null(has_day, False), days, otherwise).cast(pa.date32())


def row_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of a table of such files."""
    parts = [pa.field("topic", pa.string()), pa.field("date", pa.date32())]
    return pa.schema(parts + [pa.field(name, ARROW_TYPES[name]) for name in columns])

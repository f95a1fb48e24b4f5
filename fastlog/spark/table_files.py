"""Parquet files of a table, as tasks write them. Runs in Spark's workers; needs pyarrow, knows no Spark.

A file has a name of its own below the directory of its values, so that a task that runs twice at once does not disturb
itself.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from fastlog.spark.entries import HIVE_NULL, ActiveFile, NewFile, stats_of
from fastlog.spark.storage import Output, TableLocation

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem  # type: ignore[import-untyped]

ROW_GROUP_BYTES = 16 * 2**20
"""About, before they are written. Larger ones cost a writer as much processor time and more memory, and a reader who
looks for a few rows more of both (``python -m perf.spark_files``)."""
MOST_WAITING_BYTES = 64 * 2**20
"""About; what all files of one task hold in memory together."""

_MOST_OPEN_FILES = 64
_NO_BOUNDS = ("key", "value")
"""Columns that nobody searches by their smallest and largest value, which may be as long as a message."""
_NO_DICTIONARY = ("offset", "value")
"""Columns whose values hardly ever come twice."""

Values = tuple[str | None, ...]
"""Of the columns that a table is partitioned by, in their order, as Delta has them."""


def values_path(values: Mapping[str, str | None]) -> str:
    """Where the files of these values are, below the table: some readers take them from there, as Hive has it."""
    parts = (f"{name}={HIVE_NULL if value is None else quote(value, safe='')}/" for name, value in values.items())
    return "".join(parts)


def rows_of_file(
    store: FileSystem, file: ActiveFile, schema: pa.Schema, *, verified: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a file of a table in these columns: from it, from its values, or null where it was written before a
    column came. ``verified``: against the checksums of its pages, where it has some."""
    with pq.ParquetFile(file.path, filesystem=store, page_checksum_verification=verified) as opened:
        there = [name for name in schema.names if name in opened.schema_arrow.names and name not in file.values]
        for rows in opened.iter_batches(columns=there):
            columns = []
            for item in schema:
                if item.name in there:
                    columns.append(rows.column(item.name).cast(item.type))
                else:
                    value = pa.scalar(file.values.get(item.name), pa.string()).cast(item.type)
                    columns.append(pa.repeat(value, rows.num_rows))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _File:
    """The file of some values, and the rows that wait for it."""

    def __init__(self, files: TableFiles, values: Values) -> None:
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._values = dict(zip(files.partition_by, values, strict=True))
        self._output = files.output
        self._name = f"{values_path(self._values)}{uuid.uuid4().hex}.parquet"
        self._schema = files.schema
        names = files.schema.names
        where = self._output.open(self._name)
        with self._output.writing():
            self._writer = pq.ParquetWriter(
                where,
                self._schema,
                compression=files.compression,
                use_dictionary=[name for name in names if name not in _NO_DICTIONARY],
                write_statistics=[name for name in names if name not in _NO_BOUNDS],
                write_page_checksum=True,
            )

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        self._rows += rows.num_rows

    def write(self) -> None:
        """Write the rows that wait as one row group."""
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._waiting, self.waiting_bytes = [], 0
            with self._output.writing():
                self._writer.write_table(table, row_group_size=table.num_rows)
            self._output.begin_sync(self._name)

    def finish(self) -> NewFile:
        self.write()
        with self._output.writing():
            self._writer.close()
        size = self._output.finish(self._name)
        return NewFile(self._name, size, self._values, self._rows, stats_of(self._rows))

    def close(self) -> None:
        self._writer.close()


class TableFiles:
    """The open files of a task, and those that are done. For one thread."""

    def __init__(
        self, place: Path | TableLocation, schema: pa.Schema, partition_by: Sequence[str], compression: str
    ) -> None:
        """``schema``: of the files, without the columns that the table is partitioned by.

        Raises:
            ConfigError: this process has no such directory.
        """
        self.output = Output(place)
        self.schema = schema
        self.partition_by = tuple(partition_by)
        self.compression = compression
        self._open: dict[Values, _File] = {}
        self._done: list[NewFile] = []
        self._waiting_bytes = 0

    def add(self, values: Values, rows: pa.RecordBatch) -> None:
        """Rows whose columns are those of the schema, for the file of these values."""
        file = self._open.pop(values, None)
        if file is None:
            if len(self._open) == _MOST_OPEN_FILES:
                self._finish(next(iter(self._open)))
            file = _File(self, values)
        self._open[values] = file  # the last one now: the first is the one that was not written to for longest
        before = file.waiting_bytes
        file.add(rows)
        self._waiting_bytes += file.waiting_bytes - before
        if file.waiting_bytes < ROW_GROUP_BYTES:
            if self._waiting_bytes < MOST_WAITING_BYTES:
                return
            file = max(self._open.values(), key=lambda one: one.waiting_bytes)
        self._waiting_bytes -= file.waiting_bytes
        file.write()

    def finish(self) -> list[NewFile]:
        """Every file, complete and where it has to be: on the disk, or in the object store.

        Raises:
            OSError: one could not be written.
            TableUnavailableError: an object store does not answer, or refuses.
        """
        for values in list(self._open):
            self._finish(values)
        return self._done

    def close(self) -> None:
        """Whatever is still open is not wanted any more: another error than the one that led here tells nobody more."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.close()
        self._open = {}

    def _finish(self, values: Values) -> None:
        file = self._open[values]
        self._waiting_bytes -= file.waiting_bytes
        self._done.append(file.finish())
        del self._open[values]

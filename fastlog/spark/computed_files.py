"""Messages with columns that Spark's SQL works out, as Parquet files of a table. For drivers and workers.

What a row costs in the Java machine goes by its columns and bytes, there and back. So Spark gets the columns that
expressions name and the offset, and gives back the offset and what they make of it. Whole rows wait meanwhile in files
of the worker's machine, of one task, a few batches at a time: the process that reads a topic is another one than the
process that writes files, and both belong to the same task. That rows come back as they went is compared by offsets.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from fastlog.errors import TableWriteError
from fastlog.spark.entries import NewFile
from fastlog.spark.frame_files import PACKED, FrameFiles, packed_file, register, unpacked
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import Task
from fastlog.spark.row_files import days_of
from fastlog.spark.storage import TableLocation
from fastlog.spark.task_rows import read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OFFSET = "offset"
"""The column by which rows are known again; the first one of what Spark gives back."""


@dataclass(frozen=True)
class Computed:
    """The rows that are wanted: in ``schema``, that of the table, ``columns`` are those that Spark gives back, ``date``
    is the day of ``timestamp`` or ``today``, and all others are the source's. Spark gets ``needed`` behind the offset.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    needed: tuple[str, ...]
    today: date
    options: SourceOptions

    @property
    def kept(self) -> list[str]:
        """The columns of the source that are in the table."""
        return [name for name in self.schema.names if name not in (*self.columns, "date")]


@dataclass(frozen=True)
class ComputedFiles:
    """How the messages of tasks become files; goes to the workers."""

    place: Path | TableLocation
    partition_by: tuple[str, ...]
    compression: str
    wanted: Computed
    run: str
    """Of this batch alone, in the names of what waits."""

    def read(self, task: Task, place: Path | None = None) -> Iterator[pa.RecordBatch]:
        """What Spark is given of the messages of a task; their rows wait in ``place``. Raises as ``read_rows``."""
        wanted = self.wanted
        names = dict.fromkeys((OFFSET, *wanted.needed, *wanted.kept))
        waiting = Waiting(place or _waiting_place(self.run))
        try:
            for batch in read_rows(task, wanted.options, [(name, True) for name in names]):
                waiting.put(batch.select(wanted.kept))
                yield batch.select([OFFSET, *wanted.needed])
        except BaseException:
            waiting.close()
            raise

    def write(self, batches: Iterator[pa.RecordBatch], place: Path | None = None) -> list[NewFile]:
        """Write the rows of a task, with what Spark has given back of them.

        Raises:
            TableWriteError: it is not of the rows that wait, in their order.
        """
        with closing(Waiting(place or _waiting_place(self.run))) as waiting:
            files = FrameFiles(self.place, self.wanted.schema, self.partition_by, self.compression)
            made = files.write(rows for batch in batches for rows in self._joined(batch, waiting))
            if waiting.left:
                raise TableWriteError("Spark gave back fewer rows than it was given")
            return made

    def _joined(self, batch: pa.RecordBatch, waiting: Waiting) -> Iterator[pa.RecordBatch]:
        wanted = self.wanted
        at = 0
        while at < batch.num_rows:
            rows = waiting.take(batch.num_rows - at)
            part = batch.slice(at, 0 if rows is None else rows.num_rows)
            if rows is None or not part.column(0).equals(rows.column(OFFSET)):
                raise TableWriteError("Spark gave back other rows than it was given")
            at += rows.num_rows
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            columns |= {name: part.column(1 + number) for number, name in enumerate(wanted.columns)}
            columns["date"] = days_of(columns["timestamp"], wanted.today)
            names = wanted.schema.names
            yield pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)


class Waiting:
    """Batches that wait for what Spark makes of them, each in a file of one directory. One side puts, one takes."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._number = 0
        self._batch: pa.RecordBatch | None = None

    def put(self, batch: pa.RecordBatch) -> None:
        """The rows of the next batch; it is there for the other side when this returns."""
        if not self._number:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with pa.OSFile(str(self._file), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
                stream.write_batch(batch)
        except FileNotFoundError:
            return  # the other side has given up: what it says of that is the error of the task
        self._number += 1

    def take(self, most: int) -> pa.RecordBatch | None:
        """The next rows, ``most`` of them at the most; None where there are no more."""
        if self._batch is None:
            if not self._file.exists():
                return None
            with pa.memory_map(str(self._file)) as file:  # what was read of it keeps it
                self._batch = pa.ipc.open_stream(file).read_next_batch()
            self._file.unlink()
            self._number += 1
        found = self._batch.slice(0, most)
        self._batch = self._batch.slice(most) if most < self._batch.num_rows else None
        return found

    @property
    def left(self) -> bool:
        """Whether there are rows that were not taken."""
        return self._batch is not None or self._file.exists()

    def close(self) -> None:
        """Discard what was not taken."""
        shutil.rmtree(self._place, ignore_errors=True)

    @property
    def _file(self) -> Path:
        return self._place / str(self._number)


class _ComputedReader(DataSourceReader):
    """Spark's way to ``ComputedFiles.read``; a task of Spark's for each of ours."""

    def __init__(self, files: ComputedFiles, tasks: Sequence[Task]) -> None:
        self._files = files
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._files.read(partition.value)


class ComputedSource(DataSource):
    """What Spark reads with; as ``FilesSource``."""

    @classmethod
    def name(cls) -> str:
        return "fastlog_table_rows"

    def reader(self, schema: StructType) -> _ComputedReader:
        return _ComputedReader(*unpacked(self.options))


def read_needed(session: SparkSession, directory: str, files: ComputedFiles, tasks: Sequence[Task]) -> DataFrame:
    """What expressions need of the messages of tasks, behind the offset, as Spark wants it."""
    from fastlog.spark.schema import ddl

    register(session, ComputedSource)
    reader = session.read.format(ComputedSource.name()).schema(ddl([OFFSET, *files.wanted.needed]))
    return reader.option(PACKED, packed_file(directory, (files, tasks))).load()


def _waiting_place(run: str) -> Path:
    """Where the rows of the task wait that this process works for: among what Spark removes with its executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    below = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    return Path(below) / f"fastlog-{run}-{context.taskAttemptId()}"  # gone as a whole with the task

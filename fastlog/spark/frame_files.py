"""Data frames of Spark as Parquet files of a table, and the other way round, by Arrow. For drivers and workers.

Neither needs a jar for Delta or for an object store, and no row becomes an object of Java or of Python: Spark hands
over its columns as they are.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import pickle
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from fastlog.spark.entries import ActiveFile, NewFile
from fastlog.spark.environment import activate
from fastlog.spark.storage import TableLocation
from fastlog.spark.table_files import TableFiles, Values, rows_of_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PACKED = "packed"
"""The option that names what a source or sink is to know."""
_BATCH_BYTES = 16 * 2**20
_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"


@dataclass(frozen=True)
class FrameFiles:
    """How the rows of a frame become files; goes to the workers. ``schema`` is that of the frame."""

    place: Path | TableLocation
    schema: pa.Schema
    partition_by: tuple[str, ...]
    compression: str

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[NewFile]:
        """Write the rows of one task. Raises as ``TableFiles``."""
        rest = [name for name in self.schema.names if name not in self.partition_by]
        schema = pa.schema([self.schema.field(name) for name in rest])
        with closing(TableFiles(self.place, schema, self.partition_by, self.compression)) as files:
            for batch in batches:
                for values, rows in self._parted(batch.cast(self.schema)):
                    files.add(values, rows.select(rest))
            return files.finish()

    def _parted(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        """The rows of each combination of values, in their order."""
        if not batch.num_rows:
            return
        if not self.partition_by:
            yield (), batch
            return
        columns = [batch.column(name).dictionary_encode("encode") for name in self.partition_by]
        texts = [_as_text(column.dictionary).to_pylist() for column in columns]
        if all(len(text) == 1 for text in texts):
            yield tuple(text[0] for text in texts), batch
            return
        keys = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
        for column in columns:
            keys = pc.add(pc.multiply(keys, len(column.dictionary)), column.indices.cast(pa.int64()))
        for key in pc.unique(keys):
            first = pc.index(keys, key).as_py()
            values = tuple(text[column.indices[first].as_py()] for text, column in zip(texts, columns, strict=True))
            yield values, batch.filter(pc.equal(keys, key))


def _as_text(column: pa.Array) -> pa.Array:
    """Values as Delta has them of a column that a table is partitioned by: an empty text is null there."""
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


class Files(Protocol):
    """What writes the rows of one task in a worker, where it is sent."""

    def write(self, batches: Iterator[pa.RecordBatch], /) -> list[NewFile]:
        """Write them; returns the files, which are where they have to be."""


class _Made(WriterCommitMessage):
    """The files that a task has written."""

    def __init__(self, files: list[NewFile]) -> None:
        self.files = files


class _Writer(DataSourceArrowWriter):
    """Spark's way to ``Files``; what tasks tell goes to a file of the driver, which is in another process."""

    def __init__(self, files: Files, told: str) -> None:
        self._files = files
        self._told = told

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Made:
        return _Made(self._files.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        made = [list(file) for message in messages if isinstance(message, _Made) for file in message.files]
        Path(self._told).write_text(json.dumps(made))


class FilesSink(DataSource):
    """What Spark writes with: a writer that a file of the driver holds, since options stand in plans and logs."""

    @classmethod
    def name(cls) -> str:
        return "fastlog_table_sink"

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:
        return _Writer(*unpacked(self.options))


def write_frame(frame: DataFrame, files: Files) -> list[NewFile]:
    """Run a frame, and let the workers write its rows. Raises what Spark makes of the errors of ``files``."""
    session = frame.sparkSession
    before = session.conf.get(_SETTING, None)
    session.conf.set(_SETTING, str(_BATCH_BYTES))  # rows may be long, and a batch is held as one
    with tempfile.TemporaryDirectory(prefix="fastlog-") as directory:
        told = Path(directory) / "files"
        try:
            register(session, FilesSink)
            writer = frame.write.format(FilesSink.name()).mode("append")
            writer.option(PACKED, packed_file(directory, (files, str(told)))).save()
        finally:
            session.conf.unset(_SETTING) if before is None else session.conf.set(_SETTING, before)
        return [NewFile(*file) for file in json.loads(told.read_text())]


class _TableReader(DataSourceReader):
    """Spark's way to the files of a table; goes to the workers."""

    def __init__(self, location: TableLocation, files: Sequence[ActiveFile], schema: pa.Schema, tasks: int) -> None:
        self._location = location
        self._schema = schema
        parts = [list(files[number::tasks]) for number in range(tasks)]
        self._parts = [InputPartition(part) for part in parts if part]

    def partitions(self) -> Sequence[InputPartition]:
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        store = self._location.filesystem()
        for file in partition.value:
            with self._location.reached():
                yield from rows_of_file(store, file, self._schema)


class FilesSource(DataSource):
    """What Spark reads with; as ``FilesSink``."""

    @classmethod
    def name(cls) -> str:
        return "fastlog_table_source"

    def reader(self, schema: StructType) -> _TableReader:
        return _TableReader(*unpacked(self.options))


def read_files(
    spark: SparkSession, location: TableLocation, files: Sequence[ActiveFile], schema: pa.Schema
) -> DataFrame:
    """The rows of files of a table, in these columns. What Spark does not need of them it reads all the same."""
    from pyspark.sql.pandas.types import from_arrow_schema

    tasks = max(1, spark.sparkContext.defaultParallelism * 4)
    packed = packed_file(_of_this_process(), (location, list(files), schema, tasks))
    register(spark, FilesSource)
    reader = spark.read.format(FilesSource.name()).schema(from_arrow_schema(schema, prefer_timestamp_ntz=True))
    return reader.option(PACKED, packed).load()


@functools.cache
def _of_this_process() -> str:
    """A directory for what frames need that may run at any time; nobody else's to read, and gone with the process."""
    directory = tempfile.TemporaryDirectory(prefix="fastlog-")
    atexit.register(directory.cleanup)
    return directory.name


def packed_file(directory: str, given: tuple[Any, ...]) -> str:
    """The path of a file with what Spark's Python processes on the driver's machine are to know."""
    path = Path(directory) / uuid.uuid4().hex
    path.write_bytes(pickle.dumps(given))
    return str(path)


def unpacked(options: Mapping[str, str]) -> tuple[Any, ...]:
    """What ``packed_file`` has put into the file that the options name."""
    found: tuple[Any, ...] = pickle.loads(Path(options[PACKED]).read_bytes())
    return found


def register(session: SparkSession, source: type[DataSource]) -> None:
    """Let the session, and this thread, find a source by its name."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    activate(session)
    for one in (session, SparkSession.getActiveSession()):
        if one is not None:
            with contextlib.suppress(AnalysisException):  # it is there already: which it is not is found out at its use
                one.dataSource.register(source)

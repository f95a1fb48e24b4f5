"""``format("fastlog")``: Spark's classes around what the other modules decide. Needs pyspark 4.2 or newer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fastlog.errors import ConfigError
from fastlog.spark import schema as columns
from fastlog.spark.cluster import QueryCluster
from fastlog.spark.options import SourceOptions, parse_options
from fastlog.spark.plans import BatchPlan, StreamPlan, columns_for
from fastlog.spark.progress import GroupProgress

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

Fields = list[tuple[str, bool]]


class FastlogDataSource(DataSource):
    """Spark makes one for each query, in a process of its own, and sends copies to others."""

    @classmethod
    def name(cls) -> str:
        """The name that ``format`` takes."""
        return "fastlog"

    def schema(self) -> str:
        """The columns when the user gives no schema. Whether it is for a stream is not known here.

        Where no option chooses them the brokers are asked of which kind the topics are.
        """
        options = parse_options(self.options, streaming=None)
        if options.schema is None and not options.columns_chosen:
            with closing(QueryCluster(options)) as cluster:
                options = options.of_set(columns_for(cluster.bounds()) or columns.FASTLOG)
        return columns.ddl(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return FastlogReader(*_with_fields(schema, parse_options(self.options, streaming=False)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        return FastlogStreamReader(*_with_fields(schema, parse_options(self.options, streaming=True)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``frame.write``."""
        # Here, as a producer is much to load for the processes that read: Spark starts several for each query.
        from fastlog.spark.sink import FastlogWriter
        from fastlog.spark.sink_options import parse_sink_options

        return FastlogWriter(parse_sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For ``frame.writeStream``."""
        from fastlog.spark.sink import FastlogStreamWriter
        from fastlog.spark.sink_options import parse_sink_options

        return FastlogStreamWriter(parse_sink_options(self.options), schema, overwrite)


class FastlogReader(DataSourceReader):
    """A batch read. ``partitions`` runs on the driver, ``read`` on copies in the workers."""

    def __init__(self, options: SourceOptions, fields: Fields) -> None:
        self._options = options
        self._fields = fields

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Spark takes nothing but a list."""
        with closing(QueryCluster(self._options)) as cluster:
            return [InputPartition(task) for task in BatchPlan(self._options, cluster).tasks()]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a task; none for the empty one that Spark makes of an empty list."""
        return _read(partition, self._options, self._fields)


class FastlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. One is in a process beside the driver and plans; copies of it read in the workers."""

    def __init__(self, options: SourceOptions, fields: Fields) -> None:
        self._options = options
        self._fields = fields
        self._made: tuple[QueryCluster, StreamPlan, GroupProgress | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out connections: a copy makes its own."""
        return {**self.__dict__, "_made": None}

    def initialOffset(self) -> dict[str, Any]:
        """See ``StreamPlan.initial``."""
        return self._plan.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What ``maxBytesPerTrigger`` or ``maxOffsetsPerTrigger`` says."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        most = options.max_bytes_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """See ``StreamPlan.prepare``."""
        self._plan.prepare()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """See ``StreamPlan.latest``."""
        of_rows = isinstance(limit, ReadMaxRows) and self._options.max_offsets_per_trigger is not None
        if not (of_rows or isinstance(limit, ReadAllAvailable | ReadMaxBytes)):
            raise ConfigError(f"this source cannot limit a batch by {type(limit).__name__}")
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        plan = self._plan
        # Spark asks for the next batch when the one before is written down as done, and this is the only sign of the
        # last one: commit() for it comes with the next batch, or never.
        self._show(start)
        found: dict[str, Any] = plan.latest(start, most) if rows is None else plan.latest(start, None, rows)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """See ``StreamPlan.report``."""
        return self._plan.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch: its end says all, and the start that Spark remembers for a first batch is a word.

        Spark also tells a query that begins again what its log ends with, as a batch from there to there. That one may
        be done, and retention may have removed what it read.
        """
        if start == end:
            return []
        return [InputPartition(task) for task in self._plan.tasks(end)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of a task as Arrow batches."""
        return _read(partition, self._options, self._fields)

    def commit(self, end: dict[str, Any]) -> None:
        """Show it where a group's progress is looked for. The checkpoint keeps the place; nothing depends on this."""
        self._show(end)

    def stop(self) -> None:
        """Close the connections. Spark does not always call it: the process just ends."""
        made, self._made = self._made, None
        if made is not None:
            made[0].close()

    @property
    def _plan(self) -> StreamPlan:
        return self._parts()[1]

    def _show(self, end: dict[str, Any]) -> None:
        progress = self._parts()[2]
        if progress is not None:
            progress.show(end)

    def _parts(self) -> tuple[QueryCluster, StreamPlan, GroupProgress | None]:
        if self._made is None:
            cluster = QueryCluster(self._options)
            progress = None
            if self._options.group is not None and cluster.coordination is not None:
                progress = GroupProgress(cluster.coordination, self._options.group)
                progress.check()
            self._made = cluster, StreamPlan(self._options, cluster), progress
        return self._made


def _read(partition: InputPartition, options: SourceOptions, fields: Fields) -> Iterator[pyarrow.RecordBatch]:
    task = partition.value
    if task is None:
        return
    from fastlog.spark.task_rows import read_rows  # pyarrow and numpy, in the workers alone

    yield from read_rows(task, options, fields)


def _with_fields(schema: StructType, options: SourceOptions) -> tuple[SourceOptions, Fields]:
    """Name of each column and whether Spark takes it for one that may be null; the user may have given the schema."""
    columns.check_schema([(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields])
    names = tuple(field.name for field in schema.fields)
    columns.check_envelope(names, options.envelope)
    if options.columns_chosen and names != options.columns:
        raise ConfigError(
            f"columns: {', '.join(options.columns)} and the schema {', '.join(names)} contradict each other"
        )
    chosen = options.columns_chosen or columns.usual_set(names) is None
    fields = [(field.name, field.nullable) for field in schema.fields]
    return replace(options, columns=names, columns_chosen=chosen), fields

"""``format("fastlog")``: Spark's classes around what the other modules decide. Needs pyspark 4.1 or newer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from fastlog.errors import ConfigError
from fastlog.spark import schema as columns
from fastlog.spark.capabilities import check_limits, limits_batches
from fastlog.spark.cluster import QueryCluster
from fastlog.spark.options import SourceOptions, parse_options
from fastlog.spark.plans import BatchPlan, columns_for
from fastlog.spark.stream_reader import FastlogStreamReader, Fields, read_partition

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]


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
        options = self._parsed(streaming=None)
        if options.schema is None and not options.columns_chosen:
            with closing(QueryCluster(options)) as cluster:
                options = options.of_set(columns_for(cluster.bounds()) or columns.FASTLOG)
        return columns.ddl(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return FastlogReader(*_with_fields(schema, self._parsed(streaming=False)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        given = _with_fields(schema, self._parsed(streaming=True))
        if not limits_batches():
            return FastlogStreamReader(*given)
        from fastlog.spark.limited_streams import LimitedStreamReader  # not to be imported before Spark 4.2

        return LimitedStreamReader(*given)

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

    def _parsed(self, *, streaming: bool | None) -> SourceOptions:
        """As ``parse_options``; raises also for what this Spark cannot do."""
        options = parse_options(self.options, streaming=streaming)
        check_limits(options)
        return options


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
        return read_partition(partition, self._options, self._fields)


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

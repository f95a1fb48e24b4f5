"""A source of Spark's that returns one prebuilt batch again and again: what Spark takes from any source in Python here.

It does nothing that a source has to do, no reading, checking or copying, so it is the ceiling of counting a topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fastlog.spark.options import SourceOptions
from perf.replay.scenarios import ENTRY_OVERHEAD

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

NAME = "prebuilt"
BATCH_ROWS = 10_000
_TASK_BYTES = SourceOptions.max_bytes_per_partition


class PrebuiltSource(DataSource):
    """The options ``rows`` and ``value_bytes``. As many tasks as the source of fastlog makes of so many messages."""

    @classmethod
    def name(cls) -> str:
        """The name that ``format`` takes."""
        return NAME

    def schema(self) -> str:
        """The columns that are read of a topic."""
        return "offset bigint, value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the prebuilt batches."""
        return _Reader(int(self.options["rows"]), int(self.options["value_bytes"]))


class _Part(InputPartition):
    def __init__(self, first: int, rows: int) -> None:
        super().__init__(first)
        self.rows = rows


class _Reader(DataSourceReader):
    def __init__(self, rows: int, value_bytes: int) -> None:
        self._rows = rows
        self._value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        most = max(1, _TASK_BYTES // (self._value_bytes + ENTRY_OVERHEAD))
        return [_Part(first, min(most, self._rows - first)) for first in range(0, self._rows, most)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, _Part)
        batch = _batch(self._value_bytes, self._value_bytes + ENTRY_OVERHEAD)
        whole, rest = divmod(partition.rows, BATCH_ROWS)
        for _ in range(whole):
            yield batch
        if rest:
            yield batch.slice(0, rest)


def _batch(value_bytes: int, entry_bytes: int) -> pyarrow.RecordBatch:
    import pyarrow

    ends = np.arange(BATCH_ROWS + 1, dtype=np.int32) * value_bytes
    values = np.random.default_rng(1).bytes(BATCH_ROWS * value_bytes)
    offsets = pyarrow.array(np.arange(BATCH_ROWS, dtype=np.int64) * entry_bytes)
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(values)]
    column = pyarrow.Array.from_buffers(pyarrow.binary(), BATCH_ROWS, buffers)
    return pyarrow.RecordBatch.from_arrays([offsets, column], names=["offset", "value"])

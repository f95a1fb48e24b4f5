"""Writing with ``format("fastlog")``: Spark's classes around ``packing``. Needs pyspark 4.1 or newer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from fastlog.errors import ConfigError
from fastlog.spark.sink_options import SinkOptions, check_columns

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

    from fastlog.producer.rows import Stretch
    from fastlog.spark.packing import WriteReport

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenRows(WriterCommitMessage):
    """What one task wrote: messages and the bytes of their values, all of them confirmed as ``acks`` says.

    ``partitions`` are by topic, broker id and number; an offset there is -1 where the broker did not tell it.
    """

    messages: int
    value_bytes: int
    partitions: dict[tuple[str, int, int], Stretch]
    possible_duplicates: int


class SinkWriter:
    """What a batch write and a streaming one share. A copy of it writes in each task."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("mode: a topic can only be appended to; write with mode('append')")
        self._options = options
        self._columns = check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WrittenRows:
        """Write the rows of a task; returns when all of them are confirmed."""
        from fastlog.spark.packing import write_batches  # pyarrow and numpy, in the workers alone

        report: WriteReport = write_batches(iterator, self._options, self._columns)
        return WrittenRows(*report)


class FastlogWriter(SinkWriter, DataSourceArrowWriter):
    """The writer of ``frame.write``."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say what was written; it is in the topics since the tasks ended."""
        log.info("event=written %s", _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Say what is in the topics all the same: nothing of it can be taken back."""
        log.warning("event=write_failed stays=yes %s", _summary(messages))


class FastlogStreamWriter(SinkWriter, DataSourceStreamArrowWriter):
    """The writer of ``frame.writeStream``."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """See ``FastlogWriter``."""
        log.info("event=written batch=%d %s", batchId, _summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """See ``FastlogWriter``."""
        log.warning("event=write_failed batch=%d stays=yes %s", batchId, _summary(messages))


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    found = [message for message in messages if isinstance(message, WrittenRows)]
    return (
        f"tasks={len(found)} failed_tasks={len(messages) - len(found)}"
        f" messages={sum(message.messages for message in found)}"
        f" value_bytes={sum(message.value_bytes for message in found)}"
        f" possible_duplicates={sum(message.possible_duplicates for message in found)}"
    )

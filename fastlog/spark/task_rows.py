"""The rows of one task, of either kind of topic. Runs in Spark's workers; needs pyarrow, knows no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa  # type: ignore[import-untyped]

from fastlog.spark.columns import BatchMaker
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import Task
from fastlog.spark.ranges import read_task
from fastlog.spark.record_columns import RecordMaker
from fastlog.spark.record_ranges import read_record_task


def read_rows(task: Task, options: SourceOptions, fields: Sequence[tuple[str, bool]]) -> Iterator[pa.RecordBatch]:
    """The rows of a task in these columns, each with whether it may be null. Raises as ``read_task``."""
    if task.records is not None:
        maker = RecordMaker(fields, task.topic, task.broker, task.partition)
        yield from read_record_task(task, options, maker)
        return
    messages = BatchMaker(
        fields,
        task.topic,
        task.broker,
        task.partition,
        envelope=options.envelope,
        fail=options.fail_on_bad_envelope,
    )
    yield from read_task(task, options, messages)

"""Streams of ``format("fastlog")``: what every Spark asks of them, and what Spark 4.1 alone does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from fastlog.errors import ConfigError
from fastlog.spark.cluster import QueryCluster
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import StreamPlan
from fastlog.spark.progress import GroupProgress

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

Fields = list[tuple[str, bool]]
"""Name of each column, and whether Spark takes it for one that may be null."""


class FastlogStreamReader(DataSourceStreamReader):
    """A streaming query. One is in a process beside the driver and plans; copies of it read in the workers.

    This is what Spark 4.1 asks. Newer ones ask ``LimitedStreamReader``.
    """

    def __init__(self, options: SourceOptions, fields: Fields) -> None:
        self.options = options
        self._fields = fields
        self._made: tuple[QueryCluster, StreamPlan, GroupProgress | None] | None = None
        self._reached: dict[str, Any] | None = None
        self._was_asked = False
        self._has_planned = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out connections: a copy makes its own."""
        return {**self.__dict__, "_made": None}

    def initialOffset(self) -> dict[str, Any]:
        """See ``StreamPlan.initial``."""
        return self.plan.initial()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """The end of a batch with all that there is behind the one before; that one's end when there is nothing new.

        Spark does not say where that was. But it takes every end that it is given, and a query that begins again is
        told where its log ends before it is asked for more, see ``partitions``. Nor does Spark say whether it will ask
        again (it does not for ``availableNow``), so the first answer is all that was appended, once it is flushed.
        """
        start = self.initialOffset() if self._reached is None else self._reached
        self.show(start)
        if not self._was_asked:
            self.plan.prepare()
        self._reached = self.plan.latest(start, None)
        self._was_asked = True
        self.plan.go_on()
        return self._reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch: its end says all, and the start that Spark remembers for a first batch is a word.

        Spark also tells a query that begins again what its log ends with, as a batch from there to there. That one may
        be done, and retention may have removed what it read.
        """
        if start == end and self._reached is not None and not self._has_planned:
            raise ConfigError(
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled: set it to false: with it Spark 4.1 asks how"
                " far a batch goes before it says where the query goes on"
            )
        self._has_planned = True
        if self._reached is None:
            self._reached = end
        if start == end:
            return []
        return [InputPartition(task) for task in self.plan.tasks(end)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of a task as Arrow batches."""
        return read_partition(partition, self.options, self._fields)

    def commit(self, end: dict[str, Any]) -> None:
        """Show it where a group's progress is looked for. The checkpoint keeps the place; nothing depends on this."""
        self.show(end)

    def stop(self) -> None:
        """Close the connections. Spark does not always call it: the process just ends."""
        made, self._made = self._made, None
        if made is not None:
            made[0].close()

    @property
    def plan(self) -> StreamPlan:
        """Of this query; made when it is first asked for."""
        return self._parts()[1]

    def show(self, end: dict[str, Any]) -> None:
        """Show how far the query has come, where a group's progress is looked for."""
        progress = self._parts()[2]
        if progress is not None:
            progress.show(end)

    def _parts(self) -> tuple[QueryCluster, StreamPlan, GroupProgress | None]:
        if self._made is None:
            cluster = QueryCluster(self.options)
            progress = None
            if self.options.group is not None and cluster.coordination is not None:
                progress = GroupProgress(cluster.coordination, self.options.group)
                progress.check()
            self._made = cluster, StreamPlan(self.options, cluster), progress
        return self._made


def read_partition(partition: InputPartition, options: SourceOptions, fields: Fields) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a task; none for the empty one that Spark makes of an empty list."""
    task = partition.value
    if task is None:
        return
    from fastlog.spark.task_rows import read_rows  # pyarrow and numpy, in the workers alone

    yield from read_rows(task, options, fields)

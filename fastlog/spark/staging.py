"""How rows become files that a transaction can add: tasks write beside the table, the driver moves.

The files are on the disk before they are part of the table: its log says that their rows will not come again.

Each writer holds a lock and has a directory of its own below the table's ``_fastlog``; what a killed one left there is
removed by the next. Files are moved to where the table keeps them only once all are written. One that is moved and
never added is seen by no reader, and goes with a full ``vacuum``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from fastlog.errors import ConfigError, TableConflictError
from fastlog.spark.lake import HIVE_NULL, Lake, NewFile, spark_path, stats_of, sync
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import Task

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

COMPRESSIONS = ("snappy", "zstd", "gzip", "none")
CHECKPOINT = "checkpoint"
"""In the work directory of a table: what a query keeps that fills it."""

_MOST_OPEN_FILES = 64
_NOT_SHARED = "{}: the driver does not see what the tasks wrote: is the directory shared?"
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # its default is one that Delta does not know
    # Rows go to the files of their partitions as they come, instead of being sorted by partition before.
    "spark.sql.maxConcurrentOutputFileWriters": str(_MOST_OPEN_FILES),
    "spark.sql.optimizer.plannedWrite.enabled": "false",
}


class Staging:
    """Writes files for one table. For one thread of a driver."""

    def __init__(self, lake: Lake, partition_by: Sequence[str], compression: str) -> None:
        self._lake = lake
        self._partition_by = list(partition_by)
        self._compression = compression

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the table's writers; what dead ones left is removed.

        Raises:
            TableConflictError: another one lives, on this machine or where the file system shares locks.
        """
        work = self._lake.work_directory
        work.mkdir(parents=True, exist_ok=True)
        with (work / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise TableConflictError(
                    f"{self._lake.directory}: another process fills this table (pid {lock.read().strip() or 'unknown'})"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            for left in work.iterdir():
                if left.is_dir() and left.name != CHECKPOINT:
                    shutil.rmtree(left, ignore_errors=True)
            yield

    def write(self, frame: DataFrame) -> list[NewFile]:
        """Run the frame, and return its files, moved to where they stay.

        Raises:
            ConfigError: the driver does not see what the tasks wrote.
        """
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        for name, value in _SETTINGS.items():
            frame.sparkSession.conf.set(name, value)
        with self._place() as place:
            writer = frame.write.option("compression", self._compression)
            if self._partition_by:
                writer = writer.partitionBy(*self._partition_by)
            writer.parquet(spark_path(place))
            if not (place / "_SUCCESS").exists():
                raise ConfigError(_NOT_SHARED.format(place))
            found = []
            for path in sorted(place.rglob("*.parquet")):
                footer = pq.read_metadata(path)
                if footer.num_rows:
                    values = _values_in(path.relative_to(place))
                    found.append((path, values, footer.num_rows, stats_of(footer.num_rows)))
            return self._moved(found)

    def write_messages(
        self, context: SparkContext, tasks: Sequence[Task], options: SourceOptions, columns: Sequence[str], today: date
    ) -> list[NewFile]:
        """Let the workers write the messages of tasks as they are, and return the files, moved to where they stay.

        For a table that is partitioned by topic and date: that of a message's time in UTC, or ``today``. ``columns``
        are the others.

        Raises:
            ConfigError: the driver does not see what the tasks wrote.
        """
        from fastlog.spark.row_files import RowFiles

        if not tasks:
            return []
        with self._place() as place:
            place.mkdir()
            files = RowFiles(place, tuple(columns), self._compression, today, options)
            found = []
            for task, made in zip(
                tasks, context.parallelize(tasks, len(tasks)).map(files.write).collect(), strict=True
            ):
                for name, day, rows in made:
                    if not (place / name).exists():
                        raise ConfigError(_NOT_SHARED.format(place))
                    values = {"topic": task.topic, "date": day.isoformat()}
                    found.append((place / name, values, rows, stats_of(rows)))
            return self._moved(found)

    def discard(self, files: Sequence[NewFile]) -> None:
        """Remove files that were not added."""
        for file in files:
            (self._lake.directory / file.path).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        """A path below the table for a directory of tasks' files, which is gone afterwards."""
        place = self._lake.work_directory / uuid.uuid4().hex
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _moved(self, found: Sequence[tuple[Path, Mapping[str, str | None], int, str]]) -> list[NewFile]:
        """Move files, with their values, rows and statistics, to where the table keeps them: all of them or none."""
        moved: list[NewFile] = []
        try:
            self._move(found, moved)
        except BaseException:
            self.discard(moved)
            raise
        return moved

    def _move(self, found: Sequence[tuple[Path, Mapping[str, str | None], int, str]], moved: list[NewFile]) -> None:
        directories = set()
        for path, values, rows, stats in found:
            target = self._lake.directory
            for name, value in values.items():
                # As Hive has it: some readers take the values from the path, though the table's log has them.
                target /= f"{name}={HIVE_NULL if value is None else quote(value, safe='')}"
                directories.add(target.parent)
            directories.add(target)
            target.mkdir(parents=True, exist_ok=True)
            target /= path.name
            sync(path)
            path.rename(target)
            size = target.stat().st_size
            moved.append(NewFile(str(target.relative_to(self._lake.directory)), size, values, rows, stats))
        for directory in directories:
            sync(directory)


def _values_in(path: Path) -> dict[str, str | None]:
    """What the directories of a path say about the columns that a frame was partitioned by."""
    values = {}
    for part in path.parts[:-1]:
        name, _, text = part.partition("=")
        values[unquote(name)] = None if text == HIVE_NULL else unquote(text)
    return values


def arrow_schema(frame: DataFrame) -> pyarrow.Schema:
    """The columns of a table for a frame; each may be null there."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(frame.schema, timezone="UTC")])

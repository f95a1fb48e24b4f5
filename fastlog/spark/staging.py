"""How the rows of a data frame become files that a transaction can add: tasks write beside the table, the driver moves.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from fastlog.errors import ConfigError, TableConflictError
from fastlog.spark.lake import HIVE_NULL, Lake, NewFile, spark_path, stats_of

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame

COMPRESSIONS = ("snappy", "zstd", "gzip", "none")
CHECKPOINT = "checkpoint"
"""In the work directory of a table: what a query keeps that fills it."""

_MOST_OPEN_FILES = 64
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
        place = self._lake.work_directory / uuid.uuid4().hex
        try:
            writer = frame.write.option("compression", self._compression)
            if self._partition_by:
                writer = writer.partitionBy(*self._partition_by)
            writer.parquet(spark_path(place))
            if not (place / "_SUCCESS").exists():
                raise ConfigError(f"{place}: the driver does not see what the tasks wrote: is the directory shared?")
            found = []
            for path in sorted(place.rglob("*.parquet")):
                footer = pq.read_metadata(path)
                if footer.num_rows:
                    found.append((path, footer.num_rows, stats_of(footer)))
            return [self._moved(place, path, rows, stats) for path, rows, stats in found]
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def discard(self, files: Sequence[NewFile]) -> None:
        """Remove files that were not added."""
        for file in files:
            (self._lake.directory / file.path).unlink(missing_ok=True)

    def _moved(self, place: Path, path: Path, rows: int, stats: str) -> NewFile:
        values = {}
        target = self._lake.directory
        for part in path.relative_to(place).parts[:-1]:
            name, _, text = part.partition("=")
            values[unquote(name)] = None if text == HIVE_NULL else unquote(text)
            # As Hive has it: some readers take the values from the path, though the table's log has them.
            target /= f"{name}={text if text == HIVE_NULL else quote(unquote(text), safe='')}"
        target.mkdir(parents=True, exist_ok=True)
        target /= path.name
        path.rename(target)
        return NewFile(str(target.relative_to(self._lake.directory)), target.stat().st_size, values, rows, stats)


def arrow_schema(frame: DataFrame) -> pyarrow.Schema:
    """The columns of a table for a frame; each may be null there."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(frame.schema, timezone="UTC")])

"""How rows become files that a transaction can add: tasks write them, and the driver adds what they tell of.

The files are on the disk, or in the object store, before they are part of the table: its log says that their rows will
not come again.

In a directory tasks write beside the table, and the driver moves. Each writer holds a lock and has a directory of its
own below the table's ``_fastlog``; what a killed one left there is removed by the next. Files are moved to where the
table keeps them only once all are written. An object store moves nothing and has no locks: there tasks write where the
files stay, and of two writers the table's numbers let one through. A file that is in its place and never added is seen
by no reader, and goes with a full ``vacuum``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from fastlog.errors import ConfigError, TableConflictError
from fastlog.spark.capabilities import arrow_schema_of
from fastlog.spark.entries import NewFile
from fastlog.spark.lake import Lake
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import Task
from fastlog.spark.storage import TableLocation, sync

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from fastlog.spark.computed_files import Computed

COMPRESSIONS = ("snappy", "zstd", "gzip", "none")
CHECKPOINT = "checkpoint"
"""In the work directory of a table: what a query keeps that fills it."""
_UPKEEP = "upkeep"
"""The same of who joins files, beside a writer that fills the table."""

_NOT_SHARED = "{}: the driver does not see what the tasks wrote: is the directory shared?"


class TableStaging:
    """Writes files for one table. For one thread of a driver."""

    _does = "fills this table"

    def __init__(self, lake: Lake, partition_by: Sequence[str], compression: str, work: Path | None = None) -> None:
        """``work``: where a writer keeps what is not part of the table; that of a table in a directory is inside."""
        self._lake = lake
        self._partition_by = list(partition_by)
        self._compression = compression
        self._work = lake.work_directory if work is None and lake.location.is_local else work

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the table's writers; what dead ones left is removed. In an object store there is none.

        Raises:
            TableConflictError: another writer runs, on this machine or where the file system shares locks.
        """
        work = self._work
        if work is None:
            yield
            return
        work.mkdir(parents=True, exist_ok=True)
        with (work / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise TableConflictError(
                    f"{self._lake}: another process {self._does} (pid {lock.read().strip() or 'unknown'})"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            for left in work.iterdir():
                if left.is_dir() and left.name not in (CHECKPOINT, _UPKEEP):
                    shutil.rmtree(left, ignore_errors=True)
            yield

    def write(self, frame: DataFrame) -> list[NewFile]:
        """Run the frame, and return its files, which are where they stay.

        Raises:
            ConfigError: the driver does not see what the tasks wrote, or they not what it made.
            TableUnavailableError: an object store does not answer, or refuses.
        """
        from fastlog.spark.frame_files import FrameFiles, write_frame

        schema = arrow_schema(frame)
        with self._place() as place:
            files = FrameFiles(place, schema, tuple(self._partition_by), self._compression)
            return self._settled(place, write_frame(frame, files))

    def write_messages(
        self, context: SparkContext, tasks: Sequence[Task], options: SourceOptions, columns: Sequence[str], today: date
    ) -> list[NewFile]:
        """Let the workers write the messages of tasks as they are, and return the files, which are where they stay.

        For a table that is partitioned by topic and date: that of a message's time in UTC, or ``today``. ``columns``
        are the others.

        Raises:
            ConfigError, TableUnavailableError: as ``write``.
        """
        from fastlog.spark.row_files import RowFiles

        if not tasks:
            return []
        with self._place() as place:
            files = RowFiles(place, tuple(columns), self._compression, today, options)
            made = context.parallelize(tasks, len(tasks)).map(files.write).collect()
            return self._settled(place, [file for some in made for file in some])

    def write_computed(
        self,
        session: SparkSession,
        tasks: Sequence[Task],
        of_offsets: Callable[[DataFrame], DataFrame],
        wanted: Computed,
    ) -> list[NewFile]:
        """Let the workers write the messages of tasks with columns that Spark's SQL makes, and return the files, which
        are where they stay. ``of_offsets`` is given a frame with the offset and the columns that are needed, and
        returns the offset and those that are computed, for each row.

        Raises:
            TableWriteError: it returned other rows.
            ConfigError, TableUnavailableError: as ``write``.
        """
        from fastlog.spark.computed_files import ComputedFiles, read_needed
        from fastlog.spark.frame_files import write_frame

        if not tasks:
            return []
        with self._place() as place, tempfile.TemporaryDirectory(prefix="fastlog-") as directory:
            files = ComputedFiles(place, tuple(self._partition_by), self._compression, wanted, uuid.uuid4().hex)
            frame = of_offsets(read_needed(session, directory, files, tasks))
            return self._settled(place, write_frame(frame, files))

    def write_by(self, write: Callable[[Path | TableLocation], list[NewFile]]) -> list[NewFile]:
        """Let this process write files at the place that it is given, and return them, which are where they stay."""
        with self._place() as place:
            return self._settled(place, write(place))

    def discard(self, files: Sequence[NewFile]) -> None:
        """Remove files that are not part of the table, and will not be."""
        if files:
            self._location.remove([file.path for file in files])

    @property
    def _location(self) -> TableLocation:
        """The table's location, where its files are in the end."""
        return self._lake.location

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path | TableLocation]:
        """Where tasks write: beside a table in a directory, gone afterwards; in an object store where files stay."""
        if not self._location.is_local:
            yield self._location
            return
        assert self._work is not None
        place = self._work / uuid.uuid4().hex
        place.mkdir(parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _settled(self, place: Path | TableLocation, made: Sequence[NewFile]) -> list[NewFile]:
        """The files of tasks where they stay: all of them or none."""
        if isinstance(place, Path):
            return self._moved(place, made)
        return list(made)

    def _moved(self, place: Path, made: Sequence[NewFile]) -> list[NewFile]:
        """Move files to where the table keeps them: all of them or none."""
        for file in made:
            if not (place / file.path).exists():
                raise ConfigError(_NOT_SHARED.format(place))
        moved: list[NewFile] = []
        directories: set[Path] = set()
        try:
            for file in made:
                target = self._lake.directory / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                (place / file.path).rename(target)
                moved.append(file)
                parents = list(target.relative_to(self._lake.directory).parents)
                directories.update(self._lake.directory / parent for parent in parents)
            for directory in directories:
                sync(directory)
        except BaseException:
            self.discard(moved)
            raise
        return moved


class Upkeep(TableStaging):
    """Writes files with the rows that a table has, beside the one who fills it: with a lock of its own."""

    _does = "joins the files of this table"

    def __init__(self, lake: Lake, compression: str) -> None:
        work = lake.work_directory / _UPKEEP if lake.location.is_local else None
        super().__init__(lake, lake.partition_columns, compression, work)


def arrow_schema(frame: DataFrame) -> pyarrow.Schema:
    """The columns of a table for a frame; each may be null there."""
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in arrow_schema_of(frame.schema)])

"""What a table needs to live: small files joined, and days let go that are older than anybody asks for.

Both are transactions as a load makes them, beside loads and each other: a file that another writer has removed
meanwhile is refused, and what was to be done with it is planned anew. Removed files stay for those who read an older
version until ``Lake.vacuum``, or a tool of Iceberg's, takes them. Needs pyarrow, knows no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from fastlog.errors import ConfigError, TableConflictError, TableWriteError
from fastlog.spark.entries import ActiveFile, NewFile
from fastlog.spark.iceberg import AnyLake, upkeep_of
from fastlog.spark.lake import TableChange
from fastlog.spark.staging import TableStaging
from fastlog.spark.storage import TableLocation
from fastlog.spark.table_files import TableFiles, Values, rows_of_file

TARGET_BYTES = 128 * 2**20
"""What files are joined up to: about two row groups of a load."""

_DATE = "date"
_ALIKE = 64
"""Below this share of the target files are small, whatever there is between them."""
_TRIES = 10
_CHANGE_BYTES = 2**30
"""About how much one transaction joins: what a kill may cost, and what a table's log has to hold of it."""


@dataclass(frozen=True)
class JoinOptions:
    """Which files are joined, and how they are written."""

    target_bytes: int = TARGET_BYTES
    at_least: int = 2
    """Fewer files of the same values than this stay as they are."""
    gradual: bool = False
    """A file joins smaller ones only if it is at most twice as large as they are together: so, in a table that is
    joined again and again, a row is written anew about as often as its file doubles, and not each time."""
    compression: str = "snappy"


@dataclass
class JoinReport:
    """What joining files has done to a table."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    transactions: int = 0
    conflicts: int = 0

    def add(self, bins: Sequence[Sequence[ActiveFile]], made: Sequence[NewFile]) -> None:
        """Count one transaction: the files that it has joined, and those made of them."""
        self.files_before += sum(map(len, bins))
        self.bytes_before += sum(file.size_bytes for files in bins for file in files)
        self.files_after += len(made)
        self.bytes_after += sum(file.size_bytes for file in made)
        self.rows += sum(file.rows for file in made)
        self.transactions += 1

    def to_json(self) -> dict[str, int]:
        """The counts for the job's summary."""
        return asdict(self)


@dataclass(frozen=True)
class Expired:
    """What was removed from a table because of its age."""

    files: int
    rows: int | None
    """None: the table does not know it of each file."""
    size_bytes: int
    version: int


def bins_of(files: Sequence[ActiveFile], partition_by: Sequence[str], options: JoinOptions) -> list[list[ActiveFile]]:
    """Files that are to become one each, in the order in which they came; often none."""
    by_values: dict[Values, list[ActiveFile]] = {}
    for file in files:
        by_values.setdefault(tuple(file.values[name] for name in partition_by), []).append(file)
    found = []
    for values in sorted(by_values, key=lambda values: [(value is not None, value or "") for value in values]):
        for part in _packed(by_values[values], options):
            if len(part) >= max(2, options.at_least):
                found.append(sorted(part, key=lambda file: (file.modified_ms, file.path)))
    return found


def _packed(files: Sequence[ActiveFile], options: JoinOptions) -> Iterator[list[ActiveFile]]:
    """The smallest first, each time as many as fit. What has been joined so is not joined again: of two of the results
    none fits with another one."""
    part: list[ActiveFile] = []
    size = 0
    for file in sorted(files, key=lambda file: file.size_bytes):
        fits = size + file.size_bytes <= options.target_bytes
        waits = options.gradual and file.size_bytes > max(2 * size, options.target_bytes // _ALIKE)
        if part and (not fits or waits):
            yield part
            part, size = [], 0
        part.append(file)
        size += file.size_bytes
    if part:
        yield part


def join_files(lake: AnyLake, options: JoinOptions, say: Callable[[str], object] = lambda text: None) -> JoinReport:
    """Join small files of a table. May be killed at any moment: a reader sees the old files or the new one.

    Raises:
        TableConflictError: another process joins them, or others were quicker all the time.
        TableWriteError: a file does not have the rows that the table's log says, or the table cannot be written to.
        TableUnavailableError: an object store does not answer, or refuses.
        OSError: a file is damaged, or could not be written.
    """
    joined = JoinReport()
    staging = upkeep_of(lake, options.compression)
    with staging.alone():
        for attempt in range(_TRIES):
            bins = bins_of(lake.files(), lake.partition_columns, options)
            refused: TableConflictError | None = None
            for some in _shares(bins):
                try:
                    _join(lake, staging, some, options, joined)
                except TableConflictError as error:
                    refused = error
                    joined.conflicts += 1
                    continue
                say(f"{joined.files_before} files are {joined.files_after} now, {joined.rows} rows")
            if refused is None:
                return joined
            if attempt == _TRIES - 1:
                raise refused
    raise AssertionError("unreachable")


def _shares(bins: Sequence[list[ActiveFile]]) -> Iterator[list[list[ActiveFile]]]:
    """Yield the bins of each transaction, of about ``_CHANGE_BYTES`` of files."""
    share: list[list[ActiveFile]] = []
    size = 0
    for files in bins:
        share.append(files)
        size += sum(file.size_bytes for file in files)
        if size >= _CHANGE_BYTES:
            yield share
            share, size = [], 0
    if share:
        yield share


def _join(
    lake: AnyLake, staging: TableStaging, bins: list[list[ActiveFile]], options: JoinOptions, joined: JoinReport
) -> None:
    made = staging.write_by(lambda place: _written(lake, place, bins, options.compression))
    old = [file for files in bins for file in files]
    notes = {"job": "optimize", "files": len(old), "rows": sum(file.rows for file in made)}
    try:
        lake.commit(TableChange({}, made, old, notes, same_rows=True))
    except (TableConflictError, TableWriteError):
        staging.discard(made)
        raise
    joined.add(bins, made)


def _written(
    lake: AnyLake, place: Path | TableLocation, bins: list[list[ActiveFile]], compression: str
) -> list[NewFile]:
    """One file for each of the bins, with every row of its files."""
    partition_by = lake.partition_columns
    schema = pa.schema([item for item in lake.schema if item.name not in partition_by])
    store = lake.location.filesystem()
    made: list[NewFile] = []
    for files in bins:
        values = tuple(files[0].values[name] for name in partition_by)
        with closing(TableFiles(place, schema, partition_by, compression)) as output:
            for file in files:
                rows = 0
                with lake.location.reached():
                    for batch in rows_of_file(store, file, schema, verified=True):
                        rows += batch.num_rows
                        output.add(values, batch)
                if file.rows is not None and rows != file.rows:
                    raise TableWriteError(
                        f"{lake}: {file.path} has {rows} rows, and the table's log says {file.rows}: it stays"
                    )
            made += output.finish()
    return made


def expire(lake: AnyLake, before: date, *, dry_run: bool = False) -> Expired:
    """Take the days before one out of a table that is partitioned by ``date``, in one transaction.

    Raises:
        ConfigError: it is not partitioned by that.
        TableConflictError: others were quicker all the time.
        TableWriteError, TableUnavailableError: as ``Lake.commit``.
    """
    if _DATE not in lake.partition_columns:
        raise ConfigError(
            f"{lake}: is partitioned by {lake.partition_columns}, and not by {_DATE}: delete rows with a tool that"
            " rewrites files"
        )
    for attempt in range(_TRIES):
        old = [file for file in lake.files() if _is_before(file.values, before)]
        counts = [file.rows for file in old if file.rows is not None]
        rows = sum(counts) if len(counts) == len(old) else None
        size = sum(file.size_bytes for file in old)
        if old and not dry_run:
            notes: dict[str, Any] = {"job": "expire", "before": before.isoformat(), "files": len(old), "rows": rows}
            try:
                lake.commit(TableChange({}, (), old, notes))
            except TableConflictError:
                if attempt == _TRIES - 1:
                    raise
                continue
        return Expired(len(old), rows, size, lake.version)
    raise AssertionError("unreachable")


def _is_before(values: Mapping[str, str | None], day: date) -> bool:
    """Whether a file is of an earlier day; one without a day is not."""
    text = values.get(_DATE)
    return text is not None and date.fromisoformat(text) < day

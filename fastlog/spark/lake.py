"""Delta tables that a pipeline fills: files and the place in the input they go up to come in one transaction.

A table remembers numbers by name (Delta's application transactions; they outlive its log): for each partition of a
topic the offset at which the next load begins, or for a query the last batch that is in. A transaction says which
numbers it has found and which it leaves. So it can be in the table once only, whoever tries it how often.

Delta's library is imported when a table is opened, and Spark by ``read_table`` alone.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote

from fastlog.errors import ConfigError, TableConflictError, TableUnavailableError, TableWriteError
from fastlog.retry import pause_after
from fastlog.spark.entries import HIVE_NULL, ActiveFile, NewFile
from fastlog.spark.storage import TableLocation, check_library, located, spark_path, spark_pattern

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

METADATA = "fastlog"
"""Under this name the history of a table holds what each transaction brought."""

_TRIES = 20
_TRIES_OF_A_STORE = 3
"""Where it does not answer, or refuses: Delta's library has tried for minutes each time."""
_WORK_DIRECTORY = "_fastlog"


class NumberStep(NamedTuple):
    """What a transaction does with a number: it has to be ``before`` (None: not there), and is ``after`` then."""

    before: int | None
    after: int


@dataclass(frozen=True)
class TableChange:
    """What one transaction does: numbers that are set, files that are added and removed."""

    steps: Mapping[str, NumberStep]
    added: Sequence[NewFile] = ()
    removed: Sequence[ActiveFile] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    """For people, in the history of the table."""
    same_rows: bool = False
    """Whether the files that are added have the rows of those that are removed, and no others: who follows what is new
    in the table passes over it."""


class ChangeableTable(Protocol):
    """What a change is checked against: the numbers and the files of a table as it was opened or loaded last."""

    def number(self, name: str) -> int | None: ...
    def files(self) -> Iterable[ActiveFile]: ...


def check_unchanged(table: ChangeableTable, change: TableChange) -> None:
    """Raise ``TableConflictError`` where another writer has changed what the change starts from."""
    for name, step in change.steps.items():
        if table.number(name) != step.before:
            raise TableConflictError(
                f"{table}: another writer has changed the table: {name} is {table.number(name)}, not {step.before}"
            )
    if change.removed:
        there = {file.path for file in table.files()}
        for file in change.removed:
            if file.path not in there:
                raise TableConflictError(f"{table}: another writer has removed {file.path}")


class Lake:
    """One table, in a directory or in an object store. For one thread; other processes may change it at any time."""

    def __init__(self, place: TableLocation | Path | str, storage_options: Mapping[str, str] | None = None) -> None:
        """Opens the table if there is one.

        Raises:
            ConfigError: as ``located``.
            MissingDependencyError: Delta's library is not installed.
            TableUnavailableError: an object store does not answer, or refuses.
        """
        self.location = located(place, storage_options)
        self._table: DeltaTable | None = None
        self._numbers: dict[str, int | None] = {}
        self.reload()

    def __str__(self) -> str:
        return str(self.location)

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def directory(self) -> Path:
        """The table's directory; only of a table that is in one."""
        return self.location.directory

    @property
    def work_directory(self) -> Path:
        """Where writers of a table in a directory keep what is not part of it; readers and Delta's clean-up pass it
        over."""
        return self.directory / _WORK_DIRECTORY

    @property
    def version(self) -> int:
        """That of the table as it was last looked at; -1 without a table."""
        return -1 if self._table is None else self._table.version()

    def reload(self) -> None:
        """Read the current version of the table."""
        self._numbers = {}
        for left in reversed(range(_TRIES_OF_A_STORE)):
            try:
                with self.location.reached():
                    if self._table is None or self.location.is_local:
                        self._table = _opened(self.location)
                    else:
                        self._table.update_incremental()  # the log's new entries alone: each costs a request
                    return
            except TableUnavailableError:
                if not left:
                    raise
                time.sleep(0.2)

    def create(
        self, schema: pyarrow.Schema, partition_by: Sequence[str], *, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Make the table, unless another process was quicker."""
        from deltalake import CommitProperties, DeltaTable

        if self.location.is_local:
            self.directory.mkdir(parents=True, exist_ok=True)
        properties = CommitProperties(custom_metadata={METADATA: dict(notes or {})})
        with self.location.reached():
            DeltaTable.create(
                str(self.location),
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                description="filled by fastlog",
                commit_properties=properties,
                storage_options=self.location.given_options,
            )
        self.reload()

    def check_schema(self, schema: pyarrow.Schema, partition_by: Sequence[str], *, growing: bool = False) -> None:
        """Raise ``ConfigError`` unless rows of this schema fit the table; names what does not.

        ``growing``: columns that the table does not have are added to it, null in the rows that it has. Raises then as
        ``commit`` too. Nothing is added where something else does not fit.
        """
        for left in reversed(range(_TRIES)):
            new = self._unknown(schema, partition_by, growing)
            if not new:
                return
            try:
                self._add_columns(new)
            except TableConflictError:
                if not left:
                    raise

    def _unknown(self, schema: pyarrow.Schema, partition_by: Sequence[str], growing: bool) -> list[pyarrow.Field]:
        """The columns that the table does not have; raises as ``check_schema``."""
        has = {item.name: item.type for item in self.schema}
        brings = {item.name: item.type for item in schema}
        new = [item for item in schema if growing and item.name not in has]
        for name in [*has, *(name for name in brings if name not in has)]:
            if has.get(name) != brings.get(name) and not any(item.name == name for item in new):
                raise ConfigError(
                    f"{self}: the column {name} is {has.get(name, 'not there')} in the table,"
                    f" and {brings.get(name, 'not there')} in what is to be added"
                )
        parts = self.partition_columns
        if parts != list(partition_by):
            raise ConfigError(f"{self}: the table is partitioned by {parts}, not by {list(partition_by)}")
        named = {name.lower() for name in has}
        for item in new:
            if item.name.lower() in named:
                raise ConfigError(f"{self}: the table has {item.name} in other upper and lower case")
        return new

    def _add_columns(self, new: Sequence[pyarrow.Field]) -> None:
        import pyarrow as pa
        from deltalake import CommitProperties, Schema
        from deltalake.exceptions import CommitFailedError, DeltaError

        assert self._table is not None
        fields = Schema.from_arrow(pa.schema([item.with_nullable(True) for item in new])).fields
        notes = {METADATA: {"columns": [item.name for item in new]}}
        properties = CommitProperties(custom_metadata=notes, max_commit_retries=0)
        try:
            self._table.alter.add_columns(fields, commit_properties=properties)
        except (DeltaError, OSError) as error:
            # Whether it is in all the same, as ``commit`` has it, the next look at the schema tells.
            if isinstance(error, CommitFailedError):
                raise TableConflictError(f"{self}: could not be changed: {self.location.plain(error)}") from error
            raise self._given_up(error) from (error if self.location.is_local else None)
        finally:
            self.reload()

    @property
    def identity(self) -> str:
        """The id that the table was given when it was made; only where there is one."""
        assert self._table is not None
        return str(self._table.metadata().id)

    @property
    def schema(self) -> pyarrow.Schema:
        """Of the table as it was last looked at; only where there is one."""
        import pyarrow as pa

        assert self._table is not None
        return pa.schema(self._table.schema().to_arrow())

    @property
    def partition_columns(self) -> list[str]:
        """What the table as it was last looked at is partitioned by; nothing where there is none."""
        return [] if self._table is None else list(self._table.metadata().partition_columns)

    @property
    def column_names(self) -> list[str]:
        """Of the table as it was last looked at, in their order."""
        return [] if self._table is None else [field.name for field in self._table.schema().fields]

    def number(self, name: str) -> int | None:
        """What the table remembers under a name; None when that is nothing."""
        if name not in self._numbers:
            with self.location.reached():
                self._numbers[name] = None if self._table is None else self._table.transaction_version(name)
        return self._numbers[name]

    def names(self, prefix: str) -> list[str]:
        """The names of numbers that begin so, sorted, whoever wrote them; Delta's library tells no list of them.

        Read from the log of the table: its last checkpoint, and the transactions behind it.
        """
        import pyarrow.parquet as pq  # type: ignore[import-untyped]
        from pyarrow.fs import FileSelector  # type: ignore[import-untyped]

        if self._table is None:
            return []
        store = self.location.filesystem()
        found: set[str] = set()
        with self.location.reached():
            log = {item.base_name: item.path for item in store.get_file_info(FileSelector("_delta_log"))}
            checkpoints = sorted(name for name in log if ".checkpoint" in name and name.endswith(".parquet"))
            version = _version_of(checkpoints[-1]) if checkpoints else -1
            for name in checkpoints:
                if _version_of(name) == version:
                    column = pq.read_table(log[name], columns=["txn"], filesystem=store)["txn"]
                    found |= {item["appId"] for item in column.to_pylist() if item is not None}
            for name, path in log.items():
                stem, _, kind = name.partition(".")
                if kind == "json" and stem.isdecimal() and int(stem) > version:
                    with store.open_input_stream(path) as lines:
                        actions = map(json.loads, bytes(lines.readall()).splitlines())
                        found |= {action["txn"]["appId"] for action in actions if "txn" in action}
        return sorted(name for name in found if name.startswith(prefix))

    def files(self) -> list[ActiveFile]:
        """Every file of the table as it was last looked at."""
        import pyarrow as pa

        if self._table is None:
            return []
        with self.location.reached():
            rows = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [_active(row) for row in rows]

    def vacuum(self, keep_hours: int | None, *, dry_run: bool) -> list[str]:
        """Remove the files, and name them, that have not been part of the table for so long, or never were and are as
        old; in a directory not what its writers have under way. None: as long as the table says, else a week.

        Raises:
            TableWriteError: a file could not be removed.
            TableUnavailableError: an object store does not answer, or refuses.
        """
        from deltalake.exceptions import DeltaError

        assert self._table is not None
        try:
            with self.location.reached():
                found = self._table.vacuum(keep_hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
        except (DeltaError, OSError) as error:
            raise TableWriteError(f"{self}: could not be cleaned: {self.location.plain(error)}") from error
        self.reload()
        return sorted(found)

    def commit(self, change: TableChange) -> None:
        """Bring a change into the table, or leave the table as it is.

        What others do at the same time and does not touch the numbers, such as joining small files, is let pass.

        Raises:
            TableConflictError: the numbers are others, or a file to be removed is not part of the table any more, as
                it was last looked at: to plan the change anew, nobody has to look again.
            TableWriteError: the table cannot be written to; it is as it was.
            TableUnavailableError: an object store does not answer, or refuses; what it was sent may be in the table
                in a while.
        """
        from deltalake.exceptions import DeltaError

        identity = uuid.uuid4().hex
        began = self.version
        for attempt in range(_TRIES):
            check_unchanged(self, change)
            try:
                self._attempt(change, identity)
            except (DeltaError, OSError) as error:
                # It may be in all the same: what came after it, such as a checkpoint of the log, may have failed.
                self.reload()
                if self._brought(identity, began):
                    return
                if attempt == _TRIES - 1 or (self._is_away(error) and attempt == _TRIES_OF_A_STORE - 1):
                    raise self._given_up(error) from (error if self.location.is_local else None)
                time.sleep(0.01 * attempt if self.location.is_local else pause_after(attempt + 1, 0.05, 1.0))
            else:
                self.reload()
                return

    # -- inside --------------------------------------------------------------------------------------------------------

    def _attempt(self, change: TableChange, identity: str) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        assert self._table is not None
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, file.values, now_ms, not change.same_rows, file.stats)
            for file in change.added
        ]
        actions += [
            RemoveAction(file.path, not change.same_rows, now_ms, file.size_bytes, dict(file.values))
            for file in change.removed
        ]
        properties = CommitProperties(
            custom_metadata={METADATA: {**change.notes, "id": identity}},
            max_commit_retries=0,  # what the library would let pass may have moved the numbers: look again instead
            app_transactions=[Transaction(name, step.after, now_ms) for name, step in change.steps.items()],
        )
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), self.partition_columns, commit_properties=properties
        )

    def _is_away(self, error: Exception) -> bool:
        from deltalake.exceptions import CommitFailedError

        return not self.location.is_local and not isinstance(error, CommitFailedError)

    def _given_up(self, error: Exception) -> Exception:
        """What to raise for the last failure of a change."""
        from deltalake.exceptions import CommitFailedError

        told = f"{self}: could not be changed: {self.location.plain(error)}"
        if not self.location.is_local:
            # A request that has had no answer may be carried out later. It is for one version of the table alone.
            return TableUnavailableError(told)
        return TableConflictError(told) if isinstance(error, CommitFailedError) else TableWriteError(told)

    def _brought(self, identity: str, began: int) -> bool:
        """Whether a change is in the table, which was at that version before it."""
        return any(notes.get("id") == identity for _, notes in self.history(max(1, self.version - began)))

    def history(self, most: int | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Version and notes of each transaction that was made here, the newest first."""
        if self._table is None:
            return []
        with self.location.reached():
            found = self._table.history(most)
        return [(item["version"], item[METADATA]) for item in found if isinstance(item.get(METADATA), dict)]


def _version_of(checkpoint: str) -> int:
    return int(checkpoint.partition(".")[0])


def _active(row: Mapping[str, Any]) -> ActiveFile:
    prefix = "partition."
    parts = {name[len(prefix) :]: value for name, value in row.items() if name.startswith(prefix)}
    values = {name: None if value is None else str(value) for name, value in parts.items()}
    path = unquote(row["path"])  # the log has paths as URLs have them
    return ActiveFile(path, row["size_bytes"], values, row["modification_time"], row.get("num_records"))


def read_table(
    spark: SparkSession,
    place: TableLocation | Path | str,
    files: Iterable[ActiveFile] | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A Delta table as a data frame of Spark, which reads the files that are part of it now, without Delta's jars.

    ``files``, ``columns``: those alone. A directory has to be where the workers find it too. What is in an object
    store is read by the workers' Python, with these columns of every file.

    Raises:
        ConfigError: there is no table, or another writer has laid it out in a way that Spark does not read.
        TableUnavailableError: an object store does not answer, or refuses.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    lake = Lake(place, storage_options)
    if not lake.exists:
        raise ConfigError(f"{lake}: there is no Delta table")
    arrow = lake.schema
    if columns is not None:
        arrow = pa.schema([arrow.field(name) for name in columns])
    schema = from_arrow_schema(arrow, prefer_timestamp_ntz=True)
    chosen = lake.files() if files is None else list(files)
    if not chosen:
        return spark.createDataFrame([], schema)
    if not lake.location.is_local:
        from fastlog.spark.frame_files import read_files

        return read_files(spark, lake.location, chosen, arrow)
    for file in chosen:
        if _in_path(file) != file.values:
            raise ConfigError(f"{lake}: Spark takes values from paths, and {file.path} does not have them")
    paths = [spark_pattern(lake.directory / file.path) for file in chosen]
    return spark.read.schema(schema).option("basePath", spark_path(lake.directory)).parquet(*paths)


def _in_path(file: ActiveFile) -> dict[str, str | None]:
    """The values of columns that Spark takes from a path."""
    found: dict[str, str | None] = {}
    for part in file.path.split("/")[:-1]:
        name, _, text = part.partition("=")
        found[unquote(name)] = None if text == HIVE_NULL else unquote(text)
    return found


def _opened(location: TableLocation) -> DeltaTable | None:
    check_library()
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    if location.is_local:
        directory = location.directory
        is_there = (directory / "_delta_log").is_dir() and DeltaTable.is_deltatable(str(directory))
        return DeltaTable(str(directory)) if is_there else None
    try:
        return DeltaTable(str(location), storage_options=location.given_options)
    except TableNotFoundError:
        return None


def bounds_in(location: TableLocation, path: str, columns: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """The smallest and the largest value of columns of a table's file, of those for which its footer tells."""
    import pyarrow.parquet as pq

    with location.reached(), pq.ParquetFile(path, filesystem=location.filesystem()) as file:
        footer = file.metadata
    names = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    bounds = {}
    for name in columns:
        groups = range(footer.num_row_groups) if name in names else ()
        found = [footer.row_group(group).column(names[name]).statistics for group in groups]
        if found and all(item is not None and item.has_min_max for item in found):
            bounds[name] = min(item.min for item in found), max(item.max for item in found)
    return bounds

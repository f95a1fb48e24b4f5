"""Delta tables that a pipeline fills: files and the place in the input they go up to come in one transaction.

A table remembers numbers by name (Delta's application transactions; they outlive its log): for each partition of a
topic the offset at which the next load begins, or for a query the last batch that is in. A transaction says which
numbers it has found and which it leaves. So it can be in the table once only, whoever tries it how often.

Delta's library is imported when a table is opened, and Spark by ``read_table`` alone.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from fastlog.errors import ConfigError, MissingDependencyError, TableConflictError, TableWriteError
from fastlog.installation import how_to_install

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

METADATA = "fastlog"
"""Under this name the history of a table holds what each transaction brought."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""In a path: a value that is null."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)")
_TRIES = 20
_LOOK_BACK = 100
_WORK_DIRECTORY = "_fastlog"


class NewFile(NamedTuple):
    """A Parquet file below the table's directory that is not part of the table yet."""

    path: str
    """Relative to the table's directory, as the file system has it."""
    size_bytes: int
    values: Mapping[str, str | None]
    """Of the columns that the table is partitioned by."""
    rows: int
    stats: str
    """As Delta keeps it, JSON."""


class ActiveFile(NamedTuple):
    """A file that is part of the table."""

    path: str
    size_bytes: int
    values: Mapping[str, str | None]


class Step(NamedTuple):
    """What a transaction does with a number: it has to be ``before`` (None: not there), and is ``after`` then."""

    before: int | None
    after: int


@dataclass(frozen=True)
class Change:
    """One transaction."""

    steps: Mapping[str, Step]
    added: Sequence[NewFile] = ()
    removed: Sequence[ActiveFile] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    """For people, in the history of the table."""


class Lake:
    """One table in a directory. For one thread; other processes may change the table at any time."""

    def __init__(self, directory: Path | str) -> None:
        """Opens the table if there is one.

        Raises:
            ConfigError: it is not on a file system of this machine.
            MissingDependencyError: Delta's library is not installed.
        """
        self.directory = local_path(directory).absolute()
        self._table: DeltaTable | None = None
        self._numbers: dict[str, int | None] = {}
        self.reload()

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def work_directory(self) -> Path:
        """Where writers of this table keep what is not part of it; readers and Delta's clean-up pass it over."""
        return self.directory / _WORK_DIRECTORY

    @property
    def version(self) -> int:
        """That of the table as it was last looked at; -1 without a table."""
        return -1 if self._table is None else self._table.version()

    def reload(self) -> None:
        """Look at the table anew."""
        self._numbers = {}
        self._table = _opened(self.directory)

    def create(
        self, schema: pyarrow.Schema, partition_by: Sequence[str], *, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Make the table, unless another process was quicker."""
        from deltalake import CommitProperties, DeltaTable

        self.directory.mkdir(parents=True, exist_ok=True)
        properties = CommitProperties(custom_metadata={METADATA: dict(notes or {})})
        DeltaTable.create(
            str(self.directory),
            schema,
            mode="ignore",
            partition_by=list(partition_by),
            description="filled by fastlog",
            commit_properties=properties,
        )
        self.reload()

    def check_schema(self, schema: pyarrow.Schema, partition_by: Sequence[str]) -> None:
        """Raise ``ConfigError`` unless rows of this schema fit the table; names what does not."""
        import pyarrow as pa

        assert self._table is not None
        has = {item.name: item.type for item in pa.schema(self._table.schema().to_arrow())}
        brings = {item.name: item.type for item in schema}
        for name in [*has, *(name for name in brings if name not in has)]:
            if has.get(name) != brings.get(name):
                raise ConfigError(
                    f"{self.directory}: the column {name} is {has.get(name, 'not there')} in the table,"
                    f" and {brings.get(name, 'not there')} in what is to be added"
                )
        parts = list(self._table.metadata().partition_columns)
        if parts != list(partition_by):
            raise ConfigError(f"{self.directory}: the table is partitioned by {parts}, not by {list(partition_by)}")

    def number(self, name: str) -> int | None:
        """What the table remembers under a name; None when that is nothing."""
        if name not in self._numbers:
            self._numbers[name] = None if self._table is None else self._table.transaction_version(name)
        return self._numbers[name]

    def names(self, prefix: str) -> list[str]:
        """The names of numbers that begin so, sorted, whoever wrote them; Delta's library tells no list of them.

        Read from the log of the table: its last checkpoint, and the transactions behind it.
        """
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        directory = self.directory / "_delta_log"
        if not directory.is_dir():
            return []
        checkpoints = sorted(directory.glob("*.checkpoint*.parquet"))
        version = _version_of(checkpoints[-1]) if checkpoints else -1
        found: set[str] = set()
        for path in checkpoints:
            if _version_of(path) == version:
                column = pq.read_table(path, columns=["txn"])["txn"]
                found |= {item["appId"] for item in column.to_pylist() if item is not None}
        for path in directory.glob("*.json"):
            if path.stem.isdecimal() and int(path.stem) > version:
                with path.open() as lines:
                    found |= {action["txn"]["appId"] for action in map(json.loads, lines) if "txn" in action}
        return sorted(name for name in found if name.startswith(prefix))

    def files(self) -> list[ActiveFile]:
        """Every file of the table as it was last looked at."""
        import pyarrow as pa

        if self._table is None:
            return []
        rows = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [_active(row) for row in rows]

    def commit(self, change: Change) -> None:
        """Bring a change into the table, or leave the table as it is.

        What others do at the same time and does not touch the numbers, such as joining small files, is let pass.

        Raises:
            TableConflictError: the numbers are others, or a file to be removed is not part of the table any more.
            TableWriteError: the table cannot be written to.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError

        identity = uuid.uuid4().hex
        for attempt in range(_TRIES):
            self._check(change)
            try:
                self._attempt(change, identity)
            except (DeltaError, OSError) as error:
                # It may be in all the same: what came after it, such as a checkpoint of the log, may have failed.
                self.reload()
                if self._brought(identity):
                    return
                if attempt == _TRIES - 1:
                    kind = TableConflictError if isinstance(error, CommitFailedError) else TableWriteError
                    raise kind(f"{self.directory}: could not be changed: {error}") from error
                time.sleep(0.01 * attempt)
            else:
                self.reload()
                return

    # -- inside --------------------------------------------------------------------------------------------------------

    def _check(self, change: Change) -> None:
        for name, step in change.steps.items():
            if self.number(name) != step.before:
                raise TableConflictError(
                    f"{self.directory}: another writer has changed the table: {name} is {self.number(name)},"
                    f" not {step.before}"
                )
        if change.removed:
            there = {file.path for file in self.files()}
            for file in change.removed:
                if file.path not in there:
                    raise TableConflictError(f"{self.directory}: another writer has removed {file.path}")

    def _attempt(self, change: Change, identity: str) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        assert self._table is not None
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, file.values, now_ms, True, file.stats) for file in change.added
        ]
        actions += [
            RemoveAction(file.path, True, now_ms, file.size_bytes, dict(file.values)) for file in change.removed
        ]
        properties = CommitProperties(
            custom_metadata={METADATA: {**change.notes, "id": identity}},
            max_commit_retries=0,  # what the library would let pass may have moved the numbers: look again instead
            app_transactions=[Transaction(name, step.after, now_ms) for name, step in change.steps.items()],
        )
        partition_by = list(self._table.metadata().partition_columns)
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), partition_by, commit_properties=properties
        )

    def _brought(self, identity: str) -> bool:
        return any(notes.get("id") == identity for _, notes in self.history(_LOOK_BACK))

    def history(self, most: int | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Version and notes of each transaction that was made here, the newest first."""
        if self._table is None:
            return []
        found = self._table.history(most)
        return [(item["version"], item[METADATA]) for item in found if isinstance(item.get(METADATA), dict)]


def _version_of(checkpoint: Path) -> int:
    return int(checkpoint.name.partition(".")[0])


def _active(row: Mapping[str, Any]) -> ActiveFile:
    prefix = "partition."
    parts = {name[len(prefix) :]: value for name, value in row.items() if name.startswith(prefix)}
    values = {name: None if value is None else str(value) for name, value in parts.items()}
    return ActiveFile(unquote(row["path"]), row["size_bytes"], values)  # the log has paths as URLs have them


def read_table(spark: SparkSession, directory: Path | str, files: Iterable[ActiveFile] | None = None) -> DataFrame:
    """A Delta table as a data frame of Spark, which reads the files that are part of it now, without Delta's jars.

    ``files``: those alone. The directory has to be where the workers find it too.

    Raises:
        ConfigError: there is no table, or another writer has laid it out in a way that Spark does not read.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    lake = Lake(directory)
    if lake._table is None:
        raise ConfigError(f"{directory}: there is no Delta table")
    schema = from_arrow_schema(pa.schema(lake._table.schema().to_arrow()))
    chosen = lake.files() if files is None else list(files)
    if not chosen:
        return spark.createDataFrame([], schema)
    for file in chosen:
        if _in_path(file) != file.values:
            raise ConfigError(f"{directory}: Spark takes values from paths, and {file.path} does not have them")
    paths = [spark_path(lake.directory / file.path) for file in chosen]
    return spark.read.schema(schema).option("basePath", spark_path(lake.directory)).parquet(*paths)


def local_path(place: Path | str) -> Path:
    """The path that a text or a ``file:`` URL means.

    Raises:
        ConfigError: it is a URL of something else, such as an object store. As a path it would be a directory of that
            name, here.
    """
    text = str(place)
    url = _URL.match(text)  # with one slash also: as a Path it has no more, and Hadoop writes it so
    if url is None:
        return Path(place)
    if url[1].lower() != "file":
        raise ConfigError(f"{text}: tables are in directories of this machine, or mounted on it, not at {url[1]}:")
    rest = unquote(text[url.end() :])
    host, slash, path = rest.partition("/") if url[2] == "//" else ("", "/", rest)
    if host not in ("", "localhost") or not slash:
        raise ConfigError(f"{text}: is at another machine; write file:///path for one here")
    return Path(f"/{path.lstrip('/')}")


def spark_path(path: Path) -> str:
    """A path as Spark takes it, also where its own file system is another one."""
    return f"file://{path.absolute()}"


def _in_path(file: ActiveFile) -> dict[str, str | None]:
    """The values of columns that Spark takes from a path."""
    found: dict[str, str | None] = {}
    for part in file.path.split("/")[:-1]:
        name, _, text = part.partition("=")
        found[unquote(name)] = None if text == HIVE_NULL else unquote(text)
    return found


def _opened(directory: Path) -> DeltaTable | None:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise MissingDependencyError(
            f"tables need Delta's library, which is not installed ({error}): {how_to_install('spark')}"
        ) from error
    if not (directory / "_delta_log").is_dir() or not DeltaTable.is_deltatable(str(directory)):
        return None
    return DeltaTable(str(directory))


def stats_of(rows: int) -> str:
    """Delta's statistics of a file: the number of rows alone.

    Bounds of some columns and not of others would be worse than none: delta-rs 1.6 tells Arrow then that the others
    are nowhere larger than null, and a filter on one of them finds nothing.
    """
    return json.dumps({"numRecords": rows})


def sync(path: Path) -> None:
    """Bring a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def bounds_in(path: Path, columns: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """The smallest and the largest value of columns of a Parquet file, of those for which its footer tells."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    names = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    bounds = {}
    for name in columns:
        groups = range(footer.num_row_groups) if name in names else ()
        found = [footer.row_group(group).column(names[name]).statistics for group in groups]
        if found and all(item is not None and item.has_min_max for item in found):
            bounds[name] = min(item.min for item in found), max(item.max for item in found)
    return bounds

"""Iceberg tables that a load fills: files and the place in the input they go up to come in one commit of the catalog.

What a ``Lake`` keeps in Delta's application transactions is kept in properties of the table: for each partition of a
topic the offset at which the next load begins. Every change here is a snapshot together with these properties, and is
refused unless the table's newest snapshot is the one that the change was made for. So of two writers that found the
same numbers one is refused, and looks again.

pyiceberg is imported when a table is opened.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastlog.errors import ConfigError, MissingDependencyError, TableConflictError, TableUnavailableError
from fastlog.installation import how_to_install
from fastlog.retry import pause_after
from fastlog.spark.entries import ActiveFile, NewFile
from fastlog.spark.lake import METADATA, Lake, TableChange, check_unchanged
from fastlog.spark.staging import TableStaging, Upkeep
from fastlog.spark.storage import TableLocation, located, sync

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

SCHEME = "iceberg:"
"""Begins what names such a table: ``iceberg:CATALOG/NAMESPACE.TABLE``."""

_T = TypeVar("_T")
_TRIES = 20
_TRIES_OF_A_STORE = 3
_MOST_TOLD = 500
_DATA = "data"
_NO_RETRIES = "commit.retry.num-retries"
_NAME_MAPPING = "schema.name-mapping.default"
_EPOCH = date(1970, 1, 1)


class IcebergLake:
    """One table of a catalog that pyiceberg knows by its own configuration. Does for a load what ``Lake`` does."""

    def __init__(self, name: str, storage_options: Mapping[str, str] | None = None) -> None:
        """Opens the table if there is one. ``name``: with ``iceberg:`` before it. ``storage_options`` are for files.

        Raises:
            ConfigError: the name is malformed, or the configuration has no such catalog.
            MissingDependencyError: pyiceberg is not installed.
            TableUnavailableError: the catalog does not answer, or refuses.
        """
        catalog, _, identifier = name.removeprefix(SCHEME).partition("/")
        if not catalog or "." not in identifier.strip("."):
            raise ConfigError(f"{name}: write {SCHEME}CATALOG/NAMESPACE.TABLE")
        try:
            import pyiceberg.catalog  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                f"Iceberg tables need pyiceberg, which is not installed ({error}): {how_to_install('iceberg')}"
            ) from error
        self._name = name
        self._identifier = identifier
        self._storage_options = storage_options
        self._table: Table | None = None
        try:
            self._catalog = self._asked(lambda: _loaded(catalog))
        except ValueError as error:
            raise ConfigError(
                f"{name}: {error}: tell pyiceberg of the catalog in ~/.pyiceberg.yaml, or by"
                f" PYICEBERG_CATALOG__{catalog.upper()}__URI"
            ) from error
        self.reload()

    def __str__(self) -> str:
        return self._name

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def location(self) -> TableLocation:
        """Where its files are; only where there is a table. Raises ``ConfigError`` as ``located``."""
        return located(f"{self._opened.location().rstrip('/')}/{_DATA}", self._storage_options)

    @property
    def version(self) -> int:
        """How many snapshots the table has as it was last looked at; -1 without a table."""
        return -1 if self._table is None else len(self._table.history())

    @property
    def partition_columns(self) -> list[str]:
        """What the table is partitioned by; nothing where there is none."""
        return [] if self._table is None else [item.name for item in self._table.spec().fields]

    @property
    def schema(self) -> pyarrow.Schema:
        """Of the table as it was last looked at, in the types that a load has; only where there is one."""
        import pyarrow as pa

        found = self._opened.schema().as_arrow()
        return pa.schema([pa.field(item.name, _plain(item.type)) for item in found])

    def reload(self) -> None:
        """Read the current version of the table."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            self._table = self._asked(lambda: self._catalog.load_table(self._identifier))
        except NoSuchTableError:
            self._table = None

    def number(self, name: str) -> int | None:
        """What is remembered under a name, in the table as it was last looked at."""
        text = None if self._table is None else self._table.properties.get(name)
        return None if text is None else int(text)

    def names(self, prefix: str) -> list[str]:
        """The names of numbers that begin with ``prefix``."""
        return [] if self._table is None else sorted(name for name in self._table.properties if name.startswith(prefix))

    @property
    def identity(self) -> str:
        """The id that the table was given when it was made; only where there is one."""
        return str(self._opened.metadata.table_uuid)

    def files(self) -> list[ActiveFile]:
        """Every file of the table as it was last looked at.

        Raises:
            ConfigError: other writers have left the table in a way in which its rows are not those of its files, in
                these columns and below its place.
            TableUnavailableError: the catalog's store does not answer, or refuses.
        """
        if self._table is None:
            return []
        self._check_names()
        spec, types = self._table.spec(), {item.name: item.type for item in self.schema}
        moments = {item.sequence_number: item.timestamp_ms for item in self._table.snapshots()}
        found = []
        for number, file in self._data_files():
            path = self._below(file.file_path)
            if path is None or file.spec_id != spec.spec_id:
                raise ConfigError(
                    f"{self}: {file.file_path} of another writer is at another place, or partitioned in another way:"
                    " rewrite the table's files with Iceberg's tools"
                )
            parts = zip(self.partition_columns, (file.partition[at] for at in range(len(spec.fields))), strict=True)
            values = {name: _text(value, types[name]) for name, value in parts}
            # Of a snapshot that is gone nobody knows the time any more: it was before the others.
            moment = moments.get(number, number)
            found.append(ActiveFile(path, file.file_size_in_bytes, values, moment, file.record_count))
        return found

    def history(self, most: int | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Sequence number and notes of each change that was made here and whose snapshot is there, the newest first;
        ``most`` of them."""
        found = [] if self._table is None else self._table.snapshots()
        notes = [
            (snapshot.sequence_number or 0, json.loads(snapshot.summary.additional_properties[METADATA]))
            for snapshot in reversed(found)
            if snapshot.summary is not None and METADATA in snapshot.summary.additional_properties
        ]
        return notes[:most]

    def create(self, schema: pyarrow.Schema, partition_by: Sequence[str]) -> None:
        """Make the table, and its namespace, unless another process was quicker."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        def make() -> None:
            self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
            with (
                contextlib.suppress(TableAlreadyExistsError, CommitFailedException),
                self._catalog.create_table_transaction(self._identifier, schema) as made,
            ):
                with made.update_spec() as spec:
                    for name in partition_by:
                        spec.add_identity(name)
                # Files have no ids of columns: readers find them by name.
                made.set_properties({_NAME_MAPPING: made.table_metadata.schema().name_mapping.model_dump_json()})

        self._asked(make)
        self.reload()
        if self._table is None:
            raise TableUnavailableError(f"{self}: was made, and the catalog does not have it")

    def check_schema(self, schema: pyarrow.Schema, partition_by: Sequence[str], *, growing: bool = False) -> None:
        """See ``Lake.check_schema``."""
        import pyarrow as pa
        from pyiceberg.exceptions import CommitFailedException

        has = {item.name: item.type for item in self.schema}
        brings = {item.name: _plain(item.type) for item in schema}
        new = [name for name in brings if growing and name not in has]
        for name in [*has, *(name for name in brings if name not in has)]:
            if has.get(name) != brings.get(name) and name not in new:
                raise ConfigError(
                    f"{self}: the column {name} is {has.get(name, 'not there')} in the table,"
                    f" and {brings.get(name, 'not there')} in what is to be added"
                )
        if self.partition_columns != list(partition_by):
            raise ConfigError(
                f"{self}: the table is partitioned by {self.partition_columns}, not by {list(partition_by)}"
            )
        for name in new:
            if name.lower() in {other.lower() for other in has}:
                raise ConfigError(f"{self}: the table has {name} in other upper and lower case")
        if not new:
            return
        fields = pa.schema([pa.field(name, brings[name]) for name in new])

        def add() -> None:
            with self._opened.update_schema() as update:
                update.union_by_name(fields)

        try:
            self._asked(add)
        except CommitFailedException as error:
            raise TableConflictError(f"{self}: could not be changed: {error}") from error
        finally:
            self.reload()

    def commit(self, change: TableChange) -> None:
        """See ``Lake.commit``."""
        from pyiceberg.exceptions import CommitFailedException

        identity = uuid.uuid4().hex
        for attempt in range(_TRIES):
            check_unchanged(self, change)
            try:
                self._asked(lambda: self._attempt(change, identity))
            except (CommitFailedException, TableUnavailableError) as error:
                self.reload()
                if any(notes.get("id") == identity for _, notes in self.history()):
                    return
                is_away = isinstance(error, TableUnavailableError)
                if is_away and attempt == _TRIES_OF_A_STORE - 1:
                    raise
                if attempt == _TRIES - 1:
                    raise TableConflictError(f"{self}: could not be changed: {error}") from error
                time.sleep(pause_after(attempt + 1, 0.05, 1.0))
            else:
                self.reload()
                return

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> Table:
        assert self._table is not None
        return self._table

    def _check_names(self) -> None:
        names: dict[int, set[str]] = {}
        for schema in self._opened.schemas().values():
            for item in schema.fields:
                names.setdefault(item.field_id, set()).add(item.name)
        for found in names.values():
            if len(found) > 1:
                raise ConfigError(
                    f"{self}: a column is called {' and '.join(sorted(found))} in its files: rewrite them with"
                    " Iceberg's tools, into another table"
                )

    def _below(self, path: str) -> str | None:
        """The path of a file below the place of those with rows; None where it is somewhere else."""
        place = f"{_one_form(self._opened.location()).rstrip('/')}/{_DATA}/"
        found = _one_form(path)
        return found.removeprefix(place) if found.startswith(place) else None

    def _data_files(self) -> list[tuple[int, Any]]:
        """The files of the newest snapshot as pyiceberg has them, and the sequence number with which each came."""
        from pyiceberg.manifest import ManifestContent

        table = self._opened
        snapshot = table.current_snapshot()
        manifests = [] if snapshot is None else self._asked(lambda: snapshot.manifests(table.io))
        if any(manifest.content != ManifestContent.DATA for manifest in manifests):
            raise ConfigError(
                f"{self}: another writer has deleted rows without writing their files anew: let Iceberg's tools do that"
            )
        return [
            (entry.sequence_number or 0, entry.data_file)
            for manifest in manifests
            for entry in self._asked(lambda manifest=manifest: manifest.fetch_manifest_entry(table.io))  # type: ignore[misc]
        ]

    def _attempt(self, change: TableChange, identity: str) -> None:
        table = self._opened
        # pyiceberg would put the same files behind what another writer has brought: the numbers may be others now.
        table.metadata.properties[_NO_RETRIES] = "0"
        notes = {METADATA: json.dumps({**change.notes, "id": identity})}
        with table.transaction() as transaction:
            transaction.set_properties({name: str(step.after) for name, step in change.steps.items()})
            # Without files, too: the snapshot is what a commit is refused by.
            snapshot = transaction.update_snapshot(snapshot_properties=notes)
            with _exchange(transaction, table, notes, change) if change.removed else snapshot.fast_append() as made:
                for added in change.added:
                    made.append_data_file(self._data_file(added))
                gone = {file.path for file in change.removed}
                for _, file in self._data_files() if gone else ():
                    path = self._below(file.file_path)
                    if path in gone:
                        gone.remove(path)
                        made.delete_data_file(file)
                assert not gone, f"{self}: {gone} would stay"

    def _data_file(self, file: NewFile) -> Any:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        table = self._opened
        types = {item.name: item.type for item in self.schema}
        values = [_value(file.values[name], types[name]) for name in self.partition_columns]
        nothing: dict[str, Any] = dict.fromkeys(
            ("sort_order_id", "equality_ids", "key_metadata", "split_offsets", "column_sizes", "value_counts"), None
        )
        nothing |= dict.fromkeys(("null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"), None)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{table.location().rstrip('/')}/{_DATA}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=file.rows,
            file_size_in_bytes=file.size_bytes,
            spec_id=table.spec().spec_id,
            **nothing,
        )

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """What a catalog says. Raises ``TableUnavailableError`` where it does not answer, or refuses."""
        from pyiceberg.exceptions import RESTError

        try:
            return ask()
        except Exception as error:
            if not _is_of_sql(error) and not isinstance(error, RESTError | OSError):
                raise
            told = (str(error).splitlines() or [repr(error)])[0][:_MOST_TOLD]
            raise TableUnavailableError(f"{self}: {told}") from None


def _loaded(catalog: str) -> Catalog:
    """A catalog. Of several processes that find a new database all make its tables, and all but one fail: these look
    again."""
    from pyiceberg.catalog import load_catalog

    for _ in range(_TRIES_OF_A_STORE - 1):
        try:
            return load_catalog(catalog)
        except Exception as error:
            if not _is_of_sql(error):
                raise
    return load_catalog(catalog)


def _is_of_sql(error: Exception) -> bool:
    return type(error).__module__.startswith("sqlalchemy.")


class IcebergStaging(TableStaging):
    """Writes files where the table keeps them, also in a directory: the snapshot says which are part of it. There is no
    lock: of two writers the table's numbers let one through."""

    def __init__(self, lake: IcebergLake, partition_by: Sequence[str], compression: str) -> None:
        self._table = lake
        self._partition_by = list(partition_by)
        self._compression = compression
        self._work = None  # of what is not part of the table nothing has to be kept

    @property
    def _location(self) -> TableLocation:
        return self._table.location

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path | TableLocation]:
        location = self._location
        if location.is_local:
            location.directory.mkdir(parents=True, exist_ok=True)
        yield location.directory if location.is_local else location

    def _settled(self, place: Path | TableLocation, made: Sequence[NewFile]) -> list[NewFile]:
        if isinstance(place, Path):
            missing = [file for file in made if not (place / file.path).exists()]
            if missing:
                raise ConfigError(f"{place}: the driver does not see what the tasks wrote: is the directory shared?")
            parents = {parent for file in made for parent in Path(file.path).parents}
            for parent in parents:
                sync(place / parent)
        return list(made)


AnyLake = Lake | IcebergLake


def opened(table: TableLocation | Path | str, storage_options: Mapping[str, str] | None = None) -> AnyLake:
    """The table that a place names, of either kind; raises as they do."""
    text = str(table)
    if not text.startswith(SCHEME):
        return Lake(table, storage_options)
    return IcebergLake(text, table.options if isinstance(table, TableLocation) else storage_options)


def staging_of(lake: AnyLake, partition_by: Sequence[str], compression: str) -> TableStaging:
    """What writes files for a table that is filled."""
    if isinstance(lake, IcebergLake):
        return IcebergStaging(lake, partition_by, compression)
    return TableStaging(lake, partition_by, compression)


def upkeep_of(lake: AnyLake, compression: str) -> TableStaging:
    """What writes files with the rows that a table has, beside the one who fills it."""
    if isinstance(lake, IcebergLake):
        return IcebergStaging(lake, lake.partition_columns, compression)
    return Upkeep(lake, compression)


def _exchange(transaction: Any, table: Table, notes: dict[str, str], change: TableChange) -> Any:
    """A snapshot of pyiceberg's in which files take the place of others, as what it is to those who follow the table:
    they pass over rows that have only moved."""
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class Exchange(_OverwriteFiles):
        def _summary(self, *given: Any) -> Summary:
            summary = super()._summary(*given)
            # What pyiceberg itself has no way to make.
            return Summary(Operation.REPLACE, **summary.additional_properties) if change.same_rows else summary

    operation = Operation.OVERWRITE if change.added else Operation.DELETE
    return Exchange(operation=operation, transaction=transaction, io=table.io, snapshot_properties=notes)


def _value(text: str | None, kind: pyarrow.DataType) -> Any:
    """A value of a column that a table is partitioned by, as Iceberg has it."""
    import pyarrow as pa

    if text is None:
        return None
    if pa.types.is_date(kind):
        return (date.fromisoformat(text) - _EPOCH).days
    return int(text) if pa.types.is_integer(kind) else text


def _one_form(url: str) -> str:
    """A URL as every writer might have it: Java's write ``file:/path``, and S3's with another scheme."""
    return re.sub(r"^file:/+", "/", re.sub(r"^s3[an]:", "s3:", url))


def _text(value: Any, kind: pyarrow.DataType) -> str | None:
    """A partition value as text, in the form of ``ActiveFile.values``."""
    import pyarrow as pa

    if value is None:
        return None
    return (_EPOCH + timedelta(days=value)).isoformat() if pa.types.is_date(kind) else str(value)


def _plain(kind: pyarrow.DataType) -> pyarrow.DataType:
    """A type as a load has it, for one that Iceberg gives."""
    import pyarrow as pa

    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(item.name, _plain(item.type)) for item in kind])
    return kind

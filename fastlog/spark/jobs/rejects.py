"""The table of messages that an expression cannot take: each is in it, or in the table that is filled, and once.

Two tables have no transaction in common. So the files of these messages are where they stay before the batch's
transaction, which names them in the history of the table that is filled and counts them there; then they are added to
the table of their own, which counts too. Where it is behind, because a load was killed between the two, the next one
adds what is named. Needs pyarrow, knows no Spark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError, TableConflictError, TableWriteError
from fastlog.spark.entries import ActiveFile, NewFile
from fastlog.spark.iceberg import AnyLake, staging_of
from fastlog.spark.lake import NumberStep, TableChange
from fastlog.spark.offsets import OffsetRange, encode_ranges
from fastlog.spark.storage import TableLocation

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

PARTITIONED_BY = ("topic", "date")
REJECTED = "rejected"
"""Under this name the notes of a transaction have what it has rejected."""
_NUMBER = "fastlog.rejected:"
_NEAR = 20


@dataclass(frozen=True)
class Rejected:
    """What a batch has rejected; its files are not part of a table yet."""

    files: list[NewFile]
    replaced: Mapping[TopicPartition, OffsetRange]
    """Ranges of which the batch takes the place."""

    @property
    def rows(self) -> int:
        """How many messages were rejected."""
        return sum(file.rows for file in self.files)


class Rejects:
    """The table of what was rejected from another one, which is filled. For one thread."""

    def __init__(self, lake: AnyLake, filled: AnyLake, schema: pyarrow.Schema, compression: str) -> None:
        """``schema``: its columns but for ``date``, the day of the loading.

        Raises:
            ConfigError: the two are one table.
        """
        if str(lake) == str(filled) or (lake.exists and filled.exists and lake.identity == filled.identity):
            raise ConfigError(f"--rejected: {lake} is the table that is filled: give another place")
        import pyarrow as pa

        self._lake = lake
        self._filled = filled
        self._compression = compression
        self._staging = staging_of(lake, PARTITIONED_BY, compression)
        rest = [item for item in schema if item.name not in PARTITIONED_BY]
        self._schema = pa.schema([pa.field("topic", pa.string()), pa.field("date", pa.date32()), *rest])

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the table of rejected messages; see ``TableStaging.alone``."""
        with self._staging.alone():
            yield

    def write(self, messages: pyarrow.Table, today: date) -> list[NewFile]:
        """Write files with messages, where they stay; makes the table if it is not there.

        Raises:
            ConfigError: it has other columns.
            OSError, TableUnavailableError: it could not be written.
        """
        if not self._lake.exists:
            self._lake.create(self._schema, PARTITIONED_BY)
        self._lake.check_schema(self._schema, PARTITIONED_BY, growing=True)
        if not messages.num_rows:
            return []
        return self._staging.write_by(lambda place: self._written(place, messages, today.isoformat()))

    def discard(self, rejected: Rejected) -> None:
        """Of a batch that is not in the table that is filled."""
        self._staging.discard(rejected.files)

    def told(self, rejected: Rejected) -> tuple[dict[str, NumberStep], dict[str, Any]]:
        """The step and the notes with which a batch's transaction says what it has rejected; nothing of nothing."""
        if not self._lake.exists or not (rejected.files or rejected.replaced):
            return {}, {}
        before = self._filled.number(self._name)
        number = (before or 0) + 1
        entry = {
            "table": str(self._lake),
            "id": self._lake.identity,
            "number": number,
            "rows": rejected.rows,
            "files": [list(file) for file in rejected.files],
            "replaced": encode_ranges(rejected.replaced)["topics"],
        }
        return {self._name: NumberStep(before, number)}, {REJECTED: entry}

    def catch_up(self) -> None:
        """Add what transactions of the table that is filled have rejected, and this one has not.

        Raises:
            TableWriteError: nobody knows any more what that was; or this table cannot be written to.
            TableUnavailableError: an object store does not answer, or refuses.
        """
        if not self._lake.exists:
            return
        wanted = self._filled.number(self._name) or 0
        name = f"{_NUMBER}{self._filled.identity}"
        while (has := self._lake.number(name) or 0) < wanted:
            entry = self._entry(has + 1)
            added = [NewFile(*file) for file in entry["files"]]
            store = self._lake.location.filesystem()
            with self._lake.location.reached():
                gone = [file.path for file in added if not store.get_file_info(file.path).is_file]
            if gone:
                raise TableWriteError(
                    f"{self._lake}: {gone[0]} has rejected messages, and was removed before it was added"
                )
            old, kept = self._without(entry["replaced"])
            steps = {name: NumberStep(has or None, has + 1)}
            try:
                self._lake.commit(TableChange(steps, added + kept, old, {"job": "load", "rows": entry["rows"]}))
            except TableConflictError:  # another load has added it
                self._staging.discard(kept)
                if (self._lake.number(name) or 0) == has:
                    raise

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"{_NUMBER}{self._lake.identity}"

    def _entry(self, number: int) -> dict[str, Any]:
        """What the history of the table that is filled has of a number."""
        for most in (_NEAR, None):
            for _, notes in self._filled.history(most):
                entry = notes.get(REJECTED)
                if isinstance(entry, dict) and (entry["id"], entry["number"]) == (self._lake.identity, number):
                    return entry
        raise TableWriteError(
            f"{self._lake}: a load was ended before it added messages that it had rejected from {self._filled}, whose"
            " history does not have them any more: give another --rejected, and load them again with --from"
        )

    def _without(self, replaced: Mapping[str, Mapping[str, Sequence[int]]]) -> tuple[list[ActiveFile], list[NewFile]]:
        """The files with messages of these ranges, and new ones with the others of them."""
        import pyarrow as pa
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        from fastlog.spark.table_files import rows_of_file

        old, kept = [], []
        store = self._lake.location.filesystem()
        for file in self._lake.files() if replaced else ():
            topic = file.values["topic"]
            ranges = {} if topic is None else replaced.get(topic, {})
            if not ranges:
                continue
            with self._lake.location.reached():
                rows = pa.Table.from_batches(rows_of_file(store, file, self._lake.schema), self._lake.schema)
            inside = pa.repeat(pa.scalar(False), rows.num_rows)
            for partition, (start, end) in ranges.items():
                broker, number = map(int, partition.split("-"))
                of_it = pc.and_(pc.equal(rows["broker"], broker), pc.equal(rows["partition"], number))
                within = pc.and_(pc.greater_equal(rows["offset"], start), pc.less(rows["offset"], end))
                inside = pc.or_(inside, pc.and_(of_it, within))
            if not pc.any(inside).as_py():
                continue
            old.append(file)
            rest = rows.filter(pc.invert(inside))
            day = file.values["date"] or ""
            if rest.num_rows:
                kept += self._staging.write_by(partial(self._written, messages=rest, day=day))
        return old, kept

    def _written(self, place: Path | TableLocation, messages: pyarrow.Table, day: str) -> list[NewFile]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from fastlog.spark.table_files import TableFiles

        schema = pa.schema([item for item in self._schema if item.name not in PARTITIONED_BY])
        with closing(TableFiles(place, schema, PARTITIONED_BY, self._compression)) as files:
            for topic in pc.unique(messages["topic"]).to_pylist():
                rows = messages.filter(pc.equal(messages["topic"], topic)).select(schema.names).cast(schema)
                for batch in rows.to_batches():
                    files.add((topic, day), batch)
            return files.finish()

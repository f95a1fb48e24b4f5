"""Offsets in a database of the program's own, so that what messages did and how far they were read commit together."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fastlog.consumer.exactly_once import Connection, ConsumedSpan, ExactlyOnce, StoredOffset
from fastlog.consumer.offsets import lost_error
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError, CoordinationError

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_PLACEHOLDER = re.compile(r"\?")


class Cursor(Protocol):
    """The part of a DB-API cursor that is used here."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, statement: str, parameters: Any = ..., /) -> Any: ...
    def fetchone(self) -> Any: ...
    def close(self) -> Any: ...


class DatabaseOffsets:
    """A table of offsets in any database with a DB-API 2 driver. Safe for any thread.

    One row for each partition: ``consumer_group``, ``topic``, ``broker_partition``, ``next_offset`` (null until the
    first commit), ``owner``, and ``log_created``, when the log was made that the offset is of (in ms; 0: not known).
    Loading an offset writes a new name into ``owner``, and a save under an older one finds no row to change: a process
    that was stopped and lost its partitions cannot save over their new owner, however late it wakes, nor a thread that
    is busy with what its consumer has lost and got again.

    Used as a consumer's store it keeps offsets as ZooKeeper would. With ``exactly_once`` they are saved by the
    program's transactions alone.

    What these calls raise is what the driver raises, and ``OwnershipLostError``.
    """

    def __init__(
        self, connect: Callable[[], Connection], *, table: str = "fastlog_offsets", paramstyle: str | None = None
    ) -> None:
        """``connect`` makes a connection of its own for each call here, which is closed again.

        The table is made when it is missing. ``paramstyle``: the driver's, when it does not say it itself.

        Raises:
            ConfigError: the table's name is none, or the parameter style is not one of DB-API 2.
        """
        if not _TABLE.fullmatch(table):
            raise ConfigError(f"{table!r} is no name of a table")
        if paramstyle is not None and paramstyle not in _STYLES:
            raise ConfigError(f"paramstyle {paramstyle!r}: it is one of {', '.join(_STYLES)}")
        self.table = table
        self._connect = connect
        self._paramstyle = paramstyle
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._has_table = False
        self._places: dict[tuple[str, TopicPartition], StoredOffset] = {}
        self._fenced: dict[tuple[str, TopicPartition], str] = {}
        self._is_theirs = False
        self._logs: dict[tuple[str, TopicPartition], int] = {}

    def load(self, group: str, partition: TopicPartition) -> int | None:
        """The offset kept; from now on it is saved by this object, for who has loaded it now."""
        claim = uuid.uuid4().hex
        with contextlib.closing(self._connect()) as connection:
            self._make_table(connection)
            with _transaction(connection) as cursor:
                # The change comes first: it waits for a transaction that is still saving, and keeps out later ones.
                self._run(connection, cursor, _CLAIM, (claim, *_key(group, partition)))
                self._run(connection, cursor, _LOOK, _key(group, partition))
                row = cursor.fetchone()
                if row is None:
                    self._run(connection, cursor, _BEGIN, (*_key(group, partition), claim))
        offset = None if row is None or row[0] is None else int(row[0])
        with self._lock:
            self._forget_if_forked()
            self._places[group, partition] = StoredOffset(claim, offset)
            self._logs[group, partition] = 0 if row is None or row[2] is None else int(row[2])
            self._fenced.pop((group, partition), None)
        return offset

    def note_logs(self, group: str, logs: Mapping[TopicPartition, int]) -> None:
        """When the logs were made that offsets saved from now on are of, in transactions of the program too."""
        with self._lock:
            self._forget_if_forked()
            self._logs.update({(group, partition): made for partition, made in logs.items()})

    def log_of(self, group: str, partition: TopicPartition) -> int:
        """When the log was made that the offset is of; 0: not known."""
        with self._lock:
            return self._logs.get((group, partition), 0)

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Keep these offsets, in a transaction of their own: what a consumer's commits call.

        Raises:
            OwnershipLostError: names those that others have loaded since; the others are kept.
            CoordinationError: the program saves them in its own transactions.
        """
        if self._is_theirs:
            raise CoordinationError(
                "offsets are saved in the program's own transactions here: set autocommit.enable=false, and leave"
                " commit_offsets() out"
            )
        lost = []
        saved = {}
        with contextlib.closing(self._connect()) as connection, _transaction(connection) as cursor:
            for partition, offset in offsets.items():
                place = self.place_or_none(group, partition)
                if place is None or not self._save(connection, cursor, group, partition, place.claim, offset):
                    lost.append(partition)
                else:
                    saved[partition] = ConsumedSpan(place.claim, None, offset)
        self.moved(group, saved)
        if lost:
            raise lost_error(lost)

    def fenced(self, group: str) -> list[TopicPartition]:
        """What a transaction could not save, since somebody else has loaded it; who still owns it loads it again."""
        with self._lock:
            return [partition for name, partition in self._fenced if name == group]

    def exactly_once(self, connection: Connection, group: str) -> ExactlyOnce:
        """See ``ExactlyOnce``. From now on this store refuses the commits of the consumer that uses it."""
        self._is_theirs = True
        return ExactlyOnce(self, connection, group)

    # --- for ExactlyOnce ---

    def place_or_none(self, group: str, partition: TopicPartition) -> StoredOffset | None:
        """Where the partition stands, if it was loaded here."""
        with self._lock:
            self._forget_if_forked()
            return self._places.get((group, partition))

    def is_fenced(self, group: str, partition: TopicPartition, claim: str) -> bool:
        """Whether another owner has claimed the partition since, so that nothing is saved under ``claim`` any more."""
        with self._lock:
            return self._fenced.get((group, partition)) == claim

    def look_again(
        self, connection: Connection, group: str, partition: TopicPartition, place: StoredOffset
    ) -> StoredOffset:
        """Read the stored offset again, after a transaction whose outcome is not known."""
        with contextlib.closing(connection.cursor()) as cursor:
            self._run(connection, cursor, _LOOK, _key(group, partition))
            row = cursor.fetchone()
        if row is None or row[1] != place.claim or row[0] is None:
            return place
        self.moved(group, {partition: ConsumedSpan(place.claim, None, int(row[0]))})
        return StoredOffset(place.claim, int(row[0]))

    def save_within(self, connection: Connection, group: str, spans: Mapping[TopicPartition, ConsumedSpan]) -> None:
        """Move offsets in a transaction that the caller ends.

        Raises:
            OwnershipLostError: names those that stand elsewhere or were loaded again since; roll back then.
        """
        lost = []
        with contextlib.closing(connection.cursor()) as cursor:
            for partition, span in sorted(spans.items()):
                known = () if span.begin is None else (span.begin,)
                statement = _MOVE_FIRST if span.begin is None else _MOVE
                values = (span.end, self.log_of(group, partition), *_key(group, partition), span.claim, *known)
                self._run(connection, cursor, statement, values)
                if cursor.rowcount != 1:
                    lost.append(partition)
        if lost:
            with self._lock:
                for partition in lost:
                    place = self._places.get((group, partition))
                    if place is not None and place.claim == spans[partition].claim:
                        self._fenced[group, partition] = place.claim
            raise lost_error(lost, ": what was done with them is rolled back")

    def moved(self, group: str, spans: Mapping[TopicPartition, ConsumedSpan]) -> None:
        """Note that the transaction of ``save_within`` was committed: the offsets are at the spans' ends now."""
        with self._lock:
            for partition, span in spans.items():
                found = self._places.get((group, partition))
                if found is not None and found.claim == span.claim:
                    self._places[group, partition] = StoredOffset(span.claim, span.end)

    def _forget_if_forked(self) -> None:
        if os.getpid() != self._pid:  # a child after fork has claimed nothing
            self._pid = os.getpid()
            self._places, self._fenced, self._logs = {}, {}, {}

    def _save(
        self, connection: Connection, cursor: Cursor, group: str, partition: TopicPartition, claim: str, offset: int
    ) -> bool:
        key = _key(group, partition)
        self._run(connection, cursor, _SAVE, (offset, self.log_of(group, partition), *key, claim))
        if cursor.rowcount > 0:
            return True
        self._run(connection, cursor, _LOOK, key)  # some drivers do not count a row that was set to what it held
        row = cursor.fetchone()
        return row is not None and (row[0], row[1]) == (offset, claim)

    def _make_table(self, connection: Connection) -> None:
        if self._has_table:
            return
        with _transaction(connection) as cursor:
            cursor.execute(_TABLE_TEXT.format(table=self.table))
        try:
            with _transaction(connection) as cursor:
                cursor.execute(f"SELECT log_created FROM {self.table} WHERE 1 = 0")
                cursor.fetchone()
        except Exception:  # each driver has its own; a table of an earlier version has no such column
            with _transaction(connection) as cursor:
                cursor.execute(f"ALTER TABLE {self.table} ADD COLUMN log_created BIGINT")
        self._has_table = True

    def _run(self, connection: Connection, cursor: Cursor, statement: str, values: Sequence[Any]) -> None:
        style = self._paramstyle or _paramstyle_of(connection)
        text, parameters = _in_style(statement.format(table=self.table), values, style)
        cursor.execute(text, parameters)


_TABLE_TEXT = (
    "CREATE TABLE IF NOT EXISTS {table} (consumer_group VARCHAR(255) NOT NULL, topic VARCHAR(255) NOT NULL,"
    " broker_partition VARCHAR(32) NOT NULL, next_offset BIGINT, owner VARCHAR(32) NOT NULL, log_created BIGINT,"
    " PRIMARY KEY (consumer_group, topic, broker_partition))"
)
_WHERE = "WHERE consumer_group = ? AND topic = ? AND broker_partition = ?"
_CLAIM = f"UPDATE {{table}} SET owner = ? {_WHERE}"
_LOOK = f"SELECT next_offset, owner, log_created FROM {{table}} {_WHERE}"
_BEGIN = "INSERT INTO {table} (consumer_group, topic, broker_partition, next_offset, owner) VALUES (?, ?, ?, NULL, ?)"
_SAVE = f"UPDATE {{table}} SET next_offset = ?, log_created = ? {_WHERE} AND owner = ?"
_MOVE = f"{_SAVE} AND next_offset = ?"
_MOVE_FIRST = f"{_SAVE} AND next_offset IS NULL"

_STYLES: dict[str, Callable[[int], str]] = {
    "qmark": lambda number: "?",
    "numeric": lambda number: f":{number}",
    "named": lambda number: f":p{number}",
    "format": lambda number: "%s",
    "pyformat": lambda number: f"%(p{number})s",
}


def _key(group: str, partition: TopicPartition) -> tuple[str, str, str]:
    return group, partition.topic, str(partition.partition)


def _in_style(statement: str, values: Sequence[Any], style: str) -> tuple[str, Any]:
    """The statement with the driver's placeholders, and the values as it takes them."""
    numbers = iter(range(1, len(values) + 1))
    text = _PLACEHOLDER.sub(lambda _: _STYLES[style](next(numbers)), statement)
    if style in ("named", "pyformat"):
        return text, {f"p{number}": value for number, value in enumerate(values, 1)}
    return text, tuple(values)


def _paramstyle_of(connection: Connection) -> str:
    """What the module of the connection's class, or a package around it, says; the class may be derived from it."""
    for kind in type(connection).__mro__:
        module = kind.__module__
        while module:
            style = getattr(sys.modules.get(module), "paramstyle", None)
            if style in _STYLES:
                return str(style)
            module = module.rpartition(".")[0]
    raise ConfigError(f"{type(connection).__module__} does not say its paramstyle: pass paramstyle=")


@contextlib.contextmanager
def _transaction(connection: Connection) -> Iterator[Cursor]:
    with contextlib.closing(connection.cursor()) as cursor:
        try:
            yield cursor
            connection.commit()
        except BaseException:
            connection.rollback()
            raise

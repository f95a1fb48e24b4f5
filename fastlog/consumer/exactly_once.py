"""Consume, write to a database, commit: what messages did and how far they were read in one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ArgumentError, ConfigError, OwnershipLostError


class Connection(Protocol):
    """What is used of a DB-API connection."""

    def cursor(self) -> Any: ...
    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...
    def close(self) -> Any: ...


class ConsumedSpan(NamedTuple):
    """From where to where a transaction moves a partition, and under which claim; ``begin`` None: nothing was saved."""

    claim: str
    begin: int | None
    end: int


class StoredOffset(NamedTuple):
    """A partition as it was loaded, and moved since: the name of that claim, and what is saved."""

    claim: str
    offset: int | None


class SpanStore(Protocol):
    """What is used of ``DatabaseOffsets``."""

    def place_or_none(self, group: str, partition: TopicPartition) -> StoredOffset | None: ...
    def is_fenced(self, group: str, partition: TopicPartition, claim: str) -> bool: ...
    def look_again(
        self, connection: Connection, group: str, partition: TopicPartition, place: StoredOffset
    ) -> StoredOffset: ...
    def save_within(self, connection: Connection, group: str, spans: Mapping[TopicPartition, ConsumedSpan]) -> None: ...
    def moved(self, group: str, spans: Mapping[TopicPartition, ConsumedSpan]) -> None: ...


class Located(Protocol):
    """A message or a batch of one partition that knows where it is from; those of streams do.

    Those of streams also have ``place``, whose ``is_over`` says that the stream has lost the partition since.
    """

    @property
    def source(self) -> TopicPartition: ...
    @property
    def offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...


class LocatedBatch(Located, Protocol):
    """A batch of messages of one partition: iterable, with its place and next offset."""

    def __iter__(self) -> Iterator[Any]: ...


_Message = TypeVar("_Message", bound=Located)
_Batch = TypeVar("_Batch", bound=LocatedBatch)


class _Part(NamedTuple):
    """What a transaction is about: messages to be done, where it moves partitions, and where it begins."""

    fresh: Any
    spans: dict[TopicPartition, ConsumedSpan]
    begins: dict[TopicPartition, tuple[str, int]]


class ExactlyOnce:
    """Transactions of a program's own that hold what messages did and how far they were read, or neither.

        offsets = DatabaseOffsets(lambda: sqlite3.connect("views.db"))
        consumer = Consumer("localhost:2181", group_id="counters", auto_commit=False, store=offsets)
        (stream,) = consumer.create_message_streams({"views": 1})["views"]
        database = sqlite3.connect("views.db")
        once = offsets.exactly_once(database, "counters")
        for batch in stream.batches():
            with contextlib.suppress(OwnershipLostError), once(batch) as fresh:
                database.executemany("INSERT INTO view VALUES (?)", [(payload,) for payload in fresh])

    When the block ends, the offsets are saved and the transaction is committed; when it raises, it is rolled back, and
    the same messages may be tried again. A process that dies anywhere leaves a whole transaction or none, and whoever
    reads the partitions next goes on behind it. When they belong to somebody else by then, committing raises
    ``OwnershipLostError`` and rolls back: the messages are the other one's, and the next batch may be taken. Messages
    of several partitions have to be tried again then; those that were lost are left out.

    For one thread, that of the connection.
    """

    def __init__(self, offsets: SpanStore, connection: Connection, group: str) -> None:
        """Raises ``ConfigError`` when the connection commits each statement by itself."""
        if getattr(connection, "autocommit", False) is True or getattr(connection, "isolation_level", "") is None:
            raise ConfigError("the connection commits every statement by itself: a transaction has to hold several")
        self._offsets = offsets
        self._connection = connection
        self._group = group
        self._undone: dict[TopicPartition, tuple[str, int]] = {}

    @overload
    def __call__(self, messages: _Batch) -> contextlib.AbstractContextManager[_Batch | list[Any]]: ...

    @overload
    def __call__(self, messages: Iterable[_Message]) -> contextlib.AbstractContextManager[list[_Message]]: ...

    def __call__(self, messages: Any) -> contextlib.AbstractContextManager[Any]:
        """A transaction for a batch of one partition, or for messages of any; gives what is to be done of it.

        That is all of it, but for what the consumer has lost since, and what is in the database already.

        Raises:
            OwnershipLostError: some partitions are not this consumer's any more; nothing was committed.
            ArgumentError: it ends inside a compressed set, or does not go on where a transaction was rolled back.
        """
        return self._transaction(messages)

    @contextlib.contextmanager
    def _transaction(self, messages: Any) -> Iterator[Any]:
        part = self._part_of_batch(messages) if hasattr(messages, "next_offset") else self._part_of(list(messages))
        try:
            yield part.fresh
            self._offsets.save_within(self._connection, self._group, part.spans)
            self._connection.commit()
        except BaseException:
            self._undone.update(part.begins)
            self._connection.rollback()
            raise
        self._offsets.moved(self._group, part.spans)
        for partition in part.begins:
            self._undone.pop(partition, None)

    def _part_of_batch(self, batch: Located) -> _Part:
        place = self._place_of(batch)
        if place is None or (place.offset is not None and batch.next_offset <= place.offset):
            if place is not None:
                _check_back(batch, place.offset)
            return _Part([], {}, {})
        if place.offset is not None and batch.offset < place.offset:
            raise ArgumentError(
                f"{batch.source}: the batch from {batch.offset} to {batch.next_offset} is in the database up to"
                f" {place.offset}: batches have to be those of the stream, each whole"
            )
        _check_end(batch)
        span = ConsumedSpan(place.claim, place.offset, batch.next_offset)
        return _Part(batch, {batch.source: span}, {batch.source: (place.claim, batch.offset)})

    def _part_of(self, messages: list[Located]) -> _Part:
        places: dict[TopicPartition, StoredOffset | None] = {}
        begins: dict[TopicPartition, tuple[str, int]] = {}
        ends: dict[TopicPartition, Located] = {}
        fresh = []
        for message in messages:
            source = message.source
            if source not in places:
                place = places[source] = self._place_of(message)
                if place is not None:
                    begins[source] = (place.claim, message.offset)
            place = places[source]
            if place is not None and (place.offset is None or message.offset >= place.offset):
                fresh.append(message)
                ends[source] = message
            elif place is not None:
                _check_back(message, place.offset)
        spans = {}
        for source, last in ends.items():
            _check_end(last)
            place = places[source]
            assert place is not None
            spans[source] = ConsumedSpan(place.claim, place.offset, last.next_offset)
        return _Part(fresh, spans, begins)

    def _place_of(self, first: Located) -> StoredOffset | None:
        """Where its partition stands under the claim that it was read under; None when that one is over."""
        source = first.source
        place = self._offsets.place_or_none(self._group, source)
        if place is None:
            raise OwnershipLostError(
                f"{source} was not loaded from these offsets: is this the consumer's offset store?", [source]
            )
        is_over = getattr(getattr(first, "place", None), "is_over", False)
        if is_over or self._offsets.is_fenced(self._group, source, place.claim):
            return None  # looked at after the claim: what is not over yet was read under it
        undone = self._undone.get(source)
        if undone is None:
            return place
        claim, begin = undone
        if claim != place.claim:
            del self._undone[source]  # it was lost, and begun anew
            return place
        place = self._offsets.look_again(self._connection, self._group, source, place)
        if first.offset > begin and first.offset != place.offset:
            raise ArgumentError(
                f"{source}: a transaction that began at {begin} was rolled back, and these messages begin at"
                f" {first.offset}: try those again, or let the process end"
            )
        return place


def _check_back(first: Located, known: int | None) -> None:
    """What a jump back has led to is not done, though the database is further on: it speaks of what is gone."""
    back = getattr(getattr(first, "place", None), "back", -1)
    if known is not None and 0 <= back <= first.offset:
        raise ArgumentError(
            f"{first.source}: reading has gone back to {back}, since the log has ended before {known} or was made anew,"
            f" and the database stands at {known}: set next_offset of its row to {back} and start again"
        )


def _check_end(last: Located) -> None:
    if last.next_offset <= last.offset:
        raise ArgumentError(
            f"{last.source}: the messages end inside the compressed set at {last.offset}, which is saved whole or not"
            " at all: take batches of the stream as they come"
        )

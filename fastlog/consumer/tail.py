"""Where the last messages of a partition begin: counted backwards, piece by piece, without reading the whole log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from fastlog.consumer.broker_logs import MOST_SEGMENTS
from fastlog.consumer.fetched import MessageSet
from fastlog.consumer.simple import LATEST, SimpleConsumer
from fastlog.errors import ArgumentError, InvalidMessageError, OffsetOutOfRangeError, UnsupportedFeatureError

_STEP_BYTES = 256 * 1024
_MOST_BYTES = 16 * 2**20
_FETCH_BYTES = 1024 * 1024
_TRIES = 3


class Tail(NamedTuple):
    """Begin at ``offset`` and pass over ``skip`` messages: those of its compressed set that come before the last ones.

    ``skip`` is 0 unless the message at ``offset`` is a compressed set.
    """

    offset: int
    skip: int


def find_last(consumer: SimpleConsumer, topic: str, partition: int, count: int, end: int | None = None) -> Tail:
    """Return where the last ``count`` messages before ``end`` begin; the start of the log when it holds fewer.

    ``end`` is the end of a message; None is the end of what is visible now. Messages in compressed sets count one by
    one. A fastlog broker tells message boundaries near the end, so that about twice what is asked for is read; with a
    0.7 broker it is whole segments, the newest first.

    Raises:
        as ``SimpleConsumer.fetch``: also a damaged message among those that are counted.
    """
    if count < 0:
        raise ArgumentError(f"count: {count} is negative")
    for left in range(_TRIES - 1, -1, -1):
        try:
            return _find(consumer, topic, partition, count, end)
        except OffsetOutOfRangeError:
            if not left:
                raise
            # Retention took what was about to be read: the log is shorter now.
    raise AssertionError


def _find(consumer: SimpleConsumer, topic: str, partition: int, count: int, end: int | None) -> Tail:
    borders = consumer.get_offsets_before(topic, partition, LATEST, MOST_SEGMENTS)
    if end is None:
        end = borders[0] if borders else 0
    first = end
    wanted = count
    for start, stop in _pieces(consumer, topic, partition, [offset for offset in borders if offset < end], end):
        if wanted <= 0:
            break
        sets = [(found.offset, _count(found)) for found in _sets(consumer, topic, partition, start, stop)]
        held = sum(messages for _, messages in sets)
        if held >= wanted:
            return _within(consumer, topic, partition, sets, stop, held - wanted)
        wanted -= held
        first = start
    return Tail(first, 0)


def _pieces(
    consumer: SimpleConsumer, topic: str, partition: int, bases: list[int], end: int
) -> Iterator[tuple[int, int]]:
    """Ranges between message boundaries, from ``end`` backwards, each about twice as long as the one before."""
    stop = end
    size = _STEP_BYTES
    for base in bases:
        points = _boundaries(consumer, topic, partition, base, stop)
        while stop > base:
            at = max(0, bisect_right(points, max(base, stop - size)) - 1)
            yield points[at], stop
            stop = points[at]
            del points[at:]
            size = min(2 * size, _MOST_BYTES)


def _boundaries(consumer: SimpleConsumer, topic: str, partition: int, base: int, stop: int) -> list[int]:
    """Some message boundaries from ``base``, which is one, up to ``stop``; ``base`` alone where nobody tells more.

    Every request begins at a known boundary: the bytes of a message may look like another one.
    """
    points = [base]
    while True:
        try:
            found = consumer.cut_points(topic, partition, points[-1], stop, _STEP_BYTES)
        except UnsupportedFeatureError:
            return points
        # The broker walks so far in one request and then names the end.
        fresh = [offset for offset in found if points[-1] < offset < stop]
        if not fresh:
            return points
        points += fresh


def _sets(consumer: SimpleConsumer, topic: str, partition: int, start: int, stop: int) -> Iterator[MessageSet]:
    at = start
    while at < stop:
        found = consumer.fetch(topic, partition, at, min(_FETCH_BYTES, stop - at))
        if not found:
            raise InvalidMessageError(f"{topic}, partition {partition}: the log ends at {at}, before offset {stop}")
        yield found
        at = found.next_offset


def _count(found: MessageSet) -> int:
    return sum(span.count for span in found.spans())


def _within(
    consumer: SimpleConsumer, topic: str, partition: int, sets: list[tuple[int, int]], stop: int, before: int
) -> Tail:
    """The place behind the first ``before`` messages of these sets."""
    for offset, messages in sets:
        if before < messages:
            return _inside(next(_sets(consumer, topic, partition, offset, stop)), before)
        before -= messages
    return Tail(stop, 0)


def _inside(found: MessageSet, before: int) -> Tail:
    at, skip = found.offset, 0
    for message in found:
        if message.offset != at:
            at, skip = message.offset, 0
        if not before:
            break
        before -= 1
        skip += 1
    return Tail(at, skip)

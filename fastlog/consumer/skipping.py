"""Getting past a damaged message: where reading of a partition can go on behind it."""

from __future__ import annotations

from typing import NamedTuple

from fastlog._segment import LENGTH_BYTES, scan
from fastlog.consumer.broker_logs import MOST_SEGMENTS
from fastlog.consumer.simple import LATEST, SimpleConsumer
from fastlog.errors import BrokerError, InvalidFetchSizeError, InvalidMessageError, MessageTooLargeError

OF_ONE_MESSAGE = (InvalidMessageError, InvalidFetchSizeError, MessageTooLargeError)
"""What can be wrong with a message, so that going on behind it may help."""

_LEAST_LENGTH = 5
_LOOK_BYTES = 64 * 1024
_MOST_LENGTH = 2**30


class Skip(NamedTuple):
    """Bytes that are left out: from ``start`` up to ``end``, where a message that is whole begins, or the log ends."""

    start: int
    end: int
    entries: int | None
    """How many messages or compressed sets that are; None where their lengths are damaged, too."""


def find_end_of_damage(consumer: SimpleConsumer, topic: str, partition: int, offset: int) -> Skip:
    """The message at ``offset``, and those behind it that are damaged as well.

    By their lengths, as far as these lead to a message that is whole; otherwise the rest of the segment is left out.

    Raises:
        TransportError: the broker cannot be reached.
        BrokerError: it refuses.
    """
    ends = consumer.get_offsets_before(topic, partition, LATEST, MOST_SEGMENTS)
    end = ends[0] if ends else offset
    at, entries = offset, 0
    while at < end:
        length = _length_at(consumer, topic, partition, at)
        if not _LEAST_LENGTH <= length <= min(_MOST_LENGTH, end - at - LENGTH_BYTES):
            return Skip(offset, min((border for border in ends if border > offset), default=end), None)
        at += LENGTH_BYTES + length
        entries += 1
        if at == end or _is_whole(consumer, topic, partition, at):
            break
    return Skip(offset, max(at, offset), entries)


def _length_at(consumer: SimpleConsumer, topic: str, partition: int, offset: int) -> int:
    data = consumer.fetch_unchecked(topic, partition, offset, LENGTH_BYTES)
    return int.from_bytes(data, "big", signed=True) if len(data) == LENGTH_BYTES else 0


def _is_whole(consumer: SimpleConsumer, topic: str, partition: int, offset: int) -> bool:
    try:
        return scan(consumer.fetch(topic, partition, offset, _LOOK_BYTES).data).valid_bytes > 0
    except BrokerError as error:
        if isinstance(error, OF_ONE_MESSAGE):
            return False
        raise

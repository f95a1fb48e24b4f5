"""Where the message behind a damaged one begins, where that can be known."""

from __future__ import annotations

from fastlog._segment import SCAN_TAIL, scan
from fastlog.client.addresses import Address
from fastlog.client.connection import Broker, Connection
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import DecompressionLimitError, InvalidFetchSizeError, InvalidMessageError, error_for
from fastlog.message import deep
from fastlog.wire import requests, responses
from fastlog.wire.fields import INT32

_LEAST_MESSAGE_BYTES = 5
_MOST_MESSAGE_BYTES = 2**30
_BEHIND_BYTES = 64 * 1024


def behind_damage(address: Address, source: TopicPartition, offset: int, seconds: float) -> int | None:
    """The offset behind the damaged message at this one, if a whole message is there, or the log ends there; else None.

    Then the length of the damaged one is what it was. Without that nobody knows where the next one begins. None also
    where it is whole by now, as after an error of the disk that has passed: it is to be read, and not left out.

    Raises:
        TransportError, BrokerError: the broker cannot be reached, or refuses.
    """
    with Broker([address], seconds).connect() as connection:
        try:
            size = _length(_fetched(connection, source, offset, INT32.size))
        except InvalidMessageError:  # fastlog does not send it, but knows where messages begin
            found = _next_boundary(connection, source, offset)
        else:
            found = offset + size if size is not None else None
        if found is None:
            return None
        try:
            behind = _fetched(connection, source, found, _BEHIND_BYTES)
        except InvalidMessageError:
            return None
        result = scan(behind)
        if len(behind) and not result.valid_bytes and result.status != SCAN_TAIL:
            return None
        return found if _is_damaged(connection, source, offset, found - offset) else None


def _is_damaged(connection: Connection, source: TopicPartition, offset: int, size: int) -> bool:
    try:
        for _ in deep(_fetched(connection, source, offset, size)):
            pass
    except (InvalidMessageError, InvalidFetchSizeError, DecompressionLimitError):
        return True
    return False


def _fetched(connection: Connection, source: TopicPartition, offset: int, size: int) -> memoryview:
    frame = requests.encode_fetch(source.topic, source.partition.partition, offset, size)
    error, data = responses.split_fetch(memoryview(connection.request(frame)))
    if error:
        raise error_for(error, topic=source.topic, partition=source.partition.partition, offset=offset)
    return data


def _length(data: memoryview) -> int | None:
    if len(data) < INT32.size:
        return None
    size: int = INT32.unpack_from(data)[0]
    return INT32.size + size if _LEAST_MESSAGE_BYTES <= size <= _MOST_MESSAGE_BYTES else None


def _next_boundary(connection: Connection, source: TopicPartition, offset: int) -> int | None:
    topic, number = source.topic, source.partition.partition
    ends = responses.decode_offsets(connection.request(requests.encode_offsets(topic, number, requests.TIME_LATEST, 1)))
    if not ends.offsets or ends.offsets[0] <= offset + 1:
        return None
    frame = requests.encode_cut_points(0, topic, number, offset + 1, ends.offsets[0], 1, 1)
    answer = responses.decode_cut_points(connection.request(frame))
    if answer.error:
        raise error_for(answer.error, topic=topic, partition=number, offset=offset)
    return answer.offsets[0] if answer.offsets else None

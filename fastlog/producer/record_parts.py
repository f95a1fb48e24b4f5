"""What a call gives a record besides its value, and what a topic of Kafka 0.7 has no room for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fastlog.errors import UnsupportedFeatureError
from fastlog.producer._buffer import Buffer
from fastlog.producer._parts import Parts
from fastlog.producer.hooks import ProducerData, payload_of
from fastlog.producer.partitioners import key_bytes

if TYPE_CHECKING:
    from fastlog.producer._parts import Headers


def kept_headers(headers: Headers | None) -> Headers | None:
    """The same headers for whoever needs them later, or twice: a program may change its own, and an iterator ends.

    What headers cannot be is let through; ``Parts`` refuses it.
    """
    if isinstance(headers, Mapping):
        return tuple(headers.items())
    if headers is None or isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        return headers
    return tuple(headers)


def parts_of(
    item: ProducerData, headers: Headers | None, payloads: Sequence[bytes | None], buffer: Buffer
) -> Parts | None:
    """Key, headers and time of the records; None for messages, of which a key only chooses the partition.

    ``headers``: those of the item, which may be an iterator.

    Raises:
        UnsupportedFeatureError: messages would lose headers or a time.
        ArgumentError: one of them has a wrong type, or a message is null.
    """
    if buffer.lane is not None:
        key = None if item.key is None else key_bytes(item.key)
        return Parts(key, headers, item.timestamp)
    for name, given in (("headers", headers), ("a timestamp", item.timestamp)):
        if given is not None:
            raise UnsupportedFeatureError(
                f"messages of Kafka 0.7 have no room for {name}: a topic of record batches has"
                " (fastlog topics create --format records), for producers with broker.list"
            ).at(topic=item.topic)
    if None in payloads:
        payload_of(None)
    return None

"""The envelope of single messages: time and server of a message, and by choice its schema, key and deduplication id.

It is a prefix of the payload that producers write when they are configured to and that readers have to expect; brokers
never look at it. Many messages at once: ``fastlog._envelope.split``. The bytes: ``docs/format.md``.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from fastlog import _envelope
from fastlog.errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Envelope(NamedTuple):
    """Who made a message, and when.

    ``time_ms`` counts from 1970, by the clock of the server; ``server_id`` and ``schema_id`` are 0 … 2³²-1;
    ``deduplication_id`` has at most 255 bytes and is the same in each copy of one message.
    """

    time_ms: int
    server_id: int
    schema_id: int | None = None
    key: bytes | None = None
    deduplication_id: bytes | None = None


def wrap(payload: Buffer, envelope: Envelope) -> bytes:
    """Return the payload of a message with this envelope around ``payload``.

    Raises:
        ValueError: a field is out of its range.
    """
    try:
        return _envelope.encode(payload, *envelope)
    except OverflowError as error:
        raise ArgumentError(f"{envelope!r}: {error}") from error


def unwrap(payload: Buffer) -> tuple[Envelope, bytes]:
    """Return the envelope of a message's payload, and what is in it.

    Raises:
        EnvelopeError: the payload does not begin with a valid envelope; says why.
    """
    time_ms, server_id, schema_id, key, deduplication_id, value = _envelope.decode(payload)
    return Envelope(time_ms, server_id, schema_id, key, deduplication_id), value


def server_id_of(name: str) -> int:
    """The id of a server that has only a name: the CRC-32 of the name in UTF-8."""
    return zlib.crc32(name.encode())

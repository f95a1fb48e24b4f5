"""The envelope: what a payload may begin with when its producer and its readers have agreed on it.

``docs/format.md`` has the bytes; ``fastlog.envelope`` is for single messages.
"""

from typing import Any, NamedTuple

import numpy
from typing_extensions import Buffer

_Int64 = numpy.ndarray[Any, numpy.dtype[numpy.int64]]
_UInt32 = numpy.ndarray[Any, numpy.dtype[numpy.uint32]]

class Columns(NamedTuple):
    """The envelopes of many messages, one item for each; places are in the buffer they were split from.

    A length of -1 says that the message has no key or no deduplication id, a schema id of -1 that it has none. A
    message without a valid envelope is all value, of server 0 and time 0, and its index is in ``bad``.
    """

    time_ms: _Int64
    server_id: _UInt32
    schema_ids: _Int64
    key_starts: _Int64
    key_lengths: _Int64
    deduplication_starts: _Int64
    deduplication_lengths: _Int64
    value_starts: _Int64
    value_lengths: _Int64
    bad: _Int64

def encode(
    value: Buffer,
    time_ms: int,
    server_id: int,
    schema_id: int | None = None,
    key: bytes | None = None,
    deduplication_id: bytes | None = None,
) -> bytes:
    """Return a payload that begins with this envelope and goes on with ``value``.

    Raises:
        OverflowError: the time is outside of 64 bits, an id is outside of 0 … 2³²-1.
        ValueError: the key or the deduplication id is too long.
    """

def decode(payload: Buffer) -> tuple[int, int, int | None, bytes | None, bytes | None, bytes]:
    """Return time, server id, schema id, key, deduplication id and value of a payload.

    Raises:
        EnvelopeError: the payload does not begin with a valid envelope; says why.
    """

def split(buffer: Buffer, starts: Any, lengths: Any) -> Columns:
    """Return the envelopes of the messages that lie at ``starts`` and ``lengths`` of ``buffer``, and their values.

    ``starts`` and ``lengths`` are arrays of whole numbers, as those of ``NumpyBatch``. The GIL is released.

    Raises:
        ValueError: the arrays differ in length, or a message lies outside the buffer.
        BufferError: the buffer does not lie in one piece.
    """

"""Checks, reads and builds the uncompressed records of a batch of magic 2.

Every function is safe in any thread and process, as long as nobody writes into the buffer during the call.
``_records.pyx`` opens with the table of the bytes.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from typing_extensions import Buffer

RECORDS_OK: Final = 0
RECORDS_TAIL: Final = 1
RECORDS_LEFT: Final = 2
RECORDS_COUNT: Final = 3
RECORDS_VARINT: Final = 4
RECORDS_LENGTH: Final = 5
RECORDS_FIELD: Final = 6
RECORDS_OFFSET: Final = 7
RECORDS_TIMESTAMP: Final = 8

class RecordsResult(NamedTuple):
    """What one walk over records found."""

    status: int
    """Why the walk ended: one of the ``RECORDS_`` numbers."""
    valid_bytes: int
    """End of the last whole and valid record."""
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    """Records before ``valid_bytes``."""
    max_timestamp: int | None
    """The largest timestamp of these, in milliseconds; None when there are none."""
    max_timestamp_delta: int | None
    """Offset of the first record that has it, minus the batch's base offset; None when there are none."""

def walk(buffer: Buffer, count: int, base_timestamp: int = 0) -> RecordsResult:
    """Check that the bytes are exactly ``count`` records of a batch with this base timestamp.

    ``RECORDS_OK``: they are. Otherwise the status names the first thing that is wrong: ``RECORDS_TAIL`` the bytes end
    too early, ``RECORDS_LEFT`` they go on behind the last record, ``RECORDS_COUNT`` a count that is negative or above
    2³¹-1, ``RECORDS_VARINT`` a number that does not fit its type, ``RECORDS_LENGTH`` a record is longer or shorter than
    its fields, ``RECORDS_FIELD`` a field's length or a number of headers is negative where it cannot be,
    ``RECORDS_OFFSET`` offset deltas are not 0, 1, 2 …, ``RECORDS_TIMESTAMP`` a timestamp leaves 64 bits. The GIL is
    released for long spans.

    Raises:
        OverflowError: ``count`` or ``base_timestamp`` does not fit 64 bits.
    """

def entries(
    buffer: Buffer, count: int, base_timestamp: int = 0, base_offset: int = 0
) -> list[tuple[bytes | None, bytes | None, int, tuple[tuple[bytes, bytes | None], ...], int]]:
    """Return ``(key, value, timestamp, headers, offset)`` of each record that is whole and valid.

    Stops before the first one that is not; ``walk`` tells why.

    Raises:
        ValueError: ``base_offset`` is negative or so high that offsets would leave 64 bits.
        OverflowError: as for ``walk``.
    """

def pack(
    records: Iterable[tuple[bytes | None, bytes | None, int, Iterable[tuple[bytes, bytes | None]]]],
    base_timestamp: int = 0,
) -> bytes:
    """Return the bytes of records ``(key, value, timestamp, headers)``, offset deltas from 0 on, attributes 0.

    Raises:
        TypeError: a key, value or header is not ``bytes``, or None where it cannot be.
        ValueError: a record is too long for its length field, or a timestamp more than 64 bits from the base timestamp.
        OverflowError: a timestamp does not fit 64 bits.
    """

"""Checks and reads the uncompressed records of a batch of magic 2.

Every function is safe in any thread and process, as long as nobody writes into the buffer during the call.
``_records.pyx`` opens with the table of the bytes.
"""

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

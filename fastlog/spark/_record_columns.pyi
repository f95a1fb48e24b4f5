"""The columns of Arrow batches out of record batches: one walk over checked records, no object for any of them.

Everything here is for one thread at a time.
"""

from collections.abc import Container
from typing import Any

from fastlog._record_batch import RecordSpan

class Bytes:
    """A column of bytes behind one another, some of which may be missing."""

    data: Any
    """numpy, bytes: the rows one after the other, and room that was left."""
    ends: Any
    """numpy, int32, one more than rows: ``ends[i + 1]`` is where row i ends in ``data``."""
    valid: Any
    """numpy, bytes: 0 where a row is missing."""

    def __init__(self, count: int, room: int) -> None:
        """Room for so many rows, and for their bytes. Raises ``ValueError`` above 2³¹-1 bytes."""

class Cursor:
    """Where in a span it goes on."""

    def __init__(self, span: RecordSpan, end: int) -> None:
        """It ends before the record with the offset ``end``, where that is inside the span."""
    @property
    def left(self) -> int:
        """Records that were not taken yet."""

    def needed(self) -> tuple[int, int]:
        """How many bytes the next record has, and how many headers. Raises ``BufferError``: there is none."""

class Rows:
    """The rows of one Arrow batch; columns that are not wanted are None."""

    offsets: Any
    next_offsets: Any
    times: Any
    """Microseconds since 1970."""
    has_time: Any
    """numpy, bytes: 0 where a record has no time, or one that microseconds of 64 bits cannot say."""
    types: Any
    """0: the time was set by the producer, 1: by the broker."""
    keys: Bytes | None
    values: Bytes | None
    header_ends: Any
    """numpy, int32: the headers of row i end at ``header_ends[i + 1]``, in these two:"""
    names: Bytes | None
    contents: Bytes | None
    count: int
    """Rows that were taken."""

    def __init__(self, wanted: Container[str], rows: int, room: int, headers: int) -> None:
        """Room for so many rows, for so many bytes in each of their columns, and for so many headers of all of them.

        ``wanted`` has the names of columns that the source has for users.
        """

    def take(self, cursor: Cursor) -> bool:
        """Take records until there is no room for the next one; whether the span has no more. The GIL is released.

        Raises:
            BufferError: the bytes have changed since the span was made.
        """

"""Reads the record batches of a Fetch answer: checks them, opens them, and finds the fields of their records.

Safe in any thread and process, as long as nobody writes into the bytes during a call; a span or an iterator is for one
thread at a time. Compiled code of other modules ``cimport``s the steps: ``read_batch``, ``begin_records``,
``next_record``, or a ``RecordSpan`` with its walk.
"""

from typing import Any, Final, NamedTuple, Protocol, Self

from typing_extensions import Buffer

BATCHES_OK: Final = 0
BATCHES_TAIL: Final = 1
BATCHES_MAGIC: Final = 2
BATCHES_LENGTH: Final = 3
BATCHES_CRC: Final = 4
BATCHES_ATTRIBUTES: Final = 5
BATCHES_COUNT: Final = 6
BATCHES_OFFSET: Final = 7

_Array = Any  # whatever gives a buffer of the right type; numpy's arrays do not tell mypy that they do

class _Limits(Protocol):
    """``fastlog.message.DeepLimits``."""

    @property
    def max_inflated_bytes(self) -> int: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def max_messages(self) -> int: ...

class BatchScan(NamedTuple):
    """What one walk over batches found."""

    valid_bytes: int
    """End of the last batch that is whole and has the right checksum: where the walk stopped."""
    batches: int
    """Batches before ``valid_bytes``."""
    records: int
    """What the headers of these say they hold, control batches left out; where none is compressed, at most so many."""
    compressed: int
    """Of these batches, compressed ones; control batches are none."""
    next_offset: int
    """Where to go on behind them."""
    status: int
    """Why the walk stopped: one of the ``BATCHES_`` numbers."""

def scan_batches(data: Buffer, offset: int = 0) -> BatchScan:
    """Return how far the batches are whole and valid as far as their headers and checksums tell, and why it ends there.

    ``offset`` is what was asked for: ``next_offset`` is never below. ``BATCHES_OK``: the bytes end with a batch.
    ``BATCHES_TAIL``: they end inside one. Records are not looked at. The GIL is released.
    """

class RecordSpan:
    """The records of one batch from some offset on, decompressed and checked; there is one at least."""

    buffer: memoryview | bytes
    """What they lie in: a part of what was fetched, or what was decompressed."""
    start: int
    """Where the first of them begins there; the last one ends with the buffer."""
    offset: int
    """Of the first of them, or what was asked for, where that has no record."""
    @property
    def count(self) -> int:
        """How many they are."""

    @property
    def next_offset(self) -> int:
        """Where to go on behind the batch."""

    @property
    def records(self) -> memoryview:
        """Their bytes, for ``index_records``."""

class RecordSpans:
    """The spans of some bytes, which begin with a batch and may end inside one: that one is left out.

    Control batches and records before the offset are left out as well.

    Raises (on reaching it, and then each time):
        InvalidMessageError: a batch or one of its records is damaged; ``offset`` is where. What is before it came.
        InvalidFetchSizeError: already the first batch is longer than the bytes.
        DecompressionLimitError: a batch goes over a limit.
        MissingCodecError: the library for its codec is not installed.
    """

    def __init__(self, data: Buffer, offset: int, limits: _Limits, checked_bytes: int = 0) -> None:
        """``checked_bytes``: so many ``scan_batches`` has found valid; their checksums are not made again."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> RecordSpan: ...

def entries(
    span: RecordSpan,
) -> list[tuple[bytes | None, bytes | None, int, tuple[tuple[bytes, bytes | None], ...], int]]:
    """Return ``(key, value, timestamp, headers, offset)`` of each record of a span."""

def headers_at(data: Buffer, start: int, count: int) -> tuple[tuple[bytes, bytes | None], ...]:
    """Return the headers of a record, from where an array of their starts points to.

    Raises:
        ValueError: so many do not stand there.
    """

def index_headers(data: Buffer, starts: _Array, counts: _Array, places: _Array, lengths: _Array) -> int:
    """Write where the headers of records lie into two arrays, one record behind the other; return how many there are.

    ``starts`` (int64) and ``counts`` (int32) are what ``index_records`` wrote of each record. ``places`` (int64) has
    two rows: where the names and the values start in ``data``; ``lengths`` (int32) theirs, -1 for a value that is null.
    The GIL is released.

    Raises:
        ValueError: so many headers do not stand there; the arrays have not the room, or another form.
    """

def index_records(span: RecordSpan, shift: int, first: int, places: _Array, lengths: _Array) -> int:
    """Write where the records of a span lie into two arrays, from column ``first`` on; return the column behind them.

    ``places`` (int64) has six rows: offsets, next offsets, where the values, the keys and the headers start, counted
    from ``shift``, the place of the span's first byte; and timestamps. ``lengths`` (int32) has three: the lengths of
    values and keys, -1 for null, and the numbers of headers. The GIL is released.

    Raises:
        BufferError: the bytes have changed since the span was made.
        ValueError: the arrays have not the room, or another form.
    """

def index_batches(
    data: Buffer, offset: int, most_records: int, checked_bytes: int, places: _Array, lengths: _Array
) -> tuple[int, int, Exception | None]:
    """The same for all records from an offset on of bytes whose batches are not compressed, in one go.

    No object is made for a record or a batch; ``checked_bytes`` as for ``RecordSpans``. Places count from the
    beginning of ``data``.

    Returns:
        How many records there were, where to go on behind them, and what keeps the next batch from being read, as
        ``RecordSpans`` would raise it: a batch is taken whole or not at all.

    Raises:
        ValueError: a batch is compressed; the arrays have not the room (``BatchScan.records`` is enough), or another
            form.
    """

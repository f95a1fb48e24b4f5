"""The columns of a scan: messages and records as Arrow, out of arrays; what is not wanted is not made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastlog import _record_batch
from fastlog.consumer.fetched import NumpyBatch, binary_column, pyarrow_library
from fastlog.errors import ArgumentError
from fastlog.scanning.parts import Part

MESSAGE_COLUMNS = ("topic", "partition", "offset", "next_offset", "payload")
"""The columns of topics of Kafka 0.7."""
RECORD_COLUMNS = (*MESSAGE_COLUMNS, "key", "timestamp", "headers")
"""The columns of topics of record batches."""
_MAY_BE_NULL = frozenset(("payload", "key", "timestamp"))


def schema(columns: Sequence[str], *, of_records: bool) -> Any:
    """The Arrow schema of a batch with these columns. Only of records a field may be null."""
    arrow = pyarrow_library()
    header = arrow.struct([arrow.field("key", arrow.string(), nullable=False), arrow.field("value", arrow.binary())])
    types = {
        "topic": arrow.dictionary(arrow.int32(), arrow.string()),
        "partition": arrow.int32(),
        "offset": arrow.int64(),
        "next_offset": arrow.int64(),
        "payload": arrow.binary(),
        "key": arrow.binary(),
        "timestamp": arrow.timestamp("ms", tz="UTC"),
        "headers": arrow.list_(arrow.field("item", header, nullable=False)),
    }
    return arrow.schema(
        [arrow.field(name, types[name], nullable=of_records and name in _MAY_BE_NULL) for name in columns]
    )


def checked_columns(wanted: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """The columns that are wanted, all of them by default.

    Raises:
        ArgumentError: one is not there, or named twice, or none is.
    """
    if wanted is None:
        return tuple(known)
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) < len(names):
        raise ArgumentError(f"columns: {names!r:.100} are not some of {', '.join(known)}, each once")
    return names


def record_batch(batch: NumpyBatch, first: int, last: int, wanted: Any, topics: Sequence[str], dictionary: Any) -> Any:
    """Messages ``first`` up to before ``last`` of a batch, in the columns of the schema ``wanted``."""
    import numpy as np

    arrow = pyarrow_library()
    count = last - first
    made = []
    for field in wanted:
        name = field.name
        if name == "topic":
            indices = arrow.array(np.full(count, topics.index(batch.topic), np.int32))
            made.append(arrow.DictionaryArray.from_arrays(indices, dictionary))
        elif name == "partition":
            made.append(arrow.array(np.full(count, batch.partition, np.int32)))
        elif name == "offset":
            made.append(arrow.array(batch.offsets[first:last]))
        elif name == "next_offset":
            made.append(arrow.array(batch.next_offsets[first:last]))
        elif name == "payload":
            made.append(binary_column(batch.buffer, batch.starts[first:last], batch.lengths[first:last]))
        elif name == "key":
            assert batch.key_starts is not None and batch.key_lengths is not None
            made.append(binary_column(batch.buffer, batch.key_starts[first:last], batch.key_lengths[first:last]))
        elif name == "timestamp":
            assert batch.timestamps is not None
            made.append(_times(batch.timestamps[first:last], field.type))
        else:
            assert batch.header_starts is not None and batch.header_counts is not None
            made.append(
                _headers(batch.buffer, batch.header_starts[first:last], batch.header_counts[first:last], field.type)
            )
    return arrow.RecordBatch.from_arrays(made, schema=wanted)


def arrow_of(found: Iterator[NumpyBatch], part: Part, wanted: Any, topics: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Batches from the start of ``part`` or before it on, as record batches of the messages that are in it.

    With each comes how many offsets have been passed since the one before. ``wanted`` is a schema.
    """
    dictionary = pyarrow_library().array(list(topics), pyarrow_library().string())
    at = part.start
    for batch in found:
        first = int(batch.offsets.searchsorted(part.start, "left"))
        last = int(batch.offsets.searchsorted(part.end, "left"))
        if first < last:
            came = min(batch.next_offset, part.end) - at
            yield max(0, came), record_batch(batch, first, last, wanted, topics, dictionary)
            at += max(0, came)
        if batch.next_offset >= part.end:
            return


def _times(timestamps: Any, kind: Any) -> Any:
    """Milliseconds as times; none where a record has none."""
    import numpy as np

    arrow = pyarrow_library()
    valid = None
    if len(timestamps) and timestamps.min() < 0:
        valid = arrow.py_buffer(np.packbits(timestamps >= 0, bitorder="little"))
    return arrow.Array.from_buffers(kind, len(timestamps), [valid, arrow.py_buffer(np.ascontiguousarray(timestamps))])


def _headers(buffer: Any, starts: Any, counts: Any, kind: Any) -> Any:
    """The headers as an Arrow array of lists, one for each record; empty where it has none."""
    import numpy as np

    arrow = pyarrow_library()
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    total = int(ends[-1])
    places, lengths = np.empty((2, total), np.int64), np.empty((2, total), np.int32)
    _record_batch.index_headers(buffer, starts, counts, places, lengths)
    names = _text(binary_column(buffer, places[0], lengths[0]))
    values = binary_column(buffer, places[1], lengths[1])
    pairs = arrow.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    return arrow.Array.from_buffers(kind, len(counts), [None, arrow.py_buffer(ends)], children=[pairs])


def _text(names: Any) -> Any:
    """Names as text; what is no UTF-8 in them is replaced, as Java's clients do it."""
    arrow = pyarrow_library()
    try:
        return names.cast(arrow.string())
    except arrow.ArrowInvalid:
        return arrow.array([name.decode(errors="replace") for name in names.to_pylist()], arrow.string())

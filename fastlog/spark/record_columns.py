"""Arrow batches out of record batches, in the schema that Spark wants. Needs pyarrow; knows no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from fastlog._record_batch import RecordSpan
from fastlog.spark._record_columns import Bytes, Cursor, Rows
from fastlog.spark.columns import ARROW_TYPES, BATCH_BYTES, Repeated

BATCH_ROWS = 32768
"""The most rows of one Arrow batch."""


class RecordMaker:
    """Makes the batches of one partition; for one thread.

    ``fields`` are the columns, and whether each may be null as far as Spark knows: it compares schemas.
    """

    def __init__(self, fields: Sequence[tuple[str, bool]], topic: str, broker: int, partition: int) -> None:
        self._names = [name for name, _ in fields]
        self._schema = pa.schema([pa.field(name, ARROW_TYPES[name], nullable) for name, nullable in fields])
        numbers = {"broker": broker, "partition": partition, "idx": 0}
        self._same = {
            name: Repeated(lambda count, number=number: pa.array(np.full(count, number, np.int32)))  # type: ignore[misc]
            for name, number in numbers.items()
        }
        self._same["topic"] = Repeated(lambda count: pa.repeat(pa.scalar(topic, pa.string()), count))
        for name in ("server", "schemaId", "deduplicationId"):
            self._same[name] = Repeated(lambda count, name=name: pa.nulls(count, ARROW_TYPES[name]))  # type: ignore[misc]

    def batches(self, spans: Iterable[RecordSpan], end: int) -> Iterator[pa.RecordBatch]:
        """The records of spans before the offset ``end``, of several in one batch where they are short.

        Raises what the spans raise.
        """
        rows: Rows | None = None
        for span in spans:
            cursor = Cursor(span, end)
            while cursor.left:
                if rows is None:
                    size, headers = cursor.needed()
                    rows = Rows(self._names, BATCH_ROWS, max(BATCH_BYTES, size), max(BATCH_ROWS, headers))
                if rows.take(cursor) and rows.count < BATCH_ROWS:
                    break
                yield self._made(rows)
                rows = None
        if rows is not None:
            yield self._made(rows)

    def _made(self, rows: Rows) -> pa.RecordBatch:
        arrays = [self._array(name, rows) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, rows: Rows) -> pa.Array:
        count, kind = rows.count, ARROW_TYPES[name]
        if name in self._same:
            return self._same[name].first(count)
        if name == "headers":
            return _headers(rows)
        found = {"key": rows.keys, "value": rows.values}.get(name)
        if found is not None:
            return _bytes(found, count, kind)
        numbers = {
            "offset": rows.offsets,
            "nextOffset": rows.next_offsets,
            "timestamp": rows.times,
            "timestampType": rows.types,
        }[name]
        valid = _bits(rows.has_time[:count]) if name == "timestamp" else None
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(numbers[:count])])


def _bits(flags: Any) -> pa.Buffer | None:
    return None if flags.all() else pa.py_buffer(np.packbits(flags, bitorder="little"))


def _bytes(column: Bytes, count: int, kind: pa.DataType) -> pa.Array:
    ends = column.ends[: count + 1]
    buffers = [_bits(column.valid[:count]), pa.py_buffer(ends), pa.py_buffer(column.data[: ends[count]])]
    return pa.Array.from_buffers(kind, count, buffers)


def _headers(rows: Rows) -> pa.Array:
    """A row without headers is null, as with Spark's source for Kafka."""
    assert rows.names is not None and rows.contents is not None
    ends = rows.header_ends[: rows.count + 1]
    total = int(ends[-1])
    names, contents = _bytes(rows.names, total, pa.binary()), _bytes(rows.contents, total, pa.binary())
    kind = ARROW_TYPES["headers"].value_type
    pairs = pa.StructArray.from_arrays([_text(names), contents], fields=list(kind))
    has_any = (np.diff(ends) > 0).astype(np.uint8)
    buffers = [_bits(has_any), pa.py_buffer(ends)]
    return pa.Array.from_buffers(ARROW_TYPES["headers"], rows.count, buffers, children=[pairs])


def _text(names: pa.Array) -> pa.Array:
    """Names as text; bytes that are no UTF-8 are replaced, as Java's clients do it."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())

"""Record batches out of fetched messages, in the schema that Spark wants. Needs pyarrow; knows no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from fastlog.message import HEADER_BYTES, Span
from fastlog.spark import _columns

BATCH_BYTES = 2 * 2**20
"""Entries in one batch, about: larger and smaller ones are slower on their way into the JVM."""

_LEAST_HEADER = min(HEADER_BYTES.values())

ARROW_TYPES = {
    "topic": pa.string(),
    "broker": pa.int32(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "idx": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "key": pa.binary(),
    "value": pa.binary(),
    "nextOffset": pa.int64(),
}


class BatchMaker:
    """Makes the batches of one partition; for one thread.

    ``fields`` are the columns, and whether each may be null as far as Spark knows: it compares schemas.
    """

    def __init__(self, fields: Sequence[tuple[str, bool]], topic: str, broker: int, partition: int) -> None:
        self._names = [name for name, _ in fields]
        self._schema = pa.schema([pa.field(name, ARROW_TYPES[name], nullable) for name, nullable in fields])
        self._same: dict[str, _Repeated] = {
            "topic": _Repeated(lambda count: pa.repeat(pa.scalar(topic, pa.string()), count)),
            "broker": _Repeated(lambda count: pa.array(np.full(count, broker, np.int32))),
            "partition": _Repeated(lambda count: pa.array(np.full(count, partition, np.int32))),
            "timestamp": _Repeated(lambda count: pa.nulls(count, ARROW_TYPES["timestamp"])),
            "key": _Repeated(lambda count: pa.nulls(count, ARROW_TYPES["key"])),
        }

    def batches(self, spans: Iterable[Span]) -> Iterator[pa.RecordBatch]:
        """The messages of spans, which are held until their batch is full. Raises what the spans raise."""
        held: list[tuple[Span, int]] = []
        held_bytes = 0
        wrapper, index = -1, 0
        for span in spans:
            if held and held_bytes + len(span.entries) > BATCH_BYTES:
                yield self._made(held, held_bytes)
                held, held_bytes = [], 0
            if not span.inner:
                wrapper, index = -1, 0
            elif span.offset != wrapper:
                wrapper, index = span.offset, 0
            held.append((span, index))
            held_bytes += len(span.entries)
            index += span.count
        if held:
            yield self._made(held, held_bytes)

    def _made(self, spans: Sequence[tuple[Span, int]], size_bytes: int) -> pa.RecordBatch:
        count = sum(span.count for span, _ in spans)
        offsets = self._numbers("offset", count, np.int64)
        next_offsets = self._numbers("nextOffset", count, np.int64)
        indexes = self._numbers("idx", count, np.int32)
        ends = values = None
        if "value" in self._names:
            ends = np.zeros(count + 1, np.int32)
            values = np.empty(size_bytes - _LEAST_HEADER * count, np.uint8)
        row = 0
        for span, index in spans:
            _columns.fill(
                span.entries,
                span.count,
                span.offset,
                span.next_offset,
                span.inner,
                index if span.inner else 0,
                row,
                offsets,
                next_offsets,
                indexes,
                ends,
                values,
            )
            row += span.count
        made: dict[str, pa.Array] = {}
        for name, numbers in (("offset", offsets), ("nextOffset", next_offsets), ("idx", indexes)):
            if numbers is not None:
                made[name] = pa.Array.from_buffers(ARROW_TYPES[name], count, [None, pa.py_buffer(numbers)])
        if ends is not None and values is not None:
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(values[: ends[count]])]
            made["value"] = pa.Array.from_buffers(pa.binary(), count, buffers)
        arrays = [made[name] if name in made else self._same[name].first(count) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _numbers(self, name: str, count: int, kind: type[np.signedinteger[Any]]) -> np.ndarray[Any, Any] | None:
        return np.empty(count, kind) if name in self._names else None


class _Repeated:
    """A column that is the same in every row, made once for the longest batch so far."""

    def __init__(self, make: Callable[[int], pa.Array]) -> None:
        self._make = make
        self._made: pa.Array | None = None

    def first(self, count: int) -> pa.Array:
        """So many rows of it."""
        if self._made is None or len(self._made) < count:
            self._made = self._make(count)
        return self._made.slice(0, count)

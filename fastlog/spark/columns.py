"""Record batches out of fetched messages, in the schema that Spark wants. Needs pyarrow; knows no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from fastlog.envelope import unwrap
from fastlog.errors import EnvelopeError
from fastlog.message import HEADER_BYTES, Span
from fastlog.spark import _columns, _enveloped
from fastlog.spark._enveloped import Bytes, Numbers

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
    "server": pa.int64(),
    "schemaId": pa.int64(),
    "deduplicationId": pa.binary(),
    "timestampType": pa.int32(),
    # as Spark names the items of an array
    "headers": pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
}
NO_TIME, CREATE_TIME, APPEND_TIME = -1, 0, 1
"""Types of timestamps, as Kafka numbers them."""
_OF_ENVELOPES = ("timestamp", "server", "schemaId", "key", "deduplicationId", "value")
"""In the order in which ``_enveloped.fill`` takes them."""


class BatchMaker:
    """Makes the batches of one partition; for one thread.

    ``fields`` are the columns, and whether each may be null as far as Spark knows: it compares schemas. ``envelope``:
    messages begin with one; ``fail``: one that does not is an error, else it is all value and is counted.
    """

    def __init__(
        self,
        fields: Sequence[tuple[str, bool]],
        topic: str,
        broker: int,
        partition: int,
        *,
        envelope: bool = False,
        fail: bool = True,
    ) -> None:
        self.without_envelope = 0
        """Messages so far that should have had one."""
        self.first_without: str | None = None
        """Where the first of them is, and what it has instead."""
        self._place = f"{topic}/{broker}-{partition}"
        self._envelope = envelope
        self._fail = fail
        self._names = [name for name, _ in fields]
        self._schema = pa.schema([pa.field(name, ARROW_TYPES[name], nullable) for name, nullable in fields])
        self._same: dict[str, Repeated] = {
            "topic": Repeated(lambda count: pa.repeat(pa.scalar(topic, pa.string()), count)),
            "broker": Repeated(lambda count: pa.array(np.full(count, broker, np.int32))),
            "partition": Repeated(lambda count: pa.array(np.full(count, partition, np.int32))),
            "timestamp": Repeated(lambda count: pa.nulls(count, ARROW_TYPES["timestamp"])),
            "key": Repeated(lambda count: pa.nulls(count, ARROW_TYPES["key"])),
            "headers": Repeated(lambda count: pa.nulls(count, ARROW_TYPES["headers"])),
            "timestampType": Repeated(
                lambda count: pa.array(np.full(count, CREATE_TIME if envelope else NO_TIME, np.int32))
            ),
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
        if "value" in self._names and not self._envelope:
            ends = np.zeros(count + 1, np.int32)
            values = np.empty(size_bytes - _LEAST_HEADER * count, np.uint8)
        made = self._from_envelopes(spans, count, size_bytes) if self._envelope else {}
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
        for name, numbers in (("offset", offsets), ("nextOffset", next_offsets), ("idx", indexes)):
            if numbers is not None:
                made[name] = pa.Array.from_buffers(ARROW_TYPES[name], count, [None, pa.py_buffer(numbers)])
        if ends is not None and values is not None:
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(values[: ends[count]])]
            made["value"] = pa.Array.from_buffers(pa.binary(), count, buffers)
        arrays = [made[name] if name in made else self._same[name].first(count) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _from_envelopes(self, spans: Sequence[tuple[Span, int]], count: int, size_bytes: int) -> dict[str, pa.Array]:
        found: dict[str, Numbers | Bytes] = {}
        for name in _OF_ENVELOPES:
            if name in self._names:
                is_bytes = ARROW_TYPES[name] == pa.binary()
                found[name] = Bytes(count, size_bytes) if is_bytes else Numbers(count)
        wanted: list[Any] = [found.get(name) for name in _OF_ENVELOPES]
        row = 0
        for span, index in spans:
            bad, first, payload = _enveloped.fill(span.entries, span.count, row, *wanted)
            if bad:
                self._note_bad(bad, span, index, first - row, payload)
            row += span.count
        made = {}
        for name, column in found.items():
            valid = None if column.valid.all() else pa.py_buffer(np.packbits(column.valid, bitorder="little"))
            buffers = [valid, pa.py_buffer(column.array)]
            if isinstance(column, Bytes):
                buffers = [valid, pa.py_buffer(column.ends), pa.py_buffer(column.array[: column.ends[count]])]
            made[name] = pa.Array.from_buffers(ARROW_TYPES[name], count, buffers)
        return made

    def _note_bad(self, bad: int, span: Span, index: int, place: int, payload: bytes) -> None:
        if self.first_without is None:
            at = f"offset {span.offset}, index {index + place}"
            if not span.inner:
                offsets = np.empty(span.count, np.int64)
                _columns.fill(
                    span.entries,
                    span.count,
                    span.offset,
                    span.next_offset,
                    False,
                    0,
                    0,
                    offsets,
                    None,
                    None,
                    None,
                    None,
                )
                at = f"offset {offsets[place]}"
            self.first_without = f"the message of {self._place} at {at}: {_reason(payload)}"
            if self._fail:
                raise EnvelopeError(f"{self.first_without}; failOnBadEnvelope=false counts such messages")
        self.without_envelope += bad

    def _numbers(self, name: str, count: int, kind: type[np.signedinteger[Any]]) -> np.ndarray[Any, Any] | None:
        return np.empty(count, kind) if name in self._names else None


def _reason(payload: bytes) -> str:
    try:
        unwrap(payload)
    except EnvelopeError as error:
        return str(error)
    return "it has an envelope now"  # the bytes were changed meanwhile


class Repeated:
    """A column that is the same in every row, made once for the longest batch so far."""

    def __init__(self, make: Callable[[int], pa.Array]) -> None:
        self._make = make
        self._made: pa.Array | None = None

    def first(self, count: int) -> pa.Array:
        """The first ``count`` rows."""
        if self._made is None or len(self._made) < count:
            self._made = self._make(count)
        return self._made.slice(0, count)

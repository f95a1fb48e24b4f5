"""What a scan is made of: parts of partitions, where they come from, and their messages as Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastlog import _batch
from fastlog.consumer.fetched import pyarrow_library
from fastlog.errors import ArgumentError

if TYPE_CHECKING:
    from fastlog.consumer.fetched import NumpyBatch

MAX_OFFSET = 2**63 - 1
COLUMNS = ("topic", "partition", "offset", "next_offset", "payload")
"""Of topics of Kafka 0.7."""

Offsets = int | Mapping[int, int] | None


class Part(NamedTuple):
    """Offsets of one partition, from ``start`` up to before ``end``, that are read in their order."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What is wanted. Offsets are those of all partitions, or by partition; times are ms since 1970."""

    partitions: frozenset[int] | None = None
    start: Offsets = None
    end: Offsets = None
    since_ms: int | None = None
    until_ms: int | None = None

    def has(self, partition: int) -> bool:
        """Whether anything of this partition is."""
        return self.partitions is None or partition in self.partitions

    def cut(self, part: Part) -> Part | None:
        """What of the part lies within the offsets; None: nothing."""
        start = max(part.start, _of(self.start, part.partition, 0))
        end = min(part.end, _of(self.end, part.partition, MAX_OFFSET))
        return part._replace(start=start, end=end) if start < end else None


class Source(Protocol):
    """Where a scan reads. One for each kind of topic and way to it; what its batches look like is its own to say."""

    def parts(self, bounds: Bounds) -> list[Part]:
        """What there is now within the bounds; later readers get exactly that."""

    def columns(self) -> Sequence[str]:
        """The names of all columns."""

    def schema(self, columns: Sequence[str], topics: Sequence[str]) -> Any:
        """The Arrow schema of a batch with these columns."""

    def batches(
        self, parts: Sequence[Part], columns: Sequence[str], topics: Sequence[str]
    ) -> Iterator[tuple[int, Any]]:
        """The messages of the parts, one part after the other: bytes of the log read for it, and an Arrow record batch.

        What the source opens is closed when the iterator ends or is closed.
        """


def schema(columns: Sequence[str]) -> Any:
    """The schema of messages of Kafka 0.7."""
    arrow = pyarrow_library()
    types = {
        "topic": arrow.dictionary(arrow.int32(), arrow.string()),
        "partition": arrow.int32(),
        "offset": arrow.int64(),
        "next_offset": arrow.int64(),
        "payload": arrow.binary(),
    }
    return arrow.schema([arrow.field(name, types[name], nullable=False) for name in columns])


def record_batch(
    batch: NumpyBatch, first: int, last: int, columns: Sequence[str], topics: Sequence[str], dictionary: Any
) -> Any:
    """Messages ``first`` up to before ``last`` of a batch, with the columns that are wanted; only these are made."""
    import numpy as np

    arrow = pyarrow_library()
    count = last - first
    made: dict[str, Any] = {}
    for name in columns:
        if name == "topic":
            indices = arrow.array(np.full(count, topics.index(batch.topic), np.int32))
            made[name] = arrow.DictionaryArray.from_arrays(indices, dictionary)
        elif name == "partition":
            made[name] = arrow.array(np.full(count, batch.partition, np.int32))
        elif name == "offset":
            made[name] = arrow.array(batch.offsets[first:last])
        elif name == "next_offset":
            made[name] = arrow.array(batch.next_offsets[first:last])
        else:
            starts, lengths = batch.starts[first:last], batch.lengths[first:last]
            ends = np.empty(count + 1, np.int32)
            packed = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
            _batch.gather(batch.buffer, starts, lengths, ends, packed)
            buffers = [None, arrow.py_buffer(ends), arrow.py_buffer(packed)]
            made[name] = arrow.Array.from_buffers(arrow.binary(), count, buffers)
    return arrow.RecordBatch.from_arrays(list(made.values()), schema=schema(columns))


def arrow_of(
    found: Iterator[NumpyBatch], part: Part, columns: Sequence[str], topics: Sequence[str]
) -> Iterator[tuple[int, Any]]:
    """Batches from the start of ``part`` or before it on, as record batches of the messages that are in it."""
    dictionary = pyarrow_library().array(list(topics), pyarrow_library().string())
    at = part.start
    for batch in found:
        first = int(batch.offsets.searchsorted(part.start, "left"))
        last = int(batch.offsets.searchsorted(part.end, "left"))
        if first < last:
            came = min(batch.next_offset, part.end) - at
            yield max(0, came), record_batch(batch, first, last, columns, topics, dictionary)
            at += max(0, came)
        if batch.next_offset >= part.end:
            return


def _of(offsets: Offsets, partition: int, default: int) -> int:
    if isinstance(offsets, Mapping):
        return offsets.get(partition, default)
    return default if offsets is None else offsets


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

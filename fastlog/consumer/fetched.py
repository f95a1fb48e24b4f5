"""What a fetch gives, in the form that is wanted: messages, lists of bytes, numpy arrays, Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastlog import _batch, _record_batch
from fastlog._batch import ConsumedMessage, MessageStream, PayloadStream
from fastlog._record_batch import BatchScan, RecordSpan, RecordSpans
from fastlog._segment import ScanResult, scan
from fastlog.errors import (
    BrokerError,
    DecompressionLimitError,
    InvalidFetchSizeError,
    InvalidMessageError,
    MissingDependencyError,
)
from fastlog.installation import how_to_install
from fastlog.message import DEFAULT_LIMITS, AnySpan, DeepLimits, Span, shallow_spans, spans

if TYPE_CHECKING:
    import numpy
    import pyarrow  # type: ignore[import-untyped]

# Objects of more than a few hundred kilobytes at once make the allocator return memory and take it again, list by list.
_LIST_MESSAGES = 1000
_LIST_BYTES = 16 * 2**20
_ARRAY_BYTES = 2**30


class MessageSet:
    """The bytes of one fetch, which may end inside a message. Iterating yields its messages, wrappers opened.

    In the answer to a multifetch a part may hold an error instead: it is raised when the part is used, as in 0.7.
    """

    __slots__ = ("_limits", "_result", "data", "error", "offset", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        data: memoryview,
        *,
        result: ScanResult | None = None,
        error: BrokerError | None = None,
        limits: DeepLimits = DEFAULT_LIMITS,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.data = data
        self.error = error
        self._result = result
        self._limits = limits

    def __repr__(self) -> str:
        shown = f"error={self.error!r}" if self.error else f"bytes={len(self.data)}"
        return f"MessageSet(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, {shown})"

    def __bool__(self) -> bool:
        """Whether any bytes were fetched."""
        return len(self.data) > 0

    @property
    def valid_bytes(self) -> int:
        """Up to where the messages are whole and valid. Raises the error of the part."""
        return self._scanned().valid_bytes

    @property
    def next_offset(self) -> int:
        """Where to fetch next, once these messages have been consumed. Raises the error of the part."""
        return self.offset + self.valid_bytes

    def __iter__(self) -> Iterator[ConsumedMessage]:
        """The messages, wrappers opened. Raises as ``fastlog.message.deep``."""
        return MessageStream(self.spans())

    def shallow(self) -> Iterator[ConsumedMessage]:
        """The messages, wrappers as they are. Raises as ``fastlog.message.shallow``."""
        return MessageStream(self._placed(shallow_spans(self.data, self.offset, self._scanned())))

    def payloads(self) -> list[bytes]:
        """The payloads of all messages, wrappers opened. Raises as iterating does."""
        return list(PayloadStream(self.spans()))

    def to_numpy(self) -> NumpyBatch:
        """The messages as arrays. Raises as iterating does, but only where no message comes before the damage."""
        self._scanned()
        return numpy_batch(self.topic, self.partition, self.offset, self.data, self._result, self._limits)

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The messages as an Arrow record batch; see ``NumpyBatch.to_arrow``."""
        return self.to_numpy().to_arrow()

    def spans(self) -> Iterator[AnySpan]:
        """The messages in runs that lie in one piece, without an object for any of them. Raises as iterating does."""
        return self._placed(spans(self.data, self.offset, self._limits, self._scanned()))

    def _placed(self, found: Iterator[AnySpan]) -> Iterator[AnySpan]:
        try:
            yield from found
        except BrokerError as error:
            raise error.at(topic=self.topic, partition=self.partition) from error.__cause__

    def before(self, end: int) -> MessageSet:
        """The part of the set that lies before the offset ``end``; the set itself when all of it does."""
        if self.offset + len(self.data) <= end:
            return self
        data = self.data[: max(0, end - self.offset)]
        return MessageSet(self.topic, self.partition, self.offset, data, error=self.error, limits=self._limits)

    def _scanned(self) -> ScanResult:
        if self.error is not None:
            raise self.error
        if self._result is None:
            self._result = scan(self.data)
        return self._result


class RecordSet(MessageSet):
    """The same of a topic of record batches: iterating yields its records; a fetch never ends inside the first batch.

    ``data`` are whole batches, and perhaps the beginning of another one; ``offset`` may be inside of the first.
    """

    __slots__ = ("_batches",)

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        data: memoryview,
        *,
        batches: BatchScan | None = None,
        limits: DeepLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(topic, partition, offset, data, limits=limits)
        self._batches = batches or _record_batch.scan_batches(data, offset)

    @property
    def valid_bytes(self) -> int:
        """Up to where the batches are whole and valid."""
        return self._batches.valid_bytes

    @property
    def next_offset(self) -> int:
        """Where to fetch next, once these records have been consumed."""
        return self._batches.next_offset

    def shallow(self) -> Iterator[ConsumedMessage]:
        """The same as iterating: the records, as a batch is no message of its own."""
        return iter(self)

    def to_numpy(self) -> NumpyBatch:
        """The records as arrays. Raises as iterating does, but only where no record comes before the damage."""
        return record_arrays(self.topic, self.partition, self.offset, self.data, self._batches, self._limits)

    def spans(self) -> Iterator[AnySpan]:
        """The records, batch by batch. Raises as iterating does."""
        return self._placed(RecordSpans(self.data, self.offset, self._limits, self._batches.valid_bytes))

    def before(self, end: int) -> RecordSet:
        """The whole batches that begin before the offset ``end``: the last one may go on behind it."""
        at = 0
        while at < len(self.data) and int.from_bytes(self.data[at : at + 8], "big") < end:
            at += 12 + int.from_bytes(self.data[at + 8 : at + 12], "big")
        return RecordSet(self.topic, self.partition, self.offset, self.data[:at], limits=self._limits)


def payload_lists(found: Iterator[AnySpan]) -> Iterator[list[bytes]]:
    """The payloads of spans, in lists of a bounded size; what is before damage comes first."""
    stream = PayloadStream(found)
    while batch := stream.take(_LIST_MESSAGES, _LIST_BYTES):
        yield batch


@dataclass(frozen=True, slots=True, eq=False)
class NumpyBatch:
    """Messages as arrays over one buffer, without an object for any of them.

    The payload of message ``i`` is ``buffer[starts[i] : starts[i] + lengths[i]]``. ``offsets`` are where the messages
    start in the partition and ``next_offsets`` where to go on after each; messages of one wrapper share the wrapper's
    offset, and only the last goes on behind it. ``next_offset`` is where to fetch next.

    Of a topic of record batches the messages are records, with more arrays, which are None otherwise: ``key_starts``
    and ``key_lengths``, ``timestamps`` (milliseconds since 1970, -1: none), and where ``headers`` finds those. A length
    of -1 is a null.
    """

    topic: str
    partition: int
    buffer: numpy.ndarray[Any, numpy.dtype[numpy.uint8]]
    offsets: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    next_offsets: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    starts: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    lengths: numpy.ndarray[Any, numpy.dtype[numpy.int32]]
    next_offset: int
    key_starts: numpy.ndarray[Any, numpy.dtype[numpy.int64]] | None = None
    key_lengths: numpy.ndarray[Any, numpy.dtype[numpy.int32]] | None = None
    timestamps: numpy.ndarray[Any, numpy.dtype[numpy.int64]] | None = None
    header_starts: numpy.ndarray[Any, numpy.dtype[numpy.int64]] | None = None
    header_counts: numpy.ndarray[Any, numpy.dtype[numpy.int32]] | None = None

    def __len__(self) -> int:
        """The number of messages."""
        return len(self.starts)

    def payload(self, number: int) -> bytes | None:
        """The payload of one message; None for a record whose value is null."""
        return self._field(self.starts, self.lengths, number)

    def key(self, number: int) -> bytes | None:
        """The key of one record; None where it has none, as no message of Kafka 0.7 has."""
        if self.key_starts is None or self.key_lengths is None:
            return None
        return self._field(self.key_starts, self.key_lengths, number)

    def headers(self, number: int) -> tuple[tuple[bytes, bytes | None], ...] | None:
        """The headers of one record; None for a message of Kafka 0.7."""
        if self.header_starts is None or self.header_counts is None:
            return None
        data: Any = self.buffer
        return _record_batch.headers_at(data, int(self.header_starts[number]), int(self.header_counts[number]))

    def after(self, passed: int) -> dict[str, Any]:
        """The arrays without the first messages, by their names."""
        names = (
            "offsets", "next_offsets", "starts", "lengths", "key_starts", "key_lengths", "timestamps", "header_starts",
            "header_counts",
        )  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        return {name: None if array is None else array[passed:] for name, array in found.items()}

    def _field(self, starts: Any, lengths: Any, number: int) -> bytes | None:
        start, size = int(starts[number]), int(lengths[number])
        return None if size < 0 else self.buffer[start : start + size].tobytes()

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The columns ``partition``, ``offset``, ``next_offset`` and ``payload`` (binary, copied once).

        Of records also ``key`` (binary) and ``timestamp`` (int64, milliseconds), and nulls where they have them.

        Raises:
            MissingDependencyError: pyarrow is not installed.
        """
        arrow = pyarrow_library()
        np = _numpy()
        count = len(self)
        columns = [
            arrow.array(np.full(count, self.partition, np.int32)),
            arrow.array(self.offsets),
            arrow.array(self.next_offsets),
            binary_column(self.buffer, self.starts, self.lengths),
        ]
        names = ["partition", "offset", "next_offset", "payload"]
        if self.key_starts is not None:
            columns.append(binary_column(self.buffer, self.key_starts, self.key_lengths))
            columns.append(arrow.array(self.timestamps))
            names += ["key", "timestamp"]
        may_be_null = {"payload", "key"} if self.key_starts is not None else set()
        fields = [
            arrow.field(name, column.type, nullable=name in may_be_null)
            for name, column in zip(names, columns, strict=True)
        ]
        return arrow.RecordBatch.from_arrays(columns, schema=arrow.schema(fields, metadata={"topic": self.topic}))


def binary_column(buffer: Any, starts: Any, lengths: Any) -> Any:
    """An Arrow array of fields that lie in a buffer, copied behind one another; a length of -1 is a null."""
    arrow, np = pyarrow_library(), _numpy()
    count = len(starts)
    valid = None
    if count and lengths.min() < 0:
        valid = arrow.py_buffer(np.packbits(lengths >= 0, bitorder="little"))
        lengths = np.maximum(lengths, 0)
    ends = np.empty(count + 1, np.int32)
    packed = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    _batch.gather(buffer, starts, lengths, ends, packed)
    return arrow.Array.from_buffers(arrow.binary(), count, [valid, arrow.py_buffer(ends), arrow.py_buffer(packed)])


def numpy_batch(
    topic: str, partition: int, offset: int, data: memoryview, result: ScanResult | None, limits: DeepLimits
) -> NumpyBatch:
    """The whole messages of fetched bytes as arrays.

    Ends before damage, and before the wrapper that would make the arrays larger than ``limits`` allow for one, so that
    a few hostile bytes use up no memory; ``next_offset`` says where. A wrapper is taken whole or not at all.

    Raises:
        InvalidMessageError, InvalidFetchSizeError: already the first message is damaged, or not whole.
    """
    np = _numpy()
    taken, next_offset = _whole_spans(topic, partition, data, offset, result, limits)
    count = sum(span.count for span in taken)
    places, lengths = np.empty((3, count), np.int64), np.empty(count, np.int32)
    at = shift = 0
    for span in taken:
        _batch.index(span.entries, span.offset, span.next_offset, span.inner, shift, at, span.count, places, lengths)
        at += span.count
        shift += len(span.entries)
    offsets, next_offsets, starts = places
    pieces = [np.frombuffer(span.entries, np.uint8) for span in taken]
    buffer = pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
    buffer.setflags(write=False)
    return NumpyBatch(topic, partition, buffer, offsets, next_offsets, starts, lengths, next_offset)


def record_arrays(
    topic: str, partition: int, offset: int, data: memoryview, scan: BatchScan, limits: DeepLimits
) -> NumpyBatch:
    """The records of fetched batches as arrays, from an offset on.

    Without a copy where no batch is compressed. Ends before damage, and before the batch that would make the arrays
    larger than ``limits`` allow for one, so that a few hostile bytes use up no memory; ``next_offset`` says where.

    Raises:
        InvalidMessageError, InvalidFetchSizeError: already the first batch is damaged, or not whole.
    """
    np = _numpy()
    error: Exception | None
    if not scan.compressed:
        places, lengths = np.empty((6, scan.records), np.int64), np.empty((3, scan.records), np.int32)
        count, next_offset, error = _record_batch.index_batches(
            data, offset, limits.max_messages, scan.valid_bytes, places, lengths
        )
        places, lengths, buffer = places[:, :count], lengths[:, :count], np.frombuffer(data, np.uint8)
    else:
        taken, next_offset, error = _record_spans(offset, data, limits, scan.valid_bytes)
        if error is None:
            next_offset = max(next_offset, scan.next_offset)
        count = sum(span.count for span in taken)
        places, lengths = np.empty((6, count), np.int64), np.empty((3, count), np.int32)
        at = shift = 0
        pieces = []
        for span in taken:
            at = _record_batch.index_records(span, shift, at, places, lengths)
            pieces.append(np.frombuffer(span.records, np.uint8))
            shift += len(pieces[-1])
        buffer = pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
    if error is not None and next_offset == offset:
        if isinstance(error, BrokerError):
            raise error.at(topic=topic, partition=partition) from error.__cause__
        raise error
    buffer.setflags(write=False)
    offsets, next_offsets, starts, key_starts, header_starts, timestamps = places
    value_lengths, key_lengths, header_counts = lengths
    return NumpyBatch(
        topic,
        partition,
        buffer,
        offsets,
        next_offsets,
        starts,
        value_lengths,
        next_offset,
        key_starts,
        key_lengths,
        timestamps,
        header_starts,
        header_counts,
    )


def _record_spans(
    offset: int, data: memoryview, limits: DeepLimits, checked_bytes: int
) -> tuple[list[RecordSpan], int, Exception | None]:
    """Spans of whole batches, the offset behind them, and why there are no more: None at the end, or at the limit."""
    taken: list[RecordSpan] = []
    next_offset = offset
    total_bytes = 0
    found = RecordSpans(data, offset, limits, checked_bytes)
    try:
        for span in found:
            total_bytes += len(span.records)
            if taken and total_bytes > min(limits.max_inflated_bytes, _ARRAY_BYTES):
                return taken, next_offset, DecompressionLimitError("the rest is for the next arrays")
            taken.append(span)
            next_offset = span.next_offset
    except (InvalidMessageError, InvalidFetchSizeError) as error:
        return taken, next_offset, error
    return taken, next_offset, None


def _whole_spans(
    topic: str, partition: int, data: memoryview, offset: int, result: ScanResult | None, limits: DeepLimits
) -> tuple[list[Span], int]:
    """Spans of whole top-level messages, and the offset behind them."""
    if result is not None and result.count and not result.wrappers:
        end = offset + result.valid_bytes
        return [Span(data[: result.valid_bytes], result.count, offset, end, False)], end
    taken: list[Span] = []
    wrapper: list[Span] = []  # of a wrapper that is not through yet
    next_offset = offset
    decompressed_bytes = 0
    found = spans(data, offset, limits, result)
    try:
        for span in found:
            if not span.inner:
                taken.append(span)
                next_offset = span.next_offset
                continue
            wrapper.append(span)
            decompressed_bytes += len(span.entries)
            if taken and decompressed_bytes > min(limits.max_inflated_bytes, _ARRAY_BYTES):
                return taken, next_offset
            if span.next_offset != span.offset:
                taken += wrapper
                next_offset = span.next_offset
                wrapper = []
    except (InvalidMessageError, InvalidFetchSizeError) as error:
        if not taken:
            raise error.at(topic=topic, partition=partition) from error.__cause__
        return taken, next_offset
    return taken, max(next_offset, offset + (result or scan(data)).valid_bytes)


def _numpy() -> Any:
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise MissingDependencyError("numpy is not installed: pip install numpy") from error
    return numpy


def pyarrow_library() -> Any:
    """The module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"pyarrow is not installed: {how_to_install('arrow')}") from error
    return pyarrow

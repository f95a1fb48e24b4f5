"""What a fetch gives, in the form that is wanted: messages, lists of bytes, numpy arrays, Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastlog import _batch
from fastlog._batch import ConsumedMessage, MessageStream, PayloadStream
from fastlog._segment import ScanResult, scan
from fastlog.errors import BrokerError, InvalidFetchSizeError, InvalidMessageError, MissingDependencyError
from fastlog.installation import how_to_install
from fastlog.message import DEFAULT_LIMITS, DeepLimits, Span, shallow_spans, spans

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
        """Whether there are bytes."""
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

    def spans(self) -> Iterator[Span]:
        """The messages in runs that lie in one piece, without an object for any of them. Raises as iterating does."""
        return self._placed(spans(self.data, self.offset, self._limits, self._scanned()))

    def _placed(self, found: Iterator[Span]) -> Iterator[Span]:
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


def payload_lists(found: Iterator[Span]) -> Iterator[list[bytes]]:
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
    """

    topic: str
    partition: int
    buffer: numpy.ndarray[Any, numpy.dtype[numpy.uint8]]
    offsets: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    next_offsets: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    starts: numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    lengths: numpy.ndarray[Any, numpy.dtype[numpy.int32]]
    next_offset: int

    def __len__(self) -> int:
        """The number of messages."""
        return len(self.starts)

    def payload(self, number: int) -> bytes:
        """The payload of one message."""
        start = int(self.starts[number])
        return self.buffer[start : start + int(self.lengths[number])].tobytes()

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The columns ``partition``, ``offset``, ``next_offset`` and ``payload`` (binary, copied once).

        Raises:
            MissingDependencyError: pyarrow is not installed.
        """
        arrow = pyarrow_library()
        np = _numpy()
        count = len(self)
        ends = np.empty(count + 1, np.int32)
        packed = np.empty(int(self.lengths.sum(dtype=np.int64)), np.uint8)
        _batch.gather(self.buffer, self.starts, self.lengths, ends, packed)
        buffers = [None, arrow.py_buffer(ends), arrow.py_buffer(packed)]
        columns = [
            arrow.array(np.full(count, self.partition, np.int32)),
            arrow.array(self.offsets),
            arrow.array(self.next_offsets),
            arrow.Array.from_buffers(arrow.binary(), count, buffers),
        ]
        fields = [
            arrow.field(name, column.type, nullable=False)
            for name, column in zip(("partition", "offset", "next_offset", "payload"), columns, strict=True)
        ]
        return arrow.RecordBatch.from_arrays(columns, schema=arrow.schema(fields, metadata={"topic": self.topic}))


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
    inflated_bytes = 0
    found = spans(data, offset, limits, result)
    try:
        for span in found:
            if not span.inner:
                taken.append(span)
                next_offset = span.next_offset
                continue
            wrapper.append(span)
            inflated_bytes += len(span.entries)
            if taken and inflated_bytes > min(limits.max_inflated_bytes, _ARRAY_BYTES):
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

"""What was fetched of a partition at once: messages of Kafka 0.7, or record batches, for whoever hands them out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fastlog._record_batch import BATCHES_OK, BatchScan, RecordSpans
from fastlog._segment import SCAN_OK, ScanResult, scan
from fastlog.consumer.fetched import NumpyBatch, numpy_batch, record_arrays
from fastlog.message import DeepLimits, Span, shallow_spans, spans


class Chunk(NamedTuple):
    """Bytes of one partition that begin with a whole and valid message; ``result`` says how far they go."""

    offset: int
    data: memoryview
    result: ScanResult

    @property
    def end(self) -> int:
        """Where to go on behind the messages that are whole."""
        return self.offset + self.result.valid_bytes

    @property
    def entries(self) -> int:
        """Messages that are whole; a compressed set is one."""
        return self.result.count

    @property
    def wrappers(self) -> int:
        """How many of the entries are compressed sets."""
        return self.result.wrappers

    def whole(self) -> Chunk:
        """The same without damage behind what is whole, which the next fetch finds again, as it begins with it."""
        return Chunk(self.offset, self.data[: self.result.valid_bytes], self.result._replace(status=SCAN_OK))

    def rest(self, offset: int) -> Chunk:
        """What is from an offset on, which is that of a message."""
        if offset == self.offset:
            return self
        data = self.data[offset - self.offset :]
        return Chunk(offset, data, scan(data))

    def spans(self, limits: DeepLimits) -> Iterator[Span]:
        """The messages, wrappers opened. Raises as ``fastlog.message.spans``."""
        return spans(self.data, self.offset, limits, self.result)

    def shallow(self, limits: DeepLimits) -> Iterator[Span]:
        """The messages, wrappers as they are."""
        return shallow_spans(self.data, self.offset, self.result)

    def arrays(self, topic: str, partition: int, limits: DeepLimits) -> NumpyBatch:
        """The messages as arrays, up to damage, or to what is over a limit. Raises as ``numpy_batch``."""
        return numpy_batch(topic, partition, self.offset, self.data, self.result, limits)


class RecordChunk(NamedTuple):
    """Whole record batches with a right checksum, the first of which holds the offset or what comes behind it."""

    offset: int
    data: memoryview
    result: BatchScan

    @property
    def end(self) -> int:
        """The offset behind the batches, at which to go on."""
        return self.result.next_offset

    @property
    def entries(self) -> int:
        """How many batches."""
        return self.result.batches

    @property
    def wrappers(self) -> int:
        """How many of the batches are compressed."""
        return self.result.compressed

    def whole(self) -> RecordChunk:
        """The same without damage behind what is whole, which the next fetch finds again, as it begins with it."""
        return RecordChunk(self.offset, self.data[: self.result.valid_bytes], self.result._replace(status=BATCHES_OK))

    def rest(self, offset: int) -> RecordChunk:
        """What is from an offset on, which may be inside of a batch."""
        return self if offset == self.offset else self._replace(offset=offset)

    def spans(self, limits: DeepLimits) -> RecordSpans:
        """The records, batch by batch. Raises as ``RecordSpans``."""
        return RecordSpans(self.data, self.offset, limits, self.result.valid_bytes)

    def shallow(self, limits: DeepLimits) -> RecordSpans:
        """The same as ``spans``: a batch is no record, and so there is no shallower way to read it."""
        return self.spans(limits)

    def arrays(self, topic: str, partition: int, limits: DeepLimits) -> NumpyBatch:
        """The records as arrays, up to damage, or to what is over a limit. Raises as ``record_arrays``."""
        return record_arrays(topic, partition, self.offset, self.data, self.result, limits)


AnyChunk = Chunk | RecordChunk

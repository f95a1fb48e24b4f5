"""What was fetched of a partition, made into batches that can be appended to another log.

A batch whose records have their own times and follow each other is passed on as it is, compressed, but for the numbers
of its producer. Small ones are put together, as one fetch of a topic written record by record has thousands; and those
that cannot be appended as they are are packed anew, with the codec that they had: of which a part is wanted, which were
compacted, which have the time of the append for all records, and which are too large for the target.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastlog import batch_codecs, record_batches
from fastlog._crc32c import crc32c
from fastlog.errors import FastlogError, InvalidMessageError
from fastlog.message import DEFAULT_LIMITS, DeepLimits
from fastlog.mirror.records.gaps import gapped_records
from fastlog.mirror.records.position import MOST_GAPS, SEQUENCES
from fastlog.record_batches import (
    ATTRIBUTES_AT,
    DELETE_HORIZON,
    KNOWN_ATTRIBUTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    Record,
)

SMALL_BYTES = 16 * 1024
GATHERED_BYTES = 128 * 1024
_ATTRIBUTES = struct.Struct(">h")
_BASE_OFFSET = struct.Struct(">q")
_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0


class Outgoing(NamedTuple):
    """A batch to be appended. Its numbers and its checksum are put in by ``numbered``."""

    data: bytearray
    records: int
    runs: tuple[tuple[int, int], ...]
    """Offsets in the source, and how many records follow each other from each of them on."""
    next: int
    """The offset behind its last record, and behind what was left out there."""

    @property
    def first(self) -> int:
        """The offset of its first record in the source."""
        return self.runs[0][0]


def numbered(batch: Outgoing, producer: int, epoch: int, number: int) -> bytearray:
    """The bytes of the batch as the producer's, its first record having the number, which counts modulo 2**31."""
    data = batch.data
    record_batches.set_producer(data, producer, epoch, number % SEQUENCES)
    return data


class Fetched:
    """Goes through what one fetch got of a partition, from an offset on."""

    def __init__(
        self,
        data: memoryview,
        offset: int,
        aborted: Sequence[tuple[int, int]] = (),
        *,
        most_bytes: int,
        most_records: int = 2**31 - 1,
        gathers: bool = True,
        limits: DeepLimits = DEFAULT_LIMITS,
    ) -> None:
        """``aborted``: producer and first offset of transactions that do not count. ``most_…``: of what is made."""
        self.next_offset = offset
        """Behind what was gone through, whether it had records or not."""
        self.refused_end: int | None = None
        """Behind the batch that was damaged, where its header says that, and nothing before it is left."""
        self._data = data
        self._aborted = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._open: set[int] = set()
        self._end = offset
        self._most_bytes = most_bytes
        self._most_records = most_records
        self._gathers = gathers
        self._limits = limits

    def batches(self) -> Iterator[Outgoing]:
        """Yield them in order; ``next_offset`` is behind what has come out.

        Raises:
            FastlogError: on reaching a batch that is damaged, or that cannot be opened here.
        """
        gathered: list[tuple[BatchHeader, memoryview]] = []
        size = 0
        wanted = self._wanted()
        while True:
            found, damage, damage_end = None, None, None
            try:
                found = next(wanted, None)
            except FastlogError as error:
                damage, damage_end = error, self.refused_end
            if gathered and not (found is not None and size < GATHERED_BYTES and self._fits(gathered[-1][0], found[0])):
                yield from self._made(gathered)
                gathered, size = [], 0
            if damage is not None:
                self.refused_end = damage_end
                raise damage
            if found is None:
                self.next_offset = max(self.next_offset, self._end)
                return
            self.refused_end = None
            gathered.append(found)
            size += found[0].size_bytes

    def _fits(self, before: BatchHeader, after: BatchHeader) -> bool:
        """Whether the two may be put together."""
        return self._gathers and before.codec == after.codec and max(before.size_bytes, after.size_bytes) < SMALL_BYTES

    def _wanted(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches with records that count, their checksums compared."""
        for header, batch in record_batches.batches(self._data):
            if header.next_offset <= self._end:
                continue
            while self._aborted and self._aborted[-1][1] < header.next_offset:
                self._open.add(self._aborted.pop()[0])
            self.refused_end = header.next_offset
            _check(header, batch)
            if header.is_control:
                if header.producer_id in self._open and _is_abort(header, batch, self._limits):
                    self._open.remove(header.producer_id)
            elif header.record_count and not (header.is_transactional and header.producer_id in self._open):
                yield header, batch
            self._end = header.next_offset

    def _made(self, gathered: list[tuple[BatchHeader, memoryview]]) -> Iterator[Outgoing]:
        if len(gathered) == 1 and self._goes_as_it_is(gathered[0][0]):
            (header, batch) = gathered[0]
            yield _as_it_is(header, batch)
            self.next_offset = header.next_offset
        elif gathered:
            end = gathered[-1][0].next_offset
            self.refused_end = end if len(gathered) == 1 else None
            records = [record for header, batch in gathered for record in self._records(header, batch)]
            if records:
                yield from self._packed(records, gathered[0][0].codec, end)
            self.next_offset = end

    def _goes_as_it_is(self, header: BatchHeader) -> bool:
        return (
            header.base_offset >= self.next_offset
            and header.record_count == header.last_offset_delta + 1
            and not header.attributes & (LOG_APPEND_TIME | DELETE_HORIZON)
            and header.size_bytes <= self._most_bytes
            and header.record_count <= self._most_records
        )

    def _records(self, header: BatchHeader, batch: memoryview) -> list[Record]:
        """The records of a batch from ``next_offset`` on."""
        if header.record_count == header.last_offset_delta + 1:
            found = record_batches.records(batch, self._limits)
        else:
            found = gapped_records(header, batch, self._limits)
        return [record for record in found if record.offset >= self.next_offset]

    def _packed(self, records: list[Record], codec: int, end: int) -> Iterator[Outgoing]:
        """``end``: the offset behind the last one, whose neighbours may have been compacted."""
        data = bytearray()
        runs = _runs(records)
        if len(records) <= self._most_records and len(runs) <= MOST_GAPS:
            data = bytearray(record_batches.build(records, codec=codec))
        if len(records) == 1 or 0 < len(data) <= self._most_bytes:
            yield Outgoing(data, len(records), runs, end)
            return
        middle = len(records) // 2
        yield from self._packed(records[:middle], codec, records[middle].offset)
        yield from self._packed(records[middle:], codec, end)


def _runs(records: list[Record]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for record in records:
        if found and record.offset == sum(found[-1]):
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((record.offset, 1))
    return tuple(found)


def _check(header: BatchHeader, batch: memoryview) -> None:
    found = crc32c(batch[ATTRIBUTES_AT:])
    if found != header.crc:
        raise InvalidMessageError(
            f"the batch at offset {header.base_offset} has the checksum {header.crc:#010x}, its bytes have"
            f" {found:#010x}"
        )
    if header.attributes & ~KNOWN_ATTRIBUTES or header.codec not in batch_codecs.CODEC_NAMES:
        raise InvalidMessageError(f"the batch at offset {header.base_offset} has attributes {header.attributes:#06x}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise InvalidMessageError(
            f"the batch at offset {header.base_offset} has {header.record_count} records, the last at its offset"
            f" {header.last_offset_delta}"
        )


def _is_abort(header: BatchHeader, batch: memoryview, limits: DeepLimits) -> bool:
    """Whether the transaction that ends here was aborted."""
    for record in gapped_records(header, batch, limits):
        if record.key is not None and len(record.key) >= _CONTROL_KEY.size:
            return bool(_CONTROL_KEY.unpack_from(record.key)[1] == _ABORT)
    return False


def _as_it_is(header: BatchHeader, batch: memoryview) -> Outgoing:
    data = bytearray(batch)
    _BASE_OFFSET.pack_into(data, 0, 0)
    _ATTRIBUTES.pack_into(data, ATTRIBUTES_AT, header.attributes & ~TRANSACTIONAL)
    return Outgoing(data, header.record_count, ((header.base_offset, header.record_count),), header.next_offset)

"""Record batches as they stand in a log, and the indexes beside them: Kafka's rules, without the code under test."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tests.harness import raw_batches
from tests.harness.raw_batches import HEADER, crc32c
from tests.harness.raw_records import Record


def batch(
    *values: bytes,
    base: int = 0,
    time_ms: int = 1_700_000_000_000,
    step_ms: int = 1,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = 3,
) -> bytes:
    """A batch of records with these values, one step of time apart; its base offset is the producer's business.

    Epoch and the number of the first record are those of a producer with an id.
    """
    records = [Record(timestamp=time_ms + i * step_ms, value=value) for i, value in enumerate(values)]
    with_producer = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    with_producer = with_producer if producer_id >= 0 else {}
    return raw_batches.of(records, base_offset=base, **with_producer).encode()


class Batch(NamedTuple):
    """The head of a stored batch, and where it stands."""

    position: int
    bytes: int
    base: int
    epoch: int
    last: int
    largest_ms: int
    data: bytes


def batches(data: bytes) -> Iterator[Batch]:
    """The batches of a segment, each checked."""
    position = 0
    while position < len(data):
        base, length, epoch, magic, crc, _, delta, _, largest, *_ = HEADER.unpack_from(data, position)
        end = position + 12 + length
        assert magic == 2
        assert end <= len(data)
        assert crc == crc32c(data[position + 21 : end])
        yield Batch(position, end - position, base, epoch, base + delta, largest, data[position:end])
        position = end


def indexes(data: bytes, base: int, *, is_sealed: bool) -> tuple[bytes, bytes]:
    """``.index`` and ``.timeindex`` of a segment: as Kafka's, with an entry for a batch that 4096 bytes came before, or
    four times as many as it has itself, but no more than 64 kB."""
    offsets, times = b"", b""
    since, largest, largest_at, indexed = 0, -1, 0, -1
    for one in batches(data):
        if one.largest_ms > largest:
            largest, largest_at = one.largest_ms, one.last
        if since > min(max(4096, 4 * one.bytes), 65536):
            offsets += struct.pack(">ii", one.last - base, one.position)
            if largest > indexed:
                times += struct.pack(">qi", largest, largest_at - base)
                indexed = largest
            since = 0
        since += one.bytes
    if is_sealed and largest > indexed:
        times += struct.pack(">qi", largest, largest_at - base)
    return offsets, times

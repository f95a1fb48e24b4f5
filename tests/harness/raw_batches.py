"""Record batches, written and read a second time: headers by hand, the checksum by a table.

Nothing here imports fastlog: what the tests expect must not come from the code under test.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tests.harness import raw_records
from tests.harness.raw_records import Record

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
FIELDS = {  # where each begins, and how wide it is
    "base_offset": (0, 8), "batch_length": (8, 4), "leader_epoch": (12, 4), "magic": (16, 1), "crc": (17, 4),
    "attributes": (21, 2), "last_offset_delta": (23, 4), "base_timestamp": (27, 8), "max_timestamp": (35, 8),
    "producer_id": (43, 8), "producer_epoch": (51, 2), "base_sequence": (53, 4), "record_count": (57, 4),
}  # fmt: skip


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C, computed byte by byte."""
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ _TABLE[(state ^ byte) & 255]
    return state ^ 0xFFFFFFFF


@dataclass
class Batch:
    """A batch as its fields; ``payload`` are the records as they stand behind the header."""

    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = 2
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int = 1
    payload: bytes = b""

    def encode(self, batch_length: int | None = None, crc: int | None = None) -> bytes:
        """Its bytes; a given length or checksum replaces the right one."""
        length = 49 + len(self.payload) if batch_length is None else batch_length
        fields = (
            self.base_offset, length, self.leader_epoch, self.magic, 0, self.attributes, self.last_offset_delta,
            self.base_timestamp, self.max_timestamp, self.producer_id, self.producer_epoch, self.base_sequence,
            self.record_count,
        )  # fmt: skip
        data = HEADER.pack(*fields) + self.payload
        return data[:17] + struct.pack(">I", crc32c(data[21:]) if crc is None else crc) + data[21:]


def of(records: list[Record], codec: int = 0, packed: bytes | None = None, **fields: int) -> Batch:
    """A batch of records; ``packed`` are their bytes when they are compressed."""
    base = records[0].timestamp if records else 0
    return Batch(
        attributes=codec,
        last_offset_delta=len(records) - 1,
        base_timestamp=base,
        max_timestamp=max((record.timestamp for record in records), default=-1),
        record_count=len(records),
        payload=raw_records.encode(records, base) if packed is None else packed,
        **fields,
    )


def reseal(data: bytes) -> bytes:
    """The bytes with the checksum that fits them."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]

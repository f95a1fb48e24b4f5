"""Records of a batch whose offsets have gaps, as Kafka's cleaner leaves them. The record's bytes: ``fastlog._records``.

A topic that is compacted is not for speed: here is no compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastlog import batch_codecs
from fastlog.errors import DecompressionLimitError, InvalidMessageError
from fastlog.message import DeepLimits
from fastlog.record_batches import HEADER_BYTES, BatchHeader, Record

_MOST_BITS = 70


class _Cut(Exception):
    """The bytes end too early, or a number is none."""


class _Walk:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def number(self) -> int:
        """Read a zigzag varint and move behind it. Raises ``_Cut`` where the bytes end before it does."""
        found = shift = 0
        while True:
            if self.position >= len(self._data) or shift >= _MOST_BITS:
                raise _Cut
            byte = self._data[self.position]
            self.position += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7

    def taken(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.position:
            raise _Cut
        start, self.position = self.position, self.position + size
        return self._data[start : self.position]

    def sized_or_none(self) -> bytes | None:
        size = self.number()
        return None if size == -1 else self.taken(size)

    def sized(self) -> bytes:
        return self.taken(self.number())


def gapped_records(header: BatchHeader, batch: memoryview, limits: DeepLimits) -> Iterator[Record]:
    """Yield the records of a batch whose checksum was compared: their offsets rise, and may leave some out.

    Raises:
        InvalidMessageError: a record or the compressed data is damaged, or offsets do not rise.
        DecompressionLimitError: the batch goes over a limit.
        MissingCodecError: the library for its codec is not installed.
    """
    if header.record_count > limits.max_messages:
        raise DecompressionLimitError(f"the batch holds more than {limits.max_messages} records")
    payload = bytes(batch[HEADER_BYTES:])
    if header.codec:
        payload = batch_codecs.decompress(header.codec, payload, limits.max_inflated_bytes)
    walk = _Walk(payload)
    last = -1
    for number in range(header.record_count):
        try:
            end = walk.number() + walk.position
            walk.taken(1)
            time, delta = walk.number(), walk.number()
            key, value = walk.sized_or_none(), walk.sized_or_none()
            headers = tuple((walk.sized(), walk.sized_or_none()) for _ in range(walk.number()))
        except _Cut:
            raise InvalidMessageError(f"the batch is damaged at its record {number}") from None
        if walk.position != end or not last < delta <= header.last_offset_delta:
            raise InvalidMessageError(f"the batch is damaged at its record {number}: its length or offset cannot be")
        last = delta
        timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + time
        yield Record(key, value, timestamp, headers, header.base_offset + delta)
    if walk.position != len(payload):
        raise InvalidMessageError(f"{len(payload) - walk.position} bytes follow the last record of the batch")

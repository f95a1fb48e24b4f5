"""Record batches (magic 2) as bytes: headers, records, building and reading them, each codec.

A batch is a header of 61 bytes and its records (``fastlog._records`` has their table), compressed as one when the
attributes name a codec. All integers are big-endian and signed, but for the checksum:

    position   bytes  field
    0          8      base offset: the offset of the first record
    8          4      bytes of the batch behind this field
    12         4      leader epoch
    16         1      magic, 2
    17         4      CRC-32C of everything from the attributes to the end
    21         2      attributes: bits 0-2 codec (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd), bit 3 timestamp type (1: the
                      time of the append, for all records), bit 4 transactional, bit 5 control batch, bit 6 delete
                      horizon; others 0
    23         4      offset of the last record minus the base offset
    27         8      base timestamp, milliseconds: that of the first record
    35         8      largest timestamp
    43         8      producer id, -1: none
    51         2      producer epoch, -1: none
    53         4      sequence number of the first record, -1: none
    57         4      number of records

The base offset and the leader epoch lie outside the checksum: a broker writes them, and nothing else changes.

Safe in any thread and process.

Source: Apache Kafka 4.2 (DefaultRecordBatch).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from fastlog import _records, batch_codecs
from fastlog._crc32c import crc32c
from fastlog._deep_batch import REASONS, DeepBatch
from fastlog.errors import DecompressionLimitError, InvalidFetchSizeError, InvalidMessageError, UnknownMagicError
from fastlog.message import DEFAULT_LIMITS, DeepLimits

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "HEADER_BYTES",
    "BatchHeader",
    "DeepBatch",
    "Record",
    "batches",
    "build",
    "check",
    "records",
]

MAGIC = 2
HEADER_BYTES = 61
LENGTH_AT = 8
LENGTH_COUNTS_FROM = 12
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
PRODUCER_AT = 43

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
KNOWN_ATTRIBUTES = 0x7F

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhi")
HEAD = struct.Struct(">qi4xb4xhi8xq")
"""The beginning of a header, as far as a walk over batches needs it: base offset, bytes behind the length, magic,
attributes, last offset minus the base offset, largest timestamp."""
_MOST_BYTES = 2**31 - 1


class Record(NamedTuple):
    """One record; ``offset`` is -1 for one that has none yet. Header keys are UTF-8 to Kafka, bytes here."""

    key: bytes | None
    value: bytes | None
    timestamp: int = NO_TIMESTAMP
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The header's fields as they stand in the bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def parse(cls, buffer: Buffer, position: int = 0) -> BatchHeader:
        """Return the header that begins at ``position``, whatever its fields say.

        Raises:
            InvalidMessageError: fewer than 61 bytes are there.
            UnknownMagicError: the magic is another one: 17 bytes are enough to see that.
        """
        view = memoryview(buffer).cast("B")[position:]
        if len(view) > MAGIC_AT and view[MAGIC_AT] != MAGIC:
            raise UnknownMagicError(f"magic {view[MAGIC_AT]} is not {MAGIC}")
        if len(view) < HEADER_BYTES:
            raise InvalidMessageError(f"{len(view)} bytes are fewer than the header of a batch has")
        return cls(**dict(zip(cls.__slots__, _HEADER.unpack_from(view), strict=True)))

    def encode(self) -> bytes:
        """Return the 61 bytes. Raises ``struct.error`` for a field that does not fit its width."""
        return _HEADER.pack(*(getattr(self, name) for name in self.__slots__))

    @property
    def size_bytes(self) -> int:
        """How many bytes the whole batch has, with its length field and base offset."""
        return LENGTH_COUNTS_FROM + self.batch_length

    @property
    def next_offset(self) -> int:
        """The offset that follows the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The number of the codec; see ``fastlog.batch_codecs``."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have the largest timestamp, which the broker set."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether a transaction's outcome decides about the records."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the records are the broker's own: the end of a transaction."""
        return bool(self.attributes & CONTROL)


def build(
    items: Iterable[Record],
    *,
    codec: int = batch_codecs.NONE,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """Return the records as one batch: offsets from ``base_offset`` on, the first one's timestamp as the base.

    ``attributes`` are the bits besides the codec. A record's own ``offset`` is not looked at.

    Raises:
        ValueError: there is no record, ``attributes`` has a bit of the codec or an unknown one, or it gets too large.
        UnknownCodecError, MissingCodecError: as for ``batch_codecs.compress``.
        TypeError, OverflowError: as for ``_records.pack``; a field that does not fit its width.
    """
    if attributes & (CODEC_MASK | ~KNOWN_ATTRIBUTES):
        raise ValueError(f"attributes {attributes:#x} have a bit that is the codec's, or nobody's")
    packed = [(record.key, record.value, record.timestamp, record.headers) for record in items]
    if not packed:
        raise ValueError("a batch without a record cannot be produced")
    times = [timestamp for _, _, timestamp, _ in packed]
    payload = batch_codecs.compress(codec, _records.pack(packed, times[0]))
    if len(payload) > _MOST_BYTES - HEADER_BYTES:
        raise ValueError(f"records of {len(payload)} bytes are too large for a batch; its length ends at {_MOST_BYTES}")
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=HEADER_BYTES - LENGTH_COUNTS_FROM + len(payload),
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes | codec,
        last_offset_delta=len(packed) - 1,
        base_timestamp=times[0],
        max_timestamp=max(times),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(packed),
    )
    try:
        covered = header.encode()[ATTRIBUTES_AT:]
        return replace(header, crc=crc32c(payload, crc32c(covered))).encode() + payload
    except struct.error as error:
        raise OverflowError(f"a field of the batch does not fit its width: {error}") from None


def batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the header and the bytes of each whole batch; a fetch may end inside one, and that one is left out.

    Lengths and magic are looked at, checksums are not: ``check`` does that.

    Raises:
        InvalidFetchSizeError: already the first batch is longer than the bytes: the fetch was too small for it.
        InvalidMessageError: on reaching a batch whose length cannot be.
        UnknownMagicError: on reaching one with another magic.
    """
    view = memoryview(buffer).cast("B")
    position = 0
    while len(view) - position > LENGTH_COUNTS_FROM:
        (length,) = struct.unpack_from(">i", view, position + LENGTH_AT)
        if length < HEADER_BYTES - LENGTH_COUNTS_FROM:
            raise InvalidMessageError(f"the batch at byte {position} tells that {length} bytes follow its length")
        end = position + LENGTH_COUNTS_FROM + length
        if end > len(view):
            if position == 0:
                raise InvalidFetchSizeError(f"the first batch has {end} bytes, {len(view)} were fetched")
            return
        yield BatchHeader.parse(view, position), view[position:end]
        position = end


def set_producer(batch: bytearray, producer_id: int, epoch: int, sequence: int) -> None:
    """Write whose a whole batch is, and the number of its first record, into its bytes; and the new checksum."""
    _PRODUCER.pack_into(batch, PRODUCER_AT, producer_id, epoch, sequence)
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))


def check(batch: Buffer) -> BatchHeader:
    """Return the header of one whole batch after a look at everything that needs no decompression but the records.

    Raises:
        InvalidMessageError: the length, the checksum, the number of records or an attribute is wrong.
        UnknownMagicError: the magic is another one.
    """
    view = memoryview(batch).cast("B")
    header = BatchHeader.parse(view)
    if header.size_bytes != len(view):
        raise InvalidMessageError(f"a batch of {len(view)} bytes tells that {header.batch_length} follow its length")
    found = crc32c(view[ATTRIBUTES_AT:])
    if found != header.crc:
        raise InvalidMessageError(f"the batch has the checksum {header.crc:#010x}, its bytes have {found:#010x}")
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        raise InvalidMessageError(
            f"the batch has {header.record_count} records, the last at its offset {header.last_offset_delta}"
        )
    if header.attributes & ~KNOWN_ATTRIBUTES or header.codec not in batch_codecs.CODEC_NAMES:
        raise InvalidMessageError(f"the batch has unknown attributes {header.attributes:#06x}")
    return header


def records(batch: Buffer, limits: DeepLimits = DEFAULT_LIMITS) -> Iterator[Record]:
    """Yield the records of one whole batch, which ``check`` has looked at first.

    Raises:
        InvalidMessageError, UnknownMagicError: as for ``check``; a record is damaged, or the compressed data is.
        DecompressionLimitError: the batch goes over a limit.
        MissingCodecError: the library for its codec is not installed.
    """
    header = check(batch)
    if header.record_count > limits.max_messages:
        raise DecompressionLimitError(f"the batch holds more than {limits.max_messages} records")
    payload: Buffer = memoryview(batch).cast("B")[HEADER_BYTES:]
    if header.codec:
        payload = batch_codecs.decompress(header.codec, payload, limits.max_inflated_bytes)
    found = _records.walk(payload, header.record_count, header.base_timestamp)
    if found.status != _records.RECORDS_OK:
        raise InvalidMessageError(f"the batch is damaged at its record {found.count}: {REASONS[found.status]}")
    for entry in _records.entries(payload, header.record_count, header.base_timestamp, header.base_offset):
        record = Record(*entry)
        yield record._replace(timestamp=header.max_timestamp) if header.is_log_append_time else record


def check_deep(batch: Buffer, limits: DeepLimits = DEFAULT_LIMITS) -> DeepBatch:
    """Return what a check of the records of one batch found, done in one go; raises as ``DeepBatch``."""
    checking = DeepBatch(batch, limits)
    while not checking.step(sys.maxsize):
        pass
    return checking

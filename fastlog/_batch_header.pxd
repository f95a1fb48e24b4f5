# The 61 bytes before the records of a batch: where their fields are, and writing them in place. ``fastlog.record_batches`` has their
# table.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fastlog._bytes cimport put16, put32, put64
from fastlog._crc32c cimport crc32c_span

cdef enum:
    AT_BASE_OFFSET = 0           # 8 bytes; the broker's
    AT_LENGTH = 8                # 4: the bytes behind this field
    AT_EPOCH = 12                # 4; the broker's
    AT_MAGIC = 16                # 1
    AT_CRC = 17                  # 4: CRC-32C of all that follows
    AT_ATTRIBUTES = 21           # 2
    AT_LAST_DELTA = 23           # 4: offset of the last record minus base offset
    AT_BASE_TIMESTAMP = 27       # 8
    AT_MAX_TIMESTAMP = 35        # 8
    AT_PRODUCER_ID = 43          # 8
    AT_PRODUCER_EPOCH = 51       # 2
    AT_BASE_SEQUENCE = 53        # 4
    AT_COUNT = 57                # 4
    BATCH_HEADER_BYTES = 61      # the records begin here
    LENGTH_END = 12              # the length counts from here
    RECORD_BATCH_MAGIC = 2

cdef enum BatchAttributes:
    CODEC_BITS = 0x07
    APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40
    KNOWN_BITS = 0x7F
    LARGEST_CODEC = 4            # none, gzip, snappy, lz4, zstd


cdef inline void number_batch(uint8_t* batch, int64_t producer, int16_t epoch, int32_t sequence) noexcept nogil:
    """Write who makes it, and its number; -1 for what there is not. ``sum_batch`` comes behind that."""
    put64(batch + AT_PRODUCER_ID, <uint64_t>producer)
    put16(batch + AT_PRODUCER_EPOCH, <uint16_t>epoch)
    put32(batch + AT_BASE_SEQUENCE, <uint32_t>sequence)


cdef inline void put_batch_header(
    uint8_t* batch, Py_ssize_t record_bytes, int codec, int32_t count, int64_t base_time, int64_t max_time
) noexcept nogil:
    """Write everything but the checksum; nobody numbers it."""
    put64(batch + AT_BASE_OFFSET, 0)
    put32(batch + AT_LENGTH, <uint32_t>(BATCH_HEADER_BYTES - LENGTH_END + record_bytes))
    put32(batch + AT_EPOCH, <uint32_t>-1)
    batch[AT_MAGIC] = RECORD_BATCH_MAGIC
    put32(batch + AT_CRC, 0)
    put16(batch + AT_ATTRIBUTES, <uint16_t>codec)
    put32(batch + AT_LAST_DELTA, <uint32_t>(count - 1))
    put64(batch + AT_BASE_TIMESTAMP, <uint64_t>base_time)
    put64(batch + AT_MAX_TIMESTAMP, <uint64_t>max_time)
    number_batch(batch, -1, -1, -1)
    put32(batch + AT_COUNT, <uint32_t>count)


cdef inline void recode_batch(uint8_t* batch, Py_ssize_t record_bytes, int codec) noexcept nogil:
    """Write another size and codec into a header."""
    put32(batch + AT_LENGTH, <uint32_t>(BATCH_HEADER_BYTES - LENGTH_END + record_bytes))
    put16(batch + AT_ATTRIBUTES, <uint16_t>codec)


cdef inline void sum_batch(uint8_t* batch, Py_ssize_t size) noexcept nogil:
    """Write the checksum of a whole batch: the last thing that is written of it."""
    put32(batch + AT_CRC, crc32c_span(0, batch + AT_ATTRIBUTES, <size_t>(size - AT_ATTRIBUTES)))

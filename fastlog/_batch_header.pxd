# The 61 bytes before the records of a batch, written in place; ``fastlog.record_batches`` has their table.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fastlog._bytes cimport put16, put32, put64
from fastlog._crc32c cimport crc32c_span

cdef enum:
    BATCH_HEADER_BYTES = 61
    BATCH_LENGTH_COUNTS_FROM = 12
    BATCH_MAGIC = 2
    BATCH_COVERED_FROM = 21       # by the checksum: from the attributes on


cdef inline void number_batch(uint8_t* batch, int64_t producer, int16_t epoch, int32_t sequence) noexcept nogil:
    """Write who makes it, and its number; -1 for what there is not. ``sum_batch`` comes behind that."""
    put64(batch + 43, <uint64_t>producer)
    put16(batch + 51, <uint16_t>epoch)
    put32(batch + 53, <uint32_t>sequence)


cdef inline void put_batch_header(
    uint8_t* batch, Py_ssize_t record_bytes, int codec, int32_t count, int64_t base_time, int64_t max_time
) noexcept nogil:
    """Write everything but the checksum; nobody numbers it."""
    put64(batch, 0)                                      # offset
    put32(batch + 8, <uint32_t>(BATCH_HEADER_BYTES - BATCH_LENGTH_COUNTS_FROM + record_bytes))
    put32(batch + 12, <uint32_t>-1)                      # leader epoch
    batch[16] = BATCH_MAGIC
    put32(batch + 17, 0)                                 # checksum
    put16(batch + 21, <uint16_t>codec)
    put32(batch + 23, <uint32_t>(count - 1))
    put64(batch + 27, <uint64_t>base_time)
    put64(batch + 35, <uint64_t>max_time)
    number_batch(batch, -1, -1, -1)
    put32(batch + 57, <uint32_t>count)


cdef inline void recode_batch(uint8_t* batch, Py_ssize_t record_bytes, int codec) noexcept nogil:
    """Write another size and codec into a header."""
    put32(batch + 8, <uint32_t>(BATCH_HEADER_BYTES - BATCH_LENGTH_COUNTS_FROM + record_bytes))
    put16(batch + 21, <uint16_t>codec)


cdef inline void sum_batch(uint8_t* batch, Py_ssize_t size) noexcept nogil:
    """Write the checksum of a whole batch: the last thing that is written of it."""
    put32(batch + 17, crc32c_span(0, batch + BATCH_COVERED_FROM, <size_t>(size - BATCH_COVERED_FROM)))

"""The buffers of partitions of record batches: a frame is a Produce request with one batch.

Who makes the batch, its number and its checksum are written by the sending thread: what is refused or given up before it
leaves no gap in the numbers.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy, memmove

from fastlog._batch_header cimport BATCH_HEADER_BYTES, put_batch_header
from fastlog._records cimport (
    MIN_RECORD_BYTES, MOST_RECORD_EXTRA_BYTES, put_bytes, put_record_fields, put_varint, varint_bytes,
)
from fastlog.producer._buffer cimport Buffer
from fastlog.producer._frames cimport BLOCK_BYTES, finish_frame
from fastlog.producer._lane cimport Lane
from fastlog.producer._parts cimport RecordParts, begin_parts, parts_bytes


cdef class RecordBuffer(Buffer):
    def __init__(self, shelf, object broker, str topic, int partition, int codec, bytes header, bint acknowledged,
                 int batch_messages, Py_ssize_t batch_bytes, Py_ssize_t max_payload, Lane lane not None):
        super().__init__(shelf, broker, topic, partition, codec, header + bytes(BATCH_HEADER_BYTES), acknowledged,
                         batch_messages, batch_bytes, max_payload)
        self.lane = lane
        if batch_bytes <= BLOCK_BYTES:                    # a batch that grows as far as it may fills one block of memory
            self.batch_bytes = min(batch_bytes, BLOCK_BYTES - self.header_bytes)

    cdef Py_ssize_t need_of(self, Py_ssize_t n, const RecordParts* parts) noexcept:
        """See ``Buffer``: a record with its key and headers, the lengths of all of them at their longest."""
        return MOST_RECORD_EXTRA_BYTES + max(n, 0) + (0 if parts == NULL else parts_bytes(parts))

    cdef Py_ssize_t place_of_next(self) noexcept:
        """See ``Buffer``: the number of the record in its batch."""
        return self.open_messages

    cdef void put_one(
        self, const unsigned char* payload, Py_ssize_t n, uint32_t crc, const RecordParts* parts
    ) noexcept:
        cdef RecordParts plain
        cdef uint8_t* start = self.memory + self.used
        cdef uint8_t* at
        cdef Py_ssize_t size, length_bytes
        if parts == NULL:
            begin_parts(&plain)
            parts = &plain
        if self.open_messages == 0:
            self.base_time = self.max_time = parts.timestamp
        elif parts.timestamp > self.max_time:
            self.max_time = parts.timestamp
        # Room for the length is a guess, which a few sizes alone are moved for: to count first costs more than to write.
        length_bytes = varint_bytes(MIN_RECORD_BYTES + max(n, 0) + parts_bytes(parts))
        at = put_record_fields(
            start + length_bytes, parts.timestamp - self.base_time, self.open_messages  # neither is negative: no overflow
        )
        at = put_bytes(put_bytes(at, parts.key, parts.key_bytes), payload, n)
        if parts.header_bytes == 1:
            at[0] = 0
        else:
            memcpy(at, parts.headers, <size_t>parts.header_bytes)
        at += parts.header_bytes
        size = at - start - length_bytes
        if varint_bytes(size) != length_bytes:
            memmove(start + varint_bytes(size), start + length_bytes, <size_t>size)
            at += varint_bytes(size) - length_bytes
        put_varint(start, size)
        self.used = at - self.memory

    cdef void finish(self, unsigned char* start, Py_ssize_t size, int32_t correlation_id) noexcept:
        """See ``Buffer``: the frame's header and the batch's, but for producer, numbers and checksum."""
        finish_frame(start, size, self.header_bytes - BATCH_HEADER_BYTES, correlation_id, True)
        put_batch_header(start + self.header_bytes - BATCH_HEADER_BYTES, size - self.header_bytes, 0, self.open_messages,
                         self.base_time, self.max_time)

    cdef bint is_ripe(self) noexcept:
        """See ``Buffer``: while frames before it wait for answers, a batch may as well go on growing."""
        return self.open_messages >= self.batch_messages and not self.shelf.behind

"""The buffers of partitions of record batches: a frame is a Produce request with one batch.

Who makes the batch, its number and its checksum are written by the sending thread: what is refused or given up before it
leaves no gap in the numbers.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from fastlog._batch_header cimport BATCH_HEADER_BYTES, put_batch_header
from fastlog._records cimport (
    MOST_RECORD_EXTRA_BYTES, field_bytes_of, put_bytes, put_record_start, record_bytes,
)
from fastlog.producer._buffer cimport Buffer
from fastlog.producer._frames cimport BLOCK_BYTES, finish_frame
from fastlog.producer._lane cimport Lane
from fastlog.producer._parts cimport Parts, now_ms


cdef class RecordBuffer(Buffer):
    def __init__(self, shelf, object broker, str topic, int partition, int codec, bytes header, bint acknowledged,
                 int batch_messages, Py_ssize_t batch_bytes, Py_ssize_t max_payload, Lane lane not None):
        super().__init__(shelf, broker, topic, partition, codec, header + bytes(BATCH_HEADER_BYTES), acknowledged,
                         batch_messages, batch_bytes, max_payload)
        self.lane = lane
        if batch_bytes <= BLOCK_BYTES:                    # a batch that grows as far as it may fills one block of memory
            self.batch_bytes = min(batch_bytes, BLOCK_BYTES - self.header_bytes)

    cdef Py_ssize_t need_of(self, Py_ssize_t n, Parts parts) noexcept:
        return MOST_RECORD_EXTRA_BYTES + max(n, 0) + (0 if parts is None else parts.size())

    cdef Py_ssize_t place_of_next(self) noexcept:
        return self.open_messages

    cdef void put_one(self, const unsigned char* payload, Py_ssize_t n, uint32_t crc, Parts parts) noexcept:
        cdef int64_t time = now_ms() if parts is None else parts.timestamp, delta
        cdef const uint8_t* key = NULL
        cdef Py_ssize_t key_bytes = -1, header_bytes = 1
        cdef uint8_t* at
        if parts is not None:
            if parts.key is not None:
                key, key_bytes = <const uint8_t*>PyBytes_AS_STRING(parts.key), PyBytes_GET_SIZE(parts.key)
            if parts.headers is not None:
                header_bytes = PyBytes_GET_SIZE(parts.headers)
        if self.open_messages == 0:
            self.base_time = self.max_time = time
        self.max_time = max(self.max_time, time)
        delta = time - self.base_time                     # neither is negative: no overflow
        at = put_record_start(
            self.memory + self.used,
            record_bytes(delta, self.open_messages, field_bytes_of(key_bytes) + field_bytes_of(n) + header_bytes),
            delta,
            self.open_messages,
        )
        at = put_bytes(put_bytes(at, key, key_bytes), payload, n)
        if header_bytes == 1:
            at[0] = 0
        else:
            memcpy(at, PyBytes_AS_STRING(parts.headers), <size_t>header_bytes)
        self.used = at + header_bytes - self.memory

    cdef void finish(self, unsigned char* start, Py_ssize_t size, int32_t correlation_id) noexcept:
        finish_frame(start, size, self.header_bytes - BATCH_HEADER_BYTES, correlation_id, True)
        put_batch_header(start + self.header_bytes - BATCH_HEADER_BYTES, size - self.header_bytes, 0, self.open_messages,
                         self.base_time, self.max_time)

    cdef bint is_ripe(self) noexcept:
        return self.open_messages >= self.batch_messages and not self.shelf.behind

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcpy

from fastlog._bytes cimport GIL_SPAN_BYTES, put32
from fastlog._crc cimport crc32_span
from fastlog._segment cimport ENTRY_HEADER_BYTES, LENGTH_BYTES
from fastlog.producer._lane cimport Lane

cdef enum:
    ENTRY_SIZE_BYTES = ENTRY_HEADER_BYTES - LENGTH_BYTES  # what the length field counts of it
    BLOCK_BYTES = 1 << 20         # memory with finished frames is handed on rather than grown from this size on


cdef struct Frame:
    Py_ssize_t end             # position behind the frame's last byte, from the start of its memory
    int32_t correlation_id     # of an acknowledged request; counts frames otherwise
    int32_t messages
    int32_t generation         # of the lane's numbering that it has its numbers of; 0: it has none yet


# Finished frames in memory of their own. Nothing writes into it any more: it is freed with the object, and who sends it
# holds the object. So a buffer cannot be filled again while a request is still being written from it.
cdef class Chunk:
    cdef unsigned char* memory
    cdef Py_ssize_t capacity
    cdef readonly Py_ssize_t size
    cdef Frame* frames
    cdef readonly int frame_count
    cdef readonly long long messages
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly int codec
    cdef Py_ssize_t header_bytes
    cdef bytes header              # with a batch's header behind it, where there is a lane
    cdef readonly Lane lane        # of a partition of record batches; None for messages
    cdef list tickets              # for messages whose outcome is reported one by one, in their order; or None
    cdef public long long taken_ns # when it left the queue, on the monotonic clock
    cdef public int attempts       # connections it was written to before this one
    cdef public int refusals       # how often the broker refused it for now
    cdef public bint is_overtaken  # what was written behind it is stored: so it may be, and may not be stored there
    cdef public long long sequence # its place among all chunks of its connection's queue
    # The sender's bookkeeping; the accumulating side does not look at it.
    cdef Py_ssize_t written        # bytes handed to the kernel on this connection, or not needed again
    cdef int written_frames        # frames that are wholly handed over
    cdef int finished_frames       # frames that are acknowledged or failed
    cdef int next_ticket

    cdef Chunk part(self, int start, int stop)
    cdef list tickets_of(self, int frame)
    cdef Chunk like(self, Py_ssize_t capacity, int frame_count)


# CLOCK_MONOTONIC, in nanoseconds.
cdef long long monotonic_ns() noexcept nogil

# Memory for frames, and freeing it; raises MemoryError. Blocks of BLOCK_BYTES are kept for later calls.
cdef unsigned char* new_memory(Py_ssize_t capacity) except NULL
cdef void free_memory(unsigned char* memory, Py_ssize_t capacity) noexcept

# Write what is known only once a frame is complete into its header: its size, the request's id, the size of its set.
cdef void finish_frame(unsigned char* start, Py_ssize_t size, Py_ssize_t header_bytes, int32_t correlation_id,
                       bint acknowledged) noexcept


cdef inline void put_entry(unsigned char* out, const unsigned char* p, Py_ssize_t n, int codec, uint32_t crc) noexcept:
    """Write a message of Kafka 0.7 with a payload of ``n`` bytes: ``n + ENTRY_HEADER_BYTES`` bytes at ``out``."""
    put32(out, <uint32_t>(n + ENTRY_SIZE_BYTES))
    out[4] = 1
    out[5] = <unsigned char>codec
    put32(out + 6, crc)
    memcpy(out + ENTRY_HEADER_BYTES, p, <size_t>n)


# The CRC of a bytes object. Called before a buffer is looked at: it may let another thread run, which may add to that
# buffer.
cdef inline uint32_t checksum(object payload) noexcept:
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(payload)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(payload)
    cdef uint32_t crc
    if n < GIL_SPAN_BYTES:
        return crc32_span(0, p, <size_t>n)
    with nogil:
        crc = crc32_span(0, p, <size_t>n)
    return crc

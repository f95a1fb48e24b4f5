from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastlog.log._arena cimport Arena, fl_slot
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers.net._connection cimport Conn
from fastlog.workers.net._helper cimport Helper
from fastlog.workers.kafka07._kinds cimport Kinds
from fastlog.workers._partitions cimport Topics
from fastlog.workers._unreadable cimport Unreadable

# What one fetch of one partition comes to.
cdef struct Found:
    int code                 # error code of the answer
    int entry                # descriptor entry, -1: nothing to send
    uint64_t position
    uint64_t size
    uint64_t watermark       # the offset of the visible end
    uint64_t visible         # its position
    uint64_t ahead           # bytes from the wanted offset to it
    uint64_t log_start
    fl_slot* slot            # NULL: nobody has written to it
    bint cold                # its first bytes are not in memory: nothing of it may be read here

# A MULTIFETCH that is under way; what has been looked at and not put into the answer yet is pinned.
cdef struct Parts:
    int count
    int looked               # parts that have been looked at
    int put                  # parts that stand in the answer
    int pinned               # descriptors that it was the first to pin
    size_t at                # where the next part begins in the body
    uint64_t total           # bytes of the answer after its size
    size_t total_at          # where that size stands among the bytes to be sent
    bint has_head
    bint waits               # no part has an error
    fl_slot* owed            # a part found nothing because of a flush that is owed
    uint64_t owed_at
    Found[0] found           # as many as there are parts

cdef enum FetchStatus:
    FETCH_DONE = 0
    FETCH_PARKED = 1
    FETCH_CLOSE = 2
    FETCH_MALFORMED = 3

cdef class Fetches:
    cdef Arena arena
    cdef SegmentFiles files
    cdef Authorizer authorizer
    cdef Kinds kinds
    cdef Topics topics
    cdef Helper helper
    cdef Unreadable unreadable
    cdef int process
    cdef int pinned          # descriptors that MULTIFETCHes under way have pinned
    cdef uint64_t* counters
    cdef uint64_t max_wait_ms
    cdef uint8_t* peek
    cdef void look(self, Conn* c, const uint8_t* name, int size, int32_t partition, int64_t offset, int32_t max_bytes,
                   Found* out) noexcept nogil
    cdef int check_boundary(self, Found* found, uint64_t available, uint64_t readable) noexcept nogil
    cdef int read_ahead(self, Conn* c, Found* found) noexcept nogil
    cdef int queue_read(self, Conn* c, int entry, uint64_t position, uint64_t size) noexcept nogil
    cdef int put(self, Conn* c, Found* found) noexcept nogil
    cdef int put_or_fail(self, Conn* c, Found* found, uint32_t head_bytes, uint32_t code_at) noexcept nogil
    cdef bint malformed(self, bint several, const uint8_t* body, size_t n) noexcept nogil
    cdef int fetch(self, Conn* c, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil
    cdef int multifetch(self, Conn* c, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil
    cdef Parts* begin_parts(self, Conn* c, int count) noexcept nogil
    cdef void forget_parts(self, Conn* c) noexcept nogil
    cdef int next_turn(self, Conn* c) noexcept nogil
    cdef int look_at_parts(self, Conn* c, Parts* parts, const uint8_t* body, size_t n, int* work) noexcept nogil
    cdef int put_parts(self, Conn* c, Parts* parts, int* work) noexcept nogil
    cdef bint hold(self, Conn* c, fl_slot* s, uint64_t visible, uint64_t now_ns) noexcept nogil
    cdef bint hold_offsets(self, Conn* c, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil
    cdef int held_fetch(self, Conn* c, const uint8_t* body, size_t n, int32_t correlation, uint64_t now_ns) noexcept nogil
    cdef void look_ahead(self, Found* found, uint64_t offset) noexcept nogil
    cdef void want_flush(self, fl_slot* s, uint64_t visible) noexcept nogil
    cdef void want_flush_now(self, fl_slot* s) noexcept nogil

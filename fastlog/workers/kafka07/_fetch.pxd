from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastlog.log._layout cimport fl_slot
from fastlog.workers._engine cimport Engine
from fastlog.workers._reads cimport Found, Reads
from fastlog.workers._reports cimport Reports
from fastlog.workers.kafka07._exchange cimport Exchange, Parts
from fastlog.workers.kafka07._kinds cimport Kinds
from fastlog.workers.net._connection cimport Conn

cdef enum:
    FETCH_MALFORMED = -3     # beside the values of ``Outcome``

cdef class Fetches:
    cdef Reads reads
    cdef Reports reports
    cdef Kinds kinds
    cdef uint64_t* counters
    cdef uint64_t max_wait_ms

    cdef int fetch(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil
    cdef int multifetch(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil
    cdef int held_fetch(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, int32_t correlation,
                        uint64_t now_ns) noexcept nogil
    cdef void failed(self, Conn* c, const Found* found, const uint8_t* name, int size) noexcept nogil
    cdef bint malformed(self, bint several, const uint8_t* body, size_t n) noexcept nogil
    cdef bint hold(self, Conn* c, Exchange* x, fl_slot* s, uint64_t visible, uint64_t now_ns) noexcept nogil
    cdef bint read_ahead(self, Conn* c, Exchange* x, Found* found) noexcept nogil
    cdef int put_or_fail(self, Conn* c, Found* found, uint32_t head_bytes, uint32_t code_at) noexcept nogil
    cdef Parts* begin_parts(self, Conn* c, Exchange* x, int count) noexcept nogil
    cdef void forget_parts(self, Conn* c, Exchange* x) noexcept nogil
    cdef int look_at_parts(self, Conn* c, Parts* parts, const uint8_t* body, size_t n, int* work) noexcept nogil
    cdef int put_parts(self, Conn* c, Parts* parts, int* work) noexcept nogil

cdef bint flush_owed(fl_slot* s) noexcept nogil

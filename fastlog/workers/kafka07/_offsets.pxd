from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from fastlog.log._layout cimport fl_slot
from fastlog.workers._engine cimport Engine
from fastlog.workers.kafka07._exchange cimport Exchange
from fastlog.workers.kafka07._fetch cimport Fetches
from fastlog.workers.kafka07._kinds cimport Kinds
from fastlog.workers.net._connection cimport Conn

cdef class Offsets:
    cdef Engine engine
    cdef Kinds kinds
    cdef Fetches fetches
    cdef object control
    cdef uint64_t* counters

    cdef int answer(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil
    cdef bint is_allowed(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil
    cdef int refuse(self, Conn* c, Exchange* x) noexcept nogil
    cdef bint hold(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil
    cdef int answer_from_table(self, Conn* c, fl_slot* s, int64_t time_ms, int32_t max_count) noexcept nogil
    cdef int answer_from_python(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil

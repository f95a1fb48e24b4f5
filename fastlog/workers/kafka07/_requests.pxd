from libc.stdint cimport uint8_t, uint64_t

from fastlog.workers._engine cimport Engine
from fastlog.workers.kafka07._exchange cimport Exchange
from fastlog.workers.kafka07._fetch cimport Fetches
from fastlog.workers.kafka07._kinds cimport Kinds
from fastlog.workers.kafka07._offsets cimport Offsets
from fastlog.workers.kafka07._own cimport Own
from fastlog.workers.kafka07._produce cimport Produces
from fastlog.workers.net._connection cimport Conn

cdef class Requests:
    cdef Engine engine
    cdef Kinds kinds
    cdef Produces produces
    cdef Fetches fetches
    cdef Offsets offsets
    cdef Own own
    cdef uint64_t* counters

    cdef int handle(self, Conn* c, Exchange* x, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil
    cdef int answer_nobody(self, Conn* c, Exchange* x, int kind, const uint8_t* p, size_t size) noexcept nogil
    cdef int malformed(self, Conn* c, int kind, const char* reason) noexcept nogil
    cdef int tell_receipts(self, Conn* c, Exchange* x) noexcept nogil
    cdef void give_up(self, Exchange* x) noexcept nogil
    cdef void forget(self, Conn* c, Exchange* x) noexcept nogil

from libc.stdint cimport int32_t, uint8_t, uint64_t

from fastlog.workers._engine cimport Engine
from fastlog.workers._jobs cimport Answering
from fastlog.workers.kafka07._exchange cimport Exchange
from fastlog.workers.net._connection cimport Conn

cdef class Own:
    cdef Engine engine
    cdef Answering answering
    cdef uint64_t* counters

    cdef int answer(self, Conn* c, Exchange* x, int kind, const uint8_t* p, size_t size, int32_t correlation) noexcept nogil
    cdef int error(self, Conn* c, int kind, int32_t correlation, int code) noexcept nogil
    cdef int queue_of(self, int kind, const uint8_t* p, size_t size) noexcept nogil
    cdef uint64_t expected_bytes(self, int kind, const uint8_t* p, size_t size) noexcept nogil
    cdef void forget(self, Conn* c, Exchange* x) noexcept nogil

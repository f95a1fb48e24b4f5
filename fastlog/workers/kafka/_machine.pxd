from libc.stdint cimport uint64_t

from fastlog.workers._engine cimport Engine
from fastlog.workers._reports cimport Reports
from fastlog.workers._writes cimport Writes
from fastlog.workers.kafka._exchange cimport Exchange
from fastlog.workers.kafka._requests cimport Requests
from fastlog.workers.net._connection cimport Conn
from fastlog.workers.net._protocol cimport Protocol

cdef class Kafka(Protocol):
    cdef Engine engine
    cdef Requests requests
    cdef Writes writes
    cdef Reports reports
    cdef uint64_t max_request

    cdef int write(self, Conn* c, Exchange* x) noexcept nogil

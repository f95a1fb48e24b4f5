from libc.stdint cimport uint64_t

from fastlog.log._arena cimport Arena
from fastlog.workers._reports cimport Reports
from fastlog.workers.kafka._kinds cimport Kinds
from fastlog.workers.net._protocol cimport Protocol

cdef class FirstRequest(Protocol):
    cdef Protocol old
    cdef Protocol today
    cdef Kinds kinds
    cdef Reports reports
    cdef uint64_t* counters

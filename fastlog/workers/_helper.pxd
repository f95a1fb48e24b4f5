from libc.stdint cimport uint64_t

from fastlog.log._arena cimport Arena
from fastlog.workers._connection cimport Conn

cdef enum HelperKind:
    HELP_INFLATE = 1     # count_deep over buffer[start + helper_offset:][:helper_size]
    HELP_READ_AHEAD = 2  # bring helper_size bytes of helper_entry at helper_position into memory

cdef struct HelperJob:
    Conn* conn
    int kind
    int fd
    uint64_t position
    uint64_t size
    const unsigned char* data

cdef class Helper:
    cdef Arena arena
    cdef int process
    cdef object validate
    cdef object thread
    cdef HelperJob* ring
    cdef uint64_t room, head, tail
    cdef void* mutex
    cdef void* ready
    cdef int submit(self, HelperJob job) noexcept nogil
    cdef long long inflate(self, HelperJob job) noexcept with gil

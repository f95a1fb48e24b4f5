from libc.stdint cimport uint8_t, uint64_t

from fastlog.workers.net._connection cimport Conn

cdef enum Going:
    GOES_ON = 0
    CLOSES = 1           # close the connection once what precedes has been done

cdef class Protocol:
    cdef int open(self, Conn* c) noexcept nogil
    cdef void close(self, Conn* c) noexcept nogil
    cdef void trim(self, Conn* c) noexcept nogil
    cdef uint64_t next_size(self, const uint8_t* data, size_t n) noexcept nogil
    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, uint64_t now_ns, size_t* used) noexcept nogil
    cdef int resume(self, Conn* c) noexcept nogil
    cdef void job_done(self, Conn* c) noexcept nogil
    cdef int unfinished(self, Conn* c) noexcept nogil
    cdef void unreadable(self, int entry, uint64_t position, int error) noexcept nogil
    cdef void begin_turn(self) noexcept nogil
    cdef bint forget_gone(self, uint64_t now) noexcept nogil

from libc.stdint cimport int32_t, uint8_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_slot
from fastlog.workers.net._connection cimport Conn

cdef class Reports:
    cdef object services
    cdef uint64_t* counters
    cdef const uint8_t[::1] tracing_memory
    cdef const uint8_t* tracing  # not 0 while requests are logged; the supervisor writes it, see switches.py

    cdef void refused(self, Conn* c, const char* reason, int detail, const uint8_t* name=*, int name_size=*,
                      int32_t partition=*) noexcept nogil
    cdef void invalid_request(self, Conn* c, const char* reason, int detail) noexcept nogil
    cdef void set_refused(self, Conn* c, const uint8_t* name, int name_size, int32_t partition,
                          char* said=*, size_t room=*) noexcept nogil
    cdef void write_failed(self, Conn* c, fl_slot* s, int error) noexcept nogil
    cdef void read_failed(self, fl_slot* s, uint64_t base, uint64_t position, int error) noexcept nogil
    cdef void trace(self, Conn* c, int kind, size_t size) noexcept nogil

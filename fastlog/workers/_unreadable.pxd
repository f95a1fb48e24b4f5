from libc.stdint cimport uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_slot
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers._reports cimport Reports

cdef class Unreadable:
    cdef Arena arena
    cdef SegmentFiles files
    cdef Reports reports
    cdef uint64_t* counters
    cdef fl_slot* slot               # the partition of the last failure; NULL: there was none
    cdef uint64_t at                 # its offset
    cdef uint64_t until_ns           # how long it is believed

    cdef void failed(self, int entry, uint64_t position, int error) noexcept nogil
    cdef void not_opened(self, fl_slot* s, uint64_t base, uint64_t position, int error) noexcept nogil
    cdef void say(self, fl_slot* s, uint64_t base, uint64_t position, int error) noexcept nogil
    cdef uint64_t cut(self, fl_slot* s, uint64_t position, uint64_t size) noexcept nogil

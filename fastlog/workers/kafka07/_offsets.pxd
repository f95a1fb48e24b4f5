from libc.stdint cimport int32_t, int64_t

from fastlog.log._arena cimport fl_header, fl_slot
from fastlog.workers.net._connection cimport Conn

cdef enum OffsetsStatus:
    OFFSETS_DONE = 0
    OFFSETS_PARKED = 1       # the memory for answers is used up
    OFFSETS_NO_MEMORY = 2

# Answer OFFSETS of a partition that is in service with at most max_count offsets, newest first.
cdef int answer_offsets(fl_header* h, fl_slot* s, Conn* c, int64_t time_ms, int32_t max_count) noexcept nogil

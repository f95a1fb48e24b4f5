from libc.stdint cimport int64_t

from fastlog.producer._buffer cimport Buffer


cdef class RecordBuffer(Buffer):
    cdef int64_t base_time         # of the open batch: that of its first record
    cdef int64_t max_time

from libc.stdint cimport int32_t, uint8_t, uint64_t

from fastlog.log._append cimport Appender
from fastlog.log._arena cimport fl_slot
from fastlog.log._arena cimport Arena
from fastlog.workers.net._connection cimport Ack, Conn, Pool, Run

cdef enum FrameStatus:
    FRAME_DONE = 0
    FRAME_PARKED = 1     # handle the same frame again when the connection goes on
    FRAME_CLOSE = 2      # what precedes it stays, then the connection closes

# Error codes of the answers.
cdef enum:
    CODE_INVALID_MESSAGE = 2
    CODE_GONE = 3        # the partition has been deleted
    CODE_OFFLINE = 101
    CODE_TOO_LARGE = 102
    CODE_STORAGE = 103
    CODE_VERSION = 104
    CODE_FEATURE = 105
    CODE_DENIED = 106
    CODE_MALFORMED = 107

cdef class Runs:
    cdef Arena arena
    cdef Appender appender
    cdef object services
    cdef int process
    cdef uint64_t* counters
    cdef Pool pool                   # of the runs, and the memory for requests
    cdef uint64_t[2048] offsets      # where the pieces of one append went

    cdef void report(self, Conn* c, const char* reason, int detail, const uint8_t* name=*, int name_size=*,
                     int32_t partition=*) noexcept nogil
    cdef void write_failed(self, Conn* c, fl_slot* s, int error) noexcept nogil
    cdef int commit(self, Conn* c) noexcept nogil
    cdef void appended(self, Ack* ack) noexcept nogil
    cdef int commit_run(self, Conn* c, Run* run) noexcept nogil
    cdef int emit_acks(self, Conn* c) noexcept nogil

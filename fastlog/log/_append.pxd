from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastlog.log._arena cimport Arena, fl_slot
from fastlog.log._segments cimport SegmentFiles


# One request's share of an append: its bytes and how many (deep) messages they hold.
cdef struct Piece:
    uint32_t size
    uint32_t count

cdef enum AppendStatus:
    APPENDED = 0        # every piece is in the log
    APPEND_BUSY = 1     # another process holds the lock: try again when woken
    APPEND_FULL = 2     # the bound of unflushed data is reached: try again when the watermark moves
    APPEND_FAILED = 3   # the write failed; error is the errno; nothing of the first unwritten piece is left
    APPEND_OFFLINE = 4  # the partition takes no appends

cdef struct Appended:
    int done             # pieces written, whatever the status
    uint64_t first       # offset of the first byte written by this call
    uint64_t next        # offset after the last one
    uint64_t bytes       # bytes written by this call
    int error

# THE append of the 0.7 format, behind one single-writer contract: the append lock.
cdef class Appender:
    cdef readonly Arena arena
    cdef readonly SegmentFiles files
    cdef int process
    cdef uint64_t* counters
    cdef uint64_t* holding
    cdef uint64_t* disk_ns
    cdef uint64_t* heartbeat_ns
    cdef void begin_disk(self) noexcept nogil
    cdef void end_disk(self) noexcept nogil
    cdef int append(self, fl_slot* s, const uint8_t* data, const Piece* pieces, int n, uint64_t* offsets,
                    Appended* out) noexcept nogil
    cdef int lock(self, fl_slot* s) noexcept nogil
    cdef void unlock(self, fl_slot* s) noexcept nogil
    cdef int repair(self, fl_slot* s) noexcept nogil
    cdef void publish_segment(self, fl_slot* s, uint64_t base, int fd) noexcept nogil
    cdef int roll(self, fl_slot* s) noexcept nogil
    cdef int write_all(self, fl_slot* s, int fd, uint64_t base, const uint8_t* data, uint64_t n) noexcept nogil
    cdef int admit(self, fl_slot* s, const Piece* pieces, int n, uint64_t now_ns) noexcept nogil

cdef bint flush_due(fl_slot* s) noexcept nogil

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_end, fl_slot
from fastlog.log._producers cimport Followed, Hints
from fastlog.log._segments cimport SegmentFiles
from fastlog.log.formats._table cimport Format


# One request's share of an append: its bytes, how many (deep) messages they hold, and how many offsets they take.
cdef struct Piece:
    uint32_t size
    uint32_t count
    uint32_t span
    int64_t largest_ms   # of its messages; -1 where they have no time
    int64_t base         # the offset at which alone it is for the log, whoever has produced it; -1: the next one, as it comes

cdef enum AppendStatus:
    APPENDED = 0        # every piece is in the log
    APPEND_BUSY = 1     # another process holds the lock: try again when woken
    APPEND_FULL = 2     # the bound of unflushed data is reached: try again when the flushed end moves
    APPEND_FAILED = 3   # the write failed; error is the errno; nothing of the first unwritten piece is left
    APPEND_OFFLINE = 4  # the partition takes no appends
    APPEND_GONE = 5     # the partition has been deleted
    # the first unwritten piece is not for the log, and has changed nothing: the caller goes on behind it
    APPEND_DUPLICATE = 6        # the log has it: ``base``, ``end`` and ``time`` are those of its original
    APPEND_OUT_OF_SEQUENCE = 7  # a batch before it is missing
    APPEND_OLD_EPOCH = 8        # its producer has begun anew since

cdef struct Appended:
    int done             # pieces written, whatever the status
    uint64_t first       # the offset at which this call began
    uint64_t next        # the offset of the next message after it
    uint64_t position    # the log end when it began
    uint64_t bytes       # bytes written by this call
    int error
    uint64_t base
    uint64_t end
    int64_t time

# THE append, behind one single-writer contract: the append lock.
cdef class Appender:
    cdef readonly Arena arena
    cdef readonly SegmentFiles files
    cdef int process
    cdef uint64_t* counters
    cdef uint64_t* holding
    cdef uint64_t* disk_ns
    cdef uint64_t* heartbeat_ns
    cdef Hints hints
    cdef Followed followed       # the producers of the write in hand
    cdef void begin_disk(self) noexcept nogil
    cdef void end_disk(self) noexcept nogil
    cdef int append(self, fl_slot* s, uint64_t life, uint8_t* data, const Piece* pieces, int n, uint64_t* offsets,
                    Appended* out) noexcept nogil
    cdef int take_lock(self, fl_slot* s) noexcept nogil
    cdef int lock(self, fl_slot* s) noexcept nogil
    cdef void unlock(self, fl_slot* s) noexcept nogil
    cdef int repair(self, fl_slot* s) noexcept nogil
    cdef void publish_segment(self, fl_slot* s, const fl_end* end, int fd) noexcept nogil
    cdef int roll(self, fl_slot* s) noexcept nogil
    cdef int write_all(self, fl_slot* s, int fd, uint64_t position, const uint8_t* data, uint64_t n) noexcept nogil
    cdef int follow_first(self, const Format* made, fl_slot* s, const fl_end* end, const uint8_t* p, uint64_t size,
                          uint64_t used_ms, Appended* out) noexcept nogil
    cdef bint follow_next(self, const Format* made, fl_slot* s, const fl_end* end, const uint8_t* p, uint64_t written,
                          uint64_t used_ms) noexcept nogil
    cdef void put_followed(self, fl_slot* s, const fl_end* end, uint64_t used_ms) noexcept nogil
    cdef int admit(self, fl_slot* s, const Piece* pieces, int n, uint64_t now_ns) noexcept nogil

cdef bint flush_due(fl_slot* s) noexcept nogil

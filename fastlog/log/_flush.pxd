from libc.stdint cimport int64_t, uint64_t

from fastlog.log._append cimport Appender
from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_slot, pthread_mutex_t


cdef enum:
    BUCKETS = 12

# What the flusher remembers of one partition; touched by the one thread that works on it.
cdef struct FlushState:
    int fd                    # the newest segment it knows, or -1
    uint64_t index            # which segment that is
    uint64_t preallocated     # file position up to which that segment has blocks
    uint64_t written_back     # position up to which write-back was started
    uint64_t dropped          # position up to which the kernel was asked to drop pages
    uint64_t last_start_ns    # when the last flush began
    uint64_t last_used_ns
    int busy                  # 1 while a worker has it

cdef class PartitionFlusher:
    cdef readonly Arena arena
    cdef Appender appender
    cdef pthread_mutex_t append_turn   # the appender serves one thread at a time
    cdef FlushState* states
    cdef PartitionFlusher beside       # whose states they are; None: its own
    cdef uint64_t* counters
    cdef uint64_t* flush_buckets       # those among them that say how long flushes took, in the order of bucket_ns
    cdef uint64_t[BUCKETS] bucket_ns   # up to how long those in a bucket took; longer ones are in none
    cdef uint64_t preallocate_bytes
    cdef uint64_t writeback_bytes
    cdef int64_t keep_bytes            # behind the flushed end, of what the page cache should keep; -1: all
    cdef int least_free_percent         # of the file system: with less, nothing is reserved
    cdef int* preallocation_off        # per log directory: 1 once the file system refused
    cdef int* marks                    # per log directory: its flush marks, open, or negative
    cdef pthread_mutex_t marks_turn    # whoever opens one
    cdef int descriptors               # segments kept open at most, beside those that are worked on
    cdef int open_count                # any thread, atomically
    cdef int flush(self, fl_slot* s) noexcept nogil
    cdef void count_flush(self, uint64_t bytes, uint64_t took_ns) noexcept nogil
    cdef int fail(self, fl_slot* s, uint64_t why, int error) noexcept nogil
    cdef int mark(self, fl_slot* s, bint on) noexcept nogil
    cdef int postpone(self, fl_slot* s, int error) noexcept nogil
    cdef int open_segment(self, fl_slot* s, uint64_t index) noexcept nogil
    cdef int take_segment(self, fl_slot* s, uint64_t index) noexcept nogil
    cdef void leave_segment(self, fl_slot* s) noexcept nogil
    cdef void forget(self, fl_slot* s) noexcept nogil
    cdef bint over_budget(self) noexcept nogil
    cdef int move_flushed_mark(self, fl_slot* s, uint64_t base) noexcept nogil
    cdef void sync_indexes(self, fl_slot* s, uint64_t index) noexcept nogil
    cdef int sync_directories(self, fl_slot* s) noexcept nogil
    cdef void drop_behind(self, fl_slot* s, uint64_t start, uint64_t end) noexcept nogil
    cdef void run_ahead(self, fl_slot* s) noexcept nogil
    cdef int rewrite(self, fl_slot* s) noexcept nogil
    cdef int rewrite_segment(self, fl_slot* s, int fd, uint64_t base, uint64_t start, uint64_t end) noexcept nogil
    cdef void release(self, fl_slot* s) noexcept nogil

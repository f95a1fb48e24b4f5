from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastlog.log._layout cimport fl_end, fl_slot
from fastlog.log._segments cimport SegmentFiles
from fastlog.log.formats._table cimport Format

cdef enum:
    INDEX_INTERVAL = 4096        # bytes of the log between two entries of its index, at least
    MOST_INDEX_INTERVAL = 64 << 10  # and at most, but for one batch
    OFFSET_ENTRY = 8             # bytes: offset of the last message of an entry of the log, less the base; its file position
    TIME_ENTRY = 12              # bytes: the largest time so far; offset as above of the last message that has it or came with it
    WINDOW = 8192                # bytes that a walk reads at once

cdef enum WalkStatus:
    WALKED = 0                   # the entry begins at ``position``
    WALK_END = 1                 # all entries were walked, and the offset is behind them
    WALK_COLD = 2                # what is to be read next is not in memory
    WALK_FAR = 3                 # as many bytes have been walked as were allowed
    WALK_DAMAGED = 4             # what stands at ``position`` is no entry

cdef struct Walk:
    uint64_t position
    uint64_t next_offset         # behind the entries that were walked; 0: none was

# Walk the entries of a segment file from `start`, where one begins, to that which holds `offset`, or ends behind it; at most to
# `end`, and about `most` bytes of their heads. With `wait`, bytes that are not in memory are waited for. A WalkStatus or -errno.
cdef int walk_to(int fd, const Format* made, uint8_t* window, uint64_t start, uint64_t end, uint64_t offset, bint wait,
                 uint64_t most, Walk* out) noexcept nogil
# The file position of an entry of the log at or before the one that holds an offset, as the index says it; 0 where it says
# nothing. What it says is to be checked. WALKED, WALK_COLD or -errno.
cdef int index_floor(int fd, uint64_t base, uint64_t offset, bint wait, uint64_t* position, uint64_t* last) noexcept nogil

# Where the entry of an offset begins in a segment's file, by its index; see walk_to.
cdef int seek_entry(int log_fd, int index_fd, const Format* made, uint8_t* window, uint64_t base, uint64_t end, uint64_t offset,
                    bint wait, uint64_t most, Walk* out) noexcept nogil

# What one append adds to the indexes of its segment.
cdef struct Additions:
    int entries
    int times
    uint8_t[64 * OFFSET_ENTRY] offsets_bytes
    uint8_t[64 * TIME_ENTRY] times_bytes

cdef void begin_segment(fl_end* end) noexcept nogil
cdef void add_entry(Additions* added, fl_end* end, uint64_t base, uint64_t position, uint64_t size, uint64_t last_offset,
                    int64_t largest_ms) noexcept nogil
cdef void write_additions(SegmentFiles files, fl_slot* s, uint64_t index, uint64_t base, const Additions* added,
                          fl_end* end) noexcept nogil
cdef void seal(SegmentFiles files, fl_slot* s, uint64_t index, uint64_t base, fl_end* end) noexcept nogil
cdef void cut_indexes(SegmentFiles files, fl_slot* s, uint64_t index, uint64_t base, const fl_end* end) noexcept nogil

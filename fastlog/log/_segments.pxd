from libc.stdint cimport uint8_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_end, fl_header, fl_slot


# A place in the log: which segment, its file position, and where the readable bytes of that segment end.
cdef struct Place:
    uint64_t index       # segment, by its never-reused number
    uint64_t base        # the segment's base offset
    uint64_t start       # the position of its first byte
    uint64_t position    # file position of the wanted offset
    uint64_t end         # position where this segment's visible bytes end
    int sealed           # 1 when a later segment exists
    bint walked          # the position is not known: entries have to be walked (``_index``)

cdef enum LocateStatus:
    LOCATED = 0
    LOCATE_EMPTY = 1         # offset equals the visible end
    LOCATE_OUT_OF_RANGE = 2

# THE function from an offset to a segment and a position in its file; the slot's format knows the last step.
cdef int locate(fl_header* h, fl_slot* s, uint64_t offset, fl_end* visible, Place* out) noexcept nogil

# The files of one segment.
cdef enum FileKind:
    LOG_FILE = 0
    OFFSET_INDEX = 1
    TIME_INDEX = 2

cdef struct FdEntry:
    int fd
    int pins
    int doomed               # its segment is gone: close with the last pin
    uint64_t slot
    uint64_t index
    int kind                 # a FileKind
    int newer
    int older
    int chain

cdef int segment_path(Arena arena, fl_slot* s, uint64_t base, char* out, size_t room) noexcept nogil
cdef int file_path(Arena arena, fl_slot* s, uint64_t base, int kind, char* out, size_t room) noexcept nogil
cdef int flushed_mark_path(Arena arena, fl_slot* s, uint64_t base, char* out, size_t room) noexcept nogil
cdef int marks_path(Arena arena, int directory, char* out, size_t room) noexcept nogil
cdef void partition_path(Arena arena, fl_slot* s, char* out, size_t room) noexcept nogil

cdef enum:
    PATH_BYTES = 4096

# The open segment files of one process, least recently used closed first; one thread at a time.
cdef class SegmentFiles:
    cdef readonly Arena arena
    cdef FdEntry* entries
    cdef int* buckets
    cdef int capacity
    cdef int bucket_count
    cdef int newest
    cdef int oldest
    cdef int free_list
    cdef readonly int open_count
    cdef uint64_t generation
    cdef int bucket(self, uint64_t slot, uint64_t index, int kind) noexcept nogil
    cdef void unlink_lru(self, int e) noexcept nogil
    cdef void push_newest(self, int e) noexcept nogil
    cdef int find(self, fl_slot* s, uint64_t index, int kind) noexcept nogil
    cdef int insert(self, fl_slot* s, uint64_t index, int kind, int fd) noexcept nogil
    cdef int victim(self) noexcept nogil
    cdef bint give_back(self) noexcept nogil
    cdef int acquire(self, fl_slot* s, uint64_t index, uint64_t base) noexcept nogil
    cdef int acquire_kind(self, fl_slot* s, uint64_t index, uint64_t base, int kind, int flags) noexcept nogil
    cdef inline int fd(self, int entry) noexcept nogil:
        return self.entries[entry].fd
    cdef void pin(self, int entry) noexcept nogil
    cdef void unpin(self, int entry) noexcept nogil
    cdef void drop(self, int entry) noexcept nogil
    cdef void close_retired(self) noexcept nogil

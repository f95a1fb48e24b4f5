"""Log bytes that the disk does not give back: named in the log, counted, and kept out of the next answers for a while.

An answer whose size has been announced can only be broken off when its bytes cannot be read. The client then asks for the
same again; that answer ends before the place that failed, so that what is readable is read, and the fetch from that place
gets an error.
"""

from libc.stdint cimport uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport (
    fl_base_at, fl_bump, fl_cell_at, fl_lives, fl_load, fl_monotonic_ns, fl_slot, fl_slot_at, fl_start_at,
)
from fastlog.log._shared_memory cimport N_READ_FAILURES
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers._reports cimport Reports

cdef enum:
    BELIEVED_NS = 10000000000    # then it is tried again: a disk may come back


cdef class Unreadable:
    """The failures of one processor; its loop's thread only."""

    def __cinit__(self, Arena arena, SegmentFiles files, int process, Reports reports):
        self.arena = arena
        self.files = files
        self.reports = reports
        self.counters = fl_cell_at(arena.header, process).counters

    cdef void failed(self, int entry, uint64_t position, int error) noexcept nogil:
        """Reading an open segment failed at this position; ``error`` is the errno, 0 when the file ends there."""
        cdef fl_slot* s = fl_slot_at(self.arena.header, self.files.entries[entry].slot)
        cdef uint64_t base
        if not fl_lives(s) or self.files.entries[entry].index < fl_load(&s.table_head):
            return  # what has been deleted is nobody's concern
        base = fl_load(fl_base_at(self.arena.header, s, self.files.entries[entry].index))
        self.slot = s
        self.at = fl_load(fl_start_at(self.arena.header, s, self.files.entries[entry].index)) + position
        self.until_ns = fl_monotonic_ns() + BELIEVED_NS
        self.say(s, base, position, error)

    cdef void not_opened(self, fl_slot* s, uint64_t base, uint64_t position, int error) noexcept nogil:
        """A segment could not be opened; nothing is remembered, the next fetch tries again."""
        self.say(s, base, position, error)

    cdef void say(self, fl_slot* s, uint64_t base, uint64_t position, int error) noexcept nogil:
        fl_bump(&self.counters[<int>N_READ_FAILURES], 1)
        self.reports.read_failed(s, base, position, error)

    cdef uint64_t cut(self, fl_slot* s, uint64_t position, uint64_t size) noexcept nogil:
        """How many of these bytes of the partition's stream lie before the place that could not be read, all when none of them did."""
        if s != self.slot or position >= self.at or position + size <= self.at or fl_monotonic_ns() > self.until_ns:
            return size
        return self.at - position

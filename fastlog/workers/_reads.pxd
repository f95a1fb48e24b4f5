from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_slot
from fastlog.log._segments cimport Place, SegmentFiles
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers._partitions cimport Partitions
from fastlog.workers._reports cimport Reports
from fastlog.workers._unreadable cimport Unreadable
from fastlog.workers.net._connection cimport Conn, ReadJob
from fastlog.workers.net._helper cimport Helper
from fastlog.workers.net._slot_waits cimport SlotWaits

# What one fetch of one partition comes to.
cdef struct Found:
    int problem              # a ``Problem``
    int entry                # descriptor entry, -1: nothing to send
    uint64_t position
    uint64_t size
    uint64_t watermark       # the offset of the visible end
    uint64_t visible         # its position
    uint64_t ahead           # bytes from the wanted offset to it
    uint64_t log_start
    fl_slot* slot            # NULL: nobody has written to it
    bint cold                # its first bytes are not in memory: nothing of it may be read here
    bint walks               # where the entry begins is not known yet: ``read_ahead`` looks for it, then ``find`` is to be asked again
    uint64_t entry_bytes     # of the first entry, whole; may be more than ``size``
    uint64_t segment         # of ``walks``: the index and the base offset of the segment, and the offset that is looked for
    uint64_t base
    uint64_t offset

# Where an entry was found by a walk that a thread made.
cdef struct Known:
    uint64_t slot
    uint64_t life
    uint64_t base
    uint64_t offset
    uint64_t position

cdef enum:
    KNOWN_PLACES = 64        # a power of two

cdef class Reads:
    cdef Arena arena
    cdef SegmentFiles files
    cdef Authorizer authorizer
    cdef Partitions partitions
    cdef Helper helper
    cdef Unreadable unreadable
    cdef SlotWaits slot_waits
    cdef int process
    cdef int pinned          # descriptors that requests for many partitions were the first to pin; each takes its own off
    cdef uint64_t* counters
    cdef uint8_t* peek
    cdef Known[KNOWN_PLACES] known

    cdef void find(self, Conn* c, int operation, const uint8_t* name, int size, int32_t partition, int clients, int64_t offset,
                   int32_t max_bytes, Found* out) noexcept nogil
    cdef int index_of(self, Found* found) noexcept nogil
    cdef int walk(self, Found* found, const Place* place) noexcept nogil
    cdef Known* known_place(self, uint64_t slot, uint64_t offset) noexcept nogil
    cdef void learn_place(self, const ReadJob* job) noexcept nogil
    cdef int check_boundary(self, Found* found, uint64_t available, uint64_t readable) noexcept nogil
    cdef bint read_ahead(self, Conn* c, ReadJob* job, Found* found) noexcept nogil
    cdef int put(self, Conn* c, Found* found) noexcept nogil
    cdef bint pin(self, Found* found) noexcept nogil
    cdef void unpin(self, Found* found) noexcept nogil
    cdef bint descriptors_are_short(self) noexcept nogil
    cdef bint await_visible(self, fl_slot* s, uint64_t visible) noexcept nogil
    cdef void ask_for_more(self, fl_slot* s) noexcept nogil
    cdef bint await_partition(self, const uint8_t* name, int size, int32_t partition) noexcept nogil
    cdef void look_ahead(self, Found* found) noexcept nogil
    cdef void want_flush(self, fl_slot* s, uint64_t visible) noexcept nogil
    cdef void want_flush_now(self, fl_slot* s) noexcept nogil

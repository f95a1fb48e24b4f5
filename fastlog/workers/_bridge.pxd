from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from fastlog._upconvert cimport Making, OpenedSet
from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_slot
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers._partitions cimport Partitions
from fastlog.workers._reads cimport Found, Reads
from fastlog.workers.net._connection cimport Conn, ReadJob
from fastlog.workers.net._helper cimport Helper

# What converting the messages of one part of a fetch came to.
cdef enum BridgeStatus:
    BRIDGED = 0              # what there is stands in ``made``; of size 0: nothing that fits
    BRIDGE_WAITS = 1         # a thread is at it
    BRIDGE_LARGE = 2         # a message of ``needed`` bytes: not before there is room for it
    BRIDGE_DAMAGED = 3       # no valid message is where one has to be
    BRIDGE_UNFIT = 4         # a compressed set that has more messages than offsets, or more comes out than limits allow
    BRIDGE_NO_CODEC = 5      # the library that could open it is not installed
    BRIDGE_UNREADABLE = 6    # the disk does not give the bytes back
    BRIDGE_NO_MEMORY = 7

# Converts the messages of one part.
cdef struct BridgeJob:
    ReadJob read
    int64_t wanted           # the first offset that is asked for
    uint64_t base            # offset of the file's first byte
    uint64_t end             # file position where the visible bytes end
    uint64_t at              # file position where a message begins: that of ``wanted``, once it is found
    bint is_found
    bint is_believed         # it is not known, but what stands there is a valid message
    bint is_opening          # the message there is a compressed set that is being opened
    bint has_room            # there is room for a message of any size
    int32_t epoch
    Making made
    int64_t next_offset
    int status
    int error                # errno
    uint64_t needed
    uint64_t* marks          # file positions of messages that the search has passed, a few for each MiB
    int mark_count

# Where a message of a segment begins, as far as it is known.
cdef struct Mark:
    uint64_t slot
    uint64_t life
    uint64_t base
    uint64_t position

cdef class Bridge:
    cdef Arena arena
    cdef SegmentFiles files
    cdef Authorizer authorizer
    cdef Partitions partitions
    cdef Helper helper
    cdef Reads reads
    cdef object services, limits
    cdef dict opened         # by the name of the connection: sets that are being opened
    cdef dict begun          # a few that were left in the middle, by the place where their reader goes on; the oldest first
    cdef dict reasons        # by the same: why its last one could not be converted
    cdef Mark* exact         # the places where readers are, by slot and position
    cdef Mark* sparse        # the first known place in each MiB
    cdef uint8_t* window

    cdef void find(self, Conn* c, int operation, const uint8_t* name, int size, int32_t partition, int64_t offset,
                   int32_t max_bytes, Found* out, uint64_t* end) noexcept nogil
    cdef int convert(self, Conn* c, BridgeJob* job, const Found* found, uint64_t end, int64_t offset, uint64_t most,
                     bint whole, bint has_room) noexcept nogil
    cdef bint convert_here(self, BridgeJob* job, const Found* found) noexcept nogil
    cdef void take(self, BridgeJob* job) noexcept nogil
    cdef void forget(self, Conn* c, BridgeJob* job) noexcept nogil
    cdef void say(self, Conn* c, fl_slot* s, BridgeJob* job) noexcept nogil
    cdef void note(self, fl_slot* s, uint64_t base, uint64_t position, bint is_place) noexcept nogil
    cdef void note_end(self, fl_slot* s) noexcept nogil
    cdef uint64_t floor_of(self, fl_slot* s, uint64_t base, uint64_t position) noexcept nogil
    cdef int make_marks(self) noexcept nogil
    cdef bint step(self, BridgeJob* job, uint8_t* scratch) noexcept nogil
    cdef bint search(self, BridgeJob* job, uint8_t* scratch) noexcept nogil
    cdef int add_large(self, BridgeJob* job) noexcept nogil
    cdef int open_set(self, BridgeJob* job) noexcept with gil
    cdef tuple place_of(self, BridgeJob* job, int64_t offset)
    cdef int keep_begun(self, BridgeJob* job, OpenedSet opened) except -1
    cdef void stop(self, BridgeJob* job, int status) noexcept nogil

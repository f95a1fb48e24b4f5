from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

# How adding messages to a batch ended.
cdef enum Upconvert:
    CONVERTED = 0        # all that was given
    CONVERT_FULL = 1     # the next one does not fit; it is not in
    CONVERT_CUT = 2      # the bytes end inside the next one, of which ``needed`` bytes are to be given
    CONVERT_WRAPPER = 3  # the next one is a compressed set of ``needed`` bytes
    CONVERT_DAMAGED = 4  # the next one is not valid
    CONVERT_NO_MEMORY = 5
    CONVERT_MORE = 6     # of a compressed set: there is more to do, in another step

# A batch that is being made: null keys, no headers, one time for all. It begins as zeroed memory, with ``most`` set.
cdef struct Making:
    uint8_t* data        # head and records; whoever made it frees it
    uint64_t size
    uint64_t room
    uint64_t most        # bytes that it may have
    bint first_whole     # its first record may make it larger
    int64_t base         # offset of the first record
    int64_t last         # offset of the last one
    int64_t count

# What became of the bytes that were given.
cdef struct Converted:
    uint64_t used        # bytes of whole messages that are in, or were passed over
    uint64_t needed

# Add one message, whose offset is above that of the one before: CONVERTED, CONVERT_FULL or CONVERT_NO_MEMORY.
cdef int add_message(Making* m, int64_t offset, const uint8_t* payload, uint64_t size) noexcept nogil
# Add the messages of stored bytes, the first of which begins at the offset ``at``, from that on which holds ``wanted``;
# each is checked. Compressed sets are left to the caller.
cdef int add_messages(Making* m, const uint8_t* p, uint64_t n, int64_t at, int64_t wanted, Converted* out) noexcept nogil
# Add messages that were in a compressed set and have been checked: the first one has ``offset[0]``, which goes on with them.
cdef int add_inner(Making* m, const uint8_t* p, uint64_t n, int64_t* offset, int64_t wanted, Converted* out) noexcept nogil
# Write the head: what it stands for ends at ``next_offset``, which lies behind the last record where empty sets follow that.
# Without a record it begins at ``wanted``. 0, or -1 without memory.
cdef int finish(Making* m, int64_t wanted, int64_t next_offset, int32_t epoch, int64_t time_ms) noexcept nogil
# Give the memory back.
cdef void discard(Making* m) noexcept nogil

# The messages inside one compressed set, in steps of bounded work.
cdef class OpenedSet:
    cdef object payload, limits, budget
    cdef int codec
    cdef list levels             # of sets in sets, the innermost last
    cdef list kept               # runs of messages that counting has found, while they are few; None: there were too many
    cdef Py_ssize_t kept_bytes
    cdef Py_ssize_t taken        # runs of these that are in
    cdef const uint8_t* run      # messages in a row
    cdef Py_ssize_t run_bytes
    cdef object run_owner
    cdef bint is_counted
    cdef readonly int64_t offset # where the set begins
    cdef readonly int64_t next_offset
    cdef readonly int64_t count  # messages, once they are counted
    cdef int64_t at              # the offset of the next message that goes in

    cdef int begin(self) except -1
    cdef bint next_run(self, Py_ssize_t* done, int64_t* count) except -1
    cdef bint count_more(self, Py_ssize_t most_bytes) except -1
    cdef int add(self, Making* m, int64_t wanted, Py_ssize_t most_bytes) except -1

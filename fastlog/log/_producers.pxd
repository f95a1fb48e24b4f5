from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastlog.log._layout cimport fl_header, fl_producer, fl_sequenced, fl_slot
from fastlog.log.formats._table cimport Sequenced

cdef enum:
    MOST_TOGETHER = 4        # producers in one write; FL_OWN_PRODUCERS at most, see put_producer
    HINTS = 1024             # a power of two

# What a batch is by the numbers of its producer.
cdef enum Judgement:
    IN_SEQUENCE = 0          # it is to be appended
    IS_DUPLICATE = 1         # it stands in the log already
    OUT_OF_SEQUENCE = 2      # a batch before it is missing, or it is older than what is known
    OLD_EPOCH = 3            # its producer has had a successor, or has begun anew itself
    TOO_MANY = 4             # not looked at: what was followed so far is to be written first

# The producers of one write as they will be behind it; nobody else sees them before.
cdef struct Followed:
    uint32_t count
    fl_producer[MOST_TOGETHER] states

# Where one process found producers last; checked before it is believed.
cdef struct Hints:
    uint32_t[HINTS] entries

cdef int judge(const fl_producer* state, const Sequenced* batch, const fl_sequenced** original) noexcept nogil
# A producer behind a batch that was appended, or is found in a log.
cdef void take_in(fl_producer* state, const Sequenced* batch, uint64_t offset, uint64_t end) noexcept nogil
# Judge the next batch of a write by what it finds behind those before it, and follow it: a Judgement. ``original`` is the
# batch that it is a duplicate of.
cdef int follow(Followed* followed, fl_header* h, fl_slot* s, Hints* hints, const Sequenced* batch, uint64_t offset, uint64_t end,
                uint64_t used_ms, const fl_sequenced** original) noexcept nogil
# Of the versions of an entry the one that counts at a log end; NULL: none.
cdef fl_producer* version_at(fl_producer* versions, uint64_t log_end) noexcept nogil
# Write a state down as it is from its ``end`` on. Whether a producer that was used lately had to be forgotten for it.
cdef bint put_producer(fl_header* h, fl_slot* s, Hints* hints, const fl_producer* state, uint64_t used_ms) noexcept nogil
# In a repair: forget what was written for ends that the log has not reached.
cdef void repair_producers(fl_header* h, fl_slot* s) noexcept nogil
# With a slot that nobody else looks at: know no producer, and have no block.
cdef void forget_producers(fl_header* h, fl_slot* s) noexcept nogil

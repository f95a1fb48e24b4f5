from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free

from fastlog.log._layout cimport fl_slot
from fastlog.workers._jobs cimport AnswerJob, CountJob, CreateJob, RecordsJob
from fastlog.workers._reads cimport Found
from fastlog.workers._writes cimport Gathered
from fastlog.workers.net._connection cimport ReadJob

cdef enum:
    FRAME_HEAD = 4           # bytes of a frame's size, before the request id

# What a request came to; a positive number is a set of Wait: the same frame comes again when they are over.
cdef enum Outcome:
    DONE = 0
    CLOSE = -1               # what precedes it stays, then the connection closes
    WRITE_FIRST = -2         # what is gathered is to be written first, then the same frame comes again

# Where the request at the front of a connection's bytes stands; ``_exchange.pyx`` has the transitions.
cdef enum State:
    BETWEEN = 0
    QUEUED                   # up to here, the request has not begun
    PRODUCING
    COUNTING
    CREATING
    CONVERTING
    HOLDING
    READING
    READ
    COLLECTING
    ANSWERING
    ANSWERED
    STATES

# A MULTIFETCH that is under way; what has been looked at and not put into the answer yet is pinned.
cdef struct Parts:
    int count
    int looked               # parts that have been looked at
    int put                  # parts that stand in the answer
    int pinned               # descriptors that it was the first to pin
    size_t at                # where the next part begins in the body
    uint64_t total           # bytes of the answer after its size
    size_t total_at          # where that size stands among the bytes to be sent
    bint has_head
    bint waits               # no part has an error
    fl_slot* owed            # a part found nothing because of a flush that is owed
    uint64_t owed_at
    Found[0] found           # as many as there are parts

# The job that a request has a thread do.
cdef union AnyJob:
    CountJob count
    CreateJob create
    RecordsJob convert
    ReadJob read
    AnswerJob answer

# What a connection has under way: one request at the front of its bytes, and what was produced before it.
cdef struct Exchange:
    int state                    # a State; ``enter`` alone changes it
    Gathered gathered
    AnyJob job
    # PRODUCING, COUNTING, CREATING, CONVERTING: the part that was reached
    size_t part_offset           # where it begins, from the request id
    int parts_left
    bint owes                    # it is acknowledged: the newest receipt is its own
    int32_t chosen               # the partition drawn for a part that asked for -1; -1: not drawn yet
    long long count              # of the messages in its compressed sets; COUNT_OFF_LOOP: not known
    long long made               # its partition's slot, or a CreateState
    int converted_state          # a RecordsState: its set as record batches; 0: not converted
    uint8_t* converted           # these, until the request goes on
    size_t converted_size
    int64_t converted_count      # records
    int64_t converted_ms         # the time that they have
    # HOLDING
    uint64_t hold_until_ns       # how long the request may wait; 0: it has not begun to
    uint64_t hold_end            # OFFSETS: the log end it met, and waits for
    # COLLECTING
    Parts* parts                 # NULL: not begun
    # ANSWERING, ANSWERED
    uint64_t reserved            # what the answer was expected to take of the memory for answers, until it is there
    int answer_state
    uint8_t* answer
    size_t answer_size

cdef extern from "<assert.h>" nogil:
    void check "assert"(bint)

cdef bint may_follow(int before, int state) noexcept nogil

cdef inline void free_converted(Exchange* x) noexcept nogil:
    """Give back the batches that were made of a part's set, if they were: they stand in the run, or are not needed."""
    free(x.converted)
    x.converted = NULL
    x.gathered.kept = NULL
    x.converted_state = 0

cdef inline void enter(Exchange* x, int state) noexcept nogil:
    """The one place that changes the state; builds for debugging end the process at a transition that is not allowed."""
    check(may_follow(x.state, state))
    x.state = state

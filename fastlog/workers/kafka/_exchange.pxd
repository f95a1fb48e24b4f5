from libc.stdint cimport int32_t, uint8_t, uint64_t

from fastlog.workers._jobs cimport AnswerJob
from fastlog.workers._writes cimport Gathered

# What a request came to; a positive number is a set of Wait: the same frame comes again when they are over.
cdef enum Outcome:
    DONE = 0
    CLOSE = -1               # what precedes it stays, then the connection closes
    WRITE_FIRST = -2         # what is gathered is to be written first, then the same frame comes again
    MALFORMED = -3           # as CLOSE, and the log says so

# Where the request at the front of a connection's bytes stands; ``_exchange.pyx`` has the transitions.
cdef enum State:
    BETWEEN = 0
    QUEUED                   # up to here, the request has not begun
    CREATING
    CREATED
    STATES

# The job that a request has a thread do.
cdef union AnyJob:
    AnswerJob create

# What a connection has under way: one request at the front of its bytes, and what was produced before it.
cdef struct Exchange:
    int state                    # a State; ``enter`` alone changes it
    Gathered gathered
    AnyJob job
    # CREATED: what became of each topic that METADATA names, an error code of 2 bytes each
    int made_state               # an AnswerState
    uint8_t* made
    size_t made_size

# The head of a request.
cdef struct Head:
    int key
    int version
    int32_t correlation
    size_t body                  # where the body begins, from the api key on

cdef extern from "<assert.h>" nogil:
    void check "assert"(bint)

cdef bint may_follow(int before, int state) noexcept nogil

cdef inline void enter(Exchange* x, int state) noexcept nogil:
    """The one place that changes the state; builds for debugging end the process at a transition that is not allowed."""
    check(may_follow(x.state, state))
    x.state = state

"""Where the request at the front of a connection's bytes stands: the states of a connection that speaks today's Kafka.

| state | the request | goes on when | next |
|---|---|---|---|
| BETWEEN | none has begun | bytes come | any but CREATED |
| QUEUED | was looked at; something else comes first | earlier answers, earlier writes or memory are there | as BETWEEN |
| CREATING | a thread, or another process, makes the topics that METADATA names | they are made | CREATED |
| CREATED | they are made, or it is known why not | at once, or another process has made one | CREATING |

Every state may be followed by itself, when a wait is begun anew, and by BETWEEN, when the request is done or refused. While
a request waits, its frame stays at the front and comes again; what was found out stands in the fields of its state.
"""


cdef int[STATES] NEXT            # by state, the states that may follow, as bits


cdef bint may_follow(int before, int state) noexcept nogil:
    return NEXT[before] >> state & 1


cdef void allow(int state, tuple following) except *:
    cdef int one
    NEXT[state] = 1 << state | 1 << BETWEEN
    for one in following:
        NEXT[state] |= 1 << one


allow(BETWEEN, (QUEUED, CREATING))
allow(QUEUED, (CREATING,))
allow(CREATING, (CREATED,))
allow(CREATED, (CREATING,))


def transitions():
    """The states that may follow each state."""
    cdef int one, other
    names = "BETWEEN QUEUED CREATING CREATED".split()
    return {
        names[one]: {names[other] for other in range(<int>STATES) if NEXT[one] >> other & 1} for one in range(<int>STATES)
    }

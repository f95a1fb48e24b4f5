"""Where the request at the front of a connection's bytes stands: the states of a connection that speaks Kafka 0.7.

| state | the request | goes on when | next |
|---|---|---|---|
| BETWEEN | none has begun | bytes come | any but COUNTING, CREATING, CONVERTING, READ, ANSWERED |
| QUEUED | was looked at; something else comes first | earlier answers, earlier writes or memory are there | as BETWEEN |
| PRODUCING | is a produce, at one of its parts | its gathered writes can be done | COUNTING, CREATING, CONVERTING |
| COUNTING | a thread counts the messages of the part | the thread is done | PRODUCING |
| CREATING | a thread, or another process, makes the part's partition | it is made | PRODUCING |
| CONVERTING | a thread makes record batches of the part, whose topic is of these | the thread is done | PRODUCING |
| HOLDING | is a long poll | the visible end moves, or its time is over | READING, COLLECTING |
| READING | a thread reads the first bytes of its span | the thread is done | READ |
| READ | they have been read once, and may be gone again | at once | HOLDING |
| COLLECTING | is a MULTIFETCH, some of its parts at a time | others have had a turn | HOLDING |
| ANSWERING | a thread makes its answer | the thread is done | ANSWERED |
| ANSWERED | the thread has handed the answer over, or why there is none | at once, or a partition is made | ANSWERING |

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


allow(BETWEEN, (QUEUED, PRODUCING, HOLDING, READING, COLLECTING, ANSWERING))
allow(QUEUED, (PRODUCING, HOLDING, READING, COLLECTING, ANSWERING))
allow(PRODUCING, (COUNTING, CREATING, CONVERTING))
allow(COUNTING, (PRODUCING,))
allow(CREATING, (PRODUCING,))
allow(CONVERTING, (PRODUCING,))
allow(HOLDING, (READING, COLLECTING))
allow(READING, (READ,))
allow(READ, (HOLDING,))
allow(COLLECTING, (HOLDING,))
allow(ANSWERING, (ANSWERED,))
allow(ANSWERED, (ANSWERING,))


def transitions():
    """The states that may follow each state."""
    cdef int one, other
    names = (
        "BETWEEN QUEUED PRODUCING COUNTING CREATING CONVERTING HOLDING READING READ COLLECTING ANSWERING ANSWERED"
    ).split()
    return {
        names[one]: {names[other] for other in range(<int>STATES) if NEXT[one] >> other & 1} for one in range(<int>STATES)
    }

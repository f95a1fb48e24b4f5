"""Where the request at the front of a connection's bytes stands: the states of a connection that speaks today's Kafka.

| state | the request | goes on when | next |
|---|---|---|---|
| BETWEEN | none has begun | bytes come | QUEUED, CREATING, LISTING, PRODUCING, LOOKING, HOLDING, FORWARDING |
| QUEUED | was looked at; something else comes first | earlier answers, earlier writes or memory are there | as BETWEEN |
| CREATING | the coordinator makes the topics that METADATA names | they are made, or the coordinator died | CREATED |
| LISTING | a thread looks up the times that LIST_OFFSETS asks for | the thread is done | LISTED |
| LISTED | they have been looked up | at once | |
| CREATED | they are made, or it is known why not | at once | |
| PRODUCING | is a produce, at one of its parts | its gathered writes can be done | CHECKING |
| CHECKING | a thread decompresses the batch of the part, and looks at its records | the thread is done | PRODUCING |
| LOOKING | is a fetch, at some of its parts | others have had a turn | READING, HOLDING, PUTTING |
| READING | a thread reads the first bytes of a part, or looks where they are | the thread is done | READ |
| READ | they have been read once, and may be gone again | at once | READING, HOLDING, PUTTING |
| HOLDING | waits for a visible end | that moves, or its time is over | READING, PUTTING, LISTING |
| PUTTING | some of its parts stand in the answer | others have had a turn | BRIDGING |
| BRIDGING | a thread converts what the next part gets | the thread is done | BRIDGED_PART |
| BRIDGED_PART | it is converted, or it is known why not | at once | PUTTING |
| FORWARDING | the coordinator answers it | the answer has come, or the coordinator died | FORWARDED |
| FORWARDED | its answer has come, or none will | at once | |

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


allow(BETWEEN, (QUEUED, CREATING, LISTING, PRODUCING, LOOKING, HOLDING, FORWARDING))
allow(QUEUED, (CREATING, LISTING, PRODUCING, LOOKING, HOLDING, FORWARDING))
allow(CREATING, (CREATED,))
allow(CREATED, ())
allow(LISTING, (LISTED,))
allow(LISTED, ())
allow(PRODUCING, (CHECKING,))
allow(CHECKING, (PRODUCING,))
allow(LOOKING, (READING, HOLDING, PUTTING))
allow(READING, (READ,))
allow(READ, (READING, HOLDING, PUTTING))
allow(HOLDING, (READING, PUTTING, LISTING))
allow(PUTTING, (BRIDGING,))
allow(BRIDGING, (BRIDGED_PART,))
allow(BRIDGED_PART, (PUTTING,))
allow(FORWARDING, (FORWARDED,))
allow(FORWARDED, ())


def transitions():
    """The states that may follow each state."""
    cdef int one, other
    names = (
        "BETWEEN QUEUED CREATING CREATED LISTING LISTED PRODUCING CHECKING LOOKING READING READ HOLDING PUTTING BRIDGING"
        " BRIDGED_PART FORWARDING FORWARDED"
    ).split()
    return {
        names[one]: {names[other] for other in range(<int>STATES) if NEXT[one] >> other & 1} for one in range(<int>STATES)
    }

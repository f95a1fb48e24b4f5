from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from fastlog.workers._bridge cimport BridgeJob
from fastlog.workers._forward cimport ForwardJob
from fastlog.workers._jobs cimport AnswerJob, CountJob
from fastlog.workers._reads cimport Found
from fastlog.workers._writes cimport Gathered
from fastlog.workers.kafka._wire cimport Writer
from fastlog.workers.net._connection cimport ReadJob, SlotWait

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
    LISTING
    LISTED
    PRODUCING
    CHECKING
    LOOKING
    READING
    READ
    HOLDING
    PUTTING
    BRIDGING
    BRIDGED_PART
    FORWARDING
    FORWARDED
    STATES

# The job that a request has a thread do.
cdef union AnyJob:
    AnswerJob answer
    ForwardJob forward
    CountJob check
    ReadJob read
    BridgeJob bridge

# The answer to a produce that has been taken, in part or as a whole; it leaves when it is whole and nothing is pending.
cdef struct Owed:
    Owed* next
    Writer answer
    uint64_t counted             # bytes of it that count as memory for answers
    int version
    int pending                  # receipts that it waits for
    bint whole                   # all parts of the request have been taken
    bint silent                  # nobody waits for it any more

# One topic that a fetch names, or whose id it says.
cdef struct FetchTopic:
    size_t name_at               # where its name stands, from the api key on
    int name_size                # -1: it is named by its id
    size_t id_at
    int parts                    # how many of its partitions follow

# One partition that a fetch asks for.
cdef struct FetchPart:
    SlotWait wait                # first, so that what has moved is the part
    FetchPart* next_due
    int topic                    # its place among the topics
    int32_t partition
    int32_t epoch                # the leader epoch that the client knows, -1: none
    int32_t limit
    int64_t offset
    int code                     # why it gets nothing; 0: it gets ``found``
    uint64_t life                # of the slot that ``found`` is of
    bint is_pinned
    bint is_first_pin            # of its descriptor, see ``Reads.pin``
    bint is_bridged              # it is of a topic of 0.7: ``found.size`` is about what it gets, until it is converted
    bint is_absent               # of one whose partition nobody has written to
    bint is_whole                # its first record may make it larger than ``most``
    uint64_t counted             # memory for answers that is kept for what it is converted to, from PUTTING on
    int32_t most                 # bytes that it may get
    uint64_t end                 # where the visible bytes end in the file that was found
    Found found

# A fetch that is under way.
cdef struct Fetching:
    FetchTopic* topics
    FetchPart* parts
    int topic_count
    int part_count
    int looked                   # parts that have been looked at in the first round, from the ``begun``-th on
    int asked                    # parts that it waits for, once it waits: all, unless that takes more than a turn
    SlotWait* moved              # of these, the ones that have moved since they were looked at
    FetchPart* due               # those that are still to be looked at in this round, after the first
    FetchPart* absent            # those of topics of 0.7 that nobody has written to when they were looked at
    FetchPart* ready             # those that had something when they were looked at in this round
    int begun
    int put                      # parts that stand in the answer
    int topic_put                # the topic of the last of them
    uint64_t bridged             # bytes that are to be converted for the parts looked at, about
    uint64_t kept                # memory for answers that is kept for those of them that do not stand in the answer yet
    uint64_t taken               # bytes of records that the parts looked at get
    uint64_t total               # bytes of the answer so far
    size_t total_at              # where its size stands among the bytes to be sent
    bint is_held                 # it has waited
    bint failed                  # a part has an error, so nothing is waited for
    int read_count               # how often what the part at hand needs has been brought into memory
    uint64_t counted             # memory that counts as that of answers
    uint64_t until_ns
    int32_t min_bytes
    uint64_t max_bytes
    bint is_committed            # it asks for what is committed, and so for aborted transactions

# What a connection has under way: one request at the front of its bytes, and what was produced before it.
cdef struct Exchange:
    int state                    # a State; ``enter`` alone changes it
    Gathered gathered
    Owed* first                  # answers to produces, in the order of requests
    Owed* last
    int owed                     # how many
    AnyJob job
    # CREATED: what became of each topic that METADATA names, an error code of 2 bytes each. LISTED: what was found of each
    # partition. FORWARDED: the answer
    int made_state               # an AnswerState
    uint8_t* made
    size_t made_size
    # PRODUCING, CHECKING: the part that was reached
    Owed* current                # what becomes the answer; NULL: the client wants none
    size_t at                    # where the part begins, from the api key on
    int topics_left
    int parts_left               # of the topic
    size_t name_at               # where its name stands
    int name_size
    int acks
    bint has_topic               # the end of a topic is still to be passed
    bint is_transactional
    long long checked            # 1 + the largest time in the part's compressed batch; COUNT_OFF_LOOP: not known
    int64_t checked_record       # with ``checked``, see ``CountJob``
    # LOOKING, READING, READ, HOLDING, PUTTING, BRIDGING, BRIDGED_PART
    Fetching* fetching           # NULL: not begun
    uint32_t rotation            # fetches that were answered: with which part the next one begins
    uint64_t hold_until_ns       # how long the request may wait; 0: it has not begun to
    # HOLDING
    uint64_t* ends               # LIST_OFFSETS: by part, the log end it met and waits for; NULL: not begun

# The head of a request.
cdef struct Head:
    int key
    int version
    int32_t correlation
    size_t body                  # where the body begins, from the api key on
    bint flexible

cdef extern from "<assert.h>" nogil:
    void check "assert"(bint)

cdef bint may_follow(int before, int state) noexcept nogil

cdef inline void free_made(Exchange* x) noexcept nogil:
    """Give back what a thread or the coordinator has made for the request."""
    free(x.made)
    x.made = NULL
    x.made_size = 0

cdef inline void enter(Exchange* x, int state) noexcept nogil:
    """The one place that changes the state; builds for debugging end the process at a transition that is not allowed."""
    check(may_follow(x.state, state))
    x.state = state

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastlog.log._layout cimport fl_monotonic_ns
from fastlog.log._segments cimport SegmentFiles

cdef enum:
    SEND_AT = 64 << 10           # small answers leave together up to this size
    LARGE_ANSWER = 64 << 10      # one that waits while the memory for answers is used up
    TURN_STEPS = 16              # requests, or parts of one, between two looks at the clock
    READ_AHEAD_BYTES = 256 << 10 # read at once by a thread: who reads much takes turns with those who read little

# Why a connection does not go on with its requests for the moment.
cdef enum Wait:
    WAIT_LOCK = 1        # another process holds the append lock
    WAIT_SPACE = 2       # the bound of unflushed data is reached
    WAIT_CREATE = 4      # another process creates a partition
    WAIT_JOB = 8         # a thread of the helper works for it
    WAIT_VISIBLE = 16    # a long poll waits for the visible end to move
    WAIT_ANSWERS = 32    # a request that is answered at once waits for earlier answers
    WAIT_BUDGET = 64     # the memory for requests is used up
    WAIT_TURN = 128      # other connections have a turn first
    WAIT_ROOM = 256      # the memory for answers is used up
    WAIT_SLOTS = 512     # beside WAIT_VISIBLE: ``SlotWaits`` knows of all that it waits for, but for the time
    WAIT_ANY = 1023
    WAIT_POLL = WAIT_VISIBLE | WAIT_SLOTS

# What a protocol still has to do for the requests of a connection that it has taken.
cdef enum Unfinished:
    UNWRITTEN = 1        # bytes to append
    OWED = 2             # answers to make

# One part of an answer: bytes of the output buffer, or a span of a segment file.
cdef struct Span:
    int entry                    # descriptor entry, -1 for bytes
    uint64_t position
    uint64_t size

cdef struct Conn
cdef struct Pool
cdef struct Job

# That a connection waits for one slot to move; ``SlotWaits`` alone changes it.
cdef struct SlotWait:
    Conn* conn                   # NULL: it waits for none
    uint64_t slot
    SlotWait* previous           # of the same slot
    SlotWait* next
    SlotWait** moved             # the list that it is put into when the slot moves, by whoever waits; NULL: none
    SlotWait* next_moved
    bint is_moved                # it stands there; whoever takes it out says so

# One step of a job, in a thread of the helper with SCRATCH bytes at hand; whether there is more to do.
ctypedef bint (*JobStep)(Job* job, void* scratch) noexcept nogil

# Work of one connection that is not the loop's, at most one at a time. It is the first field of a struct with the fields
# of its kind. From ``Helper.submit`` on it is the thread's until that hands it back, and only ``cancelled`` is stored by
# the loop meanwhile.
cdef struct Job:
    Job* next                    # in its queue, or among the finished ones
    Conn* conn
    JobStep step
    void* owner                  # the object that ``step`` belongs to, which outlives the helper's threads
    int queue
    bint looks                   # its steps look at partitions
    bint pins                    # it is a ReadJob, and its descriptors are pinned until it is done
    bint for_answer              # nobody needs its result once nothing can be sent any more
    int cancelled                # nobody takes the result
    size_t at                    # where the bytes of the request that it works on begin, from buffer[start]
    size_t size                  # how many they are; 0: it needs none
    const uint8_t* data          # where they stand, from the start of the job on

# Brings bytes of a segment file into memory, or finds out where some are.
cdef struct ReadJob:
    Job job
    int entry                    # descriptor entry
    int fd
    uint64_t position            # for a walk: where in the file it is to end at the latest, then where it found the entry
    uint64_t count
    # for a walk over the entries of a segment: what is looked for
    int index_entry              # descriptor entry of its index, -1: there is none
    int index_fd
    const void* format
    uint64_t slot
    uint64_t life
    uint64_t base
    uint64_t offset
    int status                   # what came of it

cdef struct Conn:
    Pool* pool                   # where its memory counts
    void* protocol               # the ``Protocol`` that its listener speaks
    void* state                  # what that protocol keeps of it, between ``open`` and ``close``
    Conn* previous
    Conn* next
    Conn* watch_previous
    Conn* watch_next
    int fd
    int principal                # its number among ``authorization.PRINCIPALS``; 0: anonymous
    int listener                 # which listener it came through: its place among them
    int transport                # 0: the socket's bytes are those of the protocol
    char[46] host                # the other end's address as text; empty where it has none
    int port
    bint watched                 # a wake-up, whatever it is for, lets it try again
    int deadline                 # its place among those that wait for a time at the latest, from 1 on; 0: none
    uint64_t deadline_ns         # the time that it stands there with
    SlotWait flushing            # for its answers to produces: the flush of the one that is first
    bint is_due                  # one of its waits is over
    Conn* due_next
    bint leaving                 # it sent its FIN, or has gone; bytes that came before may still have to be read
    bint ended                   # all it sent has been read
    bint closing                 # close once what is owed has been done
    bint dead                    # nothing can be sent any more; what was received is still handled
    uint32_t interest            # what epoll watches for
    uint64_t name                # what epoll calls it: a number that is never used again, and the descriptor
    uint64_t active_ns           # the last byte in or out
    uint64_t frame_since_ns      # when the request that is still incomplete began, or was not read any more for a while; 0: none
    # received bytes that are not handled yet: buffer[start:end]
    uint8_t* buffer
    size_t room
    size_t start
    size_t end
    uint64_t turn_ends_ns
    int turn_steps               # since the last look at the clock
    # what its requests wait for: ``wait_for`` and ``go_on`` alone change these two
    int waits                    # a set of Wait
    uint64_t until_ns            # when a long poll is looked at even if nothing moved; 0: there is none, or it is over
    # work off the loop: ``Helper.ask``, ``Helper.submit`` and ``Helper.done`` alone change these two
    Job* job                     # what it asked for, until the loop has taken the result; NULL: nothing
    bint busy                    # the job is queued or under way
    bint woken                   # meanwhile this process was woken for those that wait
    # what is to be sent
    uint8_t* out
    size_t out_room
    size_t out_start
    size_t out_end
    Span* spans
    int span_room
    int span_start
    int span_end
    bint has_files
    bint incomplete              # the last answer has not its end yet: nothing leaves before that
    bint read_for_send           # what was probed last was not in memory and has been read: it leaves before more is probed
    uint64_t probed_to           # file position up to which the first span was seen in memory, or read ahead
    ReadJob reading              # SEND_READ_AHEAD: what has to be read before more is sent
    int read_error               # SEND_UNREADABLE: errno, 0 when the file ended before the answer did
    uint64_t answers             # what it has of the memory for answers, in bytes

# What the connections of one processor share: bytes in use for requests, and for answers, each against the budget; the
# length of a turn.
cdef struct Pool:
    uint64_t used
    uint64_t budget
    Conn* over               # the one connection that may go over budget, so that something always moves
    uint64_t answers         # bytes for answers that are made, owed or not sent yet
    Conn* answering          # the one connection that may be given a large answer over budget
    uint64_t turn_ns         # what the requests of one connection take before others have a turn

cdef inline void wait_for(Conn* c, int reasons, uint64_t until_ns) noexcept nogil:
    """Have a connection's requests wait for all of these; a long poll until ``until_ns`` at most."""
    c.waits |= reasons
    if reasons & WAIT_VISIBLE:
        c.until_ns = until_ns

cdef inline void go_on(Conn* c, int reasons) noexcept nogil:
    """A connection's requests do not wait for these any more."""
    c.waits &= ~reasons
    if reasons & WAIT_VISIBLE:
        c.until_ns = 0

cdef inline void turn_begins(Conn* c) noexcept nogil:
    c.turn_ends_ns = fl_monotonic_ns() + c.pool.turn_ns
    c.turn_steps = 0

cdef inline bint turn_over(Conn* c) noexcept nogil:
    """After a request, or a part of one, with more behind it: whether others have a turn now, WAIT_TURN."""
    c.turn_steps += 1
    if c.turn_steps < TURN_STEPS:
        return False
    c.turn_steps = 0
    return fl_monotonic_ns() >= c.turn_ends_ns

cdef inline bint keeps(Conn* c, const uint8_t* data) noexcept nogil:
    """Whether received bytes stand in the connection's own buffer, where they stay until their request is done."""
    return c.buffer <= data < c.buffer + c.room

cdef Conn* conn_new(int fd, uint64_t name, uint64_t now_ns, Pool* pool) noexcept nogil
cdef void conn_trim(Conn* c) noexcept nogil
cdef void conn_free(Conn* c, SegmentFiles files) noexcept nogil
cdef int conn_reserve(Conn* c, size_t room) noexcept nogil
cdef void conn_release_buffer(Conn* c) noexcept nogil

cdef inline void answers_take(Conn* c, uint64_t n) noexcept nogil:
    """Count ``n`` bytes more as the connection's share of the memory for answers."""
    c.answers += n
    c.pool.answers += n

cdef inline void answers_give(Conn* c, uint64_t n) noexcept nogil:
    """Count them as given back."""
    c.answers -= n
    c.pool.answers -= n

cdef void out_discard(Conn* c, SegmentFiles files) noexcept nogil
cdef bint answer_admitted(Conn* c, uint64_t size) noexcept nogil
cdef uint8_t* out_bytes(Conn* c, size_t n) noexcept nogil
cdef void out_give_back(Conn* c, size_t n) noexcept nogil
cdef int out_file(Conn* c, SegmentFiles files, int entry, uint64_t position, uint64_t size) noexcept nogil
cdef inline bint out_pending(Conn* c) noexcept nogil:
    return c.span_start < c.span_end


cdef enum SendStatus:
    SENT_ALL = 0
    SENT_SOME = 1        # the socket is full, or the slice of this turn is used up
    SEND_READ_AHEAD = 2  # the next bytes are not in memory
    SEND_FAILED = 3      # the answer cannot be completed: only closing tells the client so
    SEND_GONE = 4        # there is nobody to send to any more
    SEND_UNREADABLE = 5  # as SEND_FAILED, because bytes of the first span cannot be read

cdef int out_send(Conn* c, SegmentFiles files, uint64_t slice, uint64_t* sent) noexcept nogil

cdef inline bint out_enough(Conn* c) noexcept nogil:
    """Whether an answer should leave before the next request is looked at."""
    return c.span_start < c.span_end and (
        c.has_files or c.out_end - c.out_start > SEND_AT or c.pool.answers > c.pool.budget
    )

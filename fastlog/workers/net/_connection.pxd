from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from fastlog.log._append cimport Piece
from fastlog.log._arena cimport fl_monotonic_ns, fl_slot
from fastlog.log._segments cimport SegmentFiles

cdef enum:
    STAGE_BYTES = 256 << 10      # what one coalesced write holds
    RUN_PIECES = 2048            # requests one coalesced write holds
    NO_ACK = 0xFFFFFFFF
    SEND_AT = 64 << 10           # small answers leave together up to this size
    LARGE_ANSWER = 64 << 10      # one that waits while the memory for answers is used up
    MAX_RUNS = 16                # partitions coalesced at once on one connection
    TURN_NS = 2000000            # what the requests of one connection take before others have a turn
    TURN_STEPS = 16              # requests, or parts of one, between two looks at the clock

# Why a connection does not go on with its requests for the moment.
cdef enum Park:
    PARK_NONE = 0
    PARK_LOCK = 1        # another process holds the append lock
    PARK_SPACE = 2       # the bound of unflushed data is reached
    PARK_CREATE = 4      # another process creates a partition
    PARK_HELPER = 8      # the helper thread inflates or reads ahead
    PARK_HOLD = 16       # a held fetch waits at the watermark
    PARK_ACKS = 32       # a request that is answered at once waits for earlier answers
    PARK_BUDGET = 64     # the memory for requests is used up
    PARK_TURN = 128      # other connections have a turn first
    PARK_ANSWER = 256    # the memory for answers is used up

# Requests of one connection to one partition that will be written together.
cdef struct Run:
    Run* next
    fl_slot* slot
    uint64_t life                # of the slot, when they were gathered
    const uint8_t* data          # stage, or a borrowed place in the connection's own buffer
    uint64_t size
    int count
    int done                     # pieces already in the log
    uint64_t done_bytes
    Piece[RUN_PIECES] pieces
    uint32_t[RUN_PIECES] acks    # sequence number of the answer each piece owes, or NO_ACK
    uint8_t[STAGE_BYTES] stage

cdef enum AckState:
    ACK_PENDING = 0
    ACK_WAIT_FLUSH = 1
    ACK_READY = 2

# An answer owed to an acknowledged produce, in request order.
cdef struct Ack:
    int state
    int flushed                  # 1 when the producer waits for the flush
    int32_t correlation
    int32_t partition
    int code
    uint64_t base
    uint64_t next
    uint64_t end                 # the position behind it in the partition's stream
    fl_slot* slot
    uint64_t life                # of the slot

# One part of an answer: bytes of the output buffer, or a span of a segment file.
cdef struct Span:
    int entry                    # descriptor entry, -1 for bytes
    uint64_t position
    uint64_t size

cdef struct Conn
cdef struct Pool

# Work of one connection that is not the loop's, at most one at a time. The loop fills it in and queues it; from then on it
# is the thread's until that hands it back, and only ``cancelled`` is stored by the loop meanwhile.
cdef struct Job:
    Conn* next                   # in its queue, or among the finished ones
    int fd
    uint64_t position
    uint64_t size
    const uint8_t* data          # of the request, in the connection's own buffer
    int cancelled                # nobody takes the result

cdef struct Conn:
    Pool* pool                   # where its memory counts
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
    bint watched
    bint leaving                 # it sent its FIN, or has gone; bytes that came before may still have to be read
    bint ended                   # all it sent has been read
    bint closing                 # close once what is owed has been done
    bint dead                    # nothing can be sent any more; what was received is still handled
    uint32_t interest            # what epoll watches for
    uint64_t name                # what epoll calls it: a number that is never used again, and the descriptor
    uint64_t active_ns           # the last byte in or out
    uint64_t frame_since_ns      # when the request that is still incomplete began; 0: none
    # received bytes that are not handled yet: buffer[start:end]
    uint8_t* buffer
    size_t room
    size_t start
    size_t end
    # requests under way
    int park
    uint64_t turn_ends_ns
    int turn_steps               # since the last look at the clock
    bint resumed                 # the frame at the front has been looked at before
    Run* runs
    int run_count
    size_t part_offset           # inside a MULTIPRODUCE: the part reached
    int parts_left
    int part_state               # 0: this frame has not begun
    Ack* acks
    uint32_t ack_room
    uint32_t ack_head            # sequence numbers; the ring is indexed by them
    uint32_t ack_tail
    # work off the loop, see ``_helper``
    Job job
    int helper_kind
    int helper_queue
    int helper_busy              # from the hand-over to the queue until the loop has taken the result
    int helper_done              # its result is there, for the request that asked for it
    size_t helper_offset         # the set to inflate, from buffer[start]
    size_t helper_size
    int helper_entry
    uint64_t helper_position
    bint read_for_send           # what was probed last was not in memory and has been read: it leaves before more is probed
    uint64_t probed_to           # file position up to which the first span was seen in memory, or read ahead
    long long created            # HELP_CREATE: the slot, or why there is none
    int32_t chosen               # the partition drawn for a part that asked for -1; -1: not drawn yet
    uint8_t* answer              # HELP_ANSWER: the answer frame, made by the helper; the connection frees it
    size_t answer_size
    uint64_t answer_reserved     # HELP_ANSWER: what it was expected to take, counted until it is there
    int answer_state
    long long deep_count         # -2: not asked, -1: refused, else the number of deep messages
    void* parts                  # a MULTIFETCH that is under way: ``Parts`` of ``_fetch``; its answer has not its size yet
    # a held fetch, or a request of 0.7 that waits for a flush it is owed
    uint64_t hold_until_ns
    uint64_t hold_end            # OFFSETS: the log end it met, and waits for
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
    int read_error               # SEND_UNREADABLE: errno, 0 when the file ended before the answer did

cdef Conn* conn_new(int fd, uint64_t name, uint64_t now_ns, Pool* pool) noexcept nogil
cdef void conn_trim(Conn* c) noexcept nogil
cdef void conn_free(Conn* c, SegmentFiles files, Pool* pool) noexcept nogil
cdef int conn_reserve(Conn* c, size_t room, Pool* pool) noexcept nogil
cdef void conn_release_buffer(Conn* c, Pool* pool) noexcept nogil

cdef inline void turn_begins(Conn* c) noexcept nogil:
    c.turn_ends_ns = fl_monotonic_ns() + <uint64_t>TURN_NS
    c.turn_steps = 0

cdef inline bint turn_over(Conn* c) noexcept nogil:
    """After a request, or a part of one, with more behind it: whether others have a turn; the connection is parked then."""
    c.turn_steps += 1
    if c.turn_steps < TURN_STEPS:
        return False
    c.turn_steps = 0
    if fl_monotonic_ns() < c.turn_ends_ns:
        return False
    c.park |= PARK_TURN
    return True

cdef void out_discard(Conn* c, SegmentFiles files) noexcept nogil
cdef bint answer_admitted(Conn* c, uint64_t size) noexcept nogil
cdef uint64_t answer_memory(Conn* c) noexcept nogil
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

# Memory for requests of one processor: spare runs, and the bytes in use against the budget.
cdef struct Pool:
    Run* spare
    int spare_count
    uint64_t used
    uint64_t budget
    Conn* over               # the one connection that may go over budget, so that something always moves
    uint64_t answers         # bytes for answers that are made, owed or not sent yet, against the same budget
    Conn* answering          # the one connection that may be given a large answer over budget

cdef inline bint out_enough(Conn* c) noexcept nogil:
    """Whether an answer should leave before the next request is looked at."""
    return c.span_start < c.span_end and (
        c.has_files or c.out_end - c.out_start > SEND_AT or c.pool.answers > c.pool.budget
    )

cdef Run* run_take(Pool* pool, fl_slot* slot) noexcept nogil
cdef void run_give(Pool* pool, Run* run) noexcept nogil
cdef Ack* ack_at(Conn* c, uint32_t sequence) noexcept nogil
cdef Ack* ack_push(Conn* c) noexcept nogil

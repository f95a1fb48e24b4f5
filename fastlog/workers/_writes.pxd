from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastlog.log._append cimport Appended, Appender, Piece
from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_slot
from fastlog.log.formats._table cimport Entries
from fastlog.workers._reports cimport Reports
from fastlog.workers.net._connection cimport Conn
from fastlog.workers.net._slot_waits cimport SlotWaits

cdef enum:
    STAGE_BYTES = 256 << 10      # what one coalesced write holds
    RUN_PIECES = 2048            # sets one coalesced write holds
    NO_RECEIPT = 0xFFFFFFFF
    RECEIPT_PLACE = 0x7FFFFFFF   # of a receipt's number: what finds it, and never NO_RECEIPT
    OWED_RECEIPTS = 4096         # that one connection may be owed before its requests wait
    OWED_OVER_BUDGET = 64        # the same while the memory for answers is used up
    MAX_RUNS = 16                # partitions coalesced at once on one connection

# Message sets of one connection for one partition that will be written together.
#
# Whose memory ``data`` is: the run's own stage, where sets are copied to, except for the one set of a run that is larger
# than a stage. That one stays where it was received, and ``gather`` takes it only from the connection's own buffer
# (``keeps``), or of what its protocol has
# made of it (``kept``). Its request waits until the run is written, so that the buffer is neither moved nor used again before.
cdef struct Run:
    Run* next
    fl_slot* slot
    uint64_t life                # of the slot, when they were gathered
    const uint8_t* data
    uint64_t size
    int count
    int done                     # pieces already in the log
    uint64_t done_bytes
    bint untold                  # one was refused that no answer can name
    Piece[RUN_PIECES] pieces
    uint32_t[RUN_PIECES] receipts # number of the receipt each piece is owed, or NO_RECEIPT
    uint8_t[STAGE_BYTES] stage

cdef enum ReceiptState:
    RECEIPT_PENDING = 0
    RECEIPT_UNFLUSHED = 1        # appended; who waits for it waits for the flush too
    RECEIPT_READY = 2

# What becomes of one produced set, for its answer; given out in the order of requests.
cdef struct Receipt:
    int state
    bint flushed                 # ready when the set is flushed, not when it is appended
    int problem                  # a ``Problem``: why it is not in the log
    int code                     # what the protocol itself refused it with; 0: nothing
    int32_t request              # the number that the protocol knows the request by
    int32_t partition
    uint64_t base
    uint64_t next
    int64_t time                 # of its append in ms, where records get that; -1
    uint64_t end                 # the position behind it in the partition's stream
    fl_slot* slot
    uint64_t life                # of the slot

# What one connection has produced and has no answer to; in the state that its protocol keeps.
cdef struct Gathered:
    Run* runs
    int run_count
    Receipt* ring                # indexed by the numbers of receipts
    uint32_t room
    const uint8_t* kept          # of its protocol: what stays until its request goes on, beside the connection's buffer
    uint32_t head                # numbers of the first receipt, and of the one that will be next
    uint32_t tail

# What ``gather`` did with a set.
cdef enum Gather:
    GATHERED = 0
    GATHERED_IN_PLACE    # taken where it stands: commit before the request goes on
    GATHER_FULL          # not taken: commit first
    GATHER_NOT_KEPT      # not taken: it is to stand in the connection's own buffer first
    GATHER_NO_MEMORY     # not taken

cdef class Writes:
    cdef Arena arena
    cdef Appender appender
    cdef Reports reports
    cdef SlotWaits slot_waits
    cdef int process
    cdef uint64_t* counters
    cdef Run* spare
    cdef int spare_count
    cdef uint64_t[RUN_PIECES] offsets    # where the pieces of one append went

    cdef void begin(self, Gathered* g) noexcept nogil
    cdef void discard(self, Conn* c, Gathered* g) noexcept nogil
    cdef void trim(self, Conn* c, Gathered* g) noexcept nogil
    cdef int gather(self, Conn* c, Gathered* g, fl_slot* s, const uint8_t* data, const Entries* found, long long count,
                    uint32_t receipt, int64_t base=*) noexcept nogil
    cdef int gather_nothing(self, Gathered* g, fl_slot* s, Receipt* receipt) noexcept nogil
    cdef int commit(self, Conn* c, Gathered* g, bint* failed) noexcept nogil
    cdef int commit_run(self, Conn* c, Gathered* g, Run* run) noexcept nogil
    cdef void not_for_the_log(self, Conn* c, Gathered* g, Run* run, int status, const Appended* out) noexcept nogil
    cdef int64_t stamp(self, Run* run) noexcept nogil
    cdef void appended(self, Receipt* receipt) noexcept nogil
    cdef Receipt* next_ready(self, Conn* c, Gathered* g) noexcept nogil
    cdef Run* run_take(self, Conn* c, fl_slot* s) noexcept nogil
    cdef void run_give(self, Conn* c, Run* run) noexcept nogil

cdef inline Receipt* receipt_at(Gathered* g, uint32_t number) noexcept nogil:
    return &g.ring[number & (g.room - 1)]

cdef inline int most_owed(Conn* c) noexcept nogil:
    """How many receipts a connection may be owed before its requests wait."""
    return OWED_RECEIPTS if c.pool.answers <= c.pool.budget else OWED_OVER_BUDGET

cdef Receipt* receipt_push(Conn* c, Gathered* g) noexcept nogil

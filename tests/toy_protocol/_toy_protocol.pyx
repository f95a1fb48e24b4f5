"""The protocol of ``tests/toy_protocol``, on the engine's face alone."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from fastlog.log._layout cimport fl_load, fl_slot
from fastlog.log.formats._table cimport ENTRIES_WHOLE, OF_KAFKA_07, Entries, format_of
from fastlog.workers._engine cimport Engine
from fastlog.workers._jobs cimport CreateJob
from fastlog.workers._partitions cimport RESOLVE_ABSENT, RESOLVED, TO_PRODUCE
from fastlog.workers._reads cimport Found
from fastlog.workers._writes cimport (
    GATHERED, RECEIPT_PENDING, Gathered, Receipt, receipt_push,
)
from fastlog.workers.authorization import Operation
from fastlog._bytes cimport be32, be64, put32, put64
from fastlog.workers.net._connection cimport (
    OWED, UNWRITTEN, WAIT_JOB, WAIT_LOCK, WAIT_SPACE, WAIT_VISIBLE, Conn, go_on, out_bytes, wait_for,
)
from fastlog.workers.net._protocol cimport CLOSES, GOES_ON, Protocol

cdef int READ = Operation.READ
cdef enum:
    PATIENCE_NS = 60000000000


cdef struct State:
    Gathered gathered
    CreateJob create


cdef class Toy(Protocol):
    """Writes and reads partition 0 of topics, for one processor."""

    cdef Engine engine

    def __cinit__(self, Engine engine):
        self.engine = engine

    cdef int open(self, Conn* c) noexcept nogil:
        cdef State* state = <State*>calloc(1, sizeof(State))
        if state == NULL:
            return -1
        self.engine.writes.begin(&state.gathered)
        c.state = state
        return 0

    cdef void close(self, Conn* c) noexcept nogil:
        if c.state != NULL:
            self.engine.writes.discard(c, &(<State*>c.state).gathered)
            free(c.state)
            c.state = NULL

    cdef uint64_t next_size(self, const uint8_t* data, size_t n) noexcept nogil:
        if n < 2:
            return 2
        if data[0] == c"r":
            return 2 + <uint64_t>data[1] + 8
        if data[0] != c"w":
            return n
        return 6 + <uint64_t>data[1] + (be32(data + 2 + data[1]) if n >= 6 + <size_t>data[1] else 0)

    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, uint64_t now_ns, size_t* used) noexcept nogil:
        cdef State* state = <State*>c.state
        cdef int reasons = 0
        cdef uint64_t size = 0
        used[0] = 0
        while reasons == 0 and n - used[0] > 0:
            size = self.next_size(data + used[0], n - used[0])
            if size > n - used[0]:
                break
            if data[used[0]] == c"w":
                reasons = self.write(c, state, data + used[0])
            elif data[used[0]] == c"r":
                reasons = self.read(c, data + used[0])
            else:
                reasons = -1
            if reasons == 0:
                used[0] += size
        if reasons > 0:
            wait_for(c, reasons, now_ns + <uint64_t>PATIENCE_NS)
        return CLOSES if reasons < 0 else GOES_ON

    cdef int write(self, Conn* c, State* state, const uint8_t* p) noexcept nogil:
        """What to wait for, 0 when it is answered, -1 to close."""
        cdef Gathered* g = &state.gathered
        cdef Receipt* receipt
        cdef fl_slot* s
        cdef Entries found
        cdef int32_t partition = 0
        cdef bint failed = False
        cdef int reasons, r = self.engine.partitions.resolve(p + 2, p[1], &partition, TO_PRODUCE, OF_KAFKA_07, &s)
        cdef const uint8_t* at = p + 6 + p[1]
        cdef uint8_t* room
        if r == RESOLVE_ABSENT:
            self.engine.jobs.create(c, &state.create, 2, p[1], 0)
            return WAIT_JOB
        if r != RESOLVED:
            return -1
        if g.head == g.tail:  # else its set was gathered before it had to wait
            format_of(s.format).validate(at, be32(at - 4), -1, &found)
            if found.status != ENTRIES_WHOLE or found.bytes == 0:
                return -1
            receipt = receipt_push(c, g)
            if receipt == NULL:
                return -1
            receipt.state = RECEIPT_PENDING
            receipt.flushed = False
            receipt.problem = receipt.code = 0
            receipt.slot = s
            receipt.life = fl_load(&s.life)
            if self.engine.writes.gather(c, g, s, at, &found, <long long>found.count, g.tail - 1) != GATHERED:
                return -1
        reasons = self.engine.writes.commit(c, g, &failed)
        receipt = self.engine.writes.next_ready(c, g)
        if reasons or failed or receipt == NULL or receipt.problem:
            return reasons or -1
        g.head += 1
        room = out_bytes(c, 8)
        if room == NULL:
            return -1
        put64(room, receipt.next)
        return 0

    cdef int read(self, Conn* c, const uint8_t* p) noexcept nogil:
        """The same; waits for the visible end where there is nothing yet."""
        cdef Found found
        cdef uint8_t* room
        while True:
            self.engine.reads.find(c, READ, p + 2, p[1], 0, OF_KAFKA_07, <int64_t>be64(p + 2 + p[1]), 1 << 20, &found)
            if found.problem or found.slot == NULL:
                return -1
            if found.size:
                break
            if self.engine.reads.await_visible(found.slot, found.visible):
                return WAIT_VISIBLE
        room = out_bytes(c, 4)
        if room == NULL:
            return -1
        put32(room, <uint32_t>found.size)
        return self.engine.reads.put(c, &found)

    cdef void job_done(self, Conn* c) noexcept nogil:
        """A partition was made, or not: the request looks again."""

    cdef int resume(self, Conn* c) noexcept nogil:
        go_on(c, WAIT_LOCK | WAIT_SPACE)
        return GOES_ON

    cdef int unfinished(self, Conn* c) noexcept nogil:
        cdef Gathered* g = &(<State*>c.state).gathered
        return (UNWRITTEN if g.runs != NULL else 0) | (OWED if g.head != g.tail else 0)

    cdef bint forget_gone(self, uint64_t now) noexcept nogil:
        self.engine.partitions.learn()
        return self.engine.partitions.known >= now

"""A connection that speaks today's Kafka: its frames one after the other, what each waits for, and what was gathered before.

Requests say what they came to (``Outcome``); here alone a connection is made to wait, and what is gathered is written. The
states of the request at the front stand in ``_exchange``.
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from fastlog.workers._engine cimport Engine
from fastlog.workers._forward cimport Forward
from fastlog.workers.kafka._exchange cimport (
    BETWEEN, BRIDGED_PART, BRIDGING, CHECKING, CLOSE, CREATED, CREATING, DONE, FORWARDED, FORWARDING, LISTED, LISTING, PRODUCING, QUEUED, READ,
    READING, WRITE_FIRST, Exchange, enter,
)
from fastlog.workers.kafka._requests cimport Requests
from fastlog.workers.kafka._wire cimport FRAME_HEAD
from fastlog._bytes cimport be32
from fastlog.workers.net._connection cimport (
    OWED, UNWRITTEN, WAIT_LOCK, WAIT_SPACE, WAIT_TURN, Conn, go_on, out_enough, turn_over, wait_for,
)
from fastlog.workers.net._protocol cimport CLOSES, GOES_ON, Protocol


@cython.final
@cython.no_gc_clear  # connections are closed when their processor is freed
cdef class Kafka(Protocol):
    """The protocol of one processor's connections that speak today's Kafka."""

    def __cinit__(self, Engine engine, Forward forward, control, max_request):
        self.engine = engine
        self.writes = engine.writes
        self.reports = engine.reports
        self.requests = Requests(engine, forward, control)
        self.max_request = max_request

    cdef int open(self, Conn* c) noexcept nogil:
        cdef Exchange* x = <Exchange*>calloc(1, sizeof(Exchange))
        if x == NULL:
            return -1
        self.writes.begin(&x.gathered)
        c.state = x
        return 0

    cdef void close(self, Conn* c) noexcept nogil:
        cdef Exchange* x = <Exchange*>c.state
        if x == NULL:
            return
        self.requests.forget(c, x)
        self.writes.discard(c, &x.gathered)
        c.state = NULL
        free(x)

    cdef void trim(self, Conn* c) noexcept nogil:
        self.writes.trim(c, &(<Exchange*>c.state).gathered)

    cdef void begin_turn(self) noexcept nogil:
        self.engine.jobs.begin_turn()

    cdef void unreadable(self, int entry, uint64_t position, int error) noexcept nogil:
        self.engine.reads.unreadable.failed(entry, position, error)

    cdef uint64_t next_size(self, const uint8_t* data, size_t n) noexcept nogil:
        cdef int32_t size
        if n < FRAME_HEAD:
            return FRAME_HEAD
        size = <int32_t>be32(data)
        if size <= 1 or <uint64_t>size > self.max_request:
            return FRAME_HEAD
        return FRAME_HEAD + <uint64_t>size

    cdef bint forget_gone(self, uint64_t now) noexcept nogil:
        self.engine.partitions.learn()
        return self.engine.partitions.known >= now  # else there was no memory

    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, uint64_t now_ns, size_t* used) noexcept nogil:
        cdef Exchange* x = <Exchange*>c.state
        cdef size_t at = 0
        cdef int32_t size
        cdef int r = DONE
        while n - at >= FRAME_HEAD:
            size = <int32_t>be32(data + at)
            if size <= 1 or <uint64_t>size > self.max_request:
                self.reports.invalid_request(c, "the announced request size is not allowed", size)
                r = CLOSE
                break
            if n - at - FRAME_HEAD < <size_t>size:
                break
            if at and turn_over(c):
                wait_for(c, WAIT_TURN, 0)
                break
            r = self.requests.handle(c, x, data + at + FRAME_HEAD, <size_t>size, now_ns)
            if r == WRITE_FIRST:
                if x.state == BETWEEN:
                    enter(x, QUEUED)
                r = self.write(c, x)
                if r == DONE:
                    continue
            if r > 0:
                if x.state == BETWEEN:
                    enter(x, QUEUED)
                wait_for(c, r, x.hold_until_ns)
                break
            at += FRAME_HEAD + <size_t>size
            enter(x, BETWEEN)
            if r == CLOSE:
                self.requests.give_up(x)
                break
            if out_enough(c):
                break
        used[0] = at
        if x.gathered.runs != NULL:
            if self.write(c, x) == CLOSE:
                self.requests.give_up(x)  # one that waits for a thread does not go on
                r = CLOSE
        elif x.first != NULL and self.requests.tell_receipts(c, x) == CLOSE:
            r = CLOSE
        return CLOSES if r == CLOSE else GOES_ON

    cdef int resume(self, Conn* c) noexcept nogil:
        cdef Exchange* x = <Exchange*>c.state
        cdef int r = DONE
        if x.first != NULL:
            r = self.requests.tell_receipts(c, x)
        if x.gathered.runs != NULL and self.write(c, x) == CLOSE:
            # the request at the front does not go on
            self.requests.give_up(x)
            r = CLOSE
        return CLOSES if r == CLOSE else GOES_ON

    cdef int write(self, Conn* c, Exchange* x) noexcept nogil:
        """Write what is gathered and answer what can be answered: DONE, CLOSE, or what the rest waits for."""
        cdef bint failed = False
        cdef int reasons
        go_on(c, WAIT_LOCK | WAIT_SPACE)
        reasons = self.writes.commit(c, &x.gathered, &failed)
        if reasons:
            wait_for(c, reasons, 0)
        if self.requests.tell_receipts(c, x) == CLOSE or failed:
            return CLOSE
        return reasons

    cdef void job_done(self, Conn* c) noexcept nogil:
        cdef Exchange* x = <Exchange*>c.state
        if x.state == LISTING:
            x.made_state = x.job.answer.state
            x.made = x.job.answer.answer
            x.made_size = x.job.answer.size
            enter(x, LISTED)
        elif x.state == CREATING or x.state == FORWARDING:
            x.made_state = x.job.forward.state
            x.made = x.job.forward.answer
            x.made_size = x.job.forward.size
            enter(x, CREATED if x.state == CREATING else FORWARDED)
        elif x.state == CHECKING:
            x.checked = x.job.check.count
            x.checked_record = x.job.check.record
            enter(x, PRODUCING)
        elif x.state == BRIDGING:
            self.engine.bridge.take(&x.job.bridge)
            enter(x, BRIDGED_PART)
        elif x.state == READING:
            self.engine.reads.learn_place(&x.job.read)
            enter(x, READ)

    cdef int unfinished(self, Conn* c) noexcept nogil:
        cdef Exchange* x = <Exchange*>c.state
        return (UNWRITTEN if x.gathered.runs != NULL else 0) | (OWED if x.first != NULL else 0)

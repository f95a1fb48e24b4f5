"""A connection that speaks Kafka 0.7: its frames one after the other, what each waits for, and what was gathered before.

Requests say what they came to (``Outcome``); here alone a connection is made to wait, and what is gathered is written. The
states of the request at the front stand in ``_exchange``.

Source: Kafka 0.7.2 for requests 0-4, down to which of them close the connection; 1000-1006 are fastlog's own.
"""

cimport cython
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from fastlog.workers._engine cimport Engine
from fastlog.workers.kafka07._exchange cimport (
    ANSWERED, ANSWERING, BETWEEN, CLOSE, CONVERTING, COUNTING, CREATING, DONE, FRAME_HEAD, PRODUCING, QUEUED, READ, READING,
    WRITE_FIRST, Exchange, enter, free_converted,
)
from fastlog.workers.kafka07._requests cimport Requests
from fastlog._bytes cimport be32
from fastlog.workers.net._connection cimport (
    OWED, UNWRITTEN, WAIT_LOCK, WAIT_SPACE, WAIT_TURN, Conn, go_on, out_enough, turn_over, wait_for,
)
from fastlog.workers.net._protocol cimport CLOSES, GOES_ON, Protocol


@cython.final
@cython.no_gc_clear  # connections are closed when their processor is freed
cdef class Kafka07(Protocol):
    """The protocol of one processor's listeners that speak Kafka 0.7 and fastlog's own requests."""

    def __cinit__(self, Engine engine, control, max_message, max_request, max_wait_ms):
        self.engine = engine
        self.writes = engine.writes
        self.reports = engine.reports
        self.requests = Requests(engine, control, max_message, max_wait_ms)
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
        if x.state == CONVERTING:
            free(x.job.convert.made)
        free_converted(x)
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
            r = self.requests.handle(c, x, data + at + FRAME_HEAD, size, now_ns)
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
            if r == CLOSE:
                self.requests.give_up(x)
                enter(x, BETWEEN)
                break
            enter(x, BETWEEN)
            if out_enough(c):
                break
        used[0] = at
        if x.gathered.runs != NULL:
            if self.write(c, x) == CLOSE:
                self.requests.give_up(x)  # one that waits for a thread does not go on
                r = CLOSE
        elif x.gathered.head != x.gathered.tail and self.requests.tell_receipts(c, x) == CLOSE:
            r = CLOSE
        return CLOSES if r == CLOSE else GOES_ON

    cdef int resume(self, Conn* c) noexcept nogil:
        cdef Exchange* x = <Exchange*>c.state
        cdef int r = DONE
        if x.gathered.head != x.gathered.tail:
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
        if x.state == COUNTING:
            x.count = x.job.count.count
            enter(x, PRODUCING)
        elif x.state == CREATING:
            x.made = x.job.create.made
            enter(x, PRODUCING)
        elif x.state == CONVERTING:
            x.converted_state = x.job.convert.state
            x.converted = x.job.convert.made
            x.converted_size = x.job.convert.size
            x.converted_count = x.job.convert.count
            enter(x, PRODUCING)
        elif x.state == READING:
            enter(x, READ)
        elif x.state == ANSWERING:
            x.answer_state = x.job.answer.state
            x.answer = x.job.answer.answer
            x.answer_size = x.job.answer.size
            enter(x, ANSWERED)

    cdef int unfinished(self, Conn* c) noexcept nogil:
        cdef Exchange* x = <Exchange*>c.state
        return (UNWRITTEN if x.gathered.runs != NULL else 0) | (OWED if x.gathered.head != x.gathered.tail else 0)

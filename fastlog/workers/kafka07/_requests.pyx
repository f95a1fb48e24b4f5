"""One frame of Kafka 0.7: whose request it is, and that answers leave in the order of requests.

Produce requests that arrive in one read are gathered and written together (``_produce``); fetches are in ``_fetch``, OFFSETS
in ``_offsets``, fastlog's own rare requests in ``_own``. What reads or makes files, or may take long, is done by a thread.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, uint8_t, uint64_t

from fastlog.log._layout cimport fl_bump
from fastlog.log._shared_memory cimport N_FETCH, N_INVALID_REQUEST, N_OFFSETS, N_OWN, N_STRANGERS
from fastlog.workers._engine cimport Engine
from fastlog.workers.kafka07._codes cimport CODE_MALFORMED, CODE_VERSION
from fastlog.workers.kafka07._exchange cimport BETWEEN, CLOSE, DONE, WRITE_FIRST, Exchange
from fastlog.workers.kafka07._fetch cimport FETCH_MALFORMED, Fetches
from fastlog.workers.kafka07._kinds cimport (
    ACKED_PRODUCE, CREATE_TOPIC, DELETE_TOPIC, FETCH, HELD_FETCH, METADATA, MULTIFETCH, MULTIPRODUCE, OFFSETS, PRODUCE,
    TODAYS_API_VERSIONS, Kinds, operation_of,
)
from fastlog.workers.kafka07._offsets cimport Offsets
from fastlog.workers.kafka07._own cimport Own
from fastlog.workers.kafka07._produce cimport METADATA_VERSION, OWN_VERSION, Produces
from fastlog._bytes cimport be16, be32
from fastlog.workers.net._connection cimport WAIT_ANSWERS, Conn


@cython.final
@cython.no_gc_clear  # connections are closed when their processor is freed
cdef class Requests:
    """Handles the requests of one processor's connections; its loop's thread only.

    ``control`` is the Python side of the protocol, see ``Control``.
    """

    def __cinit__(self, Engine engine, control, max_message, max_wait_ms):
        self.engine = engine
        self.counters = engine.counters
        self.kinds = Kinds()
        self.produces = Produces(engine, self.kinds, max_message, control.max_batch)
        self.fetches = Fetches(engine, self.kinds, max_wait_ms)
        self.offsets = Offsets(engine, self.kinds, self.fetches, control)
        self.own = Own(engine, control)

    cdef int handle(self, Conn* c, Exchange* x, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil:
        """Handle one frame, at least two bytes; ``p`` stands at the request id. An ``Outcome``."""
        cdef int kind = <int16_t>be16(p)
        cdef int32_t correlation
        cdef int r
        if self.engine.reports.tracing[0] and x.state == BETWEEN:
            self.engine.reports.trace(c, kind, size)
        if (kind == PRODUCE or kind == MULTIPRODUCE or kind == ACKED_PRODUCE) and operation_of(self.kinds, kind):
            return self.produces.produce(c, x, p, size, kind)
        # everything else has an answer, and answers go out in request order
        if x.gathered.runs != NULL:
            return WRITE_FIRST
        if x.gathered.head != x.gathered.tail:
            if self.produces.tell_receipts(c, x) == CLOSE:
                return CLOSE
            if x.gathered.head != x.gathered.tail:
                return WAIT_ANSWERS
        if not operation_of(self.kinds, kind):
            if kind == TODAYS_API_VERSIONS:
                fl_bump(&self.counters[<int>N_STRANGERS], 1)
                self.engine.reports.refused(c, "the client speaks today's Kafka protocol (request 18, ApiVersions); this "
                                            "listener speaks Kafka 0.7", kind)
            else:
                self.engine.reports.invalid_request(c, "unknown request kind", kind)
            return CLOSE
        if c.dead and kind != OFFSETS and kind != CREATE_TOPIC and kind != DELETE_TOPIC:
            return self.answer_nobody(c, x, kind, p, size)
        if kind < ACKED_PRODUCE:
            if kind == OFFSETS:
                return self.offsets.answer(c, x, p + 2, size - 2, now_ns)
            if kind == FETCH:
                r = self.fetches.fetch(c, x, p + 2, size - 2, now_ns)
            else:
                r = self.fetches.multifetch(c, x, p + 2, size - 2, now_ns)
            if r <= 0:
                fl_bump(&self.counters[<int>N_FETCH], 1)
            return self.malformed(c, kind, "malformed fetch") if r == FETCH_MALFORMED else r
        if size < 8:
            return self.malformed(c, kind, "a request too short for its correlation id")
        correlation = <int32_t>be32(p + 4)
        if be16(p + 2) != OWN_VERSION and not (kind == METADATA and be16(p + 2) == METADATA_VERSION):
            r = self.own.error(c, kind, correlation, CODE_VERSION)
        elif kind == HELD_FETCH:
            r = self.fetches.held_fetch(c, x, p + 8, size - 8, correlation, now_ns)
            if r == FETCH_MALFORMED:
                r = self.own.error(c, kind, correlation, CODE_MALFORMED)
        else:
            r = self.own.answer(c, x, kind, p, size, correlation)
        if r <= 0:
            fl_bump(&self.counters[<int>N_OWN], 1)
        return r

    cdef int malformed(self, Conn* c, int kind, const char* reason) noexcept nogil:
        """Count and log a malformed request, which has no answer; returns CLOSE."""
        self.engine.reports.invalid_request(c, reason, kind)
        return CLOSE

    cdef int answer_nobody(self, Conn* c, Exchange* x, int kind, const uint8_t* p, size_t size) noexcept nogil:
        """A request that only reads, of a client that is gone: whether it is malformed decides on those behind it."""
        fl_bump(&self.counters[<int>N_OWN if kind >= ACKED_PRODUCE else <int>N_FETCH], 1)
        self.forget(c, x)
        if size < 8 if kind >= ACKED_PRODUCE else self.fetches.malformed(kind == MULTIFETCH, p + 2, size - 2):
            return self.malformed(c, kind, "a malformed request of a client that is gone")
        return DONE

    cdef int tell_receipts(self, Conn* c, Exchange* x) noexcept nogil:
        """Answer the acknowledged produces that can be answered."""
        return self.produces.tell_receipts(c, x)

    cdef void give_up(self, Exchange* x) noexcept nogil:
        """The connection closes in the middle of a request."""
        self.produces.give_up(x)

    cdef void forget(self, Conn* c, Exchange* x) noexcept nogil:
        """Give back what the request at the front holds: nobody takes its answer."""
        x.hold_until_ns = x.hold_end = 0
        self.fetches.forget_parts(c, x)
        self.own.forget(c, x)
        if c.pool.answering == c:
            c.pool.answering = NULL

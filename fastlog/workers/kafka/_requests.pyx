"""One frame of today's protocol: which request it is, whether it is served, and that answers leave in the order of requests."""

cimport cython
from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastlog.log._layout cimport fl_bump, fl_refused
from fastlog.log._shared_memory cimport N_KAFKA
from fastlog.workers._engine cimport Engine
from fastlog.workers._forward cimport Forward
from fastlog.workers._jobs cimport ANSWER_MADE
from fastlog.workers.kafka._codes cimport CODE_VERSION
from fastlog.workers.kafka._exchange cimport (
    BETWEEN, CLOSE, DONE, FORWARDED, FORWARDING, MALFORMED, QUEUED, WRITE_FIRST, Exchange, Head, enter, free_made,
)
from fastlog.workers.kafka._fetch cimport Fetches
from fastlog.workers.kafka._kinds cimport API_VERSIONS, FETCH, LIST_OFFSETS, METADATA, PRODUCE, ApiVersions, Kinds, api_of
from fastlog.workers.kafka._list_offsets cimport ListOffsets
from fastlog.workers.kafka._metadata cimport Metadata
from fastlog.workers.kafka._produce cimport Produces
from fastlog.workers.kafka._topics cimport Topics
from fastlog.workers.kafka._wire cimport FRAME_HEAD, Reader, get_string, skip_tags
from fastlog._bytes cimport be16, be32, put32
from fastlog.workers.net._connection cimport WAIT_ANSWERS, WAIT_JOB, Conn, out_bytes

cdef enum:
    HEAD_BYTES = 8               # api key, version and correlation id, which every request begins with
    MOST_BYTES = 8 << 20         # of a request that carries no records
    NOT_SERVED = -4              # of a head, beside the values of ``Outcome``
    WRONG_VERSION = -5


@cython.final
@cython.no_gc_clear  # connections are closed when their processor is freed
cdef class Requests:
    """Handles the requests of one processor's connections; its loop's thread only. ``control`` as for ``Control``."""

    def __cinit__(self, Engine engine, Forward forward, control):
        cdef bytes body
        cdef int i
        self.engine = engine
        self.forward = forward
        self.counters = engine.counters
        self.kinds = Kinds()
        self.topics = Topics(engine)
        self.metadata = Metadata(engine, self.kinds, self.topics, forward, control)
        self.produces = Produces(engine, self.kinds, control.max_batch)
        self.fetches = Fetches(engine, self.kinds, self.topics, control.max_wait_ms)
        self.list_offsets = ListOffsets(engine, self.kinds, self.topics, control)
        self.versions = [*control.api_versions, control.api_versions_refused]
        if len(self.versions) > VERSIONS_KEPT:
            raise ValueError("too many versions of API_VERSIONS")
        self.refusal = <int>len(self.versions) - 1
        for i, body in enumerate(self.versions):
            self.body_of[i] = body
            self.body_bytes[i] = len(body)

    cdef int handle(self, Conn* c, Exchange* x, uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil:
        """Handle one frame; ``p`` stands at the api key. An ``Outcome``, but for MALFORMED, which has been said."""
        cdef Head head
        cdef int r
        head.key = <int16_t>be16(p) if size >= 2 else -1
        if self.engine.reports.tracing[0] and x.state == BETWEEN:
            self.engine.reports.trace(c, head.key, size)
        r = self.read_head(p, size, &head)
        if r == DONE and x.state <= QUEUED and head.key != API_VERSIONS and head.key != METADATA and self.topics.are_in_part():
            self.engine.reports.invalid_request(c, "another broker is registered in ZooKeeper: clients of today's protocol"
                                                " would take a part for the whole", head.key)
            return CLOSE
        if r == DONE and head.key == PRODUCE:
            r = self.produces.produce(c, x, &head, p, size)
        elif r == DONE:
            # everything else waits for the answers before its own
            if x.gathered.runs != NULL:
                return WRITE_FIRST
            if x.first != NULL:
                if self.tell_receipts(c, x) == CLOSE:
                    return CLOSE
                if x.first != NULL:
                    return WAIT_ANSWERS
            if api_of(self.kinds, head.key).is_forwarded:
                r = self.pass_on(c, x, size)
            elif size > MOST_BYTES:
                r = MALFORMED
            elif head.key == API_VERSIONS:
                r = self.api_versions(c, &head, p, size)
            elif head.key == FETCH:
                r = self.fetches.fetch(c, x, &head, p, size, now_ns)
            elif head.key == LIST_OFFSETS:
                r = self.list_offsets.answer(c, x, &head, p, size, now_ns)
            else:
                r = self.metadata.answer(c, x, &head, p, size)
        elif r != MALFORMED:
            self.engine.reports.invalid_request(c, "an api key that is not served, as ApiVersions says" if r == NOT_SERVED
                                                else "a version that is not served, as ApiVersions says", head.key)
            return CLOSE
        if r <= 0 and r != WRITE_FIRST:
            fl_bump(&self.counters[<int>N_KAFKA], 1)
            if api_of(self.kinds, head.key) != NULL:  # what is too short has any
                fl_bump(&self.engine.cell.requests[head.key], 1)
        if r == MALFORMED:
            self.engine.reports.invalid_request(c, "malformed request", head.key)
            return CLOSE
        return r

    cdef int pass_on(self, Conn* c, Exchange* x, size_t size) noexcept nogil:
        """Have the coordinator answer; the connection closes when it cannot, or dies meanwhile. An ``Outcome``."""
        cdef uint8_t* room
        cdef int result = CLOSE
        if x.state != FORWARDED:
            if self.forward.ask(c, &x.job.forward, FRAME_HEAD, size) != 0:
                return MALFORMED
            enter(x, FORWARDING)
            return WAIT_JOB
        if x.made_state == ANSWER_MADE:
            room = out_bytes(c, x.made_size)
            if room != NULL:
                memcpy(room, x.made, x.made_size)
                result = DONE
        free_made(x)
        return result

    cdef int read_head(self, const uint8_t* p, size_t size, Head* out) noexcept nogil:
        """Read the head: DONE, MALFORMED, NOT_SERVED or WRONG_VERSION. Only what every request has, of an
        API_VERSIONS that may be of any version and of what others read.
        """
        cdef const ApiVersions* api
        cdef const uint8_t* client
        cdef Reader r
        if size < HEAD_BYTES:
            return MALFORMED
        out.version = <int16_t>be16(p + 2)
        out.correlation = <int32_t>be32(p + 4)
        out.body = HEAD_BYTES
        api = api_of(self.kinds, out.key)
        if api == NULL:
            return NOT_SERVED
        if not api.first <= out.version <= api.last:
            return DONE if out.key == API_VERSIONS else WRONG_VERSION
        if api.is_forwarded:
            return DONE
        r.p, r.size, r.at, r.bad, r.flexible = p, size, HEAD_BYTES, False, False
        get_string(&r, &client)
        r.flexible = out.version >= api.flexible
        skip_tags(&r)
        out.flexible = r.flexible
        out.body = r.at
        return MALFORMED if r.bad else DONE

    cdef int api_versions(self, Conn* c, const Head* head, const uint8_t* p, size_t size) noexcept nogil:
        """Answer with the request kinds and versions that are served; to an unknown version in the format of version 0."""
        cdef const ApiVersions* api = api_of(self.kinds, API_VERSIONS)
        cdef int place = head.version
        cdef const uint8_t* text
        cdef Reader r
        cdef uint8_t* room
        if not api.first <= head.version <= api.last:
            place = self.refusal
            fl_refused(self.engine.cell, API_VERSIONS, CODE_VERSION)
        elif head.version >= api.flexible:
            r.p, r.size, r.at, r.bad, r.flexible = p, size, head.body, False, True
            get_string(&r, &text)
            get_string(&r, &text)
            skip_tags(&r)
            if r.bad:
                return MALFORMED
        room = out_bytes(c, FRAME_HEAD + 4 + self.body_bytes[place])
        if room == NULL:
            return CLOSE
        # the head of this answer is never flexible: who asks does not know yet what is served
        put32(room, <uint32_t>(4 + self.body_bytes[place]))
        put32(room + FRAME_HEAD, <uint32_t>head.correlation)
        memcpy(room + FRAME_HEAD + 4, self.body_of[place], self.body_bytes[place])
        return DONE

    cdef int tell_receipts(self, Conn* c, Exchange* x) noexcept nogil:
        """Answer the produces that can be answered."""
        return self.produces.tell_receipts(c, x)

    cdef void give_up(self, Exchange* x) noexcept nogil:
        """The connection closes in the middle of a request."""
        self.produces.give_up(x)

    cdef void forget(self, Conn* c, Exchange* x) noexcept nogil:
        """Give back what the request at the front holds: nobody takes its answer."""
        free_made(x)
        self.fetches.forget(c, x)
        self.list_offsets.forget(x)
        self.produces.discard(c, x)

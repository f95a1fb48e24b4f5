"""What a processor does per request: frames in, appends and answers out, on raw buffers.

Produce requests that arrive in one read are gathered (``_produce``) and written together (``_runs``); fetches are in
``_fetch``. Python is called for what is rare: offsets, metadata, errors. What reads or makes files, or may take long,
is called in the helper thread.

Source: Kafka 0.7.2 for requests 0-4, down to which of them close the connection; 1000-1005 are fastlog's own.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from fastlog.log._arena cimport (
    FL_STATE_OFFLINE, N_FETCH, N_INVALID_REQUEST, N_OFFSETS, N_OWN, N_STRANGERS, Arena, fl_bump, fl_cell_at, fl_load, fl_slot,
)
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers._authorizer cimport is_allowed
from fastlog.workers.net._bytes cimport be16, be32, be64, put16, put32, put64
from fastlog.workers.net._connection cimport PARK_ACKS, PARK_CREATE, PARK_HELPER, Conn, answer_admitted, out_bytes, out_enough, turn_over
from fastlog.workers.kafka07._fetch cimport FETCH_MALFORMED, Fetches
from fastlog.workers.net._helper cimport (
    ANSWER_AGAIN, ANSWER_MADE, HELP_ANSWER, QUEUE_CONTROL, QUEUE_CREATE, QUEUE_DISK, Helper,
)
from fastlog.workers.kafka07._kinds cimport (
    ACKED_PRODUCE, CREATE_TOPIC, CUT_POINTS, DELETE_TOPIC, FETCH, HELD_FETCH, LOCAL_READ, METADATA, MULTIFETCH,
    MULTIPRODUCE, OFFSETS,
    PRODUCE, TODAYS_API_VERSIONS, Kinds, operation_of,
)
from fastlog.workers.kafka07._offsets cimport OFFSETS_DONE, OFFSETS_PARKED, answer_offsets
from fastlog.workers.kafka07._produce cimport METADATA_VERSION, OWN_VERSION, Produces
from fastlog.workers._writes cimport CODE_MALFORMED, CODE_VERSION, FRAME_CLOSE, FRAME_DONE, FRAME_PARKED, Runs
from fastlog.workers._partitions cimport Topics

cdef enum:
    MAX_OWN_BYTES = 1 << 20      # a request that Python decodes is no longer than this
    MAX_OFFSETS_BYTES = 2 + 32767 + 16
    PARTITION_BYTES = 48         # of METADATA, with a share of the topic's name
    MOST_PARTITIONS = 131072     # of METADATA, as in ``answers``
    MOST_POINTS = 65536          # of CUT_POINTS, as there


cdef class Requests:
    """Handles the requests of one processor's connections; its loop's thread only.

    ``services`` and ``control`` are the processor's Python side.
    """

    def __cinit__(self, Arena arena, SegmentFiles files, int process, services, control, max_message, max_request, max_wait_ms,
                  memory_bytes, bint trace):
        self.arena = arena
        self.services = services
        self.control = control
        self.kinds = Kinds()
        self.counters = fl_cell_at(arena.header, process).counters
        self.authorizer = services.authorizer
        self.topics = Topics(arena, services)
        self.runs = Runs(arena, files, process, services, memory_bytes)
        self.produces = Produces(arena, self.authorizer, self.kinds, self.topics, self.runs, process, services, max_message)
        self.helper = Helper(arena, self.authorizer, services.count_deep, control.answer_off_loop, services.create_partition)
        self.fetches = Fetches(arena, files, self.authorizer, self.kinds, self.topics, self.helper, process, services, max_wait_ms)
        self.max_request = max_request
        self.trace = trace

    def take_over(self):
        """At start: finish what a predecessor in this place left in the middle of an append, if it did."""
        self.runs.take_over()

    cdef bint forget_gone(self) noexcept nogil:
        """Look at no partition any more that has gone; whether that holds for all threads, else ask again soon."""
        cdef uint64_t now = fl_load(&self.arena.header.change_count)
        if now != self.marked:
            self.topics.learn()
            if self.topics.known < now:
                return False  # no memory
            self.helper.mark()
            self.marked = now
        return self.helper.is_past()

    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, bint own, uint64_t now_ns, size_t* consumed) noexcept nogil:
        """Handle whole frames of data[0:n] until one has to wait; ``consumed`` says how far it came.

        ``own`` says that the bytes stand in the connection's own buffer and stay there while it is parked. Returns
        FRAME_CLOSE when the connection must close after what precedes has been done.
        """
        cdef size_t at = 0
        cdef int32_t size
        cdef int r = FRAME_DONE
        while c.park == 0 and n - at >= 4:
            size = <int32_t>be32(data + at)
            if size <= 1 or <uint64_t>size > self.max_request:
                fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
                self.runs.report(c, "the announced request size is not allowed", size)
                r = FRAME_CLOSE
                break
            if n - at - 4 < <size_t>size or (at and turn_over(c)):
                break
            r = self.frame(c, data + at + 4, size, own, now_ns)
            c.resumed = r == FRAME_PARKED
            if r == FRAME_PARKED:
                break
            at += 4 + <size_t>size
            if r == FRAME_CLOSE or out_enough(c):
                break
        consumed[0] = at
        if c.runs != NULL:
            if self.runs.commit(c) == FRAME_CLOSE:
                return FRAME_CLOSE
        elif c.ack_head != c.ack_tail and self.runs.emit_acks(c) == FRAME_CLOSE:
            return FRAME_CLOSE
        return FRAME_CLOSE if r == FRAME_CLOSE else FRAME_DONE

    cdef int frame(self, Conn* c, uint8_t* p, size_t size, bint own, uint64_t now_ns) noexcept nogil:
        """Handle one frame; ``p`` stands at the request id."""
        cdef int kind = <int16_t>be16(p)
        cdef int32_t correlation
        cdef int r
        if self.trace and not c.resumed:
            with gil:
                self.services.trace(c.fd, kind, size)
        if (kind == PRODUCE or kind == MULTIPRODUCE or kind == ACKED_PRODUCE) and operation_of(self.kinds, kind):
            return self.produces.produce(c, p, size, kind, own)
        # everything else has an answer, and answers go out in request order
        if c.runs != NULL:
            r = self.runs.commit(c)
            if r != FRAME_DONE:
                return r
        if c.ack_head != c.ack_tail:
            r = self.runs.emit_acks(c)
            if r != FRAME_DONE:
                return r
            if c.ack_head != c.ack_tail:
                c.park |= PARK_ACKS
                return FRAME_PARKED
        if not operation_of(self.kinds, kind):
            if kind == TODAYS_API_VERSIONS:
                fl_bump(&self.counters[<int>N_STRANGERS], 1)
                self.runs.report(c, "the client speaks today's Kafka protocol (request 18, ApiVersions); this listener "
                               "speaks Kafka 0.7", kind)
            else:
                fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
                self.runs.report(c, "unknown request kind", kind)
            return FRAME_CLOSE
        if c.dead and kind != OFFSETS and kind != CREATE_TOPIC and kind != DELETE_TOPIC:
            return self.answer_nobody(c, kind, p, size)
        if kind < ACKED_PRODUCE:
            if kind == OFFSETS:
                if self.authorizer.has_rule and not self.offsets_allowed(c, p + 2, size - 2):
                    return self.refuse_offsets(c)
                if self.fetches.hold_offsets(c, p + 2, size - 2, now_ns):
                    return FRAME_PARKED
                r = self.offsets_answer(c, p + 2, min(size - 2, <size_t>MAX_OFFSETS_BYTES))
                if r != FRAME_PARKED:
                    fl_bump(&self.counters[<int>N_OFFSETS], 1)
                return r
            if kind == FETCH:
                r = self.fetches.fetch(c, p + 2, size - 2, now_ns)
            else:
                r = self.fetches.multifetch(c, p + 2, size - 2, now_ns)
            if r != FRAME_PARKED:
                fl_bump(&self.counters[<int>N_FETCH], 1)
            return self.produces.malformed(c, kind, "malformed fetch") if r == FETCH_MALFORMED else r
        if size < 8:
            return self.produces.malformed(c, kind, "a request too short for its correlation id")
        correlation = <int32_t>be32(p + 4)
        if be16(p + 2) != OWN_VERSION and not (kind == METADATA and be16(p + 2) == METADATA_VERSION):
            r = self.own_error(c, kind, correlation, CODE_VERSION)
        elif kind == HELD_FETCH:
            r = self.fetches.held_fetch(c, p + 8, size - 8, correlation, now_ns)
            if r == FETCH_MALFORMED:
                r = self.own_error(c, kind, correlation, CODE_MALFORMED)
        else:
            r = self.answer_off_loop(c, kind, p, size, correlation)
        if r != FRAME_PARKED:
            fl_bump(&self.counters[<int>N_OWN], 1)
        return r

    cdef int answer_nobody(self, Conn* c, int kind, const uint8_t* p, size_t size) noexcept nogil:
        """A request that only reads, of a client that is gone: whether it is malformed decides on those behind it."""
        fl_bump(&self.counters[<int>N_OWN if kind >= ACKED_PRODUCE else <int>N_FETCH], 1)
        c.helper_done = 0
        c.hold_until_ns = 0
        self.fetches.forget_parts(c)
        c.pool.answers -= c.answer_reserved
        c.answer_reserved = 0
        if c.pool.answering == c:
            c.pool.answering = NULL
        if size < 8 if kind >= ACKED_PRODUCE else self.fetches.malformed(kind == MULTIFETCH, p + 2, size - 2):
            return self.produces.malformed(c, kind, "a malformed request of a client that is gone")
        return FRAME_DONE

    cdef bint whole_frame(self, Conn* c) noexcept nogil:
        """Whether the received bytes begin with something to handle: a whole frame, or a size that is refused."""
        cdef size_t left = c.end - c.start
        cdef int32_t size
        if left < 4:
            return False
        size = <int32_t>be32(c.buffer + c.start)
        return size <= 1 or <uint64_t>size > self.max_request or left - 4 >= <size_t>size

    cdef int own_error(self, Conn* c, int kind, int32_t correlation, int code) noexcept nogil:
        """Answer one of fastlog's own requests with an error; a held fetch has its two offsets even then, unknown."""
        cdef size_t size = 26 if kind == HELD_FETCH else 10
        cdef uint8_t* head = out_bytes(c, size)
        if head == NULL:
            return FRAME_CLOSE
        fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
        put32(head, <uint32_t>size - 4)
        put32(head + 4, <uint32_t>correlation)
        put16(head + 8, <uint16_t>code)
        if size > 10:
            put64(head + 10, <uint64_t>-1)
            put64(head + 18, <uint64_t>-1)
        return FRAME_DONE

    cdef bint offsets_allowed(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil:
        """Whether OFFSETS of this topic may be answered; a request without a whole name tells nothing of any."""
        cdef int32_t name_size = <int16_t>be16(body) if n >= 2 else -1
        return name_size < 0 or n < <size_t>name_size + 2 or is_allowed(self.authorizer, c, operation_of(self.kinds, OFFSETS), body + 2, name_size)

    cdef int refuse_offsets(self, Conn* c) noexcept nogil:
        """Answer OFFSETS with the error that 0.7 has for all that it has no code for."""
        cdef uint8_t* room = out_bytes(c, 10)
        if room == NULL:
            return FRAME_CLOSE
        c.hold_until_ns = c.hold_end = 0
        fl_bump(&self.counters[<int>N_OFFSETS], 1)
        put32(room, 6)
        put16(room + 4, <uint16_t>-1)
        put32(room + 6, 0)
        return FRAME_DONE

    cdef int offsets_answer(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil:
        """Answer OFFSETS here and now: old clients ask it after each produce. Python is asked where there is no log."""
        cdef uint8_t* room
        cdef Py_ssize_t size
        cdef int32_t name_size = <int16_t>be16(body) if n >= 2 else -1
        cdef int status
        cdef fl_slot* s = NULL
        if name_size >= 0 and n >= <size_t>name_size + 18 and <int32_t>be32(body + 14 + name_size) >= 0:
            s = self.topics.find(body + 2, name_size, <int32_t>be32(body + 2 + name_size))
        if s != NULL and not fl_load(&s.state) & FL_STATE_OFFLINE:
            status = answer_offsets(self.arena.header, s, c, <int64_t>be64(body + 6 + name_size),
                                    <int32_t>be32(body + 14 + name_size))
            if status == OFFSETS_PARKED:
                return FRAME_PARKED
            return FRAME_DONE if status == OFFSETS_DONE else FRAME_CLOSE
        with gil:
            try:
                made = self.control.offsets(<bytes>body[:n])
            except Exception as error:
                self.services.unexpected(error)
                return FRAME_CLOSE
            if made is not None:
                size = len(<bytes>made)
                room = out_bytes(c, size)
                if room == NULL:
                    return FRAME_CLOSE
                memcpy(room, <char*>(<bytes>made), size)
                return FRAME_DONE
        return self.produces.malformed(c, OFFSETS, "malformed request")

    cdef int queue_of(self, int kind, const uint8_t* p, size_t size) noexcept nogil:
        """The queue in which the answer to one of fastlog's rare requests is made; ``p`` stands at the request id."""
        cdef int name_size
        cdef fl_slot* s = NULL
        if kind == CREATE_TOPIC or kind == DELETE_TOPIC:
            return QUEUE_CREATE
        if kind != CUT_POINTS and kind != LOCAL_READ:
            return QUEUE_CONTROL
        name_size = <int16_t>be16(p + 8) if size >= 10 else -1
        if name_size >= 0 and size >= <size_t>name_size + 14:
            s = self.topics.find(p + 10, name_size, <int32_t>be32(p + 10 + name_size))
        return <int>QUEUE_DISK + (<int>s.directory if s != NULL else 0)

    cdef uint64_t expected_bytes(self, int kind, const uint8_t* p, size_t size) noexcept nogil:
        """About how long the answer to one of fastlog's rare requests will be; ``p`` stands at the request id."""
        cdef int32_t names
        if kind == CUT_POINTS:
            names = <int32_t>be32(p + size - 4) if size > 12 else 0
            return 8 * <uint64_t>min(<uint32_t>max(names, 0), <uint32_t>MOST_POINTS)
        if kind == LOCAL_READ:
            return 8 * <uint64_t>self.arena.header.table_entries
        if kind != METADATA:
            return 0
        names = <int32_t>be32(p + 8) if size >= 12 else 0
        if names < 0:
            return fl_load(&self.arena.header.slot_count) * PARTITION_BYTES
        return size + min(<uint64_t>names * max(self.topics.largest, <uint64_t>1), <uint64_t>MOST_PARTITIONS) * PARTITION_BYTES

    cdef int answer_off_loop(self, Conn* c, int kind, const uint8_t* p, size_t size, int32_t correlation) noexcept nogil:
        """Have a thread make the answer to one of fastlog's rare requests, and pass it on."""
        cdef uint8_t* room
        cdef uint8_t* made = c.answer
        cdef uint64_t expected
        cdef int result = FRAME_CLOSE
        if size > MAX_OWN_BYTES:
            return self.own_error(c, kind, correlation, CODE_MALFORMED)
        if not (c.helper_done and c.helper_kind == HELP_ANSWER):
            expected = self.expected_bytes(kind, p, size)
            if not answer_admitted(c, expected):
                return FRAME_PARKED
            if c.answer_reserved == 0:
                c.answer_reserved = expected
                c.pool.answers += expected
            c.helper_kind = HELP_ANSWER
            c.helper_queue = self.queue_of(kind, p, size)
            c.helper_offset = 0
            c.helper_size = size
            c.helper_done = 0
            c.park |= PARK_HELPER
            return FRAME_PARKED
        c.helper_done = 0
        c.pool.answers -= c.answer_reserved
        c.answer_reserved = 0
        if c.answer_state == ANSWER_AGAIN:
            c.park |= PARK_CREATE
            return FRAME_PARKED
        if c.answer_state == ANSWER_MADE:
            if be16(made + 8) == CODE_MALFORMED:
                fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
            room = out_bytes(c, c.answer_size)
            if room != NULL:
                memcpy(room, made, c.answer_size)
                result = FRAME_DONE
        free(made)
        c.answer = NULL
        return result

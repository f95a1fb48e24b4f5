"""OFFSETS: which offsets lay in a log at a time, from the table of its segments. Python is asked where there is no log.

Source: Kafka 0.7.2, ``Log.getOffsetsBefore``; times are the append times fastlog keeps, not file times.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastlog.log._layout cimport (
    FL_STATE_OFFLINE, fl_base_at, fl_bump, fl_end, fl_end_read, fl_fence, fl_find_segment, fl_first_ms_at, fl_header,
    fl_last_ms_at, fl_load, fl_slot, fl_wall_ms,
)
from fastlog.log._shared_memory cimport N_OFFSETS
from fastlog.log.formats._table cimport OF_KAFKA_07, format_of
from fastlog.workers._authorizer cimport is_allowed
from fastlog.workers._engine cimport Engine
from fastlog.workers.kafka07._codes cimport CODE_UNKNOWN
from fastlog.workers.kafka07._exchange cimport CLOSE, DONE, Exchange
from fastlog.workers.kafka07._fetch cimport Fetches, flush_owed
from fastlog.workers.kafka07._kinds cimport OFFSETS, Kinds, operation_of
from fastlog._bytes cimport be16, be32, be64, put16, put32, put64
from fastlog.workers.net._connection cimport WAIT_ROOM, WAIT_VISIBLE, Conn, answer_admitted, out_bytes, out_give_back

cdef enum:
    LATEST = -1
    EARLIEST = -2
    HEAD_BYTES = 10              # size, error, count
    MAX_OFFSETS_BYTES = 2 + 32767 + 16


cdef inline int64_t time_of(fl_header* h, fl_slot* s, uint64_t index) noexcept nogil:
    """When a segment got its last append; an empty one counts from its making."""
    cdef uint64_t last = fl_load(fl_last_ms_at(h, s, index))
    return <int64_t>(last if last else fl_load(fl_first_ms_at(h, s, index)))


@cython.final
cdef class Offsets:
    """Answers OFFSETS of one processor, here and now, since old clients ask it after each produce; its loop's thread only.

    ``control`` is the Python side of the protocol, see ``Control``.
    """

    def __cinit__(self, Engine engine, Kinds kinds, Fetches fetches, control):
        self.engine = engine
        self.kinds = kinds
        self.fetches = fetches
        self.control = control
        self.counters = engine.counters

    cdef int answer(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil:
        """Request 4; ``body`` begins after the request id."""
        cdef int32_t name_size = <int16_t>be16(body) if n >= 2 else -1
        cdef fl_slot* s = NULL
        cdef int r
        if not self.is_allowed(c, body, n):
            return self.refuse(c, x)
        if self.hold(c, x, body, n, now_ns):
            return WAIT_VISIBLE
        if name_size >= 0 and n >= <size_t>name_size + 18 and <int32_t>be32(body + 14 + name_size) >= 0:
            s = self.engine.partitions.find(body + 2, name_size, <int32_t>be32(body + 2 + name_size))
        if s != NULL and not fl_load(&s.state) & FL_STATE_OFFLINE and format_of(s.format).clients & OF_KAFKA_07:
            r = self.answer_from_table(c, s, <int64_t>be64(body + 6 + name_size), <int32_t>be32(body + 14 + name_size))
        else:
            if s != NULL and format_of(s.format) != NULL and not format_of(s.format).clients & OF_KAFKA_07:
                self.engine.reports.refused(c, "a topic of record batches, whose offsets clients of 0.7 have no use for", OFFSETS,
                                            s.name, <int>s.name_bytes, <int32_t>s.partition)
            r = self.answer_from_python(c, body, min(n, <size_t>MAX_OFFSETS_BYTES))
        if r <= 0:
            fl_bump(&self.counters[<int>N_OFFSETS], 1)
        return r

    cdef bint is_allowed(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil:
        """Whether OFFSETS of this topic may be answered; a request without a whole name tells nothing of any."""
        cdef int32_t name_size = <int16_t>be16(body) if n >= 2 else -1
        return name_size < 0 or n < <size_t>name_size + 2 \
            or is_allowed(self.engine.authorizer, c, operation_of(self.kinds, OFFSETS), body + 2, name_size)

    cdef int refuse(self, Conn* c, Exchange* x) noexcept nogil:
        """Answer with the error that 0.7 has for all that it has no code for."""
        cdef uint8_t* room = out_bytes(c, HEAD_BYTES)
        if room == NULL:
            return CLOSE
        x.hold_until_ns = x.hold_end = 0
        fl_bump(&self.counters[<int>N_OFFSETS], 1)
        put32(room, HEAD_BYTES - 4)
        put16(room + 4, <uint16_t>CODE_UNKNOWN)
        put32(room + 6, 0)
        return DONE

    cdef bint hold(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil:
        """Whether the request is to wait for the log end that it met, see ``Fetches.hold``."""
        cdef int size = <int16_t>be16(body) if n >= 2 else -1
        cdef fl_slot* s = NULL
        cdef uint64_t visible
        if size >= 0 and n >= <size_t>size + 18 and <int64_t>be64(body + 6 + size) == LATEST:
            s = self.engine.partitions.find(body + 2, size, <int32_t>be32(body + 2 + size))
        if s != NULL:
            visible = fl_load(&s.visible_end)
            if x.hold_until_ns == 0:
                x.hold_end = fl_load(&s.log_end) if flush_owed(s) else 0
            # an end never goes back: of a log that ends before it, it was not met, but of one that was deleted since
            while visible < x.hold_end <= fl_load(&s.log_end):
                if self.fetches.hold(c, x, s, visible, now_ns):
                    return True
                if fl_load(&s.visible_end) == visible:
                    break  # it waits no longer
                visible = fl_load(&s.visible_end)
        x.hold_until_ns = x.hold_end = 0
        return False

    cdef int answer_from_table(self, Conn* c, fl_slot* s, int64_t time_ms, int32_t max_count) noexcept nogil:
        """Where the log began and ended at ``time_ms``, segment by segment, newest first; nothing above the visible end.

        When the head that is read last is not the one that the search began with, it may have met entries that are gone or
        used again: then it looks again. Each time retention must have dropped more, so that this ends.
        """
        cdef fl_header* h = self.engine.arena.header
        cdef fl_end visible
        cdef uint64_t head, tail, index, count, i
        cdef bint with_end
        cdef uint8_t* room
        while True:
            tail = fl_load(&s.table_tail)
            head = fl_load(&s.table_head)
            if head >= tail:
                continue  # the tail was read before a roll, the head after retention: a table is never empty
            fl_end_read(&s.visible_end, s.visible_ends, &visible)
            # [head, index) are the segments that count, and the visible end, as if it were one, after them
            index = fl_find_segment(h, s, head, tail, visible.offset) + 1
            with_end = visible.offset > fl_load(fl_base_at(h, s, index - 1))
            if visible.offset < fl_load(fl_base_at(h, s, index - 1)):
                index = head
                with_end = False
            if time_ms == EARLIEST:
                with_end = False
                index = min(index, head + 1)
            elif time_ms != LATEST:
                with_end = with_end and <int64_t>fl_wall_ms() <= time_ms
                while not with_end and index > head and time_of(h, s, index - 1) > time_ms:
                    index -= 1
            count = min(index - head + with_end, <uint64_t>max_count)
            if not answer_admitted(c, HEAD_BYTES + 8 * count):
                return WAIT_ROOM
            room = out_bytes(c, HEAD_BYTES + 8 * count)
            if room == NULL:
                return CLOSE
            put32(room, <uint32_t>(HEAD_BYTES - 4 + 8 * count))
            put16(room + 4, 0)
            put32(room + 6, <uint32_t>count)
            room += HEAD_BYTES
            for i in range(count):
                if with_end and i == 0:
                    put64(room, visible.offset)
                else:
                    put64(room + 8 * i, fl_load(fl_base_at(h, s, index - 1 - (i - with_end))))
            fl_fence()
            if fl_load(&s.table_head) == head:
                return DONE
            out_give_back(c, HEAD_BYTES + 8 * count)

    cdef int answer_from_python(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil:
        """Answer for a partition without a log, or out of service; a request that is cut short has no answer."""
        cdef uint8_t* room
        cdef Py_ssize_t size
        with gil:
            try:
                made = self.control.offsets(<bytes>body[:n])
            except Exception as error:
                self.engine.services.unexpected(error)
                return CLOSE
            if made is not None:
                size = len(<bytes>made)
                room = out_bytes(c, size)
                if room == NULL:
                    return CLOSE
                memcpy(room, <char*>(<bytes>made), size)
                return DONE
        self.engine.reports.invalid_request(c, "malformed request", OFFSETS)
        return CLOSE

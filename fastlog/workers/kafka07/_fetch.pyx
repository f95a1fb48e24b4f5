"""FETCH, MULTIFETCH and the long poll: sizes and errors in front, the bytes of the log behind them.

Source: Kafka 0.7.2 for requests 1 and 2 (one segment per fetch, empty bodies on errors); the long poll is fastlog's.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fastlog.log._layout cimport FL_STATE_NO_FLUSH, fl_bump, fl_end, fl_end_read, fl_load, fl_slot
from fastlog.log._shared_memory cimport N_FAILED_FETCH, N_HELD_FETCHES
from fastlog.log.formats._table cimport OF_KAFKA_07
from fastlog.workers._engine cimport Engine
from fastlog.workers._partitions cimport PROBLEM_FORMAT
from fastlog.workers._reads cimport Found, Reads
from fastlog.workers.kafka07._codes cimport CODE_UNKNOWN, code_of
from fastlog.workers.kafka07._exchange cimport (
    CLOSE, COLLECTING, DONE, HOLDING, READ, READING, Exchange, Parts, enter,
)
from fastlog.workers.kafka07._kinds cimport FETCH, Kinds, operation_of
from fastlog._bytes cimport be16, be32, be64, put16, put32, put64
from fastlog.workers.net._connection cimport (
    TURN_STEPS, WAIT_JOB, WAIT_ROOM, WAIT_TURN, WAIT_VISIBLE, Conn, Span, answer_admitted, answers_give, answers_take, out_bytes,
)

cdef enum:
    TURN_PARTS = 512             # of a MULTIFETCH: looked at, or put into the answer, before others have a turn
    MAX_PARTS_BYTES = 0x7ff00000 # the size of an answer is a signed 32-bit number; with room for the heads of 32767 parts
    OWED_FLUSH_NS = 5000000000   # how long a request of 0.7 waits at most for a flush that 0.7.2 would have done


cdef bint flush_owed(fl_slot* s) noexcept nogil:
    """Whether 0.7.2 would have flushed what is appended here and not flushed, or a part of it, by now."""
    cdef fl_end flushed, end
    fl_end_read(&s.flushed_end, s.flushed_ends, &flushed)
    fl_end_read(&s.log_end, s.log_ends, &end)
    return end.position > flushed.position and (
        (end.messages - flushed.messages) * 2 >= s.flush_messages
        or end.messages // s.flush_messages != flushed.messages // s.flush_messages
    )


cdef bint at_owed_flush(Found* found, uint64_t offset) noexcept nogil:
    """Whether a fetch of 0.7 found nothing because a flush that 0.7.2 would have done is not done yet."""
    return found.slot != NULL and found.problem == 0 and offset == found.watermark and flush_owed(found.slot)


cdef inline int code_07(int problem) noexcept nogil:
    """The error code that a request of 0.7 gets."""
    cdef int code = code_of(problem)
    return code if code < 100 else CODE_UNKNOWN


@cython.final
@cython.no_gc_clear  # connections are closed when their processor is freed
cdef class Fetches:
    """Answers fetches of one processor; its loop's thread only."""

    def __cinit__(self, Engine engine, Kinds kinds, max_wait_ms):
        self.reads = engine.reads
        self.reports = engine.reports
        self.kinds = kinds
        self.counters = engine.counters
        self.max_wait_ms = max_wait_ms

    cdef bint read_ahead(self, Conn* c, Exchange* x, Found* found) noexcept nogil:
        """Whether the beginning of a cold span is read into memory now, once: what is cold again then is sent as it is,
        since the machine is short of memory."""
        if x.state == READ or not self.reads.read_ahead(c, &x.job.read, found):
            return False
        enter(x, READING)
        return True

    cdef int put_or_fail(self, Conn* c, Found* found, uint32_t head_bytes, uint32_t code_at) noexcept nogil:
        """``put`` behind a head of ``head_bytes``, which becomes an error answer when the bytes cannot be read: -1 then."""
        cdef uint8_t* head
        if self.reads.put(c, found) != 0:
            head = c.out + c.out_end - head_bytes
            put32(head, head_bytes - 4)
            put16(head + code_at, <uint16_t>CODE_UNKNOWN)
            fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
            return -1
        return 0

    cdef void failed(self, Conn* c, const Found* found, const uint8_t* name, int size) noexcept nogil:
        """Count a part that has an error. What its code does not say goes to the log, unless ``size`` is -1; ``name`` stands
        before its partition."""
        fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
        if found.problem == PROBLEM_FORMAT and size >= 0:
            self.reports.refused(c, "a topic of record batches, which clients of today's Kafka read and those of 0.7 cannot",
                                 found.problem, name, size, <int32_t>be32(name + size))

    cdef bint hold(self, Conn* c, Exchange* x, fl_slot* s, uint64_t visible, uint64_t now_ns) noexcept nogil:
        """Whether a request of 0.7 is to wait until the visible end moves from here.

        0.7.2 flushes within the produce that completes ``log.flush.interval`` messages: who produces and then asks
        sees them. Here the flusher does it meanwhile, so whoever asks waits for what it owes, for a bounded time.
        """
        if c.leaving or fl_load(&s.state) & FL_STATE_NO_FLUSH:
            return False
        if x.hold_until_ns == 0:
            x.hold_until_ns = now_ns + <uint64_t>OWED_FLUSH_NS
        elif now_ns >= x.hold_until_ns:
            return False
        if not self.reads.await_visible(s, visible):
            return False
        enter(x, HOLDING)
        return True

    cdef bint malformed(self, bint several, const uint8_t* body, size_t n) noexcept nogil:
        """Whether ``fetch``, or ``multifetch`` for ``several``, refuses a request; ``body`` begins after its id."""
        cdef int count = 1, size
        cdef size_t at = 0
        if several:
            count = <int16_t>be16(body) if n >= 2 else -1
            at = 2
        if count < 0:
            return True
        while count:
            size = <int16_t>be16(body + at) if n - at >= 2 else -1
            if size < 0 or n - at < <size_t>size + 18:
                return True
            at += <size_t>size + 18
            count -= 1
        return False

    cdef int fetch(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil:
        """Request 1; ``body`` begins after the request id."""
        cdef Found found
        cdef int size, code
        cdef uint8_t* head
        if n < 2:
            return FETCH_MALFORMED
        size = <int16_t>be16(body)
        if size < 0 or n < <size_t>size + 18:
            return FETCH_MALFORMED
        while True:
            self.reads.find(c, operation_of(self.kinds, FETCH), body + 2, size, <int32_t>be32(body + 2 + size),
                            OF_KAFKA_07, <int64_t>be64(body + 6 + size), <int32_t>be32(body + 14 + size), &found)
            if not at_owed_flush(&found, be64(body + 6 + size)):
                break
            if self.hold(c, x, found.slot, found.visible, now_ns):
                return WAIT_VISIBLE
            if fl_load(&found.slot.visible_end) == found.visible:
                break  # it waits no longer
        x.hold_until_ns = 0
        if found.cold and self.read_ahead(c, x, &found):
            return WAIT_JOB
        code = code_07(found.problem)
        if code:
            self.failed(c, &found, body + 2, size)
        else:
            self.reads.look_ahead(&found)
        head = out_bytes(c, 6)
        if head == NULL:
            return CLOSE
        put32(head, <uint32_t>found.size + 2)
        put16(head + 4, <uint16_t>code)
        self.put_or_fail(c, &found, 6, 4)
        return DONE

    cdef int multifetch(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil:
        """Request 2: each part has its own error, the outer one is always 0. Of many parts, some in each turn."""
        cdef Parts* parts = x.parts
        cdef int count, result, work = TURN_PARTS
        if parts == NULL:
            count = <int16_t>be16(body) if n >= 2 else -1
            if count < 0:
                return FETCH_MALFORMED
            if not answer_admitted(c, <uint64_t>count * (sizeof(Found) + 2 * sizeof(Span))):
                return WAIT_ROOM
            enter(x, COLLECTING)
            parts = self.begin_parts(c, x, count)
            if parts == NULL:
                return CLOSE
        if parts.looked < parts.count:
            result = self.look_at_parts(c, parts, body, n, &work)
            if result != DONE:
                if result < 0:
                    x.hold_until_ns = 0
                    self.forget_parts(c, x)
                return result
            if parts.owed != NULL and parts.total == 2 + 6 * <uint64_t>parts.count:
                # nothing to pin: no part has a byte
                if self.hold(c, x, parts.owed, parts.owed_at, now_ns):
                    self.forget_parts(c, x)
                    return WAIT_VISIBLE
                if fl_load(&parts.owed.visible_end) != parts.owed_at:
                    self.forget_parts(c, x)
                    return self.multifetch(c, x, body, n, now_ns)
            x.hold_until_ns = 0
        result = self.put_parts(c, parts, &work)
        if result <= 0:
            x.hold_until_ns = 0
            self.forget_parts(c, x)
            c.turn_steps = TURN_STEPS  # the clock is looked at before the next request
        return result

    cdef Parts* begin_parts(self, Conn* c, Exchange* x, int count) noexcept nogil:
        cdef Parts* parts = <Parts*>malloc(sizeof(Parts) + count * sizeof(Found))
        if parts == NULL:
            return NULL
        memset(parts, 0, sizeof(Parts))
        parts.count = count
        parts.at = 2
        parts.total = 2
        parts.waits = True
        answers_take(c, count * sizeof(Found))
        x.parts = parts
        c.incomplete = True
        return parts

    cdef void forget_parts(self, Conn* c, Exchange* x) noexcept nogil:
        """Give back what a MULTIFETCH holds that is under way, if there is one."""
        cdef Parts* parts = x.parts
        cdef int i
        if parts == NULL:
            return
        for i in range(parts.put, parts.looked):
            if parts.found[i].entry >= 0:
                self.reads.unpin(&parts.found[i])
        self.reads.pinned -= parts.pinned
        answers_give(c, parts.count * sizeof(Found))
        x.parts = NULL
        c.incomplete = False
        free(parts)

    cdef int look_at_parts(self, Conn* c, Parts* parts, const uint8_t* body, size_t n, int* work) noexcept nogil:
        """Find and pin the bytes of the parts that have not been looked at; WAIT_TURN when the turn is over."""
        cdef int size
        cdef int32_t limit
        cdef size_t at
        cdef Found* found
        while parts.looked < parts.count:
            if work[0] == 0:
                return WAIT_TURN
            work[0] -= 1
            at = parts.at
            found = &parts.found[parts.looked]
            size = <int16_t>be16(body + at) if n - at >= 2 else -1
            if size < 0 or n - at < <size_t>size + 18:
                return FETCH_MALFORMED
            limit = <int32_t>be32(body + at + 14 + size)
            if self.reads.descriptors_are_short():
                limit = min(limit, 0)  # requests for many do not take all descriptors: this part comes with the next one
            self.reads.find(c, operation_of(self.kinds, FETCH), body + at + 2, size, <int32_t>be32(body + at + 2 + size),
                            OF_KAFKA_07, <int64_t>be64(body + at + 6 + size), limit, found)
            parts.looked += 1
            if found.entry >= 0:
                parts.pinned += self.reads.pin(found)
            if found.problem:
                self.failed(c, found, body + at + 2, size if parts.waits else -1)
                parts.owed = NULL
                parts.waits = False
            else:
                self.reads.look_ahead(found)
                if parts.waits and at_owed_flush(found, be64(body + at + 6 + size)):
                    parts.owed = found.slot
                    parts.owed_at = found.visible
            if parts.total + found.size > MAX_PARTS_BYTES:
                found.size = 0  # this part comes with the next request
            parts.total += 6 + found.size
            parts.at += <size_t>size + 18
        return DONE

    cdef int put_parts(self, Conn* c, Parts* parts, int* work) noexcept nogil:
        """Add the answer, part by part; nothing of it may leave before its end, which may still change its size."""
        cdef int code
        cdef Found* found
        cdef uint8_t* head
        if not parts.has_head:
            head = out_bytes(c, 6)
            if head == NULL:
                return CLOSE
            put32(head, <uint32_t>parts.total)
            put16(head + 4, 0)
            parts.has_head = True
            parts.total_at = c.out_end - 6
        while parts.put < parts.count:
            if work[0] == 0:
                return WAIT_TURN
            work[0] -= 1
            found = &parts.found[parts.put]
            code = code_07(found.problem)
            head = out_bytes(c, 6)
            if head == NULL:
                return CLOSE
            put32(head, <uint32_t>found.size + 2)
            put16(head + 4, <uint16_t>code)
            if self.put_or_fail(c, found, 6, 4) != 0:
                parts.total -= found.size
                put32(c.out + parts.total_at, <uint32_t>parts.total)
            if found.entry >= 0:
                self.reads.unpin(found)
            parts.put += 1
        return DONE

    cdef int held_fetch(self, Conn* c, Exchange* x, const uint8_t* body, size_t n, int32_t correlation,
                        uint64_t now_ns) noexcept nogil:
        """Request 1001: as a fetch, but it waits at the visible end until min_bytes are there or the time is over."""
        cdef Found found
        cdef int size
        cdef int32_t wait_ms, min_bytes, partition
        cdef int64_t offset
        cdef uint8_t* head
        if n < 10:
            return FETCH_MALFORMED
        wait_ms = <int32_t>be32(body)
        min_bytes = <int32_t>be32(body + 4)
        size = <int16_t>be16(body + 8)
        if size < 0 or n != <size_t>size + 26:
            return FETCH_MALFORMED
        partition = <int32_t>be32(body + 10 + size)
        offset = <int64_t>be64(body + 14 + size)
        if x.hold_until_ns == 0:
            fl_bump(&self.counters[<int>N_HELD_FETCHES], 1)
            x.hold_until_ns = now_ns
            if wait_ms > 0:
                x.hold_until_ns += min(<uint64_t>wait_ms, self.max_wait_ms) * 1000000
        while True:
            self.reads.find(c, operation_of(self.kinds, FETCH), body + 10, size, partition, OF_KAFKA_07, offset,
                            <int32_t>be32(body + 22 + size), &found)
            if found.cold and self.read_ahead(c, x, &found):
                return WAIT_JOB
            if found.problem or min_bytes <= 0 or now_ns >= x.hold_until_ns or c.leaving:
                break
            if found.slot == NULL:
                enter(x, HOLDING)
                if self.reads.await_partition(body + 10, size, partition):
                    return WAIT_VISIBLE
            elif found.ahead < <uint64_t>min_bytes:
                enter(x, HOLDING)
                if self.reads.await_visible(found.slot, found.visible):
                    return WAIT_VISIBLE
            else:
                break
            # something moved while we said that we wait: look again
        x.hold_until_ns = 0
        if found.problem:
            self.failed(c, &found, body + 10, size)
        else:
            self.reads.look_ahead(&found)
        head = out_bytes(c, 26)
        if head == NULL:
            return CLOSE
        put32(head, <uint32_t>found.size + 22)
        put32(head + 4, <uint32_t>correlation)
        put16(head + 8, <uint16_t>code_of(found.problem))
        put64(head + 10, found.watermark)
        put64(head + 18, found.log_start)
        self.put_or_fail(c, &found, 26, 8)
        return DONE

"""FETCH, MULTIFETCH and the held fetch: find the span, put sizes and errors in front, leave the bytes to sendfile.

Source: Kafka 0.7.2 for requests 1 and 2 (one segment per fetch, empty bodies on errors); the held fetch is fastlog's.
"""

from libc.errno cimport EAGAIN, EMFILE, ENFILE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fastlog.log._arena cimport (
    FL_STATE_NO_FLUSH, FL_STATE_OFFLINE, FL_WHY_ROOM, N_BYTES_OUT, N_FAILED_FETCH, N_HELD_FETCHES, N_READ_AHEAD,
    Arena, fl_ask, fl_ask_once, fl_bump, fl_cell_at, fl_end, fl_end_read, fl_load, fl_or, fl_slot,
    fl_slot_at, fl_wake_flusher,
)
from fastlog.log._files cimport AT_HOLD_LOOKED, AT_HOLD_NOBODY, failpoint, file_pread, file_pread_nowait
from fastlog.log.formats._table cimport ENTRY_BEGINS, ENTRY_UNREADABLE, format_of
from fastlog.log._segments cimport LOCATE_EMPTY, LOCATE_OUT_OF_RANGE, LOCATED, Place, SegmentFiles, locate
from fastlog.workers._authorizer cimport Authorizer, is_allowed
from fastlog.workers.net._bytes cimport be16, be32, be64, put16, put32, put64
from fastlog.workers.kafka07._kinds cimport FETCH, Kinds, operation_of
from fastlog.workers.net._connection cimport (
    PARK_HELPER, PARK_HOLD, PARK_TURN, TURN_STEPS, Conn, Span, answer_admitted, out_bytes, out_file, out_give_back,
)
from fastlog.workers.net._helper cimport HELP_READ_AHEAD, QUEUE_DISK, READ_AHEAD_BYTES, Helper
from fastlog.workers._partitions cimport RESOLVE_ABSENT, RESOLVE_INVALID_TOPIC, RESOLVED, TO_READ, Topics
from fastlog.workers._unreadable cimport Unreadable

cdef enum:
    PEEK_BYTES = 4096
    # an answer this small is read and sent in one call: cheaper than a header and a sendfile
    COPY_BYTES = 16 << 10
    ANSWERS_AHEAD = 32  # this near the visible end, counted in answers like the last one, a reader has the next flush begin
    COPY_IN_ALL = 256 << 10  # of a MULTIFETCH: many parts may ask for the same few bytes
    TURN_PARTS = 512  # of a MULTIFETCH: looked at, or put into the answer, before others have a turn
    MAX_SET_BYTES = 0x7fffff00  # an answer's size is a signed 32-bit number
    MAX_PARTS_BYTES = 0x7ff00000  # the same, with room for the heads of 32767 parts
    OWED_FLUSH_NS = 5000000000  # how long a request of 0.7 waits at most for a flush that 0.7.2 would have done
    TIME_LATEST = -1            # of OFFSETS
    CODE_UNKNOWN = -1
    CODE_OUT_OF_RANGE = 1
    CODE_INVALID_MESSAGE = 2
    CODE_INVALID_FETCH_SIZE = 4
    CODE_OFFLINE = 101
    CODE_DENIED = 106


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
    return found.slot != NULL and found.code == 0 and offset == found.watermark and flush_owed(found.slot)


cdef class Fetches:
    """Answers fetches of one processor; its loop's thread only."""

    def __cinit__(self, Arena arena, SegmentFiles files, Authorizer authorizer, Kinds kinds, Topics topics, Helper helper, int process,
                  services, max_wait_ms):
        self.arena = arena
        self.authorizer = authorizer
        self.kinds = kinds
        self.files = files
        self.topics = topics
        self.helper = helper
        self.unreadable = Unreadable(arena, files, process, services)
        self.process = process
        self.counters = fl_cell_at(arena.header, process).counters
        self.max_wait_ms = max_wait_ms
        self.peek = <uint8_t*>malloc(PEEK_BYTES)
        if self.peek == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.peek)

    cdef void look(self, Conn* c, const uint8_t* name, int size, int32_t partition, int64_t offset, int32_t max_bytes,
                   Found* out) noexcept nogil:
        """Find the bytes one fetch gets, at most to the end of their segment and never past the visible end.

        Every kind of fetch comes here, for each of its parts: here it is authorized.
        """
        cdef Place place
        cdef fl_end visible
        cdef uint64_t at, readable
        cdef int r
        out.code = 0
        out.entry = -1
        out.size = 0
        out.cold = False
        out.watermark = out.visible = out.ahead = out.log_start = 0
        if not is_allowed(self.authorizer, c, operation_of(self.kinds, FETCH), name, size):
            out.slot = NULL
            out.watermark = out.log_start = <uint64_t>-1
            out.code = CODE_DENIED
            return
        r = self.topics.resolve(name, size, &partition, TO_READ, &out.slot)
        if r == RESOLVED:
            out.log_start = fl_load(&out.slot.log_start)
            fl_end_read(&out.slot.visible_end, out.slot.visible_ends, &visible)
            out.watermark = visible.offset
            out.visible = visible.position
        elif r != RESOLVE_ABSENT:
            out.watermark = out.log_start = <uint64_t>-1
        if r == RESOLVE_INVALID_TOPIC:
            out.code = RESOLVE_INVALID_TOPIC
        elif max_bytes < 0 and (r == RESOLVED or r == RESOLVE_ABSENT):
            out.code = CODE_INVALID_FETCH_SIZE
        elif r == RESOLVE_ABSENT:
            out.slot = NULL
        elif r != RESOLVED:
            out.code = r
        elif fl_load(&out.slot.state) & FL_STATE_OFFLINE:
            out.code = CODE_OFFLINE
        else:
            r = LOCATE_OUT_OF_RANGE
            if offset >= 0:
                r = locate(self.arena.header, out.slot, <uint64_t>offset, &visible, &place)
                out.watermark = visible.offset
                out.visible = visible.position
            if r == LOCATE_OUT_OF_RANGE:
                out.code = CODE_OUT_OF_RANGE
                if offset > <int64_t>out.watermark and (fl_load(&out.slot.state) >> 8 & 0xff) == FL_WHY_ROOM:
                    out.code = CODE_OFFLINE  # it is there, and may have been read: nobody is to begin anew elsewhere
            elif r == LOCATED:
                at = place.start + place.position
                out.ahead = visible.position - at
                if max_bytes == 0:
                    return
                out.entry = self.files.acquire(out.slot, place.index, place.base)
                if out.entry < 0:
                    # a segment that is gone was retired between the look-up and the open
                    out.code = CODE_UNKNOWN
                    if fl_load(&out.slot.table_head) > place.index:
                        out.code = CODE_OUT_OF_RANGE
                    else:
                        self.unreadable.not_opened(out.slot, place.base, place.position, -out.entry)
                    out.entry = -1
                    return
                out.position = place.position
                out.size = min(<uint64_t>min(max_bytes, <int32_t>MAX_SET_BYTES), place.end - at)
                readable = self.unreadable.cut(out.slot, at, place.end - at)
                out.size = min(out.size, readable)
                # what check_boundary may look at is not cut by max_bytes
                out.code = self.check_boundary(out, place.end - at, readable)
                if out.code:
                    out.entry = -1
                    out.size = 0

    cdef int check_boundary(self, Found* found, uint64_t available, uint64_t readable) noexcept nogil:
        """Whether a message starts at the place that was asked for: 0 or error code 2; -1 when it cannot be read.

        0.7 serves an offset inside a message as it is, and the client reads garbage lengths; one look at the first entry
        is cheap. Nothing is looked at when the bytes are not in memory: ``cold`` is set.
        """
        cdef uint64_t want = min(available, <uint64_t>PEEK_BYTES)
        cdef int64_t r = file_pread_nowait(self.files.fd(found.entry), self.peek, want, found.position)
        cdef int status
        if r == -EAGAIN:
            found.cold = True
            return 0
        if r < 0:
            r = file_pread(self.files.fd(found.entry), self.peek, want, found.position)
        if r < 0:
            self.unreadable.failed(found.entry, found.position, <int>-r)
            return CODE_UNKNOWN
        status = format_of(found.slot.format).begins(self.peek, <uint64_t>r, available, readable)
        if status == ENTRY_UNREADABLE:
            return CODE_UNKNOWN
        return 0 if status == ENTRY_BEGINS else CODE_INVALID_MESSAGE

    cdef int read_ahead(self, Conn* c, Found* found) noexcept nogil:
        """Have the beginning of the span read into memory and look at the request again afterwards; FETCH_DONE: it
        cannot be. The rest is read when its turn to be sent comes."""
        if c.helper_done and c.helper_kind == HELP_READ_AHEAD:
            # it was read a moment ago and is gone again: the machine is short of memory
            c.helper_done = 0
            return FETCH_DONE
        if self.queue_read(c, found.entry, found.position, found.size) != 0:
            return FETCH_DONE
        fl_bump(&self.counters[<int>N_READ_AHEAD], 1)
        c.park |= PARK_HELPER
        return FETCH_PARKED

    cdef int queue_read(self, Conn* c, int entry, uint64_t position, uint64_t size) noexcept nogil:
        """Queue the read of at most READ_AHEAD_BYTES of a segment, pinned until it is done; -1: it cannot be."""
        cdef fl_slot* s = fl_slot_at(self.arena.header, self.files.entries[entry].slot)
        c.helper_kind = HELP_READ_AHEAD
        c.helper_entry = entry
        self.files.pin(entry)
        if self.helper.submit(c, <int>QUEUE_DISK + <int>s.directory, self.files.fd(entry), position,
                              min(size, <uint64_t>READ_AHEAD_BYTES), NULL) != 0:
            self.files.unpin(entry)
            c.helper_entry = -1
            return -1
        return 0

    cdef int put(self, Conn* c, Found* found) noexcept nogil:
        """Add the set's bytes to the answer: a copy when it is small and in memory, else a span for sendfile.

        0, or -1 without memory or when the file cannot be read.
        """
        cdef uint8_t* room
        cdef uint64_t done = 0
        cdef int64_t r
        if found.size == 0:
            return 0
        if found.size > COPY_BYTES or found.cold or c.out_end - c.out_start > COPY_IN_ALL \
                or c.pool.answers > c.pool.budget:
            fl_bump(&self.counters[<int>N_BYTES_OUT], found.size)
            return out_file(c, self.files, found.entry, found.position, found.size)
        room = out_bytes(c, found.size)
        if room == NULL:
            return -1
        while done < found.size:
            r = file_pread(self.files.fd(found.entry), room + done, found.size - done, found.position + done)
            if r <= 0:
                # room that nobody filled must not leave
                out_give_back(c, found.size)
                self.unreadable.failed(found.entry, found.position + done, <int>-r)
                return -1
            done += <uint64_t>r
        fl_bump(&self.counters[<int>N_BYTES_OUT], found.size)
        return 0

    cdef int put_or_fail(self, Conn* c, Found* found, uint32_t head_bytes, uint32_t code_at) noexcept nogil:
        """``put`` behind a head of ``head_bytes``, which becomes an error answer when the bytes cannot be read: -1 then."""
        cdef uint8_t* head
        if self.put(c, found) != 0:
            head = c.out + c.out_end - head_bytes
            put32(head, head_bytes - 4)
            put16(head + code_at, <uint16_t>CODE_UNKNOWN)
            fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
            return -1
        return 0

    cdef bint hold(self, Conn* c, fl_slot* s, uint64_t visible, uint64_t now_ns) noexcept nogil:
        """Whether a request of 0.7 is to wait until the visible end moves from here; the connection is parked then.

        0.7.2 flushes within the produce that completes ``log.flush.interval`` messages: who produces and then asks
        sees them. Here the flusher does it meanwhile, so whoever asks waits for what it owes, for a bounded time.
        """
        if c.leaving or fl_load(&s.state) & FL_STATE_NO_FLUSH:
            return False
        if c.hold_until_ns == 0:
            c.hold_until_ns = now_ns + <uint64_t>OWED_FLUSH_NS
        elif now_ns >= c.hold_until_ns:
            return False
        fl_or(&s.waiters, <uint64_t>1 << self.process)
        fl_ask(&s.demand, 1)
        self.want_flush_now(s)
        if fl_load(&s.visible_end) != visible:
            return False
        c.park |= PARK_HOLD
        return True

    cdef bint hold_offsets(self, Conn* c, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil:
        """Whether OFFSETS is to wait for the log end that it met; ``body`` begins after the request id."""
        cdef int size = <int16_t>be16(body) if n >= 2 else -1
        cdef fl_slot* s = NULL
        cdef uint64_t visible
        if size >= 0 and n >= <size_t>size + 18 and <int64_t>be64(body + 6 + size) == TIME_LATEST:
            s = self.topics.find(body + 2, size, <int32_t>be32(body + 2 + size))
        if s != NULL:
            visible = fl_load(&s.visible_end)
            if c.hold_until_ns == 0:
                c.hold_end = fl_load(&s.log_end) if flush_owed(s) else 0
            while visible < c.hold_end:
                if self.hold(c, s, visible, now_ns):
                    return True
                if fl_load(&s.visible_end) == visible:
                    break  # it waits no longer
                visible = fl_load(&s.visible_end)
        c.hold_until_ns = c.hold_end = 0
        return False

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

    cdef int fetch(self, Conn* c, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil:
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
            self.look(c, body + 2, size, <int32_t>be32(body + 2 + size), <int64_t>be64(body + 6 + size),
                      <int32_t>be32(body + 14 + size), &found)
            if not at_owed_flush(&found, be64(body + 6 + size)):
                break
            if self.hold(c, found.slot, found.visible, now_ns):
                return FETCH_PARKED
            if fl_load(&found.slot.visible_end) == found.visible:
                break  # it waits no longer
        c.hold_until_ns = 0
        if found.cold and self.read_ahead(c, &found) == FETCH_PARKED:
            return FETCH_PARKED
        c.helper_done = 0
        code = found.code if found.code < 100 else CODE_UNKNOWN
        if code:
            fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
        else:
            self.look_ahead(&found, be64(body + 6 + size))
        head = out_bytes(c, 6)
        if head == NULL:
            return FETCH_CLOSE
        put32(head, <uint32_t>found.size + 2)
        put16(head + 4, <uint16_t>code)
        self.put_or_fail(c, &found, 6, 4)
        return FETCH_DONE

    cdef void look_ahead(self, Found* found, uint64_t offset) noexcept nogil:
        """After a fetch without an error: a reader that comes near the visible end has the next flush begin now.

        At that end it would only begin when everything before it is read, and reading would then wait for all that
        was appended meanwhile.
        """
        if found.slot != NULL and found.ahead <= found.size * (ANSWERS_AHEAD + 1):
            self.want_flush(found.slot, found.visible)

    cdef void want_flush(self, fl_slot* s, uint64_t visible) noexcept nogil:
        """Have what is appended behind the visible end flushed soon."""
        if fl_load(&s.log_end) > max(visible, fl_load(&s.flushed_end)) and not fl_load(&s.demand):
            fl_or(&s.demand, 1)
            fl_wake_flusher(self.arena.header, self.arena.eventfds, s.index)

    cdef int multifetch(self, Conn* c, const uint8_t* body, size_t n, uint64_t now_ns) noexcept nogil:
        """Request 2: each part has its own error, the outer one is always 0. Of many parts, some in each turn."""
        cdef Parts* parts = <Parts*>c.parts
        cdef int count, result, work = TURN_PARTS
        if parts == NULL:
            count = <int16_t>be16(body) if n >= 2 else -1
            if count < 0:
                return FETCH_MALFORMED
            if not answer_admitted(c, <uint64_t>count * (sizeof(Found) + 2 * sizeof(Span))):
                return FETCH_PARKED
            parts = self.begin_parts(c, count)
            if parts == NULL:
                return FETCH_CLOSE
        if parts.looked < parts.count:
            result = self.look_at_parts(c, parts, body, n, &work)
            if result != FETCH_DONE:
                if result != FETCH_PARKED:
                    c.hold_until_ns = 0
                    self.forget_parts(c)
                return result
            if parts.owed != NULL and parts.total == 2 + 6 * <uint64_t>parts.count:
                # nothing to pin: no part has a byte
                if self.hold(c, parts.owed, parts.owed_at, now_ns):
                    self.forget_parts(c)
                    return FETCH_PARKED
                if fl_load(&parts.owed.visible_end) != parts.owed_at:
                    self.forget_parts(c)
                    return self.multifetch(c, body, n, now_ns)
            c.hold_until_ns = 0
        result = self.put_parts(c, parts, &work)
        if result != FETCH_PARKED:
            c.hold_until_ns = 0
            self.forget_parts(c)
            c.turn_steps = TURN_STEPS  # the clock is looked at before the next request
        return result

    cdef Parts* begin_parts(self, Conn* c, int count) noexcept nogil:
        cdef Parts* parts = <Parts*>malloc(sizeof(Parts) + count * sizeof(Found))
        if parts == NULL:
            return NULL
        memset(parts, 0, sizeof(Parts))
        parts.count = count
        parts.at = 2
        parts.total = 2
        parts.waits = True
        c.pool.answers += count * sizeof(Found)
        c.parts = parts
        return parts

    cdef void forget_parts(self, Conn* c) noexcept nogil:
        """Give back what a MULTIFETCH holds that is under way, if there is one."""
        cdef Parts* parts = <Parts*>c.parts
        cdef int i
        if parts == NULL:
            return
        for i in range(parts.put, parts.looked):
            if parts.found[i].entry >= 0:
                self.files.unpin(parts.found[i].entry)
        self.pinned -= parts.pinned
        c.pool.answers -= parts.count * sizeof(Found)
        c.parts = NULL
        free(parts)

    cdef int next_turn(self, Conn* c) noexcept nogil:
        c.park |= PARK_TURN
        return FETCH_PARKED

    cdef int look_at_parts(self, Conn* c, Parts* parts, const uint8_t* body, size_t n, int* work) noexcept nogil:
        """Find and pin the bytes of the parts that have not been looked at; FETCH_PARKED when the turn is over."""
        cdef int size
        cdef int32_t limit
        cdef size_t at
        cdef Found* found
        while parts.looked < parts.count:
            if work[0] == 0:
                return self.next_turn(c)
            work[0] -= 1
            at = parts.at
            found = &parts.found[parts.looked]
            size = <int16_t>be16(body + at) if n - at >= 2 else -1
            if size < 0 or n - at < <size_t>size + 18:
                return FETCH_MALFORMED
            limit = <int32_t>be32(body + at + 14 + size)
            if self.pinned >= self.files.capacity // 2:
                limit = min(limit, 0)  # requests for many do not take all descriptors: this part comes with the next one
            self.look(c, body + at + 2, size, <int32_t>be32(body + at + 2 + size), <int64_t>be64(body + at + 6 + size),
                      limit, found)
            parts.looked += 1
            if found.entry >= 0:
                if self.files.entries[found.entry].pins == 0:
                    parts.pinned += 1
                    self.pinned += 1
                self.files.pin(found.entry)
            if found.code:
                fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
                parts.owed = NULL
                parts.waits = False
            else:
                self.look_ahead(found, be64(body + at + 6 + size))
                if parts.waits and at_owed_flush(found, be64(body + at + 6 + size)):
                    parts.owed = found.slot
                    parts.owed_at = found.visible
            if parts.total + found.size > MAX_PARTS_BYTES:
                found.size = 0  # this part comes with the next request
            parts.total += 6 + found.size
            parts.at += <size_t>size + 18
        return FETCH_DONE

    cdef int put_parts(self, Conn* c, Parts* parts, int* work) noexcept nogil:
        """Add the answer, part by part; nothing of it may leave before its end, which may still change its size."""
        cdef int code
        cdef Found* found
        cdef uint8_t* head
        if not parts.has_head:
            head = out_bytes(c, 6)
            if head == NULL:
                return FETCH_CLOSE
            put32(head, <uint32_t>parts.total)
            put16(head + 4, 0)
            parts.has_head = True
            parts.total_at = c.out_end - 6
        while parts.put < parts.count:
            if work[0] == 0:
                return self.next_turn(c)
            work[0] -= 1
            found = &parts.found[parts.put]
            code = found.code if found.code < 100 else CODE_UNKNOWN
            head = out_bytes(c, 6)
            if head == NULL:
                return FETCH_CLOSE
            put32(head, <uint32_t>found.size + 2)
            put16(head + 4, <uint16_t>code)
            if self.put_or_fail(c, found, 6, 4) != 0:
                parts.total -= found.size
                put32(c.out + parts.total_at, <uint32_t>parts.total)
            if found.entry >= 0:
                self.files.unpin(found.entry)
            parts.put += 1
        return FETCH_DONE

    cdef int held_fetch(self, Conn* c, const uint8_t* body, size_t n, int32_t correlation, uint64_t now_ns) noexcept nogil:
        """Request 1001: as a fetch, but it waits at the visible end until min_bytes are there or the time is over."""
        cdef Found found
        cdef int size
        cdef int32_t wait_ms, min_bytes
        cdef int64_t offset
        cdef uint64_t waiting
        cdef uint8_t* head
        if n < 10:
            return FETCH_MALFORMED
        wait_ms = <int32_t>be32(body)
        min_bytes = <int32_t>be32(body + 4)
        size = <int16_t>be16(body + 8)
        if size < 0 or n != <size_t>size + 26:
            return FETCH_MALFORMED
        offset = <int64_t>be64(body + 14 + size)
        if c.hold_until_ns == 0:
            fl_bump(&self.counters[<int>N_HELD_FETCHES], 1)
            c.hold_until_ns = now_ns
            if wait_ms > 0:
                c.hold_until_ns += min(<uint64_t>wait_ms, self.max_wait_ms) * 1000000
        self.look(c, body + 10, size, <int32_t>be32(body + 10 + size), offset, <int32_t>be32(body + 22 + size), &found)
        if found.cold and self.read_ahead(c, &found) == FETCH_PARKED:
            return FETCH_PARKED
        c.helper_done = 0
        waiting = 0
        if found.code == 0 and min_bytes > 0 and now_ns < c.hold_until_ns and not c.leaving:
            if found.slot == NULL:
                waiting = 1
            elif found.ahead < <uint64_t>min_bytes:
                waiting = 1
        if waiting:
            c.park |= PARK_HOLD
            if found.slot == NULL:
                failpoint(AT_HOLD_NOBODY)
                fl_ask(&self.arena.header.create_waiters, <uint64_t>1 << self.process)
                self.topics.learn()
                if self.topics.find(body + 10, size, <int32_t>be32(body + 10 + size)) == NULL:
                    return FETCH_PARKED
            else:
                failpoint(AT_HOLD_LOOKED)
                if not fl_load(&found.slot.waiters) & (<uint64_t>1 << self.process):
                    fl_or(&found.slot.waiters, <uint64_t>1 << self.process)
                # where nothing is unflushed now, the next append wakes the flusher at once
                fl_ask_once(&found.slot.demand, 1)
                self.want_flush_now(found.slot)
                if fl_load(&found.slot.visible_end) == found.visible:
                    return FETCH_PARKED
            # something moved while we said that we wait: look again
            c.park &= ~(<int>PARK_HOLD)
            return self.held_fetch(c, body, n, correlation, now_ns)
        c.hold_until_ns = 0
        if found.code:
            fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
        else:
            self.look_ahead(&found, <uint64_t>offset)
        head = out_bytes(c, 26)
        if head == NULL:
            return FETCH_CLOSE
        put32(head, <uint32_t>found.size + 22)
        put32(head + 4, <uint32_t>correlation)
        put16(head + 8, <uint16_t>found.code)
        put64(head + 10, found.watermark)
        put64(head + 18, found.log_start)
        self.put_or_fail(c, &found, 26, 8)
        return FETCH_DONE

    cdef void want_flush_now(self, fl_slot* s) noexcept nogil:
        """After demand was set: an append that did not see it yet has left unflushed bytes, so wake the flusher."""
        if fl_load(&s.log_end) > fl_load(&s.flushed_end):
            fl_wake_flusher(self.arena.header, self.arena.eventfds, s.index)

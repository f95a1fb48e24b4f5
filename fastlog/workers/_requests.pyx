"""What a processor does per request: frames in, appends and answers out, on raw buffers.

Produce requests that arrive in one read are gathered into one write per partition. Gathering never changes results: a
request that is refused ends the runs before it, what precedes it is written and stays, the refused one leaves nothing.
Python is called for what is rare: the first message of a partition, compressed sets, offsets, metadata, errors. What
reads or makes files, or may take long, is called in the helper thread.

Source: Kafka 0.7.2 for requests 0-4, down to which of them close the connection; 1000-1005 are fastlog's own.
"""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from fastlog._segment cimport SCAN_OK, SCAN_TAIL, SCAN_TOO_LARGE, Scan, scan_set
from fastlog.log._append cimport (
    APPEND_BUSY, APPEND_FAILED, APPEND_FULL, APPEND_OFFLINE, APPENDED, Appended, Appender,
)
from fastlog.log._arena cimport (
    FL_FLUSHER, FL_STATE_OFFLINE, FL_STATE_READ_ONLY, N_APPEND_WAITS, N_BYTES_IN, N_FAILED_PRODUCE, N_FETCH, N_INFLATED,
    N_INVALID_MESSAGE, N_INVALID_REQUEST, N_MESSAGES_IN, N_OFFSETS, N_OWN, N_PRODUCE, N_STRANGERS, N_SUSPICIOUS,
    N_TOO_LARGE, Arena, fl_bump, fl_cell_at, fl_fence, fl_load, fl_mark_dirty, fl_monotonic_ns, fl_or, fl_slot, fl_slot_at,
    fl_store, fl_wake,
)
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers._bytes cimport be16, be32, be64, put16, put32, put64
from fastlog.workers._connection cimport (
    ACK_PENDING, ACK_READY, ACK_WAIT_FLUSH, MAX_RUNS, NO_ACK, PARK_ACKS, PARK_CREATE, PARK_HELPER, PARK_LOCK, PARK_SPACE,
    RUN_PIECES, STAGE_BYTES, Ack, Conn, Pool, Run, ack_at, ack_push, out_bytes, out_enough, run_give, run_take,
)
from fastlog.workers._fetch cimport FETCH_MALFORMED, Fetches
from fastlog.workers._helper cimport (
    ANSWER_AGAIN, ANSWER_MADE, CREATE_AGAIN, CREATE_REFUSED, HELP_ANSWER, HELP_CREATE, HELP_INFLATE, Helper,
)
from fastlog.workers._topics cimport RESOLVE_ABSENT, RESOLVE_WRONG_PARTITION, RESOLVED, TO_PRODUCE, Topics

cdef enum Kind:
    PRODUCE = 0
    FETCH = 1
    MULTIFETCH = 2
    MULTIPRODUCE = 3
    OFFSETS = 4
    TODAYS_API_VERSIONS = 18
    ACKED_PRODUCE = 1000
    HELD_FETCH = 1001
    METADATA = 1002
    CUT_POINTS = 1003
    LOCAL_READ = 1004
    CREATE_TOPIC = 1005

# What a request kind needs from a principal. A kind without a row is refused by the gate.
cdef enum Right:
    RIGHT_NONE = 0
    RIGHT_READ = 1
    RIGHT_WRITE = 2
    RIGHT_DESCRIBE = 3
    RIGHT_CREATE = 4

cdef enum:
    OWN_VERSION = 1
    OWED_ACKS = 4096             # answers one connection may be owed before its requests wait
    RING_PLACE = 0x7FFFFFFF      # of an answer's number: what finds it, and never NO_ACK
    MAX_OWN_BYTES = 1 << 20      # a request that Python decodes is no longer than this
    MAX_OFFSETS_BYTES = 2 + 32767 + 16
    INFLATE_NS = 10000000        # inflating on the loop's thread in one turn; more of it is the helper's
    PRODUCE_ACK_FIELDS = 23      # id to sequence, before the topic
    NEED_COMMIT = 100            # part: write what is gathered first, then come again
    COMMIT_NOW = 101             # part: taken, but its bytes stand in the buffer: write before going on
    CODE_INVALID_MESSAGE = 2
    CODE_OFFLINE = 101
    CODE_TOO_LARGE = 102
    CODE_STORAGE = 103
    CODE_VERSION = 104
    CODE_FEATURE = 105
    CODE_DENIED = 106
    CODE_MALFORMED = 107


cdef Right right_of(int kind) noexcept nogil:
    if kind == PRODUCE or kind == MULTIPRODUCE or kind == ACKED_PRODUCE:
        return RIGHT_WRITE
    if kind == FETCH or kind == MULTIFETCH or kind == HELD_FETCH or kind == CUT_POINTS or kind == LOCAL_READ:
        return RIGHT_READ
    if kind == OFFSETS or kind == METADATA:
        return RIGHT_DESCRIBE
    if kind == CREATE_TOPIC:
        return RIGHT_CREATE
    return RIGHT_NONE


cdef class Requests:
    """Handles the requests of one processor's connections; its loop's thread only.

    ``control`` is the processor's Python side, see ``Control``.
    """

    def __cinit__(self, Arena arena, SegmentFiles files, int process, control, max_message, max_request, max_wait_ms,
                  memory_bytes, bint trace):
        self.arena = arena
        self.files = files
        self.process = process
        self.control = control
        self.counters = fl_cell_at(arena.header, process).counters
        self.appender = Appender(arena, files, process)
        self.topics = Topics(arena, control)
        self.helper = Helper(arena, process, control.count_deep, control.answer_off_loop,
                             control.create_partition)
        self.fetches = Fetches(arena, files, self.topics, self.helper, process, max_wait_ms)
        self.max_message = max_message
        self.max_request = max_request
        self.pool.budget = memory_bytes
        self.trace = trace

    def take_over(self):
        """At start: finish what a predecessor in this place left in the middle of an append, if it did."""
        cdef uint64_t held = fl_load(self.appender.holding)
        cdef fl_slot* s
        if held:
            s = self.arena.slot(held - 1)
            if self.appender.lock(s) == 0:
                self.appender.unlock(s)
            fl_store(self.appender.holding, 0)

    cdef void report(self, Conn* c, const char* reason, int detail) noexcept nogil:
        """Tell Python's log why something was refused; it writes identical lines at most once in a while."""
        with gil:
            try:
                self.control.report(c.fd, reason.decode(), detail)
            except Exception as error:
                self.control.unexpected(error)

    cdef bint gate(self, Conn* c, int kind) noexcept nogil:
        """The one place that every request kind passes: whether this connection's principal may make it.

        Principal 0 is anonymous and may do everything that has a row in ``right_of``.
        """
        return c.principal == 0 and right_of(kind) != RIGHT_NONE

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
                self.report(c, "the announced request size is not allowed", size)
                r = FRAME_CLOSE
                break
            if n - at - 4 < <size_t>size:
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
            if self.commit(c) == FRAME_CLOSE:
                return FRAME_CLOSE
        elif c.ack_head != c.ack_tail and self.emit_acks(c) == FRAME_CLOSE:
            return FRAME_CLOSE
        return FRAME_CLOSE if r == FRAME_CLOSE else FRAME_DONE

    cdef int frame(self, Conn* c, uint8_t* p, size_t size, bint own, uint64_t now_ns) noexcept nogil:
        """Handle one frame; ``p`` stands at the request id."""
        cdef int kind = <int16_t>be16(p)
        cdef int32_t correlation
        cdef int r
        if self.trace and not c.resumed:
            with gil:
                self.control.trace(c.fd, kind, size)
        if kind == PRODUCE or kind == MULTIPRODUCE or kind == ACKED_PRODUCE:
            if not self.gate(c, kind):
                self.report(c, "not allowed", kind)
                return FRAME_CLOSE
            return self.produce(c, p, size, kind, own)
        # everything else has an answer, and answers go out in request order
        if c.runs != NULL:
            r = self.commit(c)
            if r != FRAME_DONE:
                return r
        if c.ack_head != c.ack_tail:
            r = self.emit_acks(c)
            if r != FRAME_DONE:
                return r
            if c.ack_head != c.ack_tail:
                c.park |= PARK_ACKS
                return FRAME_PARKED
        if not self.gate(c, kind):
            if kind == TODAYS_API_VERSIONS:
                fl_bump(&self.counters[<int>N_STRANGERS], 1)
                self.report(c, "the client speaks today's Kafka protocol (request 18, ApiVersions); this listener "
                               "speaks Kafka 0.7", kind)
            else:
                fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
                self.report(c, "unknown request kind", kind)
            return FRAME_CLOSE
        if kind < ACKED_PRODUCE:
            if kind == OFFSETS:
                fl_bump(&self.counters[<int>N_OFFSETS], 1)
                return self.offsets_answer(c, p + 2, min(size - 2, <size_t>MAX_OFFSETS_BYTES))
            r = self.fetches.fetch(c, p + 2, size - 2) if kind == FETCH else self.fetches.multifetch(c, p + 2, size - 2)
            if r != FRAME_PARKED:
                fl_bump(&self.counters[<int>N_FETCH], 1)
            return self.malformed(c, kind, "malformed fetch") if r == FETCH_MALFORMED else r
        if size < 8:
            return self.malformed(c, kind, "a request too short for its correlation id")
        correlation = <int32_t>be32(p + 4)
        if be16(p + 2) != OWN_VERSION:
            r = self.own_error(c, kind, correlation, CODE_VERSION)
        elif kind == HELD_FETCH:
            r = self.fetches.held_fetch(c, p + 8, size - 8, correlation, now_ns)
            if r == FETCH_MALFORMED:
                r = self.own_error(c, kind, correlation, CODE_MALFORMED)
        else:
            r = self.answer_off_loop(c, kind, size, correlation)
        if r != FRAME_PARKED:
            fl_bump(&self.counters[<int>N_OWN], 1)
        return r

    cdef bint whole_frame(self, Conn* c) noexcept nogil:
        """Whether the received bytes begin with something to handle: a whole frame, or a size that is refused."""
        cdef size_t left = c.end - c.start
        cdef int32_t size
        if left < 4:
            return False
        size = <int32_t>be32(c.buffer + c.start)
        return size <= 1 or <uint64_t>size > self.max_request or left - 4 >= <size_t>size

    cdef int malformed(self, Conn* c, int kind, const char* reason) noexcept nogil:
        """Count and report a request that has no answer; the connection closes."""
        fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
        self.report(c, reason, kind)
        return FRAME_CLOSE

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

    cdef int offsets_answer(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil:
        """Let Python answer OFFSETS, here and now: old clients ask it after each produce."""
        cdef uint8_t* room
        cdef Py_ssize_t size
        with gil:
            try:
                made = self.control.offsets(<bytes>body[:n])
            except Exception as error:
                self.control.unexpected(error)
                return FRAME_CLOSE
            if made is not None:
                size = len(<bytes>made)
                room = out_bytes(c, size)
                if room == NULL:
                    return FRAME_CLOSE
                memcpy(room, <char*>(<bytes>made), size)
                return FRAME_DONE
        return self.malformed(c, OFFSETS, "malformed request")

    cdef int answer_off_loop(self, Conn* c, int kind, size_t size, int32_t correlation) noexcept nogil:
        """Have the helper thread make the answer to one of fastlog's rare requests, and pass it on."""
        cdef uint8_t* room
        cdef uint8_t* made = c.answer
        cdef int result = FRAME_CLOSE
        if size > MAX_OWN_BYTES:
            return self.own_error(c, kind, correlation, CODE_MALFORMED)
        if not (c.helper_done and c.helper_kind == HELP_ANSWER):
            c.helper_kind = HELP_ANSWER
            c.helper_offset = 0
            c.helper_size = size
            c.helper_done = 0
            c.park |= PARK_HELPER
            return FRAME_PARKED
        c.helper_done = 0
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

    # -- produce -------------------------------------------------------------------------------------------------

    cdef int produce(self, Conn* c, uint8_t* p, size_t size, int kind, bint own) noexcept nogil:
        """Requests 0, 3 and 1000: every part in order; comes back to the part reached when the connection goes on."""
        cdef Ack* ack = NULL
        cdef uint32_t sequence = <uint32_t>NO_ACK
        cdef int name_size, r
        cdef int32_t set_size
        cdef uint8_t* at
        cdef size_t left
        if c.part_state == 0:
            self.begin_part(c)
            if kind == PRODUCE:
                c.parts_left = 1
                c.part_offset = 2
            elif kind == MULTIPRODUCE:
                c.parts_left = <int16_t>be16(p + 2) if size >= 4 else -1
                c.part_offset = 4
                if c.parts_left < 0:
                    return self.malformed(c, kind, "malformed produce")
            else:
                r = self.begin_acked(c, p, size)
                if r != FRAME_DONE or c.parts_left == 0:
                    return r
            fl_bump(&self.counters[<int>N_PRODUCE], 1)
            c.part_state = 1
        if kind == ACKED_PRODUCE:
            sequence = (c.ack_tail - 1) & <uint32_t>RING_PLACE
            ack = ack_at(c, sequence)
        while c.parts_left > 0:
            at = p + c.part_offset
            left = size - c.part_offset
            name_size = <int16_t>be16(at) if left >= 2 else -1
            set_size = -1
            if name_size >= 0 and left >= <size_t>name_size + 10:
                set_size = <int32_t>be32(at + 6 + name_size)
            if set_size < 0 or left - 10 - name_size < <size_t>set_size \
                    or (ack != NULL and left - 10 - name_size != <size_t>set_size):
                c.part_state = 0
                fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
                if ack == NULL:
                    return self.malformed(c, kind, "malformed produce")
                fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
                ack.code = CODE_MALFORMED
                ack.state = ACK_READY
                return FRAME_DONE
            r = self.part(c, at + 2, name_size, <int32_t>be32(at + 2 + name_size), at + 10 + name_size,
                          <size_t>set_size, ack, sequence, own, c.part_offset + 10 + name_size)
            if r == NEED_COMMIT:
                r = self.commit(c)
                if r == FRAME_DONE:
                    continue
                if r == FRAME_CLOSE:
                    self.give_up(c, ack)
                return r
            if r == FRAME_PARKED:
                return r
            c.parts_left -= 1
            c.part_offset += 10 + <size_t>name_size + <size_t>set_size
            self.begin_part(c)
            if r == COMMIT_NOW:
                r = self.commit(c)
                if r == FRAME_PARKED:
                    if c.parts_left == 0:
                        # the frame is done; its bytes stay where they are until the run is written
                        c.part_state = 0
                        return FRAME_DONE
                    return r
            if r == FRAME_CLOSE:
                self.give_up(c, ack)
                return r
        c.part_state = 0
        return FRAME_DONE

    cdef void begin_part(self, Conn* c) noexcept nogil:
        c.deep_count = -2
        c.chosen = -1
        c.helper_done = 0

    cdef void give_up(self, Conn* c, Ack* ack) noexcept nogil:
        """Leave a produce in the middle because the connection closes; an answer it owes must not be waited for."""
        c.part_state = 0
        if ack != NULL and ack.state == ACK_PENDING:
            ack.code = CODE_STORAGE
            ack.state = ACK_READY

    cdef int begin_acked(self, Conn* c, uint8_t* p, size_t size) noexcept nogil:
        """Read the head of an acknowledged produce and owe its answer."""
        cdef Ack* ack
        cdef int acks, code = 0
        c.parts_left = 0
        if size < 8:
            return self.malformed(c, ACKED_PRODUCE, "a request too short for its correlation id")
        if c.ack_tail - c.ack_head >= OWED_ACKS:
            if c.runs != NULL:
                acks = self.commit(c)
                if acks != FRAME_DONE:
                    return acks
            acks = self.emit_acks(c)
            if acks != FRAME_DONE:
                return acks
            if c.ack_tail - c.ack_head >= OWED_ACKS:
                c.park |= PARK_ACKS
                return FRAME_PARKED
        ack = ack_push(c)
        if ack == NULL:
            return FRAME_CLOSE
        fl_bump(&self.counters[<int>N_OWN], 1)
        acks = <int>p[8] if size > 8 else 0
        if be16(p + 2) != OWN_VERSION:
            code = CODE_VERSION
        elif size < PRODUCE_ACK_FIELDS:
            code = CODE_MALFORMED
        elif acks != 1 and acks != 2:
            code = CODE_MALFORMED
        elif be64(p + 9) != <uint64_t>-1 or be16(p + 17) != <uint16_t>0xFFFF or be32(p + 19) != <uint32_t>0xFFFFFFFF:
            code = CODE_FEATURE
        ack.correlation = <int32_t>be32(p + 4)
        ack.flushed = acks == 2
        ack.partition = -1
        ack.base = ack.next = <uint64_t>-1
        ack.code = code
        ack.slot = NULL
        ack.state = ACK_READY if code else ACK_PENDING
        if code == 0:
            c.parts_left = 1
            c.part_offset = PRODUCE_ACK_FIELDS
        else:
            fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
            fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
        return FRAME_DONE

    cdef void refuse(self, Conn* c, Ack* ack, int code, const char* reason, int detail) noexcept nogil:
        """Count and report a refused produce; an acknowledged one gets its code."""
        fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
        if ack != NULL:
            ack.code = code
            ack.state = ACK_READY
        else:
            self.report(c, reason, detail)

    cdef int part(self, Conn* c, const uint8_t* name, int name_size, int32_t partition, uint8_t* data, size_t size,
                  Ack* ack, uint32_t sequence, bint own, size_t frame_offset) noexcept nogil:
        """Check one message set and add it to the run of its partition.

        FRAME_DONE also when a set was dropped and the connection stays open (a too large message, 0.7.2).
        """
        cdef fl_slot* s
        cdef Scan found
        cdef Run* run
        cdef Run* last
        cdef long long count
        cdef int r
        if partition == -1:
            partition = c.chosen
        r = self.topics.resolve(name, name_size, &partition, TO_PRODUCE, &s)
        if r != RESOLVED and r != RESOLVE_ABSENT:
            self.refuse(c, ack, r, "produce to a topic or partition that cannot be", r)
            return FRAME_DONE if ack != NULL else FRAME_CLOSE
        if ack != NULL:
            ack.partition = partition
        if s != NULL and fl_load(&s.state) & (FL_STATE_READ_ONLY | FL_STATE_OFFLINE):
            self.refuse(c, ack, CODE_OFFLINE, "produce to a partition that takes no appends", <int>s.partition)
            return FRAME_DONE if ack != NULL else FRAME_CLOSE
        if size > <size_t>0x7fffffff:
            return FRAME_CLOSE
        scan_set(data, <Py_ssize_t>size, self.max_message, &found)
        if found.status == SCAN_TOO_LARGE:
            fl_bump(&self.counters[<int>N_TOO_LARGE], 1)
            self.refuse(c, ack, CODE_TOO_LARGE, "a message larger than max.message.size was dropped", 0)
            return FRAME_DONE
        if found.status == SCAN_TAIL:
            # 0.7 drops a cut last message silently; whoever waits for an answer is told
            if ack != NULL or (found.valid_bytes == 0 and size >= 4):
                found.status = -1
            else:
                found.status = SCAN_OK
        if found.status != SCAN_OK:
            fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
            self.refuse(c, ack, CODE_INVALID_MESSAGE, "an invalid message", found.status)
            return FRAME_DONE if ack != NULL else FRAME_CLOSE
        count = found.count
        if found.wrappers:
            r = self.deep(c, data, <size_t>found.valid_bytes, frame_offset)
            if r == FRAME_PARKED:
                return r
            if c.deep_count < 0:
                fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
                self.refuse(c, ack, CODE_INVALID_MESSAGE, "an invalid compressed message set", 0)
                return FRAME_DONE if ack != NULL else FRAME_CLOSE
            count = c.deep_count
        if s == NULL:
            # the first message of a partition: only one that is valid makes it
            c.chosen = partition
            r = self.create(c, partition, name_size, frame_offset - 8 - name_size, &s)
            if r == FRAME_PARKED:
                return r
            if r != RESOLVED:
                self.refuse(c, ack, r, "the partition cannot be created", r)
                return FRAME_DONE if ack != NULL else FRAME_CLOSE
        if ack != NULL:
            ack.slot = s
        if found.valid_bytes == 0:
            if ack != NULL:
                ack.base = ack.next = fl_load(&s.log_end)
                ack.state = ACK_READY
            return FRAME_DONE
        if found.suspicious:
            fl_bump(&self.counters[<int>N_SUSPICIOUS], found.suspicious)
        last = NULL
        run = c.runs
        while run != NULL and run.slot != s:
            last = run
            run = run.next
        if run != NULL:
            if run.count == RUN_PIECES or run.data != run.stage or STAGE_BYTES - run.size < <uint64_t>found.valid_bytes:
                return NEED_COMMIT
        else:
            if c.run_count == MAX_RUNS:
                return NEED_COMMIT
            run = run_take(&self.pool, s)
            if run == NULL:
                return FRAME_CLOSE
            if last != NULL:
                last.next = run
            else:
                c.runs = run
            c.run_count += 1
        run.pieces[run.count].size = <uint32_t>found.valid_bytes
        run.pieces[run.count].count = <uint32_t>min(count, <long long>0x7FFFFFFF)
        run.acks[run.count] = sequence
        run.count += 1
        run.size += <uint64_t>found.valid_bytes
        if found.valid_bytes > STAGE_BYTES:
            run.data = data
            return COMMIT_NOW
        memcpy(run.stage + run.size - found.valid_bytes, data, found.valid_bytes)
        return FRAME_DONE

    cdef int create(self, Conn* c, int32_t partition, int name_size, size_t frame_offset, fl_slot** out) noexcept nogil:
        """Have the helper thread make a partition, since that waits for the disk.

        FRAME_PARKED, RESOLVED, or the error code why it cannot be; the topic's name stands at ``frame_offset``.
        """
        cdef long long made = c.created
        if not (c.helper_done and c.helper_kind == HELP_CREATE):
            c.helper_kind = HELP_CREATE
            c.helper_offset = frame_offset
            c.helper_size = name_size
            c.helper_position = partition
            c.helper_done = 0
            c.park |= PARK_HELPER
            return FRAME_PARKED
        c.helper_done = 0
        if made == CREATE_AGAIN:
            c.park |= PARK_CREATE
            return FRAME_PARKED
        if made < 0:
            return RESOLVE_WRONG_PARTITION if made == CREATE_REFUSED else CODE_STORAGE
        out[0] = fl_slot_at(self.arena.header, <uint64_t>made)
        return RESOLVED

    cdef int deep(self, Conn* c, const uint8_t* data, size_t size, size_t frame_offset) noexcept nogil:
        """Count the messages inside compressed sets, here when they inflate to little, else by the helper thread.

        FRAME_DONE with ``deep_count`` set, or FRAME_PARKED.
        """
        cdef const unsigned char[::1] view
        cdef uint64_t began
        if c.helper_done and c.helper_kind == HELP_INFLATE:
            c.helper_done = 0
            return FRAME_DONE
        if c.deep_count != -2:
            return FRAME_DONE
        # many small sets in one turn keep the other connections waiting as long as a large one does
        if self.inflate_ns < INFLATE_NS:
            began = fl_monotonic_ns()
            with gil:
                try:
                    view = <const unsigned char[:size]>data
                    c.deep_count = self.control.count_deep_small(memoryview(view))
                except Exception as error:
                    self.control.unexpected(error)
                    c.deep_count = -1
            self.inflate_ns += fl_monotonic_ns() - began
            if c.deep_count != -2:
                return FRAME_DONE
        fl_bump(&self.counters[<int>N_INFLATED], 1)
        c.helper_kind = HELP_INFLATE
        c.helper_offset = frame_offset
        c.helper_size = size
        c.helper_done = 0
        c.park |= PARK_HELPER
        return FRAME_PARKED

    # -- writing what was gathered ---------------------------------------------------------------------------------

    cdef int commit(self, Conn* c) noexcept nogil:
        """Write the gathered runs; FRAME_DONE all, FRAME_PARKED some must wait, FRAME_CLOSE a write failed.

        A failed write ends its own run: the others were received before the connection closes, and are written.
        """
        cdef Run* run = c.runs
        cdef Run* before = NULL
        cdef Run* after
        cdef int r
        cdef bint failed = False
        c.park &= ~(<int>PARK_LOCK | <int>PARK_SPACE)
        while run != NULL:
            after = run.next
            r = self.commit_run(c, run)
            failed = failed or r == FRAME_CLOSE
            if r != FRAME_PARKED:
                if before != NULL:
                    before.next = after
                else:
                    c.runs = after
                c.run_count -= 1
                run_give(&self.pool, run)
            else:
                before = run
            run = after
        if c.ack_head != c.ack_tail and self.emit_acks(c) == FRAME_CLOSE:
            failed = True
        if failed:
            return FRAME_CLOSE
        return FRAME_DONE if c.runs == NULL else FRAME_PARKED

    cdef int commit_run(self, Conn* c, Run* run) noexcept nogil:
        cdef fl_slot* s = run.slot
        cdef Appended out
        cdef Ack* ack
        cdef int status, i, waited = 0
        cdef uint64_t messages
        cdef uint64_t mine = <uint64_t>1 << self.process
        while run.done < run.count:
            status = self.appender.append(s, run.data + run.done_bytes, run.pieces + run.done, run.count - run.done,
                                          self.offsets, &out)
            messages = 0
            for i in range(out.done):
                messages += run.pieces[run.done + i].count
                if run.acks[run.done + i] != <uint32_t>NO_ACK:
                    ack = ack_at(c, run.acks[run.done + i])
                    ack.base = self.offsets[i]
                    ack.next = self.offsets[i] + run.pieces[run.done + i].size
                    ack.state = ACK_READY
                    if ack.flushed:
                        ack.state = ACK_WAIT_FLUSH
                        # said only now: a demand that stands before the append is cleared by the flush before it
                        fl_or(&s.waiters, mine)
                        fl_or(&s.demand, 1)
                        fl_fence()
                        fl_mark_dirty(self.arena.header, s.index)
                        fl_wake(self.arena.header, self.arena.eventfds, FL_FLUSHER)
            run.done += out.done
            run.done_bytes += out.bytes
            fl_bump(&self.counters[<int>N_MESSAGES_IN], messages)
            fl_bump(&self.counters[<int>N_BYTES_IN], out.bytes)
            if status == APPENDED:
                break
            if status == APPEND_BUSY or status == APPEND_FULL:
                if out.done:
                    waited = 0
                if waited:
                    if status == APPEND_FULL:
                        fl_bump(&self.counters[<int>N_APPEND_WAITS], 1)
                    c.park |= PARK_LOCK if status == APPEND_BUSY else PARK_SPACE
                    return FRAME_PARKED
                # say that we wait, then look once more: what changed in between is not missed
                waited = 1
                fl_or(&s.lock_waiters if status == APPEND_BUSY else &s.waiters, mine)
                fl_fence()
                continue
            # the piece that failed; what precedes it stays
            fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
            if run.acks[run.done] == <uint32_t>NO_ACK:
                if status == APPEND_FAILED:
                    self.report(c, "a write to the log failed", out.error)
                else:
                    self.report(c, "produce to a partition that takes no appends", <int>s.partition)
                for i in range(run.done + 1, run.count):
                    if run.acks[i] != <uint32_t>NO_ACK:
                        ack = ack_at(c, run.acks[i])
                        ack.code = CODE_STORAGE if status == APPEND_FAILED else CODE_OFFLINE
                        ack.state = ACK_READY
                return FRAME_CLOSE
            if status == APPEND_FAILED:
                self.report(c, "a write to the log failed", out.error)
            ack = ack_at(c, run.acks[run.done])
            ack.code = CODE_STORAGE if status == APPEND_FAILED else CODE_OFFLINE
            ack.state = ACK_READY
            run.done_bytes += run.pieces[run.done].size
            run.done += 1
        return FRAME_DONE

    cdef int emit_acks(self, Conn* c) noexcept nogil:
        """Write the answers that are ready, in request order; FRAME_CLOSE without memory."""
        cdef Ack* ack
        cdef uint8_t* head
        cdef uint64_t mine = <uint64_t>1 << self.process
        while c.ack_head != c.ack_tail:
            ack = ack_at(c, c.ack_head)
            if ack.state == ACK_PENDING:
                break
            if ack.state == ACK_WAIT_FLUSH and fl_load(&ack.slot.high_watermark) < ack.next:
                if fl_load(&ack.slot.state) & (FL_STATE_READ_ONLY | FL_STATE_OFFLINE):
                    ack.code = CODE_OFFLINE
                else:
                    if not fl_load(&ack.slot.waiters) & mine:
                        fl_or(&ack.slot.waiters, mine)
                        fl_fence()
                        continue
                    break
            head = out_bytes(c, 30)
            if head == NULL:
                return FRAME_CLOSE
            put32(head, 26)
            put32(head + 4, <uint32_t>ack.correlation)
            put16(head + 8, <uint16_t>ack.code)
            put32(head + 10, <uint32_t>ack.partition)
            put64(head + 14, ack.base if ack.code == 0 else <uint64_t>-1)
            put64(head + 22, ack.next if ack.code == 0 else <uint64_t>-1)
            c.ack_head += 1
        return FRAME_DONE

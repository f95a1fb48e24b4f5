"""Produce requests: their message sets, checked and gathered into one write per partition.

Gathering never changes results: a request that is refused ends the runs before it, what precedes it is written and
stays, the refused one leaves nothing. Python is called for compressed sets that are small; the first message of a
partition and larger sets are the helper thread's.

Source: Kafka 0.7.2 for requests 0 and 3, down to which of them close the connection; 1000 is fastlog's own.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastlog.log._arena cimport (
    FL_STATE_OFFLINE, FL_STATE_READ_ONLY, N_FAILED_PRODUCE, N_INFLATED, N_INVALID_MESSAGE, N_INVALID_REQUEST, N_OWN,
    N_PRODUCE, N_SUSPICIOUS, N_TOO_LARGE, Arena, fl_bump, fl_cell_at, fl_end, fl_end_read, fl_load, fl_monotonic_ns, fl_slot,
)
from fastlog.log.formats._table cimport (
    ENTRIES_CUT, ENTRIES_TOO_LARGE, ENTRIES_WHOLE, FORMAT_OF_NEW, Entries, format_of,
)
from fastlog.workers._authorizer cimport Authorizer, is_allowed
from fastlog.workers.net._bytes cimport be16, be32, be64
from fastlog.workers.net._connection cimport (
    ACK_PENDING, ACK_READY, MAX_RUNS, NO_ACK, PARK_ACKS, PARK_CREATE, PARK_HELPER, RUN_PIECES, STAGE_BYTES, Ack, Conn, Run,
    ack_at, ack_push, run_take, turn_over,
)
from fastlog.workers.net._helper cimport CREATE_AGAIN, CREATE_REFUSED, HELP_CREATE, HELP_INFLATE, QUEUE_CHECK, QUEUE_CREATE
from fastlog.workers.kafka07._kinds cimport ACKED_PRODUCE, CREATE_TOPIC, MULTIPRODUCE, PRODUCE, Kinds, operation_of
from fastlog.workers._writes cimport (
    CODE_DENIED, CODE_FEATURE, CODE_INVALID_MESSAGE, CODE_MALFORMED, CODE_OFFLINE, CODE_STORAGE, CODE_TOO_LARGE, CODE_VERSION,
    FRAME_CLOSE, FRAME_DONE, FRAME_PARKED, Runs,
)
from fastlog.workers._partitions cimport RESOLVE_ABSENT, RESOLVE_WRONG_PARTITION, RESOLVED, TO_PRODUCE, Topics

cdef enum:
    OWED_ACKS = 4096             # answers one connection may be owed before its requests wait
    OWED_OVER_BUDGET = 64        # the same while the memory for answers is used up
    RING_PLACE = 0x7FFFFFFF      # of an answer's number: what finds it, and never NO_ACK
    INFLATE_NS = 10000000        # inflating on the loop's thread in one turn; more of it is the helper's
    PRODUCE_ACK_FIELDS = 23      # id to sequence, before the topic
    NEED_COMMIT = 100            # part: write what is gathered first, then come again
    COMMIT_NOW = 101             # part: taken, but its bytes stand in the buffer: write before going on


cdef class Produces:
    """Handles the produce requests of one processor's connections; its loop's thread only.

    ``services`` is the processor's Python side, see ``Services``.
    """

    def __cinit__(self, Arena arena, Authorizer authorizer, Kinds kinds, Topics topics, Runs runs, int process, services,
                  max_message):
        self.arena = arena
        self.authorizer = authorizer
        self.kinds = kinds
        self.topics = topics
        self.runs = runs
        self.services = services
        self.counters = fl_cell_at(arena.header, process).counters
        self.max_message = max_message

    cdef int malformed(self, Conn* c, int kind, const char* reason) noexcept nogil:
        """Count and report a request that has no answer; the connection closes."""
        fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
        self.runs.report(c, reason, kind)
        return FRAME_CLOSE

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
                r = self.runs.commit(c)
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
                r = self.runs.commit(c)
                if r == FRAME_PARKED:
                    if c.parts_left == 0:
                        # the frame is done; its bytes stay where they are until the run is written
                        c.part_state = 0
                        return FRAME_DONE
                    return r
            if r == FRAME_CLOSE:
                self.give_up(c, ack)
                return r
            if c.parts_left > 0 and turn_over(c):
                return FRAME_PARKED
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
        cdef uint32_t most = OWED_ACKS if c.pool.answers <= c.pool.budget else <uint32_t>OWED_OVER_BUDGET
        c.parts_left = 0
        if size < 8:
            return self.malformed(c, ACKED_PRODUCE, "a request too short for its correlation id")
        if c.ack_tail - c.ack_head >= most:
            if c.runs != NULL:
                acks = self.runs.commit(c)
                if acks != FRAME_DONE:
                    return acks
            acks = self.runs.emit_acks(c)
            if acks != FRAME_DONE:
                return acks
            if c.ack_tail - c.ack_head >= most:
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

    cdef void refuse(self, Conn* c, Ack* ack, int code, const char* reason, int detail, const uint8_t* name, int name_size,
                     int32_t partition) noexcept nogil:
        """Count and report a refused produce; an acknowledged one gets its code. ``reason`` NULL: it is reported."""
        fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
        if ack != NULL:
            ack.code = code
            ack.state = ACK_READY
        elif reason != NULL:
            self.runs.report(c, reason, detail, name, name_size, partition)

    cdef void report_set(self, Conn* c, const uint8_t* name, int name_size, int32_t partition) noexcept nogil:
        with gil:
            try:
                self.services.report_set(c.fd, c.name, <bytes>name[:name_size], partition)
            except Exception as error:
                self.services.unexpected(error)

    cdef int part(self, Conn* c, const uint8_t* name, int name_size, int32_t partition, uint8_t* data, size_t size,
                  Ack* ack, uint32_t sequence, bint own, size_t frame_offset) noexcept nogil:
        """Check one message set and add it to the run of its partition.

        FRAME_DONE also when a set was dropped and the connection stays open (a too large message, 0.7.2).
        """
        cdef fl_slot* s
        cdef Entries found
        cdef Run* run
        cdef Run* last
        cdef fl_end end
        cdef long long count
        cdef int r
        if partition == -1:
            partition = c.chosen
        # before the topic is looked up: whether it is there is told to those who may write to it
        if not is_allowed(self.authorizer, c, operation_of(self.kinds, PRODUCE), name, name_size):
            self.refuse(c, ack, CODE_DENIED, "not authorized to write", CODE_DENIED, name, name_size, partition)
            return FRAME_DONE if ack != NULL else FRAME_CLOSE
        r = self.topics.resolve(name, name_size, &partition, TO_PRODUCE, &s)
        if r != RESOLVED and r != RESOLVE_ABSENT:
            self.refuse(c, ack, r, "produce to a topic or partition that cannot be", r, name, name_size, partition)
            return FRAME_DONE if ack != NULL else FRAME_CLOSE
        if ack != NULL:
            ack.partition = partition
        if s != NULL and fl_load(&s.state) & (FL_STATE_READ_ONLY | FL_STATE_OFFLINE):
            self.refuse(c, ack, CODE_OFFLINE, "produce to a partition that takes no appends", 0, name, name_size, partition)
            return FRAME_DONE if ack != NULL else FRAME_CLOSE
        if size > <size_t>0x7fffffff:
            return FRAME_CLOSE
        format_of(s.format if s != NULL else FORMAT_OF_NEW).validate(data, size, self.max_message, &found)
        if found.status == ENTRIES_TOO_LARGE:
            fl_bump(&self.counters[<int>N_TOO_LARGE], 1)
            self.refuse(c, ack, CODE_TOO_LARGE, "a message larger than max.message.size was dropped",
                        <int>found.next, name, name_size, partition)
            return FRAME_DONE
        if found.status == ENTRIES_CUT:
            # 0.7 drops a cut last message silently; whoever waits for an answer is told
            if ack != NULL or (found.bytes == 0 and size >= 4):
                found.status = -1
            else:
                found.status = ENTRIES_WHOLE
        if found.status != ENTRIES_WHOLE:
            fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
            self.refuse(c, ack, CODE_INVALID_MESSAGE, "an invalid message", found.status, name, name_size, partition)
            return FRAME_DONE if ack != NULL else FRAME_CLOSE
        count = <long long>found.count
        if found.compressed:
            r = self.deep(c, data, <size_t>found.bytes, frame_offset)
            if r == FRAME_PARKED:
                return r
            if c.deep_count < 0:
                fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
                self.report_set(c, name, name_size, partition)
                self.refuse(c, ack, CODE_INVALID_MESSAGE, NULL, 0, name, name_size, partition)
                return FRAME_DONE if ack != NULL else FRAME_CLOSE
            count = c.deep_count
        if s == NULL:
            # the first message of a partition: only one that is valid makes it
            c.chosen = partition
            r = self.create(c, name, partition, name_size, frame_offset - 8 - name_size, &s)
            if r == FRAME_PARKED:
                return r
            if r != RESOLVED:
                self.refuse(c, ack, r, "the partition cannot be created", r, name, name_size, partition)
                return FRAME_DONE if ack != NULL else FRAME_CLOSE
        if ack != NULL:
            ack.slot = s
            ack.life = fl_load(&s.life)
        last = NULL
        run = c.runs
        while run != NULL and (run.slot != s or run.life != fl_load(&s.life)):
            last = run
            run = run.next
        if found.bytes == 0:
            if ack != NULL:
                if run != NULL:
                    return NEED_COMMIT  # its answer speaks of the log behind what this connection sent before
                fl_end_read(&s.log_end, s.log_ends, &end)
                ack.base = ack.next = end.offset
                ack.end = end.position
                self.runs.appended(ack)
            return FRAME_DONE
        if found.suspicious:
            fl_bump(&self.counters[<int>N_SUSPICIOUS], found.suspicious)
        if run != NULL:
            if run.count == RUN_PIECES or run.data != run.stage or STAGE_BYTES - run.size < <uint64_t>found.bytes:
                return NEED_COMMIT
        else:
            if c.run_count == MAX_RUNS:
                return NEED_COMMIT
            run = run_take(&self.runs.pool, s)
            if run == NULL:
                return FRAME_CLOSE
            if last != NULL:
                last.next = run
            else:
                c.runs = run
            c.run_count += 1
        run.pieces[run.count].size = <uint32_t>found.bytes
        run.pieces[run.count].span = <uint32_t>found.span
        run.pieces[run.count].count = <uint32_t>min(count, <long long>0x7FFFFFFF)
        run.acks[run.count] = sequence
        run.count += 1
        run.size += <uint64_t>found.bytes
        if found.bytes > STAGE_BYTES:
            run.data = data
            return COMMIT_NOW
        memcpy(run.stage + run.size - found.bytes, data, found.bytes)
        return FRAME_DONE

    cdef int create(self, Conn* c, const uint8_t* name, int32_t partition, int name_size, size_t frame_offset,
                    fl_slot** out) noexcept nogil:
        """Have the helper thread make a partition, since that waits for the disk.

        FRAME_PARKED, RESOLVED, or the error code why it cannot be; the topic's name stands at ``frame_offset``.
        """
        cdef long long made = c.created
        if not (c.helper_done and c.helper_kind == HELP_CREATE):
            # the other partitions of a topic come with it: they are made when the first message does
            if self.authorizer.has_rule and not self.topics.exists(name, name_size) \
                    and not is_allowed(self.authorizer, c, operation_of(self.kinds, CREATE_TOPIC), name, name_size):
                return CODE_DENIED
            c.helper_kind = HELP_CREATE
            c.helper_queue = QUEUE_CREATE
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
        # looked up, because it may have been deleted since; then it is made once more
        out[0] = self.topics.find(name, name_size, partition)
        if out[0] == NULL:
            return self.create(c, name, partition, name_size, frame_offset, out)
        return RESOLVED

    cdef int deep(self, Conn* c, const uint8_t* data, size_t size, size_t frame_offset) noexcept nogil:
        """Count the messages inside compressed sets, here when they inflate to little, else by the helper thread.

        FRAME_DONE with ``deep_count`` set, or FRAME_PARKED.
        """
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
                    c.deep_count = self.services.count_deep_small(
                        PyMemoryView_FromMemory(<char*>data, <Py_ssize_t>size, PyBUF_READ), c.name
                    )
                except Exception as error:
                    self.services.unexpected(error)
                    c.deep_count = -1
            self.inflate_ns += fl_monotonic_ns() - began
            if c.deep_count != -2:
                return FRAME_DONE
        fl_bump(&self.counters[<int>N_INFLATED], 1)
        c.helper_kind = HELP_INFLATE
        c.helper_queue = QUEUE_CHECK
        c.helper_offset = frame_offset
        c.helper_size = size
        c.helper_done = 0
        c.park |= PARK_HELPER
        return FRAME_PARKED

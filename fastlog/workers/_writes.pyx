"""Writing what was gathered: one append per run, one partition each, and the answers owed to acknowledged produces.

A run is what one connection's produces gathered for one partition; a write that must wait keeps its run and its place.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from fastlog.log._append cimport APPEND_BUSY, APPEND_FAILED, APPEND_FULL, APPEND_GONE, APPENDED, Appended, Appender
from fastlog.log._arena cimport (
    FL_STATE_NO_FLUSH, N_APPEND_WAITS, N_BYTES_IN, N_FAILED_PRODUCE, N_MESSAGES_IN, Arena,
    fl_ask, fl_bump, fl_cell_at, fl_load, fl_may_tell, fl_slot, fl_store, fl_wake_flusher,
)
from fastlog.log._files cimport AT_ACK_WAITS, AT_APPEND_REFUSED, failpoint
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers.net._bytes cimport put16, put32, put64
from fastlog.workers.net._connection cimport (
    ACK_PENDING, ACK_READY, ACK_WAIT_FLUSH, NO_ACK, PARK_LOCK, PARK_SPACE, Ack, Conn, Run, ack_at, out_bytes, run_give,
)


cdef class Runs:
    """Writes the runs of one processor's connections and answers for them; its loop's thread only.

    ``services`` is the processor's Python side, see ``Services``.
    """

    def __cinit__(self, Arena arena, SegmentFiles files, int process, services, memory_bytes):
        self.arena = arena
        self.process = process
        self.services = services
        self.counters = fl_cell_at(arena.header, process).counters
        self.appender = Appender(arena, files, process)
        self.pool.budget = memory_bytes

    def take_over(self):
        """At start: finish what a predecessor in this place left in the middle of an append, if it did."""
        self.appender.take_over()

    cdef void report(self, Conn* c, const char* reason, int detail, const uint8_t* name=NULL, int name_size=0,
                     int32_t partition=-1) noexcept nogil:
        """Tell Python's log why something was refused; it writes lines of a kind about a peer once in a while."""
        with gil:
            try:
                topic = None if name == NULL else <bytes>name[:name_size]
                self.services.report(c.fd, reason.decode(), detail, topic, partition)
            except Exception as error:
                self.services.unexpected(error)

    cdef void write_failed(self, Conn* c, fl_slot* s, int error) noexcept nogil:
        with gil:
            try:
                self.services.write_failed(c.fd, <bytes>(<char*>s.name)[:s.name_bytes], s.partition, error)
            except Exception as raised:
                self.services.unexpected(raised)

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

    cdef void appended(self, Ack* ack) noexcept nogil:
        """The log has what this answer is for: it is ready, or waits for the flush and asks for it."""
        cdef fl_slot* s = ack.slot
        ack.state = ACK_READY
        if ack.flushed and not fl_may_tell(s, ack.end):
            ack.state = ACK_WAIT_FLUSH
            failpoint(AT_ACK_WAITS)
            # said only now: a demand that stands before the append is cleared by the flush before it. That it waits is said
            # where the answer would leave, with another look at the flushed end behind it
            fl_ask(&s.demand, 1)
            fl_wake_flusher(self.arena.header, self.arena.eventfds, s.index)

    cdef int commit_run(self, Conn* c, Run* run) noexcept nogil:
        cdef fl_slot* s = run.slot
        cdef Appended out
        cdef Ack* ack
        cdef int status, i, waited = 0
        cdef uint64_t messages, end
        cdef uint64_t mine = <uint64_t>1 << self.process
        while run.done < run.count:
            status = self.appender.append(s, run.life, run.data + run.done_bytes, run.pieces + run.done, run.count - run.done,
                                          self.offsets, &out)
            messages = 0
            end = out.position
            for i in range(out.done):
                messages += run.pieces[run.done + i].count
                end += run.pieces[run.done + i].size
                if run.acks[run.done + i] != <uint32_t>NO_ACK:
                    ack = ack_at(c, run.acks[run.done + i])
                    ack.base = self.offsets[i]
                    ack.next = self.offsets[i] + run.pieces[run.done + i].span
                    ack.end = end
                    self.appended(ack)
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
                failpoint(AT_APPEND_REFUSED)
                waited = 1
                fl_ask(&s.lock_waiters if status == APPEND_BUSY else &s.waiters, mine)
                continue
            if status == APPEND_GONE:
                # as if it had come before the deletion, for whoever does not ask
                for i in range(run.done, run.count):
                    if run.acks[i] != <uint32_t>NO_ACK:
                        ack = ack_at(c, run.acks[i])
                        ack.code = CODE_GONE
                        ack.state = ACK_READY
                break
            # the piece that failed; what precedes it stays
            fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
            if run.acks[run.done] == <uint32_t>NO_ACK:
                if status == APPEND_FAILED:
                    self.write_failed(c, s, out.error)
                else:
                    self.report(c, "produce to a partition that takes no appends", 0, s.name, <int>s.name_bytes,
                                <int32_t>s.partition)
                for i in range(run.done + 1, run.count):
                    if run.acks[i] != <uint32_t>NO_ACK:
                        ack = ack_at(c, run.acks[i])
                        ack.code = CODE_STORAGE if status == APPEND_FAILED else CODE_OFFLINE
                        ack.state = ACK_READY
                return FRAME_CLOSE
            if status == APPEND_FAILED:
                self.write_failed(c, s, out.error)
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
        cdef bint told, lives
        while c.ack_head != c.ack_tail:
            ack = ack_at(c, c.ack_head)
            if ack.state == ACK_PENDING:
                break
            if ack.state == ACK_WAIT_FLUSH:
                told = fl_may_tell(ack.slot, ack.end)
                # in this order: the ends of the slot's next life are above all of this one
                lives = fl_load(&ack.slot.life) == ack.life
                if told and lives:
                    pass
                elif fl_load(&ack.slot.state) & FL_STATE_NO_FLUSH:
                    ack.code = CODE_OFFLINE
                elif not lives:
                    ack.code = CODE_GONE
                else:
                    if not fl_load(&ack.slot.waiters) & mine:
                        fl_ask(&ack.slot.waiters, mine)
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

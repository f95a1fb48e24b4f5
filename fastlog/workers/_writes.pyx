"""Writing what was produced: sets are gathered into runs, one partition each, and a run is one append.

Gathering never changes results: whoever refuses a request in the middle commits the runs before it, so that what precedes
it is written. A write that must wait keeps its run and its place.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fastlog.log._append cimport (
    APPEND_BUSY, APPEND_DUPLICATE, APPEND_FAILED, APPEND_FULL, APPEND_GONE, APPEND_OLD_EPOCH, APPENDED, Appended,
    Appender,
)
from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport (
    FL_STATE_NO_FLUSH, fl_ask, fl_bump, fl_cell_at, fl_end, fl_end_read, fl_load, fl_may_tell, fl_slot, fl_wake_flusher,
    fl_wall_ms,
)
from fastlog.log._shared_memory cimport (
    N_APPEND_WAITS, N_BYTES_IN, N_DUPLICATES, N_FAILED_PRODUCE, N_MESSAGES_IN, N_OUT_OF_SEQUENCE, N_SUSPICIOUS,
)
from fastlog.log._files cimport AT_ACK_WAITS, AT_APPEND_REFUSED, failpoint
from fastlog.log._segments cimport SegmentFiles
from fastlog.log.formats._batches cimport stamp_append_time
from fastlog.log.formats._table cimport Entries
from fastlog.workers._partitions cimport PROBLEM_EPOCH, PROBLEM_OFFLINE, PROBLEM_PARTITION, PROBLEM_SEQUENCE, PROBLEM_STORAGE
from fastlog.workers._reports cimport Reports
from fastlog.workers.net._connection cimport WAIT_LOCK, WAIT_SPACE, Conn, answers_give, answers_take, keeps
from fastlog.workers.net._slot_waits cimport SlotWaits

cdef enum:
    SPARE_RUNS = 8
    KEPT_RECEIPTS = 16           # that a connection that rests keeps room for
    FIRST_RECEIPT = 0xFFFFFFC0   # they are numbered up to the wrap and beyond: every connection passes it soon
    RUN_WRITTEN = 0
    RUN_FAILED = -1              # its producer learns it by the end of the connection alone


cdef Receipt* receipt_push(Conn* c, Gathered* g) noexcept nogil:
    """Room for one more receipt; NULL without memory. The caller bounds how many there are."""
    cdef uint32_t room, i
    cdef Receipt* larger
    if g.tail - g.head == g.room:
        room = g.room * 2 if g.room else KEPT_RECEIPTS
        larger = <Receipt*>malloc(room * sizeof(Receipt))
        if larger == NULL:
            return NULL
        i = g.head
        while i != g.tail:
            larger[i & (room - 1)] = g.ring[i & (g.room - 1)]
            i += 1
        free(g.ring)
        answers_take(c, (room - g.room) * sizeof(Receipt))
        g.ring = larger
        g.room = room
    g.tail += 1
    return receipt_at(g, g.tail - 1)


@cython.final
cdef class Writes:
    """Writes what one processor's connections produce; its loop's thread only."""

    def __cinit__(self, Arena arena, SegmentFiles files, int process, Reports reports, SlotWaits slot_waits):
        self.slot_waits = slot_waits
        self.arena = arena
        self.process = process
        self.reports = reports
        self.counters = fl_cell_at(arena.header, process).counters
        self.appender = Appender(arena, files, process)

    def __dealloc__(self):
        cdef Run* run
        while self.spare != NULL:
            run = self.spare
            self.spare = run.next
            free(run)

    def take_over(self):
        """At start: finish what a predecessor in this place left in the middle of an append, if it did."""
        self.appender.take_over()

    # -- memory --------------------------------------------------------------------------------------------------------

    cdef void begin(self, Gathered* g) noexcept nogil:
        """Nothing has been produced yet; ``g`` is zeroed memory."""
        g.head = g.tail = <uint32_t>FIRST_RECEIPT

    cdef void discard(self, Conn* c, Gathered* g) noexcept nogil:
        """Nobody waits for it any more: free it, written or not."""
        cdef Run* run = g.runs
        cdef Run* after
        while run != NULL:
            after = run.next
            self.run_give(c, run)
            run = after
        g.runs = NULL
        answers_give(c, g.room * sizeof(Receipt))
        free(g.ring)
        g.ring = NULL
        g.room = 0

    cdef void trim(self, Conn* c, Gathered* g) noexcept nogil:
        """Free the room for receipts that only a busier time needed."""
        if g.room > KEPT_RECEIPTS and g.head == g.tail:
            answers_give(c, g.room * sizeof(Receipt))
            free(g.ring)
            g.ring = NULL
            g.room = 0

    cdef Run* run_take(self, Conn* c, fl_slot* s) noexcept nogil:
        """A run for one partition, from the spare ones if there is one; NULL without memory."""
        cdef Run* run = self.spare
        if run != NULL:
            self.spare = run.next
            self.spare_count -= 1
        else:
            run = <Run*>malloc(sizeof(Run))
            if run == NULL:
                return NULL
        c.pool.used += sizeof(Run)
        run.next = NULL
        run.slot = s
        run.life = fl_load(&s.life)
        run.data = run.stage
        run.size = 0
        run.count = 0
        run.done = 0
        run.done_bytes = 0
        run.untold = False
        return run

    cdef void run_give(self, Conn* c, Run* run) noexcept nogil:
        c.pool.used -= sizeof(Run)
        if self.spare_count >= SPARE_RUNS:
            free(run)
            return
        run.next = self.spare
        self.spare = run
        self.spare_count += 1

    # -- gathering -----------------------------------------------------------------------------------------------------

    cdef int gather(self, Conn* c, Gathered* g, fl_slot* s, const uint8_t* data, const Entries* found, long long count,
                    uint32_t receipt, int64_t base=-1) noexcept nogil:
        """Add a set, which has been checked and has ``count`` messages, to the run of its partition; a ``Gather``.

        ``data`` are ``found.bytes`` bytes, at least one. ``receipt`` is the number of the one it is owed, or NO_RECEIPT.
        ``base``: the only offset that it may get, and it is stored as it is; -1: the next one.
        """
        cdef Run* last = NULL
        cdef Run* run = g.runs
        while run != NULL and (run.slot != s or run.life != fl_load(&s.life)):
            last = run
            run = run.next
        if run != NULL:
            if run.count == RUN_PIECES or run.data != run.stage or STAGE_BYTES - run.size < found.bytes:
                return GATHER_FULL
        else:
            if g.run_count == MAX_RUNS:
                return GATHER_FULL
            if found.bytes > STAGE_BYTES and data != g.kept and not keeps(c, data):
                return GATHER_NOT_KEPT
            run = self.run_take(c, s)
            if run == NULL:
                return GATHER_NO_MEMORY
            if last != NULL:
                last.next = run
            else:
                g.runs = run
            g.run_count += 1
        if found.suspicious:
            fl_bump(&self.counters[<int>N_SUSPICIOUS], found.suspicious)
        run.pieces[run.count].size = <uint32_t>found.bytes
        run.pieces[run.count].span = <uint32_t>found.span
        run.pieces[run.count].largest_ms = found.max_timestamp
        run.pieces[run.count].base = base
        run.pieces[run.count].count = <uint32_t>min(count, <long long>0x7FFFFFFF)
        run.receipts[run.count] = receipt
        run.count += 1
        run.size += found.bytes
        if found.bytes > STAGE_BYTES:
            run.data = data
            return GATHERED_IN_PLACE
        memcpy(run.stage + run.size - found.bytes, data, found.bytes)
        return GATHERED

    cdef int gather_nothing(self, Gathered* g, fl_slot* s, Receipt* receipt) noexcept nogil:
        """An empty set: its receipt speaks of the log behind what this connection sent before. A ``Gather``."""
        cdef Run* run = g.runs
        cdef fl_end end
        while run != NULL and (run.slot != s or run.life != fl_load(&s.life)):
            run = run.next
        if run != NULL:
            return GATHER_FULL
        fl_end_read(&s.log_end, s.log_ends, &end)
        receipt.base = receipt.next = end.offset
        receipt.end = end.position
        self.appended(receipt)
        return GATHERED

    # -- writing -------------------------------------------------------------------------------------------------------

    cdef int commit(self, Conn* c, Gathered* g, bint* failed) noexcept nogil:
        """Write the gathered runs. What those that are left wait for, a set of WAIT_LOCK and WAIT_SPACE; 0: all is done.

        A failed write ends its own run and sets ``failed`` when no receipt tells of it: the others were received before
        the connection closes, and are written.
        """
        cdef Run* run = g.runs
        cdef Run* before = NULL
        cdef Run* after
        cdef int r, reasons = 0
        while run != NULL:
            after = run.next
            r = self.commit_run(c, g, run)
            if r > 0:
                reasons |= r
                before = run
            else:
                if r == RUN_FAILED:
                    failed[0] = True
                if before != NULL:
                    before.next = after
                else:
                    g.runs = after
                g.run_count -= 1
                self.run_give(c, run)
            run = after
        return reasons

    cdef void appended(self, Receipt* receipt) noexcept nogil:
        """The log has what this receipt is for: it is ready, or waits for the flush and asks for it."""
        cdef fl_slot* s = receipt.slot
        receipt.state = RECEIPT_READY
        if receipt.flushed and not fl_may_tell(s, receipt.end):
            receipt.state = RECEIPT_UNFLUSHED
            failpoint(AT_ACK_WAITS)
            # said only now: a demand that stands before the append is cleared by the flush before it. That it waits is said
            # where the answer would leave, with another look at the flushed end behind it
            fl_ask(&s.demand, 1)
            fl_wake_flusher(self.arena.header, self.arena.eventfds, s.index)

    cdef int commit_run(self, Conn* c, Gathered* g, Run* run) noexcept nogil:
        """Write one run: RUN_WRITTEN, RUN_FAILED, or the reason to wait."""
        cdef fl_slot* s = run.slot
        cdef Appended out
        cdef Receipt* receipt
        cdef int status, i, problem, waited = 0
        cdef uint64_t messages, end
        cdef uint64_t mine = <uint64_t>1 << self.process
        cdef int64_t stamped
        while run.done < run.count:
            stamped = self.stamp(run)
            status = self.appender.append(s, run.life, <uint8_t*>run.data + run.done_bytes, run.pieces + run.done, run.count - run.done,
                                          self.offsets, &out)
            messages = 0
            end = out.position
            for i in range(out.done):
                messages += run.pieces[run.done + i].count
                end += run.pieces[run.done + i].size
                if run.receipts[run.done + i] != <uint32_t>NO_RECEIPT:
                    receipt = receipt_at(g, run.receipts[run.done + i])
                    receipt.base = self.offsets[i]
                    receipt.next = self.offsets[i] + run.pieces[run.done + i].span
                    receipt.time = stamped
                    receipt.end = end
                    self.appended(receipt)
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
                    return WAIT_LOCK if status == APPEND_BUSY else WAIT_SPACE
                # say that we wait, then look once more: what changed in between is not missed
                failpoint(AT_APPEND_REFUSED)
                waited = 1
                fl_ask(&s.lock_waiters if status == APPEND_BUSY else &s.waiters, mine)
                continue
            if status >= APPEND_DUPLICATE:
                self.not_for_the_log(c, g, run, status, &out)
                run.done_bytes += run.pieces[run.done].size
                run.done += 1
                waited = 0
                continue
            if status == APPEND_GONE:
                # as if it had come before the deletion, for whoever does not ask
                for i in range(run.done, run.count):
                    if run.receipts[i] != <uint32_t>NO_RECEIPT:
                        receipt = receipt_at(g, run.receipts[i])
                        receipt.problem = PROBLEM_PARTITION
                        receipt.state = RECEIPT_READY
                break
            # the piece that failed; what precedes it stays
            fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
            problem = PROBLEM_STORAGE if status == APPEND_FAILED else PROBLEM_OFFLINE
            if status == APPEND_FAILED:
                self.reports.write_failed(c, s, out.error)
            if run.receipts[run.done] == <uint32_t>NO_RECEIPT:
                if status != APPEND_FAILED:
                    self.reports.refused(c, "produce to a partition that takes no appends", 0, s.name, <int>s.name_bytes,
                                         <int32_t>s.partition)
                for i in range(run.done + 1, run.count):
                    if run.receipts[i] != <uint32_t>NO_RECEIPT:
                        receipt = receipt_at(g, run.receipts[i])
                        receipt.problem = problem
                        receipt.state = RECEIPT_READY
                return RUN_FAILED
            receipt = receipt_at(g, run.receipts[run.done])
            receipt.problem = problem
            receipt.state = RECEIPT_READY
            run.done_bytes += run.pieces[run.done].size
            run.done += 1
        return <int>RUN_FAILED if run.untold else <int>RUN_WRITTEN

    cdef void not_for_the_log(self, Conn* c, Gathered* g, Run* run, int status, const Appended* out) noexcept nogil:
        """Answer for the first piece of a run that is not written, and is not to be. A duplicate gets the answer of its original,
        when that would get it."""
        cdef fl_slot* s = run.slot
        cdef Receipt* receipt = NULL
        if run.receipts[run.done] != <uint32_t>NO_RECEIPT:
            receipt = receipt_at(g, run.receipts[run.done])
        if status == APPEND_DUPLICATE:
            fl_bump(&self.counters[<int>N_DUPLICATES], 1)
            if receipt != NULL:
                receipt.base = out.base
                receipt.next = out.base + run.pieces[run.done].span
                receipt.time = out.time if s.append_time else -1
                receipt.end = out.end
                self.appended(receipt)
            return
        fl_bump(&self.counters[<int>N_OUT_OF_SEQUENCE], 1)
        fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
        if receipt == NULL:
            self.reports.refused(c, "a batch out of its producer's sequence", 0, s.name, <int>s.name_bytes, <int32_t>s.partition)
            run.untold = True
            return
        receipt.problem = PROBLEM_EPOCH if status == APPEND_OLD_EPOCH else PROBLEM_SEQUENCE
        receipt.state = RECEIPT_READY

    cdef int64_t stamp(self, Run* run) noexcept nogil:
        """Give records the time of this try to append them, where their topic says so; that time in ms, or -1."""
        cdef int i
        cdef int64_t now_ms
        cdef uint64_t at = run.done_bytes
        if not run.slot.append_time:
            return -1
        now_ms = <int64_t>fl_wall_ms()
        for i in range(run.done, run.count):
            if run.pieces[i].base < 0:
                stamp_append_time(<uint8_t*>run.data + at, run.pieces[i].size, now_ms)
                run.pieces[i].largest_ms = now_ms
            at += run.pieces[i].size
        return now_ms

    # -- receipts ------------------------------------------------------------------------------------------------------

    cdef Receipt* next_ready(self, Conn* c, Gathered* g) noexcept nogil:
        """The first receipt, once it may be answered; NULL before: the connection is looked at when that may have changed.

        The caller tells it and moves ``head``.
        """
        cdef Receipt* receipt
        cdef uint64_t mine = <uint64_t>1 << self.process
        cdef bint told, lives
        if g.head == g.tail or receipt_at(g, g.head).state == RECEIPT_PENDING:
            self.slot_waits.leave(&c.flushing)
            return NULL
        receipt = receipt_at(g, g.head)
        while receipt.state == RECEIPT_UNFLUSHED:
            told = fl_may_tell(receipt.slot, receipt.end)
            # in this order: the ends of the slot's next life are above all of this one
            lives = fl_load(&receipt.slot.life) == receipt.life
            if told and lives:
                break
            if fl_load(&receipt.slot.state) & FL_STATE_NO_FLUSH:
                receipt.problem = PROBLEM_OFFLINE
                break
            if not lives:
                receipt.problem = PROBLEM_PARTITION
                break
            if c.flushing.conn != NULL and c.flushing.slot == receipt.slot.index and fl_load(&receipt.slot.waiters) & mine:
                return NULL
            self.slot_waits.join(&c.flushing, c, receipt.slot)
            fl_ask(&receipt.slot.waiters, mine)
        # without memory for its answer it is to be tried again whether the slot moves or not
        self.slot_waits.leave(&c.flushing)
        return receipt

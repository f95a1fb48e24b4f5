"""Reading partitions: where the bytes of a fetch are, how they get into an answer, and how a long poll waits for more."""

cimport cython
from libc.errno cimport EAGAIN
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport (
    FL_NO_POSITION, FL_STATE_OFFLINE, FL_WHY_ROOM, fl_ask, fl_ask_once, fl_bump, fl_cell_at, fl_end, fl_end_read,
    fl_first_offset, fl_load, fl_or, fl_slot, fl_wake_flusher,
)
from fastlog.log._shared_memory cimport N_BYTES_OUT, N_READ_AHEAD
from fastlog.log._files cimport AT_HOLD_LOOKED, AT_HOLD_NOBODY, failpoint, file_pread, file_pread_nowait
from fastlog.log._index cimport WALK_COLD, WALK_FAR, WALKED, WINDOW, Walk, seek_entry
from fastlog.log._segments cimport LOCATE_OUT_OF_RANGE, LOCATED, OFFSET_INDEX, Place, SegmentFiles, locate
from fastlog.log.formats._table cimport ENTRY_BEGINS, ENTRY_UNREADABLE, EntryHead, Format, format_of
from fastlog.workers._authorizer cimport Authorizer, is_allowed
from fastlog.workers._partitions cimport (
    PROBLEM_DENIED, PROBLEM_MESSAGE, PROBLEM_NONE, PROBLEM_OFFLINE, PROBLEM_RANGE, PROBLEM_SIZE, PROBLEM_TOPIC,
    PROBLEM_UNREADABLE, RESOLVE_ABSENT, RESOLVED, TO_READ, Partitions,
)
from fastlog.workers._reports cimport Reports
from fastlog.workers._unreadable cimport Unreadable
from fastlog.workers.net._connection cimport Conn, Job, ReadJob, out_bytes, out_file, out_give_back
from fastlog.workers.net._helper cimport Helper
from fastlog.workers.net._slot_waits cimport SlotWaits

cdef extern from "<fcntl.h>" nogil:
    int O_RDWR

cdef enum:
    PEEK_BYTES = 4096            # of WINDOW that there are
    HEAD_BYTES = 64              # no format's head of an entry is longer
    WALK_HERE = 64 << 10         # bytes of a log that the loop's thread walks over
    # an answer this small is read and sent in one call: cheaper than a header and a sendfile
    COPY_BYTES = 16 << 10
    ANSWERS_AHEAD = 32           # this near the visible end, counted in answers like the last one, a reader has the next flush begin
    COPY_IN_ALL = 256 << 10      # of answers that leave together: many parts may ask for the same few bytes
    MAX_SET_BYTES = 0x7fffff00   # an answer's size is a signed 32-bit number


cdef bint walk_step(Job* job, void* scratch) noexcept nogil:
    """Find the entry that a ``ReadJob`` looks for; waits for the disk."""
    cdef ReadJob* reading = <ReadJob*>job
    cdef Walk walked
    if scratch != NULL:
        reading.status = seek_entry(reading.fd, reading.index_fd, <const Format*>reading.format, <uint8_t*>scratch, reading.base,
                                    reading.position, reading.offset, True, FL_NO_POSITION, &walked)
        reading.position = walked.position
    return False


@cython.final
@cython.no_gc_clear  # connections are closed when their processor is freed
cdef class Reads:
    """Reads for one processor's connections; its loop's thread only."""

    def __cinit__(self, Arena arena, SegmentFiles files, Authorizer authorizer, Partitions partitions, Helper helper,
                  int process, Reports reports, SlotWaits slot_waits):
        self.slot_waits = slot_waits
        self.arena = arena
        self.authorizer = authorizer
        self.files = files
        self.partitions = partitions
        self.helper = helper
        self.unreadable = Unreadable(arena, files, process, reports)
        self.process = process
        self.counters = fl_cell_at(arena.header, process).counters
        self.peek = <uint8_t*>malloc(WINDOW)
        if self.peek == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.peek)

    # -- one fetch of one partition ------------------------------------------------------------------------------------

    cdef void find(self, Conn* c, int operation, const uint8_t* name, int size, int32_t partition, int clients, int64_t offset,
                   int32_t max_bytes, Found* out) noexcept nogil:
        """Find the bytes one fetch gets, at most to the end of their segment and never past the visible end.

        They begin with the entry that holds the offset, and may end inside one. ``clients`` as for ``Partitions.resolve``.
        Every kind of fetch comes here, for each of its parts: here it is authorized.
        """
        cdef Place place
        cdef fl_end visible
        cdef uint64_t at, readable
        cdef int r
        out.problem = PROBLEM_NONE
        out.entry = -1
        out.size = 0
        out.cold = out.walks = False
        out.entry_bytes = 0
        out.watermark = out.visible = out.ahead = out.log_start = 0
        if not is_allowed(self.authorizer, c, operation, name, size):
            out.slot = NULL
            out.watermark = out.log_start = <uint64_t>-1
            out.problem = PROBLEM_DENIED
            return
        r = self.partitions.resolve(name, size, &partition, TO_READ, clients, &out.slot)
        if r == RESOLVED:
            out.log_start = fl_first_offset(out.slot)
            fl_end_read(&out.slot.visible_end, out.slot.visible_ends, &visible)
            out.watermark = visible.offset
            out.visible = visible.position
        elif r != RESOLVE_ABSENT:
            out.watermark = out.log_start = <uint64_t>-1
        if r == PROBLEM_TOPIC:
            out.problem = PROBLEM_TOPIC
        elif max_bytes < 0 and (r == RESOLVED or r == RESOLVE_ABSENT):
            out.problem = PROBLEM_SIZE
        elif r == RESOLVE_ABSENT:
            out.slot = NULL
        elif r != RESOLVED:
            out.problem = r
        elif fl_load(&out.slot.state) & FL_STATE_OFFLINE:
            out.problem = PROBLEM_OFFLINE
        else:
            r = LOCATE_OUT_OF_RANGE
            if offset >= 0:
                r = locate(self.arena.header, out.slot, <uint64_t>offset, &visible, &place)
                out.watermark = visible.offset
                out.visible = visible.position
            if r == LOCATE_OUT_OF_RANGE:
                out.problem = PROBLEM_RANGE
                if offset > <int64_t>out.watermark and (fl_load(&out.slot.state) >> 8 & 0xff) == FL_WHY_ROOM:
                    out.problem = PROBLEM_OFFLINE  # it is there, and may have been read: nobody is to begin anew elsewhere
            elif r == LOCATED:
                at = place.start + place.position
                out.ahead = visible.position - at
                if max_bytes == 0:
                    return
                out.entry = self.files.acquire(out.slot, place.index, place.base)
                if out.entry < 0:
                    # a segment that is gone was retired between the look-up and the open
                    out.problem = PROBLEM_UNREADABLE
                    if fl_load(&out.slot.table_head) > place.index:
                        out.problem = PROBLEM_RANGE
                    else:
                        self.unreadable.not_opened(out.slot, place.base, place.position, -out.entry)
                    out.entry = -1
                    return
                if place.walked:
                    out.offset = <uint64_t>offset
                    out.problem = self.walk(out, &place)
                    if out.problem or out.walks:
                        if out.problem:
                            out.entry = -1
                        return
                    at = place.start + place.position
                    out.ahead = visible.position - at
                out.position = place.position
                out.size = min(<uint64_t>min(max_bytes, <int32_t>MAX_SET_BYTES), place.end - at)
                readable = self.unreadable.cut(out.slot, at, place.end - at)
                out.size = min(out.size, readable)
                # what check_boundary may look at is not cut by max_bytes
                out.problem = self.check_boundary(out, place.end - at, readable)
                if out.problem:
                    out.entry = -1
                    out.size = 0

    cdef int check_boundary(self, Found* found, uint64_t available, uint64_t readable) noexcept nogil:
        """Whether a message starts at the place that was asked for: PROBLEM_NONE, _MESSAGE or _UNREADABLE.

        A client that is served from inside a message reads garbage lengths; one look at the first entry is cheap. Nothing
        is looked at when the bytes are not in memory: ``cold`` is set.
        """
        cdef uint64_t want = min(available, <uint64_t>PEEK_BYTES)
        cdef int64_t r = file_pread_nowait(self.files.fd(found.entry), self.peek, want, found.position)
        cdef int64_t more
        cdef const Format* made
        cdef EntryHead head
        cdef int status
        if 0 <= r < <int64_t>min(want, <uint64_t>HEAD_BYTES):
            # what does not wait ends before the first page that is not in memory, in the middle of a head too
            more = file_pread_nowait(self.files.fd(found.entry), self.peek + r, want - <uint64_t>r, found.position + <uint64_t>r)
            r = more if more == -EAGAIN else r + max(more, <int64_t>0)
        if r == -EAGAIN:
            found.cold = True
            return PROBLEM_NONE
        if r < 0:
            r = file_pread(self.files.fd(found.entry), self.peek, want, found.position)
        if r < 0:
            self.unreadable.failed(found.entry, found.position, <int>-r)
            return PROBLEM_UNREADABLE
        made = format_of(found.slot.format)
        if <uint64_t>r >= made.head_bytes and made.head(self.peek, &head):
            found.entry_bytes = head.bytes
        status = made.begins(self.peek, <uint64_t>r, available, readable)
        if status == ENTRY_UNREADABLE:
            return PROBLEM_UNREADABLE
        return PROBLEM_NONE if status == ENTRY_BEGINS else PROBLEM_MESSAGE

    cdef int walk(self, Found* found, const Place* place) noexcept nogil:
        """Find where in its segment the entry begins that holds ``found.offset``: PROBLEM_NONE with ``place.position`` set or
        ``found.walks``, or PROBLEM_UNREADABLE.
        """
        cdef const Format* made = format_of(found.slot.format)
        cdef uint64_t end = place.end - place.start
        cdef Known* known = self.known_place(found.slot.index, found.offset)
        cdef Walk walked
        cdef int status, index_entry
        found.base = place.base
        found.segment = place.index
        if known.slot == found.slot.index and known.life == fl_load(&found.slot.life) and known.base == place.base \
                and known.offset == found.offset and known.position < end:
            (<Place*>place).position = known.position
            return PROBLEM_NONE
        index_entry = self.index_of(found)
        status = seek_entry(self.files.fd(found.entry), -1 if index_entry < 0 else self.files.fd(index_entry), made, self.peek,
                            place.base, end, found.offset, False, WALK_HERE, &walked)
        if status == WALKED:
            (<Place*>place).position = walked.position
            return PROBLEM_NONE
        if status == WALK_COLD or status == WALK_FAR:
            found.walks = found.cold = True
            found.position = end
            return PROBLEM_NONE
        self.unreadable.failed(found.entry, walked.position, -status if status < 0 else 0)
        return PROBLEM_UNREADABLE

    cdef int index_of(self, Found* found) noexcept nogil:
        """The descriptor entry of the index of the segment that was found, -errno: there is none to be had."""
        cdef int index_entry
        # or it might take the place of the segment's own, where descriptors are few
        self.files.pin(found.entry)
        index_entry = self.files.acquire_kind(found.slot, found.segment, found.base, OFFSET_INDEX, O_RDWR)
        self.files.unpin(found.entry)
        return index_entry

    cdef Known* known_place(self, uint64_t slot, uint64_t offset) noexcept nogil:
        """Where what was found of a slot and an offset stands, or of others."""
        return &self.known[(slot * <uint64_t>0x9E3779B97F4A7C15 + offset) & (KNOWN_PLACES - 1)]

    cdef void learn_place(self, const ReadJob* job) noexcept nogil:
        """Take what a thread found that ``read_ahead`` was asked for; for the protocol, when the job is done."""
        cdef Known* known
        if job.job.step != walk_step or job.status != WALKED:
            return
        known = self.known_place(job.slot, job.offset)
        known.slot, known.life, known.base = job.slot, job.life, job.base
        known.offset, known.position = job.offset, job.position

    cdef bint read_ahead(self, Conn* c, ReadJob* job, Found* found) noexcept nogil:
        """Have the beginning of a cold span read into memory, or looked for; whether a thread does. The rest is read when it is
        sent.
        """
        if found.walks:
            job.format = <const void*>format_of(found.slot.format)
            job.slot, job.life = found.slot.index, fl_load(&found.slot.life)
            job.base, job.offset, job.position = found.base, found.offset, found.position
            job.status = WALK_COLD
            if self.helper.submit_read(c, job, walk_step, found.entry, self.index_of(found)) != 0:
                return False
        elif self.helper.read_ahead(c, job, found.entry, found.position, found.size) != 0:
            return False
        fl_bump(&self.counters[<int>N_READ_AHEAD], 1)
        return True

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

    # -- what a request for many partitions found, until it is put into the answer -------------------------------------

    cdef bint pin(self, Found* found) noexcept nogil:
        """Keep the descriptor of a span; whether this was the first to do so."""
        cdef bint first = self.files.entries[found.entry].pins == 0
        self.files.pin(found.entry)
        self.pinned += first
        return first

    cdef void unpin(self, Found* found) noexcept nogil:
        """Unpin the descriptor of a span, which may be closed then."""
        self.files.unpin(found.entry)

    cdef bint descriptors_are_short(self) noexcept nogil:
        """Whether requests for many partitions have as many descriptors as they may take together."""
        return self.pinned >= self.files.capacity // 2

    # -- waiting for more ----------------------------------------------------------------------------------------------

    cdef bint await_visible(self, fl_slot* s, uint64_t visible) noexcept nogil:
        """Have this process woken when the visible end moves from here; False when it has moved by now."""
        failpoint(AT_HOLD_LOOKED)
        self.ask_for_more(s)
        return fl_load(&s.visible_end) == visible

    cdef void ask_for_more(self, fl_slot* s) noexcept nogil:
        """Have this process woken when a slot moves next, and the flusher flush at once; the slot is to be looked at afterwards."""
        if not fl_load(&s.waiters) & (<uint64_t>1 << self.process):
            fl_or(&s.waiters, <uint64_t>1 << self.process)
        # where nothing is unflushed now, the next append wakes the flusher at once
        fl_ask_once(&s.demand, 1)
        self.want_flush_now(s)

    cdef bint await_partition(self, const uint8_t* name, int size, int32_t partition) noexcept nogil:
        """Have this process woken when a partition is made; False when this one has been made by now."""
        failpoint(AT_HOLD_NOBODY)
        fl_ask(&self.arena.header.create_waiters, <uint64_t>1 << self.process)
        self.partitions.learn()
        return self.partitions.find(name, size, partition) == NULL

    cdef void look_ahead(self, Found* found) noexcept nogil:
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

    cdef void want_flush_now(self, fl_slot* s) noexcept nogil:
        """After demand was set: an append that did not see it yet has left unflushed bytes, so wake the flusher."""
        if fl_load(&s.log_end) > fl_load(&s.flushed_end):
            fl_wake_flusher(self.arena.header, self.arena.eventfds, s.index)

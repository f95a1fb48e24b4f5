"""Reading topics of 0.7 as record batches: where the message is that holds an offset, and its bytes converted.

Offsets of 0.7 are positions, so the segment is found as ever; but a client of today may ask for any offset, and most lie inside
of messages. What stands there may look like a message and be none (a compressed set that holds its messages as they are),
so nothing is believed: where a message begins is known for the beginning of a segment, for its visible end, and for all that
was walked from there. Whoever reads on, or from the end, is served without a search; who begins somewhere else has
lengths walked from the next known place before it, by the thread that reads that directory, a bounded part at a time. Only
where lengths are damaged on the way, a valid message at the very offset is taken for one, as 0.7 takes it.

Little that is in memory is converted here and now, everything else by that thread. What is damaged is an error of its
partition, once all before it has been read.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EIO
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from fastlog._bytes cimport be32
from fastlog._segment cimport ENTRY_HEADER_BYTES, LEAST_ENTRY_BYTES, LENGTH_BYTES
from fastlog._upconvert cimport (
    CONVERT_CUT, CONVERT_DAMAGED, CONVERT_FULL, CONVERT_MORE, CONVERT_NO_MEMORY, CONVERT_WRAPPER, CONVERTED, Converted, Making,
    OpenedSet, add_messages, discard, finish,
)
from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport (
    FL_STATE_OFFLINE, FL_WHY_ROOM, fl_end, fl_end_read, fl_first_offset, fl_load, fl_slot, fl_slot_at,
)
from fastlog.log._files cimport file_pread, file_pread_nowait
from fastlog.log._segments cimport LOCATE_EMPTY, LOCATE_OUT_OF_RANGE, LOCATED, Place, SegmentFiles, locate
from fastlog.log.formats._table cimport READ_BY_KAFKA
from fastlog.workers._authorizer cimport is_allowed
from fastlog.workers._partitions cimport (
    PROBLEM_DENIED, PROBLEM_OFFLINE, PROBLEM_RANGE, PROBLEM_UNREADABLE, RESOLVE_ABSENT, RESOLVED, TO_READ, Partitions,
)
from fastlog.workers._reads cimport Found, Reads
from fastlog.workers.net._connection cimport Conn, Job
from fastlog.workers.net._helper cimport Helper

from fastlog.errors import FastlogError, DecompressionLimitError, InvalidMessageError, MissingCodecError, UnfitSetError

cdef enum:
    SCRATCH = 256 << 10          # bytes that a thread has at hand
    HERE_BYTES = 32 << 10        # of a log that are converted on the loop's thread
    SEARCH_BYTES = 64 << 10      # of a log, looked at together
    STEP_SEARCH = 4 << 20        # searched in one step
    STEP_BYTES = 1 << 20         # converted in one step
    LARGE_BYTES = 64 << 10       # a message of more than this, and than its part may have, waits for room
    BEGUN_SETS = 8               # compressed ones that readers have left in the middle
    BEGUN_BYTES = 1 << 20        # of each, compressed
    MOST_BYTES = 0x3fffff00      # of a message: an answer's size is a signed 32-bit number
    EXACT_MARKS = 4096           # powers of two
    SPARSE_MARKS = 8192
    MARK_SHIFT = 20              # a sparse one for each MiB of a file
    NO_TIME = -1


cdef uint64_t read_up_to(BridgeJob* job, uint8_t* data, uint64_t size) noexcept nogil:
    """Read ``size`` bytes from ``at`` on; returns how many came before a read failed, with its ``error``, 0 at the file's end."""
    cdef uint64_t done = 0
    cdef int64_t got
    while done < size:
        got = file_pread(job.read.fd, data + done, size - done, job.at + done)
        if got <= 0:
            job.error = <int>-got
            break
        done += <uint64_t>got
    return done


cdef bint bridge_step(Job* job, void* scratch) noexcept nogil:
    return (<Bridge>job.owner).step(<BridgeJob*>job, <uint8_t*>scratch)


cdef inline uint64_t mixed(uint64_t slot, uint64_t base, uint64_t position) noexcept nogil:
    cdef uint64_t h = slot * <uint64_t>0x9E3779B97F4A7C15 + (base + position) * <uint64_t>0xC2B2AE3D27D4EB4F
    return h ^ (h >> 32)


@cython.final
@cython.no_gc_clear  # a thread may still be at one of its jobs
cdef class Bridge:
    """Reads topics of 0.7 for one processor's clients of today; its loop's thread only, but for the steps of its jobs.

    ``services`` has the limits for what is decompressed, and says in the log what cannot be converted.
    """

    def __cinit__(self, Arena arena, SegmentFiles files, Partitions partitions, Helper helper, Reads reads, services):
        self.arena = arena
        self.files = files
        self.authorizer = services.authorizer
        self.partitions = partitions
        self.helper = helper
        self.reads = reads
        self.services = services
        self.limits = services.limits
        self.opened = {}
        self.begun = {}
        self.reasons = {}
        self.window = <uint8_t*>malloc(HERE_BYTES)
        if self.window == NULL:
            raise MemoryError
        helper.keep(self)

    def __dealloc__(self):
        free(self.exact)
        free(self.sparse)
        free(self.window)

    # -- where messages begin ------------------------------------------------------------------------------------------

    cdef int make_marks(self) noexcept nogil:
        """Room for the marks, when the first one is made: most processors never see such a reader. -1 without memory."""
        if self.exact == NULL:
            self.exact = <Mark*>calloc(EXACT_MARKS, sizeof(Mark))
        if self.sparse == NULL:
            self.sparse = <Mark*>calloc(SPARSE_MARKS, sizeof(Mark))
        return 0 if self.exact != NULL and self.sparse != NULL else -1

    cdef void note(self, fl_slot* s, uint64_t base, uint64_t position, bint is_place) noexcept nogil:
        """A message of a segment begins, or the last one ends, at this position of its file; ``is_place``: a reader is there."""
        cdef uint64_t life = fl_load(&s.life)
        cdef Mark* mark
        if self.make_marks() != 0:
            return
        if is_place:
            mark = &self.exact[mixed(s.index, base, position) & (EXACT_MARKS - 1)]
            mark.slot, mark.life, mark.base, mark.position = s.index, life, base, position
        mark = &self.sparse[mixed(s.index, base, position >> MARK_SHIFT) & (SPARSE_MARKS - 1)]
        if mark.slot == s.index and mark.life == life and mark.base == base \
                and mark.position >> MARK_SHIFT == position >> MARK_SHIFT and mark.position <= position:
            return
        mark.slot, mark.life, mark.base, mark.position = s.index, life, base, position

    cdef void note_end(self, fl_slot* s) noexcept nogil:
        """A client gets to know where the log ends, and may begin to read there when it has gone on."""
        cdef fl_end visible
        cdef Place place
        fl_end_read(&s.visible_end, s.visible_ends, &visible)
        # at the end, or behind what somebody has flushed since
        if locate(self.arena.header, s, visible.offset, &visible, &place) == LOCATE_EMPTY:
            self.note(s, place.base, visible.position - place.start, True)

    cdef uint64_t floor_of(self, fl_slot* s, uint64_t base, uint64_t position) noexcept nogil:
        """The nearest place at or before a position of a segment's file where a message is known to begin."""
        cdef uint64_t life = fl_load(&s.life)
        cdef uint64_t part = position >> MARK_SHIFT
        cdef Mark* mark
        if position == 0 or self.exact == NULL or self.sparse == NULL:
            return 0
        mark = &self.exact[mixed(s.index, base, position) & (EXACT_MARKS - 1)]
        if mark.slot == s.index and mark.life == life and mark.base == base and mark.position == position:
            return position
        while True:
            mark = &self.sparse[mixed(s.index, base, part) & (SPARSE_MARKS - 1)]
            if mark.slot == s.index and mark.life == life and mark.base == base and mark.position >> MARK_SHIFT == part \
                    and mark.position <= position:
                return mark.position
            if part == 0:
                return 0
            part -= 1

    # -- one part of a fetch -------------------------------------------------------------------------------------------

    cdef void find(self, Conn* c, int operation, const uint8_t* name, int size, int32_t partition, int64_t offset,
                   int32_t max_bytes, Found* out, uint64_t* end) noexcept nogil:
        """As ``Reads.find``, of a topic of 0.7: ``position`` is that of the offset, inside a message or not, and ``size`` only
        says about how much there is. ``end``: where the visible bytes end in the file. Every use is authorized here.
        """
        cdef Place place
        cdef fl_end visible
        cdef int r
        memset(out, 0, sizeof(Found))
        out.entry = -1
        if not is_allowed(self.authorizer, c, operation, name, size):
            out.problem = PROBLEM_DENIED
            return
        r = self.partitions.resolve(name, size, &partition, TO_READ, READ_BY_KAFKA, &out.slot)
        if r == RESOLVE_ABSENT:
            return
        if r != RESOLVED:
            out.problem = r
            return
        if fl_load(&out.slot.state) & FL_STATE_OFFLINE:
            out.problem = PROBLEM_OFFLINE
            return
        out.log_start = fl_first_offset(out.slot)
        r = LOCATE_OUT_OF_RANGE
        fl_end_read(&out.slot.visible_end, out.slot.visible_ends, &visible)
        if offset >= 0:
            r = locate(self.arena.header, out.slot, <uint64_t>offset, &visible, &place)
        out.watermark = visible.offset
        out.visible = visible.position
        if r == LOCATE_OUT_OF_RANGE:
            out.problem = PROBLEM_RANGE
            if offset > <int64_t>visible.offset and (fl_load(&out.slot.state) >> 8 & 0xff) == FL_WHY_ROOM:
                out.problem = PROBLEM_OFFLINE  # it is there, and may have been read: nobody is to begin anew elsewhere
            return
        if not place.sealed:
            self.note(out.slot, place.base, visible.position - place.start, r == LOCATE_EMPTY)
        if r != LOCATED:
            return
        out.base = place.base
        out.segment = place.index
        out.position = place.position
        end[0] = place.end - place.start
        out.ahead = visible.position - (place.start + place.position)
        if max_bytes <= 0:
            return
        out.entry = self.files.acquire(out.slot, place.index, place.base)
        if out.entry < 0:
            # a segment that is gone was retired between the look-up and the open
            out.problem = PROBLEM_RANGE
            if fl_load(&out.slot.table_head) <= place.index:
                out.problem = PROBLEM_UNREADABLE
                self.reads.unreadable.not_opened(out.slot, place.base, place.position, -out.entry)
            out.entry = -1
            return
        out.size = min(<uint64_t>max_bytes, end[0] - place.position)

    cdef int convert(self, Conn* c, BridgeJob* job, const Found* found, uint64_t end, int64_t offset, uint64_t most,
                     bint whole, bint has_room) noexcept nogil:
        """Convert what ``find`` has found: at most ``most`` bytes, unless ``whole`` lets the first message be larger. A
        ``BridgeStatus``; after BRIDGE_WAITS it is that of the job, which is to be handed to ``take``.
        """
        memset(job, 0, sizeof(BridgeJob))
        job.wanted = offset
        job.base = found.base
        job.end = end
        job.made.most = most
        job.made.first_whole = whole
        job.has_room = has_room
        job.epoch = <int32_t>found.slot.epoch
        job.read.slot = found.slot.index
        job.read.life = fl_load(&found.slot.life)
        job.at = self.floor_of(found.slot, found.base, found.position)
        job.is_found = job.at == found.position
        if job.is_found and self.convert_here(job, found):
            self.take(job)
            return job.status
        discard(&job.made)
        job.at = self.floor_of(found.slot, found.base, found.position)
        job.read.job.owner = <void*>self
        if self.helper.submit_read(c, &job.read, bridge_step, found.entry, -1) != 0:
            job.status = BRIDGE_NO_MEMORY
            return BRIDGE_NO_MEMORY
        return BRIDGE_WAITS

    cdef bint convert_here(self, BridgeJob* job, const Found* found) noexcept nogil:
        """Whether that could be done now: little enough, in memory, and nothing that takes long."""
        cdef uint64_t n = min(job.end - job.at, <uint64_t>HERE_BYTES)
        cdef Converted out
        cdef int64_t got
        cdef int r
        if n < job.end - job.at and job.made.most > HERE_BYTES:
            return False
        got = file_pread_nowait(self.files.fd(found.entry), self.window, n, job.at)
        if got < <int64_t>n:
            return False
        r = add_messages(&job.made, self.window, n, <int64_t>(job.base + job.at), job.wanted, &out)
        if r == CONVERT_WRAPPER or (job.made.count == 0 and r != CONVERT_FULL):
            return False
        job.at += out.used
        self.stop(job, BRIDGED)
        return True

    cdef void take(self, BridgeJob* job) noexcept nogil:
        """After a conversion: remember where messages begin. A reader goes on at ``next_offset``, unless that lies in a set."""
        cdef fl_slot* s = fl_slot_at(self.arena.header, job.read.slot)
        cdef int i
        if fl_load(&s.life) == job.read.life:
            for i in range(job.mark_count):
                self.note(s, job.base, job.marks[i], False)
            if job.is_found and not job.is_believed:
                self.note(s, job.base, job.at, True)
        free(job.marks)
        job.marks = NULL
        job.mark_count = 0

    cdef void forget(self, Conn* c, BridgeJob* job) noexcept nogil:
        """Give back what a conversion has made."""
        discard(&job.made)
        free(job.marks)
        job.marks = NULL
        if job.is_opening:
            with gil:
                self.opened.pop(c.name, None)

    cdef void say(self, Conn* c, fl_slot* s, BridgeJob* job) noexcept nogil:
        """Why a part was not converted, in the log."""
        with gil:
            try:
                reason = self.reasons.pop(c.name, None) or "no valid message is there"
                self.services.not_converted(<bytes>(<char*>s.name)[:s.name_bytes], s.partition, job.base + job.at, reason)
            except Exception as error:
                self.services.unexpected(error)

    # -- the thread's side ---------------------------------------------------------------------------------------------

    cdef void stop(self, BridgeJob* job, int status) noexcept nogil:
        """End a conversion at ``at``; what is wrong there counts only if nothing came before it."""
        cdef int64_t reached = <int64_t>(job.base + job.at)
        job.status = status
        if job.made.count:
            job.status = BRIDGED
        if job.status != BRIDGED:
            return
        job.next_offset = max(reached, job.made.last + 1) if job.made.count else reached
        if job.made.count == 0 and job.next_offset <= job.wanted:
            job.made.size = 0
        elif finish(&job.made, job.wanted, job.next_offset, job.epoch, NO_TIME) != 0:
            job.status = BRIDGE_NO_MEMORY

    cdef bint step(self, BridgeJob* job, uint8_t* scratch) noexcept nogil:
        """Do a part of the work; whether there is more."""
        cdef int64_t work = STEP_BYTES
        cdef uint64_t n, got, large = max(job.made.most, <uint64_t>LARGE_BYTES)
        cdef Converted out
        cdef int r
        if scratch == NULL:
            job.status = BRIDGE_NO_MEMORY
            return False
        if not job.is_found:
            return self.search(job, scratch)
        while work > 0:
            if job.is_opening:
                r = self.open_set(job)
                if r == CONVERT_MORE:
                    return True
                if r != CONVERTED:
                    return False
            if job.at == job.end or (job.made.count and job.made.size >= job.made.most):
                self.stop(job, BRIDGED)
                return False
            n = min(job.end - job.at, <uint64_t>SCRATCH)
            got = read_up_to(job, scratch, n)
            r = add_messages(&job.made, scratch, got, <int64_t>(job.base + job.at), job.wanted, &out)
            job.at += out.used
            work -= <int64_t>n
            if got < n and (r == CONVERTED or r == CONVERT_CUT):
                self.stop(job, BRIDGE_UNREADABLE)
                return False
            if r == CONVERT_CUT or r == CONVERT_WRAPPER:
                job.needed = out.needed
                if out.needed > job.end - job.at:
                    r = CONVERT_DAMAGED
                elif out.needed > large and job.made.count:
                    r = CONVERT_FULL
                elif out.needed > MOST_BYTES:
                    self.stop(job, BRIDGE_UNFIT)
                    return False
                elif out.needed > large and not job.has_room:
                    self.stop(job, BRIDGE_LARGE)
                    return False
                elif r == CONVERT_WRAPPER:
                    job.is_opening = True
                elif out.needed > SCRATCH:
                    r = self.add_large(job)
                    if r == CONVERTED:
                        continue
                    if r == CONVERT_WRAPPER:
                        job.is_opening = True
            if r == CONVERT_FULL:
                self.stop(job, BRIDGED)
                return False
            if r == CONVERT_DAMAGED:
                self.stop(job, BRIDGE_DAMAGED)
                return False
            if r == CONVERT_NO_MEMORY:
                job.status = BRIDGE_NO_MEMORY
                return False
            if r < 0:
                job.error = -r
                self.stop(job, BRIDGE_UNREADABLE)
                return False
        return True

    cdef int add_large(self, BridgeJob* job) noexcept nogil:
        """Add a message of more than is read at once, the next one; as ``add_messages``, or -errno."""
        cdef uint8_t* data = <uint8_t*>malloc(job.needed)
        cdef Converted out
        cdef int r
        if data == NULL:
            return CONVERT_NO_MEMORY
        if read_up_to(job, data, job.needed) < job.needed:
            free(data)
            return -job.error if job.error else -<int>EIO
        r = add_messages(&job.made, data, job.needed, <int64_t>(job.base + job.at), job.wanted, &out)
        job.at += out.used
        free(data)
        return r

    cdef int open_set(self, BridgeJob* job) noexcept with gil:
        """Add messages of the compressed set at ``at``, for one step: CONVERT_MORE, CONVERTED when it is done and more may
        follow, else the job is at its end."""
        cdef OpenedSet opened
        cdef uint64_t name = job.read.job.conn.name
        cdef Py_ssize_t size = <Py_ssize_t>job.needed, done = 0
        cdef int64_t got = 1, place = <int64_t>job.at
        cdef int fd = job.read.fd
        cdef char* p
        cdef int r
        try:
            opened = self.opened.pop(name, None)
            if opened is None:
                opened = self.begun.pop(self.place_of(job, job.wanted), None)
            if opened is None:
                data = PyBytes_FromStringAndSize(NULL, size)
                p = PyBytes_AS_STRING(data)
                with nogil:
                    while done < size and got > 0:
                        got = file_pread(fd, p + done, <size_t>(size - done), <uint64_t>(place + done))
                        done += <Py_ssize_t>max(got, 0)
                if done < size:
                    job.error = <int>-got
                    job.is_opening = False
                    self.stop(job, BRIDGE_UNREADABLE)
                    return CONVERT_FULL
                place += <int64_t>job.base
                payload = memoryview(data)[ENTRY_HEADER_BYTES:]
                opened = OpenedSet(payload, <int>(<uint8_t>p[5]), place, place + size, self.limits)
            r = opened.add(&job.made, job.wanted, STEP_BYTES)
            if r == CONVERT_MORE:
                self.opened[name] = opened
                return r
            job.is_opening = False
            if r == CONVERTED:
                job.at += job.needed
                return r
            if r == CONVERT_NO_MEMORY:
                job.status = BRIDGE_NO_MEMORY
                return r
            self.stop(job, BRIDGED)
            self.keep_begun(job, opened)
            return r
        except BaseException as error:
            job.is_opening = False
            if job.made.count == 0:
                if len(self.reasons) >= EXACT_MARKS:  # of connections that went away before it was said
                    self.reasons.clear()
                self.reasons[name] = str(error)
            r = BRIDGE_NO_MEMORY
            if isinstance(error, (UnfitSetError, DecompressionLimitError)):
                r = BRIDGE_UNFIT
            elif isinstance(error, MissingCodecError):
                r = BRIDGE_NO_CODEC
            elif isinstance(error, FastlogError):
                r = BRIDGE_DAMAGED
            self.stop(job, r)
            return CONVERT_FULL

    cdef tuple place_of(self, BridgeJob* job, int64_t offset):
        """By what a set is known that a reader goes on with at an offset: also where it begins, as a fetch may open several."""
        return job.read.slot, job.read.life, job.epoch, job.base + job.at, offset

    cdef int keep_begun(self, BridgeJob* job, OpenedSet opened) except -1:
        """Keep a set for its reader's next fetch, which would have to open it from its beginning again."""
        if job.needed > BEGUN_BYTES:
            return 0
        if len(self.begun) >= BEGUN_SETS:
            self.begun.pop(next(iter(self.begun)))
        self.begun[self.place_of(job, max(job.next_offset, job.wanted))] = opened
        return 0

    cdef bint search(self, BridgeJob* job, uint8_t* scratch) noexcept nogil:
        """Walk over lengths to the message that holds the wanted offset, for one step; whether there is more to do."""
        cdef uint64_t target = <uint64_t>job.wanted - job.base
        cdef uint64_t size, n, got, here, last = job.at >> MARK_SHIFT
        cdef uint64_t* larger
        cdef int64_t work = STEP_SEARCH
        while work > 0:
            n = min(job.end - job.at, <uint64_t>SEARCH_BYTES)
            got = read_up_to(job, scratch, n)
            if got < min(n, <uint64_t>LENGTH_BYTES):
                self.stop(job, BRIDGE_UNREADABLE)
                return False
            work -= <int64_t>n
            here = 0
            while got - here >= LENGTH_BYTES:
                size = <uint64_t>be32(scratch + here) + 4
                if size < LEAST_ENTRY_BYTES or size > job.end - job.at:
                    # what is damaged here is not what was asked for
                    job.at = target
                    job.is_found = job.is_believed = True
                    return True
                if job.at + size > target:
                    job.is_found = True
                    return True
                job.at += size
                here += size
                if job.at >> MARK_SHIFT != last:
                    last = job.at >> MARK_SHIFT
                    if job.mark_count & 63 == 0:
                        larger = <uint64_t*>realloc(job.marks, (job.mark_count + 64) * sizeof(uint64_t))
                        if larger == NULL:
                            job.status = BRIDGE_NO_MEMORY
                            return False
                        job.marks = larger
                    job.marks[job.mark_count] = job.at
                    job.mark_count += 1
                if here > got:
                    break
            if job.end - job.at < LENGTH_BYTES:
                job.at = target
                job.is_found = job.is_believed = True
                return True
        return True

"""Appending: lock, admit, roll, write, publish, unlock. The only code that moves a log end.

The bytes are written by the thread that holds the lock, so a dead owner has no write in flight, and repair is O(1): cut
the active segment back to the published log end, finish a half-made roll, go on.

Source: paper, section 3.1; roll order (before the append) as in Kafka 0.7.2; the bound on unflushed data is fastlog's.
"""

from libc.errno cimport EBUSY, EEXIST, EFBIG, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport (
    EOWNERDEAD, FL_FLUSHER, FL_STATE_OFFLINE, FL_STATE_READ_ONLY, FL_USED_ORIGIN_MS, FL_WHY_CUT, FL_WHY_NAME, FL_WHY_REPAIR,
    fl_announce, fl_base_at, fl_bump, fl_cell_at, fl_end, fl_end_fill, fl_end_open, fl_end_own, fl_end_read, fl_file_position,
    fl_first_ms_at, fl_generation_at, fl_header, fl_last_ms_at, fl_lives, fl_load, fl_mark_dirty, fl_monotonic_ns, fl_or,
    fl_sequenced, fl_slot, fl_start_at, fl_store, fl_take_out, fl_wake, fl_wake_flusher, fl_wake_slot, fl_wake_waiters,
    fl_wall_ms, pthread_mutex_consistent, pthread_mutex_trylock, pthread_mutex_unlock,
)
from fastlog.log._shared_memory cimport N_APPENDS, N_LOCK_WAITS, N_PRODUCERS_EVICTED, N_REPAIRS, N_ROLLS
from fastlog.log._files cimport (
    AT_AFTER_LOCK, AT_AFTER_WRITE, AT_APPEND_PUBLISHED, AT_BEFORE_UNLOCK, AT_CELL_FILLED, AT_CELL_OPEN, AT_IN_REPAIR, AT_MID_WRITE,
    AT_REPAIR_CUT, AT_REPAIR_DONE, AT_REPAIR_MARKED, AT_ROLL_CREATED, AT_ROLL_ENTRY, AT_LIFE_ANNOUNCED,
    AT_LIFE_ENDED, AT_LIFE_MARKED, AT_ROLL_PUBLISHED, AT_UNLOCKED,
    failpoint, file_cut, file_open, file_pwrite, mid_write_cut,
)
from fastlog.log._index cimport Additions, add_entry, begin_segment, cut_indexes, seal, write_additions
from fastlog.log._producers cimport (
    IN_SEQUENCE, IS_DUPLICATE, OLD_EPOCH, follow, put_producer, repair_producers,
)
from fastlog.log._segments cimport LOG_FILE, PATH_BYTES, SegmentFiles, segment_path
from fastlog.log.formats._table cimport Format, Sequenced, format_of

cdef extern from "<fcntl.h>" nogil:
    int O_RDWR, O_CREAT, O_EXCL

cdef extern from "<unistd.h>" nogil:
    int close(int)
    int usleep(unsigned int)

cdef extern from "<sys/stat.h>" nogil:
    struct stat_t "stat":
        long st_size
    int fstat(int, stat_t*)

cdef enum:
    # after this many appended bytes the flusher is woken to preallocate and to start write-back
    NUDGE_SHIFT = 22
    LONG_CALL_NS = 100000000
    MOST_INDEXED = 0x7FFFFFFF

cdef uint64_t MAX_OFFSET = <uint64_t>0x7FFFFFFFFFFFFFFF


cdef inline void take_out(fl_slot* s, uint64_t why, int error) noexcept nogil:
    fl_take_out(&s.state, FL_STATE_READ_ONLY, why, <uint64_t>error)


cdef class Appender:
    """Appends for one process and one thread; ``process`` is the place of that process in the arena's list."""

    def __cinit__(self, Arena arena, SegmentFiles files, int process):
        self.arena = arena
        self.files = files
        self.process = process
        self.counters = fl_cell_at(arena.header, process).counters
        self.holding = &fl_cell_at(arena.header, process).holding
        self.disk_ns = &fl_cell_at(arena.header, process).disk_ns
        self.heartbeat_ns = &fl_cell_at(arena.header, process).heartbeat_ns

    cdef void begin_disk(self) noexcept nogil:
        """Say that from now on this process may wait for a disk, so that nobody takes it for dead."""
        fl_store(self.disk_ns, fl_monotonic_ns())

    cdef void end_disk(self) noexcept nogil:
        """It has come back. A call that took long is a sign of life: on a slow disk one turn of a loop has many."""
        cdef uint64_t now_ns = fl_monotonic_ns()
        if now_ns - self.disk_ns[0] > LONG_CALL_NS:
            fl_store(self.heartbeat_ns, now_ns)
        fl_store(self.disk_ns, 0)

    def take_over(self):
        """At the start of a process: finish what a predecessor in its place left in the middle of an append, if it did.

        Until then its cell says that it holds a lock, and the supervisor watches it more closely than the others.
        """
        cdef uint64_t held = fl_load(self.holding)
        cdef fl_slot* s
        if held:
            s = self.arena.slot(held - 1)
            if self.lock(s) == 0:
                self.unlock(s)
            fl_store(self.holding, 0)

    cdef int take_lock(self, fl_slot* s) noexcept nogil:
        """0 when held, and what a dead owner left is marked torn; EBUSY when somebody else holds it, or another errno."""
        cdef int r = pthread_mutex_trylock(&s.lock)
        if r != 0 and r != EOWNERDEAD:
            if r == EBUSY:
                fl_bump(&self.counters[<int>N_LOCK_WAITS], 1)
            else:  # the mutex is lost for good; nothing may be appended here any more
                take_out(s, FL_WHY_REPAIR, r)
            return r
        fl_store(self.holding, s.index + 1)
        if r == EOWNERDEAD:
            # marked first, then consistent: nobody appends behind half a message, whoever dies from here on
            fl_store(&s.torn, 1)
            failpoint(AT_REPAIR_MARKED)
            pthread_mutex_consistent(&s.lock)
        return 0

    cdef int lock(self, fl_slot* s) noexcept nogil:
        """0 when held, EBUSY when somebody else holds it, EIO when repair after a dead owner failed (not held then).

        EBUSY also when there is no descriptor or memory for a repair now: what is torn stays marked for the next try.
        """
        cdef int r = self.take_lock(s)
        if r != 0 or not s.torn or not fl_lives(s):
            return r
        self.begin_disk()
        r = self.repair(s)
        self.end_disk()
        if r == 0:
            failpoint(AT_REPAIR_DONE)
            fl_store(&s.torn, 0)
            fl_bump(&self.counters[<int>N_REPAIRS], 1)
            # the dead owner may have published bytes and not come to say so
            fl_wake_flusher(self.arena.header, self.arena.eventfds, s.index)
            return 0
        if r == -EMFILE or r == -ENFILE or r == -ENOMEM:
            self.unlock(s)
            return EBUSY
        take_out(s, FL_WHY_NAME if r == -EEXIST else FL_WHY_REPAIR, -r)
        self.unlock(s)
        # what was published before is whole: it is flushed and shown, and only then the partition stands still
        fl_wake_flusher(self.arena.header, self.arena.eventfds, s.index)
        fl_wake_slot(self.arena.header, self.arena.eventfds, s)
        return EIO

    cdef void unlock(self, fl_slot* s) noexcept nogil:
        """Give the append lock of a slot back, and wake who waits for it."""
        failpoint(AT_BEFORE_UNLOCK)
        fl_store(self.holding, 0)
        pthread_mutex_unlock(&s.lock)
        failpoint(AT_UNLOCKED)
        fl_wake_waiters(self.arena.header, self.arena.eventfds, &s.lock_waiters)

    cdef int repair(self, fl_slot* s) noexcept nogil:
        """Bring a partition back after its lock owner died: 0, or -errno."""
        cdef fl_header* h = self.arena.header
        cdef const fl_end* end = fl_end_own(&s.log_end, s.log_ends)
        cdef uint64_t last = s.table_tail - 1
        cdef uint64_t size = fl_file_position(h, s, last, end.position)
        cdef int entry, fd, r
        cdef char[PATH_BYTES] path
        cdef stat_t found
        failpoint(AT_IN_REPAIR)
        entry = self.files.acquire(s, last, fl_base_at(h, s, last)[0])
        if entry < 0:
            return entry
        # never below the flushed end: the log end is at or above it, so no reader sees a byte disappear
        r = file_cut(self.files.fd(entry), size)
        if r != 0:
            return r
        failpoint(AT_REPAIR_CUT)
        repair_producers(h, s)
        if format_of(s.format).locate == NULL:
            cut_indexes(self.files, s, last, fl_base_at(h, s, last)[0], end)
        if size == 0:
            return 0
        # a roll that got as far as its file and no further: adopt the empty file, refuse one that holds bytes
        if segment_path(self.arena, s, end.offset, path, PATH_BYTES) != 0:
            return -EIO
        fd = file_open(path, O_RDWR, 0)
        if fd == -ENOENT:
            return 0
        if fd < 0:
            return fd
        if fstat(fd, &found) != 0 or found.st_size != 0:
            close(fd)
            return -EEXIST
        self.publish_segment(s, end, fd)
        return 0

    cdef void publish_segment(self, fl_slot* s, const fl_end* end, int fd) noexcept nogil:
        cdef fl_header* h = self.arena.header
        cdef uint64_t index = s.table_tail
        fl_store(fl_base_at(h, s, index), end.offset)
        fl_store(fl_start_at(h, s, index), end.position)
        fl_store(fl_generation_at(h, s, index), 0)
        fl_store(fl_first_ms_at(h, s, index), fl_wall_ms())
        fl_store(fl_last_ms_at(h, s, index), 0)
        failpoint(AT_ROLL_ENTRY)
        fl_store(&s.table_tail, index + 1)
        failpoint(AT_ROLL_PUBLISHED)
        # the flusher makes the new name durable before the flushed end may pass it
        fl_mark_dirty(h, s.index)
        if self.files.insert(s, index, LOG_FILE, fd) < 0:
            close(fd)
        fl_bump(&self.counters[<int>N_ROLLS], 1)

    cdef int roll(self, fl_slot* s) noexcept nogil:
        """Begin a new segment at the log end, under the lock: 0, or -errno with nothing changed.

        An existing file of that name is never deleted: an empty one is adopted, one with bytes is refused (-EEXIST), and
        the partition takes no more appends until somebody has looked at it.
        """
        cdef const fl_end* end = fl_end_own(&s.log_end, s.log_ends)
        cdef char[PATH_BYTES] path
        cdef stat_t found
        cdef fl_end sealed
        cdef int fd
        if segment_path(self.arena, s, end.offset, path, PATH_BYTES) != 0:
            return -EIO
        fd = file_open(path, O_RDWR | O_CREAT | O_EXCL, 0o644)
        if (fd == -EMFILE or fd == -ENFILE) and self.files.give_back():
            fd = file_open(path, O_RDWR | O_CREAT | O_EXCL, 0o644)
        if fd == -EEXIST:
            fd = file_open(path, O_RDWR, 0)
            if fd < 0:
                return fd
            if fstat(fd, &found) != 0 or found.st_size != 0:
                close(fd)
                take_out(s, FL_WHY_NAME, EEXIST)
                return -EEXIST
        if fd < 0:
            return fd
        failpoint(AT_ROLL_CREATED)
        if format_of(s.format).locate == NULL:
            sealed = end[0]
            seal(self.files, s, s.table_tail - 1, fl_base_at(self.arena.header, s, s.table_tail - 1)[0], &sealed)
        self.publish_segment(s, end, fd)
        return 0

    cdef int write_all(self, fl_slot* s, int fd, uint64_t position, const uint8_t* data, uint64_t n) noexcept nogil:
        """Write at ``position`` of the file, where the log ends; go on after a short write, cut back on failure. 0 or -errno."""
        cdef uint64_t written = 0
        cdef uint64_t part = mid_write_cut(n)
        cdef int64_t r
        cdef int cut
        while written < n:
            r = file_pwrite(fd, data + written, min(part, n - written), position + written)
            if r <= 0:
                if r == 0:
                    r = -ENOSPC
                cut = file_cut(fd, position)
                if cut != 0:
                    take_out(s, FL_WHY_CUT, -cut)
                return <int>r
            written += <uint64_t>r
            if part < n:
                failpoint(AT_MID_WRITE)
        if part == n:
            failpoint(AT_MID_WRITE)
        return 0

    cdef int follow_first(self, const Format* made, fl_slot* s, const fl_end* end, const uint8_t* p, uint64_t size,
                          uint64_t used_ms, Appended* out) noexcept nogil:
        """Begin to follow producers with the first piece of a write, at ``p``: APPENDED when it is for the log, or why not."""
        cdef Sequenced batch
        cdef const fl_sequenced* original = NULL
        cdef int judgement
        self.followed.count = 0
        made.sequenced(p, &batch)
        if batch.producer < 0:
            return APPENDED
        judgement = follow(&self.followed, self.arena.header, s, &self.hints, &batch, end.offset, end.position + size, used_ms,
                           &original)
        if judgement == IN_SEQUENCE:
            return APPENDED
        if judgement == IS_DUPLICATE:
            out.base = original.offset
            out.end = original.end
            out.time = original.time
            return APPEND_DUPLICATE
        return <int>APPEND_OLD_EPOCH if judgement == OLD_EPOCH else <int>APPEND_OUT_OF_SEQUENCE

    cdef bint follow_next(self, const Format* made, fl_slot* s, const fl_end* end, const uint8_t* p, uint64_t written,
                          uint64_t used_ms) noexcept nogil:
        """Whether a further piece, at ``p``, that will end this many bytes behind the log end belongs to the same write."""
        cdef Sequenced batch
        cdef const fl_sequenced* original = NULL
        made.sequenced(p, &batch)
        return batch.producer < 0 or follow(
            &self.followed, self.arena.header, s, &self.hints, &batch, end.offset, end.position + written, used_ms, &original
        ) == IN_SEQUENCE

    cdef void put_followed(self, fl_slot* s, const fl_end* end, uint64_t used_ms) noexcept nogil:
        """Write down what holds of the producers from this log end on, which is published next."""
        cdef uint32_t i
        for i in range(self.followed.count):
            self.followed.states[i].end = end.position
            if put_producer(self.arena.header, s, &self.hints, &self.followed.states[i], used_ms):
                fl_bump(&self.counters[<int>N_PRODUCERS_EVICTED], 1)
        if self.followed.count and not s.sequenced:
            fl_store(&s.sequenced, 1)

    cdef int admit(self, fl_slot* s, const Piece* pieces, int n, uint64_t now_ns) noexcept nogil:
        """How many of the pieces the bound of unflushed data lets in now; a fully flushed partition always takes one."""
        cdef fl_end flushed
        cdef uint64_t unflushed_bytes, unflushed, oldest
        cdef int i = 0
        fl_end_read(&s.flushed_end, s.flushed_ends, &flushed)
        unflushed_bytes = s.log_end - flushed.position
        if unflushed_bytes:
            unflushed = fl_end_own(&s.log_end, s.log_ends).messages - flushed.messages
            oldest = max(s.dirty_since_ns, fl_load(&s.last_flush_ns))
            if now_ns > oldest and now_ns - oldest > 2 * s.flush_ns:
                return 0
        else:
            unflushed = pieces[0].count
            unflushed_bytes = pieces[0].size
            i = 1
        while i < n:
            unflushed += pieces[i].count
            unflushed_bytes += pieces[i].size
            if unflushed > s.flush_messages or unflushed_bytes > s.flush_bytes:
                break
            i += 1
        return i

    cdef int append(self, fl_slot* s, uint64_t life, uint8_t* data, const Piece* pieces, int n, uint64_t* offsets,
                    Appended* out) noexcept nogil:
        """Append checked pieces in order, as many as are admitted; never waits.

        Args:
            life: the life of the slot that they are for.
            data: the pieces' bytes, back to back; those of a format that says so get their offsets stored in them.
            offsets: takes the offset of each piece that was written.
            out: what was done, also when the status is not APPENDED.

        Safe from any process; the caller tries again with the rest after APPEND_BUSY and APPEND_FULL.
        """
        cdef fl_header* h = self.arena.header
        cdef uint64_t now_ns, now_ms, last, size, bytes_now, limit, first_ms, base
        cdef const Format* made = format_of(s.format)
        cdef Additions added
        cdef fl_end end
        cdef fl_end* cell
        cdef int r, k, admitted, entry, status = APPENDED
        cdef bint was_clean = False, nudge = False
        cdef uint64_t used_ms = 0
        out.done = 0
        out.bytes = 0
        out.error = 0
        if fl_load(&s.life) != life or not life & 1:  # it may have ended just before it was looked at
            return APPEND_GONE
        if fl_load(&s.state) & (FL_STATE_READ_ONLY | FL_STATE_OFFLINE):
            return APPEND_OFFLINE
        r = self.lock(s)
        if r != 0:
            return APPEND_BUSY if r == EBUSY else APPEND_OFFLINE
        failpoint(AT_AFTER_LOCK)
        if s.life != life:
            self.unlock(s)
            return APPEND_GONE
        end = fl_end_own(&s.log_end, s.log_ends)[0]
        out.first = out.next = end.offset
        out.position = end.position
        now_ns = fl_monotonic_ns()
        now_ms = fl_wall_ms()
        while out.done < n:
            if fl_load(&s.state) & (FL_STATE_READ_ONLY | FL_STATE_OFFLINE):
                status = APPEND_OFFLINE
                break
            self.followed.count = 0
            if pieces[out.done].base >= 0:
                if <uint64_t>pieces[out.done].base != end.offset:
                    status = APPEND_OUT_OF_SEQUENCE
                    break
            elif made.assign != NULL:
                used_ms = FL_USED_ORIGIN_MS + now_ns // 1000000
                status = self.follow_first(made, s, &end, data + out.bytes, pieces[out.done].size, used_ms, out)
                if status != APPENDED:
                    break
            admitted = self.admit(s, pieces + out.done, n - out.done, now_ns)
            if admitted == 0:
                status = APPEND_FULL
                break
            last = s.table_tail - 1
            size = fl_file_position(h, s, last, end.position)
            first_ms = fl_first_ms_at(h, s, last)[0]
            base = fl_base_at(h, s, last)[0]
            if size and (size > s.segment_bytes or (first_ms and now_ms > first_ms and now_ms - first_ms > s.roll_ms)
                         or (made.locate == NULL and is_too_far(base, size, &end, pieces + out.done))):
                # a full table only makes segments longer, where places may be that far
                if s.table_tail - fl_load(&s.table_head) < h.table_entries:
                    self.begin_disk()
                    r = self.roll(s)
                    self.end_disk()
                    if r != 0:
                        out.error = -r
                        status = APPEND_FAILED
                        break
                    last += 1
                    size = 0
                elif made.locate == NULL:
                    # its indexes know places and offsets of 31 bits
                    out.error = ENOSPC
                    status = APPEND_FAILED
                    break
            # what one request at a time would have put into this segment
            k = 0
            bytes_now = 0
            limit = s.segment_bytes
            base = fl_base_at(h, s, last)[0]
            if made.locate == NULL and size == 0:
                begin_segment(&end)
            while k < admitted and (k == 0 or size + bytes_now <= limit):
                if k and made.locate == NULL and is_too_far(base, size + bytes_now, &end, pieces + out.done + k):
                    break
                if made.assign != NULL:
                    if pieces[out.done + k].base >= 0:
                        if <uint64_t>pieces[out.done + k].base != end.offset:
                            break
                    elif k and not self.follow_next(made, s, &end, data + out.bytes + bytes_now,
                                                  bytes_now + pieces[out.done + k].size, used_ms):
                        break
                    made.assign(data + out.bytes + bytes_now, pieces[out.done + k].size, end.offset, s.epoch)
                offsets[out.done + k] = end.offset
                end.offset += pieces[out.done + k].span
                end.messages += pieces[out.done + k].count
                bytes_now += pieces[out.done + k].size
                k += 1
            end.position += bytes_now
            if end.offset > MAX_OFFSET or end.position > MAX_OFFSET:
                out.error = EFBIG
                status = APPEND_FAILED
                break
            self.begin_disk()
            entry = self.files.acquire(s, last, base)
            r = entry if entry < 0 else self.write_all(s, self.files.fd(entry), size, data + out.bytes, bytes_now)
            self.end_disk()
            if r < 0:
                out.error = -r
                status = APPEND_FAILED
                break
            failpoint(AT_AFTER_WRITE)
            if made.locate == NULL:
                index_pieces(&added, &end, base, size, pieces + out.done, k, offsets + out.done)
                if added.entries or added.times:
                    self.begin_disk()
                    write_additions(self.files, s, last, base, &added, &end)
                    self.end_disk()
                if made.assign != NULL and self.followed.count:
                    self.put_followed(s, &end, used_ms)
            if s.log_end == fl_load(&s.flushed_end):
                fl_store(&s.dirty_since_ns, now_ns)
                was_clean = True
            if size == 0 or first_ms == 0:
                fl_store(fl_first_ms_at(h, s, last), now_ms)
            # by what retention goes: the times of messages where they have them
            fl_store(fl_last_ms_at(h, s, last), end.largest_ms - 1 if made.locate == NULL and end.largest_ms else now_ms)
            cell = fl_end_open(&s.log_end, s.log_ends)
            failpoint(AT_CELL_OPEN)
            fl_end_fill(cell, &end)
            failpoint(AT_CELL_FILLED)
            fl_store(&s.log_end, end.position)
            failpoint(AT_APPEND_PUBLISHED)
            out.done += k
            out.bytes += bytes_now
            out.next = end.offset
        if out.bytes:
            fl_bump(&self.counters[<int>N_APPENDS], 1)
            fl_mark_dirty(h, s.index)
            nudge = was_clean or (out.position >> NUDGE_SHIFT) != (s.log_end >> NUDGE_SHIFT) or flush_due(s)
        if status == APPEND_FULL:
            # somebody waits for a flush now, also when neither half of a bound is reached
            fl_or(&s.demand, 1)
            fl_mark_dirty(h, s.index)
            nudge = True
        if status == APPEND_FAILED and fl_load(&s.state):
            # out of service from here on; what was published before is flushed now
            fl_mark_dirty(h, s.index)
            nudge = True
        self.unlock(s)
        if nudge:
            fl_wake(h, self.arena.eventfds, FL_FLUSHER)
        return status


cdef bint is_too_far(uint64_t base, uint64_t size, const fl_end* end, const Piece* piece) noexcept nogil:
    """Whether a piece would leave what the indexes of a segment can say: 31 bits of bytes and of offsets."""
    return size + piece.size > <uint64_t>MOST_INDEXED or end.offset + piece.span - base > <uint64_t>MOST_INDEXED


cdef void index_pieces(Additions* added, fl_end* end, uint64_t base, uint64_t position, const Piece* pieces, int n,
                       const uint64_t* offsets) noexcept nogil:
    """What pieces, one entry of the log each, that were written from this place of the file on add to its indexes."""
    cdef int i
    added.entries = added.times = 0
    for i in range(n):
        add_entry(added, end, base, position, pieces[i].size, offsets[i] + pieces[i].span - 1, pieces[i].largest_ms)
        position += pieces[i].size


cdef bint flush_due(fl_slot* s) noexcept nogil:
    """Whether the flusher should look now and not at its next tick; the caller holds the append lock."""
    cdef fl_end flushed
    fl_end_read(&s.flushed_end, s.flushed_ends, &flushed)
    return (fl_load(&s.demand) != 0
            or fl_end_own(&s.log_end, s.log_ends).messages - flushed.messages >= (s.flush_messages + 1) // 2
            or s.log_end - flushed.position >= s.flush_bytes // 2)


def roll_now(Appender appender, uint64_t slot, uint64_t wait_ms=1000):
    """Begin a new segment if the active one holds bytes (retention does this before it drops the last full segment).

    Returns:
        ``True`` when the active segment is empty afterwards, ``False`` when the partition takes no appends, the lock could
        not be had in time or the roll failed (tried again at the next clean-up).
    """
    cdef fl_slot* s = appender.arena.slot(slot)
    if fl_load(&s.state):
        return False
    cdef int r = appender.lock(s)
    cdef uint64_t end_ns = fl_monotonic_ns() + wait_ms * 1000000
    cdef uint64_t active
    while r == EBUSY and fl_monotonic_ns() < end_ns:
        with nogil:
            usleep(1000)
        r = appender.lock(s)
    if r != 0:
        return False
    active = s.table_tail - 1
    if fl_file_position(appender.arena.header, s, active, s.log_end) == 0:
        r = 0
    elif s.table_tail - fl_load(&s.table_head) >= appender.arena.header.table_entries:
        r = -1
    else:
        appender.begin_disk()
        r = appender.roll(s)
        appender.end_disk()
    appender.unlock(s)
    fl_wake(appender.arena.header, appender.arena.eventfds, FL_FLUSHER)
    return r == 0


def end_life(Appender appender, uint64_t slot, bint returns=False):
    """End the life of a slot and tell everybody; the caller holds the creation lock.

    From here on nothing is appended, and nobody finds the partition who looks for it; who has found it before reads on until
    ``Arena.is_past``. Its name is for the caller to keep until its files have gone. With ``returns``, those who look for it find
    it on, and read what is visible; it is for the caller to let it live again (``Arena.succeed``, ``revive``).

    Returns:
        False when somebody holds the append lock: nothing has changed, try again.
    """
    cdef fl_slot* s = appender.arena.slot(slot)
    cdef fl_header* h = appender.arena.header
    if not fl_lives(s):
        return True
    if appender.take_lock(s) == EBUSY:
        return False
    # a lock that is lost for good is nobody's: nothing is appended there any more
    if s.leaving == 0:
        fl_store(&h.leaving_count, h.leaving_count + 1)
    fl_store(&s.leaving, h.change_count + 1)
    fl_store(&s.returns, returns)
    failpoint(AT_LIFE_MARKED)
    fl_store(&s.life, s.life + 1)
    failpoint(AT_LIFE_ENDED)
    fl_announce(h, s.index)
    failpoint(AT_LIFE_ANNOUNCED)
    appender.unlock(s)
    fl_wake_slot(h, appender.arena.eventfds, s)
    appender.arena.retention_done()
    return True


def append_sets(Appender appender, uint64_t slot, sets):
    """Append checked message sets, each with its count of messages, in one turn at the lock, as a processor does with
    requests that came together: ``(status, offsets of those that were written, next offset, errno)``; for tests.

    A set takes as many offsets as it has bytes; a third number says how many, where that is otherwise, and a fourth one its
    largest time in ms, a fifth one the only offset that it may get. Behind the offsets of those that were written is that of
    the original of a duplicate.
    """
    cdef fl_slot* s = appender.arena.slot(slot)
    cdef Piece[64] pieces
    cdef uint64_t[64] offsets
    cdef Appended out
    cdef bytes data = b"".join([item[0] for item in sets])
    cdef int i, n = len(sets), status
    cdef bytearray copied = bytearray(data)
    cdef uint8_t* start = copied
    if not 0 < n <= 64 or not all(item[0] for item in sets):
        raise ValueError(f"{n} message sets, or one without bytes")
    for i in range(n):
        pieces[i].size = <uint32_t>len(sets[i][0])
        pieces[i].count = sets[i][1]
        pieces[i].span = sets[i][2] if len(sets[i]) > 2 else pieces[i].size
        pieces[i].largest_ms = sets[i][3] if len(sets[i]) > 3 else -1
        pieces[i].base = sets[i][4] if len(sets[i]) > 4 else -1
    with nogil:
        status = appender.append(s, s.life, start, pieces, n, offsets, &out)
    return status, [offsets[i] for i in range(out.done)] + ([out.base] if status == APPEND_DUPLICATE else []), out.next, out.error


def append_batch(Appender appender, uint64_t slot, uint8_t[::1] data, uint32_t count, int64_t largest_ms, life=None):
    """Append one checked record batch from Python, whose base offset and epoch are stored in ``data``; as ``append_bytes``."""
    cdef fl_slot* s = appender.arena.slot(slot)
    cdef Piece piece
    cdef Appended out
    cdef uint64_t offset = 0
    if not 0 < data.shape[0] <= 0x7FFFFFFF:
        raise ValueError(f"a record batch of {data.shape[0]} bytes")
    piece.size = <uint32_t>data.shape[0]
    piece.count = piece.span = count
    piece.largest_ms = largest_ms
    piece.base = -1
    cdef int status
    cdef uint64_t meant = s.life if life is None else life
    with nogil:
        status = appender.append(s, meant, &data[0], &piece, 1, &offset, &out)
    return status, out.first, out.next, out.error


def append_bytes(Appender appender, uint64_t slot, const uint8_t[::1] data, uint32_t count, life=None):
    """Append one checked message set from Python: ``(status, first offset, next offset, errno)``; for tools and tests.

    Of a format whose entries hold no offsets.
    """
    cdef fl_slot* s = appender.arena.slot(slot)
    cdef Piece piece
    cdef Appended out
    cdef uint64_t offset = 0
    if not 0 < data.shape[0] <= 0x7FFFFFFF:
        raise ValueError(f"a message set of {data.shape[0]} bytes")
    piece.size = <uint32_t>data.shape[0]
    piece.count = count
    piece.span = piece.size
    piece.largest_ms = piece.base = -1
    cdef int status
    cdef uint64_t meant = s.life if life is None else life
    with nogil:
        status = appender.append(s, meant, <uint8_t*>&data[0], &piece, 1, &offset, &out)
    return status, out.first, out.next, out.error

"""Flushing: what moves the flushed end, and the visible end behind it. Only the flusher process runs it.

A flush reads the log end *before* fdatasync and publishes exactly that value afterwards; how much of it consumers see is
for ``fl_may_see`` (``_arena.h``) to decide. A failed fdatasync is never tried again: the kernel reports a failed
write-back once and marks the pages clean, so a second call would succeed without the bytes being anywhere.

Source: paper, section 3.1 (messages are exposed to consumers after they are flushed).
"""

cimport cython
from libc.errno cimport EBUSY, EDQUOT, EFBIG, EINVAL, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC, EOPNOTSUPP
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from fastlog.log._append cimport Appender
from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport (
    FL_FLUSHER, FL_NO_MARK, FL_STATE_NO_FLUSH, FL_STATE_READ_ONLY, FL_WHY_CHECK, FL_WHY_FLUSH, fl_add, fl_ask, fl_base_at,
    fl_cell_at, fl_end, fl_end_publish, fl_end_read, fl_fence, fl_file_position, fl_find_position, fl_header, fl_load,
    fl_monotonic_ns, fl_or, fl_show, fl_slot, fl_start_at, fl_store, fl_swap, fl_take_out, fl_wake_flusher, fl_wake_slot,
    pthread_mutex_t,
)
from fastlog.log._shared_memory cimport (
    N_FLUSH_FAILURES, N_FLUSH_NS, N_FLUSHED_BYTES, N_FLUSHES, N_FLUSHES_NO_FILES, N_FLUSHES_NO_ROOM, N_REWRITTEN,
)
from fastlog.log._files cimport (
    AT_AFTER_SYNC, AT_BEFORE_SYNC, AT_FLUSH_BEGUN, AT_FLUSH_END_READ,
    AT_FLUSH_ENDED, AT_FLUSH_MARKED, AT_FLUSHED, AT_FLUSH_PUBLISHED, AT_FLUSH_TAIL_READ, AT_MARK_MOVED, AT_NAMES_SYNCED,
    AT_RELEASE_LOCKED, AT_RELEASE_SEALED, AT_REWRITE, AT_REWRITTEN, AT_SEGMENT_SYNCED, AT_TIME_STORED, failpoint, file_cut,
    file_drop_cache, file_fdatasync, file_fsync, file_mark, file_open, file_preallocate, file_pread, file_pwrite,
    file_rename, file_writeback,
)
from fastlog.log.formats._table cimport ENTRIES_CUT, ENTRIES_WHOLE, Entries, format_of
from fastlog.log._segments cimport OFFSET_INDEX, PATH_BYTES, TIME_INDEX, SegmentFiles, file_path, flushed_mark_path, marks_path, partition_path, segment_path

from fastlog.log._shared_memory import COUNTER_NUMBER, FLUSH_BUCKETS_US

cdef extern from "<fcntl.h>" nogil:
    int O_CREAT, O_DIRECTORY, O_RDONLY, O_RDWR, O_WRONLY

cdef extern from "<unistd.h>" nogil:
    int close(int)
    int usleep(unsigned int)

cdef extern from "pthread.h" nogil:
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)

cdef extern from "<sys/vfs.h>" nogil:
    struct statfs_t "statfs":
        unsigned long f_blocks
        unsigned long f_bavail
    int fstatfs(int, statfs_t*)

cdef extern from "<sys/stat.h>" nogil:
    struct stat_t "stat":
        long st_size
        long st_blocks
    int fstat(int, stat_t*)

cdef extern from *:
    """
    static inline void flush_count(int *p, int by) { __atomic_fetch_add(p, by, __ATOMIC_RELAXED); }
    static inline int flush_counted(const int *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
    """
    void flush_count(int*, int) nogil
    int flush_counted(const int*) nogil

cdef enum:
    REWRITE_WINDOW = 4 << 20
    DROP_BYTES = 1 << 20           # so much at once is worth a call
    BLOCK_BYTES = 512              # the unit of st_blocks, whatever the file system
    MARKS_MODE = 0o644             # as of every file, less the umask
    LEAST_FREE_PERCENT = 15
    ROUNDING_BYTES = 128 << 10     # more bytes of blocks than this are a preallocation


cdef inline bint passing(int r) noexcept nogil:
    """Whether an error says something about this process or machine at this moment, and nothing about the disk."""
    return r == -EMFILE or r == -ENFILE or r == -ENOMEM or r == -EBUSY


cdef inline bint no_room(int r) noexcept nogil:
    """Whether a disk, a quota or a limit of file sizes (RLIMIT_FSIZE) gives no room; that passes, too."""
    return r == -ENOSPC or r == -EDQUOT or r == -EFBIG


@cython.no_gc_clear  # __dealloc__ asks the arena
cdef class PartitionFlusher:
    """Flushes partitions; several threads may work at once, on different partitions.

    One that is made ``beside`` another works on other partitions, and neither waits for a lock of the other.
    """

    def __cinit__(self, Arena arena, Appender appender, int process, uint64_t preallocate_bytes, uint64_t writeback_bytes,
                  int64_t keep_bytes, int descriptors, PartitionFlusher beside=None):
        cdef uint64_t i
        self.descriptors = descriptors
        self.arena = arena
        self.appender = appender
        pthread_mutex_init(&self.append_turn, NULL)
        pthread_mutex_init(&self.marks_turn, NULL)
        self.counters = fl_cell_at(arena.header, process).counters
        self.flush_buckets = self.counters + <int>COUNTER_NUMBER[f"flushes_within_{FLUSH_BUCKETS_US[0]}_us"]
        for i, limit_us in zip(range(BUCKETS), FLUSH_BUCKETS_US, strict=True):
            self.bucket_ns[i] = limit_us * 1000
        self.preallocate_bytes = preallocate_bytes
        self.least_free_percent = LEAST_FREE_PERCENT
        self.writeback_bytes = writeback_bytes
        self.keep_bytes = keep_bytes
        self.beside = beside
        if beside is not None:
            self.states = beside.states
        else:
            self.states = <FlushState*>calloc(arena.header.max_partitions, sizeof(FlushState))
            if self.states == NULL:
                raise MemoryError
            for i in range(arena.header.max_partitions):
                self.states[i].fd = -1
        self.marks = <int*>calloc(len(arena.log_dirs), sizeof(int))
        if self.marks == NULL:
            raise MemoryError
        for i in range(<uint64_t>len(arena.log_dirs)):
            self.marks[i] = -1
        self.preallocation_off = <int*>calloc(len(arena.log_dirs), sizeof(int))
        if self.preallocation_off == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef uint64_t i
        if self.states != NULL and self.beside is None:
            for i in range(self.arena.header.max_partitions):
                if self.states[i].fd >= 0:
                    close(self.states[i].fd)
            free(self.states)
        free(self.preallocation_off)
        if self.marks != NULL:
            for i in range(<uint64_t>len(self.arena.log_dirs)):
                if self.marks[i] >= 0:
                    close(self.marks[i])
        free(self.marks)

    cdef int open_segment(self, fl_slot* s, uint64_t index) noexcept nogil:
        cdef char[PATH_BYTES] path
        if segment_path(self.arena, s, fl_load(fl_base_at(self.arena.header, s, index)), path, PATH_BYTES) != 0:
            return -EIO
        return file_open(path, O_RDWR, 0)

    cdef int take_segment(self, fl_slot* s, uint64_t index) noexcept nogil:
        """Have this segment open, instead of the one that was: 0, or -errno with nothing changed but perhaps that."""
        cdef FlushState* st = &self.states[s.index]
        cdef stat_t found
        cdef int fd
        if st.fd >= 0 and st.index == index:
            return 0
        fd = self.open_segment(s, index)
        if passing(fd) and st.fd >= 0:
            self.leave_segment(s)
            fd = self.open_segment(s, index)
        if fd < 0:
            return fd
        self.leave_segment(s)
        st.fd = fd
        st.index = index
        flush_count(&self.open_count, 1)
        # a flusher that was killed has not recorded what it reserved
        if fstat(fd, &found) == 0 and found.st_blocks * BLOCK_BYTES > found.st_size + <long>ROUNDING_BYTES:
            st.preallocated = <uint64_t>found.st_blocks * BLOCK_BYTES
        return 0

    cdef void leave_segment(self, fl_slot* s) noexcept nogil:
        """Close the segment that is kept open; when it is sealed, what was reserved behind its end is given back first."""
        cdef fl_header* h = self.arena.header
        cdef FlushState* st = &self.states[s.index]
        cdef uint64_t size
        if st.fd < 0:
            return
        if st.preallocated and st.index + 1 < fl_load(&s.table_tail):
            failpoint(AT_RELEASE_SEALED)
            size = fl_file_position(h, s, st.index, fl_load(fl_start_at(h, s, st.index + 1)))
            fl_fence()
            if st.index >= fl_load(&s.table_head):
                file_cut(st.fd, size)
        close(st.fd)
        st.fd = -1
        st.preallocated = 0
        flush_count(&self.open_count, -1)

    cdef void forget(self, fl_slot* s) noexcept nogil:
        """Remember nothing of a partition that has gone."""
        cdef FlushState* st = &self.states[s.index]
        if st.fd >= 0:
            close(st.fd)
            flush_count(&self.open_count, -1)
        memset(st, 0, sizeof(FlushState))
        st.fd = -1

    cdef bint over_budget(self) noexcept nogil:
        return flush_counted(&self.open_count) > self.descriptors

    cdef int postpone(self, fl_slot* s, int error) noexcept nogil:
        """End a flush that failed for a passing reason; what it synced was synced, so nothing is in doubt.

        A mark that it has left stays until the next one: it costs a start time, and no more.
        """
        fl_or(&s.demand, 1)  # who asked for it before it began still waits
        fl_store(&s.flush_in_progress, 0)
        fl_add(&self.counters[<int>N_FLUSHES_NO_FILES if passing(error) else <int>N_FLUSHES_NO_ROOM], 1)
        return error

    cdef int fail(self, fl_slot* s, uint64_t why, int error) noexcept nogil:
        """Take the partition out of service for appends and for flushes; reads up to the visible end go on."""
        # counted first: whoever sees what a flush came to finds it in the counters
        fl_add(&self.counters[<int>N_FLUSH_FAILURES], 1)
        fl_take_out(&s.state, FL_STATE_READ_ONLY | FL_STATE_NO_FLUSH, why, <uint64_t>error)
        fl_store(&s.flush_in_progress, 0)
        fl_wake_slot(self.arena.header, self.arena.eventfds, s)
        return -error

    cdef int mark(self, fl_slot* s, bint on) noexcept nogil:
        """Say in the log directory that this partition's sync has an open end, or none (``flush_marks``): 0 or -errno."""
        cdef char[PATH_BYTES] path
        cdef int r = 0
        pthread_mutex_lock(&self.marks_turn)
        if self.marks[s.directory] < 0:
            r = marks_path(self.arena, s.directory, path, PATH_BYTES)
            self.marks[s.directory] = file_open(path, O_WRONLY | O_CREAT, MARKS_MODE) if r == 0 else -EIO
            r = min(self.marks[s.directory], 0)
        pthread_mutex_unlock(&self.marks_turn)
        return r if r < 0 else file_mark(self.marks[s.directory], on, 1 + s.index)

    cdef int move_flushed_mark(self, fl_slot* s, uint64_t base) noexcept nogil:
        """Let the partition's flushed mark name the segment that begins at ``base``: 0 or -errno.

        All below that offset has been synced. The mark is durable with the next sync of the directory.
        """
        cdef char[PATH_BYTES] old
        cdef char[PATH_BYTES] new
        cdef int r = -ENOENT
        if flushed_mark_path(self.arena, s, base, new, PATH_BYTES) != 0:
            return -EIO
        if s.flushed_base != FL_NO_MARK:
            flushed_mark_path(self.arena, s, s.flushed_base, old, PATH_BYTES)  # as long as the new one
            r = file_rename(old, new)
        if r == -ENOENT:
            # a flusher that died here may have renamed it; and there may never have been one
            r = file_open(new, O_WRONLY | O_CREAT, MARKS_MODE)
            if r >= 0:
                close(r)
                r = 0
        if r == 0:
            fl_store(&s.flushed_base, base)
        return r

    cdef void sync_indexes(self, fl_slot* s, uint64_t index) noexcept nogil:
        """Make the indexes of a sealed segment durable, as far as they can be: a start makes one that is lost anew."""
        cdef char[PATH_BYTES] path
        cdef int kind, fd
        for kind in range(OFFSET_INDEX, TIME_INDEX + 1):
            if file_path(self.arena, s, fl_load(fl_base_at(self.arena.header, s, index)), kind, path, PATH_BYTES) == 0:
                fd = file_open(path, O_RDWR, 0)
                if fd >= 0:
                    file_fdatasync(fd)
                    close(fd)

    cdef int sync_directories(self, fl_slot* s) noexcept nogil:
        """0, -EMFILE when no directory could be opened now, or another -errno after a sync that counts as failed."""
        cdef char[PATH_BYTES] path
        cdef int fd, r
        partition_path(self.arena, s, path, PATH_BYTES)
        fd = file_open(path, O_RDONLY | O_DIRECTORY, 0)
        if fd < 0:
            return -EMFILE if passing(fd) else fd
        r = file_fsync(fd)
        close(fd)
        if r != 0 or s.parent_synced:
            return r
        fd = file_open(self.arena.directories[s.directory], O_RDONLY | O_DIRECTORY, 0)
        if fd < 0:
            return -EMFILE if passing(fd) else fd
        r = file_fsync(fd)
        close(fd)
        return r

    cdef int flush(self, fl_slot* s) noexcept nogil:
        """Make what is appended now durable and visible: 0, or -errno.

        After an error that ``passing`` or ``no_room`` knows, but for one of a sync, it can be tried again; any other has
        taken the partition out of service.
        One that left service because of an append is flushed like any other: what lies below its log end is whole, and
        what a failed cut left behind that end is never shown.
        """
        cdef fl_header* h = self.arena.header
        cdef FlushState* st = &self.states[s.index]
        cdef uint64_t started = fl_monotonic_ns()
        cdef fl_end end
        cdef uint64_t tail, newest, high, i, wanted
        cdef int r
        if fl_load(&s.state) & FL_STATE_NO_FLUSH:
            return -EIO
        st.last_start_ns = started
        st.last_used_ns = started
        if s.flush_in_progress:
            # a flusher died between its fdatasync and the answer: nobody knows whether those bytes are on the disk
            pthread_mutex_lock(&self.append_turn)
            r = self.rewrite(s)
            pthread_mutex_unlock(&self.append_turn)
            if passing(r):
                return r
            if no_room(r):  # where writing copies; what it holds in memory stays in doubt until there is some
                fl_add(&self.counters[<int>N_FLUSHES_NO_ROOM], 1)
                return r
            if r != 0:
                return self.fail(s, FL_WHY_CHECK, -r)
        fl_store(&s.flush_in_progress, 1)
        failpoint(AT_FLUSH_BEGUN)
        wanted = fl_swap(&s.demand, 0)
        while True:
            # every segment that is looked at begins at or below the end, and there is none behind it
            tail = fl_load(&s.table_tail)
            failpoint(AT_FLUSH_TAIL_READ)
            fl_end_read(&s.log_end, s.log_ends, &end)
            if tail == fl_load(&s.table_tail):
                break
        failpoint(AT_FLUSH_END_READ)
        newest = fl_load(fl_base_at(h, s, tail - 1))
        high = s.flushed_end
        if end.position == high and tail == s.dir_synced_tail and s.parent_synced:
            if fl_show(s):  # a flusher died between the two ends
                fl_wake_slot(h, self.arena.eventfds, s)
            fl_store(&s.flush_in_progress, 0)
            if wanted:
                # nothing has moved, so that nobody is woken who would ask for the next one again
                fl_ask(&s.demand, 1)
                if fl_load(&s.log_end) != end.position:
                    fl_wake_flusher(h, self.arena.eventfds, s.index)
            return 0
        r = self.mark(s, True)
        if no_room(r) or passing(r):
            return self.postpone(s, r)  # nothing was tried; a file system that copies on write may want room for it
        if r != 0:
            return self.fail(s, FL_WHY_FLUSH, -r)
        failpoint(AT_FLUSH_MARKED)
        i = fl_find_position(h, s, fl_load(&s.table_head), tail, high)
        while i < tail:
            r = self.take_segment(s, i)
            if passing(r):
                return self.postpone(s, r)
            if r != 0:
                return self.fail(s, FL_WHY_FLUSH, -r)
            failpoint(AT_BEFORE_SYNC)
            if end.position > high:
                # whatever it says: a second call would find the pages clean
                r = file_fdatasync(st.fd)
                if r != 0:
                    return self.fail(s, FL_WHY_FLUSH, -r)
                failpoint(AT_SEGMENT_SYNCED)
            if i + 1 < tail and format_of(s.format).locate == NULL:
                self.sync_indexes(s, i)
            i += 1
        if tail > s.dir_synced_tail or not s.parent_synced or newest != s.flushed_base:
            # names first: the mark may be durable the moment it is moved, and a segment that it names must not be missing
            if tail > s.dir_synced_tail or not s.parent_synced:
                r = self.sync_directories(s)
            if r == 0 and newest != s.flushed_base:
                fl_store(&s.parent_synced, 1)
                fl_store(&s.dir_synced_tail, tail - 1)  # whoever goes on from here syncs the name of the mark
                failpoint(AT_NAMES_SYNCED)
                r = self.move_flushed_mark(s, newest)
                if no_room(r) or passing(r):
                    return self.postpone(s, r)  # what was synced was synced
                if r == 0:
                    failpoint(AT_MARK_MOVED)
                    r = self.sync_directories(s)
            if r == -EMFILE:
                return self.postpone(s, r)
            if r != 0:
                return self.fail(s, FL_WHY_FLUSH, -r)
            fl_store(&s.dir_synced_tail, tail)
            fl_store(&s.parent_synced, 1)
        failpoint(AT_AFTER_SYNC)
        self.count_flush(end.position - high, fl_monotonic_ns() - started)  # first, as in fail()
        fl_store(&s.last_flush_ns, started)
        failpoint(AT_TIME_STORED)
        fl_end_publish(&s.flushed_end, s.flushed_ends, &end)
        failpoint(AT_FLUSHED)
        fl_show(s)
        failpoint(AT_FLUSH_PUBLISHED)
        fl_store(&s.flush_in_progress, 0)
        failpoint(AT_FLUSH_ENDED)
        fl_wake_slot(h, self.arena.eventfds, s)
        self.mark(s, False)  # one that stays only makes the next start write more
        if self.keep_bytes >= 0:
            self.drop_behind(s, high, end.position)
        return 0

    cdef void count_flush(self, uint64_t bytes, uint64_t took_ns) noexcept nogil:
        cdef int i = 0
        fl_add(&self.counters[<int>N_FLUSHES], 1)
        fl_add(&self.counters[<int>N_FLUSHED_BYTES], bytes)
        fl_add(&self.counters[<int>N_FLUSH_NS], took_ns)
        while i < BUCKETS and took_ns > self.bucket_ns[i]:
            i += 1
        if i < BUCKETS:
            fl_add(&self.flush_buckets[i], 1)

    cdef void drop_behind(self, fl_slot* s, uint64_t start, uint64_t end) noexcept nogil:
        """After [start, end) was flushed: let the kernel forget what lies further back than is to be kept.

        What was there when this flusher began stays as it is.
        """
        cdef fl_header* h = self.arena.header
        cdef FlushState* st = &self.states[s.index]
        cdef uint64_t keep = <uint64_t>self.keep_bytes
        cdef uint64_t tail = fl_load(&s.table_tail)
        cdef uint64_t target, base, stop, i
        cdef int fd
        if st.dropped == 0:
            st.dropped = max(start, <uint64_t>1)
        if end < keep or end - keep < st.dropped + <uint64_t>DROP_BYTES:
            return
        target = end - keep
        i = fl_find_position(h, s, fl_load(&s.table_head), tail, st.dropped)
        while i < tail and st.dropped < target:
            base = fl_load(fl_start_at(h, s, i))
            stop = min(target, fl_load(fl_start_at(h, s, i + 1))) if i + 1 < tail else target
            fd = st.fd if st.fd >= 0 and st.index == i else self.open_segment(s, i)
            if fd >= 0:  # retention may have been faster
                if base < stop:
                    st.dropped = max(st.dropped, base)
                    file_drop_cache(fd, st.dropped - base, stop - st.dropped)
                if fd != st.fd:
                    close(fd)
            st.dropped = max(st.dropped, stop)
            i += 1

    cdef void run_ahead(self, fl_slot* s) noexcept nogil:
        """For a partition under load: have blocks ready ahead of its end, and start writing dirty pages back early."""
        cdef fl_header* h = self.arena.header
        cdef FlushState* st = &self.states[s.index]
        cdef uint64_t end = fl_load(&s.log_end)
        cdef uint64_t tail = fl_load(&s.table_tail)
        cdef uint64_t base, position, limit
        cdef statfs_t space
        cdef int r
        base = fl_load(fl_start_at(h, s, tail - 1))
        if st.fd >= 0 and st.index != tail - 1 and fl_load(&s.flushed_end) < base:
            return  # the older one still has to be synced through the descriptor that saw its writes
        if self.take_segment(s, tail - 1) != 0:
            return
        if end < base:
            return
        position = end - base
        limit = s.segment_bytes
        if (self.preallocate_bytes and not self.preallocation_off[s.directory] and position < limit
                and st.preallocated < min(limit, position + self.preallocate_bytes // 2)):
            if fstatfs(st.fd, &space) == 0 and space.f_bavail * 100 >= space.f_blocks * self.least_free_percent:
                position = max(position, st.preallocated)
                r = file_preallocate(st.fd, position, min(self.preallocate_bytes, limit - position))
                if r == 0:
                    st.preallocated = min(position + self.preallocate_bytes, limit)
                elif r == -EOPNOTSUPP or r == -EINVAL:
                    self.preallocation_off[s.directory] = 1
        if self.writeback_bytes:
            st.written_back = max(st.written_back, max(base, fl_load(&s.flushed_end)))
            if end - st.written_back >= self.writeback_bytes:
                file_writeback(st.fd, st.written_back - base, end - st.written_back)
                st.written_back = end

    cdef void release(self, fl_slot* s) noexcept nogil:
        """Close what is kept open of a partition that has nothing to flush, and give its preallocated space back.

        Nothing happens while somebody else holds the append lock: the next look comes soon.
        """
        cdef FlushState* st = &self.states[s.index]
        cdef int r = 0
        if st.fd < 0:
            return
        if st.preallocated and st.index == fl_load(&s.table_tail) - 1:
            pthread_mutex_lock(&self.append_turn)
            r = self.appender.lock(s)
            if r == 0:
                failpoint(AT_RELEASE_LOCKED)
                # under the append lock: an append between reading the end and cutting to it would be lost
                if st.index == s.table_tail - 1:
                    file_cut(st.fd, fl_file_position(self.arena.header, s, st.index, s.log_end))
                self.appender.unlock(s)
            self.appender.files.close_retired()
            pthread_mutex_unlock(&self.append_turn)
        if r != EBUSY:
            self.leave_segment(s)

    cdef int rewrite(self, fl_slot* s) noexcept nogil:
        """Read, check and write again [flushed end, log end), so that its pages are dirty and the next sync is honest.

        0; -EBUSY when the append lock could not be had within two seconds, or another error that ``passing`` knows; else
        -errno, and the bytes are damaged or cannot be read or written.
        """
        cdef fl_header* h = self.arena.header
        cdef uint64_t end_ns = fl_monotonic_ns() + <uint64_t>2000000000
        cdef uint64_t i, tail, base, start, end
        cdef int fd, r = self.appender.lock(s)
        while r == EBUSY and fl_monotonic_ns() < end_ns:
            usleep(500)
            r = self.appender.lock(s)
        if r != 0:
            return -r
        failpoint(AT_REWRITE)
        tail = s.table_tail
        i = fl_find_position(h, s, fl_load(&s.table_head), tail, s.flushed_end)
        r = 0
        while i < tail and r == 0:
            base = fl_load(fl_start_at(h, s, i))
            start = max(base, s.flushed_end)
            end = s.log_end if i + 1 == tail else fl_load(fl_start_at(h, s, i + 1))
            if end > start:
                fd = self.open_segment(s, i)
                if fd < 0:
                    r = fd
                    break
                r = self.rewrite_segment(s, fd, base, start, end)
                close(fd)
            i += 1
        failpoint(AT_REWRITTEN)
        self.appender.unlock(s)
        return r

    cdef int rewrite_segment(self, fl_slot* s, int fd, uint64_t base, uint64_t start, uint64_t end) noexcept nogil:
        cdef size_t room = REWRITE_WINDOW, have, done
        cdef unsigned char* window = <unsigned char*>malloc(room)
        cdef unsigned char* larger
        cdef int64_t r
        cdef Entries found
        cdef int result = 0
        while start < end and result == 0:
            have = 0
            while window != NULL and have < min(room, end - start):
                r = file_pread(fd, window + have, min(room, end - start) - have, start - base + have)
                if r <= 0:
                    result = <int>r if r < 0 else -EIO
                    break
                have += <size_t>r
            if window == NULL:
                return -ENOMEM
            if result != 0:
                break
            format_of(s.format).scan(window, have, &found)
            if found.bytes == 0 and found.status == ENTRIES_CUT and have == room:
                larger = <unsigned char*>realloc(window, room * 2)
                if larger == NULL:
                    result = -ENOMEM
                    break
                window = larger
                room *= 2
                continue
            if found.bytes == 0 or (found.status != ENTRIES_WHOLE and found.status != ENTRIES_CUT) \
                    or (found.status == ENTRIES_CUT and start + have == end):
                result = -EIO
                break
            done = 0
            while done < found.bytes:
                r = file_pwrite(fd, window + done, found.bytes - done, start - base + done)
                if r <= 0:
                    result = <int>r if r < 0 else -ENOSPC
                    break
                done += <size_t>r
            start += <uint64_t>done
            fl_add(&self.counters[<int>N_REWRITTEN], done)
        free(window)
        return result


def make_partition_flusher(Arena arena, int descriptors, preallocate_bytes, writeback_bytes, keep_bytes=-1,
                           PartitionFlusher beside=None):
    """What flushes in the flusher process, with its own segment descriptors and its own turn at the append locks."""
    appender = Appender(arena, SegmentFiles(arena, 16), FL_FLUSHER)
    return PartitionFlusher(arena, appender, FL_FLUSHER, preallocate_bytes, writeback_bytes, keep_bytes, descriptors, beside)


def flush_now(PartitionFlusher flusher, uint64_t slot):
    """Flush one partition in the calling thread: 0 or an errno; for tools and tests, where no flusher runs."""
    cdef fl_slot* s = flusher.arena.slot(slot)
    cdef int r
    with nogil:
        r = flusher.flush(s)
    return -r


def run_ahead_now(PartitionFlusher flusher, uint64_t slot, int least_free_percent=0):
    """Preallocate and start write-back for one partition as under load, where so much of its file system is free.

    For tools and tests, where no flusher runs.
    """
    cdef fl_slot* s = flusher.arena.slot(slot)
    flusher.least_free_percent = least_free_percent
    with nogil:
        flusher.run_ahead(s)


def release_now(PartitionFlusher flusher, uint64_t slot):
    """Close and give back what is kept of one idle partition; for tools and tests, where no flusher runs."""
    cdef fl_slot* s = flusher.arena.slot(slot)
    with nogil:
        flusher.release(s)

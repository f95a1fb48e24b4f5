"""The flusher's loop: which partition is due, and threads for each log directory that flush.

Each log directory has a queue and threads of its own, and they share no lock, so that a disk that is slow or silent keeps
nobody waiting but the partitions that lie on it. It gets more threads while partitions wait for one: many syncs under way
at once take a disk little longer than one. Due is a partition with half of M messages or half of B bytes unflushed, with a byte that is S old, or with somebody who
waits for a flush (then at most once per ``flush.min.interval.ms``). The loop itself never waits for a disk.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport (
    FL_CHANGES, FL_FLUSHER, FL_STAGE_FLUSHER, FL_STATE_NO_FLUSH, fl_cell_at, fl_changed, fl_clear_dirty, fl_dirty_word, fl_end,
    fl_end_own, fl_end_read, fl_header, fl_lives, fl_load, fl_mark_dirty, fl_monotonic_ns, fl_slot, fl_slot_at, fl_store,
    fl_wake, fl_wake_taken, fl_wake_slot,
)
from fastlog.log._files cimport AT_FLUSHER_CLEAN, AT_FLUSHER_PAST, failpoint
from fastlog.log._flush cimport FlushState, PartitionFlusher

import threading
import time

from fastlog.log._flush import make_partition_flusher

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_cond_init(pthread_cond_t*, void*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)
    int pthread_cond_signal(pthread_cond_t*)
    int pthread_cond_broadcast(pthread_cond_t*)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int ppoll(pollfd*, unsigned long, const timespec*, const void*)
    short POLLIN

cdef enum:
    IDLE_CLOSE_NS = 2000000000
    RETRY_NS = 50000000
    STOPPING_TURN_NS = 5000000
    AHEAD_BYTES = 2 << 20
    JOB_FLUSH = 1
    JOB_AHEAD = 2
    JOB_RELEASE = 4
    JOB_TAKE_OVER = 8

cdef struct Job:
    uint64_t slot
    int what

# The queue of one log directory.
cdef struct Lane:
    Job* jobs
    uint64_t head, tail
    int running                # in the queue, or with a thread
    int threads                # begun so far; the loop's alone
    int waiting                # of them, for something to do
    bint closing
    pthread_mutex_t mutex
    pthread_cond_t ready


cdef class FlusherLoop:
    """The flusher process: ``run`` in its main thread, ``work`` in each helper thread."""

    cdef Arena arena
    cdef list flushers                   # by log directory
    cdef FlushState* states
    cdef uint64_t min_interval_ns, heartbeat_ns
    cdef readonly uint64_t turns         # of the loop so far
    cdef bint runs_ahead
    cdef Lane* lanes
    cdef int lane_count
    cdef uint64_t job_room
    cdef uint64_t* ahead_seen
    cdef uint64_t* retry_at
    cdef uint64_t* begun_ns              # when each thread began what it does now; 0: nothing
    cdef int most_threads                # of one log directory
    cdef list workers
    cdef uint64_t seen                   # changes of slots' lives that all of this is past

    def __cinit__(self, Arena arena, list flushers, min_interval_ms, bint runs_ahead, heartbeat_ms):
        cdef PartitionFlusher first = flushers[0]
        cdef int i
        self.arena = arena
        self.flushers = flushers
        self.states = first.states
        self.min_interval_ns = <uint64_t>(min_interval_ms * 1000000)
        self.heartbeat_ns = heartbeat_ms * 1000000
        self.runs_ahead = runs_ahead
        # one job per partition at most: a partition in the queue or with a worker is busy
        self.job_room = arena.header.max_partitions + 1
        self.lanes = <Lane*>calloc(len(flushers), sizeof(Lane))
        self.ahead_seen = <uint64_t*>calloc(arena.header.max_partitions, 8)
        self.retry_at = <uint64_t*>calloc(arena.header.max_partitions, 8)
        if self.lanes == NULL or self.ahead_seen == NULL or self.retry_at == NULL:
            raise MemoryError
        self.lane_count = len(flushers)
        self.seen = fl_load(&arena.header.change_count)
        for i in range(self.lane_count):
            self.lanes[i].jobs = <Job*>calloc(self.job_room, sizeof(Job))
            if self.lanes[i].jobs == NULL:
                raise MemoryError
            pthread_mutex_init(&self.lanes[i].mutex, NULL)
            pthread_cond_init(&self.lanes[i].ready, NULL)

    def __dealloc__(self):
        cdef int i
        for i in range(self.lane_count):
            free(self.lanes[i].jobs)
        free(self.lanes)
        free(self.ahead_seen)
        free(self.retry_at)
        free(self.begun_ns)

    cdef void push(self, fl_slot* s, int what) noexcept nogil:
        cdef Lane* lane = &self.lanes[s.directory]
        self.states[s.index].busy = 1
        pthread_mutex_lock(&lane.mutex)
        lane.jobs[lane.tail % self.job_room].slot = s.index
        lane.jobs[lane.tail % self.job_room].what = what
        lane.tail += 1
        lane.running += 1
        pthread_cond_signal(&lane.ready)
        pthread_mutex_unlock(&lane.mutex)

    def work(self, int directory, int number):
        """Flush what the loop hands out of a log directory until it closes, as the thread with this number."""
        cdef Lane* lane = &self.lanes[directory]
        cdef PartitionFlusher partitions = self.flushers[directory]
        cdef Job job
        cdef fl_slot* s
        cdef int r
        cdef uint64_t* begun_ns = &self.begun_ns[number]
        with nogil:
            while True:
                pthread_mutex_lock(&lane.mutex)
                while lane.head == lane.tail and not lane.closing:
                    lane.waiting += 1
                    pthread_cond_wait(&lane.ready, &lane.mutex)
                    lane.waiting -= 1
                if lane.head == lane.tail:
                    pthread_mutex_unlock(&lane.mutex)
                    break
                job = lane.jobs[lane.head % self.job_room]
                lane.head += 1
                pthread_mutex_unlock(&lane.mutex)
                s = fl_slot_at(self.arena.header, job.slot)
                fl_store(begun_ns, fl_monotonic_ns())
                if job.what & JOB_TAKE_OVER:
                    self.take_over(partitions, s)
                if job.what & JOB_AHEAD:
                    partitions.run_ahead(s)
                if job.what & JOB_FLUSH:
                    r = partitions.flush(s)
                    self.retry_at[job.slot] = 0 if r == 0 else fl_monotonic_ns() + <uint64_t>RETRY_NS
                    if partitions.over_budget():
                        partitions.leave_segment(s)
                if job.what & JOB_RELEASE:
                    partitions.release(s)
                fl_store(begun_ns, 0)
                # in this order: when nothing runs, no partition is busy
                __atomic_store_int(&self.states[job.slot].busy, 0)
                pthread_mutex_lock(&lane.mutex)
                lane.running -= 1
                pthread_mutex_unlock(&lane.mutex)
                fl_wake(self.arena.header, self.arena.eventfds, FL_FLUSHER)

    cdef void take_over(self, PartitionFlusher partitions, fl_slot* s) noexcept nogil:
        """Finish what a dead flusher had begun under an append lock; as ``Appender.take_over``, which a slow disk holds up."""
        pthread_mutex_lock(&partitions.append_turn)
        if partitions.appender.lock(s) == 0:
            partitions.appender.unlock(s)
        elif fl_load(&fl_cell_at(self.arena.header, FL_FLUSHER).holding) == s.index + 1:
            fl_store(&fl_cell_at(self.arena.header, FL_FLUSHER).holding, 0)  # somebody else has it by now
        pthread_mutex_unlock(&partitions.append_turn)

    cdef uint64_t look(self, uint64_t now, bint all_now) noexcept nogil:
        """Hand out what is due; returns when to look again at the latest (0: nothing is dirty)."""
        cdef fl_header* h = self.arena.header
        cdef uint64_t count = fl_load(&h.slot_count)
        cdef uint64_t word, bits, index, earliest = 0, due
        cdef fl_slot* s
        for word in range((count + 63) // 64):
            bits = fl_load(fl_dirty_word(h, word * 64))
            while bits:
                index = word * 64 + <uint64_t>__builtin_ctzll(bits)
                bits &= bits - 1
                if index >= count:
                    continue
                s = fl_slot_at(h, index)
                due = self.consider(s, now, all_now)
                if due and (earliest == 0 or due < earliest):
                    earliest = due
        return earliest

    cdef uint64_t consider(self, fl_slot* s, uint64_t now, bint all_now) noexcept nogil:
        """Hand one dirty partition out if it is due; returns when it will be (0: it is clean)."""
        cdef fl_header* h = self.arena.header
        cdef FlushState* st = &self.states[s.index]
        cdef uint64_t end, high, unflushed, due
        cdef fl_end newest
        cdef int what = 0
        if __atomic_load_int(&st.busy):
            return now + self.heartbeat_ns
        if not fl_lives(s):
            fl_clear_dirty(h, s.index)
            return 0
        high = fl_load(&s.flushed_end)
        end = fl_load(&s.log_end)
        if fl_load(&s.state) & FL_STATE_NO_FLUSH or is_clean(s, end, high):
            # an append stores the log end and looks at the dirty bit again, we do the reverse
            fl_clear_dirty(h, s.index)
            failpoint(AT_FLUSHER_CLEAN)
            if not is_clean(s, fl_load(&s.log_end), high) and not fl_load(&s.state) & FL_STATE_NO_FLUSH:
                fl_mark_dirty(h, s.index)
                return now
            return 0
        if self.runs_ahead and (end < self.ahead_seen[s.index] or end - self.ahead_seen[s.index] >= AHEAD_BYTES):
            if self.ahead_seen[s.index]:
                what = JOB_AHEAD
            self.ahead_seen[s.index] = end
        fl_end_read(&s.log_end, s.log_ends, &newest)
        unflushed = newest.messages - fl_end_own(&s.flushed_end, s.flushed_ends).messages
        due = max(fl_load(&s.dirty_since_ns), s.last_flush_ns) + s.flush_ns
        if fl_load(&s.demand):
            due = min(due, st.last_start_ns + self.min_interval_ns)
        if all_now or unflushed * 2 >= s.flush_messages or (end - high) * 2 >= s.flush_bytes or s.flush_in_progress:
            due = now
        if fl_load(&s.state):
            due = now  # nothing will be appended any more that could share this flush
        due = max(due, self.retry_at[s.index])
        if due <= now:
            what |= JOB_FLUSH
        if what:
            self.push(s, what)
            return now + self.heartbeat_ns
        return due

    cdef void close_idle(self, uint64_t now, bint all_now) noexcept nogil:
        cdef uint64_t index
        cdef FlushState* st
        for index in range(fl_load(&self.arena.header.slot_count)):
            st = &self.states[index]
            if st.fd < 0 or not fl_lives(fl_slot_at(self.arena.header, index)):
                continue
            if not __atomic_load_int(&st.busy) and (all_now or now - st.last_used_ns > <uint64_t>IDLE_CLOSE_NS):
                if is_clean(fl_slot_at(self.arena.header, index), fl_load(&fl_slot_at(self.arena.header, index).log_end),
                            fl_load(&fl_slot_at(self.arena.header, index).flushed_end)):
                    self.push(fl_slot_at(self.arena.header, index), JOB_RELEASE)

    def adopt(self):
        """At start: look at every partition a predecessor may have left dirty or locked, and wake all waiters."""
        cdef fl_header* h = self.arena.header
        cdef uint64_t index
        cdef fl_slot* s
        cdef uint64_t held = fl_load(&fl_cell_at(h, FL_FLUSHER).holding)
        if held:
            self.push(self.arena.slot(held - 1), JOB_TAKE_OVER)
        self.sweep()
        for index in range(fl_load(&h.slot_count)):
            s = fl_slot_at(h, index)
            fl_wake_slot(h, self.arena.eventfds, s)

    cdef bint sweep(self) noexcept nogil:
        """Mark what is not flushed and not marked: whoever published it died before saying so. True when some was."""
        cdef fl_header* h = self.arena.header
        cdef uint64_t index, high
        cdef fl_slot* s
        cdef bint found = False
        for index in range(fl_load(&h.slot_count)):
            if __atomic_load_int(&self.states[index].busy):
                continue
            s = fl_slot_at(h, index)
            high = fl_load(&s.flushed_end)
            if not fl_lives(s) or fl_load(&s.state) & FL_STATE_NO_FLUSH or is_clean(s, fl_load(&s.log_end), high):
                continue
            if not fl_load(fl_dirty_word(h, index)) & (<uint64_t>1 << (index & 63)):
                fl_mark_dirty(h, index)
                found = True
        return found

    cdef void see_changes(self) noexcept nogil:
        """Be past the lives that have ended: with what is remembered of them, and with what a thread does for them.

        Until all of it is, the next turn tries again: a thread that ends its job wakes the loop.
        """
        cdef fl_header* h = self.arena.header
        cdef uint64_t[FL_CHANGES] slots
        cdef uint64_t now, index, i, count
        cdef int n
        cdef fl_slot* s
        if fl_load(&h.change_count) == self.seen:
            return
        n = fl_changed(h, self.seen, &now, slots)
        count = fl_load(&h.slot_count) if n < 0 else <uint64_t>n
        for i in range(count):
            index = i if n < 0 else slots[i]
            s = fl_slot_at(h, index)
            if fl_lives(s):
                continue
            if __atomic_load_int(&self.states[index].busy):
                return
            with gil:
                gone = self.flushers[s.directory]
                (<PartitionFlusher>gone).forget(s)
            self.ahead_seen[index] = self.retry_at[index] = 0
        failpoint(AT_FLUSHER_PAST)
        self.seen = now
        fl_store(&fl_cell_at(h, FL_FLUSHER).seen, now)

    cdef uint64_t oldest_ns(self) noexcept nogil:
        """When the thread that has been at its job for the longest began; 0: none has one."""
        cdef uint64_t begun, oldest = 0
        cdef int i
        for i in range(self.most_threads * self.lane_count):
            begun = fl_load(&self.begun_ns[i])
            if begun and (oldest == 0 or begun < oldest):
                oldest = begun
        return oldest

    cdef bint idle(self) noexcept nogil:
        cdef bint quiet = True
        cdef int i
        for i in range(self.lane_count):
            pthread_mutex_lock(&self.lanes[i].mutex)
            quiet = quiet and self.lanes[i].running == 0
            pthread_mutex_unlock(&self.lanes[i].mutex)
        return quiet

    cdef void more_threads(self) noexcept nogil:
        """One for each log directory in which more partitions wait than threads; those that end a job turn the loop again."""
        cdef bint is_short
        cdef int i
        for i in range(self.lane_count):
            if self.lanes[i].threads < self.most_threads:
                pthread_mutex_lock(&self.lanes[i].mutex)
                is_short = self.lanes[i].tail - self.lanes[i].head > <uint64_t>self.lanes[i].waiting
                pthread_mutex_unlock(&self.lanes[i].mutex)
                if is_short:
                    with gil:
                        self.start_another(i)

    cdef void start_another(self, int directory) noexcept:
        """Where the system has no room for one, those that there are do the work, and it is tried again."""
        try:
            self.start_thread(directory)
        except (RuntimeError, MemoryError):
            pass

    cdef int start_thread(self, int directory) except -1:
        cdef int number = self.lanes[directory].threads
        worker = threading.Thread(
            target=self.work, args=(directory, directory * self.most_threads + number),
            name=f"flush-{directory}-{number}", daemon=True,
        )
        worker.start()
        self.workers.append(worker)
        self.lanes[directory].threads += 1
        return 0

    cdef void close_lanes(self) noexcept nogil:
        cdef int i
        for i in range(self.lane_count):
            pthread_mutex_lock(&self.lanes[i].mutex)
            self.lanes[i].closing = True
            pthread_cond_broadcast(&self.lanes[i].ready)
            pthread_mutex_unlock(&self.lanes[i].mutex)

    def run(self, int threads, int most_threads, uint64_t parent):
        """Flush until the supervisor asks for the final flush (stopping = 2) or is gone.

        Args:
            threads: that each log directory has from the beginning.
            most_threads: that it has while many of its partitions wait.

        Returns:
            0 when every partition in service is flushed, 1 when the supervisor died.
        """
        cdef fl_header* h = self.arena.header
        cdef pollfd waiting
        cdef timespec timeout
        cdef uint64_t now, wake_at, beat_at = 0, timeout_ns
        cdef int i, stage, result = 0
        self.most_threads = most_threads
        self.begun_ns = <uint64_t*>calloc(most_threads * self.lane_count, 8)
        if self.begun_ns == NULL:
            raise MemoryError
        self.workers = []
        for i in range(self.lane_count):
            while self.lanes[i].threads < threads:
                self.start_thread(i)
        self.adopt()
        waiting.fd = self.arena.eventfds[<int>FL_FLUSHER]
        waiting.events = POLLIN
        with nogil:
            while True:
                fl_wake_taken(h, self.arena.eventfds, FL_FLUSHER)
                now = fl_monotonic_ns()
                fl_store(&fl_cell_at(h, FL_FLUSHER).heartbeat_ns, now)
                fl_store(&fl_cell_at(h, FL_FLUSHER).disk_ns, self.oldest_ns())
                if now >= beat_at:
                    beat_at = now + self.heartbeat_ns
                    self.close_idle(now, False)
                    self.sweep()
                    if <uint64_t>getppid() != parent:
                        result = 1
                        break
                self.see_changes()
                stage = <int>fl_load(&h.stopping)
                wake_at = self.look(now, stage == FL_STAGE_FLUSHER)
                self.more_threads()
                if stage == FL_STAGE_FLUSHER and wake_at == 0 and self.idle():
                    if self.sweep():
                        continue
                    self.close_idle(now, True)
                    if self.idle():
                        break
                if wake_at == 0 or wake_at > beat_at:
                    wake_at = beat_at
                timeout_ns = 0 if wake_at <= now else wake_at - now
                if stage == FL_STAGE_FLUSHER:
                    timeout_ns = min(timeout_ns, <uint64_t>STOPPING_TURN_NS)
                self.turns += 1
                # whole milliseconds would nearly double the least time between two flushes
                timeout.tv_sec = <long>(timeout_ns // 1000000000)
                timeout.tv_nsec = <long>(timeout_ns % 1000000000)
                ppoll(&waiting, 1, &timeout, NULL)
            self.close_lanes()
        until = time.monotonic() + 1.0
        for worker in self.workers:
            worker.join(timeout=max(0.0, until - time.monotonic()))
        return result


cdef extern from *:
    """
    static inline int __atomic_load_int(const int *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline void __atomic_store_int(int *p, int v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    """
    int __atomic_load_int(const int*) nogil
    void __atomic_store_int(int*, int) nogil
    int __builtin_ctzll(unsigned long long) nogil


cdef extern from "<unistd.h>" nogil:
    int getppid()


cdef inline bint is_clean(fl_slot* s, uint64_t end, uint64_t high) noexcept nogil:
    return (end == high and fl_load(&s.table_tail) == s.dir_synced_tail and s.parent_synced != 0
            and s.flush_in_progress == 0)


def make_flusher_loop(Arena arena, int descriptors, preallocate_bytes, writeback_bytes, min_interval_ms, keep_bytes=-1,
                      heartbeat_ms=250):
    """The loop of the flusher process; it keeps about ``descriptors`` segments open, as many of each log directory."""
    flushers = []
    for _ in arena.log_dirs:
        flushers.append(
            make_partition_flusher(
                arena, max(1, descriptors // len(arena.log_dirs)), preallocate_bytes, writeback_bytes, keep_bytes,
                flushers[0] if flushers else None,
            )
        )
    return FlusherLoop(arena, flushers, min_interval_ms, preallocate_bytes > 0 or writeback_bytes > 0, heartbeat_ms)

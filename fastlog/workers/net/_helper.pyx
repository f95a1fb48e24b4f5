"""What would make the loop of a processor wait for a disk, a decompressor or a long answer is done here, by threads.

A job is a struct of its kind that begins with ``Job``, and a function that does a step of it. Jobs are queued by what
they may wait for: answers from memory, decompression, creation, and reads of each log directory have a queue and a thread
each. A connection has one job at a time, and a job that is long is done in steps with the jobs of others in between, so
that whoever asks for little waits for one step of each of the others at most.

A thread hands a job back by a list of finished ones and wakes the loop. The loop does not touch a job or free its
connection while that is ``busy``, but for ``cancelled``.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_slot, fl_slot_at
from fastlog.log._files cimport file_pread
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers.net._connection cimport READ_AHEAD_BYTES, Conn, Job, JobStep, ReadJob

import threading

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

cdef extern from "<sys/eventfd.h>" nogil:
    int new_eventfd "eventfd"(unsigned int, int)
    int EFD_CLOEXEC, EFD_NONBLOCK

cdef extern from "<unistd.h>" nogil:
    int close(int)
    ssize_t read(int, void*, size_t)
    ssize_t write(int, const void*, size_t)

cdef extern from *:
    """
    static inline int helper_load(const int *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
    static inline void helper_store(int *p, int v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
    """
    int helper_load(const int*) nogil
    void helper_store(int*, int) nogil

cdef enum:
    SCRATCH = 256 << 10


cdef bint read_step(Job* job, void* scratch) noexcept nogil:
    """Bring the bytes of a ``ReadJob`` into memory."""
    cdef ReadJob* read_job = <ReadJob*>job
    cdef uint64_t done = 0
    cdef int64_t r
    while scratch != NULL and done < read_job.count:
        r = file_pread(read_job.fd, scratch, min(<uint64_t>SCRATCH, read_job.count - done), read_job.position + done)
        if r <= 0:
            break
        done += <uint64_t>r
    return False


cdef class Helper:
    """The queues of one processor; a thread is started at the first job of its queue."""

    def __cinit__(self, Arena arena, SegmentFiles files):
        cdef int queue
        self.eventfd = -1
        self.arena = arena
        self.files = files
        self.owners = []
        self.queue_count = <int>QUEUE_DISK + max(1, len(arena.log_dirs))
        self.queues = <JobQueue*>calloc(self.queue_count, sizeof(JobQueue))
        self.mutex = calloc(1, sizeof(pthread_mutex_t))
        if self.queues == NULL or self.mutex == NULL:
            raise MemoryError
        pthread_mutex_init(<pthread_mutex_t*>self.mutex, NULL)
        for queue in range(self.queue_count):
            self.queues[queue].ready = calloc(1, sizeof(pthread_cond_t))
            if self.queues[queue].ready == NULL:
                raise MemoryError
            pthread_cond_init(<pthread_cond_t*>self.queues[queue].ready, NULL)
        self.eventfd = new_eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.eventfd < 0:
            raise OSError("eventfd")

    def __dealloc__(self):
        # every thread refers to this object: none is there any more
        cdef int queue
        if self.queues != NULL:
            for queue in range(self.queue_count):
                free(self.queues[queue].ready)
        free(self.queues)
        free(self.mutex)
        if self.eventfd >= 0:
            close(self.eventfd)

    def keep(self, owner):
        """Have an object live as long as the threads that may do its jobs."""
        self.owners.append(owner)

    # -- the loop's side -----------------------------------------------------------------------------------------------

    cdef void ask(self, Conn* c, Job* job, JobStep step, void* owner, int queue, size_t at, size_t size) noexcept nogil:
        """Have a job submitted as soon as the bytes of the request that it works on stand in the connection's own buffer.

        They are ``size`` bytes from ``at`` on, counted from the beginning of the request. The request waits for WAIT_JOB.
        """
        job.step = step
        job.owner = owner
        job.queue = queue
        job.at = at
        job.size = size
        job.looks = job.for_answer = job.pins = False
        c.job = job

    cdef int submit(self, Conn* c, Job* job) noexcept nogil:
        """Queue a job of a connection; -1 when no thread can be had."""
        if not self.queues[job.queue].started and self.start(job.queue) != 0:
            return -1
        c.job = job
        c.busy = True
        job.conn = c
        job.data = c.buffer + c.start + job.at if job.size else NULL
        job.cancelled = 0
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        self.push(job)
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
        return 0

    cdef int read_ahead(self, Conn* c, ReadJob* job, int entry, uint64_t position, uint64_t size) noexcept nogil:
        """Submit the read of at most READ_AHEAD_BYTES of a segment, pinned until it is done; -1: it cannot be."""
        job.position = position
        job.count = min(size, <uint64_t>READ_AHEAD_BYTES)
        return self.submit_read(c, job, read_step, entry, -1)

    cdef int submit_read(self, Conn* c, ReadJob* job, JobStep step, int entry, int index_entry) noexcept nogil:
        """Submit a job that reads these files of a segment, pinned until it is done; -1: it cannot be."""
        cdef fl_slot* s = fl_slot_at(self.arena.header, self.files.entries[entry].slot)
        job.job.step = step
        job.job.queue = <int>QUEUE_DISK + <int>s.directory
        job.job.size = 0
        job.job.looks = False
        job.job.for_answer = job.job.pins = True
        job.entry = entry
        job.fd = self.files.fd(entry)
        job.index_entry = index_entry
        job.index_fd = -1 if index_entry < 0 else self.files.fd(index_entry)
        self.files.pin(entry)
        if index_entry >= 0:
            self.files.pin(index_entry)
        if self.submit(c, &job.job) != 0:
            self.unpin(job)
            return -1
        return 0

    cdef void unpin(self, ReadJob* job) noexcept nogil:
        """Let go of the files that a job of reading has kept open."""
        self.files.unpin(job.entry)
        if job.index_entry >= 0:
            self.files.unpin(job.index_entry)

    cdef int start(self, int queue) noexcept nogil:
        with gil:
            try:
                threading.Thread(target=self.work, args=(queue,), name=f"helper-{queue}", daemon=True).start()
            except (RuntimeError, MemoryError):
                return -1
        self.queues[queue].started = True
        return 0

    cdef void push(self, Job* job) noexcept nogil:
        """Put a job behind the others of its queue; under the lock."""
        cdef JobQueue* q = &self.queues[job.queue]
        job.next = NULL
        if q.first == NULL:
            q.first = job
        else:
            q.last.next = job
        q.last = job
        q.waiting += 1
        pthread_cond_signal(<pthread_cond_t*>q.ready)

    cdef Job* take_finished(self) noexcept nogil:
        """The jobs that are finished, chained by ``next``; each is returned once."""
        cdef Job* found
        cdef uint64_t count
        read(self.eventfd, &count, sizeof(count))
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        found = self.finished
        self.finished = NULL
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
        return found

    cdef bint done(self, Job* job) noexcept nogil:
        """Take a finished job back from its thread; whether it is one of the protocol's."""
        cdef Conn* c = job.conn
        c.job = NULL
        c.busy = False
        if job.pins:
            self.unpin(<ReadJob*>job)
        return job != &c.reading.job

    cdef void cancel(self, Job* job) noexcept nogil:
        """Nobody takes the result of a job: unless it has begun, it is finished without being done."""
        helper_store(&job.cancelled, 1)

    cdef void close(self) noexcept nogil:
        """End the threads; a job that has begun comes to its end, the others are not done any more."""
        cdef int queue
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        self.closing = True
        for queue in range(self.queue_count):
            pthread_cond_signal(<pthread_cond_t*>self.queues[queue].ready)
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)

    cdef int jobs(self) noexcept nogil:
        """The number of jobs that are queued or under way."""
        cdef int queue, count = 0
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        for queue in range(self.queue_count):
            count += self.queues[queue].waiting + self.queues[queue].begun
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
        return count

    cdef void mark(self) noexcept nogil:
        """Remember which threads look at partitions now: what they find may go at any time, and they know it from before."""
        cdef int queue
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        for queue in range(self.queue_count):
            self.queues[queue].to_pass = self.queues[queue].ended
            if self.queues[queue].begun and self.queues[queue].looks:
                self.queues[queue].to_pass += 1
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)

    cdef bint is_past(self) noexcept nogil:
        """Whether each of those has finished the step that it was at when it was marked."""
        cdef int queue
        cdef bint past = True
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        for queue in range(self.queue_count):
            past = past and self.queues[queue].ended >= self.queues[queue].to_pass
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
        return past

    # -- the threads' side ---------------------------------------------------------------------------------------------

    def work(self, int queue):
        """Do the jobs of one queue until ``close``."""
        cdef JobQueue* q = &self.queues[queue]
        cdef Job* job
        cdef void* scratch
        cdef bint more
        cdef uint64_t one = 1
        with nogil:
            scratch = malloc(SCRATCH)
            pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
            while True:
                while q.first == NULL and not self.closing:
                    pthread_cond_wait(<pthread_cond_t*>q.ready, <pthread_mutex_t*>self.mutex)
                if self.closing:
                    break
                job = q.first
                q.first = job.next
                q.waiting -= 1
                q.begun = 1
                q.looks = job.looks
                self.steps += 1
                pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
                more = not helper_load(&job.cancelled) and job.step(job, scratch)
                pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
                q.begun = 0
                q.ended += 1
                if more:
                    self.push(job)
                else:
                    job.next = self.finished
                    self.finished = job
                    if job.next == NULL:
                        write(self.eventfd, &one, sizeof(one))
            pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
            free(scratch)

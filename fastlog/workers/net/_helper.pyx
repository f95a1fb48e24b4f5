"""What would make the loop of a processor wait for a disk, a decompressor or a long answer is done here, by threads.

Jobs are typed, and queued by kind: answers from memory, decompression, creation, and reads of each log directory have a
queue and a thread each. A connection has one job at a time, and a job that is long is done in steps with the jobs of
others in between, so that whoever asks for little waits for one step of each of the others at most.

A thread hands its result over by a list of finished jobs and wakes the loop. The loop does not touch the job or free the
connection while ``helper_busy`` is set, but for ``cancelled``.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from fastlog.log._arena cimport Arena
from fastlog.log._files cimport file_pread
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers.net._connection cimport Conn

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


cdef class Helper:
    """The queues of one processor; a thread is started at the first job of its queue.

    ``validate(memoryview, name, begun)`` counts deep messages: it returns their number, -1 when the set is refused, or
    what is to be given as ``begun`` for the next step, which is None for the first.
    ``make_answer(bytes, queue, client)`` gives the answer frame to a request from its id on, False when it should be asked again
    after a wake-up, True when it has done a step and goes on in the next, None when there is no answer.
    ``make_partition(name, number)`` gives the number of the slot or a ``CreateState``.
    """

    def __cinit__(self, Arena arena, Authorizer authorizer, validate, make_answer, make_partition):
        cdef int queue
        self.eventfd = -1
        self.arena = arena
        self.authorizer = authorizer
        self.validate = validate
        self.make_answer = make_answer
        self.make_partition = make_partition
        self.checks = {}
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

    # -- the loop's side -----------------------------------------------------------------------------------------------

    cdef int submit(self, Conn* c, int queue, int fd, uint64_t position, uint64_t size, const uint8_t* data) noexcept nogil:
        """Queue the job of kind ``helper_kind`` of a connection; -1 when no thread can be had."""
        if not self.queues[queue].started and self.start(queue) != 0:
            return -1
        c.helper_done = 0
        c.helper_busy = 1
        c.job.fd = fd
        c.job.position = position
        c.job.size = size
        c.job.data = data
        c.job.cancelled = 0
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        self.push(queue, c)
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
        return 0

    cdef int start(self, int queue) noexcept nogil:
        with gil:
            try:
                threading.Thread(target=self.work, args=(queue,), name=f"helper-{queue}", daemon=True).start()
            except RuntimeError:
                return -1
        self.queues[queue].started = True
        return 0

    cdef void push(self, int queue, Conn* c) noexcept nogil:
        """Put a job behind the others of its queue; under the lock."""
        cdef JobQueue* q = &self.queues[queue]
        c.job.next = NULL
        if q.first == NULL:
            q.first = c
        else:
            q.last.job.next = c
        q.last = c
        q.waiting += 1
        pthread_cond_signal(<pthread_cond_t*>q.ready)

    cdef Conn* take_done(self) noexcept nogil:
        """The connections whose jobs are finished, chained by ``job.next``; each is told of once."""
        cdef Conn* found
        cdef uint64_t count
        read(self.eventfd, &count, sizeof(count))
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        found = self.done
        self.done = NULL
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
        return found

    cdef void cancel(self, Conn* c) noexcept nogil:
        """Nobody takes the result of this connection's job: unless it has begun, it is finished without being done."""
        helper_store(&c.job.cancelled, 1)

    cdef void close(self) noexcept nogil:
        """End the threads; a job that has begun comes to its end, the others are not done any more."""
        cdef int queue
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        self.closing = True
        for queue in range(self.queue_count):
            pthread_cond_signal(<pthread_cond_t*>self.queues[queue].ready)
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)

    cdef int jobs(self) noexcept nogil:
        """Jobs that are queued or under way."""
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
        cdef Conn* c
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
                c = q.first
                q.first = c.job.next
                q.waiting -= 1
                q.begun = 1
                q.looks = c.helper_kind == HELP_ANSWER or c.helper_kind == HELP_CREATE
                self.steps += 1
                pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
                more = self.work_on(c, queue, scratch)
                pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
                q.begun = 0
                q.ended += 1
                if more:
                    self.push(queue, c)
                else:
                    c.job.next = self.done
                    self.done = c
                    if c.job.next == NULL:
                        write(self.eventfd, &one, sizeof(one))
            pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
            free(scratch)

    cdef bint work_on(self, Conn* c, int queue, void* scratch) noexcept nogil:
        """One step of a job; whether there is more to do."""
        if helper_load(&c.job.cancelled):
            c.answer_state = ANSWER_NONE
            return False
        if c.helper_kind == HELP_INFLATE:
            return self.inflate(c)
        if c.helper_kind == HELP_ANSWER:
            return self.answer(c, queue)
        if c.helper_kind == HELP_CREATE:
            c.created = self.create(c)
        else:
            self.read_ahead(c, scratch)
        return False

    cdef bint inflate(self, Conn* c) noexcept with gil:
        try:
            view = PyMemoryView_FromMemory(<char*>c.job.data, <Py_ssize_t>c.job.size, PyBUF_READ)
            found = self.validate(view, c.name, self.checks.pop(c.name, None))
            if isinstance(found, int):
                c.deep_count = found
                return False
            self.checks[c.name] = found
            return True
        except BaseException:
            c.deep_count = -1
            return False

    cdef bint answer(self, Conn* c, int queue) noexcept with gil:
        cdef Py_ssize_t size
        c.answer_state = ANSWER_NONE
        free(c.answer)
        c.answer = NULL
        try:
            made = self.make_answer(<bytes>c.job.data[:c.job.size], queue, self.authorizer.client(c))
            if made is True:
                return True
            if made is False:
                c.answer_state = ANSWER_AGAIN
            elif made is not None:
                size = len(<bytes>made)
                c.answer = <uint8_t*>malloc(size)
                if c.answer != NULL:
                    memcpy(c.answer, <char*>(<bytes>made), size)
                    c.answer_size = size
                    c.answer_state = ANSWER_MADE
        except BaseException:
            c.answer_state = ANSWER_NONE
        return False

    cdef long long create(self, Conn* c) noexcept with gil:
        try:
            return self.make_partition(<bytes>c.job.data[:c.job.size], c.job.position)
        except BaseException:
            return CREATE_FAILED

    cdef void read_ahead(self, Conn* c, void* scratch) noexcept nogil:
        cdef uint64_t done = 0
        cdef int64_t r
        while scratch != NULL and done < c.job.size:
            r = file_pread(c.job.fd, scratch, min(<uint64_t>SCRATCH, c.job.size - done), c.job.position + done)
            if r <= 0:
                break
            done += <uint64_t>r

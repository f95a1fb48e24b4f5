"""The helper thread of a processor: what would make the loop wait for a disk, an inflater or a long answer is done here.

It hands its result over by an atomic flag in the connection and wakes the loop through the processor's own eventfd. The
loop does not touch or free a connection while ``helper_busy`` is set.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from fastlog.log._arena cimport Arena, fl_wake
from fastlog.log._files cimport file_pread
from fastlog.workers._connection cimport Conn

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

cdef extern from *:
    """
    static inline void helper_store(int *p, int v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    """
    void helper_store(int*, int) nogil

cdef enum:
    SCRATCH = 256 << 10


cdef class Helper:
    """One thread, started at the first job.

    ``validate(memoryview, name) -> int`` counts deep messages, -1 refuses; ``make_answer(bytes)`` gives the answer frame to a
    request from its id on, False when it should be asked again, None when there is no answer;
    ``make_partition(name, number)`` gives the number of the slot or a ``CreateState``.
    """

    def __cinit__(self, Arena arena, int process, validate, make_answer, make_partition):
        self.arena = arena
        self.process = process
        self.validate = validate
        self.make_answer = make_answer
        self.make_partition = make_partition
        self.room = 1024
        self.ring = <HelperJob*>calloc(self.room, sizeof(HelperJob))
        self.mutex = calloc(1, sizeof(pthread_mutex_t))
        self.ready = calloc(1, sizeof(pthread_cond_t))
        if self.ring == NULL or self.mutex == NULL or self.ready == NULL:
            raise MemoryError
        pthread_mutex_init(<pthread_mutex_t*>self.mutex, NULL)
        pthread_cond_init(<pthread_cond_t*>self.ready, NULL)

    cdef int submit(self, HelperJob job) noexcept nogil:
        """Queue one job; -1 when the queue is full or no thread can be had (the caller then does without)."""
        cdef int result = -1
        if self.thread is None:
            with gil:
                try:
                    thread = threading.Thread(target=self.work, name="helper", daemon=True)
                    thread.start()
                    self.thread = thread
                except RuntimeError:
                    return -1
        pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
        if self.tail - self.head < self.room:
            job.conn.helper_done = 0
            job.conn.helper_busy = 1
            self.ring[self.tail % self.room] = job
            self.tail += 1
            result = 0
            pthread_cond_signal(<pthread_cond_t*>self.ready)
        pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
        return result

    cdef long long inflate(self, HelperJob job) noexcept with gil:
        try:
            view = PyMemoryView_FromMemory(<char*>job.data, <Py_ssize_t>job.size, PyBUF_READ)
            return self.validate(view, job.conn.name)
        except BaseException:
            return -1

    cdef void answer(self, HelperJob job) noexcept with gil:
        cdef Conn* c = job.conn
        cdef Py_ssize_t size
        c.answer_state = ANSWER_NONE
        free(c.answer)
        c.answer = NULL
        try:
            made = self.make_answer(<bytes>job.data[:job.size])
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

    cdef long long create(self, HelperJob job) noexcept with gil:
        try:
            return self.make_partition(<bytes>job.data[:job.size], job.position)
        except BaseException:
            return CREATE_FAILED

    cdef void read_ahead(self, HelperJob job, void* scratch) noexcept nogil:
        cdef uint64_t done = 0
        cdef int64_t r
        while scratch != NULL and done < job.size:
            r = file_pread(job.fd, scratch, min(<uint64_t>SCRATCH, job.size - done), job.position + done)
            if r <= 0:
                break
            done += <uint64_t>r

    def work(self):
        cdef HelperJob job
        cdef void* scratch
        with nogil:
            scratch = malloc(SCRATCH)
            while True:
                pthread_mutex_lock(<pthread_mutex_t*>self.mutex)
                while self.head == self.tail:
                    pthread_cond_wait(<pthread_cond_t*>self.ready, <pthread_mutex_t*>self.mutex)
                job = self.ring[self.head % self.room]
                self.head += 1
                pthread_mutex_unlock(<pthread_mutex_t*>self.mutex)
                if job.kind == HELP_INFLATE:
                    job.conn.deep_count = self.inflate(job)
                elif job.kind == HELP_ANSWER:
                    self.answer(job)
                elif job.kind == HELP_CREATE:
                    job.conn.created = self.create(job)
                else:
                    self.read_ahead(job, scratch)
                helper_store(&job.conn.helper_done, 1)
                fl_wake(self.arena.header, self.arena.eventfds, self.process)

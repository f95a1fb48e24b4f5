from libc.stdint cimport uint8_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers.net._connection cimport Conn, Job, JobStep, ReadJob

# Queues, each with a thread of its own: what waits for one kind of work never waits for another kind.
cdef enum Queue:
    QUEUE_CONTROL = 0    # answers from memory alone
    QUEUE_CHECK = 1      # what decompresses
    QUEUE_CREATE = 2     # what makes files
    QUEUE_DISK = 3       # what reads files: one for each log directory, from this number on

cdef struct JobQueue:
    Job* first
    Job* last
    int waiting
    int begun            # jobs taken out that are not done
    bint looks           # the one that was begun looks at partitions
    uint64_t ended       # jobs, and steps of jobs, that were begun and are done
    uint64_t to_pass     # how many have to be before the thread is past what was marked
    bint started         # its thread is there
    void* ready

cdef class Helper:
    cdef Arena arena
    cdef SegmentFiles files
    cdef list owners             # of jobs: a thread may still be at one when everybody else has gone
    cdef JobQueue* queues
    cdef int queue_count
    cdef void* mutex             # of everything in the queues, and of ``finished``
    cdef Job* finished           # jobs that the loop has not taken back yet
    cdef int eventfd             # tells the loop of them
    cdef bint closing
    cdef readonly uint64_t steps # how often a thread took a job up

    cdef void ask(self, Conn* c, Job* job, JobStep step, void* owner, int queue, size_t at, size_t size) noexcept nogil
    cdef int submit(self, Conn* c, Job* job) noexcept nogil
    cdef int read_ahead(self, Conn* c, ReadJob* job, int entry, uint64_t position, uint64_t size) noexcept nogil
    cdef int submit_read(self, Conn* c, ReadJob* job, JobStep step, int entry, int index_entry) noexcept nogil
    cdef void unpin(self, ReadJob* job) noexcept nogil
    cdef Job* take_finished(self) noexcept nogil
    cdef bint done(self, Job* job) noexcept nogil
    cdef void cancel(self, Job* job) noexcept nogil
    cdef void close(self) noexcept nogil
    cdef int jobs(self) noexcept nogil
    cdef void mark(self) noexcept nogil
    cdef bint is_past(self) noexcept nogil
    cdef int start(self, int queue) noexcept nogil
    cdef void push(self, Job* job) noexcept nogil

from libc.stdint cimport uint8_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.workers.net._connection cimport Conn, Job
from fastlog.workers.net._remote cimport Remote

# A request that the coordinator answers. ``answer`` is an ``AnswerState`` of ``_jobs``: ANSWER_NONE, the connection closes, or
# ANSWER_MADE.
cdef struct ForwardJob:
    Job job
    int state
    uint8_t* answer      # a whole response frame, its size before it; whoever takes it frees it
    size_t size
    # the rest is for ``Forward`` alone
    uint64_t number      # of the frame; its low bits are its place in the table
    size_t sent          # bytes of the request that are on their way
    size_t received      # bytes of the answer that have come

cdef class Forward(Remote):
    cdef Arena arena
    cdef int process
    cdef uint64_t own            # which incarnation this process is
    cdef uint64_t other          # which one of the coordinator it has seen last
    cdef uint64_t count          # frames so far
    cdef ForwardJob** table      # those under way, by the low bits of their number
    cdef uint64_t room
    cdef uint64_t used
    cdef Job* first              # to be sent, or being sent
    cdef Job* last
    cdef Job* finished           # not taken back yet
    cdef uint8_t* scratch        # a piece that has come

    cdef int ask(self, Conn* c, ForwardJob* job, size_t at, size_t size) noexcept nogil
    cdef int enter(self, ForwardJob* job) noexcept nogil
    cdef void send(self) noexcept nogil
    cdef void take_piece(self, const uint8_t* piece, size_t size) noexcept nogil
    cdef void unlink(self, Job* job) noexcept nogil
    cdef void finish(self, ForwardJob* job, int state) noexcept nogil

"""A protocol all of whose requests the coordinator answers: each is a size (4 bytes, big-endian) and so many bytes."""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from fastlog.workers._forward cimport Forward, ForwardJob
from fastlog.workers._jobs cimport ANSWER_MADE
from fastlog._bytes cimport be32
from fastlog.workers.net._connection cimport WAIT_JOB, Conn, out_bytes, wait_for
from fastlog.workers.net._protocol cimport CLOSES, GOES_ON, Protocol

cdef enum:
    BETWEEN, ASKED, ANSWERED


cdef struct State:
    int state
    ForwardJob job


cdef class ToyForward(Protocol):
    """For one processor."""

    cdef Forward forward

    def __cinit__(self, Forward forward):
        self.forward = forward

    cdef int open(self, Conn* c) noexcept nogil:
        c.state = calloc(1, sizeof(State))
        return 0 if c.state != NULL else -1

    cdef void close(self, Conn* c) noexcept nogil:
        if c.state != NULL:
            free((<State*>c.state).job.answer)
            free(c.state)
            c.state = NULL

    cdef uint64_t next_size(self, const uint8_t* data, size_t n) noexcept nogil:
        return 4 + <uint64_t>be32(data) if n >= 4 else 4

    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, uint64_t now_ns, size_t* used) noexcept nogil:
        cdef State* state = <State*>c.state
        cdef uint64_t size
        cdef uint8_t* room
        used[0] = 0
        while n - used[0] >= 4:
            size = self.next_size(data + used[0], n - used[0])
            if size > n - used[0]:
                break
            if state.state != ANSWERED:
                if self.forward.ask(c, &state.job, 4, size - 4) != 0:
                    return CLOSES
                state.state = ASKED
                wait_for(c, WAIT_JOB, 0)
                break
            state.state = BETWEEN
            room = out_bytes(c, state.job.size) if state.job.state == ANSWER_MADE else NULL
            if room == NULL:
                return CLOSES
            memcpy(room, state.job.answer, state.job.size)
            free(state.job.answer)
            state.job.answer = NULL
            used[0] += size
        return GOES_ON

    cdef void job_done(self, Conn* c) noexcept nogil:
        (<State*>c.state).state = ANSWERED

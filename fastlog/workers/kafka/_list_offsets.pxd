from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from fastlog.log._layout cimport fl_slot
from fastlog.workers._engine cimport Engine
from fastlog.workers._jobs cimport Answering
from fastlog.workers.kafka._exchange cimport Exchange, Head
from fastlog.workers.kafka._kinds cimport Kinds
from fastlog.workers.kafka._topics cimport Topics
from fastlog.workers.kafka._wire cimport Reader, Writer
from fastlog.workers.net._connection cimport Conn

# One partition that LIST_OFFSETS asks for, and its answer.
cdef struct Listed:
    const uint8_t* name
    int name_size
    int32_t partition
    int32_t epoch                # that the client knows; -1: none
    int64_t time                 # in ms, or one of ``Times``
    fl_slot* slot
    bint is_bridged              # of a topic of 0.7; its slot is NULL where nobody has written to it
    int code
    int64_t offset
    int64_t timestamp
    int32_t offset_epoch

cdef class ListOffsets:
    cdef Engine engine
    cdef Kinds kinds
    cdef Topics topics
    cdef uint64_t* counters
    cdef Writer out
    cdef Answering answering

    cdef int answer(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil
    cdef int check_form(self, Reader* r, const Head* head) noexcept nogil
    cdef bint hold(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil
    cdef void write(self, Conn* c, const Head* head, const uint8_t* p, size_t size, const uint8_t* made,
                    size_t made_size) noexcept nogil
    cdef void look(self, Conn* c, Listed* one) noexcept nogil
    cdef void look_up(self, Listed* one) noexcept nogil
    cdef int queue_of(self, Conn* c, const Head* head, const uint8_t* p, size_t size) noexcept nogil
    cdef void forget(self, Exchange* x) noexcept nogil

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastlog.log._layout cimport fl_slot
from fastlog.workers._engine cimport Engine
from fastlog.workers._writes cimport Receipt, Writes
from fastlog.workers.kafka._exchange cimport Exchange, Head, Owed
from fastlog.workers.kafka._kinds cimport Kinds
from fastlog.workers.kafka._wire cimport Reader
from fastlog.workers.net._connection cimport Conn

cdef class Produces:
    cdef Engine engine
    cdef Kinds kinds
    cdef Writes writes
    cdef uint64_t* counters
    cdef int64_t max_batch

    cdef int produce(self, Conn* c, Exchange* x, const Head* head, uint8_t* p, size_t size) noexcept nogil
    cdef int begin(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size) noexcept nogil
    cdef int check_form(self, Reader* r, const Head* head) noexcept nogil
    cdef void next_part(self, Exchange* x, Reader* r) noexcept nogil
    cdef int part(self, Conn* c, Exchange* x, const Head* head, uint8_t* p, int32_t partition, uint8_t* data,
                  int64_t size) noexcept nogil
    cdef int refuse(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, int32_t partition, int code,
                    const char* reason, int detail, int64_t record=*) noexcept nogil
    cdef int refuse_batch(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, int32_t partition,
                          const uint8_t* data, uint64_t whole_bytes, int status) noexcept nogil
    cdef int deep(self, Conn* c, Exchange* x, const uint8_t* data, size_t size, size_t at) noexcept nogil
    cdef int tell_receipts(self, Conn* c, Exchange* x) noexcept nogil
    cdef void fill(self, Owed* owed, const Receipt* receipt) noexcept nogil
    cdef void give_up(self, Exchange* x) noexcept nogil
    cdef void discard(self, Conn* c, Exchange* x) noexcept nogil

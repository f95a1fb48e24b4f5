from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastlog._upconvert cimport Making
from fastlog.log._layout cimport fl_slot
from fastlog.log.formats._table cimport Entries
from fastlog.workers._engine cimport Engine
from fastlog.workers.kafka07._exchange cimport Exchange
from fastlog.workers.net._connection cimport Conn

cdef enum:
    TOO_LARGE_FOR_BATCH = -10    # of ``gather``, beside the values of ``Outcome``
    NOT_CONVERTED = -11          # it has been said why
    TAKEN_IN_PLACE = -12         # write before going on

cdef class ToRecords:
    cdef Engine engine
    cdef int64_t max_batch
    cdef Making making

    cdef int resolve(self, const uint8_t* name, int name_size, int32_t* partition, fl_slot** out) noexcept nogil
    cdef int gather(self, Conn* c, Exchange* x, fl_slot* s, const uint8_t* data, const Entries* found, size_t at,
                    uint32_t receipt) noexcept nogil
    cdef int gather_here(self, Conn* c, Exchange* x, fl_slot* s, const uint8_t* data, uint64_t size,
                         uint32_t receipt) noexcept nogil
    cdef int put(self, Conn* c, Exchange* x, fl_slot* s, const uint8_t* batches, uint64_t size, int64_t count,
                 int64_t time_ms, uint32_t receipt) noexcept nogil

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from fastlog.log._layout cimport fl_slot
from fastlog.log.formats._table cimport Entries
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers._engine cimport Engine
from fastlog.workers._partitions cimport Partitions
from fastlog.workers._writes cimport Receipt, Writes
from fastlog.workers.kafka07._exchange cimport Exchange
from fastlog.workers.kafka07._kinds cimport Kinds
from fastlog.workers.kafka07._to_records cimport ToRecords
from fastlog.workers.net._connection cimport Conn

cdef enum:
    OWN_VERSION = 1
    METADATA_VERSION = 2  # the newest of METADATA, the only request that has more than one

cdef class Produces:
    cdef Engine engine
    cdef Authorizer authorizer
    cdef Kinds kinds
    cdef Partitions partitions
    cdef Writes writes
    cdef ToRecords to_records
    cdef uint64_t* counters
    cdef Py_ssize_t max_message

    cdef int produce(self, Conn* c, Exchange* x, const uint8_t* p, size_t size, int kind) noexcept nogil
    cdef int begin(self, Conn* c, Exchange* x, const uint8_t* p, size_t size, int kind) noexcept nogil
    cdef int begin_acked(self, Conn* c, Exchange* x, const uint8_t* p, size_t size) noexcept nogil
    cdef void begin_part(self, Exchange* x) noexcept nogil
    cdef int part(self, Conn* c, Exchange* x, const uint8_t* name, int name_size, const uint8_t* data, size_t size,
                  Receipt* receipt, uint32_t number) noexcept nogil
    cdef int convert(self, Conn* c, Exchange* x, fl_slot* s, const uint8_t* name, int name_size, int32_t partition,
                     const uint8_t* data, const Entries* found, Receipt* receipt, uint32_t number) noexcept nogil
    cdef int create(self, Conn* c, Exchange* x, const uint8_t* name, int32_t partition, int name_size) noexcept nogil
    cdef int deep(self, Conn* c, Exchange* x, const uint8_t* data, size_t size, size_t at) noexcept nogil
    cdef int refuse(self, Conn* c, Receipt* receipt, int code, const char* reason, int detail, const uint8_t* name,
                    int name_size, int32_t partition) noexcept nogil
    cdef int tell_receipts(self, Conn* c, Exchange* x) noexcept nogil
    cdef void give_up(self, Exchange* x) noexcept nogil

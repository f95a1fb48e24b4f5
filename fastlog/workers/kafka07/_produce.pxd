from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from fastlog.log._arena cimport Arena, fl_slot
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers.net._connection cimport Ack, Conn
from fastlog.workers.kafka07._kinds cimport Kinds
from fastlog.workers._writes cimport Runs
from fastlog.workers._partitions cimport Topics

cdef enum:
    OWN_VERSION = 1
    METADATA_VERSION = 2  # the newest of METADATA, the only request that has more than one

cdef class Produces:
    cdef Arena arena
    cdef Authorizer authorizer
    cdef Kinds kinds
    cdef Topics topics
    cdef Runs runs
    cdef object services
    cdef uint64_t* counters
    cdef Py_ssize_t max_message
    cdef uint64_t inflate_ns         # spent on the loop's thread since its last wait; the loop sets it to 0

    cdef int produce(self, Conn* c, uint8_t* p, size_t size, int kind, bint own) noexcept nogil
    cdef void give_up(self, Conn* c, Ack* ack) noexcept nogil
    cdef int begin_acked(self, Conn* c, uint8_t* p, size_t size) noexcept nogil
    cdef int part(self, Conn* c, const uint8_t* name, int name_size, int32_t partition, uint8_t* data, size_t size,
                  Ack* ack, uint32_t sequence, bint own, size_t frame_offset) noexcept nogil
    cdef void begin_part(self, Conn* c) noexcept nogil
    cdef int create(self, Conn* c, const uint8_t* name, int32_t partition, int name_size, size_t frame_offset,
                    fl_slot** out) noexcept nogil
    cdef int deep(self, Conn* c, const uint8_t* data, size_t size, size_t frame_offset) noexcept nogil
    cdef int malformed(self, Conn* c, int kind, const char* reason) noexcept nogil
    cdef void refuse(self, Conn* c, Ack* ack, int code, const char* reason, int detail, const uint8_t* name, int name_size,
                     int32_t partition) noexcept nogil
    cdef void report_set(self, Conn* c, const uint8_t* name, int name_size, int32_t partition) noexcept nogil

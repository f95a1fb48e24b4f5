from libc.stdint cimport int32_t, uint8_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers.net._connection cimport Conn
from fastlog.workers.kafka07._fetch cimport Fetches
from fastlog.workers.net._helper cimport Helper
from fastlog.workers.kafka07._kinds cimport Kinds
from fastlog.workers.kafka07._produce cimport Produces
from fastlog.workers._writes cimport Runs
from fastlog.workers._partitions cimport Topics

cdef class Requests:
    cdef readonly Arena arena
    cdef Authorizer authorizer
    cdef Kinds kinds
    cdef Topics topics
    cdef Runs runs
    cdef Produces produces
    cdef Fetches fetches
    cdef Helper helper
    cdef object services, control
    cdef uint64_t* counters
    cdef uint64_t max_request
    cdef bint trace
    cdef uint64_t marked             # lives that began or ended, when the helper's threads were looked at last

    cdef bint forget_gone(self) noexcept nogil
    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, bint own, uint64_t now_ns, size_t* consumed) noexcept nogil
    cdef int frame(self, Conn* c, uint8_t* p, size_t size, bint own, uint64_t now_ns) noexcept nogil
    cdef bint offsets_allowed(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil
    cdef int refuse_offsets(self, Conn* c) noexcept nogil
    cdef int offsets_answer(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil
    cdef int answer_nobody(self, Conn* c, int kind, const uint8_t* p, size_t size) noexcept nogil
    cdef uint64_t expected_bytes(self, int kind, const uint8_t* p, size_t size) noexcept nogil
    cdef int queue_of(self, int kind, const uint8_t* p, size_t size) noexcept nogil
    cdef int answer_off_loop(self, Conn* c, int kind, const uint8_t* p, size_t size, int32_t correlation) noexcept nogil
    cdef int own_error(self, Conn* c, int kind, int32_t correlation, int code) noexcept nogil
    cdef bint whole_frame(self, Conn* c) noexcept nogil

from libc.stdint cimport int32_t, uint8_t, uint64_t

from fastlog.workers._engine cimport Engine
from fastlog.workers._forward cimport Forward
from fastlog.workers.kafka._exchange cimport Exchange, Head
from fastlog.workers.kafka._fetch cimport Fetches
from fastlog.workers.kafka._kinds cimport Kinds
from fastlog.workers.kafka._list_offsets cimport ListOffsets
from fastlog.workers.kafka._metadata cimport Metadata
from fastlog.workers.kafka._produce cimport Produces
from fastlog.workers.kafka._topics cimport Topics
from fastlog.workers.net._connection cimport Conn

cdef enum:
    VERSIONS_KEPT = 8

cdef class Requests:
    cdef Engine engine
    cdef Forward forward
    cdef Kinds kinds
    cdef Topics topics
    cdef Metadata metadata
    cdef Produces produces
    cdef Fetches fetches
    cdef ListOffsets list_offsets
    cdef uint64_t* counters
    cdef list versions                           # bodies of answers to API_VERSIONS: one for each version, and the refusal
    cdef (const char*)[VERSIONS_KEPT] body_of    # the same for compiled code
    cdef size_t[VERSIONS_KEPT] body_bytes
    cdef int refusal                             # the place of the refusal

    cdef int handle(self, Conn* c, Exchange* x, uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil
    cdef int pass_on(self, Conn* c, Exchange* x, size_t size) noexcept nogil
    cdef int read_head(self, const uint8_t* p, size_t size, Head* out) noexcept nogil
    cdef int api_versions(self, Conn* c, const Head* head, const uint8_t* p, size_t size) noexcept nogil
    cdef int tell_receipts(self, Conn* c, Exchange* x) noexcept nogil
    cdef void give_up(self, Exchange* x) noexcept nogil
    cdef void forget(self, Conn* c, Exchange* x) noexcept nogil

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from fastlog.workers._bridge cimport Bridge
from fastlog.workers._engine cimport Engine
from fastlog.workers._reads cimport Reads
from fastlog.workers.kafka._exchange cimport Exchange, Fetching, FetchPart, FetchTopic, Head
from fastlog.workers.kafka._kinds cimport Kinds
from fastlog.workers.kafka._topics cimport Topics
from fastlog.workers.kafka._wire cimport Writer
from fastlog.workers.net._connection cimport Conn
from fastlog.workers.net._slot_waits cimport SlotWaits

cdef class Fetches:
    cdef Engine engine
    cdef Kinds kinds
    cdef Topics topics
    cdef Reads reads
    cdef Bridge bridge
    cdef SlotWaits slot_waits
    cdef uint64_t* counters
    cdef uint64_t max_wait_ms
    cdef Writer out

    cdef int fetch(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil
    cdef int answer_nobody(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size) noexcept nogil
    cdef int begin(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil
    cdef int refuse(self, Conn* c, const Head* head, int code) noexcept nogil
    cdef int look(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, int* work) noexcept nogil
    cdef int look_at(self, Conn* c, Exchange* x, const uint8_t* p, FetchPart* part) noexcept nogil
    cdef void begin_round(self, Fetching* f) noexcept nogil
    cdef void find_bridged(self, Conn* c, Fetching* f, FetchPart* part, const uint8_t* name, int size, int32_t limit) noexcept nogil
    cdef int convert(self, Conn* c, Exchange* x, FetchPart* part) noexcept nogil
    cdef bint is_appended(self, FetchPart* part) noexcept nogil
    cdef int await_more(self, Conn* c, Fetching* f, const uint8_t* p, int* work) noexcept nogil
    cdef bint await_absent(self, const FetchTopic* topic, const FetchPart* part, const uint8_t* p) noexcept nogil
    cdef void note_moved(self, Fetching* f, FetchPart* part) noexcept nogil
    cdef void unpin(self, FetchPart* part) noexcept nogil
    cdef int put_parts(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, int* work) noexcept nogil
    cdef int put_part(self, Conn* c, const Head* head, Fetching* f, FetchPart* part, const uint8_t* made) noexcept nogil
    cdef bint put_bytes(self, Conn* c, Fetching* f) noexcept nogil
    cdef void write_part(self, const Head* head, Fetching* f, FetchPart* part) noexcept nogil
    cdef void forget(self, Conn* c, Exchange* x) noexcept nogil

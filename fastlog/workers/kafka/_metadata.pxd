from libc.stdint cimport int32_t, uint8_t, uint64_t

from fastlog.log._layout cimport fl_slot
from fastlog.workers._engine cimport Engine
from fastlog.workers._forward cimport Forward
from fastlog.workers.kafka._exchange cimport Exchange, Head
from fastlog.workers.kafka._kinds cimport Kinds
from fastlog.workers.kafka._topics cimport Topics
from fastlog.workers.kafka._wire cimport Reader, Writer
from fastlog.workers.net._connection cimport Conn

# The address that clients of a listener are given.
cdef struct Address:
    const char* host
    int size
    int32_t port

# One METADATA that is answered: what it asks for besides the topics.
cdef struct Asked:
    int version
    bint creates
    bint topic_operations
    bint cluster_operations
    int count                    # topics it names; -1: all
    size_t topics                # where they begin, from the api key on

cdef class Metadata:
    cdef Engine engine
    cdef Kinds kinds
    cdef Topics topics
    cdef Forward forward
    cdef list kept
    cdef Address[16] addresses
    cdef const char* cluster_id
    cdef int cluster_id_size
    cdef int32_t broker_id
    cdef bint may_create
    cdef Writer out
    cdef uint64_t partitions     # in the answer so far

    cdef int answer(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size) noexcept nogil
    cdef int read(self, const Head* head, const uint8_t* p, size_t size, Asked* out) noexcept nogil
    cdef bint wants_creation(self, Conn* c, const Asked* asked, const uint8_t* p, size_t size) noexcept nogil
    cdef uint64_t expected_partitions(self, const Asked* asked) noexcept nogil
    cdef int32_t cluster_operations(self) noexcept nogil
    cdef void write(self, Conn* c, const Head* head, const Asked* asked, const uint8_t* p, size_t size, const uint8_t* made,
                    size_t made_size) noexcept nogil
    cdef void write_named(self, Conn* c, Reader* r, int version, bint operations, int made) noexcept nogil
    cdef void write_all(self, Conn* c, const Asked* asked) noexcept nogil
    cdef void write_topic(self, Conn* c, int version, int code, const uint8_t* name, int size, const uint8_t* topic_id,
                          fl_slot* first, bint operations) noexcept nogil
    cdef int settled_partitions(self, const uint8_t* name, int size, bint bridged) noexcept nogil
    cdef int write_one(self, Conn* c, int version, int code, const uint8_t* name, int size, const uint8_t* topic_id,
                       fl_slot* first, int held, bint operations) noexcept nogil
    cdef void write_partition(self, int version, int partition, fl_slot* s) noexcept nogil
    cdef int32_t operations_of(self, Conn* c, const uint8_t* name, int size) noexcept nogil

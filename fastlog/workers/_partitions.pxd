from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport fl_slot

# Why the log does not do what a request asks; each protocol has codes of its own for them.
cdef enum Problem:
    PROBLEM_NONE = 0
    PROBLEM_TOPIC            # its name is illegal
    PROBLEM_PARTITION        # the topic has no partition of this number
    PROBLEM_DENIED           # the principal may not do that
    PROBLEM_OFFLINE          # the partition is out of service, or takes no appends
    PROBLEM_STORAGE          # the disk refused it
    PROBLEM_RANGE            # the log has no such offset
    PROBLEM_SIZE             # of a fetch: less than no bytes
    PROBLEM_MESSAGE          # no message begins at the offset
    PROBLEM_UNREADABLE       # the disk does not give the bytes back
    PROBLEM_FORMAT           # its log is of a format that clients of this protocol cannot use
    PROBLEM_SEQUENCE         # of a batch that its producer has numbered: one before it is missing
    PROBLEM_EPOCH            # of such a batch: its producer has begun anew since

# What ``resolve`` comes to, besides the problems of topics and partitions.
cdef enum Resolved:
    RESOLVED = 0
    RESOLVE_ABSENT = -1      # legal, but nobody has written to it

# What a partition is looked up for.
cdef enum Purpose:
    TO_READ = 0
    TO_PRODUCE = 1               # partition -1 is chosen

cdef struct TopicCount:
    const uint8_t* name          # in the slot of one of its partitions, or among the configured names
    int size
    int32_t count

cdef class Partitions:
    cdef Arena arena
    cdef list configured             # (name, count): keeps the names
    cdef uint32_t* table             # slot numbers + 1 by hash
    cdef uint64_t mask
    cdef uint64_t known              # changes of slots' lives that the table has
    cdef uint64_t largest            # partitions of the topic that has most of them
    cdef fl_slot* last               # what was found last
    cdef TopicCount* counted         # the topic whose partitions were counted last
    cdef TopicCount* counts
    cdef uint64_t counts_room, count_total
    cdef int32_t default_count
    cdef int most_units
    cdef uint64_t random_state
    cdef fl_slot* find(self, const uint8_t* name, int size, int32_t partition) noexcept nogil
    cdef fl_slot* look_up(self, const uint8_t* name, int size, int32_t partition) noexcept nogil
    cdef bint exists(self, const uint8_t* name, int size) noexcept nogil
    cdef int partition_count(self, const uint8_t* name, int size) noexcept nogil
    cdef int32_t draw(self, int count) noexcept nogil
    cdef int resolve(self, const uint8_t* name, int size, int32_t* partition, int purpose, int clients, fl_slot** out) noexcept nogil
    cdef TopicCount* place_of(self, const uint8_t* name, int size) noexcept nogil
    cdef int put_count(self, const uint8_t* name, int size, int32_t least) noexcept nogil
    cdef int32_t default_of(self, fl_slot* s) noexcept nogil
    cdef bint is_legal(self, const uint8_t* name, int size) noexcept nogil
    cdef void learn(self) noexcept nogil
    cdef int learn_all(self) noexcept nogil
    cdef int put_configured(self)
    cdef int enter(self, fl_slot* s) noexcept nogil

"""From a topic and a partition on the wire to a slot of the arena, with one process's own table over the shared slots."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from fastlog.log._arena cimport Arena, fl_load, fl_monotonic_ns, fl_slot, fl_slot_at

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef enum:
    COUNTS_ROOM = 1024


cdef inline uint64_t hash_of(const uint8_t* name, int size, int32_t partition) noexcept nogil:
    cdef uint64_t h = <uint64_t>0xcbf29ce484222325 ^ <uint32_t>partition
    cdef int i
    for i in range(size):
        h = (h ^ name[i]) * <uint64_t>0x100000001b3
    return h ^ (h >> 29)


cdef class Topics:
    """One thread's view of which partitions exist; ``control`` (Python) knows counts and names."""

    def __cinit__(self, Arena arena, control):
        cdef uint64_t room = 16
        self.arena = arena
        self.control = control
        while room < <uint64_t>arena.header.max_partitions * 2:
            room *= 2
        self.mask = room - 1
        self.table = <uint32_t*>calloc(room, sizeof(uint32_t))
        self.counts = <TopicCount*>calloc(COUNTS_ROOM, sizeof(TopicCount))
        if self.table == NULL or self.counts == NULL:
            raise MemoryError
        self.random_state = fl_monotonic_ns() ^ (<uint64_t>getpid() << 32) | 1

    def __dealloc__(self):
        self.forget_counts()
        free(self.counts)
        free(self.table)

    cdef void forget_counts(self) noexcept nogil:
        cdef int i
        for i in range(COUNTS_ROOM):
            free(self.counts[i].name)
            self.counts[i].name = NULL
        self.count_total = 0

    cdef void learn(self) noexcept nogil:
        """Take slots that appeared since the last look into the table."""
        cdef uint64_t count = fl_load(&self.arena.header.slot_count)
        cdef uint64_t at
        cdef fl_slot* s
        if self.known == count:
            return
        # a new partition may also mean that a topic has more of them than the settings say
        self.forget_counts()
        while self.known < count:
            s = fl_slot_at(self.arena.header, self.known)
            at = hash_of(s.name, <int>s.name_bytes, <int32_t>s.partition) & self.mask
            while self.table[at]:
                at = (at + 1) & self.mask
            self.table[at] = <uint32_t>self.known + 1
            self.largest = max(self.largest, <uint64_t>s.partition + 1)
            self.known += 1

    cdef fl_slot* find(self, const uint8_t* name, int size, int32_t partition) noexcept nogil:
        cdef fl_slot* s = self.last
        cdef uint64_t at
        if s != NULL and <int32_t>s.partition == partition and <int>s.name_bytes == size \
                and memcmp(s.name, name, size) == 0:
            return s
        self.learn()
        at = hash_of(name, size, partition) & self.mask
        while self.table[at]:
            s = fl_slot_at(self.arena.header, self.table[at] - 1)
            if <int32_t>s.partition == partition and <int>s.name_bytes == size and memcmp(s.name, name, size) == 0:
                self.last = s
                return s
            at = (at + 1) & self.mask
        return NULL

    cdef int partition_count(self, const uint8_t* name, int size) noexcept nogil:
        """How many partitions the topic has here, at least 1; -1 when the name is illegal."""
        cdef uint64_t at
        cdef int count
        cdef TopicCount* c
        self.learn()
        at = hash_of(name, size, -1) & (COUNTS_ROOM - 1)
        c = &self.counts[at]
        while c.name != NULL:
            if c.size == size and memcmp(c.name, name, size) == 0:
                return c.count
            at = (at + 1) & (COUNTS_ROOM - 1)
            c = &self.counts[at]
        count = self.ask_count(name, size)
        if count > 0 and size > 0:
            if self.count_total >= COUNTS_ROOM // 2:
                self.forget_counts()
                c = &self.counts[hash_of(name, size, -1) & (COUNTS_ROOM - 1)]
            c.name = <uint8_t*>malloc(size)
            if c.name != NULL:
                memcpy(c.name, name, size)
                c.size = size
                c.count = count
                self.count_total += 1
        return count

    cdef int ask_count(self, const uint8_t* name, int size) noexcept with gil:
        try:
            return self.control.partition_count(<bytes>name[:size])
        except Exception as error:
            self.control.unexpected(error)
            return -1

    cdef int resolve(self, const uint8_t* name, int size, int32_t* partition, int purpose, fl_slot** out) noexcept nogil:
        """Find the partition; a ``Resolved`` value.

        Partition -1 of a produce means that the broker chooses one at random (0.7). What lies on disk is served also
        above the configured count.
        """
        cdef int count
        out[0] = NULL
        if partition[0] == -1 and purpose != TO_READ:
            count = self.partition_count(name, size)
            if count < 1:
                return RESOLVE_INVALID_TOPIC
            self.random_state ^= self.random_state << 13
            self.random_state ^= self.random_state >> 7
            self.random_state ^= self.random_state << 17
            partition[0] = <int32_t>(self.random_state % <uint64_t>count)
        if partition[0] >= 0:
            out[0] = self.find(name, size, partition[0])
            if out[0] != NULL:
                return RESOLVED
        count = self.partition_count(name, size)
        if count < 1:
            return RESOLVE_INVALID_TOPIC
        if partition[0] < 0 or partition[0] >= count:
            return RESOLVE_WRONG_PARTITION
        return RESOLVE_ABSENT

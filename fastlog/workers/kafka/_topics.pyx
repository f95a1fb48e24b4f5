"""Topics by name and by id, as today's clients name them; whose partitions have which format is the engine's to know."""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from fastlog.log._layout cimport fl_header, fl_is_shown, fl_load, fl_slot, fl_slot_at
from fastlog.workers._engine cimport Engine

cdef enum:
    LONGEST_NAME = 249           # that Kafka allows

cdef uint8_t[ID_BYTES] ZERO
NO_ID = ZERO


cdef bint is_zero(const uint8_t* topic_id) noexcept nogil:
    """Whether these 16 bytes are the id of no topic."""
    return memcmp(topic_id, NO_ID, ID_BYTES) == 0


cdef bint has_kafkas_name(const uint8_t* name, int size) noexcept nogil:
    """Whether a name of 0.7's is one for Kafka, too, and not like those of the broker's own topics."""
    cdef int i
    if size < 1 or size > LONGEST_NAME or (name[0] == c"." and (size == 1 or (size == 2 and name[1] == c"."))) \
            or (size >= 2 and name[0] == c"_" and name[1] == c"_"):
        return False
    for i in range(size):
        if not (c"a" <= name[i] <= c"z" or c"A" <= name[i] <= c"Z" or c"0" <= name[i] <= c"9"
                or name[i] == c"." or name[i] == c"_" or name[i] == c"-"):
            return False
    return True


cdef inline uint64_t hash_of(const uint8_t* topic_id) noexcept nogil:
    cdef uint64_t one, two
    memcpy(&one, topic_id, 8)
    memcpy(&two, topic_id + 8, 8)
    one = (one ^ two) * <uint64_t>0x9e3779b97f4a7c15
    return one ^ (one >> 32)


@cython.final
cdef class Topics:
    """One processor's view of which topics there are; its loop's thread only."""

    def __cinit__(self, Engine engine):
        cdef uint64_t room = 16
        self.engine = engine
        while room < <uint64_t>engine.arena.header.max_partitions * 2:
            room *= 2
        self.mask = room - 1
        self.table = <uint32_t*>calloc(room, sizeof(uint32_t))
        if self.table == NULL:
            raise MemoryError
        self.known = <uint64_t>-1

    def __dealloc__(self):
        free(self.table)

    cdef bint are_in_part(self) noexcept nogil:
        """Whether another broker has partitions of the same topics: a client of today would take these here for all."""
        return fl_load(&self.engine.arena.header.other_broker) != 0

    cdef fl_slot* first_of(self, const uint8_t* name, int size) noexcept nogil:
        """The first partition of a topic that is there, whatever its format; NULL: there is no such topic."""
        cdef int partition
        cdef fl_slot* s
        for partition in range(self.engine.partitions.partition_count(name, size)):
            s = self.engine.partitions.find(name, size, partition)
            if s != NULL:
                return s
        return NULL

    cdef fl_slot* by_id(self, const uint8_t* topic_id) noexcept nogil:
        """A partition of the topic with this id; NULL: there is none."""
        cdef uint64_t at = hash_of(topic_id) & self.mask
        cdef fl_slot* s
        if is_zero(topic_id):
            return NULL
        if fl_load(&self.engine.arena.header.change_count) != self.known:
            self.learn()
        while self.table[at]:
            s = fl_slot_at(self.engine.arena.header, self.table[at] - 1)
            if memcmp(s.topic_id, topic_id, ID_BYTES) == 0 and fl_is_shown(s):
                return s
            at = (at + 1) & self.mask
        return NULL

    cdef void learn(self) noexcept nogil:
        """Make the table anew, with one partition of each topic: who names a topic by its id does so by its partitions."""
        cdef fl_header* h = self.engine.arena.header
        cdef uint64_t now = fl_load(&h.change_count)
        cdef uint64_t index, at
        cdef fl_slot* s
        memset(self.table, 0, (self.mask + 1) * sizeof(uint32_t))
        for index in range(fl_load(&h.slot_count)):
            s = fl_slot_at(h, index)
            if not fl_is_shown(s) or is_zero(s.topic_id):
                continue
            at = hash_of(s.topic_id) & self.mask
            while self.table[at] and memcmp(fl_slot_at(h, self.table[at] - 1).topic_id, s.topic_id, ID_BYTES) != 0:
                at = (at + 1) & self.mask
            self.table[at] = <uint32_t>index + 1
        self.known = now

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastlog.log._layout cimport fl_load, fl_slot
from fastlog.log.formats._table cimport OF_KAFKA, READ_BY_KAFKA, Format, format_of
from fastlog.workers._engine cimport Engine

cdef enum:
    ID_BYTES = 16

cdef class Topics:
    cdef Engine engine
    cdef uint32_t* table         # slot numbers + 1 by the hash of the topic's id
    cdef uint64_t mask
    cdef uint64_t known          # changes of slots' lives that the table has

    cdef bint are_in_part(self) noexcept nogil
    cdef fl_slot* first_of(self, const uint8_t* name, int size) noexcept nogil
    cdef fl_slot* by_id(self, const uint8_t* topic_id) noexcept nogil
    cdef void learn(self) noexcept nogil


cdef uint8_t* NO_ID              # of a topic that has none


cdef inline bint is_todays(fl_slot* s) noexcept nogil:
    """Whether a partition is one of those that today's clients use."""
    cdef const Format* made = format_of(s.format)
    return made != NULL and made.clients & OF_KAFKA != 0


cdef inline bint is_bridged(fl_slot* s) noexcept nogil:
    """Whether a partition is one of 0.7 that today's clients can read, and know of: its name is one that they may use."""
    cdef const Format* made = format_of(s.format)
    return made != NULL and made.clients & READ_BY_KAFKA != 0 and has_kafkas_name(s.name, <int>s.name_bytes)


cdef inline bint is_settled(fl_slot* s) noexcept nogil:
    """Whether clients may see a partition: it is recorded as existing."""
    return fl_load(&s.settled) != 0


cdef bint is_zero(const uint8_t* topic_id) noexcept nogil
cdef bint has_kafkas_name(const uint8_t* name, int size) noexcept nogil

from libc.stdint cimport uint8_t

cdef enum Kind:
    PRODUCE = 0
    FETCH = 1
    MULTIFETCH = 2
    MULTIPRODUCE = 3
    OFFSETS = 4
    TODAYS_API_VERSIONS = 18
    ACKED_PRODUCE = 1000
    HELD_FETCH = 1001
    METADATA = 1002
    CUT_POINTS = 1003
    LOCAL_READ = 1004
    CREATE_TOPIC = 1005
    DELETE_TOPIC = 1006

cdef enum:
    KINDS_EACH = 32              # 0 up, and 1000 up

cdef class Kinds:
    cdef uint8_t[64] operations  # an ``Operation`` by kind, 1000 up behind the others; 0: no such request


cdef inline int operation_of(Kinds kinds, int kind) noexcept nogil:
    """What a request of this kind does with the topics it names; 0 when there is no such kind."""
    if kind >= ACKED_PRODUCE:
        return kinds.operations[kind - ACKED_PRODUCE + KINDS_EACH] if kind < ACKED_PRODUCE + KINDS_EACH else 0
    return kinds.operations[kind] if 0 <= kind < KINDS_EACH else 0

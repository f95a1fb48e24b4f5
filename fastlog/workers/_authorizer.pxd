from libc.stdint cimport uint8_t

from fastlog.workers.net._connection cimport Conn

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

cdef enum:
    KINDS_EACH = 32              # 0 up, and 1000 up

cdef class Authorizer:
    cdef object rule             # None: everybody may do everything
    cdef bint has_rule
    cdef uint8_t[64] operations  # by place_of(kind), 0: no such request

    cdef bint ask(self, Conn* c, int kind, const uint8_t* name, int size) noexcept nogil
    cdef object client(self, Conn* c)


cdef inline bint is_known(Authorizer authorizer, int kind) noexcept nogil:
    """Whether the table has a row for a request kind."""
    if kind >= ACKED_PRODUCE:
        return kind < ACKED_PRODUCE + KINDS_EACH and authorizer.operations[kind - ACKED_PRODUCE + KINDS_EACH] != 0
    return 0 <= kind < KINDS_EACH and authorizer.operations[kind] != 0


cdef inline bint is_allowed(Authorizer authorizer, Conn* c, int kind, const uint8_t* name, int size) noexcept nogil:
    """Whether the connection's principal may make a request of this kind on a topic. One branch where no rule is set."""
    return not authorizer.has_rule or authorizer.ask(c, kind, name, size)

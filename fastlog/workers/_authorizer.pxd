from libc.stdint cimport uint8_t

from fastlog.workers.net._connection cimport Conn

cdef class Authorizer:
    cdef object rule             # None: everybody may do everything
    cdef bint has_rule

    cdef bint ask(self, Conn* c, int operation, const uint8_t* name, int size) noexcept nogil
    cdef object client(self, Conn* c)


cdef inline bint is_allowed(Authorizer authorizer, Conn* c, int operation, const uint8_t* name, int size) noexcept nogil:
    """Whether the connection's principal may do an operation on a topic. One branch where no rule is set."""
    return not authorizer.has_rule or authorizer.ask(c, operation, name, size)

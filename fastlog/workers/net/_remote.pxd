from fastlog.workers.net._connection cimport Conn, Job

cdef enum:
    QUEUE_REMOTE = -1    # of a job that another process does: its owner is a ``Remote``

cdef class Remote:
    cdef readonly int fd         # readable when results may have come; writable when there is room again
    cdef bint wants_room         # something waits to be sent

    cdef int submit(self, Conn* c, Job* job) noexcept nogil
    cdef void cancel(self, Job* job) noexcept nogil
    cdef void look(self) noexcept nogil
    cdef void ready(self) noexcept nogil
    cdef Job* take_finished(self) noexcept nogil
    cdef int jobs(self) noexcept nogil

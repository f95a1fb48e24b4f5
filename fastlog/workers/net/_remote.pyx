"""Jobs of connections that another process does, as the loop sees it; a class beside ``net`` implements it.

Such a job is asked for as those of the helper are: its queue is QUEUE_REMOTE, its owner the ``Remote``. The loop calls
everything, on its thread.
"""

from fastlog.workers.net._connection cimport Conn, Job


cdef class Remote:
    """A queue of jobs for one other process, over a socket pair."""

    cdef int submit(self, Conn* c, Job* job) noexcept nogil:
        """Have a job of a connection done; its bytes stay where they are until it is finished. 0, or -1: try again."""
        return -1

    cdef void cancel(self, Job* job) noexcept nogil:
        """Nobody takes the result of a job: finish it as soon as it can be."""

    cdef void look(self) noexcept nogil:
        """Once a turn, before the loop sleeps: the shared memory may have changed."""

    cdef void ready(self) noexcept nogil:
        """The descriptor is readable, or writable while ``wants_room``."""

    cdef Job* take_finished(self) noexcept nogil:
        """The jobs that are finished, chained by ``next``; each is returned once."""
        return NULL

    cdef int jobs(self) noexcept nogil:
        """The number of jobs under way."""
        return 0

"""What a listener speaks, as its connections see it: a package beside ``net`` implements it, ``net`` knows no other word.

A connection calls its protocol with bytes that were received, and after each wait; the protocol puts answers into the
connection's output (``_connection``), says with ``wait_for`` why it does not go on, and gives work that would make the
loop wait to the helper (``_helper``). Everything is called on the loop's thread.
"""

from libc.stdint cimport uint8_t, uint64_t

from fastlog.workers.net._connection cimport Conn


cdef class Protocol:
    """One protocol of one processor, for all connections that speak it."""

    cdef int open(self, Conn* c) noexcept nogil:
        """A connection begins: make ``state``. 0, or -1 without memory."""
        return 0

    cdef void close(self, Conn* c) noexcept nogil:
        """A connection has ended and has no job: give back ``state`` and all it holds. Also after ``open`` failed."""

    cdef void trim(self, Conn* c) noexcept nogil:
        """A connection rests: give back the memory that only a busier time needed."""

    cdef uint64_t next_size(self, const uint8_t* data, size_t n) noexcept nogil:
        """How many bytes the request takes that begins here; at most ``n`` when these are enough to refuse it."""
        return n

    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, uint64_t now_ns, size_t* used) noexcept nogil:
        """Handle whole requests until one has to wait, or an answer should leave; ``used`` says how far it came.

        The bytes stand in the connection's own buffer, or in one of the loop that is used again as soon as this
        returns: ``keeps`` tells. A request that waits is not used up, and comes again from its beginning. A ``Going``.
        """
        used[0] = n
        return CLOSES

    cdef int resume(self, Conn* c) noexcept nogil:
        """Before more requests are handled: do what is left of those that were used up. A ``Going``.

        Waits for something other than the visible end when that must come first.
        """
        return GOES_ON

    cdef void job_done(self, Conn* c) noexcept nogil:
        """The connection's ``job`` is done, or was cancelled: take the result."""

    cdef int unfinished(self, Conn* c) noexcept nogil:
        """What is left to do for requests that were used up: a set of ``Unfinished``."""
        return 0

    cdef void unreadable(self, int entry, uint64_t position, int error) noexcept nogil:
        """A span of a segment file could not be sent from here on; ``error`` is 0 when the file ended."""

    cdef void begin_turn(self) noexcept nogil:
        """The loop has waited for events and begins to handle them."""

    cdef bint forget_gone(self, uint64_t now) noexcept nogil:
        """Between two turns: know no partition any more that was deleted by the time of change ``now``; whether it does not."""
        return True

"""All buffers of one broker: where the thread that sends what is in them sleeps, and what it takes when it wakes up.

Guarded by the GIL as the buffers are, which is given up only to sleep.
"""

from libc.errno cimport errno
from libc.stdint cimport uint64_t

from fastlog.producer._buffer cimport ASLEEP, ASLEEP_FULL, AWAKE, Buffer, Quota, Shelf
from fastlog.producer._frames cimport Chunk, monotonic_ns

import os


cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int ppoll(pollfd* watched, unsigned long count, const timespec* timeout, const void* mask)
    short POLLIN
    short POLLOUT
    short POLLERR
    short POLLHUP

cdef extern from "<unistd.h>" nogil:
    ssize_t c_read "read"(int fd, void* target, size_t n)
    ssize_t c_write "write"(int fd, const void* source, size_t n)
    int c_close "close"(int fd)

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int count, int flags)
    int EFD_NONBLOCK
    int EFD_CLOEXEC

WOKEN = 1
READABLE = 2
WRITABLE = 4


cdef class Outbox(Shelf):
    """The buffers of one broker, and the eventfd that wakes the thread that sends what is in them."""

    cdef bint has_eventfd

    def __cinit__(self):
        self.wake_fd = -1

    def __init__(self, Quota quota, long long linger_ns):
        self.active = []
        self.quota = quota
        self.linger_ns = linger_ns
        if not self.has_eventfd:
            self.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
            if self.wake_fd < 0:
                raise OSError(errno, os.strerror(errno))
            self.has_eventfd = True

    def __dealloc__(self):
        if self.wake_fd >= 0:
            c_close(self.wake_fd)

    def retire(self):
        """Take nothing more in, and close the eventfd: no thread sleeps here any more."""
        self.closed = True
        if self.wake_fd >= 0:
            c_close(self.wake_fd)
            self.wake_fd = -1

    def close_if_empty(self):
        """Take nothing more in, unless something is in it now; whether it is closed."""
        self.closed = self.closed or not self.active
        return self.closed

    def close(self):
        """Take nothing more in: a buffer raises ``ClosedError``."""
        self.closed = True

    def is_empty(self):
        return not self.active

    def wake(self):
        """Wake the sending thread, whatever it waits for."""
        cdef uint64_t one = 1
        self.sleeping = AWAKE
        if self.wake_fd >= 0:
            c_write(self.wake_fd, &one, 8)

    cdef long long due_ns(self) except -2:
        """When the oldest open frame is due, on the monotonic clock; -1 when none is open."""
        cdef Buffer buffer
        cdef long long found = -1
        for buffer in self.active:
            if buffer.open_messages and buffer.is_ripe():
                return 0                                  # it has grown while frames before it waited
            if buffer.open_messages and (found < 0 or buffer.opened_ns + self.linger_ns < found):
                found = buffer.opened_ns + self.linger_ns
        return found

    def seal_all(self):
        """Finish every open frame without waiting for it to fill up."""
        cdef Buffer buffer
        for buffer in self.active:
            if buffer.open_messages:
                buffer.seal()

    def sleep(self, int fd, bint for_writing, bint full, long long until_ns):
        """Wait until there is something to do: WOKEN, READABLE and WRITABLE are added up; 0 when it is time to take.

        ``fd`` -1 for no connection; ``until_ns`` -1 for no end. While ``full``, new messages do not count.
        """
        cdef pollfd watched[2]
        cdef timespec left
        cdef timespec* left_or_null = NULL
        cdef long long now
        cdef int found, result = 0
        cdef uint64_t count
        cdef int count_fds = 2 if fd >= 0 else 1
        if not full:      # here and not before the call: between the look and the sleep no other thread may run
            now = 0 if self.ready else self.due_ns()
            if now >= 0 and (until_ns < 0 or now < until_ns):
                until_ns = now
        watched[0].fd = self.wake_fd
        watched[0].events = POLLIN
        watched[0].revents = 0
        watched[1].fd = fd
        watched[1].events = POLLIN | (POLLOUT if for_writing else 0)
        watched[1].revents = 0
        if until_ns >= 0:
            now = monotonic_ns()
            now = until_ns - now if until_ns > now else 0
            left.tv_sec = now // 1000000000
            left.tv_nsec = now % 1000000000
            left_or_null = &left
        self.sleeps_until = until_ns
        self.sleeping = ASLEEP_FULL if full else ASLEEP
        with nogil:
            found = ppoll(watched, <unsigned long>count_fds, left_or_null, NULL)
        self.sleeping = AWAKE
        if found > 0:
            if watched[0].revents:
                c_read(self.wake_fd, &count, 8)
                result |= 1
            if watched[1].revents & (POLLIN | POLLERR | POLLHUP):
                result |= 2
            if watched[1].revents & POLLOUT:
                result |= 4
        return result

    def take(self, bint everything=False, Py_ssize_t max_bytes=0x7FFFFFFFFFFFFFF):
        """Return the finished frames as chunks, those whose time is over finished first; all with ``everything``."""
        cdef int collecting = PyGC_Disable()
        try:
            return self.take_chunks(everything, max_bytes)
        finally:
            if collecting:
                PyGC_Enable()

    cdef list take_chunks(self, bint everything, Py_ssize_t max_bytes):
        cdef list chunks = [], rest = []
        cdef Buffer buffer
        cdef Chunk chunk
        cdef Py_ssize_t total = 0, i
        cdef long long now = monotonic_ns()
        cdef bint left = False
        for i in range(len(self.active)):
            buffer = <Buffer>self.active[i]
            if total >= max_bytes:
                rest.append(buffer)
                left = left or buffer.frame_count > 0 or buffer.full is not None
                continue
            if buffer.open_messages and (
                everything or buffer.is_ripe() or buffer.opened_ns + self.linger_ns <= now
            ):
                buffer.seal()
            if buffer.full is not None:
                chunks += buffer.full
                for chunk in buffer.full:
                    total += chunk.size
                buffer.full = None
            if buffer.frame_count:
                chunk = buffer.detach()
                total += chunk.size
                chunks.append(chunk)
            if buffer.open_messages:
                rest.append(buffer)
            else:
                buffer.active = False
        self.active = rest
        self.ready = left
        for chunk in chunks:
            chunk.taken_ns = now
            self.quota.messages -= chunk.messages
        self.quota.bytes -= total
        return chunks

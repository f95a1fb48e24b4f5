"""The receiving half of a connection: frames out of a socket with few calls and few copies. See the ``.pyi``.

A large answer comes in many pieces, and its reader is often faster than its sender. So taking and waiting are one loop
without the interpreter lock; what it has taken is kept in the inbox, so that it can be left at any moment.
"""

import os

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memmove, memset

from fastlog._bytes cimport be32
from fastlog.client.buffers import Buffers
from fastlog.errors import ProtocolError


cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* descriptors, unsigned long count, int timeout_ms)
    short POLLIN

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    int MSG_DONTWAIT

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* now)
    int CLOCK_MONOTONIC

cdef enum:
    LENGTH_BYTES = 4
    SCRATCH_BYTES = 64 * 1024
    LEAST_BODY_BYTES = 1 << 20
    CLOSED = -1


cdef inline int64_t now_ms() noexcept nogil:
    """CLOCK_MONOTONIC, in milliseconds."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


cdef inline int wait_readable(int fd, int wait_ms) noexcept nogil:
    """Wait up to ``wait_ms`` for bytes or an end: 1 when there is something, 0 when not, -1 with ``errno``."""
    cdef pollfd waiting
    waiting.fd = fd
    waiting.events = POLLIN
    waiting.revents = 0
    return poll(&waiting, 1, wait_ms)


@cython.final
cdef class Inbox:
    """Reads a socket and cuts what comes into the bodies of frames. For one thread."""

    cdef public int64_t max_bytes
    cdef public int64_t trusted_bytes
    cdef int64_t least_bytes
    cdef bytearray scratch
    cdef Py_ssize_t start       # of what is not taken yet in the scratch buffer
    cdef Py_ssize_t end
    cdef object buffers
    cdef bytearray body         # of a frame that does not fit the scratch buffer, else None
    cdef Py_ssize_t size
    cdef Py_ssize_t filled
    cdef int failure            # what ended the stream: an errno, or CLOSED

    def __init__(self, int64_t max_bytes, int64_t least_bytes=2):
        self.max_bytes = max_bytes
        self.trusted_bytes = 0
        self.least_bytes = least_bytes
        self.scratch = bytearray(SCRATCH_BYTES)
        self.start = self.end = 0
        self.buffers = Buffers()
        self.body = None
        self.size = self.filled = 0
        self.failure = 0

    @property
    def held_bytes(self):
        return self.end - self.start + (LENGTH_BYTES + self.filled if self.body is not None else 0)

    cpdef frame_or_none(self):
        """The next frame's body, if it has come whole. Raises ProtocolError: a size that is not allowed."""
        cdef Py_ssize_t at, size
        if self.body is None:
            if self.end - self.start < LENGTH_BYTES:
                return None
            size = self.announced()
            if not self.least_bytes <= size <= self.max_bytes:
                raise ProtocolError(
                    f"a frame announces {size} bytes, allowed are {self.least_bytes} to {self.max_bytes}"
                )
            if size <= self.end - self.start - LENGTH_BYTES:
                at = self.start + LENGTH_BYTES
                self.start = at + size
                return memoryview(PyBytes_FromStringAndSize(PyByteArray_AS_STRING(self.scratch) + at, size))
            if size > SCRATCH_BYTES - LENGTH_BYTES:
                self.begin_body(size)
            return None
        if self.filled < self.size:
            return None
        body, self.body = self.body, None
        return memoryview(body)[:self.size]

    def take(self, int fd, int wait_ms=0):
        frame = self.frame_or_none()
        if frame is None and self.receive(fd, wait_ms):
            frame = self.frame_or_none()
        return frame

    def rest(self):
        self.buffers.rest()

    def is_quiet(self, int fd):
        return not self.held_bytes and wait_readable(fd, 0) == 0

    cpdef bint receive(self, int fd, int wait_ms=0) except -1:
        """Read until a frame is whole or ``wait_ms`` are over; whether bytes came. Raises EOFError, OSError."""
        cdef int64_t deadline = now_ms() + wait_ms
        cdef Py_ssize_t before = self.held_bytes
        cdef Py_ssize_t size
        while self.into_body(fd, deadline) if self.body is not None else self.into_scratch(fd, deadline):
            if self.body is None:
                if self.end - self.start < LENGTH_BYTES:
                    continue
                size = self.announced()
                if not SCRATCH_BYTES - LENGTH_BYTES < size <= self.max_bytes:
                    if size <= self.end - self.start - LENGTH_BYTES or size > self.max_bytes:
                        return True
                    continue
                self.begin_body(size)
            if self.filled == self.size:
                return True
        return self.held_bytes > before

    cdef Py_ssize_t announced(self) noexcept:
        """The size that the head at the front of the scratch buffer claims."""
        cdef const unsigned char* head = <const unsigned char*>PyByteArray_AS_STRING(self.scratch) + self.start
        return <int>be32(head)

    cdef int begin_body(self, Py_ssize_t size) except -1:
        """Move the beginning of a frame of ``size`` bytes out of the scratch buffer, into memory of its own."""
        cdef bytearray body
        if size <= self.trusted_bytes:
            body = self.buffers.take(size)
        else:
            body = bytearray(min(size, LEAST_BODY_BYTES))
        self.filled = self.end - self.start - LENGTH_BYTES
        memcpy(PyByteArray_AS_STRING(body), PyByteArray_AS_STRING(self.scratch) + self.start + LENGTH_BYTES, self.filled)
        self.start = self.end = 0
        self.size = size
        self.body = body

    cdef bint into_scratch(self, int fd, int64_t deadline) except -1:
        """Read into the scratch buffer what fits; whether bytes came."""
        cdef char* scratch = PyByteArray_AS_STRING(self.scratch)
        cdef Py_ssize_t came, room
        if self.start:
            memmove(scratch, scratch + self.start, self.end - self.start)
            self.end -= self.start
            self.start = 0
        if self.end == SCRATCH_BYTES:
            raise BufferError("whole frames wait to be taken")
        room = SCRATCH_BYTES - self.end
        if self.end < LENGTH_BYTES and self.trusted_bytes > SCRATCH_BYTES - LENGTH_BYTES:
            room = LENGTH_BYTES - self.end      # what follows is likely to have a place of its own
        with nogil:
            came = self.drain(fd, scratch + self.end, room, 1, deadline)
        self.end += came
        return self.is_going_on(came)

    cdef bint into_body(self, int fd, int64_t deadline) except -1:
        """Fill what there is of the body; it grows only once it is full."""
        cdef Py_ssize_t room = PyByteArray_GET_SIZE(self.body), more, came
        cdef char* at
        if self.filled == room:
            more = min(self.size - room, room)
            PyByteArray_Resize(self.body, room + more)
            memset(PyByteArray_AS_STRING(self.body) + room, 0, more)
            room += more
        room = min(room, self.size) - self.filled
        at = PyByteArray_AS_STRING(self.body) + self.filled
        with nogil:
            came = self.drain(fd, at, room, room, deadline)
        self.filled += came
        return self.is_going_on(came) and came == room

    cdef Py_ssize_t drain(self, int fd, char* to, Py_ssize_t room, Py_ssize_t least, int64_t deadline) noexcept nogil:
        """Receive until ``least`` bytes came, the time is over, a signal came, or the stream ended. Returns how many."""
        cdef Py_ssize_t total = 0
        cdef ssize_t came
        cdef int64_t left
        while total < least:
            came = recv(fd, to + total, room - total, MSG_DONTWAIT)
            if came > 0:
                total += came
                continue
            if came == 0:
                self.failure = CLOSED
                break
            if errno != EAGAIN:
                self.failure = errno if errno != EINTR else 0
                break
            left = deadline - now_ms()
            if left <= 0 or wait_readable(fd, <int>left) <= 0:
                break
        return total

    cdef bint is_going_on(self, Py_ssize_t came) except -1:
        """Whether bytes came; an end of the stream is raised once none of them are left to be looked at."""
        cdef int failure = self.failure
        if came == 0 and failure:
            if failure == CLOSED:
                raise EOFError("the other side closed the connection")
            raise OSError(failure, os.strerror(failure))
        return came > 0

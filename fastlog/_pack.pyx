"""The producer's accumulation buffers: payloads in, whole request frames out.

A ``Buffer`` holds the open and the finished frames of one topic and partition of one broker; an ``Outbox`` the buffers of
one broker; a ``Route`` the choice of buffers for one topic. All of it is guarded by the GIL: no function here gives it up
between looking at a buffer and changing it, so threads need no lock and a signal handler finds nothing half-done.
The layouts are those of PRODUCE and PRODUCE_ACK in ``docs/protocol.md``; a message is written with magic 1.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from fastlog._crc cimport crc32_span

from fastlog.errors import ClosedError, MessageTooLargeError


cdef extern from "Python.h":
    PyObject* PyDict_GetItem(object mapping, object key)  # borrowed, and no exception for a missing or unhashable key
    object unicode_bytes "PyUnicode_AsUTF8String"(object text)
    # A collection runs finalizers, which may send: none may start while a buffer is half-changed.
    int PyGC_Disable()
    int PyGC_Enable()

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* now)
    int CLOCK_MONOTONIC

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

cdef enum:
    ENTRY_HEADER_BYTES = 10       # length 4, magic 1, attributes 1, crc 4
    ENTRY_SIZE_BYTES = 6          # of these, the ones that the length field counts
    FIRST_BLOCK_BYTES = 4096
    BLOCK_BYTES = 1 << 20         # memory with finished frames is handed on rather than grown from this size on
    GIL_BYTES = 65536             # a longer checksum lets other threads run
    MAX_MESSAGES = 0x7FFFFFFF

    AWAKE = 0
    ASLEEP = 1                    # whatever there is to do wakes the sender
    ASLEEP_FULL = 2               # it has enough on its way: new messages do not wake it

WOKEN = 1
READABLE = 2
WRITABLE = 4

cdef long long fork_generation = 0


def _after_fork_in_child():
    global fork_generation
    fork_generation += 1


os.register_at_fork(after_in_child=_after_fork_in_child)


def generation():
    """A number that differs between a process and the child it forks."""
    return fork_generation


cdef inline void put_be32(unsigned char* p, uint32_t value) noexcept nogil:
    p[0] = <unsigned char>(value >> 24)
    p[1] = <unsigned char>(value >> 16)
    p[2] = <unsigned char>(value >> 8)
    p[3] = <unsigned char>value


cdef inline void put_entry(unsigned char* out, const unsigned char* p, Py_ssize_t n, int codec, uint32_t crc) noexcept:
    put_be32(out, <uint32_t>(n + ENTRY_SIZE_BYTES))
    out[4] = 1
    out[5] = <unsigned char>codec
    put_be32(out + 6, crc)
    memcpy(out + ENTRY_HEADER_BYTES, p, <size_t>n)


cdef long long monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <long long>1000000000 + now.tv_nsec


cdef void finish_frame(unsigned char* start, Py_ssize_t size, Py_ssize_t header_bytes, int32_t correlation_id,
                       bint acknowledged) noexcept:
    """Write what is known only now into a frame's header."""
    put_be32(start, <uint32_t>(size - 4))
    if acknowledged:
        put_be32(start + 8, <uint32_t>correlation_id)
    put_be32(start + header_bytes - 4, <uint32_t>(size - header_bytes))


cdef inline uint32_t checksum(object payload) noexcept:
    """The CRC of a bytes object. Called before a buffer is looked at: it may let another thread run, which may add to
    that buffer."""
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(payload)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(payload)
    cdef uint32_t crc
    if n < GIL_BYTES:
        return crc32_span(0, p, <size_t>n)
    with nogil:
        crc = crc32_span(0, p, <size_t>n)
    return crc


cdef class Chunk:
    def __dealloc__(self):
        free(self.memory)
        free(self.frames)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.size, 1, flags)

    @property
    def frame_ends(self):
        return [self.frames[i].end for i in range(self.frame_count)]

    @property
    def has_tickets(self):
        return self.tickets is not None

    def compressed(self, compress, Py_ssize_t max_payload):
        """Return (the chunk with each frame's set as one wrapper, the (ticket, messages) that are too large for one)."""
        cdef Py_ssize_t start = 0, size, capacity = 0
        cdef int i
        cdef Chunk made
        cdef bytes payload
        cdef list wrappers = [], refused = [], item_list
        cdef dict new_index = {}
        cdef object view = memoryview(self)
        for i in range(self.frame_count):
            payload = compress(self.codec, view[start + self.header_bytes:self.frames[i].end])
            start = self.frames[i].end
            if PyBytes_GET_SIZE(payload) > max_payload:
                refused.append((i, PyBytes_GET_SIZE(payload)))
                continue
            new_index[i] = len(wrappers)
            wrappers.append((i, payload))
            capacity += self.header_bytes + ENTRY_HEADER_BYTES + PyBytes_GET_SIZE(payload)
        made = Chunk.__new__(Chunk)
        made.memory = <unsigned char*>malloc(<size_t>max(capacity, 1))
        made.frames = <Frame*>malloc(max(1, len(wrappers)) * sizeof(Frame))
        if made.memory == NULL or made.frames == NULL:
            raise MemoryError
        made.topic, made.partition, made.codec = self.topic, self.partition, self.codec
        made.header, made.header_bytes = self.header, self.header_bytes
        made.taken_ns = self.taken_ns
        for i, payload in wrappers:
            size = self.header_bytes + ENTRY_HEADER_BYTES + PyBytes_GET_SIZE(payload)
            memcpy(made.memory + made.size, PyBytes_AS_STRING(self.header), <size_t>self.header_bytes)
            put_entry(made.memory + made.size + self.header_bytes, <const unsigned char*>PyBytes_AS_STRING(payload),
                      PyBytes_GET_SIZE(payload), self.codec,
                      crc32_span(0, <const unsigned char*>PyBytes_AS_STRING(payload), <size_t>PyBytes_GET_SIZE(payload)))
            finish_frame(made.memory + made.size, size, self.header_bytes, self.frames[i].correlation_id,
                         self.header[5] != 0)
            made.size += size
            made.frames[made.frame_count] = self.frames[i]
            made.frames[made.frame_count].end = made.size
            made.frame_count += 1
            made.messages += self.frames[i].messages
        if self.tickets is not None:
            made.tickets = [(new_index[item[0]], -1, item[2], item[3]) for item in self.tickets if item[0] in new_index]
        refused = [
            (size, self.frames[i].messages, [item for item in self.tickets or () if item[0] == i]) for i, size in refused
        ]
        return made, refused


cdef class Quota:
    """What may wait in the queue of one producer, over all its brokers."""

    cdef readonly long long messages
    cdef readonly long long bytes
    cdef readonly long long accepted
    cdef readonly long long max_messages
    cdef readonly long long max_bytes

    def __init__(self, long long max_messages, long long max_bytes):
        self.max_messages = max_messages
        self.max_bytes = max_bytes

    cdef inline bint is_full(self) noexcept:
        return self.messages >= self.max_messages or self.bytes >= self.max_bytes

    def has_room(self, long long count=1):
        return self.messages == 0 or (self.messages + count <= self.max_messages and self.bytes < self.max_bytes)


cdef class Outbox:
    """The buffers of one broker, and the bell of the thread that sends what is in them."""

    cdef list active               # buffers with bytes in them
    cdef bint ready                # one of them has a finished frame
    cdef bint closed               # nothing more is taken in
    cdef int sleeping
    cdef long long sleeps_until
    cdef long long linger_ns
    cdef int wake_fd
    cdef int32_t next_id
    cdef Quota quota

    def __init__(self, Quota quota, int wake_fd, long long linger_ns):
        self.active = []
        self.quota = quota
        self.wake_fd = wake_fd
        self.linger_ns = linger_ns

    def retire(self):
        """Take nothing more in, and stop using the descriptor: it is about to be closed."""
        self.closed = True
        self.wake_fd = -1

    def close_if_empty(self):
        """Take nothing more in, unless something is in it now; whether it is closed."""
        self.closed = self.closed or not self.active
        return self.closed

    def close(self):
        """Take nothing more in."""
        self.closed = True

    def is_empty(self):
        return not self.active

    cdef void ring(self) noexcept:
        cdef uint64_t one = 1
        if self.sleeping != AWAKE:
            self.sleeping = AWAKE
            if self.wake_fd >= 0:
                c_write(self.wake_fd, &one, 8)

    def wake(self):
        """Let the sending thread look around, whatever it waits for."""
        cdef uint64_t one = 1
        self.sleeping = AWAKE
        if self.wake_fd >= 0:
            c_write(self.wake_fd, &one, 8)

    cdef long long due_ns(self) except -2:
        """When the oldest open frame is due, on the monotonic clock; -1 when none is open."""
        cdef Buffer buffer
        cdef long long found = -1
        for buffer in self.active:
            if buffer.open_messages and (found < 0 or buffer.opened_ns + self.linger_ns < found):
                found = buffer.opened_ns + self.linger_ns
        return found

    def seal_all(self):
        """Finish every open frame: the queue is full, so waiting for them to fill up would be in vain."""
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
            if buffer.open_messages and (everything or buffer.opened_ns + self.linger_ns <= now):
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


cdef class Buffer:
    """The open and finished frames of one topic and partition of one broker.

    ``header`` is the frame's header with zeros for what is not known yet; ``batch_bytes`` bounds the set in a frame
    unless a single message is larger. Messages above ``max_payload`` are refused.
    """

    cdef unsigned char* memory
    cdef Py_ssize_t capacity
    cdef Py_ssize_t used
    cdef Frame* frames
    cdef int frame_count
    cdef int frame_capacity
    cdef Py_ssize_t open_start
    cdef int open_messages
    cdef long long opened_ns
    cdef long long finished_messages
    cdef Py_ssize_t hint           # how much the memory before this one held
    cdef list full                 # chunks that outgrew a block; or None
    cdef list tickets
    cdef list open_tickets
    cdef bint active
    cdef bytes header
    cdef Py_ssize_t header_bytes
    cdef bint acknowledged
    cdef Outbox outbox
    cdef Quota quota
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly int codec
    cdef readonly object broker
    cdef int batch_messages
    cdef Py_ssize_t batch_bytes
    cdef readonly Py_ssize_t max_payload

    def __init__(self, Outbox outbox, object broker, str topic, int partition, int codec, bytes header, bint acknowledged,
                 int batch_messages, Py_ssize_t batch_bytes, Py_ssize_t max_payload):
        if batch_messages < 1 or batch_bytes < 1 or max_payload > 0x7FFFFFFF - 65536:
            raise ValueError("a batch holds at least one message, and a message fits a frame")
        self.outbox, self.quota, self.broker = outbox, outbox.quota, broker
        self.topic, self.partition, self.codec = topic, partition, codec
        self.header, self.header_bytes, self.acknowledged = header, len(header), acknowledged
        self.batch_messages, self.batch_bytes, self.max_payload = batch_messages, batch_bytes, max_payload
        self.hint = FIRST_BLOCK_BYTES

    def __dealloc__(self):
        free(self.memory)
        free(self.frames)

    def append(self, payload):
        """Add one message. Raises MessageTooLargeError."""
        if not PyBytes_CheckExact(payload):
            raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
        self.check(PyBytes_GET_SIZE(payload))
        self.put(payload, checksum(payload))

    def extend(self, list payloads, Py_ssize_t start=0, ticket=None, bint seal=False, bint unbounded=False):
        """Add messages from index ``start`` on until the queue is full; return the index of the first one not added.

        ``unbounded`` passes over the bound; ``seal`` finishes the frame behind the last one. The caller has checked that
        the payloads are bytes that are not too large.
        """
        cdef Py_ssize_t i = start, count = len(payloads), position
        cdef uint32_t crc
        cdef object payload
        cdef int collecting
        while i < count and (unbounded or not self.quota.is_full()):
            payload = payloads[i]
            if not PyBytes_CheckExact(payload):
                raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
            crc = checksum(payload)
            if ticket is None:
                self.put(payload, crc)
            else:
                collecting = PyGC_Disable()
                try:
                    self.put_followed(payload, crc, ticket)
                finally:
                    if collecting:
                        PyGC_Enable()
            i += 1
        if seal and i == count and self.open_messages:
            self.seal()
        return i

    def check(self, Py_ssize_t size):
        if size > self.max_payload:
            raise MessageTooLargeError(
                f"a message of {size} bytes for topic {self.topic!r} is larger than the limit of {self.max_payload}"
                " (max.message.size, of this producer or of the broker)"
            )

    cdef int put_followed(self, object payload, uint32_t crc, object ticket) except -1:
        """Add a payload whose fate somebody wants to know."""
        cdef Py_ssize_t position, last
        cdef list item
        if self.outbox.closed:
            raise ClosedError("the producer is closed")
        self.make_room(PyBytes_GET_SIZE(payload) + ENTRY_HEADER_BYTES)
        position = self.used - self.open_start - self.header_bytes if self.open_messages else 0
        if self.open_tickets is None:
            self.open_tickets = []
        last = len(self.open_tickets) - 1
        item = <list>self.open_tickets[last] if last >= 0 else None
        if item is not None and item[2] is ticket:
            item[1] += 1
        else:
            self.open_tickets.append([position, 1, ticket])
        return self.put(payload, crc)

    cdef inline int put(self, object payload, uint32_t crc) except -1:
        """Add a payload that is bytes and not too large; 1 when that finished a frame."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(payload)
        cdef Py_ssize_t need = n + ENTRY_HEADER_BYTES
        if self.outbox.closed:
            raise ClosedError("the producer is closed")
        self.make_room(need)
        if self.open_messages == 0:
            self.open_start = self.used
            memcpy(self.memory + self.used, PyBytes_AS_STRING(self.header), <size_t>self.header_bytes)
            self.used += self.header_bytes
        put_entry(self.memory + self.used, <const unsigned char*>PyBytes_AS_STRING(payload), n, 0, crc)
        self.used += need
        self.open_messages += 1
        self.quota.messages += 1
        self.quota.accepted += 1
        if self.open_messages >= self.batch_messages:
            self.seal()
            return 1
        if self.open_messages == 1:
            self.opened_ns = monotonic_ns()
            self.activate()
            if self.outbox.sleeping == ASLEEP and (
                self.outbox.sleeps_until < 0 or self.opened_ns + self.outbox.linger_ns < self.outbox.sleeps_until
            ):
                self.outbox.ring()
        return 0

    cdef inline int make_room(self, Py_ssize_t need) except -1:
        """Finish the open frame if it cannot take so many bytes more, and see that the memory can."""
        if self.open_messages:
            if self.used - self.open_start - self.header_bytes + need > self.batch_bytes:
                self.seal()
                need += self.header_bytes
        else:
            need += self.header_bytes
        if self.capacity - self.used < need:
            self.grow(need)
        return 0

    cdef inline int activate(self) except -1:
        if not self.active:
            self.active = True
            self.outbox.active.append(self)
        return 0

    cdef int grow(self, Py_ssize_t need) except -1:
        cdef Py_ssize_t wanted
        cdef unsigned char* memory
        cdef int collecting
        if self.frame_count and self.capacity >= BLOCK_BYTES:
            collecting = PyGC_Disable()
            try:
                if self.full is None:
                    self.full = []
                self.full.append(self.detach())
            finally:
                if collecting:
                    PyGC_Enable()
            if self.capacity - self.used >= need:
                return 0
        wanted = max(self.hint, 2 * self.capacity)
        if wanted < self.used + need:
            wanted = self.used + need
        memory = <unsigned char*>realloc(self.memory, <size_t>wanted)
        if memory == NULL:
            raise MemoryError
        self.memory, self.capacity = memory, wanted
        return 0

    cdef int seal(self) except -1:
        """Finish the open frame."""
        cdef int collecting = PyGC_Disable()
        try:
            self.finish_open_frame()
        finally:
            if collecting:
                PyGC_Enable()
        return 0

    cdef int finish_open_frame(self) except -1:
        cdef Frame* frames
        cdef Frame* frame
        cdef Py_ssize_t size = self.used - self.open_start
        if self.frame_count == self.frame_capacity:
            frames = <Frame*>realloc(self.frames, max(16, 2 * self.frame_capacity) * sizeof(Frame))
            if frames == NULL:
                raise MemoryError
            self.frames, self.frame_capacity = frames, max(16, 2 * self.frame_capacity)
        self.activate()
        frame = self.frames + self.frame_count
        frame.end = self.used
        frame.messages = self.open_messages
        frame.correlation_id = self.outbox.next_id
        self.outbox.next_id = (self.outbox.next_id + 1) & 0x7FFFFFFF
        finish_frame(self.memory + self.open_start, size, self.header_bytes, frame.correlation_id, self.acknowledged)
        if self.open_tickets is not None:
            if self.tickets is None:
                self.tickets = []
            for position, count, ticket in self.open_tickets:
                self.tickets.append((self.frame_count, position, count, ticket))
            self.open_tickets = None
        self.frame_count += 1
        self.finished_messages += self.open_messages
        self.quota.bytes += size
        self.open_messages = 0
        self.outbox.ready = True
        if self.outbox.sleeping == ASLEEP:
            self.outbox.ring()
        return 0

    cdef Chunk detach(self):
        """Hand the memory with the finished frames over; the open frame moves to memory of its own."""
        cdef Chunk chunk = Chunk.__new__(Chunk)
        cdef Py_ssize_t size = self.frames[self.frame_count - 1].end
        cdef Py_ssize_t tail = self.used - size
        cdef unsigned char* memory = NULL
        self.hint = min(BLOCK_BYTES, max(FIRST_BLOCK_BYTES, self.used))
        if tail:
            memory = <unsigned char*>malloc(<size_t>max(self.hint, tail))
            if memory == NULL:
                raise MemoryError
            memcpy(memory, self.memory + size, <size_t>tail)
        chunk.memory, chunk.size = self.memory, size
        chunk.frames, chunk.frame_count = self.frames, self.frame_count
        chunk.messages = self.finished_messages
        chunk.topic, chunk.partition, chunk.codec = self.topic, self.partition, self.codec
        chunk.header, chunk.header_bytes = self.header, self.header_bytes
        chunk.tickets, self.tickets = self.tickets, None
        self.memory, self.used, self.open_start = memory, tail, 0
        self.capacity = max(self.hint, tail) if tail else 0
        self.frames, self.frame_count, self.frame_capacity, self.finished_messages = NULL, 0, 0, 0
        return chunk


cdef class Route:
    """The buffers that messages of one topic may go to.

    ``anywhere`` are those of messages without a key, one of which is used until a frame of it is finished; ``keyed``
    those that a key's hash chooses from, or None when that is not for compiled code to decide.
    """

    cdef list anywhere
    cdef Buffer current
    cdef list keyed
    cdef uint32_t random

    def __init__(self, list anywhere, list keyed, uint32_t seed):
        self.random = seed | 1
        self.keyed = keyed
        self.choose_from(anywhere)

    def choose_from(self, list anywhere):
        """Replace the buffers for messages without a key."""
        if not anywhere:
            raise ValueError("a route has at least one buffer")
        self.anywhere = anywhere
        self.turn()

    def set_keyed(self, list keyed):
        """Let a key's CRC-32 choose among these buffers; None leaves it to Python."""
        self.keyed = keyed

    def buffer_for_any(self):
        """The buffer that the next message without a key goes to."""
        return self.current

    def turn(self):
        """Choose another buffer for messages without a key."""
        self.random ^= self.random << 13
        self.random ^= self.random >> 17
        self.random ^= self.random << 5
        self.current = <Buffer>self.anywhere[self.random % <uint32_t>len(self.anywhere)]


cdef class SendPath:
    """The compiled beginning of ``Producer.send``: takes what is simple and hands the rest to ``_send_slowly``."""

    cdef dict routes
    cdef long long born

    def __cinit__(self, *args, **kwargs):
        self.routes = {}
        self.born = fork_generation

    @property
    def _routes(self):
        return self.routes

    def _is_forked(self):
        return self.born != fork_generation

    def send(self, topic, value=None, *, key=None, partition=None, on_delivery=None):
        """Send a value, or a list of them, to a topic; or a list of ``ProducerData``.

        ``key`` chooses the partition by the partitioner; ``partition`` chooses it by hand: a number, -1 for any, or
        (broker id, number) when there are several brokers. ``on_delivery`` is called with each ``Delivery``.
        """
        cdef PyObject* found
        cdef Buffer buffer
        cdef bytes raw
        cdef list keyed
        if PyBytes_CheckExact(value) and partition is None and on_delivery is None and self.born == fork_generation:
            found = PyDict_GetItem(self.routes, topic)
            if found != NULL:
                if key is None:
                    buffer = (<Route>found).current
                else:
                    keyed = (<Route>found).keyed
                    if keyed is None:
                        return self._send_slowly(topic, value, key, partition, on_delivery)
                    if type(key) is str:
                        raw = unicode_bytes(key)
                    elif PyBytes_CheckExact(key):
                        raw = key
                    else:
                        return self._send_slowly(topic, value, key, partition, on_delivery)
                    buffer = <Buffer>keyed[
                        (crc32_span(0, <const unsigned char*>PyBytes_AS_STRING(raw), <size_t>PyBytes_GET_SIZE(raw))
                         & 0x7FFFFFFF) % <uint32_t>len(keyed)
                    ]
                if PyBytes_GET_SIZE(value) <= buffer.max_payload and not buffer.quota.is_full():
                    if buffer.put(value, checksum(value)) and key is None and len((<Route>found).anywhere) > 1:
                        (<Route>found).turn()
                    return ()
        return self._send_slowly(topic, value, key, partition, on_delivery)

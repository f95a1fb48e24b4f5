"""The producer's accumulation buffers: payloads in, whole request frames out.

A ``Buffer`` holds the open and the finished frames of one topic and partition of one broker. All of it is guarded by the
GIL: no function here gives it up between looking at a buffer and changing it, so threads need no lock and a signal
handler finds nothing half-done.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from fastlog._bytes cimport GIL_SPAN_BYTES
from fastlog._segment cimport ENTRY_HEADER_BYTES
from fastlog.producer._frames cimport (
    BLOCK_BYTES, Chunk, Frame, checksum, finish_frame, free_memory, monotonic_ns, new_memory, put_entry,
)
from fastlog.producer._parts cimport Parts, RecordParts, parts_bytes, set_key
from fastlog.producer._tickets cimport Ticket, new_ticket

from fastlog.errors import ArgumentError, ClosedError, MessageTooLargeError


cdef extern from "Python.h":
    # A collection runs finalizers, which may send: none may start while a buffer is half-changed.
    int PyGC_Disable()
    int PyGC_Enable()
    Py_ssize_t PyList_GET_SIZE(object items)
    PyObject* PyList_GET_ITEM(object items, Py_ssize_t i)  # borrowed

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* source, size_t n)

cdef enum:
    FIRST_BLOCK_BYTES = 4096


@cython.final
cdef class Quota:
    """What may wait in the queue of one producer, over all its brokers."""

    def __init__(self, long long max_messages, long long max_bytes):
        self.max_messages = max_messages
        self.max_bytes = max_bytes

    def has_room(self, long long count=1):
        return self.messages == 0 or (self.messages + count <= self.max_messages and self.bytes < self.max_bytes)


cdef class Shelf:
    cdef void wake_sender(self) noexcept:
        """Wake the sending thread if it sleeps; one write for each sleep. Takes no lock, and fails silently."""
        cdef uint64_t one = 1
        if self.sleeping != AWAKE:
            self.sleeping = AWAKE
            if self.wake_fd >= 0:
                c_write(self.wake_fd, &one, 8)


cdef class Buffer:
    """The open and finished frames of one topic and partition of one broker.

    ``header`` is the frame's header with zeros for what is not known yet; ``batch_bytes`` bounds the set in a frame
    unless a single message is larger. Messages above ``max_payload`` are refused.
    """

    def __init__(self, Shelf shelf, object broker, str topic, int partition, int codec, bytes header, bint acknowledged,
                 int batch_messages, Py_ssize_t batch_bytes, Py_ssize_t max_payload):
        if batch_messages < 1 or batch_bytes < 1 or max_payload > 0x7FFFFFFF - 65536:
            raise ValueError("a batch holds at least one message, and a message fits a frame")
        self.shelf, self.quota, self.broker = shelf, shelf.quota, broker
        self.topic, self.partition, self.codec = topic, partition, codec
        self.header, self.header_bytes, self.acknowledged = header, len(header), acknowledged
        self.batch_messages, self.batch_bytes, self.max_payload = batch_messages, batch_bytes, max_payload
        self.hint = FIRST_BLOCK_BYTES

    def __dealloc__(self):
        free_memory(self.memory, self.capacity)
        free(self.frames)

    def append(self, payload):
        """Add one message. Raises MessageTooLargeError."""
        if not PyBytes_CheckExact(payload):
            raise ArgumentError(f"a payload is bytes, not {type(payload).__name__}")
        self.check(PyBytes_GET_SIZE(payload))
        self.put(payload, checksum(payload), NULL)

    def extend(self, list payloads, Py_ssize_t start=0, ticket=None, bint seal=False, bint unbounded=False,
               Parts parts=None, list keys=None):
        """Add messages from index ``start`` on until the queue is full; return the index of the first one not added.

        ``unbounded`` passes over the bound; ``seal`` finishes the frame behind the last one; ``keys``: of each record, in
        place of that of ``parts``. The caller has checked that the payloads are bytes that are not too large.
        """
        cdef Py_ssize_t i = start, count = len(payloads), position
        cdef uint32_t crc
        cdef object payload
        cdef int collecting
        cdef const RecordParts* record = NULL if parts is None else &parts.record
        cdef RecordParts own
        if keys is not None and parts is not None:
            own = parts.record
            record = &own
        while i < count and (unbounded or not self.quota.is_full()):
            payload = payloads[i]
            if not PyBytes_CheckExact(payload) and (payload is not None or self.lane is None):
                raise ArgumentError(f"a payload is bytes, not {type(payload).__name__}")
            if record == &own:
                set_key(&own, keys[i])
            crc = checksum(payload) if self.lane is None else 0
            if ticket is None:
                self.put(payload, crc, record)
            else:
                collecting = PyGC_Disable()
                try:
                    self.put_followed(payload, crc, ticket, False, record, <int>i)
                finally:
                    if collecting:
                        PyGC_Enable()
            i += 1
        if seal and i == count and self.open_messages:
            self.seal()
        return i

    cdef int put_all(self, list payloads, const RecordParts* parts) except -1:
        """Add a list if all of it is simple and fits the queue: 0 when it is not and nothing was added, 1 when it is, 2
        when that finished a frame."""
        cdef Py_ssize_t i, n, total = 0, count = PyList_GET_SIZE(payloads)
        cdef Py_ssize_t most = self.max_payload if parts == NULL else self.max_payload - parts_bytes(parts)
        cdef bint is_summed = self.lane is None
        cdef PyObject* payload
        cdef int result = 1
        for i in range(count):
            payload = PyList_GET_ITEM(payloads, i)
            if not PyBytes_CheckExact(<object>payload):
                return 0
            n = PyBytes_GET_SIZE(<object>payload)
            # From here to the end nothing gives up the GIL, so the list stays as it was looked at.
            if n > most or n >= GIL_SPAN_BYTES:
                return 0
            total += n
        if count == 0 or count > self.quota.max_messages - self.quota.messages:
            return 0
        if total > self.quota.max_bytes - self.quota.bytes:
            return 0
        for i in range(count):
            payload = PyList_GET_ITEM(payloads, i)
            if self.put(<object>payload, checksum(<object>payload) if is_summed else 0, parts):
                result = 2
        return result

    def check(self, Py_ssize_t size):
        if size > self.max_payload:
            raise MessageTooLargeError(
                f"a message of {size} bytes for topic {self.topic!r} is larger than the limit of {self.max_payload}"
                " (max.message.size, of this producer or of the broker)"
            )

    cdef int put_called(self, object payload, uint32_t crc, object function, const RecordParts* parts) except -1:
        """Add a payload; ``function`` is called with what becomes of it. 1 when that finished a frame."""
        cdef int collecting = PyGC_Disable()
        try:
            return self.put_followed(payload, crc, function, True, parts, 0)
        finally:
            if collecting:
                PyGC_Enable()

    cdef int put_followed(self, object payload, uint32_t crc, object to, bint is_function, const RecordParts* parts,
                          int place) except -1:
        """Add a payload whose fate somebody wants to know; for a receipt, all of one call together, ``place`` among which
        it has."""
        cdef Py_ssize_t position, last
        cdef Ticket ticket
        cdef int finished
        if self.shelf.closed:
            raise ClosedError("the producer is closed")
        finished = self.make_room(self.need_of(-1 if payload is None else PyBytes_GET_SIZE(payload), parts))
        position = self.place_of_next() if self.open_messages else 0
        if self.open_tickets is None:
            self.open_tickets = []
        last = len(self.open_tickets) - 1
        ticket = <Ticket>self.open_tickets[last] if last >= 0 and not is_function else None
        if ticket is not None and ticket.to is to:
            ticket.messages += 1
        else:
            self.open_tickets.append(new_ticket(-1, position, place, 1, is_function, to))
        return self.put(payload, crc, parts) or finished

    cdef int put(self, object payload, uint32_t crc, const RecordParts* parts) except -1:
        """Add a payload that is bytes and not too large; 1 when that finished a frame."""
        if payload is None:
            return self.put_span(NULL, -1, crc, parts)
        return self.put_span(
            <const unsigned char*>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), crc, parts
        )

    cdef int put_span(self, const unsigned char* payload, Py_ssize_t n, uint32_t crc, const RecordParts* parts) except -1:
        """The same for bytes that the caller keeps where they are."""
        cdef int finished
        if self.shelf.closed:
            raise ClosedError("the producer is closed")
        finished = self.make_room(self.need_of(n, parts))
        if self.open_messages == 0:
            self.open_start = self.used
            memcpy(self.memory + self.used, PyBytes_AS_STRING(self.header), <size_t>self.header_bytes)
            self.used += self.header_bytes
        self.put_one(payload, n, crc, parts)
        self.open_messages += 1
        self.quota.messages += 1
        self.quota.accepted += 1
        if self.is_ripe():
            self.seal()
            return 1
        if self.open_messages == 1:
            self.opened_ns = monotonic_ns()
            self.activate()
            if self.shelf.sleeping == ASLEEP and (
                self.shelf.sleeps_until < 0 or self.opened_ns + self.shelf.linger_ns < self.shelf.sleeps_until
            ):
                self.shelf.wake_sender()
        return finished

    cdef Py_ssize_t need_of(self, Py_ssize_t n, const RecordParts* parts) noexcept:
        """The most bytes that a value of ``n`` bytes takes in a frame; -1 for null, which only records can be."""
        return n + ENTRY_HEADER_BYTES

    cdef Py_ssize_t place_of_next(self) noexcept:
        """The next message's place among those of its frame, as deliveries report it; there is one already."""
        return self.used - self.open_start - self.header_bytes

    cdef void put_one(self, const unsigned char* payload, Py_ssize_t n, uint32_t crc, const RecordParts* parts) noexcept:
        """Write one message behind the last one; there is room for ``need_of`` it. ``crc`` is that of the payload."""
        put_entry(self.memory + self.used, payload, n, 0, crc)
        self.used += n + ENTRY_HEADER_BYTES

    cdef void finish(self, unsigned char* start, Py_ssize_t size, int32_t correlation_id) noexcept:
        """Write what is known only now into an open frame."""
        finish_frame(start, size, self.header_bytes, correlation_id, self.acknowledged)

    cdef bint is_ripe(self) noexcept:
        """Whether the open frame has as many messages as it is to have."""
        return self.open_messages >= self.batch_messages

    cdef int make_room(self, Py_ssize_t need) except -1:
        """Make room for ``need`` more bytes; 1 when the open frame was finished for that, else 0."""
        cdef int finished = 0
        if self.open_messages:
            if self.used - self.open_start - self.header_bytes + need > self.batch_bytes:
                self.seal()
                finished = 1
                need += self.header_bytes
        else:
            need += self.header_bytes
        if self.capacity - self.used < need:
            self.grow(need)
        return finished

    cdef int activate(self) except -1:
        """Enter this buffer among those that the sending thread empties."""
        if not self.active:
            self.active = True
            self.shelf.active.append(self)
        return 0

    cdef int grow(self, Py_ssize_t need) except -1:
        """Have memory for ``need`` more bytes: larger one, or new one where finished frames fill a block."""
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
        if BLOCK_BYTES // 4 < wanted < BLOCK_BYTES:
            wanted = BLOCK_BYTES                          # which is kept for the next one, and need not be touched anew
        if self.memory == NULL or wanted == BLOCK_BYTES:
            memory = new_memory(wanted)
            if self.memory != NULL:
                memcpy(memory, self.memory, <size_t>self.used)
                free_memory(self.memory, self.capacity)
        else:
            memory = <unsigned char*>realloc(self.memory, <size_t>wanted)
            if memory == NULL:
                raise MemoryError
        self.memory, self.capacity = memory, wanted
        return 0

    cdef int seal(self) except -1:
        """Finish the open frame, with the garbage collector off: it would let other code run half-way."""
        cdef int collecting = PyGC_Disable()
        try:
            self.finish_open_frame()
        finally:
            if collecting:
                PyGC_Enable()
        return 0

    cdef int finish_open_frame(self) except -1:
        """Make the open frame a finished one, with a correlation id, and wake the sending thread for it."""
        cdef Frame* frames
        cdef Frame* frame
        cdef Ticket ticket
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
        frame.correlation_id = self.shelf.next_id
        self.shelf.next_id = <int32_t>((<uint32_t>self.shelf.next_id + 1) & 0x7FFFFFFF)
        frame.generation = 0
        self.finish(self.memory + self.open_start, size, frame.correlation_id)
        if self.open_tickets is not None:
            for ticket in self.open_tickets:
                ticket.frame = self.frame_count
            if self.tickets is None:
                self.tickets = self.open_tickets
            else:
                self.tickets.extend(self.open_tickets)
            self.open_tickets = None
        self.frame_count += 1
        self.finished_messages += self.open_messages
        self.quota.bytes += size
        self.open_messages = 0
        self.shelf.ready = True
        if self.shelf.sleeping == ASLEEP:
            self.shelf.wake_sender()
        return 0

    cdef Chunk detach(self):
        """Hand the memory with the finished frames over; the open frame moves to memory of its own."""
        cdef Chunk chunk = Chunk.__new__(Chunk)
        cdef Py_ssize_t size = self.frames[self.frame_count - 1].end
        cdef Py_ssize_t tail = self.used - size
        cdef unsigned char* memory = NULL
        self.hint = BLOCK_BYTES if self.used >= BLOCK_BYTES // 4 else max(FIRST_BLOCK_BYTES, self.used)
        if tail:
            memory = new_memory(max(self.hint, tail))
            memcpy(memory, self.memory + size, <size_t>tail)
        chunk.memory, chunk.capacity, chunk.size = self.memory, self.capacity, size
        chunk.frames, chunk.frame_count = self.frames, self.frame_count
        chunk.messages = self.finished_messages
        chunk.topic, chunk.partition, chunk.codec, chunk.lane = self.topic, self.partition, self.codec, self.lane
        chunk.header, chunk.header_bytes = self.header, self.header_bytes
        chunk.tickets, self.tickets = self.tickets, None
        self.memory, self.used, self.open_start = memory, tail, 0
        self.capacity = max(self.hint, tail) if tail else 0
        self.frames, self.frame_count, self.frame_capacity, self.finished_messages = NULL, 0, 0, 0
        return chunk

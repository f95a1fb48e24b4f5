"""Whole request frames in memory of their own, and how a message is written into one.

The layouts are those of PRODUCE and PRODUCE_ACK in ``docs/protocol.md``; a message is written with magic 1.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fastlog._batch_header cimport BATCH_HEADER_BYTES, recode_batch
from fastlog._crc cimport crc32_span
from fastlog.producer._tickets cimport Ticket, new_ticket


cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* now)
    int CLOCK_MONOTONIC

cdef enum:
    SPARE_BLOCKS = 32             # as much as may be on its way to a broker by default (in.flight.bytes)

# Guarded by the GIL. The first touch of fresh memory costs more than all that a producer does with it (a page fault and a
# cleared page for every 19 messages of 200 bytes), and malloc gives blocks of this size back to the system at once.
cdef unsigned char* spare[SPARE_BLOCKS]
cdef int spare_count = 0


cdef unsigned char* new_memory(Py_ssize_t capacity) except NULL:
    global spare_count
    cdef unsigned char* memory
    if capacity == BLOCK_BYTES and spare_count:
        spare_count -= 1
        return spare[spare_count]
    memory = <unsigned char*>malloc(<size_t>capacity)
    if memory == NULL:
        raise MemoryError
    return memory


cdef void free_memory(unsigned char* memory, Py_ssize_t capacity) noexcept:
    """Give memory of ``new_memory`` back; some blocks are kept for the next ones."""
    global spare_count
    if capacity == BLOCK_BYTES and spare_count < SPARE_BLOCKS:
        spare[spare_count] = memory
        spare_count += 1
    else:
        free(memory)


cdef long long monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <long long>1000000000 + now.tv_nsec


cdef void finish_frame(unsigned char* start, Py_ssize_t size, Py_ssize_t header_bytes, int32_t correlation_id,
                       bint acknowledged) noexcept:
    put32(start, <uint32_t>(size - 4))
    if acknowledged:
        put32(start + 8, <uint32_t>correlation_id)
    put32(start + header_bytes - 4, <uint32_t>(size - header_bytes))


cdef class Chunk:
    def __dealloc__(self):
        free_memory(self.memory, self.capacity)
        free(self.frames)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.size, 1, flags)

    @property
    def frame_ends(self):
        return [self.frames[i].end for i in range(self.frame_count)]

    @property
    def message_sets(self):
        """The set or the batch in each frame, as views."""
        cdef object view = memoryview(self)
        cdef Py_ssize_t before = self.header_bytes if self.lane is None else self.header_bytes - BATCH_HEADER_BYTES
        return [
            view[(self.frames[i - 1].end if i else 0) + before:self.frames[i].end]
            for i in range(self.frame_count)
        ]

    @property
    def has_tickets(self):
        return self.tickets is not None

    cdef Chunk part(self, int start, int stop):
        """A copy of some of the frames, none of them written yet."""
        cdef Py_ssize_t first = self.frames[start - 1].end if start else 0
        cdef Chunk made
        cdef Ticket ticket
        cdef int i
        made = self.like(self.frames[stop - 1].end - first, stop - start)
        made.size = made.capacity
        memcpy(made.memory, self.memory + first, <size_t>made.size)
        for i in range(start, stop):
            made.frames[i - start] = self.frames[i]
            made.frames[i - start].end -= first
            made.messages += self.frames[i].messages
        made.frame_count = stop - start
        made.attempts, made.refusals, made.is_overtaken = self.attempts, self.refusals, self.is_overtaken
        made.sequence = self.sequence
        if self.tickets is not None:
            made.tickets = []
            for ticket in self.tickets:
                if start <= ticket.frame < stop:
                    made.tickets.append(
                        new_ticket(ticket.frame - start, ticket.position, ticket.first, ticket.messages, ticket.is_function,
                                   ticket.to)
                    )
        return made

    cdef Chunk like(self, Py_ssize_t capacity, int frame_count):
        """An empty chunk for ``frame_count`` other frames of the same messages, with ``capacity`` bytes of memory."""
        cdef Chunk made = Chunk.__new__(Chunk)
        made.memory, made.capacity = new_memory(capacity), capacity
        made.frames = <Frame*>malloc(frame_count * sizeof(Frame))
        if made.frames == NULL:
            raise MemoryError
        made.topic, made.partition, made.codec, made.lane = self.topic, self.partition, self.codec, self.lane
        made.header, made.header_bytes = self.header, self.header_bytes
        made.taken_ns = self.taken_ns
        return made

    def compressed_batches(self, compress):
        """The chunk with the records of each batch compressed, where that makes them smaller."""
        cdef Py_ssize_t start = 0, size, capacity = 0
        cdef int i
        cdef Chunk made
        cdef bytes records
        cdef list found = []
        cdef object view = memoryview(self)
        for i in range(self.frame_count):
            size = self.frames[i].end - start - self.header_bytes
            records = compress(self.codec, view[start + self.header_bytes:self.frames[i].end])
            if PyBytes_GET_SIZE(records) < size:
                size = PyBytes_GET_SIZE(records)
            else:
                records = None
            found.append(records)
            capacity += self.header_bytes + size
            start = self.frames[i].end
        made = self.like(capacity, self.frame_count)
        start = 0
        for i in range(self.frame_count):
            records = found[i]
            made.frames[i] = self.frames[i]
            if records is None:
                size = self.frames[i].end - start
                memcpy(made.memory + made.size, self.memory + start, <size_t>size)
            else:
                size = PyBytes_GET_SIZE(records)
                memcpy(made.memory + made.size, self.memory + start, <size_t>self.header_bytes)
                memcpy(made.memory + made.size + self.header_bytes, PyBytes_AS_STRING(records), <size_t>size)
                recode_batch(made.memory + made.size + self.header_bytes - BATCH_HEADER_BYTES, size, self.codec)
                size += self.header_bytes
                finish_frame(made.memory + made.size, size, self.header_bytes - BATCH_HEADER_BYTES,
                             self.frames[i].correlation_id, True)
            start = self.frames[i].end
            made.size += size
            made.frames[i].end = made.size
            made.messages += self.frames[i].messages
        made.frame_count = self.frame_count
        made.tickets, self.tickets = self.tickets, None
        return made

    def compressed(self, compress, Py_ssize_t max_payload):
        """Return (the chunk with each frame's set as one wrapper, the (ticket, messages) that are too large for one)."""
        cdef Py_ssize_t start = 0, size, capacity = 0
        cdef int i
        cdef Chunk made
        cdef Ticket ticket
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
        made = self.like(max(capacity, 1), max(1, len(wrappers)))
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
            made.tickets = []
            for ticket in self.tickets:
                if ticket.frame in new_index:
                    made.tickets.append(
                        new_ticket(new_index[ticket.frame], -1, ticket.first, ticket.messages, ticket.is_function,
                                   ticket.to)
                    )
        return made, [(size, self.part(i, i + 1), self.tickets_of(i)) for i, size in refused]

    cdef list tickets_of(self, int frame):
        """The tickets of one frame as tuples for Python: (frame, first, messages, what is called)."""
        cdef list found = []
        cdef Ticket ticket
        for ticket in self.tickets or ():
            if ticket.frame == frame:
                found.append((frame, ticket.first, ticket.messages, ticket.to))
        return found

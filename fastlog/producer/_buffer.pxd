cimport cython
from libc.stdint cimport int32_t, uint32_t

from fastlog.producer._frames cimport Chunk, Frame
from fastlog.producer._lane cimport Lane
from fastlog.producer._parts cimport RecordParts

cdef enum:
    AWAKE = 0
    ASLEEP = 1                    # whatever there is to do wakes the sender
    ASLEEP_FULL = 2               # it has enough on its way: new messages do not wake it


@cython.final
cdef class Quota:
    cdef readonly long long messages
    cdef readonly long long bytes
    cdef readonly long long accepted
    cdef readonly long long max_messages
    cdef readonly long long max_bytes

    cdef inline bint is_full(self) noexcept:
        """Whether the queue of the whole producer takes no further message now."""
        return self.messages >= self.max_messages or self.bytes >= self.max_bytes


# What the buffers of one broker share with the thread that empties them.
cdef class Shelf:
    cdef list active               # buffers with bytes in them
    cdef bint ready                # one of them has a finished frame
    cdef bint closed               # nothing more is taken in
    cdef public bint behind        # frames wait for answers to those before them: open ones may as well go on growing
    cdef int sleeping
    cdef long long sleeps_until
    cdef long long linger_ns
    cdef int wake_fd
    cdef int32_t next_id
    cdef Quota quota

    cdef void wake_sender(self) noexcept


cdef class Buffer:
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
    cdef list tickets              # of finished frames; or None
    cdef list open_tickets         # of the open one; or None
    cdef bint active
    cdef bytes header
    cdef Py_ssize_t header_bytes
    cdef bint acknowledged
    cdef Shelf shelf
    cdef Quota quota
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly int codec
    cdef readonly object broker
    cdef int batch_messages
    cdef Py_ssize_t batch_bytes
    cdef readonly Py_ssize_t max_payload
    cdef readonly Lane lane        # of a partition of record batches; None for messages

    cdef int put_all(self, list payloads, const RecordParts* parts) except -1
    cdef int put(self, object payload, uint32_t crc, const RecordParts* parts) except -1
    cdef int put_span(self, const unsigned char* payload, Py_ssize_t n, uint32_t crc, const RecordParts* parts) except -1
    cdef int put_called(self, object payload, uint32_t crc, object function, const RecordParts* parts) except -1
    cdef int put_followed(self, object payload, uint32_t crc, object to, bint is_function, const RecordParts* parts,
                          int place) except -1
    # What the format of a frame decides: the most bytes that a value of n bytes takes, and writing it. n is -1 for null.
    cdef Py_ssize_t need_of(self, Py_ssize_t n, const RecordParts* parts) noexcept
    cdef Py_ssize_t place_of_next(self) noexcept
    cdef void put_one(self, const unsigned char* payload, Py_ssize_t n, uint32_t crc, const RecordParts* parts) noexcept
    cdef void finish(self, unsigned char* start, Py_ssize_t size, int32_t correlation_id) noexcept
    cdef bint is_ripe(self) noexcept
    cdef int make_room(self, Py_ssize_t need) except -1
    cdef int activate(self) except -1
    cdef int grow(self, Py_ssize_t need) except -1
    cdef int seal(self) except -1
    cdef int finish_open_frame(self) except -1
    cdef Chunk detach(self)

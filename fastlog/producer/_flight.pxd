from libc.stdint cimport int32_t, int64_t

from fastlog.producer._frames cimport Chunk

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef enum:
    INBOX_BYTES = 1 << 18         # 8,700 answers of 0.7's
    SIZE_BYTES = 4


cdef class Flight:
    cdef list chunks
    cdef Py_ssize_t first          # the oldest chunk that is not finished
    cdef Py_ssize_t cursor         # the chunk to go on writing
    cdef readonly bint acknowledged
    cdef public bint report        # an event for every frame, not just for those with a ticket or an error
    cdef readonly long long added_chunks
    cdef readonly long long messages      # in frames that are not finished
    cdef readonly long long bytes         # of chunks that are not finished: their memory is kept until then
    cdef readonly long long delivered     # messages, ever
    cdef readonly long long failed        # messages, ever
    cdef readonly long long written_frames
    cdef readonly long long finished_frames   # ever, refused ones as well
    cdef readonly long long handed_over   # messages in frames that the kernel took, on this connection
    cdef public bint keep_failed          # copies of frames that failed
    cdef public object retried            # error codes after which a frame is worth another try
    cdef readonly set watched             # (topic, partition) of refused frames: every later answer is an outcome
    cdef public object broker             # its id, in deliveries
    cdef public object delivery_type
    cdef list events
    cdef list outcomes
    cdef list failures
    cdef unsigned char inbox[INBOX_BYTES]
    cdef Py_ssize_t inbox_used

    cdef Py_ssize_t write_spans(self, int fd, iovec* spans, int count, long long until, int* failure) noexcept nogil
    cdef ssize_t fill_inbox(self, int fd) noexcept nogil
    cdef long long move_on(self, Py_ssize_t sent) except -1
    cdef long long admit(self, Chunk chunk, long long frames, bint is_first) except -1
    cdef int note_written(self, Chunk chunk, int frames) except -1
    cdef int read_answers(self) except -1
    cdef Chunk asked(self)
    cdef int answered(self, int32_t correlation_id, int error, int32_t partition, int64_t base, int64_t next) except -1
    cdef int finish(self, Chunk chunk, object error, int32_t partition, int64_t base, int64_t next) except -1
    cdef int note(self, Chunk chunk, object error, int32_t partition, int64_t base, int64_t next) except -1
    cdef int compact(self) except -1


cdef inline Py_ssize_t frame_start(Chunk chunk, int index) noexcept:
    """The position of a frame's first byte, from the start of the chunk's memory; ``index`` may be one past the last."""
    return chunk.frames[index - 1].end if index else 0

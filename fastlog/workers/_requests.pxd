from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from fastlog.log._append cimport Appender
from fastlog.log._arena cimport Arena, fl_slot
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers._connection cimport Ack, Conn, Pool, Run
from fastlog.workers._fetch cimport Fetches
from fastlog.workers._helper cimport Helper
from fastlog.workers._topics cimport Topics

cdef enum FrameStatus:
    FRAME_DONE = 0
    FRAME_PARKED = 1     # handle the same frame again when the connection goes on
    FRAME_CLOSE = 2      # what precedes it stays, then the connection closes

cdef class Requests:
    cdef readonly Arena arena
    cdef SegmentFiles files
    cdef Appender appender
    cdef Topics topics
    cdef Fetches fetches
    cdef Helper helper
    cdef object control
    cdef int process
    cdef uint64_t* counters
    cdef Pool pool
    cdef Py_ssize_t max_message
    cdef uint64_t max_request
    cdef bint trace
    cdef uint64_t inflate_ns         # spent on the loop's thread since its last wait; the loop sets it to 0
    cdef uint64_t[2048] offsets

    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, bint own, uint64_t now_ns, size_t* consumed) noexcept nogil
    cdef int frame(self, Conn* c, uint8_t* p, size_t size, bint own, uint64_t now_ns) noexcept nogil
    cdef bint gate(self, Conn* c, int kind) noexcept nogil
    cdef int produce(self, Conn* c, uint8_t* p, size_t size, int kind, bint own) noexcept nogil
    cdef void give_up(self, Conn* c, Ack* ack) noexcept nogil
    cdef int begin_acked(self, Conn* c, uint8_t* p, size_t size) noexcept nogil
    cdef int part(self, Conn* c, const uint8_t* name, int name_size, int32_t partition, uint8_t* data, size_t size,
                  Ack* ack, uint32_t sequence, bint own, size_t frame_offset) noexcept nogil
    cdef void begin_part(self, Conn* c) noexcept nogil
    cdef int create(self, Conn* c, int32_t partition, int name_size, size_t frame_offset, fl_slot** out) noexcept nogil
    cdef int deep(self, Conn* c, const uint8_t* data, size_t size, size_t frame_offset) noexcept nogil
    cdef int commit(self, Conn* c) noexcept nogil
    cdef int commit_run(self, Conn* c, Run* run) noexcept nogil
    cdef int emit_acks(self, Conn* c) noexcept nogil
    cdef int offsets_answer(self, Conn* c, const uint8_t* body, size_t n) noexcept nogil
    cdef int answer_off_loop(self, Conn* c, int kind, size_t size, int32_t correlation) noexcept nogil
    cdef int own_error(self, Conn* c, int kind, int32_t correlation, int code) noexcept nogil
    cdef int malformed(self, Conn* c, int kind, const char* reason) noexcept nogil
    cdef bint whole_frame(self, Conn* c) noexcept nogil
    cdef void report(self, Conn* c, const char* reason, int detail) noexcept nogil
    cdef void refuse(self, Conn* c, Ack* ack, int code, const char* reason, int detail) noexcept nogil

"""fastlog's own rare requests, 1002 to 1006: a thread has Python make the whole answer (``Answers``)."""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from fastlog.log._layout cimport fl_bump, fl_load, fl_slot
from fastlog.log._shared_memory cimport N_INVALID_REQUEST
from fastlog.workers._engine cimport Engine
from fastlog.workers._jobs cimport ANSWER_AGAIN, ANSWER_MADE, Answering
from fastlog.workers.kafka07._codes cimport CODE_MALFORMED
from fastlog.workers.kafka07._exchange cimport ANSWERED, ANSWERING, CLOSE, DONE, FRAME_HEAD, Exchange, enter
from fastlog.workers.kafka07._kinds cimport CREATE_TOPIC, CUT_POINTS, DELETE_TOPIC, HELD_FETCH, LOCAL_READ, METADATA
from fastlog._bytes cimport be16, be32, put16, put32, put64
from fastlog.workers.net._connection cimport (
    WAIT_CREATE, WAIT_JOB, WAIT_ROOM, Conn, answer_admitted, answers_give, answers_take, out_bytes,
)
from fastlog.workers.net._helper cimport QUEUE_CONTROL, QUEUE_CREATE, QUEUE_DISK

cdef enum:
    MAX_OWN_BYTES = 1 << 20      # a request that Python decodes is no longer than this
    PARTITION_BYTES = 48         # of METADATA, with a share of the topic's name
    MOST_PARTITIONS = 131072     # of METADATA, as in ``answers``
    MOST_POINTS = 65536          # of CUT_POINTS, as there


cdef class Own:
    """Answers these requests of one processor; its loop's thread only."""

    def __cinit__(self, Engine engine, control):
        self.engine = engine
        self.answering = Answering(engine.jobs, control.answer_off_loop)
        self.counters = engine.counters

    cdef int answer(self, Conn* c, Exchange* x, int kind, const uint8_t* p, size_t size, int32_t correlation) noexcept nogil:
        """Have a thread make the answer, and pass it on; ``p`` stands at the request id."""
        cdef uint64_t expected
        cdef uint8_t* room
        cdef int result = CLOSE
        if size > MAX_OWN_BYTES:
            return self.error(c, kind, correlation, CODE_MALFORMED)
        if x.state != ANSWERED:
            if x.reserved == 0:
                expected = self.expected_bytes(kind, p, size)
                if not answer_admitted(c, expected):
                    return WAIT_ROOM
                x.reserved = expected
                answers_take(c, expected)
            enter(x, ANSWERING)
            self.engine.jobs.answer(c, &x.job.answer, self.answering, self.queue_of(kind, p, size), FRAME_HEAD, size)
            return WAIT_JOB
        if x.answer_state == ANSWER_AGAIN:
            self.forget(c, x)
            enter(x, ANSWERING)
            return WAIT_CREATE
        if x.answer_state == ANSWER_MADE:
            if be16(x.answer + 8) == CODE_MALFORMED:
                fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
            answers_give(c, x.reserved)
            x.reserved = 0
            room = out_bytes(c, x.answer_size)
            if room != NULL:
                memcpy(room, x.answer, x.answer_size)
                result = DONE
        self.forget(c, x)
        return result

    cdef void forget(self, Conn* c, Exchange* x) noexcept nogil:
        """Give back the answer that was made, or the memory that is reserved for it."""
        answers_give(c, x.reserved)
        x.reserved = 0
        free(x.answer)
        x.answer = NULL

    cdef int error(self, Conn* c, int kind, int32_t correlation, int code) noexcept nogil:
        """Answer one of fastlog's own requests with an error; a long poll has its two offsets even then, unknown."""
        cdef size_t size = 26 if kind == HELD_FETCH else 10
        cdef uint8_t* head = out_bytes(c, size)
        if head == NULL:
            return CLOSE
        fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
        put32(head, <uint32_t>size - 4)
        put32(head + 4, <uint32_t>correlation)
        put16(head + 8, <uint16_t>code)
        if size > 10:
            put64(head + 10, <uint64_t>-1)
            put64(head + 18, <uint64_t>-1)
        return DONE

    cdef int queue_of(self, int kind, const uint8_t* p, size_t size) noexcept nogil:
        """The queue in which the answer to one of fastlog's rare requests is made; ``p`` stands at the request id."""
        cdef int name_size
        cdef fl_slot* s = NULL
        if kind == CREATE_TOPIC or kind == DELETE_TOPIC:
            return QUEUE_CREATE
        if kind != CUT_POINTS and kind != LOCAL_READ:
            return QUEUE_CONTROL
        name_size = <int16_t>be16(p + 8) if size >= 10 else -1
        if name_size >= 0 and size >= <size_t>name_size + 14:
            s = self.engine.partitions.find(p + 10, name_size, <int32_t>be32(p + 10 + name_size))
        return <int>QUEUE_DISK + (<int>s.directory if s != NULL else 0)

    cdef uint64_t expected_bytes(self, int kind, const uint8_t* p, size_t size) noexcept nogil:
        """About how long the answer to one of fastlog's rare requests will be; ``p`` stands at the request id."""
        cdef int32_t names
        if kind == CUT_POINTS:
            names = <int32_t>be32(p + size - 4) if size > 12 else 0
            return 8 * <uint64_t>min(<uint32_t>max(names, 0), <uint32_t>MOST_POINTS)
        if kind == LOCAL_READ:
            return 8 * <uint64_t>self.engine.arena.header.table_entries
        if kind != METADATA:
            return 0
        names = <int32_t>be32(p + 8) if size >= 12 else 0
        if names < 0:
            return fl_load(&self.engine.arena.header.slot_count) * PARTITION_BYTES
        return size + min(<uint64_t>names * max(self.engine.partitions.largest, <uint64_t>1), <uint64_t>MOST_PARTITIONS) * PARTITION_BYTES

"""The Produce requests that one connection has on its way, and the numbers that their batches get when they are written.

The answer that is read here is that to a request of version 7 about one partition:

    bytes  field
    4      bytes of the answer behind this field: 48 and the topic's
    4      number of the request
    4      number of topics, 1
    2, n   topic, behind its length
    4      number of partitions, 1
    4      partition
    2      error code
    8      offset of the first record, -1 with an error
    8      time of the append, -1 where records keep their own
    8      first offset of the log
    4      time for which the client is to wait

Source: the schemas of Apache Kafka 4.2.
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memmove

from fastlog._batch_header cimport BATCH_HEADER_BYTES, number_batch, sum_batch
from fastlog._bytes cimport GIL_SPAN_BYTES, be16, be32, be64
from fastlog.producer._flight cimport INBOX_BYTES, SIZE_BYTES, Flight, frame_start
from fastlog.producer._frames cimport Chunk
from fastlog.producer._lane cimport Lane

from fastlog.errors import ProtocolError

cdef enum:
    ANSWER_BYTES = 48             # without the topic
    NUMBERS_END = 0x7FFFFFFF      # the last one; 0 follows
    DUPLICATE = 46                # the batch is stored; its offset is not known any more


cdef class RecordFlight(Flight):
    cdef readonly int64_t producer
    cdef readonly int16_t epoch
    cdef readonly bint wants_producer     # a lane has used up all epochs of its id
    cdef long long plan                   # counts writes

    def __init__(self, bint acknowledged):
        super().__init__(acknowledged)
        self.producer = self.epoch = -1

    def number_with(self, int64_t producer, int16_t epoch):
        """Have the partitions numbered that have no numbers yet: with this id, in this epoch."""
        self.producer, self.epoch, self.wants_producer = producer, epoch, False

    def renew(self, Lane lane):
        """Number anew what is written to a partition from now on. Only while nothing of it is on its way."""
        lane.renew()
        self.wants_producer = self.wants_producer or lane.is_exhausted

    def has_unsent(self):
        """Whether there is something that may be written now."""
        return self.cursor < len(self.chunks) and self.admit(<Chunk>self.chunks[self.cursor], 1, True) > 0

    def is_behind(self):
        """Whether there is something to write that waits for answers."""
        return self.cursor < len(self.chunks)

    def rewind(self):
        """Go back to the first frame that is not finished; the messages that may be stored twice by it."""
        cdef Chunk chunk
        cdef long long doubtful = 0
        cdef bint is_numbered = True
        for chunk in self.chunks:
            chunk.lane.in_flight = 0
            is_numbered = is_numbered and chunk.lane.limit > 0
        doubtful = super().rewind()
        return 0 if is_numbered else doubtful

    cdef long long admit(self, Chunk chunk, long long frames, bint is_first) except -1:
        """See ``Flight``: as many as the lane has room for; their batches get their numbers here."""
        cdef Lane lane = chunk.lane
        if lane.limit:
            self.plan += is_first
            if lane.plan != self.plan:
                lane.plan, lane.planned = self.plan, 0
            frames = min(frames, <long long>(lane.room() - lane.planned))
            if frames <= 0:
                return 0
            lane.planned += <int>frames
            if lane.producer < 0:
                if self.producer < 0 or self.wants_producer:
                    return 0
                lane.producer, lane.epoch, lane.is_exhausted = self.producer, self.epoch, False
        self.number_frames(chunk, chunk.written_frames + <int>frames)
        return frames

    cdef int number_frames(self, Chunk chunk, int stop) except -1:
        """Give the frames before ``stop`` that are not finished the numbers that come next, and their checksums."""
        cdef Lane lane = chunk.lane
        cdef uint8_t* batch
        cdef Py_ssize_t size
        cdef int i
        for i in range(chunk.written_frames, stop):
            if chunk.frames[i].generation == lane.generation:
                continue
            batch = chunk.memory + frame_start(chunk, i) + chunk.header_bytes - BATCH_HEADER_BYTES
            size = chunk.memory + chunk.frames[i].end - batch
            if lane.limit:
                number_batch(batch, lane.producer, lane.epoch, lane.next)
                lane.next = <int32_t>((<uint32_t>lane.next + <uint32_t>chunk.frames[i].messages) & <uint32_t>NUMBERS_END)
            chunk.frames[i].generation = lane.generation
            if size < GIL_SPAN_BYTES:
                sum_batch(batch, size)
            else:
                with nogil:  # only this thread knows of the chunk
                    sum_batch(batch, size)
        return 0

    cdef int note_written(self, Chunk chunk, int frames) except -1:
        """See ``Flight``: counts the batches that are written and not answered."""
        chunk.lane.in_flight += frames
        return 0

    cdef int read_answers(self) except -1:
        """See ``Flight``: answers of today's protocol, each to one batch."""
        cdef Py_ssize_t position = 0, topic_bytes = 0
        cdef const uint8_t* p
        cdef const char* topic
        cdef int32_t size
        cdef int error
        cdef int64_t base
        cdef Chunk chunk
        while self.inbox_used - position >= SIZE_BYTES:
            p = self.inbox + position
            size = <int32_t>be32(p)
            chunk = self.asked()
            topic = PyUnicode_AsUTF8AndSize(chunk.topic, &topic_bytes)
            if size != ANSWER_BYTES + topic_bytes:
                raise ProtocolError(f"an answer of {size} bytes came to a produce request")
            if self.inbox_used - position - SIZE_BYTES < size:
                break
            if be32(p + 8) != 1 or be16(p + 12) != topic_bytes or memcmp(p + 14, topic, <size_t>topic_bytes):
                raise ProtocolError("the answer to a produce request is about another topic")
            p += 14 + topic_bytes
            if be32(p) != 1 or <int32_t>be32(p + 4) != chunk.partition:
                raise ProtocolError("the answer to a produce request is about another partition")
            error = <int16_t>be16(p + 8)
            base = <int64_t>be64(p + 10)
            if error == DUPLICATE:
                error, base = 0, -1
            if not error and base < -1:
                raise ProtocolError(f"a batch was stored at offset {base}")
            chunk.lane.in_flight -= 1
            chunk.lane.is_known = chunk.lane.is_known or not error
            self.answered(
                <int32_t>be32(self.inbox + position + 4),
                error,
                chunk.partition,
                base,
                -1 if error or base < 0 else base + chunk.frames[chunk.finished_frames].messages,
            )
            position += SIZE_BYTES + size
        self.inbox_used -= position
        memmove(self.inbox, self.inbox + position, <size_t>self.inbox_used)
        self.compact()
        return 0

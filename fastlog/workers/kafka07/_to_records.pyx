"""Produces of 0.7 to topics of record batches: a message set becomes a batch, or several where one may not be so large.

Records have a null key, the payload as value and the time of the conversion. Small sets are converted here, in one pass over
bytes that have just been checked; large and compressed ones by a thread, which compresses them again with their codec.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from fastlog._upconvert cimport CONVERT_FULL, CONVERTED, Converted, Making, add_inner, discard, finish
from fastlog.log._layout cimport fl_slot, fl_wall_ms
from fastlog.log.formats._table cimport ENTRIES_WHOLE, OF_KAFKA, Entries
from fastlog.workers._engine cimport Engine
from fastlog.workers._jobs cimport RECORDS_MADE, RECORDS_TOO_LARGE
from fastlog.workers._partitions cimport PROBLEM_FORMAT, RESOLVE_ABSENT, TO_PRODUCE
from fastlog.workers._writes cimport GATHER_FULL, GATHER_NO_MEMORY, GATHERED, GATHERED_IN_PLACE
from fastlog.workers.kafka07._exchange cimport (
    CLOSE, CONVERTING, DONE, FRAME_HEAD, WRITE_FIRST, Exchange, enter, free_converted,
)
from fastlog.workers.net._connection cimport WAIT_JOB, Conn

cdef enum:
    HERE_BYTES = 64 << 10        # of a set that is converted on the loop's thread
    KEPT_BYTES = 256 << 10       # of the memory for that, until the next one


@cython.final
cdef class ToRecords:
    """Converts what one processor's connections produce; its loop's thread only. ``max_batch`` bounds the batches of topics
    that have no bound of their own."""

    def __cinit__(self, Engine engine, max_batch):
        self.engine = engine
        self.max_batch = max_batch

    def __dealloc__(self):
        discard(&self.making)

    cdef int resolve(self, const uint8_t* name, int name_size, int32_t* partition, fl_slot** out) noexcept nogil:
        """As ``Partitions.resolve``, which found that it is none of 0.7; the broker's own are for nobody."""
        cdef int r
        if name_size >= 2 and name[0] == c"_" and name[1] == c"_":
            return PROBLEM_FORMAT
        r = self.engine.partitions.resolve(name, name_size, partition, TO_PRODUCE, OF_KAFKA, out)
        # such a partition is not made by its first message
        return <int>PROBLEM_FORMAT if r == RESOLVE_ABSENT else r

    cdef int gather(self, Conn* c, Exchange* x, fl_slot* s, const uint8_t* data, const Entries* found, size_t at,
                    uint32_t receipt) noexcept nogil:
        """Add a set that has been checked, and counted where it is compressed, to the run of its partition.

        An ``Outcome``, what to wait for, or one of the values above; ``at`` as for ``Jobs.count``, ``receipt`` as for
        ``Writes.gather``.
        """
        cdef int r
        if x.converted_state == 0:
            if not found.compressed and found.bytes <= HERE_BYTES:
                r = self.gather_here(c, x, s, data, found.bytes, receipt)
                if r != WAIT_JOB:
                    return r
            x.converted_ms = <int64_t>fl_wall_ms()
            enter(x, CONVERTING)
            self.engine.jobs.convert(c, &x.job.convert, FRAME_HEAD + at, <size_t>found.bytes, x.converted_ms,
                                     s.max_message_bytes if s.max_message_bytes else self.max_batch)
            return WAIT_JOB
        if x.converted_state != RECORDS_MADE:
            r = TOO_LARGE_FOR_BATCH if x.converted_state == RECORDS_TOO_LARGE else NOT_CONVERTED
            free_converted(x)
            return r
        x.gathered.kept = x.converted
        return self.put(c, x, s, x.converted, x.converted_size, x.converted_count, x.converted_ms, receipt)

    cdef int gather_here(self, Conn* c, Exchange* x, fl_slot* s, const uint8_t* data, uint64_t size,
                         uint32_t receipt) noexcept nogil:
        """The same of a small set; WAIT_JOB when a thread is to do it, since it takes several batches."""
        cdef Making* m = &self.making
        cdef Converted out
        cdef int64_t offset = 0, now_ms = <int64_t>fl_wall_ms()
        cdef int r
        m.size = 0
        m.count = 0
        m.most = <uint64_t>(s.max_message_bytes if s.max_message_bytes else self.max_batch)
        r = add_inner(m, data, size, &offset, 0, &out)
        if r == CONVERT_FULL:
            return TOO_LARGE_FOR_BATCH if m.count == 0 else WAIT_JOB
        if r != CONVERTED or finish(m, 0, offset, 0, now_ms) != 0:
            return CLOSE
        r = self.put(c, x, s, m.data, m.size, m.count, now_ms, receipt)
        if m.room > KEPT_BYTES:
            discard(m)
        return r

    cdef int put(self, Conn* c, Exchange* x, fl_slot* s, const uint8_t* batches, uint64_t size, int64_t count,
                 int64_t time_ms, uint32_t receipt) noexcept nogil:
        """Add whole batches of ``size`` bytes to the connection's run for the partition."""
        cdef Entries made
        cdef int r
        memset(&made, 0, sizeof(made))
        made.bytes = size
        made.count = made.span = <uint64_t>count
        made.max_timestamp = time_ms
        made.status = ENTRIES_WHOLE
        r = self.engine.writes.gather(c, &x.gathered, s, batches, &made, count, receipt)
        if r == GATHER_FULL:
            return WRITE_FIRST
        if r == GATHERED:
            free_converted(x)
            return DONE
        # what stands in place is kept until the request goes on
        return TAKEN_IN_PLACE if r == GATHERED_IN_PLACE else CLOSE

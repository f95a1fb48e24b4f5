"""OFFSETS from the table of segments: which offsets lay in a log at a time. No more of the table is read than is asked for.

Source: Kafka 0.7.2, ``Log.getOffsetsBefore``; times are the append times fastlog keeps, not file times.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastlog.log._arena cimport (
    fl_base_at, fl_end, fl_end_read, fl_fence, fl_find_segment, fl_first_ms_at, fl_header, fl_last_ms_at, fl_load, fl_slot,
    fl_wall_ms,
)
from fastlog.workers.net._bytes cimport put16, put32, put64
from fastlog.workers.net._connection cimport Conn, answer_admitted, out_bytes, out_give_back

cdef enum:
    LATEST = -1
    EARLIEST = -2
    HEAD_BYTES = 10              # size, error, count


cdef inline int64_t time_of(fl_header* h, fl_slot* s, uint64_t index) noexcept nogil:
    """When a segment got its last append; an empty one counts from its making."""
    cdef uint64_t last = fl_load(fl_last_ms_at(h, s, index))
    return <int64_t>(last if last else fl_load(fl_first_ms_at(h, s, index)))


cdef int answer_offsets(fl_header* h, fl_slot* s, Conn* c, int64_t time_ms, int32_t max_count) noexcept nogil:
    """Where the log began and ended at ``time_ms``, segment by segment, newest first; nothing above the visible end.

    When the head that is read last is not the one that the search began with, it may have met entries that are gone or
    used again: then it looks again. Each time retention must have dropped more, so that this ends.
    """
    cdef fl_end visible
    cdef uint64_t head, tail, index, count, i
    cdef bint with_end
    cdef uint8_t* room
    while True:
        tail = fl_load(&s.table_tail)
        head = fl_load(&s.table_head)
        if head >= tail:
            continue  # the tail was read before a roll, the head after retention: a table is never empty
        fl_end_read(&s.visible_end, s.visible_ends, &visible)
        # [head, index) are the segments that count, and the visible end, as if it were one, after them
        index = fl_find_segment(h, s, head, tail, visible.offset) + 1
        with_end = visible.offset > fl_load(fl_base_at(h, s, index - 1))
        if visible.offset < fl_load(fl_base_at(h, s, index - 1)):
            index = head
            with_end = False
        if time_ms == EARLIEST:
            with_end = False
            index = min(index, head + 1)
        elif time_ms != LATEST:
            with_end = with_end and <int64_t>fl_wall_ms() <= time_ms
            while not with_end and index > head and time_of(h, s, index - 1) > time_ms:
                index -= 1
        count = min(index - head + with_end, <uint64_t>max_count)
        if not answer_admitted(c, HEAD_BYTES + 8 * count):
            return OFFSETS_PARKED
        room = out_bytes(c, HEAD_BYTES + 8 * count)
        if room == NULL:
            return OFFSETS_NO_MEMORY
        put32(room, <uint32_t>(HEAD_BYTES - 4 + 8 * count))
        put16(room + 4, 0)
        put32(room + 6, <uint32_t>count)
        room += HEAD_BYTES
        for i in range(count):
            if with_end and i == 0:
                put64(room, visible.offset)
            else:
                put64(room + 8 * i, fl_load(fl_base_at(h, s, index - 1 - (i - with_end))))
        fl_fence()
        if fl_load(&s.table_head) == head:
            return OFFSETS_DONE
        out_give_back(c, HEAD_BYTES + 8 * count)

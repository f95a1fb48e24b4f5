"""LIST_OFFSETS: where partitions begin and end, and which record a time leads to, or has the largest one.

Versions 1 to 9. 2 brings the isolation level, 4 leader epochs, 6 is the first flexible one, 7 brings the largest time, 8 and 9
the beginning of what is here and the end of what is stored elsewhere: all of a log is here.

Of topics of 0.7 the last record has the offset before the end. Their messages have no time, so a time leads to the first of the
segment that was appended to then or later: nothing that is newer lies before it.

Times are looked up in files, by a thread (``times``). Whoever has produced and asks for the end sees it: the answer waits until what was appended when it came is visible, for a
bounded time.

Source: Apache Kafka 4.2 (KafkaApis, UnifiedLog.fetchOffsetByTimestamp).
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fastlog._bytes cimport put32
from fastlog.log._layout cimport (
    FL_STATE_NO_FLUSH, FL_STATE_OFFLINE, fl_base_at, fl_bump, fl_end, fl_end_read, fl_fence, fl_first_ms_at, fl_first_offset,
    fl_header, fl_last_ms_at, fl_load, fl_refused, fl_slot,
)
from fastlog.log._shared_memory cimport N_OFFSETS
from fastlog.log.formats._table cimport OF_KAFKA, READ_BY_KAFKA
from fastlog.workers._authorizer cimport is_allowed
from fastlog.workers._engine cimport Engine
from fastlog.workers._jobs cimport ANSWER_MADE, Answering
from fastlog.workers._partitions cimport RESOLVE_ABSENT, RESOLVED, TO_READ
from fastlog.workers.kafka._codes cimport (
    CODE_FORMAT, CODE_INVALID_REQUEST, CODE_NEW_EPOCH, CODE_NONE, CODE_OLD_EPOCH, CODE_STORAGE, CODE_TOPIC_DENIED, CODE_UNKNOWN_TOPIC,
    code_of,
)
from fastlog.workers.kafka._exchange cimport (
    CLOSE, DONE, HOLDING, LISTED, LISTING, MALFORMED, Exchange, Head, enter, free_made,
)
from fastlog.workers.kafka._kinds cimport LIST_OFFSETS, Kinds, api_of
from fastlog.workers.kafka._topics cimport Topics, is_bridged, is_todays
from fastlog.workers.kafka._wire cimport (
    FRAME_HEAD, MOST_ITEMS, Reader, add16, add32, add64, add_array, add_string, add_tags, begin_answer, get8, get32, get64,
    get_array, get_string, skip_tags, writer_free,
)
from fastlog.workers.net._connection cimport (
    TURN_STEPS, WAIT_JOB, WAIT_ROOM, WAIT_VISIBLE, Conn, answer_admitted, out_bytes,
)
from fastlog.workers.net._helper cimport QUEUE_DISK

cdef enum:
    HOLD_NS = 500000000          # how long an answer waits at most for what was appended to become visible
    PART_BYTES = 48              # of an answer, with a share of the topic's name
    KEPT_BYTES = 256 << 10       # of an answer's memory that are kept for the next one

# What is asked for in place of a time.
cdef enum Times:
    LATEST = -1
    EARLIEST = -2
    LARGEST = -3
    EARLIEST_HERE = -4
    LATEST_ELSEWHERE = -5

# What a thread has found for one partition: ``times.ROW``.
cdef packed struct Row:
    int16_t code
    int64_t timestamp
    int64_t offset
    int32_t epoch


@cython.final
cdef class ListOffsets:
    """Answers LIST_OFFSETS of one processor; its loop's thread only."""

    def __cinit__(self, Engine engine, Kinds kinds, Topics topics, control):
        self.engine = engine
        self.topics = topics
        self.kinds = kinds
        self.answering = Answering(engine.jobs, control.look_up_times)
        self.counters = engine.counters

    def __dealloc__(self):
        writer_free(&self.out)

    cdef int answer(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil:
        """Answer, or WAIT_VISIBLE; ``p`` stands at the api key. An ``Outcome``."""
        cdef Reader r
        cdef uint8_t* room
        cdef int count, queue, result = CLOSE
        if x.state == LISTED:
            if x.made_state != ANSWER_MADE:
                return CLOSE
        else:
            if x.ends == NULL:
                r.p, r.size, r.at, r.bad, r.flexible = p, size, head.body, False, head.flexible
                count = self.check_form(&r, head)
                if count < 0:
                    return MALFORMED
                if not answer_admitted(c, size + <size_t>count * PART_BYTES):
                    return WAIT_ROOM
                fl_bump(&self.counters[<int>N_OFFSETS], 1)
                x.ends = <uint64_t*>malloc((<size_t>count + 1) * sizeof(uint64_t))
                if x.ends == NULL:
                    return CLOSE
                x.hold_until_ns = 0
            if self.hold(c, x, head, p, size, now_ns):
                enter(x, HOLDING)
                return WAIT_VISIBLE
            self.forget(x)
            queue = self.queue_of(c, head, p, size)
            if queue >= 0:
                enter(x, LISTING)
                self.engine.jobs.answer(c, &x.job.answer, self.answering, queue, FRAME_HEAD, size)
                return WAIT_JOB
        self.write(c, head, p, size, x.made, x.made_size)
        free_made(x)
        if not self.out.failed:
            room = out_bytes(c, self.out.size)
            if room != NULL:
                memcpy(room, self.out.data, self.out.size)
                result = DONE
        if self.out.room > KEPT_BYTES:
            writer_free(&self.out)
        c.turn_steps = TURN_STEPS  # the clock is looked at before the next request
        return result

    cdef void forget(self, Exchange* x) noexcept nogil:
        """Give back what a request holds that waits."""
        free(x.ends)
        x.ends = NULL
        x.hold_until_ns = 0

    cdef int check_form(self, Reader* r, const Head* head) noexcept nogil:
        """Read the whole request: how many partitions it names, -1 when it is malformed."""
        cdef Listed one
        cdef int topics, parts, i, k, total = 0
        topics = begin_request(r, head)
        if topics < 0:
            return -1
        for i in range(topics):
            parts = begin_topic(r, &one)
            total += max(parts, 0) + 1
            if r.bad or parts < 0 or total > MOST_ITEMS:
                return -1
            for k in range(parts):
                read_part(r, head, &one)
            skip_tags(r)
        skip_tags(r)
        return -1 if r.bad else total

    cdef bint hold(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil:
        """Whether the answer is to wait for an end that it met: for the first that is not visible yet.

        The first call notes the ends. Where flushing has failed nothing is waited for.
        """
        cdef Reader r
        cdef Listed one
        cdef fl_slot* s
        cdef uint64_t visible
        cdef int topics, parts, i, k, number = 0
        cdef bint begins = x.hold_until_ns == 0
        if c.leaving:
            return False
        if begins:
            x.hold_until_ns = now_ns + <uint64_t>HOLD_NS
        r.p, r.size, r.at, r.bad, r.flexible = p, size, head.body, False, head.flexible
        topics = begin_request(&r, head)
        for i in range(topics):
            parts = begin_topic(&r, &one)
            for k in range(parts):
                read_part(&r, head, &one)
                if begins:
                    x.ends[number] = 0
                    if one.time == LATEST or one.time == LARGEST:
                        self.look(c, &one)
                        if one.code == CODE_NONE and one.slot != NULL:
                            x.ends[number] = fl_load(&one.slot.log_end)
                number += 1
            skip_tags(&r)
        if now_ns >= x.hold_until_ns:
            return False
        number = 0
        r.at = head.body
        topics = begin_request(&r, head)
        for i in range(topics):
            parts = begin_topic(&r, &one)
            for k in range(parts):
                read_part(&r, head, &one)
                number += 1
                if x.ends[number - 1] == 0:
                    continue
                s = self.engine.partitions.find(one.name, one.name_size, one.partition)
                if s == NULL:
                    continue
                visible = fl_load(&s.visible_end)
                # an end never goes back: of a log that ends before it, it was not met, but of one that was deleted since
                while visible < x.ends[number - 1] <= fl_load(&s.log_end) and not fl_load(&s.state) & FL_STATE_NO_FLUSH:
                    if self.engine.reads.await_visible(s, visible):
                        return True
                    visible = fl_load(&s.visible_end)
            skip_tags(&r)
        return False

    # -- the answer ----------------------------------------------------------------------------------------------------

    cdef int queue_of(self, Conn* c, const Head* head, const uint8_t* p, size_t size) noexcept nogil:
        """The queue of the thread that looks up times: that of the first log that is asked for one; -1: none is."""
        cdef Reader r
        cdef Listed one
        cdef int topics, parts, i, k
        r.p, r.size, r.at, r.bad, r.flexible = p, size, head.body, False, head.flexible
        topics = begin_request(&r, head)
        for i in range(topics):
            parts = begin_topic(&r, &one)
            for k in range(parts):
                read_part(&r, head, &one)
                if one.time >= 0 or one.time == LARGEST:
                    self.look(c, &one)
                    if one.code == CODE_NONE and not one.is_bridged:
                        return <int>QUEUE_DISK + <int>one.slot.directory
            skip_tags(&r)
        return -1

    cdef void write(self, Conn* c, const Head* head, const uint8_t* p, size_t size, const uint8_t* made,
                    size_t made_size) noexcept nogil:
        """Write the whole answer; ``made`` has a row for each partition, see ``times``, or is empty."""
        cdef Writer* w = &self.out
        cdef Reader r
        cdef Listed one
        cdef Row row
        cdef int topics, parts, i, k
        cdef size_t number = 0
        begin_answer(w, head.correlation, head.flexible, head.flexible)
        if head.version >= 2:
            add32(w, 0)
        r.p, r.size, r.at, r.bad, r.flexible = p, size, head.body, False, head.flexible
        topics = begin_request(&r, head)
        add_array(w, topics)
        for i in range(topics):
            parts = begin_topic(&r, &one)
            add_string(w, one.name, one.name_size)
            add_array(w, parts)
            for k in range(parts):
                read_part(&r, head, &one)
                self.look(c, &one)
                if one.is_bridged:
                    self.look_up(&one)
                elif (one.time >= 0 or one.time == LARGEST) and one.code == CODE_NONE and made_size >= (number + 1) * sizeof(Row):
                    memcpy(&row, made + number * sizeof(Row), sizeof(Row))
                    one.code, one.timestamp, one.offset, one.offset_epoch = row.code, row.timestamp, row.offset, row.epoch
                number += 1
                add32(w, one.partition)
                add16(w, one.code)
                if one.code:
                    fl_refused(self.engine.cell, LIST_OFFSETS, one.code)
                add64(w, one.timestamp)
                add64(w, one.offset)
                if head.version >= 4:
                    add32(w, one.offset_epoch)
                add_tags(w)
            skip_tags(&r)
            add_tags(w)
        add_tags(w)
        if not w.failed:
            put32(w.data, <uint32_t>w.size - FRAME_HEAD)

    cdef void look(self, Conn* c, Listed* one) noexcept nogil:
        """Find what is asked for of one partition; every use of one passes here, and is authorized."""
        cdef fl_end visible
        cdef int32_t partition = one.partition
        cdef fl_slot* first
        cdef int r = RESOLVE_ABSENT
        one.code = CODE_NONE
        one.offset = one.timestamp = -1
        one.offset_epoch = -1
        one.is_bridged = False
        one.slot = NULL
        if not is_allowed(self.engine.authorizer, c, api_of(self.kinds, LIST_OFFSETS).operation, one.name, one.name_size):
            one.code = CODE_TOPIC_DENIED
            return
        if partition >= 0:
            r = self.engine.partitions.resolve(one.name, one.name_size, &partition, TO_READ, OF_KAFKA | READ_BY_KAFKA, &one.slot)
        if r == RESOLVED and not is_todays(one.slot):
            one.is_bridged = is_bridged(one.slot)
            if not one.is_bridged:
                one.code = CODE_FORMAT
                return
        elif r == RESOLVE_ABSENT:
            first = self.topics.first_of(one.name, one.name_size)
            if first != NULL and not is_todays(first) and is_bridged(first):
                # nobody has written to it yet: it begins and ends at 0
                one.is_bridged = True
                if one.time == EARLIEST or one.time == EARLIEST_HERE or one.time == LATEST:
                    one.offset = 0
                return
        if r != RESOLVED:
            one.code = CODE_UNKNOWN_TOPIC if r == RESOLVE_ABSENT else code_of(r)
        elif fl_load(&one.slot.state) & FL_STATE_OFFLINE:
            one.code = CODE_STORAGE
        elif one.epoch >= 0 and <uint32_t>one.epoch != one.slot.epoch:
            one.code = CODE_OLD_EPOCH if <uint32_t>one.epoch < one.slot.epoch else CODE_NEW_EPOCH
        elif one.time == EARLIEST or one.time == EARLIEST_HERE:
            one.offset = <int64_t>fl_first_offset(one.slot)
        elif one.time == LATEST:
            fl_end_read(&one.slot.visible_end, one.slot.visible_ends, &visible)
            one.offset = <int64_t>visible.offset
            one.offset_epoch = <int32_t>one.slot.epoch
            if one.is_bridged:
                self.engine.bridge.note_end(one.slot)
        elif one.time < 0 and one.time != LARGEST and one.time != LATEST_ELSEWHERE:
            one.code = CODE_INVALID_REQUEST

    cdef void look_up(self, Listed* one) noexcept nogil:
        """Where a time leads to in a topic of 0.7, by the times of appends to its segments, or its last message's.

        As for 0.7's OFFSETS, entries that retention dropped meanwhile have it look again.
        """
        cdef fl_header* h = self.engine.arena.header
        cdef fl_slot* s = one.slot
        cdef fl_end visible
        cdef uint64_t head, tail, index, ms
        if s == NULL or one.code != CODE_NONE or (one.time < 0 and one.time != LARGEST):
            return
        while True:
            one.offset = one.timestamp = -1
            tail = fl_load(&s.table_tail)
            head = fl_load(&s.table_head)
            if head >= tail:
                continue
            fl_end_read(&s.visible_end, s.visible_ends, &visible)
            for index in range(head, tail):
                if fl_load(fl_base_at(h, s, index)) >= visible.offset:
                    break
                ms = fl_load(fl_last_ms_at(h, s, index))
                ms = max(ms, fl_load(fl_first_ms_at(h, s, index)))
                if one.time == LARGEST:
                    one.timestamp = <int64_t>ms
                    one.offset = <int64_t>visible.offset - 1
                elif <int64_t>ms >= one.time:
                    one.timestamp = <int64_t>ms
                    one.offset = <int64_t>max(fl_load(fl_base_at(h, s, index)), fl_first_offset(s))
                    break
            fl_fence()
            if fl_load(&s.table_head) == head:
                break
        if one.offset >= 0:
            one.offset_epoch = <int32_t>s.epoch


cdef int begin_request(Reader* r, const Head* head) noexcept nogil:
    """Read what stands before the first topic: how many there are."""
    get32(r)  # the replica that asks: none does here
    if head.version >= 2:
        get8(r)
    return get_array(r)


cdef int begin_topic(Reader* r, Listed* out) noexcept nogil:
    """Read the name of a topic: how many partitions follow; -1 when it has no name."""
    out.name_size = get_string(r, &out.name)
    return get_array(r) if out.name_size >= 0 else -1


cdef void read_part(Reader* r, const Head* head, Listed* out) noexcept nogil:
    out.partition = get32(r)
    out.epoch = get32(r) if head.version >= 4 else -1
    out.time = get64(r)
    skip_tags(r)

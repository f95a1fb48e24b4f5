"""FETCH: the batches of its partitions, from the offset that each asks for, as soon as there are enough or its time is over.

From version 5 on parts have the log start, from 7 on there are sessions, 9 brings leader epochs, 12 is the first
flexible one, and from 13 on topics go by their ids. No session is ever made: the answer says session 0, and clients ask for all
they want each time. The last stable offset is the visible end, as there are no transactions.

A round looks at every part, in an order that begins with another part each time, so that none goes short for ever where there is
more than the answer may hold; the answer has them in the order of the request. Whatever its limits, it has one batch as a
whole, so that every client goes on. Its bytes go from file to socket; those of topics of 0.7 are converted before (``_bridge``).

Source: Apache Kafka 4.2 (KafkaApis, ReplicaManager.fetchMessages, UnifiedLog.read).
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from fastlog._bytes cimport put32
from fastlog.log._layout cimport fl_bump, fl_end, fl_end_read, fl_load, fl_refused, fl_slot
from fastlog.log._shared_memory cimport N_BYTES_OUT, N_FAILED_FETCH, N_FETCH, N_FETCH_LOOKS, N_HELD_FETCHES
from fastlog.log.formats._table cimport OF_KAFKA
from fastlog.workers._bridge cimport (
    BRIDGE_DAMAGED, BRIDGE_LARGE, BRIDGE_NO_CODEC, BRIDGE_UNFIT, BRIDGE_UNREADABLE, BRIDGE_WAITS, BRIDGED, BridgeJob,
)
from fastlog.workers._engine cimport Engine
from fastlog.workers._partitions cimport PROBLEM_FORMAT, PROBLEM_NONE, PROBLEM_RANGE
from fastlog.workers._reads cimport Found
from fastlog.workers.kafka._codes cimport (
    CODE_COMPRESSION, CODE_CORRUPT_MESSAGE, CODE_FORMAT, CODE_NEW_EPOCH, CODE_NONE, CODE_OLD_EPOCH, CODE_OUT_OF_RANGE, CODE_SESSION, CODE_STORAGE, CODE_UNKNOWN_TOPIC, CODE_UNKNOWN_TOPIC_ID, code_of,
)
from fastlog.workers.kafka._exchange cimport (
    BRIDGED_PART, BRIDGING, CLOSE, DONE, HOLDING, LOOKING, MALFORMED, PUTTING, READING, Exchange, Fetching, FetchPart, FetchTopic, Head,
    enter,
)
from fastlog.workers.kafka._fetch_request cimport read_fetch
from fastlog.workers.kafka._kinds cimport FETCH, Kinds, api_of
from fastlog.workers.kafka._topics cimport ID_BYTES, Topics, is_bridged, is_todays
from fastlog.workers.kafka._wire cimport (
    FRAME_HEAD, add16, add32, add64, add_array, add_bytes, add_string, add_tags, add_varint, begin_answer, writer_free,
)
from fastlog.workers.net._connection cimport (
    TURN_STEPS, WAIT_JOB, WAIT_ROOM, WAIT_SLOTS, WAIT_TURN, WAIT_VISIBLE, Conn, SlotWait, Span, answer_admitted, answers_give, answers_take, out_bytes,
    out_give_back,
)

cdef enum:
    TURN_PARTS = 512             # looked at, or put into the answer, before others have a turn
    MOST_CONVERTED = 1 << 20     # bytes that a part of a topic of 0.7 gets, unless one message is larger
    MOST_BRIDGED = 4 << 20       # of all such parts together, about; the others come with the next request
    MOST_READS = 4               # of the beginning of a part, before it counts as one that memory does not hold


@cython.final
@cython.no_gc_clear  # connections are closed when their processor is freed
cdef class Fetches:
    """Answers the fetches of one processor; its loop's thread only."""

    def __cinit__(self, Engine engine, Kinds kinds, Topics topics, max_wait_ms):
        self.engine = engine
        self.kinds = kinds
        self.topics = topics
        self.reads = engine.reads
        self.bridge = engine.bridge
        self.slot_waits = engine.slot_waits
        self.counters = engine.counters
        self.max_wait_ms = max_wait_ms

    def __dealloc__(self):
        writer_free(&self.out)

    cdef int fetch(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil:
        """Answer, or say what to wait for; ``p`` stands at the api key. An ``Outcome``."""
        cdef Fetching* f = x.fetching
        cdef int result, work = TURN_PARTS
        if c.dead:
            return self.answer_nobody(c, x, head, p, size)
        if f == NULL:
            result = self.begin(c, x, head, p, size, now_ns)
            if result != DONE or x.fetching == NULL:
                return result
            f = x.fetching
        if x.state != PUTTING and x.state != BRIDGED_PART:
            if x.state == HOLDING and f.due == NULL:
                self.begin_round(f)
            while True:
                result = self.look(c, x, head, p, &work)
                if result != DONE:
                    return result
                if f.failed or f.taken >= <uint64_t>max(f.min_bytes, 0) or now_ns >= f.until_ns or c.leaving \
                        or f.part_count == 0:
                    break
                if not f.is_held:
                    f.is_held = True
                    fl_bump(&self.counters[<int>N_HELD_FETCHES], 1)
                enter(x, HOLDING)
                result = self.await_more(c, f, p, &work)
                if result != DONE:
                    return result
                if f.moved == NULL:
                    x.hold_until_ns = f.until_ns
                    # a partition that is not there is no slot to wait for
                    return <int>WAIT_VISIBLE if f.absent != NULL else <int>(WAIT_VISIBLE | WAIT_SLOTS)
                # something moved while we said that we wait: look again
                self.begin_round(f)
            if f.bridged and not answer_admitted(c, f.bridged):
                return WAIT_ROOM
            enter(x, PUTTING)
            c.incomplete = True
            f.kept = f.bridged
            answers_take(c, f.kept)
        result = self.put_parts(c, x, head, p, &work)
        if result <= 0:
            self.forget(c, x)
            x.rotation += 1
            c.turn_steps = TURN_STEPS  # the clock is looked at before the next request
        return result

    cdef int answer_nobody(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size) noexcept nogil:
        """A fetch of a client that is gone: whether it is malformed decides on the requests behind it. An ``Outcome``.

        One that is under way ends, too: what was made of its answer has been dropped, and its size has no place any more.
        """
        cdef Fetching sized
        cdef int session = 0
        if x.fetching != NULL:
            self.forget(c, x)
            if c.pool.answering == c:
                c.pool.answering = NULL
            return DONE
        memset(&sized, 0, sizeof(sized))
        if read_fetch(p, size, head, &sized, &session, False) != 0:
            return MALFORMED
        fl_bump(&self.counters[<int>N_FETCH], 1)
        return DONE

    # -- the request ---------------------------------------------------------------------------------------------------

    cdef int begin(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size, uint64_t now_ns) noexcept nogil:
        """Read the request into ``fetching``, or answer that it cannot be. An ``Outcome``."""
        cdef Fetching sized
        cdef Fetching* f
        cdef size_t bytes
        cdef int session = 0
        memset(&sized, 0, sizeof(sized))
        if read_fetch(p, size, head, &sized, &session, False) != 0:
            return MALFORMED
        bytes = sizeof(Fetching) + <size_t>sized.topic_count * sizeof(FetchTopic) + <size_t>sized.part_count * sizeof(FetchPart)
        if not answer_admitted(c, bytes + <size_t>sized.part_count * 2 * sizeof(Span)):
            return WAIT_ROOM
        if session:
            fl_bump(&self.counters[<int>N_FETCH], 1)
            return self.refuse(c, head, CODE_SESSION)
        f = <Fetching*>malloc(bytes)
        if f == NULL:
            return CLOSE
        memcpy(f, &sized, sizeof(Fetching))
        f.parts = <FetchPart*>(f + 1)
        f.topics = <FetchTopic*>(f.parts + f.part_count)
        read_fetch(p, size, head, f, &session, True)
        f.counted = bytes
        answers_take(c, bytes)
        f.begun = <int>(x.rotation % <uint32_t>f.part_count) if f.part_count else 0
        f.topic_put = -1
        f.until_ns = now_ns + min(f.until_ns, self.max_wait_ms) * 1000000
        x.fetching = f
        fl_bump(&self.counters[<int>N_FETCH], 1)
        enter(x, LOOKING)
        return DONE

    cdef int refuse(self, Conn* c, const Head* head, int code) noexcept nogil:
        """Answer with an error for the request as a whole."""
        cdef uint8_t* room
        fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
        fl_refused(self.engine.cell, FETCH, code)
        begin_answer(&self.out, head.correlation, head.flexible, head.flexible)
        add32(&self.out, 0)
        add16(&self.out, code)
        add32(&self.out, 0)
        add_array(&self.out, 0)
        add_tags(&self.out)
        room = NULL if self.out.failed else out_bytes(c, self.out.size)
        if room == NULL:
            return CLOSE
        put32(self.out.data, <uint32_t>self.out.size - FRAME_HEAD)
        memcpy(room, self.out.data, self.out.size)
        return DONE

    # -- looking for bytes ---------------------------------------------------------------------------------------------

    cdef int look(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, int* work) noexcept nogil:
        """Find and pin the bytes of the parts that this round has not looked at; DONE, or what to wait for.

        The first round looks at all, those after it at the parts that have moved or had something before.
        """
        cdef Fetching* f = x.fetching
        cdef FetchPart* part
        cdef int r
        cdef bint was_absent
        while f.looked < f.part_count or f.due != NULL:
            part = f.due if f.looked == f.part_count else &f.parts[(f.begun + f.looked) % f.part_count]
            if work[0] == 0:
                return WAIT_TURN
            work[0] -= 1
            if part.wait.conn != NULL:
                # before it is looked at, so that no move goes by
                self.reads.ask_for_more(part.found.slot)
            was_absent = part.is_absent
            r = self.look_at(c, x, p, part)
            if r != DONE:
                return r
            f.read_count = 0
            if f.looked == f.part_count:
                f.due = part.next_due
            else:
                f.looked += 1
            f.taken += part.found.size
            if part.code:
                f.failed = True
            elif part.is_absent:
                self.slot_waits.leave(&part.wait)  # it has gone while it was waited for
                part.next_due = f.absent
                f.absent = part
            elif was_absent:
                # it has been made while the others were waited for
                part.wait.moved = &f.moved
                self.slot_waits.join(&part.wait, c, part.found.slot)
                self.note_moved(f, part)
            elif part.wait.conn != NULL and part.wait.slot != part.found.slot.index:
                # the partition is in another slot now: once more, when that is waited for
                self.slot_waits.join(&part.wait, c, part.found.slot)
                self.note_moved(f, part)
            if part.found.ahead:
                part.next_due = f.ready
                f.ready = part
        return DONE

    cdef void begin_round(self, Fetching* f) noexcept nogil:
        """Have looked at what has moved, and at what has something, since that may be enough together now."""
        cdef SlotWait* wait = f.moved
        cdef FetchPart* part
        f.due = f.ready
        f.ready = NULL
        f.moved = NULL
        f.taken = f.bridged = 0
        while f.absent != NULL:
            part = f.absent
            f.absent = part.next_due
            part.next_due = f.due
            f.due = part
        while wait != NULL:
            part = <FetchPart*>wait
            wait.is_moved = False
            wait = wait.next_moved
            if part.found.ahead == 0 and not part.is_absent:  # else it is there already
                part.next_due = f.due
                f.due = part

    cdef int look_at(self, Conn* c, Exchange* x, const uint8_t* p, FetchPart* part) noexcept nogil:
        """Find the bytes that one part gets beside those before it in this round: DONE, or WAIT_JOB."""
        cdef Fetching* f = x.fetching
        cdef const FetchTopic* topic = &f.topics[part.topic]
        cdef Found* found = &part.found
        cdef const uint8_t* name = p + topic.name_at
        cdef int name_size = topic.name_size
        cdef fl_slot* s
        cdef int32_t limit = 0
        fl_bump(&self.counters[<int>N_FETCH_LOOKS], 1)
        self.unpin(part)  # of the round before, where that waited for memory
        memset(found, 0, sizeof(Found))
        found.entry = -1
        part.code = CODE_NONE
        if name_size < 0:
            s = self.topics.by_id(p + topic.id_at)
            if s == NULL:
                part.code = CODE_UNKNOWN_TOPIC_ID
                return DONE
            name, name_size = s.name, <int>s.name_bytes
        if f.taken < f.max_bytes and not self.reads.descriptors_are_short():
            limit = <int32_t>min(<uint64_t>max(part.limit, 0), f.max_bytes - f.taken)
        part.is_bridged = part.is_absent = False
        part.counted = 0
        part.is_whole = f.taken == 0
        if f.taken == 0:
            limit = max(limit, 1)  # whatever the limits: one batch as a whole
        self.reads.find(c, api_of(self.kinds, FETCH).operation, name, name_size, part.partition, OF_KAFKA, part.offset, limit, found)
        if found.problem == PROBLEM_FORMAT or (found.problem == PROBLEM_NONE and found.slot == NULL):
            self.find_bridged(c, f, part, name, name_size, limit)
        if found.problem == PROBLEM_RANGE and self.is_appended(part):
            found.problem = PROBLEM_NONE  # who has produced it may know it before it is visible, and waits for it
        if found.problem:
            part.code = code_of(found.problem)
        elif found.slot == NULL:
            if not part.is_absent:
                part.code = CODE_UNKNOWN_TOPIC
            elif part.offset:
                part.code = CODE_OUT_OF_RANGE
        elif part.epoch >= 0 and <uint32_t>part.epoch != found.slot.epoch:
            part.code = CODE_OLD_EPOCH if <uint32_t>part.epoch < found.slot.epoch else CODE_NEW_EPOCH
        if part.code:
            found.entry = -1
            found.size = 0
            fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
            fl_refused(self.engine.cell, FETCH, part.code)
            return DONE
        if part.is_absent:
            return DONE
        part.life = fl_load(&found.slot.life)
        if part.is_bridged:
            if found.size:
                f.bridged += found.size
                part.counted = found.size
                part.is_pinned = True
                part.is_first_pin = self.reads.pin(found)
            self.reads.look_ahead(found)
            return DONE
        if found.cold and (found.walks or f.read_count < MOST_READS) and self.reads.read_ahead(c, &x.job.read, found):
            f.read_count += 1
            enter(x, READING)
            return WAIT_JOB
        if found.entry < 0:
            return DONE
        if found.cold:
            found.size = 0  # gone from memory each time, or no memory for the job: it comes with the next request
        elif found.size < found.entry_bytes:
            found.size = found.entry_bytes if f.taken == 0 else 0
        if found.size == 0:
            found.entry = -1
            return DONE
        part.is_pinned = True
        part.is_first_pin = self.reads.pin(found)
        self.reads.look_ahead(found)
        return DONE

    cdef void find_bridged(self, Conn* c, Fetching* f, FetchPart* part, const uint8_t* name, int size, int32_t limit) noexcept nogil:
        """The same for a part of a topic of 0.7, unless it is none that clients may know of."""
        cdef fl_slot* first = self.topics.first_of(name, size)
        if first == NULL or is_todays(first) or not is_bridged(first):
            return
        part.most = min(limit, <int32_t>MOST_CONVERTED)
        if f.bridged >= <uint64_t>MOST_BRIDGED:
            part.most = 0
        self.bridge.find(c, api_of(self.kinds, FETCH).operation, name, size, part.partition, part.offset, part.most, &part.found,
                         &part.end)
        part.is_absent = part.found.problem == PROBLEM_NONE and part.found.slot == NULL
        part.is_bridged = part.found.slot != NULL

    cdef bint is_appended(self, FetchPart* part) noexcept nogil:
        """Whether an offset that is not visible lies between the visible end and the end of the log."""
        cdef fl_end end
        if part.found.slot == NULL or part.offset <= <int64_t>part.found.watermark:
            return False
        fl_end_read(&part.found.slot.log_end, part.found.slot.log_ends, &end)
        return <uint64_t>part.offset <= end.offset

    cdef int await_more(self, Conn* c, Fetching* f, const uint8_t* p, int* work) noexcept nogil:
        """Wait for the slots of all parts; DONE, or WAIT_TURN. A part that has moved by now stands among the moved ones."""
        cdef FetchPart* part = f.ready
        while part != NULL:
            self.unpin(part)
            part = part.next_due
        part = f.absent
        while part != NULL:
            if not self.await_absent(&f.topics[part.topic], part, p):
                self.note_moved(f, part)
            part = part.next_due
        while f.asked < f.part_count:
            if work[0] == 0:
                return WAIT_TURN
            work[0] -= 1
            part = &f.parts[f.asked]
            if part.is_absent:
                f.asked += 1
                continue
            part.wait.moved = &f.moved
            self.slot_waits.join(&part.wait, c, part.found.slot)
            if not self.reads.await_visible(part.found.slot, part.found.visible) or fl_load(&part.found.slot.life) != part.life:
                self.note_moved(f, part)
            f.asked += 1
        return DONE

    cdef bint await_absent(self, const FetchTopic* topic, const FetchPart* part, const uint8_t* p) noexcept nogil:
        """Have this process woken when a partition of a topic of 0.7 is made; False when it, or all of it, has changed by now."""
        cdef const uint8_t* name = p + topic.name_at
        cdef int size = topic.name_size
        cdef fl_slot* s
        if size < 0:
            s = self.topics.by_id(p + topic.id_at)
            if s == NULL:
                return False
            name, size = s.name, <int>s.name_bytes
        return self.reads.await_partition(name, size, part.partition)

    cdef void note_moved(self, Fetching* f, FetchPart* part) noexcept nogil:
        """Have the next round look at a part."""
        if not part.wait.is_moved:
            part.wait.is_moved = True
            part.wait.next_moved = f.moved
            f.moved = &part.wait

    cdef void unpin(self, FetchPart* part) noexcept nogil:
        if part.is_pinned:
            self.reads.unpin(&part.found)
            self.reads.pinned -= part.is_first_pin
            part.is_pinned = False

    # -- the answer ----------------------------------------------------------------------------------------------------

    cdef int put_parts(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, int* work) noexcept nogil:
        """Add the answer, part by part; nothing of it may leave before its end, when its size is known."""
        cdef Writer* w = &self.out
        cdef Fetching* f = x.fetching
        cdef FetchPart* part
        cdef int r
        cdef const FetchTopic* topic
        if f.total == 0:
            begin_answer(w, head.correlation, head.flexible, head.flexible)
            add32(w, 0)
            if head.version >= 7:
                add16(w, CODE_NONE)
                add32(w, 0)
            add_array(w, f.topic_count)
            if not self.put_bytes(c, f):
                return CLOSE
            f.total_at = c.out_end - w.size
        while f.put < f.part_count or f.topic_put < f.topic_count:
            w.size = 0
            w.flexible = head.flexible
            if f.put == f.part_count or f.parts[f.put].topic != f.topic_put:
                # topics without partitions have a place in the answer too
                if f.topic_put >= 0:
                    add_tags(w)
                f.topic_put += 1
                if f.topic_put < f.topic_count:
                    topic = &f.topics[f.topic_put]
                    if topic.name_size < 0:
                        add_bytes(w, p + topic.id_at, ID_BYTES)
                    else:
                        add_string(w, p + topic.name_at, topic.name_size)
                    add_array(w, topic.parts)
                if not self.put_bytes(c, f):
                    return CLOSE
                continue
            if work[0] == 0:
                return WAIT_TURN
            work[0] -= 1
            part = &f.parts[f.put]
            if part.is_bridged and part.found.size:
                r = self.convert(c, x, part)
                if r != DONE:
                    return r
                r = self.put_part(c, head, f, part, x.job.bridge.made.data)
                self.bridge.forget(c, &x.job.bridge)
                answers_give(c, part.counted)
                f.kept -= part.counted
            else:
                r = self.put_part(c, head, f, part, NULL)
            if r != 0:
                return CLOSE
            f.put += 1
        w.size = 0
        w.flexible = head.flexible
        add_tags(w)
        if not self.put_bytes(c, f):
            return CLOSE
        put32(c.out + f.total_at, <uint32_t>(f.total - FRAME_HEAD))
        return DONE

    cdef int convert(self, Conn* c, Exchange* x, FetchPart* part) noexcept nogil:
        """Convert what a part of a topic of 0.7 gets: DONE, with ``found.size`` and ``code``, or what to wait for."""
        cdef Fetching* f = x.fetching
        cdef BridgeJob* job = &x.job.bridge
        cdef int status
        if x.state == BRIDGED_PART:
            status = job.status
            enter(x, PUTTING)
        else:
            status = self.bridge.convert(c, job, &part.found, part.end, part.offset, <uint64_t>part.most, part.is_whole, False)
        if status == BRIDGE_LARGE:  # and nothing was made of what is before it
            if not answer_admitted(c, job.needed):
                return WAIT_ROOM
            # it is read as a whole, and becomes a record
            part.counted += 2 * job.needed
            f.kept += 2 * job.needed
            answers_take(c, 2 * job.needed)
            status = self.bridge.convert(c, job, &part.found, part.end, part.offset, <uint64_t>part.most, part.is_whole, True)
        if status == BRIDGE_WAITS:
            enter(x, BRIDGING)
            return WAIT_JOB
        part.found.size = job.made.size if status == BRIDGED else 0
        if status != BRIDGED:
            part.code = CODE_STORAGE
            if status == BRIDGE_DAMAGED:
                part.code = CODE_CORRUPT_MESSAGE
            elif status == BRIDGE_UNFIT:
                part.code = CODE_FORMAT
            elif status == BRIDGE_NO_CODEC:
                part.code = CODE_COMPRESSION
            elif status == BRIDGE_UNREADABLE:
                self.reads.unreadable.failed(part.found.entry, job.at, job.error)
            if part.code != CODE_STORAGE:
                self.bridge.say(c, part.found.slot, job)
            fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
            fl_refused(self.engine.cell, FETCH, part.code)
        return DONE

    cdef int put_part(self, Conn* c, const Head* head, Fetching* f, FetchPart* part, const uint8_t* made) noexcept nogil:
        """Add one partition with its bytes, those that were ``made`` or the file's; -1 without memory. Where these cannot be
        read it has an error instead."""
        cdef uint8_t* room
        self.write_part(head, f, part)
        if not self.put_bytes(c, f):
            return -1
        if made != NULL and part.found.size:
            room = out_bytes(c, part.found.size)
            if room == NULL:
                return -1
            memcpy(room, made, part.found.size)
            fl_bump(&self.counters[<int>N_BYTES_OUT], part.found.size)
        elif part.found.size and self.reads.put(c, &part.found) != 0:
            out_give_back(c, self.out.size)
            f.total -= self.out.size
            part.code = CODE_STORAGE
            part.found.size = 0
            fl_bump(&self.counters[<int>N_FAILED_FETCH], 1)
            fl_refused(self.engine.cell, FETCH, part.code)
            self.write_part(head, f, part)
            if not self.put_bytes(c, f):
                return -1
        f.total += part.found.size
        self.unpin(part)
        self.out.size = 0
        add_tags(&self.out)
        return 0 if self.put_bytes(c, f) else -1

    cdef bint put_bytes(self, Conn* c, Fetching* f) noexcept nogil:
        """Add what was written to the bytes to be sent; False without memory."""
        cdef uint8_t* room
        if self.out.failed:
            return False
        if self.out.size:
            room = out_bytes(c, self.out.size)
            if room == NULL:
                return False
            memcpy(room, self.out.data, self.out.size)
            f.total += self.out.size
        return True

    cdef void write_part(self, const Head* head, Fetching* f, FetchPart* part) noexcept nogil:
        """What stands before the bytes of one partition."""
        cdef Writer* w = &self.out
        cdef int version = head.version
        cdef int64_t end = -1 if part.code else <int64_t>part.found.watermark
        w.size = 0
        w.flexible = head.flexible
        add32(w, part.partition)
        add16(w, part.code)
        add64(w, end)
        add64(w, end)
        if version >= 5:
            add64(w, -1 if part.code else <int64_t>part.found.log_start)
        add_array(w, 0 if f.is_committed else -1)
        if version >= 11:
            add32(w, -1)
        if w.flexible:
            add_varint(w, <uint32_t>part.found.size + 1)
        else:
            add32(w, <int32_t>part.found.size)

    cdef void forget(self, Conn* c, Exchange* x) noexcept nogil:
        """Give back what a fetch holds that is under way, if there is one."""
        cdef Fetching* f = x.fetching
        cdef int i
        if f == NULL:
            return
        if x.state == BRIDGING or x.state == BRIDGED_PART:
            self.bridge.forget(c, &x.job.bridge)
        for i in range(f.part_count):
            self.unpin(&f.parts[i])
            self.slot_waits.leave(&f.parts[i].wait)
        answers_give(c, f.counted + f.kept)
        x.fetching = NULL
        x.hold_until_ns = 0
        c.incomplete = False
        free(f)

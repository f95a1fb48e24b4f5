"""PRODUCE: the batches of its partitions are checked, gathered into runs and appended, and one answer tells of all of them.

Versions 3 to 11. From 5 on the answer has the log start, from 8 on what is wrong with a record; 7 brings zstd, 9 is the
first flexible one. Acks 0 has no answer at all, what cannot be stored ends the connection then; 1 is appended, all (-1)
flushed. The time that a request grants its answer is not looked at: what is slow here is a disk, and a batch that was
appended is not taken back.

Acks -2 is fastlog's own: batches as another log has them, each stored at its own offset or not at all (``validate_stored``), and
answered when it is appended. Where such a batch does not follow the log, the answer is error 45. So a log is copied exactly, and
what was sent before a connection broke can be sent again.

Where a batch is refused for one of its records, the answer names it (version 8), of a compressed one too. Kafka names every record whose time is, here it is the first one with the largest.

Source: Apache Kafka 4.2 (KafkaApis, ProduceRequest.validateRecords, LogValidator) for what is refused, and with which code.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strlen

from fastlog._batch_header cimport (
    AT_ATTRIBUTES, AT_BASE_OFFSET, AT_LENGTH, AT_MAX_TIMESTAMP, BATCH_HEADER_BYTES, CODEC_BITS, LENGTH_END,
)
from fastlog._bytes cimport be16, be32, be64, put16, put32, put64
from fastlog._records cimport RecordsFound, is_of_record, reason_of
from fastlog.log._layout cimport (
    FL_STATE_OFFLINE, FL_STATE_READ_ONLY, fl_bump, fl_first_offset, fl_load, fl_refused, fl_slot, fl_wall_ms,
)
from fastlog.log._shared_memory cimport N_FAILED_PRODUCE, N_INFLATED, N_INVALID_MESSAGE, N_PRODUCE, N_TOO_LARGE
from fastlog.log.formats._batches cimport (
    BATCH_ATTRIBUTES, BATCH_COUNT, BATCH_CRC, BATCH_LENGTH, BATCH_MAGIC, BATCH_OFFSET, BATCH_PRODUCER, BATCH_RECORDS,
    BATCH_TIMESTAMP, set_max_timestamp, validate_stored, walk_batch,
)
from fastlog.log.formats._table cimport (
    ENTRIES_CUT, ENTRIES_TOO_LARGE, ENTRIES_WHOLE, OF_KAFKA, Entries, format_of,
)
from fastlog.workers._authorizer cimport is_allowed
from fastlog.workers._engine cimport Engine
from fastlog.workers._jobs cimport COUNT_MISTIMED, COUNT_OFF_LOOP, COUNT_TOO_LARGE
from fastlog.workers._partitions cimport RESOLVE_ABSENT, RESOLVED, TO_PRODUCE
from fastlog.workers._writes cimport (
    GATHER_FULL, GATHER_NOT_KEPT, GATHERED, GATHERED_IN_PLACE, NO_RECEIPT, RECEIPT_PENDING, RECEIPT_PLACE, Receipt,
    most_owed, receipt_at, receipt_push,
)
from fastlog.workers.kafka._codes cimport (
    CODE_COMPRESSION, CODE_CORRUPT_MESSAGE, CODE_FORMAT, CODE_INVALID_ACKS, CODE_INVALID_RECORD, CODE_INVALID_TIMESTAMP,
    CODE_INVALID_TOPIC, CODE_NONE, CODE_STORAGE, CODE_TOO_LARGE, CODE_TOPIC_DENIED, CODE_TRANSACTION_DENIED,
    CODE_UNKNOWN_TOPIC, code_of,
)
from fastlog.workers.kafka._exchange cimport (
    CHECKING, CLOSE, DONE, MALFORMED, PRODUCING, QUEUED, WRITE_FIRST, Exchange, Head, Owed, enter,
)
from fastlog.workers.kafka._kinds cimport PRODUCE, Kinds, api_of
from fastlog.workers.kafka._wire cimport (
    FRAME_HEAD, MOST_ITEMS, Reader, add16, add32, add64, add_array, add_string, add_tags, begin_answer, get16, get32,
    get_array, get_bytes, get_string, skip_tags, writer_free,
)
from fastlog.workers.net._connection cimport (
    WAIT_ANSWERS, WAIT_JOB, WAIT_TURN, Conn, answers_give, answers_take, out_bytes, turn_over,
)

cdef enum:
    GATHERED_ALL = -10           # part: the batch is taken, but stands where it was received: write before going on
    ACKS_NONE = 0
    ACKS_APPENDED = 1
    ACKS_ALL = -1
    ACKS_STORED = -2
    CODEC_ZSTD = 4
    ZSTD_SINCE = 7               # version
    LOG_START_SINCE = 5
    RECORD_ERRORS_SINCE = 8
    MOST_AHEAD_MS = 3600000      # message.timestamp.after.max.ms
    SAID_BYTES = 400             # of why a batch is refused, its end included

cdef const char* OF_07 = (
    "a topic of Kafka 0.7, whose messages have no key, header or time: produce with a client of 0.7, or to a topic of its own"
)


@cython.final
cdef class Produces:
    """Handles the produces of one processor's connections; its loop's thread only."""

    def __cinit__(self, Engine engine, Kinds kinds, max_batch):
        self.engine = engine
        self.kinds = kinds
        self.writes = engine.writes
        self.counters = engine.counters
        self.max_batch = max_batch

    cdef int produce(self, Conn* c, Exchange* x, const Head* head, uint8_t* p, size_t size) noexcept nogil:
        """Every part in order; comes back to the part reached when the connection goes on. An ``Outcome``."""
        cdef Reader r
        cdef const uint8_t* data
        cdef int32_t partition
        cdef int64_t bytes
        cdef int result
        if x.state <= QUEUED:  # it has not begun
            result = self.begin(c, x, head, p, size)
            if result != DONE:
                return result
        else:
            enter(x, PRODUCING)
        r.p, r.size, r.at, r.bad, r.flexible = p, size, x.at, False, head.flexible
        while x.parts_left:
            partition = get32(&r)
            bytes = get_bytes(&r, &data)
            skip_tags(&r)
            result = self.part(c, x, head, p, partition, <uint8_t*>data, bytes)
            if result != DONE and result != GATHERED_ALL:
                return result
            if x.current != NULL and x.current.answer.failed:
                return CLOSE
            x.at = r.at
            x.parts_left -= 1
            x.checked = COUNT_OFF_LOOP
            self.next_part(x, &r)
            if result == GATHERED_ALL:
                return WRITE_FIRST
            if x.parts_left and turn_over(c):
                return WAIT_TURN
        if x.current != NULL:
            add32(&x.current.answer, 0)
            add_tags(&x.current.answer)
            if x.current.answer.failed:
                return CLOSE
            put32(x.current.answer.data, <uint32_t>x.current.answer.size - FRAME_HEAD)
            answers_take(c, x.current.answer.room - x.current.counted)
            x.current.counted = x.current.answer.room
            x.current.whole = True
            x.current = NULL
        return DONE

    cdef int begin(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size) noexcept nogil:
        """See that the request is whole, read what stands before the first part, and owe the answer. An ``Outcome``."""
        cdef Reader r
        cdef const uint8_t* text
        cdef Owed* owed
        cdef int most = most_owed(c)
        if <int>(x.gathered.tail - x.gathered.head) >= most or x.owed >= most:
            if x.gathered.runs != NULL:
                return WRITE_FIRST
            if self.tell_receipts(c, x) == CLOSE:
                return CLOSE
            if <int>(x.gathered.tail - x.gathered.head) >= most or x.owed >= most:
                return WAIT_ANSWERS
        r.p, r.size, r.at, r.bad, r.flexible = p, size, head.body, False, head.flexible
        if self.check_form(&r, head) != 0:
            return MALFORMED
        fl_bump(&self.counters[<int>N_PRODUCE], 1)
        r.at = head.body
        x.is_transactional = get_string(&r, &text) >= 0
        x.acks = get16(&r)
        get32(&r)
        x.topics_left = max(get_array(&r), 0)
        x.parts_left = 0
        x.has_topic = False
        x.checked = COUNT_OFF_LOOP
        x.current = NULL
        if x.acks != ACKS_NONE:
            owed = <Owed*>calloc(1, sizeof(Owed))
            if owed == NULL:
                return CLOSE
            owed.version = head.version
            begin_answer(&owed.answer, head.correlation, head.flexible, head.flexible)
            add_array(&owed.answer, x.topics_left)
            owed.counted = sizeof(Owed)
            answers_take(c, owed.counted)
            if x.last != NULL:
                x.last.next = owed
            else:
                x.first = owed
            x.last = x.current = owed
            x.owed += 1
        enter(x, PRODUCING)
        self.next_part(x, &r)
        return DONE

    cdef int check_form(self, Reader* r, const Head* head) noexcept nogil:
        """Read the whole request, so that one that is malformed leaves nothing; -1: it is."""
        cdef const uint8_t* text
        cdef int topics, parts, i, k
        cdef int total = 0
        get_string(r, &text)
        get16(r)
        get32(r)
        topics = get_array(r)
        for i in range(topics):
            if get_string(r, &text) < 0:
                return -1
            parts = get_array(r)
            total += max(parts, 0) + 1
            if r.bad or total > MOST_ITEMS:
                return -1
            for k in range(parts):
                get32(r)
                get_bytes(r, &text)
                skip_tags(r)
            skip_tags(r)
        skip_tags(r)
        return -1 if r.bad or topics < 0 else 0

    cdef void next_part(self, Exchange* x, Reader* r) noexcept nogil:
        """After a part, or before the first: go on to the next, past the ends and names of topics. None: parts_left is 0."""
        cdef const uint8_t* name
        while x.parts_left == 0:
            if x.has_topic:
                skip_tags(r)
                if x.current != NULL:
                    add_tags(&x.current.answer)
                x.has_topic = False
            if x.topics_left == 0:
                break
            x.topics_left -= 1
            x.has_topic = True
            x.name_size = get_string(r, &name)
            x.name_at = <size_t>(name - r.p)
            x.parts_left = max(get_array(r), 0)
            if x.current != NULL:
                add_string(&x.current.answer, name, x.name_size)
                add_array(&x.current.answer, x.parts_left)
        x.at = r.at

    # -- one part ------------------------------------------------------------------------------------------------------

    cdef int part(self, Conn* c, Exchange* x, const Head* head, uint8_t* p, int32_t partition, uint8_t* data,
                  int64_t size) noexcept nogil:
        """Check one batch and add it to the run of its partition; an ``Outcome``, or GATHERED_ALL.

        DONE also when it was refused: its part of the answer says so. ``size`` -1: there is none.
        """
        cdef const uint8_t* name = p + x.name_at
        cdef fl_slot* s = NULL
        cdef Entries found
        cdef Owed* owed = x.current
        cdef Receipt* receipt = NULL
        cdef uint32_t number = <uint32_t>NO_RECEIPT
        cdef int32_t chosen = partition
        cdef int r, codec
        cdef int64_t most
        cdef bint is_stored = x.acks == ACKS_STORED
        if x.acks != ACKS_NONE and x.acks != ACKS_APPENDED and x.acks != ACKS_ALL and not is_stored:
            return self.refuse(c, x, head, p, partition, CODE_INVALID_ACKS, "acks that are neither 0, 1 nor all", x.acks)
        if x.is_transactional:
            return self.refuse(c, x, head, p, partition, CODE_TRANSACTION_DENIED, "transactions are not served yet", 0)
        # before the topic is looked up: only those who may write to it learn whether it is there
        if not is_allowed(self.engine.authorizer, c, api_of(self.kinds, PRODUCE).operation, name, x.name_size):
            return self.refuse(c, x, head, p, partition, CODE_TOPIC_DENIED, "not authorized to write", 0)
        if x.name_size >= 2 and name[0] == c"_" and name[1] == c"_":
            return self.refuse(c, x, head, p, partition, CODE_INVALID_TOPIC, "topics that begin with __ are the broker's", 0)
        r = RESOLVE_ABSENT
        if partition >= 0:  # -1 would be any, to a client of 0.7
            r = self.engine.partitions.resolve(name, x.name_size, &chosen, TO_PRODUCE, OF_KAFKA, &s)
        if r != RESOLVED:
            r = CODE_UNKNOWN_TOPIC if r == RESOLVE_ABSENT else code_of(r)
            if r == CODE_FORMAT:
                return self.refuse(c, x, head, p, partition, r, OF_07, r)
            return self.refuse(c, x, head, p, partition, r, "produce to a topic or partition that cannot be", r)
        if fl_load(&s.state) & (FL_STATE_READ_ONLY | FL_STATE_OFFLINE):
            return self.refuse(c, x, head, p, partition, CODE_STORAGE, "produce to a partition that takes no appends", 0)
        if size <= 0:
            return self.refuse(c, x, head, p, partition, CODE_INVALID_RECORD, "a produce without a batch", 0)
        most = s.max_message_bytes if s.max_message_bytes else self.max_batch
        if is_stored:
            validate_stored(data, <uint64_t>size, most, &found)
        else:
            format_of(s.format).validate(data, <uint64_t>size, most, &found)
        if found.status == ENTRIES_TOO_LARGE:
            fl_bump(&self.counters[<int>N_TOO_LARGE], 1)
            return self.refuse(c, x, head, p, partition, CODE_TOO_LARGE, "a batch larger than message.max.bytes",
                               <int>found.next)
        if found.status != ENTRIES_WHOLE:
            fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
            return self.refuse_batch(c, x, head, p, partition, data, found.bytes, found.status)
        if <int64_t>be32(data + AT_LENGTH) + LENGTH_END != size:
            return self.refuse(c, x, head, p, partition, CODE_INVALID_RECORD, "more than one batch for a partition", 0)
        codec = be16(data + AT_ATTRIBUTES) & CODEC_BITS
        if codec == CODEC_ZSTD and head.version < ZSTD_SINCE:
            return self.refuse(c, x, head, p, partition, CODE_COMPRESSION, "zstd before version 7 of Produce", head.version)
        if codec:
            r = self.deep(c, x, data, <size_t>size, <size_t>(data - p))
            if r != DONE:
                return r
            if x.checked == COUNT_TOO_LARGE:
                fl_bump(&self.counters[<int>N_TOO_LARGE], 1)
                return self.refuse(c, x, head, p, partition, CODE_TOO_LARGE, NULL, 0)
            if x.checked < 0:
                fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
                r = CODE_INVALID_TIMESTAMP if x.checked == COUNT_MISTIMED else CODE_INVALID_RECORD
                return self.refuse(c, x, head, p, partition, r, NULL, 0, x.checked_record)
            if not is_stored:
                found.max_timestamp = x.checked - 1
                found.misstated = found.max_timestamp != <int64_t>be64(data + AT_MAX_TIMESTAMP)
        if not is_stored and not s.append_time and found.max_timestamp > <int64_t>fl_wall_ms() + MOST_AHEAD_MS:
            fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
            return self.refuse(c, x, head, p, partition, CODE_INVALID_TIMESTAMP, "a time of more than an hour from now", 0,
                               x.checked_record if codec else record_of_latest(data, <uint64_t>size))
        if found.misstated:
            set_max_timestamp(data, found.max_timestamp)
        if owed != NULL:
            receipt = receipt_push(c, &x.gathered)
            if receipt == NULL:
                return CLOSE
            number = (x.gathered.tail - 1) & <uint32_t>RECEIPT_PLACE
            receipt.state = RECEIPT_PENDING
            receipt.flushed = x.acks == ACKS_ALL
            receipt.partition = partition
            receipt.base = receipt.next = <uint64_t>-1
            receipt.problem = receipt.code = 0
            receipt.slot = s
            receipt.life = fl_load(&s.life)
        r = self.writes.gather(c, &x.gathered, s, data, &found, <long long>found.count, number,
                               <int64_t>be64(data + AT_BASE_OFFSET) if is_stored else -1)
        if r != GATHERED and r != GATHERED_IN_PLACE:
            if receipt != NULL:
                x.gathered.tail -= 1  # it comes again
            if r == GATHER_FULL:
                return WRITE_FIRST
            # GATHER_NOT_KEPT: what is left of received bytes is moved to the connection's own buffer
            return <int>WAIT_TURN if r == GATHER_NOT_KEPT else <int>CLOSE
        if owed != NULL:
            add32(&owed.answer, partition)
            receipt_at(&x.gathered, number).request = <int32_t>owed.answer.size
            add_result(owed, CODE_NONE, NULL)
            owed.pending += 1
        return GATHERED_ALL if r == GATHERED_IN_PLACE else DONE

    cdef int refuse(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, int32_t partition, int code,
                    const char* reason, int detail, int64_t record=-1) noexcept nogil:
        """Count a refused part and put why into the answer; without one, say so in the log and close. An ``Outcome``.

        ``reason`` NULL: it is what was said of the batch that was checked last. ``record``: the number within its batch
        of the record that is to blame, -1 for the batch as a whole.
        """
        cdef char said[SAID_BYTES]
        cdef const char* text = reason
        fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
        if reason == NULL:
            said[0] = 0
            self.engine.reports.set_refused(c, p + x.name_at, x.name_size, partition, said, SAID_BYTES)
            text = said
        if x.current != NULL:
            fl_refused(self.engine.cell, PRODUCE, code)
            add32(&x.current.answer, partition)
            add_result(x.current, code, text, record)
            return DONE
        if reason != NULL:
            self.engine.reports.refused(c, reason, detail, p + x.name_at, x.name_size, partition)
        return CLOSE

    cdef int refuse_batch(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, int32_t partition,
                          const uint8_t* data, uint64_t whole_bytes, int status) noexcept nogil:
        """The same for what the format said of a batch. Its records are walked once more: only who is refused pays for it."""
        cdef RecordsFound found
        cdef int64_t record = -1
        cdef const char* reason = reason_of_batch(status)
        if whole_bytes > 0:  # what is wrong stands behind the first batch, and there may be no second one
            reason = "more than one batch for a partition"
        elif status == BATCH_RECORDS:
            walk_batch(data, size_of_first(data), &found)
            if is_of_record(&found, size_of_first(data) - BATCH_HEADER_BYTES):
                record = found.count
            reason = reason_of(found.status)
        elif status == BATCH_TIMESTAMP and be16(data + AT_ATTRIBUTES) == 0:
            record = record_of_latest(data, size_of_first(data))
            reason = "a record has a time that is none"
        return self.refuse(c, x, head, p, partition, code_of_batch(status), reason, status, record)

    cdef int deep(self, Conn* c, Exchange* x, const uint8_t* data, size_t size, size_t at) noexcept nogil:
        """Look at the records of a compressed batch, here when they decompress to little, else by a thread.

        DONE with ``checked`` set, or what to wait for; the batch stands ``at`` bytes behind the api key.
        """
        if x.checked == COUNT_OFF_LOOP:
            x.checked = self.engine.jobs.check_here(c, data, size, &x.checked_record)
        if x.checked != COUNT_OFF_LOOP:
            return DONE
        fl_bump(&self.counters[<int>N_INFLATED], 1)
        enter(x, CHECKING)
        self.engine.jobs.count(c, &x.job.check, FRAME_HEAD + at, size, True)
        return WAIT_JOB

    # -- answers -------------------------------------------------------------------------------------------------------

    cdef int tell_receipts(self, Conn* c, Exchange* x) noexcept nogil:
        """Send the answers that are whole, in the order of requests; CLOSE without memory."""
        cdef Owed* owed = x.first
        cdef Receipt* receipt
        cdef uint8_t* room
        while owed != NULL:
            while owed.pending:
                receipt = self.writes.next_ready(c, &x.gathered)
                if receipt == NULL:
                    return DONE
                self.fill(owed, receipt)
                x.gathered.head += 1
                owed.pending -= 1
            if not owed.whole:
                return DONE
            if not owed.silent:
                room = out_bytes(c, owed.answer.size)
                if room == NULL:
                    return CLOSE
                memcpy(room, owed.answer.data, owed.answer.size)
            x.first = owed.next
            if x.first == NULL:
                x.last = NULL
            x.owed -= 1
            answers_give(c, owed.counted)
            writer_free(&owed.answer)
            free(owed)
            owed = x.first
        return DONE

    cdef void fill(self, Owed* owed, const Receipt* receipt) noexcept nogil:
        """Put what became of a part into the answer."""
        cdef uint8_t* at = owed.answer.data + receipt.request
        cdef int code = receipt.code if receipt.code else code_of(receipt.problem)
        if code:
            fl_refused(self.engine.cell, PRODUCE, code)
        put16(at, <uint16_t>code)
        put64(at + 2, receipt.base if code == 0 else <uint64_t>-1)
        put64(at + 10, <uint64_t>receipt.time if code == 0 else <uint64_t>-1)
        if owed.version >= LOG_START_SINCE:
            put64(at + 18, fl_first_offset(receipt.slot) if code == 0 else <uint64_t>-1)

    cdef void give_up(self, Exchange* x) noexcept nogil:
        """Leave a produce in the middle because the connection closes; its answer must not be waited for."""
        if x.current != NULL:
            x.current.whole = x.current.silent = True
            x.current = NULL

    cdef void discard(self, Conn* c, Exchange* x) noexcept nogil:
        """Nobody waits for any answer any more."""
        cdef Owed* owed = x.first
        cdef Owed* after
        while owed != NULL:
            after = owed.next
            answers_give(c, owed.counted)
            writer_free(&owed.answer)
            free(owed)
            owed = after
        x.first = x.last = x.current = NULL
        x.owed = 0


cdef int code_of_batch(int status) noexcept nogil:
    """The error code for what is wrong with a batch."""
    if status == BATCH_CRC or status == BATCH_LENGTH or status == ENTRIES_CUT:
        return CODE_CORRUPT_MESSAGE
    return CODE_INVALID_TIMESTAMP if status == BATCH_TIMESTAMP else CODE_INVALID_RECORD


cdef const char* reason_of_batch(int status) noexcept nogil:
    """What is wrong with a batch, for people."""
    if status == BATCH_CRC:
        return "the checksum is not that of the batch: it was damaged on its way, or by its producer"
    if status == BATCH_LENGTH or status == ENTRIES_CUT:
        return "the length that the batch tells is not that of its bytes"
    if status == BATCH_MAGIC:
        return "the batch is of an older format than magic 2: produce with version 3 or later"
    if status == BATCH_ATTRIBUTES:
        return "a codec that nobody has, or a control or transactional batch, which producers cannot write here"
    if status == BATCH_COUNT:
        return "the batch tells of no record, or of another number of records than of offsets"
    if status == BATCH_OFFSET:
        return "a batch as another log has it, and without an offset"
    if status == BATCH_PRODUCER:
        return "producer id, epoch and sequence number do not go together"
    return "a batch with the time of its append, which is the broker's to give, or with a largest time that is none"


cdef inline uint64_t size_of_first(const uint8_t* data) noexcept nogil:
    return LENGTH_END + <uint64_t>be32(data + AT_LENGTH)


cdef int64_t record_of_latest(const uint8_t* data, uint64_t size) noexcept nogil:
    """The first record with the largest time, of a batch that is not compressed."""
    cdef RecordsFound found
    walk_batch(data, size, &found)
    return found.max_timestamp_delta


cdef void add_result(Owed* owed, int code, const char* reason, int64_t record=-1) noexcept nogil:
    """What became of a part, behind its number; its offset is put there once it is known. ``record``: see ``refuse``."""
    add16(&owed.answer, code)
    add64(&owed.answer, -1)
    add64(&owed.answer, -1)
    if owed.version >= LOG_START_SINCE:
        add64(&owed.answer, -1)
    if owed.version >= RECORD_ERRORS_SINCE:
        if record >= 0:
            add_array(&owed.answer, 1)
            add32(&owed.answer, <int32_t>record)
            add_text(owed, reason)
            add_tags(&owed.answer)
        else:
            add_array(&owed.answer, 0)
        add_text(owed, reason)
    add_tags(&owed.answer)


cdef void add_text(Owed* owed, const char* text) noexcept nogil:
    """A string of the answer; NULL for null."""
    add_string(&owed.answer, text, <int>strlen(text) if text != NULL else -1)

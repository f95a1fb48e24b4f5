"""Produce requests: their message sets, checked and gathered into one write per partition.

Gathering never changes results: a request that is refused ends the runs before it, what precedes it is written and
stays, the refused one leaves nothing. The first message of a partition and large compressed sets are the work of threads.

A topic of record batches gets what its readers can read (``_to_records``).

Source: Kafka 0.7.2 for requests 0 and 3, down to which of them close the connection; 1000 is fastlog's own.
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from fastlog.log._layout cimport FL_STATE_OFFLINE, FL_STATE_READ_ONLY, fl_bump, fl_load, fl_slot
from fastlog.log._shared_memory cimport (
    N_FAILED_PRODUCE, N_INFLATED, N_INVALID_MESSAGE, N_INVALID_REQUEST, N_OWN, N_PRODUCE, N_TOO_LARGE,
)
from fastlog.log.formats._table cimport (
    ENTRIES_CUT, ENTRIES_TOO_LARGE, ENTRIES_WHOLE, FORMAT_OF_NEW, OF_KAFKA_07, Entries, format_of,
)
from fastlog.workers._authorizer cimport is_allowed
from fastlog.workers._engine cimport Engine
from fastlog.workers._jobs cimport COUNT_OFF_LOOP, CREATE_AGAIN, CREATE_REFUSED, CREATE_UNASKED
from fastlog.workers._partitions cimport PROBLEM_FORMAT, RESOLVE_ABSENT, RESOLVED, TO_PRODUCE
from fastlog.workers._writes cimport (
    GATHER_FULL, GATHER_NO_MEMORY, GATHER_NOT_KEPT, GATHERED, GATHERED_IN_PLACE, NO_RECEIPT, RECEIPT_PENDING, RECEIPT_PLACE,
    RECEIPT_READY, Receipt, most_owed, receipt_at, receipt_push,
)
from fastlog.workers.kafka07._codes cimport (
    CODE_DENIED, CODE_FEATURE, CODE_INVALID_MESSAGE, CODE_MALFORMED, CODE_OFFLINE, CODE_STORAGE, CODE_TOO_LARGE, CODE_VERSION,
    CODE_WRONG_PARTITION, code_of,
)
from fastlog.workers.kafka07._exchange cimport (
    BETWEEN, CLOSE, COUNTING, CREATING, DONE, FRAME_HEAD, PRODUCING, QUEUED, WRITE_FIRST, Exchange, enter, free_converted,
)
from fastlog.workers.kafka07._kinds cimport ACKED_PRODUCE, CREATE_TOPIC, MULTIPRODUCE, PRODUCE, Kinds, operation_of
from fastlog.workers.kafka07._to_records cimport NOT_CONVERTED, TAKEN_IN_PLACE, TOO_LARGE_FOR_BATCH, ToRecords
from fastlog._bytes cimport be16, be32, be64, put16, put32, put64
from fastlog.workers.net._connection cimport WAIT_ANSWERS, WAIT_CREATE, WAIT_JOB, WAIT_TURN, Conn, out_bytes, turn_over

cdef enum:
    PRODUCE_ACK_FIELDS = 23      # id to sequence, before the topic
    PART_FIELDS = 10             # of a part besides its name and its set: sizes of both, partition
    GATHERED_ALL = -3            # part: the set is taken, but stands where it was received: write before going on


@cython.final
cdef class Produces:
    """Handles the produce requests of one processor's connections; its loop's thread only."""

    def __cinit__(self, Engine engine, Kinds kinds, max_message, max_batch):
        self.engine = engine
        self.authorizer = engine.authorizer
        self.kinds = kinds
        self.partitions = engine.partitions
        self.writes = engine.writes
        self.counters = engine.counters
        self.max_message = max_message
        self.to_records = ToRecords(engine, max_batch)

    cdef int produce(self, Conn* c, Exchange* x, const uint8_t* p, size_t size, int kind) noexcept nogil:
        """Requests 0, 3 and 1000: every part in order; comes back to the part reached when the connection goes on."""
        cdef Receipt* receipt = NULL
        cdef uint32_t number = <uint32_t>NO_RECEIPT
        cdef int name_size, r
        cdef int32_t set_size
        cdef const uint8_t* at
        cdef size_t left
        if x.state <= QUEUED:  # it has not begun
            r = self.begin(c, x, p, size, kind)
            if r != DONE or x.parts_left == 0:
                return r
        else:
            enter(x, PRODUCING)
        if kind == ACKED_PRODUCE:
            number = (x.gathered.tail - 1) & <uint32_t>RECEIPT_PLACE
            receipt = receipt_at(&x.gathered, number)
        while x.parts_left > 0:
            at = p + x.part_offset
            left = size - x.part_offset
            name_size = <int16_t>be16(at) if left >= 2 else -1
            set_size = -1
            if name_size >= 0 and left >= <size_t>name_size + PART_FIELDS:
                set_size = <int32_t>be32(at + 6 + name_size)
            if set_size < 0 or left - PART_FIELDS - name_size < <size_t>set_size \
                    or (receipt != NULL and left - PART_FIELDS - name_size != <size_t>set_size):
                fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
                if receipt == NULL:
                    self.engine.reports.invalid_request(c, "malformed produce", kind)
                    return CLOSE
                fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
                receipt.code = CODE_MALFORMED
                receipt.state = RECEIPT_READY
                return DONE
            r = self.part(c, x, at + 2, name_size, at + PART_FIELDS + name_size, <size_t>set_size, receipt, number)
            if r != DONE and r != GATHERED_ALL:
                return r
            x.parts_left -= 1
            x.part_offset += PART_FIELDS + <size_t>name_size + <size_t>set_size
            if x.parts_left > 0:
                self.begin_part(x)
            if r == GATHERED_ALL:
                return WRITE_FIRST
            if x.parts_left > 0 and turn_over(c):
                return WAIT_TURN
        if x.converted != NULL:
            free_converted(x)
        return DONE

    cdef int begin(self, Conn* c, Exchange* x, const uint8_t* p, size_t size, int kind) noexcept nogil:
        """Read what stands before the first part. An ``Outcome``; without parts the request is done."""
        cdef int r
        x.owes = kind == ACKED_PRODUCE
        if kind == PRODUCE:
            x.parts_left = 1
            x.part_offset = 2
        elif kind == MULTIPRODUCE:
            x.parts_left = <int16_t>be16(p + 2) if size >= 4 else -1
            x.part_offset = 4
            if x.parts_left < 0:
                self.engine.reports.invalid_request(c, "malformed produce", kind)
                return CLOSE
        else:
            r = self.begin_acked(c, x, p, size)
            if r != DONE or x.parts_left == 0:
                return r
        fl_bump(&self.counters[<int>N_PRODUCE], 1)
        enter(x, PRODUCING)
        self.begin_part(x)
        return DONE

    cdef void begin_part(self, Exchange* x) noexcept nogil:
        x.count = COUNT_OFF_LOOP
        x.chosen = -1
        x.made = CREATE_UNASKED
        if x.converted != NULL:
            free_converted(x)

    cdef void give_up(self, Exchange* x) noexcept nogil:
        """Leave a produce in the middle because the connection closes; an answer it owes must not be waited for."""
        cdef Receipt* receipt
        if x.state > QUEUED and x.owes and x.parts_left:
            receipt = receipt_at(&x.gathered, x.gathered.tail - 1)
            if receipt.state == RECEIPT_PENDING:
                receipt.code = CODE_STORAGE
                receipt.state = RECEIPT_READY

    cdef int begin_acked(self, Conn* c, Exchange* x, const uint8_t* p, size_t size) noexcept nogil:
        """Read the head of an acknowledged produce and owe its answer."""
        cdef Receipt* receipt
        cdef int acks, code = 0
        cdef uint32_t most = <uint32_t>most_owed(c)
        x.parts_left = 0
        if size < 8:
            self.engine.reports.invalid_request(c, "a request too short for its correlation id", ACKED_PRODUCE)
            return CLOSE
        if x.gathered.tail - x.gathered.head >= most:
            if x.gathered.runs != NULL:
                return WRITE_FIRST
            if self.tell_receipts(c, x) == CLOSE:
                return CLOSE
            if x.gathered.tail - x.gathered.head >= most:
                return WAIT_ANSWERS
        receipt = receipt_push(c, &x.gathered)
        if receipt == NULL:
            return CLOSE
        fl_bump(&self.counters[<int>N_OWN], 1)
        acks = <int>p[8] if size > 8 else 0
        if be16(p + 2) != OWN_VERSION:
            code = CODE_VERSION
        elif size < PRODUCE_ACK_FIELDS:
            code = CODE_MALFORMED
        elif acks != 1 and acks != 2:
            code = CODE_MALFORMED
        elif be64(p + 9) != <uint64_t>-1 or be16(p + 17) != <uint16_t>0xFFFF or be32(p + 19) != <uint32_t>0xFFFFFFFF:
            code = CODE_FEATURE
        receipt.request = <int32_t>be32(p + 4)
        receipt.flushed = acks == 2
        receipt.partition = -1
        receipt.base = receipt.next = <uint64_t>-1
        receipt.problem = 0
        receipt.code = code
        receipt.slot = NULL
        receipt.state = RECEIPT_READY if code else RECEIPT_PENDING
        if code == 0:
            x.parts_left = 1
            x.part_offset = PRODUCE_ACK_FIELDS
        else:
            fl_bump(&self.counters[<int>N_INVALID_REQUEST], 1)
            fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
        return DONE

    cdef int refuse(self, Conn* c, Receipt* receipt, int code, const char* reason, int detail, const uint8_t* name,
                    int name_size, int32_t partition) noexcept nogil:
        """Count and report a refused part. DONE where its answer tells the code; without one the connection closes.

        ``reason`` NULL: it has been reported.
        """
        fl_bump(&self.counters[<int>N_FAILED_PRODUCE], 1)
        if receipt != NULL:
            receipt.code = code
            receipt.state = RECEIPT_READY
            return DONE
        if reason != NULL:
            self.engine.reports.refused(c, reason, detail, name, name_size, partition)
        return CLOSE

    cdef int part(self, Conn* c, Exchange* x, const uint8_t* name, int name_size, const uint8_t* data, size_t size,
                  Receipt* receipt, uint32_t number) noexcept nogil:
        """Check one message set and add it to the run of its partition; an ``Outcome``, or GATHERED_ALL.

        DONE also when a set was dropped and the connection stays open (a too large message, 0.7.2). ``receipt`` is the
        one of this ``number`` that is owed, or NULL.
        """
        cdef fl_slot* s
        cdef Entries found
        cdef int32_t partition = <int32_t>be32(name + name_size)
        cdef long long count
        cdef int r
        cdef bint converts
        if partition == -1:
            partition = x.chosen
        # before the topic is looked up: only those who may write to it learn whether it is there
        if self.authorizer.has_rule and not is_allowed(self.authorizer, c, operation_of(self.kinds, PRODUCE), name, name_size):
            return self.refuse(c, receipt, CODE_DENIED, "not authorized to write", CODE_DENIED, name, name_size, partition)
        r = self.partitions.resolve(name, name_size, &partition, TO_PRODUCE, OF_KAFKA_07, &s)
        converts = r == PROBLEM_FORMAT
        if converts:
            r = self.to_records.resolve(name, name_size, &partition, &s)
        if r != RESOLVED and r != RESOLVE_ABSENT:
            r = code_of(r)
            return self.refuse(c, receipt, r, "produce to a topic or partition that cannot be", r, name, name_size, partition)
        if receipt != NULL:
            receipt.partition = partition
        if s != NULL and fl_load(&s.state) & (FL_STATE_READ_ONLY | FL_STATE_OFFLINE):
            return self.refuse(c, receipt, CODE_OFFLINE, "produce to a partition that takes no appends", 0, name, name_size,
                               partition)
        format_of(FORMAT_OF_NEW if s == NULL or converts else s.format).validate(data, size, self.max_message, &found)
        if found.status == ENTRIES_TOO_LARGE:
            fl_bump(&self.counters[<int>N_TOO_LARGE], 1)
            self.refuse(c, receipt, CODE_TOO_LARGE, "a message larger than max.message.size was dropped", <int>found.next,
                        name, name_size, partition)
            return DONE
        if found.status == ENTRIES_CUT:
            # 0.7 drops a cut last message silently; whoever waits for an answer learns of it
            if receipt != NULL or (found.bytes == 0 and size >= 4):
                found.status = -1
            else:
                found.status = ENTRIES_WHOLE
        if found.status != ENTRIES_WHOLE:
            fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
            return self.refuse(c, receipt, CODE_INVALID_MESSAGE, "an invalid message", found.status, name, name_size,
                               partition)
        count = <long long>found.count
        if found.compressed:
            r = self.deep(c, x, data, <size_t>found.bytes, x.part_offset + PART_FIELDS + name_size)
            if r != DONE:
                return r
            count = x.count
            if count < 0:
                fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
                self.engine.reports.set_refused(c, name, name_size, partition)
                return self.refuse(c, receipt, CODE_INVALID_MESSAGE, NULL, 0, name, name_size, partition)
        if s == NULL:
            # the first message of a partition: only one that is valid makes it
            x.chosen = partition
            r = self.create(c, x, name, partition, name_size)
            if r > 0:
                return r
            return self.refuse(c, receipt, -r, "the partition cannot be created", -r, name, name_size, partition)
        if receipt != NULL:
            receipt.slot = s
            receipt.life = fl_load(&s.life)
        if found.bytes == 0:
            if receipt != NULL and self.writes.gather_nothing(&x.gathered, s, receipt) != GATHERED:
                return WRITE_FIRST
            return DONE
        if converts:
            return self.convert(c, x, s, name, name_size, partition, data, &found, receipt, number)
        r = self.writes.gather(c, &x.gathered, s, data, &found, count, number)
        if r == GATHERED:
            return DONE
        if r == GATHERED_IN_PLACE:
            return GATHERED_ALL
        if r == GATHER_FULL:
            return WRITE_FIRST
        if r == GATHER_NOT_KEPT:
            return WAIT_TURN  # what is left of received bytes is moved to the connection's own buffer
        return CLOSE

    cdef int convert(self, Conn* c, Exchange* x, fl_slot* s, const uint8_t* name, int name_size, int32_t partition,
                     const uint8_t* data, const Entries* found, Receipt* receipt, uint32_t number) noexcept nogil:
        """Add a checked set to the run of a partition of record batches; as ``part``."""
        cdef int r = self.to_records.gather(c, x, s, data, found, x.part_offset + PART_FIELDS + name_size, number)
        if r == TAKEN_IN_PLACE:
            return GATHERED_ALL
        if r == NOT_CONVERTED:
            fl_bump(&self.counters[<int>N_INVALID_MESSAGE], 1)
            self.engine.reports.set_refused(c, name, name_size, partition)
            return self.refuse(c, receipt, CODE_INVALID_MESSAGE, NULL, 0, name, name_size, partition)
        if r == TOO_LARGE_FOR_BATCH:
            # as one above max.message.size: dropped, and the connection goes on
            fl_bump(&self.counters[<int>N_TOO_LARGE], 1)
            self.refuse(c, receipt, CODE_TOO_LARGE, "a message larger than max.message.bytes of its topic was dropped",
                        <int>found.bytes, name, name_size, partition)
            return DONE
        return r

    cdef int create(self, Conn* c, Exchange* x, const uint8_t* name, int32_t partition, int name_size) noexcept nogil:
        """Have a thread make a partition that is not there: what to wait for, or minus the error code why it cannot be."""
        cdef long long made = x.made
        x.made = CREATE_UNASKED
        if made == CREATE_AGAIN:
            enter(x, CREATING)
            return WAIT_CREATE
        if made == CREATE_REFUSED:
            return -<int>CODE_WRONG_PARTITION
        if made < 0 and made != CREATE_UNASKED:
            return -<int>CODE_STORAGE
        # one that was made and is not there has been deleted since, and is made once more;
        # the other partitions of a topic come with it: they are made when the first message does
        if self.authorizer.has_rule and not self.partitions.exists(name, name_size) \
                and not is_allowed(self.authorizer, c, operation_of(self.kinds, CREATE_TOPIC), name, name_size):
            return -<int>CODE_DENIED
        enter(x, CREATING)
        self.engine.jobs.create(c, &x.job.create, FRAME_HEAD + x.part_offset + 2, name_size, partition)
        return WAIT_JOB

    cdef int deep(self, Conn* c, Exchange* x, const uint8_t* data, size_t size, size_t at) noexcept nogil:
        """Count the messages inside compressed sets, here when they decompress to little, else by a thread.

        DONE with ``count`` set, or what to wait for; the sets stand ``at`` bytes behind the request id.
        """
        if x.count == COUNT_OFF_LOOP:
            x.count = self.engine.jobs.count_here(c, data, size)
        if x.count != COUNT_OFF_LOOP:
            return DONE
        fl_bump(&self.counters[<int>N_INFLATED], 1)
        enter(x, COUNTING)
        self.engine.jobs.count(c, &x.job.count, FRAME_HEAD + at, size, False)
        return WAIT_JOB

    cdef int tell_receipts(self, Conn* c, Exchange* x) noexcept nogil:
        """Answer the acknowledged produces that are ready, in the order of requests; CLOSE without memory."""
        cdef Receipt* receipt = self.writes.next_ready(c, &x.gathered)
        cdef uint8_t* head
        cdef int code
        while receipt != NULL:
            head = out_bytes(c, 30)
            if head == NULL:
                return CLOSE
            code = receipt.code if receipt.code else code_of(receipt.problem)
            put32(head, 26)
            put32(head + 4, <uint32_t>receipt.request)
            put16(head + 8, <uint16_t>code)
            put32(head + 10, <uint32_t>receipt.partition)
            put64(head + 14, receipt.base if code == 0 else <uint64_t>-1)
            put64(head + 22, receipt.next if code == 0 else <uint64_t>-1)
            x.gathered.head += 1
            receipt = self.writes.next_ready(c, &x.gathered)
        return DONE

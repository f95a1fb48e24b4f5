"""METADATA: who the cluster is, this broker alone, and which topics and partitions it has.

An answer is written anew each time: what a partition costs, some 50 ns, is less than to know that nothing has changed.
Topics of 0.7 are shown as far as their names are Kafka's, with all the partitions that they may have, as clients take them to be
numbered without gaps. Topics, and partitions, that are being made are hidden: the coordinator makes them, also those that a client wants made that asks for them, and
says when it is written down that they are there.
"""

cimport cython
from libc.limits cimport INT_MIN
from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastlog.log._layout cimport FL_STATE_OFFLINE, fl_load, fl_refused, fl_slot
from fastlog.workers._authorizer cimport is_allowed
from fastlog.workers._engine cimport Engine
from fastlog.workers._forward cimport Forward
from fastlog.workers._jobs cimport ANSWER_MADE
from fastlog.workers._partitions cimport TopicCount
from fastlog.workers.authorization import Operation
from fastlog.workers.kafka._codes cimport (
    CODE_INVALID_TOPIC, CODE_LEADER_NOT_AVAILABLE, CODE_NONE, CODE_TOPIC_DENIED, CODE_UNKNOWN_TOPIC,
    CODE_UNKNOWN_TOPIC_ID, CODE_VERSION,
)
from fastlog.workers.kafka._exchange cimport CLOSE, CREATED, CREATING, DONE, MALFORMED, Exchange, Head, enter, free_made
from fastlog.workers.kafka._kinds cimport METADATA, Kinds, api_of
from fastlog.workers.kafka._topics cimport ID_BYTES, NO_ID, Topics, is_bridged, is_settled, is_todays, is_zero
from fastlog.workers.kafka._wire cimport (
    FRAME_HEAD, Reader, Writer, add8, add16, add32, add_array, add_bytes, add_string, add_tags, begin_answer, get8, get_array,
    get_string, skip_tags, spoil, take, writer_free,
)
from fastlog._bytes cimport be16, put32
from fastlog.workers.net._connection cimport (
    TURN_STEPS, WAIT_JOB, WAIT_ROOM, Conn, answer_admitted, out_bytes,
)

cdef enum:
    LONGEST_TODAY = 249          # bytes of a topic's name, in Kafka
    MOST_PARTITIONS = 131072     # in one answer: a topic is described as often as its name is given
    PARTITION_BYTES = 48         # in an answer, with a share of the topic's name
    KEPT_BYTES = 256 << 10       # of an answer's memory that are kept for the next one

# One topic that a request names.
cdef struct Named:
    const uint8_t* name
    int size                     # -1: it has none
    const uint8_t* topic_id
    bint is_by_name

cdef uint8_t[5] NO_VARINT
cdef int READ = Operation.READ, WRITE = Operation.WRITE, CREATE = Operation.CREATE
cdef int DELETE = Operation.DELETE, DESCRIBE = Operation.DESCRIBE
cdef int ALTER_CONFIGS = Operation.ALTER_CONFIGS
cdef int OF_TOPICS = 1 << READ | 1 << WRITE | 1 << CREATE | 1 << DELETE | 1 << <int>Operation.ALTER | 1 << DESCRIBE \
    | 1 << <int>Operation.DESCRIBE_CONFIGS | 1 << ALTER_CONFIGS
cdef int OF_CLUSTER = 1 << CREATE | 1 << <int>Operation.ALTER | 1 << DESCRIBE | 1 << <int>Operation.DESCRIBE_CONFIGS \
    | 1 << ALTER_CONFIGS | 1 << <int>Operation.IDEMPOTENT_WRITE  # as DESCRIBE_CLUSTER has them


@cython.final
cdef class Metadata:
    """Answers METADATA of one processor; its loop's thread only. ``control`` is the Python side, see ``Control``."""

    def __cinit__(self, Engine engine, Kinds kinds, Topics topics, Forward forward, control):
        cdef bytes host
        cdef int i
        self.engine = engine
        self.kinds = kinds
        self.topics = topics
        self.forward = forward
        self.kept = [host for host, _port in control.advertised]
        for i, host in enumerate(self.kept):
            self.addresses[i].host = host
            self.addresses[i].size = <int>len(host)
            self.addresses[i].port = control.advertised[i][1]
        host = control.cluster_id
        self.kept.append(host)
        self.cluster_id = host
        self.cluster_id_size = <int>len(host)
        self.broker_id = control.broker_id
        self.may_create = control.may_create

    def __dealloc__(self):
        writer_free(&self.out)

    cdef int answer(self, Conn* c, Exchange* x, const Head* head, const uint8_t* p, size_t size) noexcept nogil:
        """Answer, after the topics it names have been made where that is wanted; ``p`` stands at the api key."""
        cdef Asked asked
        cdef uint8_t* room
        cdef int result = CLOSE
        if self.read(head, p, size, &asked) != 0:
            return MALFORMED
        if x.state != CREATED:
            if not answer_admitted(c, size + PARTITION_BYTES * self.expected_partitions(&asked)):
                return WAIT_ROOM
            if asked.creates and self.may_create and asked.count > 0 and not self.topics.are_in_part() \
                    and self.wants_creation(c, &asked, p, size):
                if self.forward.ask(c, &x.job.forward, FRAME_HEAD, size) != 0:
                    return MALFORMED
                enter(x, CREATING)
                return WAIT_JOB
        elif x.made_state != ANSWER_MADE:
            return CLOSE
        self.write(c, head, &asked, p, size, x.made, x.made_size)
        free_made(x)
        if self.partitions > <uint64_t>MOST_PARTITIONS:
            self.engine.reports.invalid_request(c, "more partitions are asked for than one answer describes", head.key)
        elif not self.out.failed:
            room = out_bytes(c, self.out.size)
            if room != NULL:
                memcpy(room, self.out.data, self.out.size)
                result = DONE
        if self.out.room > KEPT_BYTES:
            writer_free(&self.out)
        c.turn_steps = TURN_STEPS  # the clock is looked at before the next request
        return result

    cdef uint64_t expected_partitions(self, const Asked* asked) noexcept nogil:
        """About how many partitions an answer describes, at most."""
        if asked.count < 0:
            return fl_load(&self.engine.arena.header.slot_count)
        return min(<uint64_t>asked.count * max(self.engine.partitions.largest, <uint64_t>1), <uint64_t>MOST_PARTITIONS)

    # -- the request ---------------------------------------------------------------------------------------------------

    cdef int read(self, const Head* head, const uint8_t* p, size_t size, Asked* out) noexcept nogil:
        """Read the request to its end; -1: it is malformed."""
        cdef Reader r
        cdef Named named
        cdef int i
        r.p, r.size, r.at, r.bad = p, size, head.body, False
        r.flexible = head.version >= api_of(self.kinds, METADATA).flexible
        out.version = head.version
        out.creates = True
        out.topic_operations = out.cluster_operations = False
        out.count = get_array(&r)
        out.topics = r.at
        if out.count < 0 and head.version == 0:
            return -1
        if out.count == 0 and head.version == 0:
            out.count = -1
        for i in range(out.count):
            read_named(&r, head.version, &named)
        if head.version >= 4:
            out.creates = get8(&r) != 0
        if 8 <= head.version <= 10:
            out.cluster_operations = get8(&r) != 0
        if head.version >= 8:
            out.topic_operations = get8(&r) != 0
        skip_tags(&r)
        return -1 if r.bad else 0

    cdef bint wants_creation(self, Conn* c, const Asked* asked, const uint8_t* p, size_t size) noexcept nogil:
        """Whether a topic that is named is not there, or not yet, and may be made."""
        cdef Reader r
        cdef Named named
        cdef fl_slot* first
        cdef int i
        r.p, r.size, r.at, r.bad = p, size, asked.topics, False
        r.flexible = asked.version >= api_of(self.kinds, METADATA).flexible
        for i in range(asked.count):
            read_named(&r, asked.version, &named)
            if named.size <= 0 or not named.is_by_name:
                continue
            first = self.topics.first_of(named.name, named.size)
            if (first == NULL or not is_settled(first)) \
                    and is_allowed(self.engine.authorizer, c, DESCRIBE, named.name, named.size):
                return True
        return False

    # -- the answer ----------------------------------------------------------------------------------------------------

    cdef void write(self, Conn* c, const Head* head, const Asked* asked, const uint8_t* p, size_t size, const uint8_t* made,
                    size_t made_size) noexcept nogil:
        """Write the whole answer; ``made`` has a code of 2 bytes for each topic that is named, or is empty."""
        cdef Writer* w = &self.out
        cdef const Address* address = &self.addresses[c.listener]
        cdef Reader r
        cdef int i, version = head.version
        cdef bint flexible = version >= api_of(self.kinds, METADATA).flexible
        self.partitions = 0
        begin_answer(w, head.correlation, flexible, flexible)
        r.p, r.size, r.at, r.bad, r.flexible = p, size, asked.topics, False, flexible
        if version >= 3:
            add32(w, 0)
        add_array(w, 1)
        add32(w, self.broker_id)
        add_string(w, address.host, address.size)
        add32(w, address.port)
        if version >= 1:
            add_string(w, NULL, -1)
        add_tags(w)
        if version >= 2:
            add_string(w, self.cluster_id, self.cluster_id_size)
        if version >= 1:
            add32(w, self.broker_id)
        if asked.count < 0:
            self.write_all(c, asked)
        else:
            add_array(w, asked.count)
            for i in range(asked.count):
                self.write_named(c, &r, version, asked.topic_operations,
                                 <int16_t>be16(made + 2 * i) if made_size >= 2 * <size_t>(i + 1) else CODE_UNKNOWN_TOPIC)
        if 8 <= version <= 10:
            add32(w, self.cluster_operations() if asked.cluster_operations else INT_MIN)
        add_tags(w)
        if not w.failed:
            put32(w.data, <uint32_t>w.size - FRAME_HEAD)

    cdef void write_named(self, Conn* c, Reader* r, int version, bint operations, int made) noexcept nogil:
        """Write the topic that the request names next; ``made`` is the code for one that is not there."""
        cdef Named named
        cdef fl_slot* first = NULL
        cdef int code = CODE_NONE
        read_named(r, version, &named)
        if not named.is_by_name:
            if version < 12:
                code = CODE_VERSION  # ids were introduced in answers only
            else:
                first = self.topics.by_id(named.topic_id)
                if first != NULL and not (is_settled(first) and (is_todays(first) or is_bridged(first))):
                    first = NULL
                if self.topics.are_in_part():
                    first = NULL
                code = CODE_NONE if first != NULL else CODE_UNKNOWN_TOPIC_ID
            if first != NULL:
                if is_allowed(self.engine.authorizer, c, DESCRIBE, first.name, <int>first.name_bytes):
                    named.name, named.size = first.name, <int>first.name_bytes
                else:
                    first, code = NULL, CODE_UNKNOWN_TOPIC_ID  # whoever may not see its name does not learn of it
        elif named.size <= 0 or named.size > LONGEST_TODAY or not self.engine.partitions.is_legal(named.name, named.size):
            code = CODE_INVALID_TOPIC
        elif not is_allowed(self.engine.authorizer, c, DESCRIBE, named.name, named.size):
            code = CODE_TOPIC_DENIED
        else:
            first = self.topics.first_of(named.name, named.size)
            if first != NULL and not is_settled(first):
                first = NULL
            if self.topics.are_in_part():
                first, code = NULL, CODE_TOPIC_DENIED
            elif first == NULL:
                code = made if made != CODE_NONE else CODE_UNKNOWN_TOPIC
            elif not is_todays(first) and not is_bridged(first):
                first, code = NULL, CODE_UNKNOWN_TOPIC
        self.write_topic(c, version, code, named.name, named.size, named.topic_id, first, operations)

    cdef void write_all(self, Conn* c, const Asked* asked) noexcept nogil:
        """Write every topic that may be described."""
        cdef Writer* w = &self.out
        cdef size_t at = w.size
        cdef uint64_t place, known
        cdef int count
        cdef TopicCount topic
        cdef fl_slot* first
        while True:
            count = 0
            self.partitions = 0
            w.size = at
            # how many there are is known at the end, and the room for the number must not depend on it
            if w.flexible:
                add_bytes(w, NO_VARINT, 5)
            else:
                add32(w, 0)
            self.engine.partitions.learn()
            known = self.engine.partitions.known
            for place in range(self.engine.partitions.counts_room):
                topic = self.engine.partitions.counts[place]
                first = self.topics.first_of(topic.name, topic.size) if topic.name != NULL else NULL
                if self.engine.partitions.known != known:
                    break  # the table is another one now
                if first == NULL or not (is_todays(first) or is_bridged(first)) or not is_settled(first) \
                        or self.topics.are_in_part() \
                        or not is_allowed(self.engine.authorizer, c, DESCRIBE, topic.name, topic.size):
                    continue
                self.write_topic(c, asked.version, CODE_NONE, first.name, <int>first.name_bytes, first.topic_id, first,
                                 asked.topic_operations)
                count += 1
            if self.engine.partitions.known == known:
                break
        if w.failed:
            return
        if w.flexible:
            put_padded(w.data + at, <uint32_t>count + 1)
        else:
            put32(w.data + at, <uint32_t>count)

    cdef void write_topic(self, Conn* c, int version, int code, const uint8_t* name, int size, const uint8_t* topic_id,
                          fl_slot* first, bint operations) noexcept nogil:
        """Write one topic; ``first`` is a partition of it, NULL where ``code`` says why none is shown.

        Partitions come and go while they are counted and written: what is written is what was counted.
        """
        cdef Writer* w = &self.out
        cdef size_t begin = w.size
        cdef int held = self.settled_partitions(name, size, not is_todays(first)) if first != NULL else 0
        cdef int left = self.write_one(c, version, code, name, size, topic_id, first, held, operations)
        while left:
            w.size = begin
            held -= left
            if held == 0:  # it has been deleted since it was looked up
                first, code = NULL, CODE_UNKNOWN_TOPIC
            left = self.write_one(c, version, code, name, size, topic_id, first, held, operations)
        self.partitions += <uint64_t>held
        if code:
            fl_refused(self.engine.cell, METADATA, code)

    cdef int settled_partitions(self, const uint8_t* name, int size, bint bridged) noexcept nogil:
        """The number of a topic's partitions in answers; of one of 0.7 all that it may have."""
        cdef int partition, held = 0
        cdef fl_slot* s
        for partition in range(self.engine.partitions.partition_count(name, size)):
            s = self.engine.partitions.find(name, size, partition)
            held += bridged or (s != NULL and is_settled(s))
        return held

    cdef int write_one(self, Conn* c, int version, int code, const uint8_t* name, int size, const uint8_t* topic_id,
                       fl_slot* first, int held, bint operations) noexcept nogil:
        """Write a topic with ``held`` partitions, as far as they are there; how many were not."""
        cdef Writer* w = &self.out
        cdef int partition, left = 0
        cdef bint bridged = first != NULL and not is_todays(first)
        cdef fl_slot* s
        add16(w, code)
        add_string(w, name, size if version >= 12 else max(size, 0))
        if version >= 10:
            add_bytes(w, <const uint8_t*>first.topic_id if first != NULL else topic_id, ID_BYTES)
        if version >= 1:
            add8(w, first != NULL and size >= 2 and name[0] == c"_" and name[1] == c"_")
        add_array(w, held)
        if held and self.partitions + <uint64_t>held <= <uint64_t>MOST_PARTITIONS:
            left = held
            for partition in range(self.engine.partitions.partition_count(name, size)):
                s = self.engine.partitions.find(name, size, partition)
                if left and (bridged or (s != NULL and is_settled(s))):
                    left -= 1
                    self.write_partition(version, partition, s)
        if version >= 8:
            add32(w, self.operations_of(c, name, size) if operations and first != NULL else INT_MIN)
        add_tags(w)
        return left

    cdef void write_partition(self, int version, int partition, fl_slot* s) noexcept nogil:
        """Write one partition: this broker leads it, unless it is out of service. NULL: nobody has written to it."""
        cdef Writer* w = &self.out
        cdef bint offline = s != NULL and fl_load(&s.state) & FL_STATE_OFFLINE != 0
        add16(w, CODE_LEADER_NOT_AVAILABLE if offline else CODE_NONE)
        add32(w, partition)
        add32(w, -1 if offline else self.broker_id)
        if version >= 7:
            add32(w, <int32_t>s.epoch if s != NULL else 0)
        add_array(w, 1)
        add32(w, self.broker_id)
        add_array(w, 0 if offline else 1)
        if not offline:
            add32(w, self.broker_id)
        if version >= 5:
            add_array(w, 1 if offline else 0)
            if offline:
                add32(w, self.broker_id)
        add_tags(w)

    cdef int32_t operations_of(self, Conn* c, const uint8_t* name, int size) noexcept nogil:
        """What the client may do with a topic, a bit for each ``Operation``."""
        cdef int operation
        cdef int32_t found = 0
        for operation in range(READ, ALTER_CONFIGS + 1):
            if OF_TOPICS & 1 << operation and is_allowed(self.engine.authorizer, c, operation, name, size):
                found |= 1 << operation
        return found

    cdef int32_t cluster_operations(self) noexcept nogil:
        """The same with the cluster: what a rule says of it is asked where a topic is made."""
        return 1 << DESCRIBE if self.engine.authorizer.has_rule else OF_CLUSTER


cdef void read_named(Reader* r, int version, Named* out) noexcept nogil:
    """Read one topic of the request: its name, or its id."""
    out.topic_id = NO_ID
    if version >= 10:
        out.topic_id = take(r, ID_BYTES)
        if out.topic_id == NULL:
            out.topic_id = NO_ID
    out.size = get_string(r, &out.name)
    if out.size < 0 and version < 10:
        spoil(r)
    out.is_by_name = is_zero(out.topic_id)
    skip_tags(r)


cdef void put_padded(uint8_t* p, uint32_t value) noexcept nogil:
    """A varint that takes 5 bytes whatever its value."""
    cdef int i
    for i in range(4):
        p[i] = <uint8_t>(value & 0x7f | 0x80)
        value >>= 7
    p[4] = <uint8_t>value

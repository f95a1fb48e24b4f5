"""Hands out the messages of owned partitions: one by one, in lists, or where they lie.

Another thread may take a partition away at any moment (``Place.end``), and must be sure then that nothing of it is
handed out any more. There is no lock for that: what looks, moves on and hands out is one piece of compiled code, during
which nobody else has the GIL. Wherever Python code ran in between, everything is looked at again.

What interrupts such Python code (Ctrl-C, no memory left) costs no message: a chunk stays in hand until it is through,
and its spans are cut anew from ``offset``, the top-level message in turn, leaving out the ``passed`` ones inside it.
"""

cimport cython
from cpython.list cimport PyList_Append, PyList_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.time cimport clock_gettime, timespec

from fastlog._batch cimport (
    NO_TIME, RECORD_MAGIC, Entry, described, entry_of, headers_in, key_of, next_entry, of_record, payload_of,
    take_values,
)
from fastlog._record_batch cimport FoundRecord, RecordSpan, RecordWalk, next_record
from fastlog._records cimport RECORDS_OK
from fastlog._views cimport view_of

from fastlog.arguments import seconds
from fastlog.errors import ConsumerTimeout, DecodeError, FastlogError

cdef extern from "time.h" nogil:
    enum: CLOCK_MONOTONIC_COARSE

# No tick of the coarse clock is longer: a lease that was looked at within this tick still holds if it had more left.
cdef double LONGEST_TICK = 0.01


cdef inline int64_t tick_now() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


@cython.final
cdef class Place:
    """Where one partition stands, from being acquired or repositioned until it is given up. See the ``.pyi``."""

    cdef readonly object source
    cdef readonly int64_t consumed      # the next owner goes on here; -1: not known yet
    cdef readonly int64_t expected      # behind the last chunk that was taken in hand; -1: not known yet
    cdef readonly int64_t log           # when the log was made that these are offsets of, in ms; 0: not known
    cdef readonly int64_t back          # where a jump has led that went back; -1: none has
    cdef readonly bint is_over
    cdef readonly bint by_hand

    def __init__(self, source, offset=None, *, bint by_hand=False, int64_t log=0):
        self.source = source
        self.log = log
        self.back = -1
        self.consumed = self.expected = -1 if offset is None else offset
        self.by_hand = by_hand

    def start(self, int64_t offset):
        if self.expected < 0:
            self.consumed = self.expected = offset

    def begin(self, int64_t offset, int64_t log=0):
        if not self.is_over:
            if offset < self.consumed:
                self.back = offset
            self.consumed = self.expected = offset
            self.log = log

    def learn(self, int64_t log):
        self.log = log

    def end(self):
        self.is_over = True
        return self.consumed

    def done(self, int64_t next_offset):
        if self.is_over:
            return False
        if next_offset > self.consumed:
            self.consumed = next_offset
        return True


# Not looked at by the garbage collector, which would cost as much as making it: only a decoder's own objects can form a
# cycle with it, if somebody hangs the message into them.
@cython.final
@cython.no_gc
@cython.freelist(512)
cdef class GroupMessage:
    """One message as a stream gives it; read-only. See the ``.pyi``."""

    cdef readonly Place place
    cdef readonly bytes payload
    cdef readonly object value
    cdef readonly int64_t offset
    cdef readonly int64_t next_offset
    cdef readonly unsigned char magic
    cdef readonly unsigned char attributes
    cdef readonly bytes key
    cdef readonly tuple headers
    cdef int64_t time               # NO_TIME: it has none

    def __init__(
        self, source, bytes payload, int64_t offset, int64_t next_offset, value=None, unsigned char magic=1,
        unsigned char attributes=0, bytes key=None, tuple headers=None, timestamp=None,
    ):
        if payload is None and magic != RECORD_MAGIC:
            raise TypeError("a message of Kafka 0.7 has a payload")
        self.place = Place(source)
        self.place.end()
        self.payload = payload
        self.value = payload if value is None else value
        self.offset = offset
        self.next_offset = next_offset
        self.magic = magic
        self.attributes = attributes
        self.key = key
        self.headers = headers
        self.time = NO_TIME if timestamp is None else timestamp

    @property
    def timestamp(self):
        return None if self.time == NO_TIME else self.time

    @property
    def source(self):
        return self.place.source

    @property
    def topic(self):
        return self.place.source.topic

    @property
    def partition(self):
        return self.place.source.partition

    @property
    def codec(self):
        return self.attributes & 3

    def __repr__(self):
        payload = f"{described(self.payload)}{of_record(self.key, self.headers, self.timestamp)}"
        return f"GroupMessage({self.place.source}, offset={self.offset}, next_offset={self.next_offset}, payload={payload})"

    def __eq__(self, other):
        if type(other) is not GroupMessage:
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash((self.place.source, self.payload, self.offset, self.next_offset))

    def __reduce__(self):
        return GroupMessage, (
            self.place.source, self.payload, self.offset, self.next_offset, self.value, self.magic, self.attributes,
            self.key, self.headers, self.timestamp,
        )


@cython.final
cdef class Batch(list):
    """Payloads of one partition, in order. See the ``.pyi``."""

    cdef readonly Place place
    cdef readonly int64_t offset
    cdef readonly int64_t next_offset

    @property
    def source(self):
        return self.place.source

    @property
    def topic(self):
        return self.place.source.topic

    @property
    def partition(self):
        return self.place.source.partition

    def __reduce__(self):
        return list, (list(self),)


cdef class Delivery:
    """The compiled half of a stream. See the ``.pyi``."""

    cdef readonly double timeout    # seconds; negative: no end
    cdef object lease
    cdef object decode
    cdef bint has_lease
    cdef int64_t tick           # in which the lease was looked at

    cdef Place place            # of the chunk in hand
    cdef object chunk           # None: none is
    cdef int64_t chunk_end
    cdef object failure         # found in this chunk, to be raised once what is before it has been handed out
    cdef object spans           # of this chunk from ``offset`` on; None: to be cut
    cdef int64_t offset         # of the top-level message in turn
    cdef Py_ssize_t passed      # messages handed out from inside it
    cdef Py_ssize_t skip        # messages to leave out of the spans to come

    cdef object entries         # the span in hand: a view that nobody else has
    cdef const unsigned char* base
    cdef Py_ssize_t size
    cdef bint inner
    cdef Py_ssize_t at
    cdef Py_ssize_t left        # entries of this span
    cdef int64_t next_offset    # behind this span
    cdef bint is_records        # the span is one of records:
    cdef RecordWalk walk        # over those that are not handed out yet
    cdef FoundRecord record     # the one in turn, and where the walk stands behind it:
    cdef const uint8_t* ahead_at
    cdef int64_t ahead_delta
    cdef int32_t ahead_left

    cdef Place handed           # of what was handed out last
    cdef int64_t handed_next
    cdef bint is_counting       # it counts as consumed when the next one is asked for

    def __init__(self, lease, decode=None, double timeout=-1.0):
        self.timeout = timeout
        self.lease = lease
        self.decode = decode

    # -- what it calls -------------------------------------------------------------------------------------------------

    def begin_chunk(self, Place place not None, chunk not None, int64_t start, int64_t end):
        if not place.is_over:
            self.drop_chunk()
            self.place = place
            self.chunk = chunk
            self.offset = start
            self.chunk_end = place.expected = end

    def message(self, double timeout):
        return self.message_or_none(timeout)

    cdef message_or_none(self, double timeout):
        """The next message; None at the end of the stream. Raises ConsumerTimeout, and DecodeError from the decoder."""
        cdef Entry entry
        cdef GroupMessage message
        self.count_consumed()
        while self.has_turn(timeout, True):
            message = GroupMessage.__new__(GroupMessage)
            self.look(&entry)
            message.payload = payload_of(&entry)
            message.place = self.place
            message.magic = entry.magic
            message.attributes = entry.attributes
            message.time = NO_TIME
            if self.is_records:
                message.key = key_of(&self.record)
                message.headers = headers_in(&self.record, &self.walk)
                message.time = self.record.fields.timestamp
                message.offset = self.record.offset
            else:
                message.offset = self.offset
            failure = None
            if self.decode is None or message.payload is None:
                message.value = message.payload
            else:
                chunk, at = self.chunk, self.at
                try:
                    message.value = self.decode(message.payload)
                except Exception as error:
                    failure = error
                if not self.may_hand_out(message.place, chunk) or not self.left or self.at != at:
                    continue
            self.pass_entry(&entry)
            message.next_offset = self.offset
            self.hand_out()
            if failure is not None:
                raise DecodeError(
                    f"the message at {message.place.source}, offset {message.offset}, cannot be decoded: "
                    f"{type(failure).__name__}: {failure}", message
                ) from failure
            return message
        return None

    def batch(self, Py_ssize_t count, Py_ssize_t size, double timeout):
        cdef Batch batch
        cdef Place place
        cdef int64_t offset
        cdef Py_ssize_t passed
        cdef bint is_ours
        self.count_consumed()
        while True:
            batch = Batch.__new__(Batch)
            if not self.has_turn(timeout, True):
                return None
            place, chunk, offset, passed = self.place, self.chunk, self.offset, self.passed
            try:
                self.fill(batch, count, size)
                is_ours = self.may_hand_out(place, chunk)  # Python code, which may be interrupted as well
            except BaseException:
                self.rewind(chunk, offset, passed)
                raise
            if not is_ours:
                self.rewind(chunk, offset, passed)
                continue
            batch.place = place
            batch.offset = offset
            batch.next_offset = self.offset
            self.hand_out()
            return batch

    def made(self, make, double timeout):
        cdef Place place
        cdef int64_t offset
        cdef Py_ssize_t passed
        self.count_consumed()
        while self.has_turn(timeout, False):
            place, chunk, offset, passed = self.place, self.chunk, self.offset, self.passed + self.skip
            try:
                found, next_offset = make(place, chunk, offset, passed)
            except FastlogError as error:
                self.rewind(chunk, offset, passed)
                if self.chunk is chunk:
                    self.failure = error
                continue
            if self.may_hand_out(place, chunk) and self.offset == offset:
                self.rewind(chunk, next_offset, 0)
                if found is not None:
                    self.hand_out()
                    return found
        return None

    def __iter__(self):
        return Messages(self)

    def __next__(self):
        message = self.message_or_none(self.timeout)
        if message is None:
            raise StopIteration
        return message

    def poll(self, timeout=0.0):
        try:
            message = self.message_or_none(max(0.0, seconds("timeout", timeout)))
        except ConsumerTimeout as error:
            return error.reason
        return self._silence() if message is None else message

    cdef inline void count_consumed(self) noexcept:
        """Count what was handed out last as consumed."""
        if self.is_counting:
            self.is_counting = False
            if not self.handed.is_over:
                self.handed.consumed = self.handed_next

    # -- inside --------------------------------------------------------------------------------------------------------

    cdef inline bint has_turn(self, double timeout, bint entry) except -1:
        """Whether something may be handed out now (``entry``: in a span in hand); False at the end of the stream."""
        if self.left and self.has_lease and not self.place.is_over and tick_now() == self.tick:
            return True
        return self.get_turn(timeout, entry)

    cdef bint get_turn(self, double timeout, bint entry) except -1:
        """The same as ``has_turn``, where the lease, the span or the chunk in hand has to be looked at first."""
        while True:
            if tick_now() != self.tick:
                self.look_at_lease()
            if not self.has_lease:
                if not self._wait_for_lease(timeout):
                    return False
                self.tick = 0
                continue
            if self.chunk is not None and not self.place.is_over:
                if self.left:
                    return True
                if self.failure is not None:
                    place, failure = self.place, self.failure
                    self.drop_chunk()
                    self._stopped(place, failure)
                    raise failure
                if self.offset < self.chunk_end:
                    if not entry:
                        return True
                    self.next_span()
                    continue
                if not self.place.by_hand:
                    self.place.consumed = self.chunk_end    # behind the last message may be compressed sets of none
            self.drop_chunk()
            if not self._next_chunk(timeout):
                return False

    cdef int look_at_lease(self) except -1:
        """Note whether the lease is valid for the whole of this tick of the coarse clock."""
        cdef int64_t tick = tick_now()
        self.has_lease = <double>self.lease.seconds_left > LONGEST_TICK
        self.tick = tick
        return 0

    cdef bint may_hand_out(self, Place place, chunk) except -1:
        """The same once more, after Python code has run."""
        if tick_now() != self.tick:
            self.look_at_lease()
        return self.has_lease and self.chunk is chunk and not place.is_over

    cdef inline void hand_out(self) noexcept:
        """Note what was handed out, so that ``count_consumed`` can count it with the next call."""
        if self.handed is not self.place:
            self.handed = self.place
        self.handed_next = self.offset
        self.is_counting = not self.place.by_hand

    cdef int next_span(self) except -1:
        """Take the next span of the chunk in hand, or note that it is through, or damaged."""
        chunk = self.chunk
        try:
            if self.spans is None:
                self.spans = self._cut(chunk, self.offset)
            span = next(self.spans, None)
        except FastlogError as error:
            if self.chunk is chunk:
                source = self.place.source
                self.failure = error.at(
                    topic=source.topic, partition=source.partition.partition, broker=source.partition.broker
                )
            return 0
        except BaseException:
            self.rewind(chunk, self.offset, self.passed + self.skip)
            raise
        if self.chunk is not chunk:
            return 0
        self.let_go()
        if span is None:
            self.offset = self.chunk_end
            return 0
        if isinstance(span, RecordSpan):
            self.entries = span
            self.is_records = True
            self.walk = (<RecordSpan>span).walk
            self.left = self.walk.left
            self.offset = (<RecordSpan>span).offset
            self.inner = False
            return 0
        entries, count, offset, next_offset, inner = span
        self.is_records = False
        self.entries = view_of(entries, &self.base, &self.size)
        self.at = 0
        self.left = count
        self.offset = offset
        self.next_offset = next_offset
        self.inner = inner
        self.leave_out()
        return 0

    cdef int leave_out(self) except -1:
        """Pass over the entries of the span that were handed out before it was cut anew."""
        cdef Entry entry
        while self.skip and self.left:
            self.look(&entry)
            self.pass_entry(&entry)
            self.skip -= 1
        return 0

    cdef int fill(self, Batch batch, Py_ssize_t count, Py_ssize_t size) except -1:
        """Add messages of the chunk in hand to a batch, up to ``count`` and about ``size`` bytes."""
        cdef Entry entry
        cdef object payload
        while True:
            if self.is_records and self.left:
                size = self.fill_records(batch, count, size)
            while self.left and PyList_GET_SIZE(batch) < count and size > 0:
                self.look(&entry)
                payload = payload_of(&entry)
                PyList_Append(batch, payload)
                self.pass_entry(&entry)
                size -= entry.entry_bytes
            if PyList_GET_SIZE(batch) >= count or size <= 0 or self.offset >= self.chunk_end:
                return 0
            self.next_span()
            if self.failure is not None or self.chunk is None or self.place.is_over:
                return 0

    cdef Py_ssize_t fill_records(self, Batch batch, Py_ssize_t count, Py_ssize_t size) except? -1:
        """The same of the records of the span in hand; what is left of ``size``.

        Whoever calls rewinds when this fails, so nothing is noted before the last one.
        """
        cdef RecordWalk walk = self.walk
        size = take_values(<RecordSpan>self.entries, &walk, batch, count, size)
        if walk.left < self.left:
            self.offset = walk.base_offset + walk.least_delta if walk.left else walk.next_offset
        self.walk = walk
        self.left = walk.left
        return size

    cdef inline int look(self, Entry* entry) except -1:
        """Describe the next entry of the span without moving behind it. Raises BufferError: its bytes changed meanwhile."""
        cdef const uint8_t* at
        cdef int64_t delta
        cdef int32_t left
        if self.is_records:
            at, delta, left = self.walk.at, self.walk.least_delta, self.walk.left
            if next_record(&self.walk, &self.record) != RECORDS_OK:
                self.rewind(self.chunk, self.offset, 0)
                raise BufferError("the bytes changed while they were read")
            self.ahead_at, self.ahead_delta, self.ahead_left = self.walk.at, self.walk.least_delta, self.walk.left
            self.walk.at, self.walk.least_delta, self.walk.left = at, delta, left
            entry_of(&self.record, entry)
            return 0
        if not next_entry(self.base + self.at, self.size - self.at, entry):
            self.rewind(self.chunk, self.offset, self.passed + self.skip)
            raise BufferError("the bytes changed while they were read")
        return 0

    cdef inline void pass_entry(self, const Entry* entry) noexcept:
        """Go on to the next entry; ``offset`` is then where to go on once this one has been consumed."""
        self.at += entry.entry_bytes
        self.left -= 1
        if self.is_records:
            self.walk.at, self.walk.least_delta, self.walk.left = self.ahead_at, self.ahead_delta, self.ahead_left
            self.offset = self.record.next_offset
        elif not self.inner:
            self.offset += entry.entry_bytes
        elif self.left or self.next_offset == self.offset:
            self.passed += 1
        else:
            self.offset = self.next_offset
            self.passed = 0

    cdef void rewind(self, chunk, int64_t offset, Py_ssize_t passed) noexcept:
        """Let the spans of this chunk be cut anew, if it is still in hand."""
        if self.chunk is chunk:
            self.let_go()
            self.spans = None
            self.failure = None
            self.offset = offset
            self.passed = 0
            self.skip = passed

    cdef void drop_chunk(self) noexcept:
        """Have no chunk in hand any more."""
        self.let_go()
        self.chunk = self.place = self.spans = self.failure = None
        self.passed = self.skip = 0

    cdef void let_go(self) noexcept:
        """Have no span in hand any more, and free its buffer."""
        self.left = 0
        self.entries = None


# A class derived in Python from a compiled one is iterated through its attributes, at twice the cost of this.
@cython.final
cdef class Messages:
    """An iteration over a stream; see the ``.pyi``."""

    cdef Delivery stream

    def __init__(self, Delivery stream not None):
        self.stream = stream

    def __iter__(self):
        return self

    def __next__(self):
        message = self.stream.message_or_none(self.stream.timeout)
        if message is None:
            raise StopIteration
        return message

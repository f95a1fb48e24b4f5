"""Turns spans of checked messages and records into what a consumer hands out: payloads, message objects, arrays.

Every function takes whole entries that ``_segment.scan`` has found valid, without wrappers unless it says otherwise, or
a ``RecordSpan``, whose records were found valid when it was made;
and creates no object for a message but the one it returns. Lengths are compared with the span once more on the way:
a mapped file may change between two walks, and an exception beats a wild read. ``_segment.pyx`` has the format.

The offsets of a span: at the top of a log each entry has its own, ``offset`` that of the first. Inside a wrapper
(``inner``) each has the wrapper's, and goes on at it too, except for the last one, which goes on at ``next_offset``.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from fastlog._record_batch cimport FoundRecord, RecordSpan, RecordWalk, next_record, next_value
from fastlog._records cimport RECORDS_OK
from fastlog._views cimport view_of


cdef int changed() except -1:
    raise BufferError("the bytes changed while they were read")


# Not looked at by the garbage collector: a tuple of pairs of bytes is all that it refers to besides bytes.
@cython.final
@cython.no_gc
@cython.freelist(512)
cdef class ConsumedMessage:
    """One message as a consumer gets it; read-only. See the ``.pyi``."""

    cdef readonly bytes payload
    cdef readonly int64_t offset
    cdef readonly int64_t next_offset
    cdef readonly unsigned char magic
    cdef readonly unsigned char attributes
    cdef readonly bytes key
    cdef readonly tuple headers
    cdef int64_t time               # NO_TIME: it has none

    def __init__(
        self, bytes payload, int64_t offset, int64_t next_offset, unsigned char magic=1, unsigned char attributes=0,
        bytes key=None, tuple headers=None, timestamp=None,
    ):
        if payload is None and magic != RECORD_MAGIC:
            raise TypeError("a message of Kafka 0.7 has a payload")
        self.payload = payload
        self.offset = offset
        self.next_offset = next_offset
        self.magic = magic
        self.attributes = attributes
        self.key = key
        self.headers = headers
        self.time = NO_TIME if timestamp is None else timestamp

    @property
    def codec(self):
        return self.attributes & 3

    @property
    def timestamp(self):
        return None if self.time == NO_TIME else self.time

    def __repr__(self):
        shown = f"{described(self.payload)}{of_record(self.key, self.headers, self.timestamp)}"
        return f"ConsumedMessage(offset={self.offset}, next_offset={self.next_offset}, payload={shown})"

    def __eq__(self, other):
        if type(other) is not ConsumedMessage:
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash(self.__reduce__())

    def __reduce__(self):
        return ConsumedMessage, (
            self.payload, self.offset, self.next_offset, self.magic, self.attributes, self.key, self.headers,
            self.timestamp,
        )


cdef str described(bytes payload):
    """A payload as far as it is short."""
    if payload is None or len(payload) <= 64:
        return repr(payload)
    return f"{payload[:61]!r}..."


cdef str of_record(bytes key, tuple headers, timestamp):
    """What a record has besides its value; nothing for a message."""
    if headers is None:
        return ""
    return f", key={described(key)}, headers={headers!r}, timestamp={timestamp}"


cdef class SpanCursor:
    """Walks the entries of spans, one span in hand at a time.

    A span is let go before the next one is asked for, since its memory may be filled again then.
    """

    cdef object spans
    cdef object entries         # the span in hand: a view that nobody else has
    cdef const unsigned char* base
    cdef Py_ssize_t size
    cdef bint inner
    cdef Py_ssize_t at
    cdef Py_ssize_t left        # entries of this span
    cdef int64_t offset
    cdef int64_t next_offset
    cdef bint is_records        # the span is one of records, and the walk goes over them
    cdef RecordWalk walk
    cdef FoundRecord record     # the one that was described last

    def __init__(self, spans):
        self.let_go()
        self.spans = iter(spans)

    def __iter__(self):
        return self

    def close(self):
        """Let the span in hand go, and close the source where it can be closed; nothing comes any more."""
        spans, self.spans = self.spans, iter(())
        self.let_go()
        close = getattr(spans, "close", None)
        if close is not None:
            close()

    cdef void let_go(self) noexcept:
        self.left = 0
        self.entries = None

    cdef bint advance(self) except -1:
        """Take the next span with an entry in it; False when there is none."""
        while True:
            self.let_go()
            span = next(self.spans, None)
            if span is None:
                return False
            if isinstance(span, RecordSpan):
                self.let_go()
                self.entries = span
                self.walk = (<RecordSpan>span).walk
                self.left = self.walk.left
                self.is_records = True
                return True
            entries, count, offset, next_offset, inner = span
            self.let_go()   # of another thread that was faster
            self.is_records = False
            self.entries = view_of(entries, &self.base, &self.size)
            self.at = 0
            self.left = count
            self.offset = offset
            self.next_offset = next_offset
            self.inner = inner
            if self.left:
                return True

    cdef inline int step(self, Entry* entry) except -1:
        """Describe the entry in turn and go on to the next one."""
        if self.is_records:
            if next_record(&self.walk, &self.record) != RECORDS_OK:
                self.let_go()
                changed()
            entry_of(&self.record, entry)
            self.left -= 1
            return 0
        if not next_entry(self.base + self.at, self.size - self.at, entry):
            self.let_go()
            changed()
        self.at += entry.entry_bytes
        self.left -= 1
        return 0


@cython.final
cdef class MessageStream(SpanCursor):
    """The messages of spans, each made when its turn comes."""

    def __next__(self):
        cdef Entry entry
        cdef ConsumedMessage message
        if not self.left and not self.advance():
            raise StopIteration
        self.step(&entry)
        message = ConsumedMessage.__new__(ConsumedMessage)
        message.payload = payload_of(&entry)
        message.magic = entry.magic
        message.attributes = entry.attributes
        message.time = NO_TIME
        if self.is_records:
            message.key = key_of(&self.record)
            message.headers = headers_in(&self.record, &self.walk)
            message.time = self.record.fields.timestamp
            message.offset = self.record.offset
            message.next_offset = self.record.next_offset
            return message
        message.offset = self.offset
        if not self.inner:
            self.offset += entry.entry_bytes
            message.next_offset = self.offset
        else:
            message.next_offset = self.offset if self.left else self.next_offset
        return message


@cython.final
cdef class PayloadStream(SpanCursor):
    """The payloads of spans, one at a time or in lists."""

    cdef object failure     # of the source, to be raised once what came before it has been handed out

    def __next__(self):
        cdef Entry entry
        if not self.left and not self.ready():
            raise StopIteration
        self.step_payload(&entry)
        return payload_of(&entry)

    def take(self, Py_ssize_t count, Py_ssize_t size):
        cdef Entry entry
        cdef list result = []
        cdef Py_ssize_t i, part
        cdef object payload
        size = max(1, size)
        if not self.left and not self.ready():
            return result
        while True:
            if self.is_records:
                size = self.take_records(result, count, size)
            part = min(self.left, count - len(result)) if not self.is_records else 0
            for i in range(part):
                self.step(&entry)
                result.append(payload_of(&entry))
                size -= entry.entry_bytes
                if size <= 0:
                    return result
            if len(result) >= count or size <= 0:
                return result
            try:
                if not self.advance():
                    return result
            except Exception as error:
                self.failure = error
                return result

    cdef Py_ssize_t take_records(self, list into, Py_ssize_t count, Py_ssize_t size) except? -1:
        """Append payloads of the span of records in hand; what is left of ``size``."""
        try:
            size = take_values(<RecordSpan>self.entries, &self.walk, into, count, size)
        except BufferError:
            self.let_go()
            raise
        self.left = self.walk.left
        return size

    cdef inline int step_payload(self, Entry* entry) except -1:
        """``step``, of which only the payload is wanted."""
        if not self.is_records:
            return self.step(entry)
        if not next_value(&self.walk, &self.record.fields):
            self.let_go()
            changed()
        entry_of(&self.record, entry)
        self.left -= 1
        return 0

    cdef bint ready(self) except -1:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return self.advance()


def index(
    entries, int64_t offset, int64_t next_offset, bint inner, int64_t shift, Py_ssize_t first, Py_ssize_t count,
    int64_t[:, ::1] places not None, int32_t[::1] lengths not None,
):
    cdef Py_buffer view
    cdef Entry entry
    cdef const unsigned char* base
    cdef int64_t* offsets
    cdef int64_t* next_offsets
    cdef int64_t* starts
    cdef Py_ssize_t at = 0, i
    cdef bint whole = True
    if places.shape[0] != 3 or places.shape[1] != lengths.shape[0]:
        raise ValueError("three rows of places and one of lengths, all of one length, are needed")
    if first < 0 or count < 0 or count > lengths.shape[0] - first:
        raise ValueError(f"{count} messages from number {first} on do not fit {lengths.shape[0]} places")
    if count == 0:
        return
    offsets, next_offsets, starts = &places[0, 0], &places[1, 0], &places[2, 0]
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        base = <const unsigned char*>view.buf
        with nogil:
            for i in range(first, first + count):
                if not next_entry(base + at, view.len - at, &entry):
                    whole = False
                    break
                at += entry.entry_bytes
                offsets[i] = offset
                if not inner:
                    offset += entry.entry_bytes
                next_offsets[i] = offset
                starts[i] = shift + (entry.payload - base)
                lengths[i] = <int32_t>entry.payload_bytes
            if whole and inner:
                next_offsets[first + count - 1] = next_offset
        if not whole:
            changed()
    finally:
        PyBuffer_Release(&view)


def gather(
    buffer, const int64_t[::1] starts not None, const int32_t[::1] lengths not None, int32_t[::1] ends not None,
    unsigned char[::1] out not None,
):
    cdef Py_buffer view
    cdef Py_ssize_t i, count = starts.shape[0]
    cdef int64_t at = 0, room = out.shape[0]
    cdef bint fits = True
    if lengths.shape[0] != count or ends.shape[0] != count + 1:
        raise ValueError("ends has one item more than starts and lengths")
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            ends[0] = 0
            for i in range(count):
                if (starts[i] < 0 or lengths[i] < 0 or starts[i] > view.len - lengths[i]
                        or lengths[i] > room - at):
                    fits = False
                    break
                if lengths[i]:
                    memcpy(&out[at], <const unsigned char*>view.buf + starts[i], <size_t>lengths[i])
                at += lengths[i]
                ends[i + 1] = <int32_t>at
        if not fits or at > 0x7FFFFFFF:
            raise ValueError("a payload lies outside the buffer, or they do not fit the space for them")
    finally:
        PyBuffer_Release(&view)

"""Turns spans of checked messages into what a consumer hands out: payloads, message objects, arrays.

Every function takes whole entries that ``_segment.scan`` has found valid, without wrappers unless it says otherwise,
and creates no object for a message but the one it returns. Lengths are compared with the span once more on the way:
a mapped file may change between two walks, and an exception beats a wild read. ``_segment.pyx`` has the format.

The offsets of a span: at the top of a log each entry has its own, ``offset`` that of the first. Inside a wrapper
(``inner``) each has the wrapper's, and goes on at it too, except for the last one, which goes on at ``next_offset``.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy


cdef enum:
    LENGTH_BYTES = 4
    LEAST_ENTRY_BYTES = 9   # of magic 0 with an empty payload


cdef struct Entry:
    const unsigned char* payload
    Py_ssize_t payload_bytes
    Py_ssize_t entry_bytes
    unsigned char magic
    unsigned char attributes


cdef inline bint next_entry(const unsigned char* p, Py_ssize_t left, Entry* out) noexcept nogil:
    """Describe the entry at ``p``, or return False when no whole one is there."""
    cdef uint32_t size
    cdef Py_ssize_t header
    if left < LEAST_ENTRY_BYTES:
        return False
    size = (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]
    out.magic = p[4]
    header = 5 + (p[4] & 1)
    if size < <uint32_t>header or <Py_ssize_t>size > left - LENGTH_BYTES:
        return False
    out.attributes = p[5] if out.magic else 0
    out.payload = p + LENGTH_BYTES + header
    out.payload_bytes = <Py_ssize_t>size - header
    out.entry_bytes = LENGTH_BYTES + <Py_ssize_t>size
    return True


cdef int changed() except -1:
    raise BufferError("the bytes changed while they were read")


@cython.final
@cython.freelist(512)
cdef class ConsumedMessage:
    """One message as a consumer gets it; read-only. See the ``.pyi``."""

    cdef readonly bytes payload
    cdef readonly int64_t offset
    cdef readonly int64_t next_offset
    cdef readonly unsigned char magic
    cdef readonly unsigned char attributes

    def __init__(
        self, bytes payload not None, int64_t offset, int64_t next_offset, unsigned char magic=1,
        unsigned char attributes=0,
    ):
        self.payload = payload
        self.offset = offset
        self.next_offset = next_offset
        self.magic = magic
        self.attributes = attributes

    @property
    def codec(self):
        return self.attributes & 3

    def __repr__(self):
        shown = repr(self.payload) if len(self.payload) <= 64 else f"{self.payload[:61]!r}..."
        return f"ConsumedMessage(offset={self.offset}, next_offset={self.next_offset}, payload={shown})"

    def __eq__(self, other):
        if type(other) is not ConsumedMessage:
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash(self.__reduce__())

    def __reduce__(self):
        return ConsumedMessage, (self.payload, self.offset, self.next_offset, self.magic, self.attributes)


def payloads(entries, Py_ssize_t count):
    cdef Py_buffer view
    cdef Entry entry
    cdef Py_ssize_t at = 0, i
    cdef list result = PyList_New(count)
    cdef object payload
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        for i in range(count):
            if not next_entry(<const unsigned char*>view.buf + at, view.len - at, &entry):
                changed()
            payload = PyBytes_FromStringAndSize(<const char*>entry.payload, entry.payload_bytes)
            Py_INCREF(payload)
            PyList_SET_ITEM(result, i, payload)
            at += entry.entry_bytes
    finally:
        PyBuffer_Release(&view)
    return result


def messages(entries, Py_ssize_t count, int64_t offset, int64_t next_offset, bint inner):
    cdef Py_buffer view
    cdef Entry entry
    cdef Py_ssize_t at = 0, i
    cdef list result = PyList_New(count)
    cdef ConsumedMessage message
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        for i in range(count):
            if not next_entry(<const unsigned char*>view.buf + at, view.len - at, &entry):
                changed()
            at += entry.entry_bytes
            message = ConsumedMessage.__new__(ConsumedMessage)
            message.payload = PyBytes_FromStringAndSize(<const char*>entry.payload, entry.payload_bytes)
            message.magic = entry.magic
            message.attributes = entry.attributes
            message.offset = offset
            if not inner:
                offset += entry.entry_bytes
                message.next_offset = offset
            else:
                message.next_offset = next_offset if i == count - 1 else offset
            Py_INCREF(message)
            PyList_SET_ITEM(result, i, message)
    finally:
        PyBuffer_Release(&view)
    return result


def index(
    entries, int64_t offset, int64_t next_offset, bint inner, int64_t shift,
    int64_t[::1] offsets not None, int64_t[::1] next_offsets not None,
    int64_t[::1] starts not None, int32_t[::1] lengths not None,
):
    cdef Py_buffer view
    cdef Entry entry
    cdef const unsigned char* base
    cdef Py_ssize_t at = 0, i, count = offsets.shape[0]
    cdef bint whole = True
    if next_offsets.shape[0] != count or starts.shape[0] != count or lengths.shape[0] != count:
        raise ValueError("the four arrays have different lengths")
    if count == 0:
        return
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        base = <const unsigned char*>view.buf
        with nogil:
            for i in range(count):
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
                next_offsets[count - 1] = next_offset
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

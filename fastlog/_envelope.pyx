"""The envelope: what a payload may begin with when its producer and its readers have agreed on it.

    position   bytes  field
    0          2      magic: FE 01, the second byte being the version
    2          1      flags: 1 schema id, 2 key, 4 deduplication id; the others 0
    3          8      time in ms since 1970, signed
    11         4      server id
    15         4      schema id, with flag 1
               4 + k  length and bytes of the key, with flag 2
               1 + d  length and bytes of the deduplication id, with flag 4
    then              the value, to the end of the payload

All integers are big-endian. It lies inside the payload: the message's checksum covers it, compression packs it with the
rest, and a broker sees nothing of it. Nobody guesses it from the bytes: the magic finds mistakes, it is no sign.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

from collections import namedtuple

from fastlog._bytes cimport put32
from fastlog.errors import EnvelopeError

Columns = namedtuple(
    "Columns",
    (
        "time_ms", "server_id", "schema_ids", "key_starts", "key_lengths", "deduplication_starts",
        "deduplication_lengths", "value_starts", "value_lengths", "bad",
    ),
)
Columns.__doc__ = "The envelopes of many messages. See the ``.pyi``."
Columns.__module__ = "fastlog._envelope"


cdef str reason(int status, const unsigned char* p, Py_ssize_t size):
    if status == NO_MAGIC:
        return f"the payload begins with {p[0]:02x} {p[1]:02x} instead of fe 01: it has no envelope of this version"
    if status == UNKNOWN_FLAGS:
        return f"the envelope has the flags {p[2]:#04x}, of which {p[2] & ~KNOWN_FLAGS:#04x} are unknown"
    return f"the payload ends after {size} bytes, inside its envelope"


def encode(value, long long time_ms, uint32_t server_id, schema_id=None, bytes key=None, bytes deduplication_id=None):
    cdef Py_buffer view
    cdef Py_ssize_t size = HEAD_BYTES, at = HEAD_BYTES
    cdef int flags = 0
    cdef uint32_t schema = 0
    cdef bytes made
    cdef unsigned char* out
    if schema_id is not None:
        schema = schema_id
        flags |= HAS_SCHEMA
        size += SCHEMA_BYTES
    if key is not None:
        if PyBytes_GET_SIZE(key) > 0x7FFFFFFF:
            raise ValueError(f"a key of {len(key)} bytes is too long")
        flags |= HAS_KEY
        size += KEY_LENGTH_BYTES + PyBytes_GET_SIZE(key)
    if deduplication_id is not None:
        if PyBytes_GET_SIZE(deduplication_id) > MAX_DEDUPLICATION_BYTES:
            raise ValueError(f"a deduplication id has at most 255 bytes, not {len(deduplication_id)}")
        flags |= HAS_DEDUPLICATION
        size += DEDUPLICATION_LENGTH_BYTES + PyBytes_GET_SIZE(deduplication_id)
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        made = PyBytes_FromStringAndSize(NULL, size + view.len)
        out = <unsigned char*>PyBytes_AS_STRING(made)
        put_head(out, flags, time_ms, server_id)
        if schema_id is not None:
            put32(out + at, schema)
            at += SCHEMA_BYTES
        if key is not None:
            at += put_key(out + at, <const unsigned char*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        if deduplication_id is not None:
            at += put_deduplication(
                out + at, <const unsigned char*>PyBytes_AS_STRING(deduplication_id), PyBytes_GET_SIZE(deduplication_id)
            )
        if view.len:
            memcpy(out + at, view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return made


def decode(payload):
    cdef Py_buffer view
    cdef Parts parts
    cdef int status
    cdef const unsigned char* p
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        p = <const unsigned char*>view.buf
        status = parse(p, view.len, &parts)
        if status != PARSED:
            raise EnvelopeError(reason(status, p, view.len))
        return (
            parts.time_ms,
            parts.server_id,
            None if parts.schema_id < 0 else parts.schema_id,
            None if parts.key_bytes < 0 else p[parts.key:parts.key + parts.key_bytes],
            None if parts.deduplication_bytes < 0
            else p[parts.deduplication:parts.deduplication + parts.deduplication_bytes],
            p[parts.value:view.len],
        )
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t fill(
    const unsigned char* p, Py_ssize_t size, const int64_t[::1] starts, const int64_t[::1] lengths, int64_t[::1] times,
    uint32_t[::1] servers, int64_t[:, ::1] places, int64_t[::1] bad,
) noexcept nogil:
    """Write the columns; how many messages have no valid envelope, or -2 when one lies outside the buffer."""
    cdef Parts parts
    cdef Py_ssize_t i, wrong = 0
    cdef int64_t start, length
    for i in range(starts.shape[0]):
        start, length = starts[i], lengths[i]
        if start < 0 or length < 0 or length > size or start > size - length:
            return -2
        if parse(p + start, <Py_ssize_t>length, &parts) != PARSED:
            parts.time_ms = parts.server_id = 0
            parts.schema_id = parts.key_bytes = parts.deduplication_bytes = -1
            parts.key = parts.deduplication = parts.value = 0
            bad[wrong] = i
            wrong += 1
        times[i] = parts.time_ms
        servers[i] = parts.server_id
        places[0, i] = parts.schema_id
        places[1, i] = start + parts.key
        places[2, i] = parts.key_bytes
        places[3, i] = start + parts.deduplication
        places[4, i] = parts.deduplication_bytes
        places[5, i] = start + parts.value
        places[6, i] = length - parts.value
    return wrong


def split(buffer, starts, lengths):
    import numpy as np

    cdef const int64_t[::1] from_ = np.ascontiguousarray(starts, np.int64)
    cdef const int64_t[::1] sizes = np.ascontiguousarray(lengths, np.int64)
    cdef Py_ssize_t count = from_.shape[0], wrong
    cdef Py_buffer view
    if sizes.shape[0] != count:
        raise ValueError("starts and lengths have different lengths")
    times, servers = np.empty(count, np.int64), np.empty(count, np.uint32)
    places, bad = np.empty((7, count), np.int64), np.empty(count, np.int64)
    cdef int64_t[::1] times_out = times
    cdef uint32_t[::1] servers_out = servers
    cdef int64_t[:, ::1] places_out = places
    cdef int64_t[::1] bad_out = bad
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            wrong = fill(
                <const unsigned char*>view.buf, view.len, from_, sizes, times_out, servers_out, places_out, bad_out
            )
    finally:
        PyBuffer_Release(&view)
    if wrong == -2:
        raise ValueError("a message lies outside the buffer")
    return Columns(times, servers, *places, bad[:wrong])

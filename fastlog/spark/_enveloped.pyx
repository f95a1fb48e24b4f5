"""Columns out of envelopes, and envelopes out of columns: one walk, no object for any message."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy

from fastlog._bytes cimport put32
from fastlog._batch cimport Entry, next_entry
from fastlog._envelope cimport (
    DEDUPLICATION_LENGTH_BYTES, HAS_DEDUPLICATION, HAS_KEY, HAS_SCHEMA, HEAD_BYTES, KEY_LENGTH_BYTES,
    MAX_DEDUPLICATION_BYTES, PARSED, SCHEMA_BYTES, Parts, parse, put_deduplication, put_head, put_key,
)

cdef int64_t MOST_MS = 0x7FFFFFFFFFFFFFFF // 1000


@cython.final
cdef class Numbers:
    """A column of 64-bit numbers, some of which may be missing."""

    cdef readonly object array
    cdef readonly object valid
    cdef int64_t[::1] numbers
    cdef unsigned char[::1] flags

    def __init__(self, Py_ssize_t count):
        import numpy as np

        self.array, self.valid = np.zeros(count, np.int64), np.zeros(count, np.uint8)
        self.numbers, self.flags = self.array, self.valid

    cdef inline void put(self, Py_ssize_t row, int64_t number) noexcept nogil:
        self.numbers[row] = number
        self.flags[row] = 1


@cython.final
cdef class Bytes:
    """A column of bytes behind one another, some of which may be missing. For rows in ascending order."""

    cdef readonly object array
    cdef readonly object ends
    cdef readonly object valid
    cdef unsigned char[::1] data
    cdef int32_t[::1] stops
    cdef unsigned char[::1] flags

    def __init__(self, Py_ssize_t count, Py_ssize_t room):
        import numpy as np

        if room > 0x7FFFFFFF:
            raise ValueError("there is more room than ends can say")
        self.array, self.ends = np.empty(room, np.uint8), np.zeros(count + 1, np.int32)
        self.valid = np.zeros(count, np.uint8)
        self.data, self.stops, self.flags = self.array, self.ends, self.valid

    cdef inline bint put(self, Py_ssize_t row, const unsigned char* p, Py_ssize_t size) noexcept nogil:
        """Write a row, which has no bytes and is missing where ``size`` is below 0; False when there is no room."""
        cdef int32_t used = self.stops[row]
        if size < 0:
            self.stops[row + 1] = used
            return True
        if size > self.data.shape[0] - used:
            return False
        if size:
            memcpy(&self.data[used], p, <size_t>size)
        self.stops[row + 1] = used + <int32_t>size
        self.flags[row] = 1
        return True


def fill(
    entries, Py_ssize_t count, Py_ssize_t row, Numbers times, Numbers servers, Numbers schemas, Bytes keys,
    Bytes deduplications, Bytes values,
):
    cdef Py_buffer view
    cdef Entry entry
    cdef Parts parts
    cdef Py_ssize_t i, at = 0, bad = 0, first = -1, first_at = 0, first_bytes = 0
    cdef const unsigned char* p
    cdef bint fits = True
    for column in (times, servers, schemas, keys, deduplications, values):
        if column is not None and (row < 0 or count <= 0 or column.valid.shape[0] - count < row):
            raise ValueError("a column is too short, or there are no rows")
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            p = <const unsigned char*>view.buf
            for i in range(row, row + count):
                if not next_entry(p + at, view.len - at, &entry):
                    fits = False
                    break
                if parse(entry.payload, entry.payload_bytes, &parts) != PARSED:
                    if not bad:
                        first, first_at, first_bytes = i, entry.payload - p, entry.payload_bytes
                    bad += 1
                    parts.value = parts.key = parts.deduplication = 0
                    parts.key_bytes = parts.deduplication_bytes = -1
                else:
                    if times is not None and -MOST_MS <= parts.time_ms <= MOST_MS:
                        times.put(i, parts.time_ms * 1000)
                    if servers is not None:
                        servers.put(i, parts.server_id)
                    if schemas is not None and parts.schema_id >= 0:
                        schemas.put(i, parts.schema_id)
                fits = (
                    (keys is None or keys.put(i, entry.payload + parts.key, parts.key_bytes))
                    and (
                        deduplications is None
                        or deduplications.put(i, entry.payload + parts.deduplication, parts.deduplication_bytes)
                    )
                    and (
                        values is None
                        or values.put(i, entry.payload + parts.value, entry.payload_bytes - parts.value)
                    )
                )
                if not fits:
                    break
                at += entry.entry_bytes
        if not fits:
            raise BufferError("the bytes changed while they were read, or a column has no room for them")
        return bad, first, (<const unsigned char*>view.buf)[first_at:first_at + first_bytes] if bad else b""
    finally:
        PyBuffer_Release(&view)


cdef class Source:
    """A column of bytes as Arrow has it: row i lies from ends[i] to ends[i + 1] of data."""

    cdef const unsigned char[::1] data
    cdef const int32_t[::1] ends
    cdef const unsigned char[::1] flags     # or None: no row is missing
    cdef const unsigned char* base

    def __init__(self, const unsigned char[::1] data, const int32_t[::1] ends, const unsigned char[::1] valid):
        cdef Py_ssize_t i, count = ends.shape[0]
        if count < 1 or ends[0] < 0 or ends[count - 1] > data.shape[0]:
            raise ValueError("there are no ends, or they lie outside the data")
        for i in range(count - 1):
            if ends[i + 1] < ends[i]:
                raise ValueError("ends do not ascend")
        if valid is not None and valid.shape[0] != count - 1:
            raise ValueError("not one flag for each row")
        self.data, self.ends, self.flags = data, ends, valid
        self.base = &data[0] if data.shape[0] else NULL

    cdef inline Py_ssize_t size(self, Py_ssize_t row) noexcept nogil:
        """Its bytes, or -1 when it is missing."""
        if self.flags is not None and not self.flags[row]:
            return -1
        return self.ends[row + 1] - self.ends[row]


def wrap(
    Source values not None, const int64_t[::1] times not None, uint32_t server_id, const int64_t[::1] schemas,
    Source keys, Source deduplications,
):
    import numpy as np

    cdef Py_ssize_t count = values.ends.shape[0] - 1, i, n, room, at = 0, too_long = -1
    cdef int flags
    cdef unsigned char* out
    if times.shape[0] != count or (schemas is not None and schemas.shape[0] != count):
        raise ValueError("not one time, or not one schema id, for each row")
    for column in (keys, deduplications):
        if column is not None and (<Source>column).ends.shape[0] != count + 1:
            raise ValueError("columns have different lengths")
    room = count * (HEAD_BYTES + SCHEMA_BYTES + KEY_LENGTH_BYTES + DEDUPLICATION_LENGTH_BYTES)
    for column in (values, keys, deduplications):
        if column is not None:
            room += (<Source>column).ends[count] - (<Source>column).ends[0]
    if room > 0x7FFFFFFF:
        raise ValueError("a batch has more than 2 GiB: use smaller ones (spark.sql.execution.arrow.maxRecordsPerBatch)")
    data, ends = np.empty(max(room, 1), np.uint8), np.zeros(count + 1, np.int32)
    cdef unsigned char[::1] data_out = data
    cdef int32_t[::1] ends_out = ends
    with nogil:
        out = &data_out[0]
        for i in range(count):
            flags = 0
            n = at + HEAD_BYTES
            if schemas is not None and schemas[i] >= 0:
                flags |= HAS_SCHEMA
                put32(out + n, <uint32_t>schemas[i])
                n += SCHEMA_BYTES
            if keys is not None and keys.size(i) >= 0:
                flags |= HAS_KEY
                n += put_key(out + n, keys.base + keys.ends[i], keys.size(i))
            if deduplications is not None and deduplications.size(i) >= 0:
                if deduplications.size(i) > MAX_DEDUPLICATION_BYTES:
                    too_long = i
                    break
                flags |= HAS_DEDUPLICATION
                n += put_deduplication(out + n, deduplications.base + deduplications.ends[i], deduplications.size(i))
            put_head(out + at, flags, times[i], server_id)
            if values.size(i) > 0:
                memcpy(out + n, values.base + values.ends[i], <size_t>values.size(i))
                n += values.size(i)
            at = n
            ends_out[i + 1] = <int32_t>at
    if too_long >= 0:
        raise OverflowError(
            f"a deduplication id has at most {MAX_DEDUPLICATION_BYTES} bytes, not {deduplications.size(too_long)}"
        )
    return data, ends

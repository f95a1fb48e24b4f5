"""Writes the columns of a record batch: one walk over checked entries, no object for any of them."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from fastlog._batch cimport Entry, next_entry


cdef struct Target:
    # each NULL when the column is not wanted
    int64_t* offsets
    int64_t* next_offsets
    int32_t* indexes
    int32_t* ends           # one item more: ends[i + 1] is where the value of row i ends
    unsigned char* values
    Py_ssize_t room         # bytes of values


cdef Py_ssize_t walk(
    const unsigned char* p, Py_ssize_t size, Py_ssize_t count, int64_t offset, int64_t next_offset, bint inner,
    int32_t index, Py_ssize_t row, Target* out
) noexcept nogil:
    """Write ``count`` rows from ``row`` on; the bytes of values there are then, or -1."""
    cdef Entry entry
    cdef Py_ssize_t at = 0, i, used = out.ends[row] if out.ends != NULL else 0
    for i in range(row, row + count):
        if not next_entry(p + at, size - at, &entry):
            return -1
        at += entry.entry_bytes
        if out.offsets != NULL:
            out.offsets[i] = offset
        if not inner:
            offset += entry.entry_bytes
        if out.next_offsets != NULL:
            out.next_offsets[i] = next_offset if inner and i == row + count - 1 else offset
        if out.indexes != NULL:
            out.indexes[i] = index
            index += inner
        if out.ends != NULL:
            if entry.payload_bytes > out.room - used:
                return -1
            if entry.payload_bytes:  # empty payloads alone have no room, and no place to go
                memcpy(out.values + used, entry.payload, <size_t>entry.payload_bytes)
                used += entry.payload_bytes
            out.ends[i + 1] = <int32_t>used
    return used


def fill(
    entries, Py_ssize_t count, int64_t offset, int64_t next_offset, bint inner, int32_t index, Py_ssize_t row,
    int64_t[::1] offsets, int64_t[::1] next_offsets, int32_t[::1] indexes, int32_t[::1] ends,
    unsigned char[::1] values,
):
    cdef Py_buffer view
    cdef Target out
    cdef Py_ssize_t used
    if count <= 0:
        raise ValueError("no rows")
    if row < 0 or (ends is None) != (values is None):
        raise ValueError("the row is negative, or there are ends without values")
    if (
        (offsets is not None and offsets.shape[0] - count < row)
        or (next_offsets is not None and next_offsets.shape[0] - count < row)
        or (indexes is not None and indexes.shape[0] - count < row)
    ):
        raise ValueError("a column is too short")
    out.offsets = NULL if offsets is None else &offsets[0]
    out.next_offsets = NULL if next_offsets is None else &next_offsets[0]
    out.indexes = NULL if indexes is None else &indexes[0]
    out.ends = NULL
    out.values = NULL
    out.room = 0
    if ends is not None:
        if ends.shape[0] - count <= row or values.shape[0] > 0x7FFFFFFF:
            raise ValueError("there are fewer ends than rows, or more room for values than they can say")
        out.ends = &ends[0]
        out.room = values.shape[0]
        if out.room:
            out.values = &values[0]
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            used = walk(<const unsigned char*>view.buf, view.len, count, offset, next_offset, inner, index, row, &out)
    finally:
        PyBuffer_Release(&view)
    if used < 0:
        raise BufferError("the bytes changed while they were read, or the values do not fit")

"""Rows of columns as messages: put into buffers from where they lie, with no object for any of them."""

from libc.stdint cimport int32_t, uint32_t

from fastlog._bytes cimport GIL_SPAN_BYTES
from fastlog._crc cimport crc32_span
from fastlog.producer._buffer cimport Buffer


cdef int check_ends(const int32_t[::1] ends, const unsigned char[::1] data) except -1:
    """Ends come from outside: see that every row lies inside the data."""
    cdef Py_ssize_t i, count = ends.shape[0]
    if count < 1 or ends[0] < 0 or ends[count - 1] > data.shape[0]:
        raise ValueError("there are no ends, or they lie outside the data")
    for i in range(count - 1):
        if ends[i + 1] < ends[i]:
            raise ValueError("ends do not ascend")
    return 0


def put_rows(
    list buffers, const int32_t[::1] destinations, const unsigned char[::1] data, const int32_t[::1] ends,
    Py_ssize_t start,
):
    cdef Py_ssize_t i, n, count = ends.shape[0] - 1, places = len(buffers)
    cdef const unsigned char* base = NULL
    cdef const unsigned char* p
    cdef uint32_t crc
    cdef Buffer buffer = None
    check_ends(ends, data)
    if start < 0 or places < 1 or (destinations is not None and destinations.shape[0] != count):
        raise ValueError("the start is negative, or there are no buffers, or not one destination for each row")
    if data.shape[0]:
        base = &data[0]
    if destinations is None:
        buffer = <Buffer?>buffers[0]
    i = start
    while i < count:
        if destinations is not None:
            if not 0 <= destinations[i] < places:
                raise ValueError("a destination is none of the buffers")
            buffer = <Buffer?>buffers[destinations[i]]
        if buffer.quota.is_full():
            break
        n = ends[i + 1] - ends[i]
        p = base + ends[i] if n else base
        if n > buffer.max_payload:
            buffer.check(n)
        if n < GIL_SPAN_BYTES:
            crc = crc32_span(0, p, <size_t>n)
        else:
            with nogil:  # before the buffer is touched: another thread may use it meanwhile
                crc = crc32_span(0, p, <size_t>n)
        buffer.put_span(p, n, crc, NULL)
        i += 1
    return i


def hash_rows(const unsigned char[::1] data, const int32_t[::1] ends, uint32_t[::1] hashes):
    cdef Py_ssize_t i, count = ends.shape[0] - 1
    cdef const unsigned char* base = NULL
    check_ends(ends, data)
    if hashes.shape[0] != count:
        raise ValueError("not one hash for each row")
    if data.shape[0]:
        base = &data[0]
    with nogil:
        for i in range(count):
            hashes[i] = crc32_span(0, base + ends[i] if base != NULL else NULL, <size_t>(ends[i + 1] - ends[i])) & 0x7FFFFFFF

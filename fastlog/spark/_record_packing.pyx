"""Records of a batch out of columns as Arrow has them, and the hash by which a key chooses its partition.

``fastlog._records`` has the table of the bytes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t

from fastlog._records cimport field_bytes_of, put_bytes, put_record_start, put_varint, record_bytes, varint_bytes

cdef enum:
    SEED = 0x9747B28C
    MULTIPLIER = 0x5BD1E995
    SHIFT = 24
    NO_ROW = -1


cdef class Source:
    """A column of bytes as Arrow has it: row i lies from ends[i] to ends[i + 1] of data."""

    cdef const unsigned char[::1] data
    cdef const int32_t[::1] ends
    cdef const unsigned char[::1] flags     # or None: no row is missing
    cdef const uint8_t* base
    cdef readonly Py_ssize_t count

    def __init__(self, const unsigned char[::1] data, const int32_t[::1] ends, const unsigned char[::1] valid):
        cdef Py_ssize_t i
        self.count = ends.shape[0] - 1
        if self.count < 0 or ends[0] < 0 or ends[self.count] > data.shape[0]:
            raise ValueError("there are no ends, or they lie outside the data")
        for i in range(self.count):
            if ends[i + 1] < ends[i]:
                raise ValueError("ends do not ascend")
        if valid is not None and valid.shape[0] != self.count:
            raise ValueError("not one flag for each row")
        self.data, self.ends, self.flags = data, ends, valid
        self.base = &data[0] if data.shape[0] else NULL

    cdef inline Py_ssize_t size(self, Py_ssize_t row) noexcept nogil:
        """Its bytes, or -1 when it is missing."""
        if self.flags is not None and not self.flags[row]:
            return -1
        return self.ends[row + 1] - self.ends[row]

    cdef inline Py_ssize_t field_bytes(self, Py_ssize_t row) noexcept nogil:
        """What it takes in a record, with its length."""
        return field_bytes_of(self.size(row))

    cdef inline uint8_t* put(self, uint8_t* at, Py_ssize_t row) noexcept nogil:
        return put_bytes(at, self.base + self.ends[row], self.size(row))


cdef class Headers:
    """A column of headers: those of row i are from ends[i] to ends[i + 1] of names and values."""

    cdef const int32_t[::1] ends
    cdef const unsigned char[::1] flags     # or None: no row is null
    cdef Source names
    cdef Source values

    def __init__(
        self, const int32_t[::1] ends, const unsigned char[::1] valid, Source names not None, Source values not None
    ):
        cdef Py_ssize_t i, count = ends.shape[0] - 1
        if count < 0 or ends[0] < 0 or ends[count] > names.count or names.count != values.count:
            raise ValueError("there are no ends, or they lie outside the names and the values")
        for i in range(count):
            if ends[i + 1] < ends[i]:
                raise ValueError("ends do not ascend")
        if valid is not None and valid.shape[0] != count:
            raise ValueError("not one flag for each row")
        if names.flags is not None:
            for i in range(ends[0], ends[count]):
                if not names.flags[i]:
                    raise ValueError("a header has no key")
        self.ends, self.flags, self.names, self.values = ends, valid, names, values

    cdef inline Py_ssize_t number(self, Py_ssize_t row) noexcept nogil:
        if self.flags is not None and not self.flags[row]:
            return 0
        return self.ends[row + 1] - self.ends[row]

    cdef Py_ssize_t field_bytes(self, Py_ssize_t row) noexcept nogil:
        cdef Py_ssize_t number = self.number(row), i
        cdef Py_ssize_t size = varint_bytes(number)
        for i in range(self.ends[row], self.ends[row] + number):
            size += self.names.field_bytes(i) + self.values.field_bytes(i)
        return size

    cdef uint8_t* put(self, uint8_t* at, Py_ssize_t row) noexcept nogil:
        cdef Py_ssize_t number = self.number(row), i
        at = put_varint(at, number)
        for i in range(self.ends[row], self.ends[row] + number):
            at = self.values.put(self.names.put(at, i), i)
        return at


cdef inline Py_ssize_t size_of(
    Py_ssize_t row, int64_t delta, int64_t time_delta, Source keys, Source values, Headers headers
) noexcept nogil:
    """Of a record behind its length."""
    return record_bytes(
        time_delta,
        delta,
        (1 if keys is None else keys.field_bytes(row))
        + values.field_bytes(row)
        + (1 if headers is None else headers.field_bytes(row)),
    )


def pack_rows(
    const int32_t[::1] rows not None, Py_ssize_t first, Source keys, Source values not None,
    const int64_t[::1] times not None, Headers headers, Py_ssize_t most_bytes, Py_ssize_t most_rows,
):
    cdef Py_ssize_t count = rows.shape[0], i, row, size, room = 0, taken = 0
    cdef int64_t base, delta, latest
    cdef uint8_t* at
    if not 0 <= first < count or most_rows < 1:
        raise ValueError("there is no such row")
    if times.shape[0] != values.count or (keys is not None and keys.count != values.count) or (
        headers is not None and headers.ends.shape[0] - 1 != values.count
    ):
        raise ValueError("columns have different lengths")
    for i in range(first, count):
        if not 0 <= rows[i] < values.count:
            raise ValueError("there is no such row")
    base = latest = times[rows[first]]
    with nogil:
        for i in range(first, count):
            row = rows[i]
            if taken == most_rows or taken == INT32_MAX:
                break
            delta = times[row] - base                    # of microseconds that were divided: no overflow
            size = size_of(row, taken, delta, keys, values, headers)
            size += varint_bytes(size)
            if taken and size > most_bytes - room:
                break
            if size > INT32_MAX - 1024 - room:
                break
            room += size
            latest = max(latest, times[row])
            taken += 1
    if not taken:
        raise ValueError("a record is larger than any batch")
    found = PyBytes_FromStringAndSize(NULL, room)
    at = <uint8_t*>PyBytes_AS_STRING(found)
    with nogil:
        for i in range(taken):
            row = rows[first + i]
            delta = times[row] - base
            at = put_record_start(at, size_of(row, i, delta, keys, values, headers), delta, i)
            at = put_bytes(at, NULL, -1) if keys is None else keys.put(at, row)
            at = values.put(at, row)
            at = put_varint(at, 0) if headers is None else headers.put(at, row)
    if at - <uint8_t*>PyBytes_AS_STRING(found) != room:
        raise BufferError("the columns changed while they were read")
    return found, taken, base, latest


cdef inline uint32_t little(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24


cdef uint32_t murmur2(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """As Kafka's Java clients have it (org.apache.kafka.common.utils.Utils)."""
    cdef uint32_t found = <uint32_t>SEED ^ <uint32_t>size, part
    while size >= 4:
        part = little(p) * <uint32_t>MULTIPLIER
        part = (part ^ (part >> SHIFT)) * <uint32_t>MULTIPLIER
        found = (found * <uint32_t>MULTIPLIER) ^ part
        p += 4
        size -= 4
    if size == 3:
        found ^= <uint32_t>p[2] << 16
    if size >= 2:
        found ^= <uint32_t>p[1] << 8
    if size >= 1:
        found = (found ^ p[0]) * <uint32_t>MULTIPLIER
    found = (found ^ (found >> 13)) * <uint32_t>MULTIPLIER
    return found ^ (found >> 15)


def hash_keys(Source keys not None):
    import numpy as np

    cdef Py_ssize_t i, size
    made = np.empty(keys.count, np.int64)
    cdef int64_t[::1] out = made
    with nogil:
        for i in range(keys.count):
            size = keys.size(i)
            out[i] = NO_ROW if size < 0 else murmur2(keys.base + keys.ends[i], size) & 0x7FFFFFFF
    return made

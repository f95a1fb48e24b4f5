"""Checks, reads and builds the records of a batch of magic 2, uncompressed.

Records stand back to back, without padding. A varint is base 128, the low seven bits first, of a zigzag number (0, -1, 1,
-2, 2 …); one of 32 bits has at most five bytes, one of 64 bits at most ten:

    bytes          field
    varint         N, the bytes of the record after this field
    1              attributes; no bit has a meaning yet, none is looked at
    varint, 64     timestamp minus the batch's base timestamp
    varint         offset minus the batch's base offset: 0, 1, 2 …
    varint         k, the bytes of the key; -1: null
    k              key
    varint         v, the bytes of the value; -1: null
    v              value
    varint         h, the number of headers, and h times
        varint         bytes of the header's key, which cannot be null
        ...            header key, UTF-8 (not looked at)
        varint         bytes of the header's value; -1: null
        ...            header value

A number with more bytes than it needs is read as what it means, as Kafka reads it. Three things are refused that Kafka's
broker lets pass, because its clients do not agree on what they mean: bits of a number's last byte beyond its 32 or 64,
null written as another negative length than -1, and offset deltas that are not dense.

Source: Apache Kafka 4.2 (DefaultRecord, ByteUtils).
"""

from collections import namedtuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from fastlog._bytes cimport GIL_SPAN_BYTES

cdef enum:
    MAX_LENGTH_BYTES = 5

cdef extern from *:
    """
    #define difference_overflows(a, b, difference) __builtin_sub_overflow(a, b, difference)
    """
    bint difference_overflows(int64_t a, int64_t b, int64_t* difference) noexcept nogil

RecordsResult = namedtuple("RecordsResult", ("status", "valid_bytes", "count", "max_timestamp", "max_timestamp_delta"))
RecordsResult.__doc__ = "What one walk over records found."
RecordsResult.__module__ = "fastlog._records"

# The names of the .pxd's enum are C constants here; Python gets the same numbers under the same names.
globals().update(
    RECORDS_OK=<int>RECORDS_OK,
    RECORDS_TAIL=<int>RECORDS_TAIL,
    RECORDS_LEFT=<int>RECORDS_LEFT,
    RECORDS_COUNT=<int>RECORDS_COUNT,
    RECORDS_VARINT=<int>RECORDS_VARINT,
    RECORDS_LENGTH=<int>RECORDS_LENGTH,
    RECORDS_FIELD=<int>RECORDS_FIELD,
    RECORDS_OFFSET=<int>RECORDS_OFFSET,
    RECORDS_TIMESTAMP=<int>RECORDS_TIMESTAMP,
)


cdef int walk_fields(
    const uint8_t* p, const uint8_t* end, int64_t expected_delta, int64_t base_timestamp, int64_t* timestamp
) noexcept nogil:
    """Check the record p … end, its length field left out; answers RECORDS_OK or what is wrong."""
    cdef RecordFields fields
    cdef int status = read_fields(p, end, expected_delta, expected_delta, base_timestamp, &fields)
    if status == RECORDS_OK:
        timestamp[0] = fields.timestamp
    return status


cdef void begin_walk(RecordsFound* found) noexcept nogil:
    found.valid_bytes = 0
    found.needed_bytes = 0
    found.count = 0
    found.max_timestamp = INT64_MIN
    found.max_timestamp_delta = 0
    found.status = RECORDS_TAIL


cdef int walk_more(
    const uint8_t* p, uint64_t n, int64_t count, int64_t base_timestamp, RecordsFound* found
) noexcept nogil:
    cdef const uint8_t* at = p
    cdef const uint8_t* end = p + n
    cdef const uint8_t* begin
    cdef int64_t done = found.count, timestamp = 0
    cdef int32_t size = 0
    cdef int number, status = RECORDS_OK
    found.valid_bytes = 0
    found.needed_bytes = 0
    if count < 0 or count > INT32_MAX:                  # the header's field for it is signed, too
        found.status = RECORDS_COUNT
        return RECORDS_COUNT
    while done < count:
        begin = at
        number = take_int32(&begin, end, &size)
        if number != NUMBER_WHOLE:
            status = RECORDS_TAIL if number == NUMBER_CUT else RECORDS_VARINT
            break
        if size < MIN_RECORD_BYTES:
            status = RECORDS_LENGTH
            break
        if size > end - begin:
            status = RECORDS_TAIL
            found.needed_bytes = <uint64_t>(begin - at) + <uint64_t>size
            break
        status = walk_fields(begin, begin + size, done, base_timestamp, &timestamp)
        if status != RECORDS_OK:
            break
        if timestamp > found.max_timestamp or done == 0:
            found.max_timestamp = timestamp
            found.max_timestamp_delta = done
        done += 1
        at = begin + size
    if status == RECORDS_OK and at != end:
        status = RECORDS_LEFT
    found.valid_bytes = <uint64_t>(at - p)
    found.count = done
    found.status = status
    return status


cdef int walk_records(
    const uint8_t* p, uint64_t n, int64_t count, int64_t base_timestamp, RecordsFound* out
) noexcept nogil:
    begin_walk(out)
    return walk_more(p, n, count, base_timestamp, out)


cdef bint is_of_record(const RecordsFound* found, uint64_t n) noexcept nogil:
    if found.status == RECORDS_TAIL:                    # cut, or just not there
        return found.valid_bytes < n
    return found.status >= RECORDS_VARINT


cdef const char* reason_of(int status) noexcept nogil:
    if status == RECORDS_TAIL:
        return "its data ends before its last record does"
    if status == RECORDS_LEFT:
        return "bytes are left behind its last record"
    if status == RECORDS_COUNT:
        return "its number of records cannot be"
    if status == RECORDS_VARINT:
        return "a number does not fit its type"
    if status == RECORDS_LENGTH:
        return "a record is longer or shorter than its fields"
    if status == RECORDS_FIELD:
        return "the length of a field or the number of headers cannot be"
    if status == RECORDS_OFFSET:
        return "the offset deltas are not 0, 1, 2 and so on"
    if status == RECORDS_TIMESTAMP:
        return "a timestamp does not fit 64 bits"
    return NULL


def walk(buffer, int64_t count, int64_t base_timestamp=0):
    cdef Py_buffer view
    cdef RecordsFound found
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if view.len >= GIL_SPAN_BYTES:
            with nogil:
                walk_records(<const uint8_t*>view.buf, <uint64_t>view.len, count, base_timestamp, &found)
        else:
            walk_records(<const uint8_t*>view.buf, <uint64_t>view.len, count, base_timestamp, &found)
    finally:
        PyBuffer_Release(&view)
    return RecordsResult(
        found.status,
        found.valid_bytes,
        found.count,
        found.max_timestamp if found.count else None,
        found.max_timestamp_delta if found.count else None,
    )


cdef object take_field(const uint8_t** at, const uint8_t* end):
    """A length and so many bytes as an object. The walk before made the lengths facts; they are compared once more
    because a mapped buffer may change between the two, and then an exception beats a wild read."""
    cdef int32_t size = 0
    if take_int32(at, end, &size) != NUMBER_WHOLE or size > end - at[0]:
        raise BufferError("the bytes changed while they were read")
    if size < 0:
        return None
    field = PyBytes_FromStringAndSize(<const char*>at[0], size)
    at[0] += size
    return field


def entries(buffer, int64_t count, int64_t base_timestamp=0, int64_t base_offset=0):
    cdef Py_buffer view
    cdef RecordsFound found
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef int64_t timestamp_delta = 0
    cdef int32_t number = 0, headers = 0
    cdef int64_t i
    cdef list result = []
    cdef list pairs
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        walk_records(<const uint8_t*>view.buf, <uint64_t>view.len, count, base_timestamp, &found)
        if base_offset < 0 or base_offset > INT64_MAX - found.count:
            raise ValueError(f"base_offset {base_offset} is not an offset that these records can start at")
        at = <const uint8_t*>view.buf
        end = at + found.valid_bytes
        for i in range(found.count):
            if take_int32(&at, end, &number) != NUMBER_WHOLE or at == end:
                raise BufferError("the bytes changed while they were read")
            at += 1
            if take_int64(&at, end, &timestamp_delta) != NUMBER_WHOLE or take_int32(&at, end, &number) != NUMBER_WHOLE:
                raise BufferError("the bytes changed while they were read")
            key = take_field(&at, end)
            value = take_field(&at, end)
            if take_int32(&at, end, &headers) != NUMBER_WHOLE:
                raise BufferError("the bytes changed while they were read")
            pairs = []
            while headers > 0:
                name = take_field(&at, end)
                pairs.append((name, take_field(&at, end)))
                headers -= 1
            result.append((key, value, <object>base_timestamp + timestamp_delta, tuple(pairs), base_offset + i))
    finally:
        PyBuffer_Release(&view)
    return result


cdef Py_ssize_t field_bytes(object field, bint may_be_none) except -1:
    if field is None and may_be_none:
        return field_bytes_of(-1)
    if not isinstance(field, bytes):
        raise TypeError(f"a key, value or header is {type(field).__name__}, not bytes")
    return field_bytes_of(PyBytes_GET_SIZE(field))


cdef uint8_t* put_field(uint8_t* at, object field) noexcept:
    if field is None:
        return put_bytes(at, NULL, -1)
    return put_bytes(at, <const uint8_t*>PyBytes_AS_STRING(field), PyBytes_GET_SIZE(field))


def pack(records, int64_t base_timestamp=0):
    cdef Py_ssize_t used = 0, room = 1024, size, delta = 0
    cdef int64_t timestamp, timestamp_delta = 0
    cdef uint8_t* at
    cdef bytearray out = PyByteArray_FromStringAndSize(NULL, room)
    for key, value, record_timestamp, headers in records:
        pairs = tuple(headers)
        timestamp = record_timestamp
        if difference_overflows(timestamp, base_timestamp, &timestamp_delta):
            raise ValueError(f"timestamp {timestamp} is too far from the base timestamp {base_timestamp}")
        size = record_bytes(timestamp_delta, delta, varint_bytes(len(pairs)))
        size += field_bytes(key, True) + field_bytes(value, True)
        for name, header_value in pairs:
            size += field_bytes(name, False) + field_bytes(header_value, True)
        if size > INT32_MAX or delta == INT32_MAX:
            raise ValueError(f"record {delta} has {size} bytes; lengths and counts end at {INT32_MAX}")
        if room - used < size + MAX_LENGTH_BYTES:
            room = used + used // 2 + size + MAX_LENGTH_BYTES
            PyByteArray_Resize(out, room)
        # No Python code runs from here to the last field, so each has the size that was measured.
        at = <uint8_t*>PyByteArray_AS_STRING(out) + used
        at = put_record_start(at, size, timestamp_delta, delta)
        at = put_field(at, key)
        at = put_field(at, value)
        at = put_varint(at, len(pairs))
        for name, header_value in pairs:
            at = put_field(at, name)
            at = put_field(at, header_value)
        used = at - <uint8_t*>PyByteArray_AS_STRING(out)
        delta += 1
    return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(out), used)

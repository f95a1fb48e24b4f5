"""Checks and reads the records of a batch of magic 2, uncompressed.

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
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    MIN_RECORD_BYTES = 6          # behind its length: attributes, two deltas, two lengths, the number of headers
    MIN_HEADER_BYTES = 2
    GIL_SPAN_BYTES = 65536        # a shorter walk ends sooner than a second thread could take the lock

    NUMBER_WHOLE = 0
    NUMBER_CUT = 1                # the bytes end inside it
    NUMBER_LONG = 2               # it does not fit its type

cdef extern from *:
    """
    #define sum_overflows(a, b, sum) __builtin_add_overflow(a, b, sum)
    """
    bint sum_overflows(int64_t a, int64_t b, int64_t* sum) noexcept nogil

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


cdef inline int take_int32(const uint8_t** at, const uint8_t* end, int32_t* value) noexcept nogil:
    """Read a varint of 32 bits and move behind it; answers a ``NUMBER_``, and moves for a whole one only."""
    cdef const uint8_t* p = at[0]
    cdef uint32_t bits = 0
    cdef int shift = 0
    while True:
        if p == end:
            return NUMBER_CUT
        if shift == 28 and p[0] > 0x0F:
            return NUMBER_LONG
        bits |= <uint32_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            break
        p += 1
        shift += 7
    at[0] = p + 1
    value[0] = <int32_t>((bits >> 1) ^ (0 - (bits & 1)))
    return NUMBER_WHOLE


cdef inline int take_int64(const uint8_t** at, const uint8_t* end, int64_t* value) noexcept nogil:
    """The same for 64 bits."""
    cdef const uint8_t* p = at[0]
    cdef uint64_t bits = 0
    cdef int shift = 0
    while True:
        if p == end:
            return NUMBER_CUT
        if shift == 63 and p[0] > 0x01:
            return NUMBER_LONG
        bits |= <uint64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            break
        p += 1
        shift += 7
    at[0] = p + 1
    value[0] = <int64_t>((bits >> 1) ^ (0 - (bits & 1)))
    return NUMBER_WHOLE


cdef inline int field_fault(int number) noexcept nogil:
    """The status for a number of a record that could not be taken: its bytes end with the record at the latest."""
    return RECORDS_LENGTH if number == NUMBER_CUT else RECORDS_VARINT


cdef inline int skip_bytes(const uint8_t** at, const uint8_t* end, int32_t least) noexcept nogil:
    """Move over a length and so many bytes; ``least`` is -1 where null may be. Answers RECORDS_OK or what is wrong."""
    cdef int32_t size = 0
    cdef int number = take_int32(at, end, &size)
    if number != NUMBER_WHOLE:
        return field_fault(number)
    if size < least:
        return RECORDS_FIELD
    if size > end - at[0]:
        return RECORDS_LENGTH
    if size > 0:
        at[0] += size
    return RECORDS_OK


cdef int walk_fields(
    const uint8_t* p, const uint8_t* end, int64_t expected_delta, int64_t base_timestamp, int64_t* timestamp
) noexcept nogil:
    """Check the record p … end, its length field left out; answers RECORDS_OK or what is wrong."""
    cdef int64_t timestamp_delta = 0
    cdef int32_t offset_delta = 0, headers = 0
    cdef int number, status
    p += 1                                              # attributes; the caller knows that MIN_RECORD_BYTES are there
    number = take_int64(&p, end, &timestamp_delta)
    if number != NUMBER_WHOLE:
        return field_fault(number)
    if sum_overflows(base_timestamp, timestamp_delta, timestamp):
        return RECORDS_TIMESTAMP
    number = take_int32(&p, end, &offset_delta)
    if number != NUMBER_WHOLE:
        return field_fault(number)
    if offset_delta != expected_delta:
        return RECORDS_OFFSET
    status = skip_bytes(&p, end, -1)
    if status == RECORDS_OK:
        status = skip_bytes(&p, end, -1)
    if status != RECORDS_OK:
        return status
    number = take_int32(&p, end, &headers)
    if number != NUMBER_WHOLE:
        return field_fault(number)
    if headers < 0:
        return RECORDS_FIELD
    if headers > (end - p) // MIN_HEADER_BYTES:
        return RECORDS_LENGTH
    while headers > 0:
        status = skip_bytes(&p, end, 0)
        if status == RECORDS_OK:
            status = skip_bytes(&p, end, -1)
        if status != RECORDS_OK:
            return status
        headers -= 1
    return RECORDS_OK if p == end else RECORDS_LENGTH


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

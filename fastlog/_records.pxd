from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum RecordsStatus:
    RECORDS_OK = 0          # as many records as were asked for, and nothing behind them
    RECORDS_TAIL = 1        # the bytes end before the last record does
    RECORDS_LEFT = 2        # bytes are left behind the last record
    RECORDS_COUNT = 3       # no batch can hold so many records
    RECORDS_VARINT = 4      # a number that does not fit its 32 or 64 bits
    RECORDS_LENGTH = 5      # a record's length that is not what its fields take
    RECORDS_FIELD = 6       # a field's length, or a number of headers, that cannot be
    RECORDS_OFFSET = 7      # an offset delta that is not the one before plus 1, the first 0
    RECORDS_TIMESTAMP = 8   # a timestamp beyond 64 bits

cdef enum:
    MIN_RECORD_BYTES = 6          # behind its length: attributes, two deltas, two lengths, the number of headers
    MIN_HEADER_BYTES = 2

    NUMBER_WHOLE = 0
    NUMBER_CUT = 1                # the bytes end inside it
    NUMBER_LONG = 2               # it does not fit its type

cdef extern from *:
    """
    #define sum_overflows(a, b, sum) __builtin_add_overflow(a, b, sum)
    """
    bint sum_overflows(int64_t a, int64_t b, int64_t* sum) noexcept nogil


cdef struct RecordFields:
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers        # the first one's key; behind their number
    int32_t key_bytes             # -1: null
    int32_t value_bytes           # -1: null
    int32_t header_count
    int32_t offset_delta
    int64_t timestamp


# What reads one record is here, so that whoever walks records in C has it inline. Nearly all numbers of a record have
# one byte or two, so these are read first.
cdef inline int take_int32(const uint8_t** at, const uint8_t* end, int32_t* value) noexcept nogil:
    """Read a varint of 32 bits and move behind it; answers a ``NUMBER_``, and moves for a whole one only."""
    cdef const uint8_t* p = at[0]
    cdef uint32_t bits
    cdef int shift
    if end - p < 2:
        if p == end or p[0] >= 0x80:
            return NUMBER_CUT
    bits = p[0]
    if bits >= 0x80:
        bits = (bits & 0x7F) | <uint32_t>(p[1] & 0x7F) << 7
        p += 1
        shift = 14
        while p[0] >= 0x80:
            p += 1
            if p == end:
                return NUMBER_CUT
            if shift == 28 and p[0] > 0x0F:
                return NUMBER_LONG
            bits |= <uint32_t>(p[0] & 0x7F) << shift
            shift += 7
    at[0] = p + 1
    value[0] = <int32_t>((bits >> 1) ^ (0 - (bits & 1)))
    return NUMBER_WHOLE


cdef inline int take_int64(const uint8_t** at, const uint8_t* end, int64_t* value) noexcept nogil:
    """The same for 64 bits."""
    cdef const uint8_t* p = at[0]
    cdef uint64_t bits
    cdef int shift
    if end - p < 2:
        if p == end or p[0] >= 0x80:
            return NUMBER_CUT
    bits = p[0]
    if bits >= 0x80:
        bits = (bits & 0x7F) | <uint64_t>(p[1] & 0x7F) << 7
        p += 1
        shift = 14
        while p[0] >= 0x80:
            p += 1
            if p == end:
                return NUMBER_CUT
            if shift == 63 and p[0] > 0x01:
                return NUMBER_LONG
            bits |= <uint64_t>(p[0] & 0x7F) << shift
            shift += 7
    at[0] = p + 1
    value[0] = <int64_t>((bits >> 1) ^ (0 - (bits & 1)))
    return NUMBER_WHOLE


cdef inline bint pass_number(const uint8_t** at, const uint8_t* end) noexcept nogil:
    """Move behind a varint of a record that was checked; False where it does not end before ``end``."""
    cdef const uint8_t* p = at[0]
    while p < end:
        if p[0] < 0x80:
            at[0] = p + 1
            return True
        p += 1
    return False


cdef inline int field_fault(int number) noexcept nogil:
    """The status for a number of a record that could not be taken: its bytes end with the record at the latest."""
    return RECORDS_LENGTH if number == NUMBER_CUT else RECORDS_VARINT


cdef inline int take_bytes(
    const uint8_t** at, const uint8_t* end, int32_t least, const uint8_t** field, int32_t* size
) noexcept nogil:
    """Move over a length and so many bytes; ``least`` is -1 where null may be. Answers RECORDS_OK or what is wrong."""
    cdef int number = take_int32(at, end, size)
    if number != NUMBER_WHOLE:
        return field_fault(number)
    if size[0] < least:
        return RECORDS_FIELD
    if size[0] > end - at[0]:
        return RECORDS_LENGTH
    field[0] = at[0]
    if size[0] > 0:
        at[0] += size[0]
    return RECORDS_OK


cdef inline int read_fields(
    const uint8_t* p, const uint8_t* end, int64_t least_delta, int64_t most_delta, int64_t base_timestamp,
    RecordFields* out
) noexcept nogil:
    """Check and describe the record p … end, its length field left out; answers RECORDS_OK or what is wrong.

    ``end`` is MIN_RECORD_BYTES behind ``p`` at least. The offset delta is to lie between the two given.
    """
    cdef const uint8_t* field = NULL
    cdef int64_t timestamp_delta = 0
    cdef int32_t size = 0, left
    cdef int number, status
    p += 1                                              # attributes
    number = take_int64(&p, end, &timestamp_delta)
    if number != NUMBER_WHOLE:
        return field_fault(number)
    if sum_overflows(base_timestamp, timestamp_delta, &out.timestamp):
        return RECORDS_TIMESTAMP
    number = take_int32(&p, end, &out.offset_delta)
    if number != NUMBER_WHOLE:
        return field_fault(number)
    if out.offset_delta < least_delta or out.offset_delta > most_delta:
        return RECORDS_OFFSET
    status = take_bytes(&p, end, -1, &out.key, &out.key_bytes)
    if status == RECORDS_OK:
        status = take_bytes(&p, end, -1, &out.value, &out.value_bytes)
    if status != RECORDS_OK:
        return status
    number = take_int32(&p, end, &out.header_count)
    if number != NUMBER_WHOLE:
        return field_fault(number)
    if out.header_count < 0:
        return RECORDS_FIELD
    if out.header_count > (end - p) // MIN_HEADER_BYTES:
        return RECORDS_LENGTH
    out.headers = p
    left = out.header_count
    while left > 0:
        status = take_bytes(&p, end, 0, &field, &size)
        if status == RECORDS_OK:
            status = take_bytes(&p, end, -1, &field, &size)
        if status != RECORDS_OK:
            return status
        left -= 1
    return RECORDS_OK if p == end else RECORDS_LENGTH


# What writes a number of a record.
cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ (0 - (<uint64_t>number >> 63))


cdef inline Py_ssize_t varint_bytes(int64_t number) noexcept nogil:
    cdef uint64_t bits = zigzag(number)
    cdef Py_ssize_t count
    if bits < 1 << 7:
        return 1
    if bits < 1 << 14:
        return 2
    count = 3
    bits >>= 21
    while bits:
        bits >>= 7
        count += 1
    return count


cdef inline uint8_t* put_varint(uint8_t* at, int64_t number) noexcept nogil:
    cdef uint64_t bits = zigzag(number)
    if bits < 1 << 14:                                    # most are: without a loop
        at[0] = <uint8_t>bits
        if bits < 1 << 7:
            return at + 1
        at[0] = <uint8_t>(bits | 0x80)
        at[1] = <uint8_t>(bits >> 7)
        return at + 2
    while bits > 0x7F:
        at[0] = <uint8_t>(bits | 0x80)
        at += 1
        bits >>= 7
    at[0] = <uint8_t>bits
    return at + 1


# What writes a record: its start, then key, value and headers, each by put_bytes or as whoever calls has it.
cdef enum:
    MOST_RECORD_EXTRA_BYTES = 31  # of a record besides its key, value and headers: lengths, deltas, attributes


cdef inline Py_ssize_t field_bytes_of(Py_ssize_t size) noexcept nogil:
    """What so many bytes take behind their length; -1: null."""
    return 1 if size < 0 else varint_bytes(size) + size


cdef inline uint8_t* put_bytes(uint8_t* at, const uint8_t* field, Py_ssize_t size) noexcept nogil:
    """Write bytes behind their length; -1: null."""
    at = put_varint(at, size)
    if size > 0:
        memcpy(at, field, <size_t>size)
        at += size
    return at


cdef inline Py_ssize_t record_bytes(int64_t time_delta, int64_t delta, Py_ssize_t field_bytes) noexcept nogil:
    """Of a record behind its length; ``field_bytes``: of key, value and headers, with their lengths and number."""
    return 1 + varint_bytes(time_delta) + varint_bytes(delta) + field_bytes


cdef inline uint8_t* put_record_fields(uint8_t* at, int64_t time_delta, int64_t delta) noexcept nogil:
    """Write what stands between a record's length and its key."""
    at[0] = 0
    return put_varint(put_varint(at + 1, time_delta), delta)


cdef inline uint8_t* put_record_start(uint8_t* at, Py_ssize_t size, int64_t time_delta, int64_t delta) noexcept nogil:
    """Write what stands before the key; ``size`` as ``record_bytes`` tells."""
    return put_record_fields(put_varint(at, size), time_delta, delta)


cdef struct RecordsFound:
    uint64_t valid_bytes          # end of the last whole and valid record in the bytes of this walk
    uint64_t needed_bytes         # with RECORDS_TAIL: what the next record takes from there; 0 where that is not known yet
    int64_t count                 # whole and valid records, those of former walks included
    int64_t max_timestamp         # of these; the smallest number there is while count is 0
    int64_t max_timestamp_delta   # offset delta of the first record that has it
    int status                    # a RecordsStatus: why the walk ended at valid_bytes

# Check that p[0:n] are exactly `count` records of a batch with this base timestamp; returns the status. p may be NULL when n is 0.
cdef int walk_records(
    const uint8_t* p, uint64_t n, int64_t count, int64_t base_timestamp, RecordsFound* out
) noexcept nogil

# Whether it is the record after the valid ones that is wrong, in a walk that ended so over n bytes, and not the batch as a whole.
cdef bint is_of_record(const RecordsFound* found, uint64_t n) noexcept nogil
# What is wrong, for people; NULL for RECORDS_OK.
cdef const char* reason_of(int status) noexcept nogil

# The same for records that come in pieces: `found` goes from one walk to the next, begun by begin_walk, and each piece
# begins where the last one's valid_bytes ended. RECORDS_TAIL asks for more, of the bytes behind valid_bytes and what
# follows them; RECORDS_OK says that all records were there; after anything else there is no going on.
cdef void begin_walk(RecordsFound* found) noexcept nogil
cdef int walk_more(
    const uint8_t* p, uint64_t n, int64_t count, int64_t base_timestamp, RecordsFound* found
) noexcept nogil

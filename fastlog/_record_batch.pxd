from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t

from fastlog._records cimport (
    MIN_RECORD_BYTES, NUMBER_CUT, NUMBER_WHOLE, RECORDS_LEFT, RECORDS_LENGTH, RECORDS_OK, RECORDS_TAIL, RECORDS_VARINT,
    RecordFields, pass_number, read_fields, take_bytes, take_int32,
)

cdef enum BatchStatus:
    BATCHES_OK = 0          # the bytes end with a batch
    BATCHES_TAIL = 1        # they end inside one
    BATCHES_MAGIC = 2       # another format
    BATCHES_LENGTH = 3      # a length that no batch has
    BATCHES_CRC = 4
    BATCHES_ATTRIBUTES = 5  # a codec or a flag that is nobody's
    BATCHES_COUNT = 6       # a number of records, or a last offset, that cannot be
    BATCHES_OFFSET = 7      # an offset that cannot be, or lies before the end of the batch before

cdef struct BatchFrame:         # one whole batch, as its header tells
    const uint8_t* records      # compressed, where there is a codec
    Py_ssize_t record_bytes
    Py_ssize_t size_bytes       # of the whole batch
    int64_t base_offset
    int64_t next_offset         # behind the last record that it has, or had: others may have been taken out of it
    int64_t base_timestamp
    int64_t max_timestamp
    int32_t record_count
    int codec
    bint has_append_time        # all records have the largest timestamp
    bint is_control             # the records are the broker's own

# Describe the batch that begins at p; answers BATCHES_OK or what is wrong. Its checksum is looked at where that is asked
# for, what is behind the header is not. p may be NULL when left is 0: that is a tail.
cdef int read_batch(const uint8_t* p, Py_ssize_t left, bint checks_sum, BatchFrame* out) noexcept nogil


cdef struct RecordWalk:         # over the records of one batch; whoever copies it can go back to where it stood
    const uint8_t* at
    const uint8_t* end
    int64_t base_offset
    int64_t next_offset         # of the batch
    int64_t base_timestamp
    int64_t append_time
    int64_t least_delta
    int64_t most_delta
    int32_t left                # records
    bint has_append_time

cdef struct FoundRecord:
    RecordFields fields
    int64_t offset
    int64_t next_offset         # where to go on behind it

# Begin with the records of a batch, which lie decompressed at p.
cdef void begin_records(const BatchFrame* batch, const uint8_t* p, Py_ssize_t size, RecordWalk* out) noexcept nogil


cdef inline int next_record(RecordWalk* walk, FoundRecord* out) noexcept nogil:
    """Describe the record in turn and go on behind it; answers RECORDS_OK, or what is wrong, and stays. ``left`` is above 0."""
    cdef const uint8_t* p = walk.at
    cdef int32_t size = 0
    cdef int status = take_int32(&p, walk.end, &size)
    if status != NUMBER_WHOLE:
        return RECORDS_TAIL if status == NUMBER_CUT else RECORDS_VARINT
    if size < MIN_RECORD_BYTES:
        return RECORDS_LENGTH
    if size > walk.end - p:
        return RECORDS_TAIL
    status = read_fields(p, p + size, walk.least_delta, walk.most_delta, walk.base_timestamp, &out.fields)
    if status != RECORDS_OK:
        return status
    if walk.left == 1 and p + size != walk.end:
        return RECORDS_LEFT
    if walk.has_append_time:
        out.fields.timestamp = walk.append_time
    walk.at = p + size
    walk.left -= 1
    walk.least_delta = <int64_t>out.fields.offset_delta + 1
    out.offset = walk.base_offset + out.fields.offset_delta
    out.next_offset = out.offset + 1 if walk.left else walk.next_offset
    return RECORDS_OK


cdef inline bint next_value(RecordWalk* walk, RecordFields* out) noexcept nogil:
    """Find key and value alone of the record in turn, of a batch whose records were checked; go on behind it.

    False, and it stays, where they would lie beyond the bytes of the walk: those have changed since. What the walk knows of
    offsets stays as it was: ``delta_of`` reads that of a record.
    """
    cdef const uint8_t* p = walk.at
    cdef const uint8_t* end
    cdef int32_t size = 0
    if take_int32(&p, walk.end, &size) != NUMBER_WHOLE or size < MIN_RECORD_BYTES or size > walk.end - p:
        return False
    end = p + size
    p += 1                                              # attributes
    if (
        not pass_number(&p, end)
        or not pass_number(&p, end)
        or take_bytes(&p, end, -1, &out.key, &out.key_bytes) != RECORDS_OK
        or take_bytes(&p, end, -1, &out.value, &out.value_bytes) != RECORDS_OK
    ):
        return False
    walk.at = end
    walk.left -= 1
    return True


cdef inline int32_t delta_of(const uint8_t* record, const RecordWalk* walk) noexcept nogil:
    """The offset delta of a record that a walk has passed; -1 when the bytes have changed since."""
    cdef int32_t number = 0
    if take_int32(&record, walk.at, &number) != NUMBER_WHOLE or record == walk.at:
        return -1
    record += 1                                         # attributes
    if not pass_number(&record, walk.at) or take_int32(&record, walk.at, &number) != NUMBER_WHOLE:
        return -1
    return number


cdef struct PlacedValue:        # of one record: bytes count from the first one of the batch's records
    uint32_t at
    int32_t value_bytes         # -1: null
    int32_t key_bytes
    uint32_t end                # of the record


cdef class RecordSpan:
    """The records of one batch from some offset on, decompressed and checked. See the ``.pyi``."""

    cdef object data            # a view that nobody else has: what the walk goes over
    cdef const uint8_t* base
    cdef RecordWalk walk        # from the first of them on; copied by whoever walks
    cdef PlacedValue* placed    # where the values of all of these are; NULL for very many records
    cdef readonly Py_ssize_t start      # of the records in ``buffer``: also where the first one is not the batch's first
    cdef readonly object buffer
    cdef readonly int64_t offset

cdef class RecordSpans:
    """Opens the batches of some bytes one after the other. See the ``.pyi``."""

    cdef object data            # a view that nobody else has
    cdef object limits
    cdef const uint8_t* base
    cdef Py_ssize_t size
    cdef Py_ssize_t at
    cdef int64_t wanted         # records before it are left out
    cdef int64_t next_offset    # behind the batch that was read last
    cdef Py_ssize_t checked_bytes   # checksums of the batches that begin before are known to be right

    cdef RecordSpan next_or_none(self)
    cdef RecordSpan span_of(self, const BatchFrame* batch)


# The headers of a record as Python sees them: pairs of a name and a value, or None. None when the bytes have changed.
cdef tuple headers_of(const uint8_t* at, const uint8_t* end, int32_t count)

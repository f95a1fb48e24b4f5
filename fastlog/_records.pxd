from libc.stdint cimport int64_t, uint8_t, uint64_t

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

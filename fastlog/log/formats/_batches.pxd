from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastlog._records cimport RecordsFound
from fastlog.log.formats._table cimport Entries

# Why a batch is not valid, beside those of EntriesStatus.
cdef enum:
    BATCH_LENGTH = 16            # a length that no batch has
    BATCH_MAGIC = 17             # it is not of magic 2
    BATCH_CRC = 18
    BATCH_ATTRIBUTES = 19        # an unknown codec, or bits that the broker or nobody sets
    BATCH_COUNT = 20             # no record, or not as many as offsets
    BATCH_RECORDS = 21           # what stands in it are not these records
    BATCH_TIMESTAMP = 22         # its times are not those of its records
    BATCH_PRODUCER = 23          # producer id, epoch and sequence do not go together
    BATCH_OFFSET = 24            # stored bytes only: its offsets do not follow those before it

# As the format's; here for who has the format in hand.
cdef void validate_batches(const uint8_t* p, uint64_t n, int64_t max_bytes, Entries* out) noexcept nogil
# The same for batches as another log has them: with their offsets, the times of appends and the marks of transactions, and
# without the ids of producers, which only the broker that gave them knows. ``max_timestamp`` is what each says.
cdef void validate_stored(const uint8_t* p, uint64_t n, int64_t max_bytes, Entries* out) noexcept nogil
# What a walk over the records of one such batch finds, which ends where it does and is not compressed.
cdef int walk_batch(const uint8_t* p, uint64_t size, RecordsFound* out) noexcept nogil
# By a protocol, before the lock: store the largest time of a batch's records in it, which it had misstated.
cdef void set_max_timestamp(uint8_t* p, int64_t max_timestamp) noexcept nogil
# The same, for topics whose records have the time of their append (anew at each try).
cdef void stamp_append_time(uint8_t* p, uint64_t n, int64_t now_ms) noexcept nogil

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastlog._records cimport RecordsFound
from fastlog.log.formats._table cimport Entries

# Where the fields of a batch begin.
cdef enum:
    AT_BASE_OFFSET = 0           # 8 bytes; the broker's
    AT_LENGTH = 8                # 4: the bytes behind this field
    AT_EPOCH = 12                # 4; the broker's
    AT_MAGIC = 16                # 1
    AT_CRC = 17                  # 4: CRC-32C of all that follows
    AT_ATTRIBUTES = 21           # 2
    AT_LAST_DELTA = 23           # 4: offset of the last record minus base offset
    AT_BASE_TIMESTAMP = 27       # 8
    AT_MAX_TIMESTAMP = 35        # 8
    AT_PRODUCER_ID = 43          # 8
    AT_PRODUCER_EPOCH = 51       # 2
    AT_BASE_SEQUENCE = 53        # 4
    AT_COUNT = 57                # 4
    BATCH_HEAD = 61              # the records begin here
    LENGTH_END = 12              # the length counts from here

cdef enum BatchAttributes:
    CODEC_BITS = 0x07
    APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40
    LARGEST_CODEC = 4            # none, gzip, snappy, lz4, zstd

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

"""The log of record batches (magic 2) as compiled code sees it: an offset is the number of a record.

A batch stands in the log as its producer sent it, but for the base offset and the leader epoch, which its checksum does not
cover. Compressed records are looked into before this, by who can decompress them.

Source: Apache Kafka 4.2 (DefaultRecordBatch, LogValidator).
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from fastlog._batch_header cimport (
    APPEND_TIME_BIT, AT_ATTRIBUTES, AT_BASE_SEQUENCE, AT_BASE_TIMESTAMP, AT_COUNT, AT_CRC, AT_EPOCH, AT_LAST_DELTA,
    AT_LENGTH, AT_MAGIC, AT_MAX_TIMESTAMP, AT_PRODUCER_EPOCH, AT_PRODUCER_ID, BATCH_HEADER_BYTES, CODEC_BITS,
    CONTROL_BIT, DELETE_HORIZON_BIT, LARGEST_CODEC, LENGTH_END, RECORD_BATCH_MAGIC, TRANSACTIONAL_BIT,
)
from fastlog._bytes cimport be16, be32, be64, put16, put32, put64
from fastlog._crc32c cimport crc32c_span
from fastlog._records cimport RECORDS_OK, RecordsFound, walk_records
from fastlog.log.formats._table cimport (
    ENTRIES_CUT, ENTRIES_TOO_LARGE, ENTRIES_WHOLE, ENTRY_BEGINS, ENTRY_INVALID, ENTRY_UNREADABLE, OF_KAFKA, Entries,
    EntryHead, Format, Sequenced, add_format,
)

cdef enum:
    # Behind its length field, the least that a batch has: its head, and one record of seven bytes, or a compressed one
    MIN_LENGTH = BATCH_HEADER_BYTES - LENGTH_END
    LARGEST_SEQUENCE = 0x7FFFFFFF

cdef int64_t NO_TIMESTAMP = -1
cdef int64_t NO_PRODUCER = -1


cdef inline uint64_t bytes_of(const uint8_t* p) noexcept nogil:
    return LENGTH_END + <uint64_t>be32(p + AT_LENGTH)


cdef inline bint crc_fits(const uint8_t* p, uint64_t size) noexcept nogil:
    return crc32c_span(0, p + AT_ATTRIBUTES, size - AT_ATTRIBUTES) == be32(p + AT_CRC)


cdef inline bint length_fits(const uint8_t* p) noexcept nogil:
    cdef int32_t length = <int32_t>be32(p + AT_LENGTH)
    return length >= MIN_LENGTH and length <= <int32_t>(0x7FFFFFFF - LENGTH_END)


cdef inline bint counts_fit(const uint8_t* p) noexcept nogil:
    """Whether it has a record, and as many as it takes offsets."""
    cdef int32_t count = <int32_t>be32(p + AT_COUNT)
    return count > 0 and <int32_t>be32(p + AT_LAST_DELTA) == count - 1


cdef int walk_batch(const uint8_t* p, uint64_t size, RecordsFound* out) noexcept nogil:
    return walk_records(
        p + BATCH_HEADER_BYTES, size - BATCH_HEADER_BYTES, <int32_t>be32(p + AT_COUNT), <int64_t>be64(p + AT_BASE_TIMESTAMP), out
    )


cdef int check(const uint8_t* p, uint64_t size, bint is_stored, int64_t* largest) noexcept nogil:
    """Whether a produced batch of ``size`` bytes is valid, as far as that can be checked without decompressing it.

    ``largest`` takes the largest time of its records; of compressed ones, what the batch says. ``is_stored``: as another log
    has it (``validate_stored``).
    """
    cdef uint16_t allowed = CODEC_BITS
    cdef uint16_t attributes = be16(p + AT_ATTRIBUTES)
    cdef int64_t max_timestamp = <int64_t>be64(p + AT_MAX_TIMESTAMP)
    cdef int64_t producer = <int64_t>be64(p + AT_PRODUCER_ID)
    cdef int16_t epoch = <int16_t>be16(p + AT_PRODUCER_EPOCH)
    cdef int32_t sequence = <int32_t>be32(p + AT_BASE_SEQUENCE)
    cdef RecordsFound found
    if not crc_fits(p, size):
        return BATCH_CRC
    if is_stored:
        allowed |= APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
        if <int64_t>be64(p) < 0:
            return BATCH_OFFSET
        if producer != NO_PRODUCER:
            return BATCH_PRODUCER
    elif attributes & APPEND_TIME_BIT:
        return BATCH_TIMESTAMP
    if attributes & ~allowed or attributes & CODEC_BITS > LARGEST_CODEC:
        return BATCH_ATTRIBUTES
    if not counts_fit(p):
        return BATCH_COUNT
    # without a producer the other two mean nothing: sarama, franz-go and kafkajs leave a 0 in them
    if producer < -1 or (producer >= 0 and (epoch < 0 or sequence < 0)):
        return BATCH_PRODUCER
    largest[0] = max_timestamp
    if attributes & CODEC_BITS:
        return <int>ENTRIES_WHOLE if max_timestamp >= NO_TIMESTAMP else <int>BATCH_TIMESTAMP
    if walk_batch(p, size, &found) != RECORDS_OK:
        return BATCH_RECORDS
    if not is_stored:  # there the broker may have said another one
        largest[0] = found.max_timestamp
    return <int>ENTRIES_WHOLE if found.max_timestamp >= NO_TIMESTAMP else <int>BATCH_TIMESTAMP


cdef void validate_batches(const uint8_t* p, uint64_t n, int64_t max_bytes, Entries* out) noexcept nogil:
    validate_as(p, n, max_bytes, False, out)


cdef void validate_stored(const uint8_t* p, uint64_t n, int64_t max_bytes, Entries* out) noexcept nogil:
    validate_as(p, n, max_bytes, True, out)


cdef void validate_as(const uint8_t* p, uint64_t n, int64_t max_bytes, bint is_stored, Entries* out) noexcept nogil:
    cdef uint64_t size = 0
    cdef int64_t largest = NO_TIMESTAMP
    out.misstated = False
    out.bytes = out.count = out.compressed = out.suspicious = out.span = out.next = 0
    out.max_timestamp = NO_TIMESTAMP
    out.status = ENTRIES_WHOLE
    while out.bytes < n and out.status == ENTRIES_WHOLE:
        if n - out.bytes < BATCH_HEADER_BYTES:
            out.status = ENTRIES_CUT
        elif p[AT_MAGIC] != RECORD_BATCH_MAGIC:
            out.status = BATCH_MAGIC
        elif not length_fits(p):
            out.status = BATCH_LENGTH
        else:
            size = bytes_of(p)
            if size > n - out.bytes:
                out.status = ENTRIES_CUT
            elif 0 <= max_bytes < <int64_t>size:
                out.status = ENTRIES_TOO_LARGE
                out.next = size
            else:
                out.status = check(p, size, is_stored, &largest)
        if out.status == ENTRIES_WHOLE:
            out.bytes += size
            out.count += be32(p + AT_COUNT)
            out.span += be32(p + AT_COUNT)
            out.compressed += be16(p + AT_ATTRIBUTES) & CODEC_BITS != 0
            out.max_timestamp = max(out.max_timestamp, largest)
            out.misstated = out.misstated or largest != <int64_t>be64(p + AT_MAX_TIMESTAMP)
            p += size


cdef bint head(const uint8_t* p, EntryHead* out) noexcept nogil:
    cdef int64_t offset = <int64_t>be64(p)
    cdef int32_t last_delta = <int32_t>be32(p + AT_LAST_DELTA)
    if p[AT_MAGIC] != RECORD_BATCH_MAGIC or not length_fits(p) or offset < 0 or last_delta < 0:
        return False
    out.bytes = bytes_of(p)
    out.offset = <uint64_t>offset
    out.next_offset = out.offset + <uint64_t>last_delta + 1
    out.max_timestamp = <int64_t>be64(p + AT_MAX_TIMESTAMP)
    return True


cdef void scan(const uint8_t* p, uint64_t n, Entries* out) noexcept nogil:
    cdef uint64_t next_offset = 0
    scan_behind(p, n, &next_offset, False, out)


cdef void scan_behind(const uint8_t* p, uint64_t n, uint64_t* next_offset, bint is_dense, Entries* out) noexcept nogil:
    """Whole batches whose checksums are right and whose offsets follow one another, the first one ``next_offset``; with
    ``is_dense`` without a gap.

    What a batch holds was checked before it was stored; compaction may have left fewer records than offsets.
    """
    cdef EntryHead one
    out.misstated = False
    out.bytes = out.count = out.compressed = out.suspicious = out.span = out.next = 0
    out.max_timestamp = NO_TIMESTAMP
    out.status = ENTRIES_WHOLE
    while out.bytes < n:
        if n - out.bytes < BATCH_HEADER_BYTES:
            out.status = ENTRIES_CUT
        elif p[AT_MAGIC] != RECORD_BATCH_MAGIC:
            out.status = BATCH_MAGIC
        elif not head(p, &one):
            out.status = BATCH_LENGTH
        elif one.bytes > n - out.bytes:
            out.status = ENTRIES_CUT
        elif not crc_fits(p, one.bytes):
            out.status = BATCH_CRC
        elif one.offset < next_offset[0] or (is_dense and one.offset != next_offset[0]):
            out.status = BATCH_OFFSET
        if out.status != ENTRIES_WHOLE:
            return
        next_offset[0] = one.next_offset
        out.bytes += one.bytes
        out.count += be32(p + AT_COUNT)
        out.span += one.next_offset - one.offset
        out.compressed += be16(p + AT_ATTRIBUTES) & CODEC_BITS != 0
        out.max_timestamp = max(out.max_timestamp, one.max_timestamp)
        p += one.bytes


cdef int begins(const uint8_t* p, uint64_t have, uint64_t available, uint64_t readable) noexcept nogil:
    cdef EntryHead one
    if have < BATCH_HEADER_BYTES or not head(p, &one) or one.bytes > available:
        return ENTRY_INVALID
    if one.bytes > readable:
        return ENTRY_UNREADABLE
    if one.bytes <= have and not crc_fits(p, one.bytes):
        return ENTRY_INVALID
    return ENTRY_BEGINS


cdef void assign(uint8_t* p, uint64_t n, uint64_t offset, uint32_t epoch) noexcept nogil:
    cdef uint64_t size, at = 0
    while at < n:
        size = bytes_of(p + at)
        put64(p + at, offset)
        put32(p + at + AT_EPOCH, epoch)
        offset += <uint64_t>be32(p + at + AT_LAST_DELTA) + 1
        at += size


cdef void sequenced(const uint8_t* p, Sequenced* out) noexcept nogil:
    out.producer = <int64_t>be64(p + AT_PRODUCER_ID)
    out.epoch = <int16_t>be16(p + AT_PRODUCER_EPOCH)
    out.first = be32(p + AT_BASE_SEQUENCE)
    out.delta = be32(p + AT_LAST_DELTA)
    out.last = (out.first + out.delta) & LARGEST_SEQUENCE
    out.time = <int64_t>be64(p + AT_MAX_TIMESTAMP)
    out.in_transaction = be16(p + AT_ATTRIBUTES) & TRANSACTIONAL_BIT != 0
    out.is_marker = be16(p + AT_ATTRIBUTES) & CONTROL_BIT != 0


cdef void set_max_timestamp(uint8_t* p, int64_t max_timestamp) noexcept nogil:
    put64(p + AT_MAX_TIMESTAMP, <uint64_t>max_timestamp)
    put32(p + AT_CRC, crc32c_span(0, p + AT_ATTRIBUTES, bytes_of(p) - AT_ATTRIBUTES))


cdef void stamp_append_time(uint8_t* p, uint64_t n, int64_t now_ms) noexcept nogil:
    cdef uint64_t at = 0
    while at < n:
        put16(p + at + AT_ATTRIBUTES, be16(p + at + AT_ATTRIBUTES) | APPEND_TIME_BIT)
        set_max_timestamp(p + at, now_ms)
        at += bytes_of(p + at)


cdef Format FORMAT


def register():
    """Give the format its number, when the package is imported."""
    FORMAT.name = "record-batches"
    FORMAT.suffix = ".log"
    FORMAT.clients = OF_KAFKA
    FORMAT.validate = validate_batches
    FORMAT.scan = scan
    FORMAT.locate = NULL
    FORMAT.head = head
    FORMAT.head_bytes = BATCH_HEADER_BYTES
    FORMAT.assign = assign
    FORMAT.sequenced = sequenced
    FORMAT.begins = begins
    add_format(&FORMAT)


def validate(const uint8_t[::1] data, int64_t max_bytes=-1, bint is_stored=False):
    """``(bytes, count, compressed, offsets, largest time, misstated, status)`` of produced batches; for tests and tools."""
    cdef Entries found
    validate_as(&data[0] if data.shape[0] else NULL, <uint64_t>data.shape[0], max_bytes, is_stored, &found)
    return found.bytes, found.count, found.compressed, found.span, found.max_timestamp, found.misstated, found.status


def scan_stored(const uint8_t[::1] data, uint64_t least_offset=0, bint is_dense=False):
    """``(bytes, records, compressed batches, next offset, status)`` of stored batches, as far as they are whole and valid."""
    cdef Entries found
    cdef uint64_t n = <uint64_t>data.shape[0]
    with nogil:
        scan_behind(&data[0] if n else NULL, n, &least_offset, is_dense, &found)
    return found.bytes, found.count, found.compressed, least_offset, found.status


def read_head(const uint8_t[::1] data):
    """``(bytes, offset, next offset, largest time, records)`` as a batch's beginning says; None where none can begin so."""
    cdef EntryHead one
    if data.shape[0] < BATCH_HEADER_BYTES or not head(&data[0], &one):
        return None
    return one.bytes, one.offset, one.next_offset, one.max_timestamp, <int32_t>be32(&data[AT_COUNT])

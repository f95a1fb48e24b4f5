"""Fixed-size records: 4 bytes of magic, 8 of payload, and the payload's CRC-32. An offset is the number of a record."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from fastlog._crc cimport crc32_span
from fastlog.log.formats._table cimport (
    ENTRIES_CUT, ENTRIES_TOO_LARGE, ENTRIES_WHOLE, ENTRY_BEGINS, ENTRY_INVALID, ENTRY_UNREADABLE, OF_KAFKA_07, Entries,
    EntryHead, Format, MAX_FORMATS, add_format,
)

cdef enum:
    RECORD = 16
    NO_RECORD = 2


cdef inline bint is_record(const uint8_t* p) noexcept nogil:
    cdef uint32_t stored = (<uint32_t>p[12] << 24) | (<uint32_t>p[13] << 16) | (<uint32_t>p[14] << 8) | p[15]
    return memcmp(p, b"TOY1", 4) == 0 and crc32_span(0, p + 4, 8) == stored


cdef void validate(const uint8_t* p, uint64_t n, int64_t max_message, Entries* out) noexcept nogil:
    out.bytes = out.count = out.compressed = out.suspicious = out.next = 0
    out.max_timestamp = -1
    out.misstated = False
    out.status = ENTRIES_WHOLE
    while out.bytes < n:
        if n - out.bytes < RECORD:
            out.status = ENTRIES_CUT
            break
        if 0 <= max_message < 8:
            out.status = ENTRIES_TOO_LARGE
            out.next = 8
            break
        if not is_record(p + out.bytes):
            out.status = NO_RECORD
            break
        out.bytes += RECORD
        out.count += 1
    out.span = out.count


cdef void scan(const uint8_t* p, uint64_t n, Entries* out) noexcept nogil:
    validate(p, n, -1, out)


cdef uint64_t locate(uint64_t base, uint64_t offset) noexcept nogil:
    return (offset - base) * RECORD


cdef bint head(const uint8_t* p, EntryHead* out) noexcept nogil:
    out.bytes = RECORD
    out.offset = out.next_offset = 0
    out.max_timestamp = -1
    return True


cdef int begins(const uint8_t* p, uint64_t have, uint64_t available, uint64_t readable) noexcept nogil:
    if readable < RECORD:
        return ENTRY_UNREADABLE
    return ENTRY_BEGINS if have >= RECORD and is_record(p) else ENTRY_INVALID


cdef Format FORMAT


def register():
    FORMAT.name = "toy"
    FORMAT.suffix = ".toy"
    FORMAT.clients = OF_KAFKA_07
    FORMAT.validate = validate
    FORMAT.scan = scan
    FORMAT.locate = locate
    FORMAT.begins = begins
    FORMAT.head = head
    FORMAT.head_bytes = RECORD
    add_format(&FORMAT)


cdef Format[MAX_FORMATS] MORE
cdef char[MAX_FORMATS][2] NAMES


def register_as_many_as_there_may_be():
    cdef int i
    for i in range(MAX_FORMATS):
        NAMES[i][0] = b"a"[0] + i
        MORE[i] = FORMAT
        MORE[i].name = NAMES[i]
        add_format(&MORE[i])

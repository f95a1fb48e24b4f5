"""The log of Kafka 0.7 as compiled code sees it: an offset is a byte position in the partition's stream.

Source: Kafka 0.7.2 (message format, ``Log``).
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastlog._bytes cimport be32
from fastlog._crc cimport crc32_span
from fastlog._segment cimport SCAN_TOO_LARGE, Scan, scan_set
from fastlog.log.formats._table cimport (
    ENTRY_BEGINS, ENTRY_INVALID, ENTRY_UNREADABLE, OF_KAFKA_07, READ_BY_KAFKA, Entries, EntryHead, Format, add_format,
)


cdef void validate(const uint8_t* p, uint64_t n, int64_t max_message, Entries* out) noexcept nogil:
    cdef Scan found
    scan_set(p, <Py_ssize_t>n, <Py_ssize_t>max_message, &found)
    out.bytes = out.span = <uint64_t>found.valid_bytes
    out.count = <uint64_t>found.count
    out.compressed = <uint64_t>found.wrappers
    out.suspicious = <uint64_t>found.suspicious
    out.status = found.status
    out.max_timestamp = -1
    out.misstated = False
    if found.status == SCAN_TOO_LARGE:
        out.next = be32(p + found.valid_bytes)


cdef void scan(const uint8_t* p, uint64_t n, Entries* out) noexcept nogil:
    validate(p, n, -1, out)


cdef uint64_t locate(uint64_t base, uint64_t offset) noexcept nogil:
    return offset - base


cdef bint head(const uint8_t* p, EntryHead* out) noexcept nogil:
    out.bytes = 4 + <uint64_t>be32(p)
    out.offset = out.next_offset = 0  # they stand in no entry
    out.max_timestamp = -1
    return out.bytes >= 9


cdef int begins(const uint8_t* p, uint64_t have, uint64_t available, uint64_t readable) noexcept nogil:
    cdef uint64_t size, header = 9
    if have < 5 or available < 9:
        return ENTRY_INVALID
    size = 4 + <uint64_t>be32(p)
    if size < 9 or size > available or p[4] > 1:
        return ENTRY_INVALID
    if size > readable:
        return ENTRY_UNREADABLE
    if p[4] == 1:
        header = 10
        if size < 10 or have < 6 or p[5] > 2:
            return ENTRY_INVALID
    if size <= have and crc32_span(0, p + header, size - header) != <uint64_t>be32(p + header - 4):
        return ENTRY_INVALID
    return ENTRY_BEGINS


cdef Format FORMAT


def register():
    """Give the format its number: the first, when the package is imported."""
    FORMAT.name = "kafka-0.7"
    FORMAT.suffix = ".kafka"
    FORMAT.clients = OF_KAFKA_07 | READ_BY_KAFKA
    FORMAT.validate = validate
    FORMAT.scan = scan
    FORMAT.locate = locate
    FORMAT.begins = begins
    FORMAT.head = head
    FORMAT.head_bytes = 4
    add_format(&FORMAT)

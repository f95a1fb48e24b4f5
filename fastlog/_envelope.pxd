from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastlog._bytes cimport be32, be64, put32, put64

cdef enum:
    HEAD_BYTES = 15                 # magic 2, flags 1, time 8, server id 4
    MAGIC_0 = 0xFE                  # no UTF-8 text has it
    MAGIC_1 = 0x01                  # the version
    HAS_SCHEMA = 1
    HAS_KEY = 2
    HAS_DEDUPLICATION = 4
    KNOWN_FLAGS = 7
    SCHEMA_BYTES = 4
    KEY_LENGTH_BYTES = 4
    DEDUPLICATION_LENGTH_BYTES = 1
    MAX_DEDUPLICATION_BYTES = 255

# Why a payload has no valid envelope.
cdef enum:
    PARSED = 0
    NO_MAGIC = 1
    UNKNOWN_FLAGS = 2
    CUT_OFF = 3


cdef struct Parts:
    int64_t time_ms
    uint32_t server_id
    int64_t schema_id               # -1: none
    Py_ssize_t key                  # where it starts, from the start of the payload
    Py_ssize_t key_bytes            # -1: none
    Py_ssize_t deduplication
    Py_ssize_t deduplication_bytes  # -1: none
    Py_ssize_t value                # the value is all from here to the end


# Here, so that whoever walks messages in C has it inline.
cdef inline int parse(const unsigned char* p, Py_ssize_t size, Parts* out) noexcept nogil:
    """Describe the envelope at the start of a payload: ``PARSED``, or what is wrong with it."""
    cdef Py_ssize_t at = HEAD_BYTES
    cdef uint32_t length
    if size >= 2 and (p[0] != MAGIC_0 or p[1] != MAGIC_1):
        return NO_MAGIC
    if size < 3:
        return CUT_OFF
    if p[2] & ~KNOWN_FLAGS:
        return UNKNOWN_FLAGS
    if size < HEAD_BYTES:
        return CUT_OFF
    out.time_ms = <int64_t>be64(p + 3)
    out.server_id = be32(p + 11)
    out.schema_id = out.key_bytes = out.deduplication_bytes = -1
    out.key = out.deduplication = 0
    if p[2] & HAS_SCHEMA:
        if size - at < SCHEMA_BYTES:
            return CUT_OFF
        out.schema_id = be32(p + at)
        at += SCHEMA_BYTES
    if p[2] & HAS_KEY:
        if size - at < KEY_LENGTH_BYTES:
            return CUT_OFF
        length = be32(p + at)
        at += KEY_LENGTH_BYTES
        if length > <size_t>(size - at):
            return CUT_OFF
        out.key, out.key_bytes = at, <Py_ssize_t>length
        at += <Py_ssize_t>length
    if p[2] & HAS_DEDUPLICATION:
        if size - at < DEDUPLICATION_LENGTH_BYTES:
            return CUT_OFF
        length = p[at]
        at += DEDUPLICATION_LENGTH_BYTES
        if length > <size_t>(size - at):
            return CUT_OFF
        out.deduplication, out.deduplication_bytes = at, <Py_ssize_t>length
        at += <Py_ssize_t>length
    out.value = at
    return PARSED


cdef inline void put_head(unsigned char* out, int flags, int64_t time_ms, uint32_t server_id) noexcept nogil:
    out[0] = MAGIC_0
    out[1] = MAGIC_1
    out[2] = <unsigned char>flags
    put64(out + 3, <uint64_t>time_ms)
    put32(out + 11, server_id)


cdef inline Py_ssize_t put_key(unsigned char* out, const unsigned char* key, Py_ssize_t size) noexcept nogil:
    """Write a key's field; how many bytes it has."""
    put32(out, <uint32_t>size)
    if size:  # a pointer to nothing may be NULL, which memcpy must not be given
        memcpy(out + KEY_LENGTH_BYTES, key, <size_t>size)
    return KEY_LENGTH_BYTES + size


cdef inline Py_ssize_t put_deduplication(unsigned char* out, const unsigned char* p, Py_ssize_t size) noexcept nogil:
    """Write the field of a deduplication id of at most 255 bytes; how many bytes it has."""
    out[0] = <unsigned char>size
    if size:
        memcpy(out + DEDUPLICATION_LENGTH_BYTES, p, <size_t>size)
    return DEDUPLICATION_LENGTH_BYTES + size

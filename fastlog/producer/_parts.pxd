from libc.stdint cimport int64_t, uint8_t


# What a record has besides its value. The bytes belong to whoever fills it in, for as long as it is used.
cdef struct RecordParts:
    const uint8_t* key
    Py_ssize_t key_bytes           # -1: null
    const uint8_t* headers         # their number, names and values, as a record has them
    Py_ssize_t header_bytes        # 1: their number alone, which is 0
    int64_t timestamp              # ms since 1970


# A record without key and headers, of now.
cdef void begin_parts(RecordParts* out) noexcept

cdef inline Py_ssize_t parts_bytes(const RecordParts* parts) noexcept:
    """The bytes of key and headers together."""
    return parts.header_bytes + (parts.key_bytes if parts.key_bytes > 0 else 0)


# The same with the bytes that it points to, for Python code.
cdef class Parts:
    cdef RecordParts record
    cdef bytes key
    cdef bytes headers


# Sets ``p`` to the bytes of a key, valid for as long as the key exists; returns their number, -1 for None, and -2 where
# Python code has to look at it.
cdef Py_ssize_t simple_key(object key, const uint8_t** p) noexcept

# A key that is bytes, or None. Raises ArgumentError for another.
cdef int set_key(RecordParts* out, object key) except -1

# Whether headers can be asked for again: an iterator has none left for Python code to look at.
cdef bint are_lasting(object headers) noexcept

# The bytes of headers as a record has them; None when there is none. Raises ArgumentError.
cdef bytes pack_headers(object headers)

# Have a record's headers be what ``pack_headers`` gave, which the caller keeps.
cdef void set_headers(RecordParts* out, bytes packed) noexcept

# A timestamp in ms since 1970. Raises ArgumentError for what is no whole number, or out of range.
cdef int64_t checked_time(object timestamp) except -1

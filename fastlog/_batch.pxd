from libc.stdint cimport uint32_t


cdef enum:
    LENGTH_BYTES = 4
    LEAST_ENTRY_BYTES = 9   # of magic 0 with an empty payload


cdef struct Entry:
    const unsigned char* payload
    Py_ssize_t payload_bytes
    Py_ssize_t entry_bytes      # of the whole entry, its length field included
    unsigned char magic
    unsigned char attributes


# Here, so that whoever walks entries in C has it inline.
cdef inline bint next_entry(const unsigned char* p, Py_ssize_t left, Entry* out) noexcept nogil:
    """Describe the entry at ``p``, or return False when no whole one is there."""
    cdef uint32_t size
    cdef Py_ssize_t header
    if left < LEAST_ENTRY_BYTES:
        return False
    size = (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]
    out.magic = p[4]
    header = 5 + (p[4] & 1)
    if size < <uint32_t>header or <Py_ssize_t>size > left - LENGTH_BYTES:
        return False
    out.attributes = p[5] if out.magic else 0
    out.payload = p + LENGTH_BYTES + header
    out.payload_bytes = <Py_ssize_t>size - header
    out.entry_bytes = LENGTH_BYTES + <Py_ssize_t>size
    return True

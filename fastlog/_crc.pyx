"""CRC-32 of a span of bytes with zlib's polynomial; ``_crc_fold.h`` has the arithmetic and the reasons."""

include "_crc_choice.pxi"


cdef unsigned int crc32_span(unsigned int crc, const unsigned char* p, size_t n) noexcept nogil:
    return fastest(crc, p, n)


def crc32(data, uint32_t value=0):
    """Return the CRC-32 of ``data``, going on from ``value``."""
    return sum_of(fastest, data, value)


def crc32_with(str name not None, data, uint32_t value=0):
    """Return what ``crc32`` does, computed in the way called ``name``."""
    return sum_in_the_way(name, data, value)

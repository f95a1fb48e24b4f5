"""CRC-32C of a span of bytes (Castagnoli's polynomial, of record batches); ``_crc_fold.h`` has the arithmetic."""

cdef extern from *:
    """
    #define CRC_POLYNOMIAL 0x82F63B78u
    #define CRC_FOLD_96 0x493C7D27
    #define CRC_QUOTIENT 0x4869EC38DEA713F1
    """

include "_crc_choice.pxi"


cdef unsigned int crc32c_span(unsigned int crc, const unsigned char* p, size_t n) noexcept nogil:
    return fastest(crc, p, n)


def crc32c(data, uint32_t value=0):
    """Return the CRC-32C of ``data``, going on from ``value``."""
    return sum_of(fastest, data, value)


def crc32c_with(str name not None, data, uint32_t value=0):
    """Return what ``crc32c`` does, computed in the way called ``name``."""
    return sum_in_the_way(name, data, value)

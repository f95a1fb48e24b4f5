# CRC-32C; p may be NULL when n is 0; pass 0 for a fresh sum.
cdef unsigned int crc32c_span(unsigned int crc, const unsigned char* p, size_t n) noexcept nogil

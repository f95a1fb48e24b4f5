from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "_bytes.h" nogil:
    uint16_t be16(const uint8_t*)
    uint32_t be32(const uint8_t*)
    uint64_t be64(const uint8_t*)
    void put16(uint8_t*, uint16_t)
    void put32(uint8_t*, uint32_t)
    void put64(uint8_t*, uint64_t)

cdef enum:
    GIL_SPAN_BYTES = 65536       # work on fewer bytes ends sooner than another thread could take the interpreter's lock

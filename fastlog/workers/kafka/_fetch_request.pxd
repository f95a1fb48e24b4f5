from libc.stdint cimport uint8_t

from fastlog.workers.kafka._exchange cimport Fetching, Head

cdef int read_fetch(const uint8_t* p, size_t size, const Head* head, Fetching* out, int* session, bint fills) noexcept nogil

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t


# The sequence numbers by which a broker knows one producer's batches for one partition. For the thread of the
# partition's link, but for `limit` and `generation`, which do not change in others.
@cython.final
cdef class Lane:
    cdef readonly int limit            # batches that may be without an answer; 0: they are not numbered
    cdef readonly int64_t producer     # -1: none yet
    cdef readonly int16_t epoch
    cdef readonly int32_t next         # the number of the next record
    cdef readonly int32_t generation   # of the numbering, from 1 on
    cdef readonly int in_flight        # batches that are written and not answered
    cdef readonly bint is_known        # the broker has stored a batch with these numbers
    cdef int planned                   # batches that the write of number `plan` is about to write
    cdef long long plan
    cdef bint is_exhausted             # no epoch is left: another id is needed

    cdef int renew(self) except -1
    cdef int room(self) noexcept

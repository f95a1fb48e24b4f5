cimport cython
from libc.stdint cimport int64_t


# What records of one call have besides their values.
@cython.final
cdef class Parts:
    cdef bytes key                 # or None
    cdef bytes headers             # their number, names and values, as a record has them; None: there are none
    cdef int64_t timestamp         # ms since 1970

    cdef Py_ssize_t size(self) noexcept


cdef int64_t now_ms() noexcept

# The parts of a call; None where that is for Python code to look at.
cdef Parts simple_parts(object key, object headers, object timestamp)

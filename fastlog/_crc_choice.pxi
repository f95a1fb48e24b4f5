"""What the modules of both polynomials share: the choice of the fastest way, and sums of Python's buffers.

Each includes this after its polynomial is defined; ``_crc_fold.h`` has the arithmetic and the reasons.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t


cdef extern from "_crc_fold.h" nogil:
    ctypedef uint32_t (*crc_function)(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
    void crc_setup()
    crc_function crc_choice(int n, const char** name)


cdef enum:
    # Giving up the GIL and taking it back costs about 30 ns when nobody wants it: 4 % of what pclmul needs for so many
    # bytes (a sixth for avx512, which is through in 0.2 µs).
    RELEASE_GIL_BYTES = 16384

# Written once, by ``choose``, before anybody can call; every cimporting module has imported this one first.
cdef crc_function fastest = NULL
cdef str fastest_name
cdef tuple names


cdef object sum_of(crc_function function, object data, uint32_t value):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < RELEASE_GIL_BYTES:
            value = function(value, <const uint8_t*>view.buf, <size_t>view.len)
        else:
            with nogil:
                value = function(value, <const uint8_t*>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return value


cdef object sum_in_the_way(str name, object data, uint32_t value):
    cdef const char* unused = NULL
    if name not in names:
        raise ValueError(f"no CRC implementation {name!r} on this machine, only {', '.join(names)}")
    return sum_of(crc_choice(<int>names.index(name), &unused), data, value)


def implementation():
    """Return the name of the way sums are made on this machine."""
    return fastest_name


def implementations():
    """Return the names of all ways this machine can go, fastest first."""
    return names


cdef void choose() except *:
    global fastest, fastest_name, names
    cdef const char* name = NULL
    cdef list found = []
    crc_setup()
    fastest = crc_choice(0, &name)
    while crc_choice(<int>len(found), &name) is not NULL:
        found.append(name.decode())
    names = tuple(found)
    fastest_name = names[0]


choose()

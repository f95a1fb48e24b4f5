from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER


cdef inline object view_of(data, const unsigned char** base, Py_ssize_t* size):
    """A view of bytes that nobody else has, and where they lie for as long as it lives.

    Not a Py_buffer: an object that keeps one and gets into a cycle has the owner of the bytes torn from it by the
    garbage collector.
    """
    cdef Py_buffer* view
    found = PyMemoryView_FromObject(data)
    view = PyMemoryView_GET_BUFFER(found)
    if not PyBuffer_IsContiguous(view, b"C"):
        raise BufferError("the bytes do not lie in one piece")
    base[0] = <const unsigned char*>view.buf
    size[0] = view.len
    return found

cimport cython
from libc.stdint cimport int32_t, int64_t


# To whom the outcome of messages side by side in a frame is reported: a receipt, or a function of the program's.
@cython.final
cdef class Ticket:
    cdef int frame                 # which one of its memory
    cdef int messages
    cdef int first                 # place of the first of them among the messages that ``to`` follows
    cdef Py_ssize_t position       # of the first of them in the frame's set; -1 in a compressed one
    cdef bint is_function          # called for this one call of send() alone
    cdef object to
    cdef object delivery           # what the function is called with

    # Note with what ``to`` will be called: a ``Delivery`` of messages that were delivered, made without its Python code.
    cdef int settle(self, object kind, str topic, object broker, int32_t partition, int64_t base, int64_t next) except -1


cdef Ticket new_ticket(int frame, Py_ssize_t position, int first, int messages, bint is_function, object to)

"""Reports of what becomes of single messages, at the price of one small object for each of them."""

cimport cython
from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t


cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject* kind, Py_ssize_t count)
    void PyTuple_SET_ITEM(object made, Py_ssize_t i, object value)  # takes a reference over

cdef extern from *:
    """
    /* What a tuple has before its items is its hash, from Python 3.14 on: -1 is none, and what was just allocated is 0. */
    #define fl_without_hash(made) \\
        memset((char*)(made) + sizeof(PyVarObject), 0xff, PyTuple_Type.tp_basicsize - sizeof(PyVarObject))
    """
    void fl_without_hash(object made)

cdef enum:
    DELIVERY_FIELDS = 8


# There is one for every message that is followed: not known to the garbage collector, which else would look at all of them
# again and again, and taken from a free list. What it refers to is held by the thread that will call it.
@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Ticket:
    cdef int settle(
        self, object kind, str topic, object broker, int32_t partition, int64_t base, int64_t next
    ) except -1:
        cdef object made = PyType_GenericAlloc(<PyTypeObject*>kind, DELIVERY_FIELDS)
        fl_without_hash(made)
        set_item(made, 0, topic)
        set_item(made, 1, broker)
        set_item(made, 2, partition)
        set_item(made, 3, base + self.position if self.position > 0 and base >= 0 else base)
        set_item(made, 4, next)
        set_item(made, 5, self.messages)
        set_item(made, 6, None)
        set_item(made, 7, self.first)
        self.delivery = made
        return 0


cdef inline int set_item(object made, Py_ssize_t i, object value) except -1:
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, i, value)
    return 0


cdef Ticket new_ticket(int frame, Py_ssize_t position, int first, int messages, bint is_function, object to):
    """A ticket for ``messages`` side by side in a frame; ``to`` is a receipt, or with ``is_function`` a callback."""
    cdef Ticket made = Ticket.__new__(Ticket)
    made.frame, made.position, made.first, made.messages = frame, position, first, messages
    made.is_function, made.to = is_function, to
    return made


def tell(list events, slowly, log):
    """Call the functions that wait for deliveries; ``slowly`` gets all other events, ``log`` what a function failed on."""
    cdef Ticket ticket
    for event in events:
        if type(event) is not Ticket:
            slowly(event)
            continue
        ticket = <Ticket>event
        try:
            ticket.to(ticket.delivery)
        except BaseException:
            log(ticket.delivery)
        ticket.to = ticket.delivery = None

"""Counting bytes without making an object for a length: in Python that would cost more than the reading measured."""

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE


def total_bytes(payloads):
    cdef long long total = 0
    cdef object payload
    if not isinstance(payloads, list):      # or of a derived class, which Cython's own check refuses
        raise TypeError(f"payloads come in a list, not in {type(payloads).__name__}")
    for payload in <list>payloads:
        if not PyBytes_CheckExact(payload):
            raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
        total += PyBytes_GET_SIZE(payload)
    return total

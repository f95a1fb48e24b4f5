"""What records have besides their values: key, headers and time, looked at once for all records of a call."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t, uint64_t

from fastlog._records cimport field_bytes_of, put_bytes, put_varint, varint_bytes

from collections.abc import Iterable, Mapping

from fastlog.errors import ArgumentError


cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)  # NULL with an exception set
    bint PyUnicode_CheckExact(object value)
    void PyErr_Clear()
    bint PyDict_CheckExact(object value)
    bint PyList_CheckExact(object value)
    bint PyTuple_CheckExact(object value)

cdef extern from "_wall_clock.h":
    struct fl_wall_clock:
        int64_t ms
        double per_ns
    int64_t fl_now_ms(fl_wall_clock* clock) noexcept
    int64_t fl_note_time(fl_wall_clock* clock, uint64_t before, uint64_t after, int64_t wall_ns, int64_t ns) noexcept
    bint fl_still_holds(fl_wall_clock* clock, uint64_t count) noexcept

cdef fl_wall_clock wall_clock


cdef int64_t now_ms() noexcept:
    """Milliseconds since 1970, read from the processor's cycle counter where that is known to be right."""
    return fl_now_ms(&wall_clock)


def now():
    """The time that records get, in milliseconds since 1970."""
    return now_ms()


cdef class WallClock:
    """The clock of records with counts and times of a test."""

    cdef fl_wall_clock clock

    def note(self, uint64_t before, uint64_t after, int64_t wall_ns, int64_t ns):
        return fl_note_time(&self.clock, before, after, wall_ns, ns)

    def at(self, uint64_t count):
        return self.clock.ms if fl_still_holds(&self.clock, count) else None

    @property
    def per_ns(self):
        return self.clock.per_ns


cdef void begin_parts(RecordParts* out) noexcept:
    out.key, out.key_bytes, out.headers, out.header_bytes = NULL, -1, NULL, 1
    out.timestamp = now_ms()


@cython.final
cdef class Parts:
    def __cinit__(self, key=None, headers=None, timestamp=None):
        begin_parts(&self.record)
        set_key(&self.record, key)
        self.key = key
        if headers is not None:
            self.headers = pack_headers(headers)
            set_headers(&self.record, self.headers)
        if timestamp is not None:
            self.record.timestamp = checked_time(timestamp)

    @property
    def size_bytes(self):
        return parts_bytes(&self.record)


cdef int set_key(RecordParts* out, object key) except -1:
    out.key, out.key_bytes = NULL, -1
    if key is not None:
        if not PyBytes_CheckExact(key):
            raise ArgumentError(f"the key of a record is bytes, not {type(key).__name__}")
        out.key, out.key_bytes = <const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
    return 0


cdef void set_headers(RecordParts* out, bytes packed) noexcept:
    if packed is not None:
        out.headers, out.header_bytes = <const uint8_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed)


cdef int64_t checked_time(object timestamp) except -1:
    if type(timestamp) is not int:
        raise ArgumentError(f"a timestamp is a whole number of milliseconds since 1970, not {type(timestamp).__name__}")
    if not 0 <= timestamp <= INT64_MAX:
        raise ArgumentError(f"a timestamp lies between 0 and {INT64_MAX}, in milliseconds since 1970: not {timestamp}")
    return timestamp


cdef Py_ssize_t simple_key(object key, const uint8_t** p) noexcept:
    cdef Py_ssize_t size = -1
    if PyBytes_CheckExact(key):
        p[0] = <const uint8_t*>PyBytes_AS_STRING(key)
        return PyBytes_GET_SIZE(key)
    if key is None:
        return -1
    if not PyUnicode_CheckExact(key):
        return -2
    p[0] = <const uint8_t*>PyUnicode_AsUTF8AndSize(key, &size)
    if p[0] == NULL:
        PyErr_Clear()
        return -2
    return size


cdef bint are_lasting(object headers) noexcept:
    return PyDict_CheckExact(headers) or PyList_CheckExact(headers) or PyTuple_CheckExact(headers)


cdef bytes field_of(str what, object field):
    if PyBytes_CheckExact(field):
        return field
    if isinstance(field, str):
        try:
            return field.encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"the {what} of a header is text without a form in UTF-8: {ascii(field)}") from None
    if isinstance(field, (bytes, bytearray, memoryview)):
        return bytes(field)
    raise ArgumentError(f"the {what} of a header is bytes or str, not {type(field).__name__}")


cdef bytes pack_headers(object headers):
    cdef list fields = []
    cdef Py_ssize_t size, count = 0
    cdef bytes field, made
    cdef uint8_t* at
    if isinstance(headers, Mapping):
        headers = headers.items()
    elif isinstance(headers, (str, bytes)) or not isinstance(headers, Iterable):
        raise ArgumentError(f"headers are pairs of a name and a value, or a mapping, not {type(headers).__name__}")
    for pair in headers:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ArgumentError(f"a header is a pair of a name and a value, not {pair!r:.60}")
        name, value = pair
        fields.append(field_of("name", name))
        fields.append(None if value is None else field_of("value", value))
        count += 1
    if not count:
        return None
    size = varint_bytes(count)
    for field in fields:
        size += field_bytes_of(-1 if field is None else PyBytes_GET_SIZE(field))
    if size > INT32_MAX:
        raise ArgumentError(f"headers of {size} bytes are more than a record can have")
    made = PyBytes_FromStringAndSize(NULL, size)
    at = put_varint(<uint8_t*>PyBytes_AS_STRING(made), count)
    for field in fields:
        if field is None:
            at = put_bytes(at, NULL, -1)
        else:
            at = put_bytes(at, <const uint8_t*>PyBytes_AS_STRING(field), PyBytes_GET_SIZE(field))
    return made

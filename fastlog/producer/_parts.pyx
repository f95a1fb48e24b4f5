"""What records have besides their values: key, headers and time, looked at once for all records of a call."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t, uint64_t

from fastlog._records cimport field_bytes_of, put_bytes, put_varint, varint_bytes

from collections.abc import Iterable, Mapping

from fastlog.errors import ArgumentError


cdef extern from "Python.h":
    object unicode_bytes "PyUnicode_AsUTF8String"(object text)
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
    return fl_now_ms(&wall_clock)


def now():
    """Milliseconds since 1970, as records get them."""
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


@cython.final
@cython.freelist(8)
cdef class Parts:
    def __init__(self, key=None, headers=None, timestamp=None):
        if key is not None and not PyBytes_CheckExact(key):
            raise ArgumentError(f"the key of a record is bytes, not {type(key).__name__}")
        self.key = key
        self.headers = None if headers is None else pack_headers(headers)
        self.timestamp = now_ms() if timestamp is None else checked_time(timestamp)

    cdef Py_ssize_t size(self) noexcept:
        return (0 if self.key is None else PyBytes_GET_SIZE(self.key)) + (
            1 if self.headers is None else PyBytes_GET_SIZE(self.headers)
        )

    @property
    def size_bytes(self):
        return self.size()


cdef int64_t checked_time(object timestamp) except -1:
    if type(timestamp) is not int:
        raise ArgumentError(f"a timestamp is a whole number of milliseconds since 1970, not {type(timestamp).__name__}")
    if not 0 <= timestamp <= INT64_MAX:
        raise ArgumentError(f"a timestamp lies between 0 and {INT64_MAX}, in milliseconds since 1970: not {timestamp}")
    return timestamp


cdef Parts simple_parts(object key, object headers, object timestamp):
    cdef Parts made = Parts.__new__(Parts)
    if key is not None:
        if PyBytes_CheckExact(key):
            made.key = key
        elif type(key) is str:
            try:
                made.key = unicode_bytes(key)
            except UnicodeEncodeError:
                return None
        else:
            return None
    if headers is not None:
        if not (PyDict_CheckExact(headers) or PyList_CheckExact(headers) or PyTuple_CheckExact(headers)):
            return None  # Python code asks for them again, and an iterator would have none left
        made.headers = pack_headers(headers)
    made.timestamp = now_ms() if timestamp is None else checked_time(timestamp)
    return made


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
    """A mapping, or pairs, as a record has them; None when there is none."""
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

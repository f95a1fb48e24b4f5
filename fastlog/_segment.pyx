"""Measures, checks, reads and builds spans of messages in the format of Kafka 0.7.

A message set is entries back to back, without header, count or offsets. All integers are big-endian:

    position   bytes  field
    0          4      N, the bytes of the entry after this field: 5 + n (magic 0) or 6 + n (magic 1), signed
    4          1      magic, 0 or 1
    5          1      attributes, magic 1 only: bits 0-1 the codec (0 none, 1 gzip, 2 snappy), the others 0
    5 or 6     4      CRC-32 of the payload, and of nothing else: a damaged attributes byte is not seen by it
    9 or 10    n      payload; of a wrapper (codec 1 or 2) it is a compressed message set

Source: Kafka 0.7.2 (message format), with reserved attribute bits refused.
"""

from collections import namedtuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy

from fastlog._bytes cimport GIL_SPAN_BYTES, be32, put32
from fastlog._crc cimport crc32_span


cdef extern from "Python.h":
    # Borrowed pointers on purpose: through `object` each look at an item would count a reference up and down.
    object PySequence_Fast(object items, const char* message)
    Py_ssize_t PySequence_Fast_GET_SIZE(object fast)
    PyObject** PySequence_Fast_ITEMS(object fast)
    bint is_bytes "PyBytes_Check"(PyObject* item)
    Py_ssize_t bytes_size "PyBytes_GET_SIZE"(PyObject* item)
    char* bytes_pointer "PyBytes_AS_STRING"(PyObject* item)

cdef enum:
    AHEAD_BYTES = 4096
    CRC_BYTES = 4
    MIN_MESSAGE_BYTES_0 = 5       # magic, crc
    MIN_MESSAGE_BYTES_1 = 6       # magic, attributes, crc
    MAX_INT32 = 0x7FFFFFFF

ScanResult = namedtuple("ScanResult", ("valid_bytes", "count", "wrappers", "suspicious", "status"))
ScanResult.__doc__ = "What one walk over a message set found."
ScanResult.__module__ = "fastlog._segment"

# The names of the .pxd's enum are C constants here; Python gets the same numbers under the same names.
globals().update(
    LENGTH_BYTES=<int>LENGTH_BYTES,
    LEAST_ENTRY_BYTES=<int>LEAST_ENTRY_BYTES,
    ENTRY_HEADER_BYTES=<int>ENTRY_HEADER_BYTES,
    SCAN_OK=<int>SCAN_OK,
    SCAN_TAIL=<int>SCAN_TAIL,
    SCAN_SIZE=<int>SCAN_SIZE,
    SCAN_MAGIC=<int>SCAN_MAGIC,
    SCAN_CODEC=<int>SCAN_CODEC,
    SCAN_CRC=<int>SCAN_CRC,
    SCAN_TOO_LARGE=<int>SCAN_TOO_LARGE,
)


cdef inline bint looks_compressed(const unsigned char* payload, Py_ssize_t n) noexcept nogil:
    """Whether a payload begins like gzip or xerial snappy: the mark of a codec bit lost from the attributes."""
    if n < 3:
        return False
    if payload[0] == 0x1F:
        return payload[1] == 0x8B and payload[2] == 0x08
    if payload[0] == 0x82 and n >= 7:
        return (payload[1] == 0x53 and payload[2] == 0x4E and payload[3] == 0x41
                and payload[4] == 0x50 and payload[5] == 0x50 and payload[6] == 0x59)
    return False


# A core's own prefetcher stops at the end of each page, so a log that is not in its caches costs a wait every twenty
# messages: a fifth of the time. Nothing is read here, and an address behind the end does no harm.
cdef extern from *:
    """
    static inline void fetch_ahead(const unsigned char *p) {
        for (int line = 0; line < 4; line++)
            __builtin_prefetch(p + 64 * line);
    }
    """
    void fetch_ahead(const unsigned char* p) noexcept nogil


cdef void scan_set(const unsigned char* p, Py_ssize_t n, Py_ssize_t max_payload, Scan* out) noexcept nogil:
    cdef Py_ssize_t position = 0, left, payload_bytes
    cdef const unsigned char* entry
    cdef const unsigned char* payload
    cdef int32_t size
    cdef unsigned char attributes
    cdef long long count = 0, wrappers = 0, suspicious = 0
    cdef int status = SCAN_OK
    while position < n:
        left = n - position - LENGTH_BYTES
        if left < 0:
            status = SCAN_TAIL
            break
        entry = p + position
        size = <int32_t>be32(entry)                 # a claim, until the next two tests
        fetch_ahead(entry + AHEAD_BYTES)
        if size < MIN_MESSAGE_BYTES_0:
            status = SCAN_SIZE
            break
        if size > left:
            status = SCAN_TAIL
            break
        if entry[4] == 1:
            if size < MIN_MESSAGE_BYTES_1:          # only now is it known which minimum holds
                status = SCAN_SIZE
                break
            attributes = entry[5]
            if attributes > LAST_CODEC:             # codec 3 or a reserved bit
                status = SCAN_CODEC
                break
            payload = entry + (LENGTH_BYTES + MIN_MESSAGE_BYTES_1)
            payload_bytes = size - MIN_MESSAGE_BYTES_1
        elif entry[4] == 0:
            attributes = 0
            payload = entry + (LENGTH_BYTES + MIN_MESSAGE_BYTES_0)
            payload_bytes = size - MIN_MESSAGE_BYTES_0
        else:
            status = SCAN_MAGIC
            break
        if max_payload >= 0 and payload_bytes > max_payload:
            status = SCAN_TOO_LARGE
            break
        if crc32_span(0, payload, <size_t>payload_bytes) != be32(payload - CRC_BYTES):
            status = SCAN_CRC
            break
        if attributes != 0:
            wrappers += 1
        elif looks_compressed(payload, payload_bytes):
            suspicious += 1
        count += 1
        position += LENGTH_BYTES + size
    out.valid_bytes = position
    out.count = count
    out.wrappers = wrappers
    out.suspicious = suspicious
    out.status = status


cdef void scan_view(const Py_buffer* view, Py_ssize_t max_payload, Scan* out) noexcept:
    if view.len >= GIL_SPAN_BYTES:
        with nogil:
            scan_set(<const unsigned char*>view.buf, view.len, max_payload, out)
    else:
        scan_set(<const unsigned char*>view.buf, view.len, max_payload, out)


cdef inline Py_ssize_t header_bytes(const unsigned char* entry, int32_t size, const unsigned char* end) except -1:
    """The bytes between an entry's length and its payload. The scan before made the lengths facts; they are compared
    once more because a mapped buffer may change between the two walks, and then an exception beats a wild read."""
    cdef Py_ssize_t header = MIN_MESSAGE_BYTES_0 + (entry[4] & 1)
    if size < header or size > end - entry - LENGTH_BYTES:
        raise BufferError("the bytes changed while they were read")
    return header


def scan(buffer, Py_ssize_t max_payload=-1):
    cdef Py_buffer view
    cdef Scan found
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        scan_view(&view, max_payload, &found)
    finally:
        PyBuffer_Release(&view)
    return ScanResult(found.valid_bytes, found.count, found.wrappers, found.suspicious, found.status)


def payloads(buffer):
    cdef Py_buffer view
    cdef Scan found
    cdef const unsigned char* entry
    cdef Py_ssize_t i, header
    cdef int32_t size
    cdef list result
    cdef object payload
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        scan_view(&view, -1, &found)
        entry = <const unsigned char*>view.buf
        result = PyList_New(<Py_ssize_t>found.count)
        for i in range(<Py_ssize_t>found.count):
            size = <int32_t>be32(entry)
            header = header_bytes(entry, size, <const unsigned char*>view.buf + found.valid_bytes)
            payload = PyBytes_FromStringAndSize(<const char*>entry + LENGTH_BYTES + header, size - header)
            Py_INCREF(payload)
            PyList_SET_ITEM(result, i, payload)
            entry += LENGTH_BYTES + size
    finally:
        PyBuffer_Release(&view)
    return result


def entries(buffer, int64_t base_offset=0):
    cdef Py_buffer view
    cdef Scan found
    cdef const unsigned char* entry
    cdef Py_ssize_t i, header
    cdef int64_t next_offset
    cdef int32_t size
    cdef list result
    cdef tuple item
    cdef object offset_object, next_object, payload
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if base_offset < 0 or base_offset > <int64_t>0x7FFFFFFFFFFFFFFF - view.len:
            raise ValueError(f"base_offset {base_offset} is not an offset that these bytes can start at")
        scan_view(&view, -1, &found)
        entry = <const unsigned char*>view.buf
        result = PyList_New(<Py_ssize_t>found.count)
        next_offset = base_offset
        offset_object = base_offset
        for i in range(<Py_ssize_t>found.count):
            size = <int32_t>be32(entry)
            header = header_bytes(entry, size, <const unsigned char*>view.buf + found.valid_bytes)
            next_offset += LENGTH_BYTES + size
            next_object = next_offset
            payload = PyBytes_FromStringAndSize(<const char*>entry + LENGTH_BYTES + header, size - header)
            item = (offset_object, next_object, <int>entry[4], <int>(entry[5] if entry[4] else 0), payload)
            Py_INCREF(item)
            PyList_SET_ITEM(result, i, item)
            offset_object = next_object
            entry += LENGTH_BYTES + size
    finally:
        PyBuffer_Release(&view)
    return result


def find_wrapper(buffer, Py_ssize_t position=0):
    cdef Py_buffer view
    cdef const unsigned char* entry
    cdef int32_t size
    cdef Py_ssize_t start
    if position < 0:
        raise ValueError(f"position {position} is negative")
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while view.len - position >= LENGTH_BYTES + MIN_MESSAGE_BYTES_0:
            entry = <const unsigned char*>view.buf + position
            size = <int32_t>be32(entry)
            if size < MIN_MESSAGE_BYTES_0 or size > view.len - position - LENGTH_BYTES:
                return None
            if entry[4] == 1 and size >= MIN_MESSAGE_BYTES_1 and entry[5] & CODEC_MASK:
                start = position + LENGTH_BYTES + MIN_MESSAGE_BYTES_1
                position += LENGTH_BYTES + size
                return position, start, <int>(entry[5] & CODEC_MASK)
            position += LENGTH_BYTES + size
    finally:
        PyBuffer_Release(&view)
    return None


def pack(payload_list, int codec_attribute=0, int magic=1):
    cdef object fast = PySequence_Fast(payload_list, b"pack() takes a list of bytes")
    cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(fast)
    cdef PyObject** items = PySequence_Fast_ITEMS(fast)
    cdef Py_ssize_t i, n, header, total = 0
    cdef unsigned char* out
    cdef bytes result
    if magic != 0 and magic != 1:
        raise ValueError(f"magic {magic} is not 0 or 1")
    if codec_attribute < 0 or codec_attribute > LAST_CODEC:
        raise ValueError(f"codec {codec_attribute} is not 0, 1 or 2")
    if magic == 0 and codec_attribute != 0:
        raise ValueError("a message of magic 0 has no codec")
    header = MIN_MESSAGE_BYTES_0 + magic
    for i in range(count):
        if not is_bytes(items[i]):
            raise TypeError(f"payload {i} is {type(<object>items[i]).__name__}, not bytes")
        n = bytes_size(items[i])
        if n > MAX_INT32 - header:
            raise ValueError(f"payload {i} has {n} bytes; its length field ends at {MAX_INT32}")
        total += LENGTH_BYTES + header + n
    # No Python code runs between the two loops, so the list is still the one that was measured.
    result = PyBytes_FromStringAndSize(NULL, total)
    out = <unsigned char*>PyBytes_AS_STRING(result)
    for i in range(count):
        n = bytes_size(items[i])
        put32(out, <uint32_t>(header + n))
        out[4] = <unsigned char>magic
        if magic == 1:
            out[5] = <unsigned char>codec_attribute
        out += LENGTH_BYTES + header
        put32(out - CRC_BYTES, crc32_span(0, <const unsigned char*>bytes_pointer(items[i]), <size_t>n))
        memcpy(out, bytes_pointer(items[i]), <size_t>n)
        out += n
    return result


def skip_to(const unsigned char[::1] buffer not None, Py_ssize_t target):
    """Return where the first entry at or behind ``target`` begins, walking lengths from the start; see the ``.pyi``."""
    cdef Py_ssize_t n = buffer.shape[0], at = 0
    cdef const unsigned char* p
    cdef long long size
    if n == 0:
        return 0
    p = &buffer[0]
    with nogil:
        while at < target and n - at >= 4:
            size = <long long>be32(p + at)
            if size < 5 or size > n - at - 4:
                break
            at += 4 + <Py_ssize_t>size
    return at


def cut(const unsigned char[::1] buffer not None, Py_ssize_t max_bytes, Py_ssize_t max_payload):
    """Return ``(end, entries, too_large)`` of each piece that may be sent at once; see the ``.pyi``."""
    cdef Py_ssize_t n = buffer.shape[0], at = 0, begin = 0
    cdef long long count = 0, size
    cdef const unsigned char* p
    cdef list pieces = []
    if n == 0:
        return pieces
    p = &buffer[0]
    while n - at >= LENGTH_BYTES + MIN_MESSAGE_BYTES_0:
        size = <long long>be32(p + at)
        if size < MIN_MESSAGE_BYTES_0 or size > n - at - LENGTH_BYTES:
            break
        if size - MIN_MESSAGE_BYTES_0 - p[at + 4] > max_payload:    # the header of magic 1 has a byte more
            if count:
                pieces.append((at, count, False))
            at += LENGTH_BYTES + <Py_ssize_t>size
            pieces.append((at, 1, True))
            begin, count = at, 0
            continue
        if count and at + LENGTH_BYTES + size - begin > max_bytes:
            pieces.append((at, count, False))
            begin, count = at, 0
        at += LENGTH_BYTES + <Py_ssize_t>size
        count += 1
    if count:
        pieces.append((at, count, False))
    return pieces

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t

from fastlog._bytes cimport be32
from fastlog._record_batch cimport FoundRecord, PlacedValue, RecordSpan, RecordWalk, delta_of, headers_of, next_value
from fastlog._records cimport RecordFields
from fastlog._segment cimport LEAST_ENTRY_BYTES, LENGTH_BYTES


cdef enum:
    RECORD_MAGIC = 2
    RECORD_BYTES = 8        # of a record besides its key and its value, about
    NO_TIME = -1            # as records have it that were made without a time


cdef struct Entry:
    const unsigned char* payload
    Py_ssize_t payload_bytes
    Py_ssize_t entry_bytes      # of the whole entry, its length field included
    unsigned char magic
    unsigned char attributes


# Here, so that whoever walks entries in C has it inline.
cdef inline bint next_entry(const unsigned char* p, Py_ssize_t left, Entry* out) noexcept nogil:
    """Describe the entry at ``p``, or return False when no whole one is there."""
    cdef uint32_t size
    cdef Py_ssize_t header
    if left < LEAST_ENTRY_BYTES:
        return False
    size = be32(p)
    out.magic = p[4]
    header = 5 + (p[4] & 1)
    if size < <uint32_t>header or <Py_ssize_t>size > left - LENGTH_BYTES:
        return False
    out.attributes = p[5] if out.magic else 0
    out.payload = p + LENGTH_BYTES + header
    out.payload_bytes = <Py_ssize_t>size - header
    out.entry_bytes = LENGTH_BYTES + <Py_ssize_t>size
    return True


cdef inline object payload_of(const Entry* entry):
    """What the entry holds; None for the null of a record."""
    if entry.payload_bytes < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>entry.payload, entry.payload_bytes)


cdef inline void entry_of(const FoundRecord* record, Entry* entry) noexcept nogil:
    """A record as far as it is like a message."""
    entry.payload = record.fields.value
    entry.payload_bytes = record.fields.value_bytes
    entry.entry_bytes = max(0, record.fields.key_bytes) + max(0, record.fields.value_bytes) + RECORD_BYTES
    entry.magic = RECORD_MAGIC
    entry.attributes = 0


cdef inline Py_ssize_t take_values(
    RecordSpan span, RecordWalk* walk, list into, Py_ssize_t count, Py_ssize_t size
) except? -1:
    """Append the values of the records of a span that are in turn in a walk until the list has ``count`` items, or
    they have taken ``size`` bytes; what is left of ``size``. The walk moves once all of it is done."""
    cdef RecordWalk ahead = walk[0]
    cdef RecordFields fields
    cdef const uint8_t* last = NULL
    cdef const PlacedValue* placed = NULL
    if span.placed != NULL:
        placed = span.placed + (span.walk.left - ahead.left)
    count -= PyList_GET_SIZE(into)
    while ahead.left and count > 0 and size > 0:
        last = ahead.at
        if placed != NULL:
            fields.value, fields.value_bytes = span.base + placed.at, placed.value_bytes
            fields.key_bytes = placed.key_bytes
            ahead.at = span.base + placed.end
            ahead.left -= 1
            placed += 1
        elif not next_value(&ahead, &fields):
            raise BufferError("the bytes changed while they were read")
        if fields.value_bytes < 0:
            into.append(None)
            size -= max(0, fields.key_bytes) + RECORD_BYTES
        else:
            into.append(PyBytes_FromStringAndSize(<const char*>fields.value, fields.value_bytes))
            size -= max(0, fields.key_bytes) + fields.value_bytes + RECORD_BYTES
        count -= 1
    if last != NULL:
        ahead.least_delta = <int64_t>delta_of(last, &ahead) + 1
        if not ahead.least_delta:
            raise BufferError("the bytes changed while they were read")
    walk[0] = ahead
    return size


cdef inline object key_of(const FoundRecord* record):
    if record.fields.key_bytes < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>record.fields.key, record.fields.key_bytes)


cdef inline tuple headers_in(const FoundRecord* record, const RecordWalk* walk):
    """The headers of a record that the walk has found."""
    if not record.fields.header_count:
        return ()
    found = headers_of(record.fields.headers, walk.end, record.fields.header_count)
    if found is None:
        raise BufferError("the bytes changed while they were read")
    return found


cdef str described(bytes payload)
cdef str of_record(bytes key, tuple headers, timestamp)

"""The columns of Arrow batches out of record batches: one walk over checked records, no object for any of them."""

cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from fastlog._record_batch cimport FoundRecord, RecordSpan, RecordWalk, next_record
from fastlog._records cimport RECORDS_OK, take_bytes

cdef enum:
    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    APPEND_TIME = 1

cdef int64_t MOST_MS = INT64_MAX // 1000


@cython.final
cdef class Bytes:
    """A column of bytes behind one another, some of which may be missing."""

    cdef readonly object data
    cdef readonly object ends
    cdef readonly object valid
    cdef unsigned char[::1] bytes
    cdef int32_t[::1] stops
    cdef unsigned char[::1] flags
    cdef Py_ssize_t count

    def __init__(self, Py_ssize_t count, Py_ssize_t room):
        import numpy as np

        if count < 0 or not 0 <= room <= INT32_MAX:
            raise ValueError("there is more room than ends can say")
        self.data, self.ends = np.empty(room, np.uint8), np.zeros(count + 1, np.int32)
        self.valid = np.zeros(count, np.uint8)
        self.bytes, self.stops, self.flags = self.data, self.ends, self.valid

    cdef inline bint has_room(self, Py_ssize_t count, Py_ssize_t size) noexcept nogil:
        return count <= self.flags.shape[0] - self.count and size <= self.bytes.shape[0] - self.stops[self.count]

    cdef inline void put(self, const uint8_t* p, int32_t size) noexcept nogil:
        """Write the row in turn, for which there is room; it is missing where ``size`` is below 0."""
        cdef int32_t used = self.stops[self.count]
        if size > 0:
            memcpy(&self.bytes[used], p, <size_t>size)
            used += size
        self.flags[self.count] = size >= 0
        self.count += 1
        self.stops[self.count] = used


@cython.final
cdef class Cursor:
    """Where in a span it goes on. For one thread."""

    cdef RecordSpan span        # what the walk goes over
    cdef RecordWalk walk

    def __init__(self, RecordSpan span not None, int64_t end):
        cdef RecordWalk ahead
        cdef FoundRecord record
        cdef int32_t taken = 0
        self.span, self.walk = span, span.walk
        if end >= self.walk.next_offset:
            return
        ahead = self.walk
        while ahead.left:
            self.walk.end = ahead.at
            if next_record(&ahead, &record) != RECORDS_OK:
                raise changed()
            if record.offset >= end:
                break
            self.walk.end = ahead.at
            taken += 1
        self.walk.left = taken
        self.walk.next_offset = end

    @property
    def left(self):
        return self.walk.left

    def needed(self):
        cdef RecordWalk ahead = self.walk
        cdef FoundRecord record
        if not ahead.left or next_record(&ahead, &record) != RECORDS_OK:
            raise changed()
        return ahead.at - self.walk.at, record.fields.header_count


@cython.final
cdef class Rows:
    """The rows of one Arrow batch, up to a number of them. See the ``.pyi``."""

    cdef readonly object offsets
    cdef readonly object next_offsets
    cdef readonly object times
    cdef readonly object has_time
    cdef readonly object types
    cdef readonly Bytes keys
    cdef readonly Bytes values
    cdef readonly object header_ends
    cdef readonly Bytes names
    cdef readonly Bytes contents
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t most
    cdef int64_t[::1] offset_rows
    cdef int64_t[::1] next_rows
    cdef int64_t[::1] time_rows
    cdef unsigned char[::1] time_flags
    cdef int32_t[::1] type_rows
    cdef int32_t[::1] header_rows

    def __init__(self, wanted, Py_ssize_t rows, Py_ssize_t room, Py_ssize_t headers):
        import numpy as np

        self.most = rows
        # Before its first assignment a view compares as if it were one.
        self.offset_rows = self.next_rows = self.time_rows = None
        self.time_flags = None
        self.type_rows = self.header_rows = None
        if "offset" in wanted:
            self.offsets = self.offset_rows = np.empty(rows, np.int64)
        if "nextOffset" in wanted:
            self.next_offsets = self.next_rows = np.empty(rows, np.int64)
        if "timestamp" in wanted:
            self.times = self.time_rows = np.empty(rows, np.int64)
            self.has_time = self.time_flags = np.empty(rows, np.uint8)
        if "timestampType" in wanted:
            self.types = self.type_rows = np.empty(rows, np.int32)
        if "key" in wanted:
            self.keys = Bytes(rows, room)
        if "value" in wanted:
            self.values = Bytes(rows, room)
        if "headers" in wanted:
            self.header_ends = self.header_rows = np.zeros(rows + 1, np.int32)
            self.names, self.contents = Bytes(headers, room), Bytes(headers, room)

    def take(self, Cursor cursor not None):
        cdef int status
        with nogil:
            status = self.fill(&cursor.walk)
        if status != RECORDS_OK:
            raise changed()
        return cursor.walk.left == 0

    cdef int fill(self, RecordWalk* walk) noexcept nogil:
        """Take records until there is no room for the next one; answers RECORDS_OK, unless the bytes changed."""
        cdef RecordWalk ahead
        cdef FoundRecord record
        cdef int status
        cdef Py_ssize_t i
        while walk.left and self.count < self.most:
            ahead = walk[0]
            status = next_record(&ahead, &record)
            if status != RECORDS_OK:
                return status
            if self.keys is not None and not self.keys.has_room(1, record.fields.key_bytes):
                break
            if self.values is not None and not self.values.has_room(1, record.fields.value_bytes):
                break
            if self.names is not None and (
                # they have not more bytes than the record
                not self.names.has_room(record.fields.header_count, ahead.at - record.fields.headers)
                or not self.contents.has_room(record.fields.header_count, ahead.at - record.fields.headers)
            ):
                break
            i = self.count
            if self.names is not None:
                status = self.put_headers(record.fields.headers, ahead.at, record.fields.header_count)
                if status != RECORDS_OK:
                    return status
                self.header_rows[i + 1] = self.header_rows[i] + record.fields.header_count
            if self.offset_rows is not None:
                self.offset_rows[i] = record.offset
            if self.next_rows is not None:
                self.next_rows[i] = record.next_offset
            if self.time_rows is not None:
                self.time_flags[i] = (
                    record.fields.timestamp != NO_TIMESTAMP and -MOST_MS <= record.fields.timestamp <= MOST_MS
                )
                self.time_rows[i] = record.fields.timestamp * 1000 if self.time_flags[i] else 0
            if self.type_rows is not None:
                self.type_rows[i] = APPEND_TIME if walk.has_append_time else CREATE_TIME
            if self.keys is not None:
                self.keys.put(record.fields.key, record.fields.key_bytes)
            if self.values is not None:
                self.values.put(record.fields.value, record.fields.value_bytes)
            walk[0] = ahead
            self.count += 1
        return RECORDS_OK

    cdef int put_headers(self, const uint8_t* at, const uint8_t* end, int32_t count) noexcept nogil:
        cdef const uint8_t* field = NULL
        cdef int32_t size = 0
        cdef int status
        while count > 0:
            status = take_bytes(&at, end, 0, &field, &size)
            if status != RECORDS_OK:
                return status
            self.names.put(field, size)
            status = take_bytes(&at, end, -1, &field, &size)
            if status != RECORDS_OK:
                return status
            self.contents.put(field, size)
            count -= 1
        return RECORDS_OK


cdef object changed():
    return BufferError("the bytes changed while they were read")

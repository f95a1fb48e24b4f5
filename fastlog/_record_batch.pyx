"""Reads the record batches of a Fetch answer: checks them, opens them, and finds the fields of their records.

``fastlog.record_batches`` has the table of a batch's header, ``fastlog._records`` that of a record. Batches come in
ascending order, and so do the records of one; between them offsets may be missing, since a broker takes records out of a
compacted log, and gives messages of other formats the offsets that they have there. A batch may even have lost all of
its records. So a batch is read as its clients have to read it, which is more than a broker takes from a producer.
"""

from collections import namedtuple

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc

from fastlog._batch_header cimport (
    APPEND_TIME_BIT, AT_ATTRIBUTES, AT_BASE_TIMESTAMP, AT_COUNT, AT_CRC, AT_LAST_DELTA, AT_LENGTH, AT_MAGIC,
    AT_MAX_TIMESTAMP, BATCH_HEADER_BYTES, CODEC_BITS, CONTROL_BIT, KNOWN_BITS, LARGEST_CODEC, LENGTH_END,
    RECORD_BATCH_MAGIC,
)
from fastlog._bytes cimport GIL_SPAN_BYTES, be16, be32, be64
from fastlog._crc32c cimport crc32c_span
from fastlog._records cimport RECORDS_LEFT, RECORDS_OK, RECORDS_TIMESTAMP, reason_of, take_bytes
from fastlog._views cimport view_of

from fastlog import batch_codecs, codecs
from fastlog.errors import DecompressionLimitError, InvalidFetchSizeError, InvalidMessageError

cdef extern from *:
    """
    #define prefetch(at) __builtin_prefetch(at)
    """
    void prefetch(const uint8_t* at) noexcept nogil

cdef enum:
    LEAST_RECORD_BYTES = MIN_RECORD_BYTES + 1
    RECORDS_AHEAD = 6
    MOST_PLACED = 65536           # a few bytes that are decompressed to very many records take no more memory than these
    PLACE_ROWS = 6
    LENGTH_ROWS = 3

# The names of the .pxd's enum are C constants here; Python gets the same numbers under the same names.
globals().update(
    BATCHES_OK=<int>BATCHES_OK,
    BATCHES_TAIL=<int>BATCHES_TAIL,
    BATCHES_MAGIC=<int>BATCHES_MAGIC,
    BATCHES_LENGTH=<int>BATCHES_LENGTH,
    BATCHES_CRC=<int>BATCHES_CRC,
    BATCHES_ATTRIBUTES=<int>BATCHES_ATTRIBUTES,
    BATCHES_COUNT=<int>BATCHES_COUNT,
    BATCHES_OFFSET=<int>BATCHES_OFFSET,
)

BatchScan = namedtuple("BatchScan", ("valid_bytes", "batches", "records", "compressed", "next_offset", "status"))
BatchScan.__doc__ = "What one walk over batches found."
BatchScan.__module__ = "fastlog._record_batch"

cdef dict REASONS = {
    <int>BATCHES_MAGIC: "is of another format than magic 2",
    <int>BATCHES_LENGTH: "has a length that cannot be",
    <int>BATCHES_CRC: "has a wrong checksum",
    <int>BATCHES_ATTRIBUTES: "has an unknown codec or attribute",
    <int>BATCHES_COUNT: "has a number of records that cannot be",
    <int>BATCHES_OFFSET: "has an offset that cannot be, or lies before the end of the batch before it",
}


cdef int read_batch(const uint8_t* p, Py_ssize_t left, bint checks_sum, BatchFrame* out) noexcept nogil:
    cdef int32_t length, last_delta
    cdef uint16_t attributes
    if left <= AT_MAGIC:
        return BATCHES_TAIL
    if p[AT_MAGIC] != RECORD_BATCH_MAGIC:
        return BATCHES_MAGIC
    length = <int32_t>be32(p + AT_LENGTH)
    if length < BATCH_HEADER_BYTES - LENGTH_END:
        return BATCHES_LENGTH
    if length > left - LENGTH_END:
        return BATCHES_TAIL
    out.size_bytes = LENGTH_END + <Py_ssize_t>length
    if checks_sum and crc32c_span(0, p + AT_ATTRIBUTES, <size_t>(out.size_bytes - AT_ATTRIBUTES)) != be32(p + AT_CRC):
        return BATCHES_CRC
    attributes = be16(p + AT_ATTRIBUTES)
    out.codec = attributes & CODEC_BITS
    if attributes & <uint16_t>~KNOWN_BITS or out.codec > LARGEST_CODEC:
        return BATCHES_ATTRIBUTES
    out.records = p + BATCH_HEADER_BYTES
    out.record_bytes = out.size_bytes - BATCH_HEADER_BYTES
    out.record_count = <int32_t>be32(p + AT_COUNT)
    last_delta = <int32_t>be32(p + AT_LAST_DELTA)
    if out.record_count < 0 or last_delta < 0 or <int64_t>out.record_count > <int64_t>last_delta + 1:
        return BATCHES_COUNT
    if not out.codec and out.record_count > out.record_bytes // LEAST_RECORD_BYTES:
        return BATCHES_COUNT
    out.base_offset = <int64_t>be64(p)
    if out.base_offset < 0 or out.base_offset > INT64_MAX - 1 - last_delta:
        return BATCHES_OFFSET
    out.next_offset = out.base_offset + last_delta + 1
    out.base_timestamp = <int64_t>be64(p + AT_BASE_TIMESTAMP)
    out.max_timestamp = <int64_t>be64(p + AT_MAX_TIMESTAMP)
    out.has_append_time = attributes & APPEND_TIME_BIT != 0
    out.is_control = attributes & CONTROL_BIT != 0
    return BATCHES_OK


cdef int read_following(
    const uint8_t* p, Py_ssize_t left, bint checks_sum, int64_t least_offset, BatchFrame* out
) noexcept nogil:
    """The same for a batch that has to begin at that offset or behind it."""
    cdef int status = read_batch(p, left, checks_sum, out)
    if status == BATCHES_OK and out.base_offset < least_offset:
        return BATCHES_OFFSET
    return status


cdef void begin_records(const BatchFrame* batch, const uint8_t* p, Py_ssize_t size, RecordWalk* out) noexcept nogil:
    out.at = p
    out.end = p + size
    out.base_offset = batch.base_offset
    out.next_offset = batch.next_offset
    out.base_timestamp = batch.base_timestamp
    out.append_time = batch.max_timestamp
    out.has_append_time = batch.has_append_time
    out.least_delta = 0
    out.most_delta = batch.next_offset - 1 - batch.base_offset
    out.left = batch.record_count


cdef int check_records(RecordWalk* walk, int64_t wanted, PlacedValue* placed) noexcept nogil:
    """Check all records of the walk, and let it stand before the first one whose offset is ``wanted`` or higher.

    ``placed`` gets a row for each from there on, unless it is NULL.
    """
    cdef RecordWalk ahead = walk[0]
    cdef FoundRecord record
    cdef const uint8_t* base = ahead.at
    cdef const uint8_t* before
    cdef Py_ssize_t row = 0
    cdef int status
    if not ahead.left and ahead.at != ahead.end:
        return RECORDS_LEFT
    while ahead.left:
        before = ahead.at
        status = next_record(&ahead, &record)
        # Where a record begins is known from the one before it alone, so a core cannot ask for it early; most are alike.
        prefetch(ahead.at + RECORDS_AHEAD * (ahead.at - before))
        if status != RECORDS_OK:
            walk.left = ahead.left
            return status
        if record.offset < wanted:
            walk[0] = ahead
        elif placed != NULL:
            placed[row].at = <uint32_t>(record.fields.value - base)
            placed[row].value_bytes = record.fields.value_bytes
            placed[row].key_bytes = record.fields.key_bytes
            placed[row].end = <uint32_t>(ahead.at - base)
            row += 1
    return RECORDS_OK


def scan_batches(data, int64_t offset=0):
    cdef const uint8_t* base
    cdef Py_ssize_t size, at = 0, batches = 0, compressed = 0
    cdef int64_t records = 0, least_offset = 0
    cdef BatchFrame batch
    cdef int status
    view = view_of(data, &base, &size)
    with nogil:
        while True:
            status = read_following(base + at, size - at, True, least_offset, &batch)
            if status != BATCHES_OK:
                break
            at += batch.size_bytes
            batches += 1
            least_offset = batch.next_offset
            if not batch.is_control:
                records += batch.record_count
                compressed += batch.codec != 0
    if status == BATCHES_TAIL and at == size:
        status = BATCHES_OK
    return BatchScan(at, batches, records, compressed, max(offset, least_offset), status)


cdef object damaged(int status, int64_t offset):
    """The error for what ``read_batch`` says of the batch with that offset."""
    error = InvalidMessageError(f"the batch at offset {offset} {REASONS[status]}")
    error.offset = offset
    return error


cdef object damaged_inside(int status, int64_t number, int64_t offset):
    error = InvalidMessageError(
        f"the batch at offset {offset} is damaged at its record {number}: {(<bytes>reason_of(status)).decode()}"
    )
    error.offset = offset
    return error


cdef object too_short(Py_ssize_t size, int64_t offset):
    error = InvalidFetchSizeError(f"the batch at offset {offset} is longer than the {size} bytes fetched")
    error.offset = offset
    return error


cdef object opened(const BatchFrame* batch, data, limits):
    """The records of a compressed batch, whose compressed bytes are ``data``."""
    if limits.max_depth < 1:
        raise DecompressionLimitError("compressed batches are not allowed")
    parts = list(batch_codecs.slices(batch.codec, data, codecs.DecompressionBudget(limits.max_inflated_bytes)))
    return parts[0] if len(parts) == 1 else b"".join(parts)


cdef class RecordSpan:
    """See the ``.pyi``."""

    def __dealloc__(self):
        free(self.placed)

    @property
    def count(self):
        return self.walk.left

    @property
    def next_offset(self):
        return self.walk.next_offset

    @property
    def records(self):
        return memoryview(self.buffer).cast("B")[self.start:]


cdef class RecordSpans:
    """See the ``.pyi``."""

    def __init__(self, data, int64_t offset, limits, Py_ssize_t checked_bytes=0):
        self.data = view_of(data, &self.base, &self.size)
        self.limits = limits
        self.wanted = offset
        self.checked_bytes = checked_bytes

    def __iter__(self):
        return self

    def __next__(self):
        span = self.next_or_none()
        if span is None:
            raise StopIteration
        return span

    cdef RecordSpan next_or_none(self):
        cdef BatchFrame batch
        cdef Py_ssize_t at
        cdef int status
        while True:
            at = self.at
            if self.size - at >= GIL_SPAN_BYTES and at >= self.checked_bytes:
                with nogil:
                    status = read_following(self.base + at, self.size - at, True, self.next_offset, &batch)
            else:
                status = read_following(
                    self.base + at, self.size - at, at >= self.checked_bytes, self.next_offset, &batch
                )
            if status == BATCHES_TAIL:
                if at or not self.size:
                    return None
                raise too_short(self.size, self.wanted)
            if status != BATCHES_OK:
                raise damaged(status, max(self.wanted, self.next_offset))
            if batch.is_control or batch.next_offset <= self.wanted:
                span = None
            else:
                span = self.span_of(&batch)
            self.at += batch.size_bytes
            self.next_offset = batch.next_offset
            if span is not None:
                return span

    cdef RecordSpan span_of(self, const BatchFrame* batch):
        """The records of a batch from the wanted offset on; None when there are none."""
        cdef RecordSpan span = RecordSpan.__new__(RecordSpan)
        cdef const uint8_t* base
        cdef Py_ssize_t size, start
        cdef int64_t offset = max(self.wanted, batch.base_offset)
        cdef int64_t wanted = self.wanted
        cdef int status
        if batch.record_count > self.limits.max_messages:
            raise DecompressionLimitError(f"the batch at offset {offset} holds more than {self.limits.max_messages} records")
        start = batch.records - self.base
        part = self.data[start:start + batch.record_bytes]
        if batch.codec:
            try:
                part = opened(batch, part, self.limits)
            except InvalidMessageError as error:
                error.offset = offset
                raise
        span.buffer = part
        span.data = view_of(part, &base, &size)
        span.base = base
        begin_records(batch, base, size, &span.walk)
        if 0 < batch.record_count <= MOST_PLACED and size <= UINT32_MAX:
            span.placed = <PlacedValue*>malloc(<size_t>batch.record_count * sizeof(PlacedValue))
            if span.placed == NULL:
                raise MemoryError
        if size >= GIL_SPAN_BYTES:
            with nogil:
                status = check_records(&span.walk, wanted, span.placed)
        else:
            status = check_records(&span.walk, wanted, span.placed)
        if status != RECORDS_OK:
            raise damaged_inside(status, batch.record_count - span.walk.left, offset)
        if not span.walk.left:
            return None
        span.start = span.walk.at - base
        span.offset = max(wanted, batch.base_offset + span.walk.least_delta)
        return span


cdef tuple headers_of(const uint8_t* at, const uint8_t* end, int32_t count):
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef int32_t name_bytes = 0, value_bytes = 0
    cdef list found = []
    while count > 0:
        if (
            take_bytes(&at, end, 0, &name, &name_bytes) != RECORDS_OK
            or take_bytes(&at, end, -1, &value, &value_bytes) != RECORDS_OK
        ):
            return None
        found.append((
            PyBytes_FromStringAndSize(<const char*>name, name_bytes),
            None if value_bytes < 0 else PyBytes_FromStringAndSize(<const char*>value, value_bytes),
        ))
        count -= 1
    return tuple(found)


def headers_at(data, Py_ssize_t start, int32_t count):
    cdef const uint8_t* base
    cdef Py_ssize_t size
    view = view_of(data, &base, &size)
    if not 0 <= start <= size:
        raise ValueError(f"headers do not begin at {start} of {size} bytes")
    found = headers_of(base + start, base + size, count)
    if found is None:
        raise ValueError(f"at {start} do not stand {count} headers")
    return found


def index_headers(
    data, const int64_t[::1] starts not None, const int32_t[::1] counts not None, int64_t[:, ::1] places not None,
    int32_t[:, ::1] lengths not None,
):
    cdef const uint8_t* base
    cdef const uint8_t* at
    cdef const uint8_t* name = NULL
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t size, row = 0, i = 0, room = places.shape[1]
    cdef int64_t* name_starts = NULL
    cdef int64_t* value_starts = NULL
    cdef int32_t* name_bytes = NULL
    cdef int32_t* value_bytes = NULL
    cdef int32_t left
    cdef bint is_there = True, fits = True
    if places.shape[0] != 2 or lengths.shape[0] != 2 or lengths.shape[1] != room:
        raise ValueError("two rows of places and two of lengths, all of one length, are needed")
    if starts.shape[0] != counts.shape[0]:
        raise ValueError(f"{starts.shape[0]} places and {counts.shape[0]} numbers of headers are not of the same records")
    if room:
        name_starts, value_starts = &places[0, 0], &places[1, 0]
        name_bytes, value_bytes = &lengths[0, 0], &lengths[1, 0]
    view = view_of(data, &base, &size)
    with nogil:
        for i in range(starts.shape[0]):
            left = counts[i]
            if left == 0:
                continue
            is_there = left > 0 and 0 <= starts[i] <= size
            fits = left <= room - row
            if not is_there or not fits:
                break
            at = base + starts[i]
            while left > 0:
                if (
                    take_bytes(&at, base + size, 0, &name, &name_bytes[row]) != RECORDS_OK
                    or take_bytes(&at, base + size, -1, &value, &value_bytes[row]) != RECORDS_OK
                ):
                    is_there = False
                    break
                name_starts[row] = name - base
                value_starts[row] = value - base if value_bytes[row] >= 0 else 0
                row += 1
                left -= 1
            if not is_there:
                break
    if not is_there:
        raise ValueError(f"the headers of record number {i} do not stand where they should")
    if not fits:
        raise ValueError(f"the headers do not fit {room} places")
    return row


def entries(RecordSpan span not None):
    cdef RecordWalk walk = span.walk
    cdef FoundRecord record
    cdef list found = []
    while walk.left:
        if next_record(&walk, &record) != RECORDS_OK:
            raise changed()
        found.append((
            bytes_or_none(record.fields.key, record.fields.key_bytes),
            bytes_or_none(record.fields.value, record.fields.value_bytes),
            record.fields.timestamp,
            headers_of(record.fields.headers, walk.end, record.fields.header_count),
            record.offset,
        ))
    return found


cdef object changed():
    return BufferError("the bytes changed while they were read")


cdef inline object bytes_or_none(const uint8_t* at, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>at, size)


cdef struct Columns:
    int64_t* offsets
    int64_t* next_offsets
    int64_t* value_starts
    int64_t* key_starts
    int64_t* header_starts
    int64_t* timestamps
    int32_t* value_bytes
    int32_t* key_bytes
    int32_t* header_counts
    Py_ssize_t count
    Py_ssize_t room


cdef int begin_columns(int64_t[:, ::1] places, int32_t[:, ::1] lengths, Py_ssize_t first, Columns* out) except -1:
    if places.shape[0] != PLACE_ROWS or lengths.shape[0] != LENGTH_ROWS or places.shape[1] != lengths.shape[1]:
        raise ValueError(f"{PLACE_ROWS} rows of places and {LENGTH_ROWS} of lengths, all of one length, are needed")
    if not 0 <= first <= places.shape[1]:
        raise ValueError(f"{places.shape[1]} records have no place for number {first}")
    out.count = first
    out.room = places.shape[1]
    if out.room == 0:
        return 0
    out.offsets, out.next_offsets, out.value_starts = &places[0, 0], &places[1, 0], &places[2, 0]
    out.key_starts, out.header_starts, out.timestamps = &places[3, 0], &places[4, 0], &places[5, 0]
    out.value_bytes, out.key_bytes, out.header_counts = &lengths[0, 0], &lengths[1, 0], &lengths[2, 0]
    return 0


cdef int fill(RecordWalk* walk, const uint8_t* origin, int64_t shift, int64_t wanted, Columns* columns) noexcept nogil:
    """Write what the walk finds from the wanted offset on; ``origin`` is the byte that the place ``shift`` stands for."""
    cdef FoundRecord record
    cdef Py_ssize_t i = columns.count
    cdef int status
    if not walk.left and walk.at != walk.end:
        return RECORDS_LEFT
    while walk.left:
        status = next_record(walk, &record)
        if status != RECORDS_OK:
            return status
        if record.offset < wanted:
            continue
        columns.offsets[i] = record.offset
        columns.next_offsets[i] = record.next_offset
        columns.value_starts[i] = shift + (record.fields.value - origin)
        columns.key_starts[i] = shift + (record.fields.key - origin)
        columns.header_starts[i] = shift + (record.fields.headers - origin)
        columns.timestamps[i] = record.fields.timestamp
        columns.value_bytes[i] = record.fields.value_bytes
        columns.key_bytes[i] = record.fields.key_bytes
        columns.header_counts[i] = record.fields.header_count
        i += 1
    columns.count = i
    return RECORDS_OK


def index_records(
    RecordSpan span not None, int64_t shift, Py_ssize_t first, int64_t[:, ::1] places not None,
    int32_t[:, ::1] lengths not None,
):
    cdef RecordWalk walk = span.walk
    cdef Columns columns
    cdef const uint8_t* origin = walk.at
    cdef int64_t wanted = span.offset
    cdef int status
    begin_columns(places, lengths, first, &columns)
    if walk.left > columns.room - first:
        raise ValueError(f"{walk.left} records from number {first} on do not fit {columns.room} places")
    with nogil:
        status = fill(&walk, origin, shift, wanted, &columns)
    if status != RECORDS_OK:
        raise changed()
    return columns.count


def index_batches(
    data, int64_t offset, int64_t most_records, Py_ssize_t checked_bytes, int64_t[:, ::1] places not None,
    int32_t[:, ::1] lengths not None,
):
    cdef const uint8_t* base
    cdef Py_ssize_t size, at = 0
    cdef int64_t next_offset = 0, number
    cdef Columns columns
    cdef RecordWalk walk
    cdef BatchFrame batch
    cdef int status, inside = RECORDS_OK
    cdef bint is_too_large = False, is_plain = True, fits = True
    begin_columns(places, lengths, 0, &columns)
    view = view_of(data, &base, &size)
    with nogil:
        while True:
            status = read_following(base + at, size - at, at >= checked_bytes, next_offset, &batch)
            if status != BATCHES_OK:
                break
            if not batch.is_control and batch.next_offset > offset:
                is_plain = batch.codec == 0
                is_too_large = batch.record_count > most_records
                fits = batch.record_count <= columns.room - columns.count
                if is_too_large or not is_plain or not fits:
                    break
                begin_records(&batch, batch.records, batch.record_bytes, &walk)
                inside = fill(&walk, base, 0, offset, &columns)
                if inside != RECORDS_OK:
                    break
            at += batch.size_bytes
            next_offset = batch.next_offset
    if not is_plain:
        raise ValueError("a batch is compressed")
    if not fits:
        raise ValueError(f"the records do not fit {columns.room} places")
    next_offset = max(offset, next_offset)
    error = None
    if inside != RECORDS_OK:
        error = damaged_inside(inside, batch.record_count - walk.left, next_offset)
    elif is_too_large:
        error = DecompressionLimitError(f"the batch at offset {next_offset} holds more than {most_records} records")
    elif status == BATCHES_TAIL:
        if not at and size:
            error = too_short(size, offset)
    elif status != BATCHES_OK:
        error = damaged(status, next_offset)
    return columns.count, next_offset, error

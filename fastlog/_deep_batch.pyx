"""Checks the records of one batch, compressed or not, in steps of bounded work."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t

from fastlog._batch_header cimport (
    AT_ATTRIBUTES, AT_BASE_TIMESTAMP, AT_COUNT, AT_LENGTH, BATCH_HEADER_BYTES, CODEC_BITS, LENGTH_END,
)
from fastlog._bytes cimport GIL_SPAN_BYTES, be16, be32, be64
from fastlog._records cimport (
    RECORDS_COUNT,
    RECORDS_OK,
    RECORDS_TAIL,
    RECORDS_TIMESTAMP,
    RecordsFound,
    begin_walk,
    is_of_record,
    reason_of,
    walk_more,
)

from fastlog import batch_codecs, codecs
from fastlog.errors import DecompressionLimitError, InvalidMessageError

REASONS = {status: (<bytes>reason_of(status)).decode() for status in range(<int>RECORDS_TAIL, <int>RECORDS_TIMESTAMP + 1)}


cdef class DeepBatch:
    """See the ``.pyi``."""

    cdef object slices, budget
    cdef RecordsFound found
    cdef int64_t records, base_timestamp
    cdef list held               # the beginning of a record that is not whole yet
    cdef Py_ssize_t needed_bytes
    cdef bint is_compressed
    cdef readonly Py_ssize_t held_bytes
    cdef readonly object whole_bytes
    cdef readonly object refused_record

    def __init__(self, data, limits, Py_ssize_t bytes_per_piece=0):
        cdef Py_buffer view
        cdef const uint8_t* header
        cdef Py_ssize_t size
        cdef int codec
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            size = view.len
            if size < BATCH_HEADER_BYTES:
                raise InvalidMessageError(f"a batch of {size} bytes is shorter than its header")
            header = <const uint8_t*>view.buf
            if <int32_t>be32(header + AT_LENGTH) != size - LENGTH_END:
                raise InvalidMessageError(
                    f"a batch of {size} bytes tells that {<int32_t>be32(header + AT_LENGTH)} follow its length"
                )
            codec = be16(header + AT_ATTRIBUTES) & CODEC_BITS
            self.base_timestamp = <int64_t>be64(header + AT_BASE_TIMESTAMP)
            self.records = <int32_t>be32(header + AT_COUNT)
        finally:
            PyBuffer_Release(&view)
        self.is_compressed = codec != 0
        if codec not in batch_codecs.CODEC_NAMES:
            raise InvalidMessageError(f"no codec has the number {codec}")
        if self.records < 1:
            raise refused(RECORDS_COUNT, 0)
        if self.is_compressed and limits.max_depth < 1:
            raise DecompressionLimitError("compressed batches are not allowed")
        if self.records > limits.max_messages:
            raise DecompressionLimitError(f"the batch holds more than {limits.max_messages} records")
        self.budget = codecs.DecompressionBudget(limits.max_inflated_bytes)
        if bytes_per_piece:
            self.budget.pieces_left = min(self.budget.pieces_left, codecs.FREE_PIECES + size // bytes_per_piece)
        begin_walk(&self.found)
        self.held = []
        records = memoryview(data)[BATCH_HEADER_BYTES:]
        if codec == 0:
            self.whole_bytes = 0
            self.slices = iter((records,))
        else:
            self.whole_bytes = batch_codecs.whole_bytes(codec, records)
            self.slices = batch_codecs.slices(codec, records, self.budget)

    @property
    def count(self):
        return self.found.count

    @property
    def max_timestamp(self):
        return self.found.max_timestamp if self.found.count else None

    @property
    def max_timestamp_delta(self):
        return self.found.max_timestamp_delta if self.found.count else None

    def step(self, Py_ssize_t most_bytes):
        cdef Py_ssize_t done_bytes = 0
        try:
            while self.slices is not None:
                part = next(self.slices, None)
                if part is None:
                    if self.found.status != RECORDS_OK:
                        raise self.refuse(self.found.valid_bytes + <uint64_t>self.held_bytes)
                    self.slices = None
                    break
                done_bytes += len(part)
                self.take(part)
                if done_bytes > most_bytes:
                    return False
        except BaseException:
            self.slices = iter(())       # and its status says that it is not whole, whoever asks again
            self.held = []
            if self.found.status == RECORDS_OK:
                self.found.status = RECORDS_TAIL
            raise
        return True

    cdef int take(self, object part) except -1:
        """One more slice of the records: check the whole ones once the next one is there, so that a long one is not
        copied again and again."""
        cdef Py_buffer view
        cdef Py_ssize_t size
        cdef uint64_t valid
        cdef int status
        self.held.append(part)
        self.held_bytes += len(part)
        if self.held_bytes < self.needed_bytes:
            return 0
        span = part if len(self.held) == 1 else b"".join(self.held)
        PyObject_GetBuffer(span, &view, PyBUF_SIMPLE)
        try:
            size = view.len
            if size >= GIL_SPAN_BYTES:
                with nogil:
                    status = walk_more(
                        <const uint8_t*>view.buf, <uint64_t>size, self.records, self.base_timestamp, &self.found
                    )
            else:
                status = walk_more(
                    <const uint8_t*>view.buf, <uint64_t>size, self.records, self.base_timestamp, &self.found
                )
        finally:
            PyBuffer_Release(&view)
        if status != RECORDS_OK and status != RECORDS_TAIL:
            raise self.refuse(<uint64_t>size)
        valid = self.found.valid_bytes
        self.held_bytes = size - <Py_ssize_t>valid
        # a copy, so that the rest of a slice does not keep all of it
        self.held = [bytes(memoryview(span)[valid:])] if self.held_bytes else []
        self.needed_bytes = <Py_ssize_t>self.found.needed_bytes
        if self.needed_bytes > self.held_bytes + self.budget.bytes_left and self.is_compressed:
            raise DecompressionLimitError(
                f"record {self.found.count} of the batch takes {self.needed_bytes} bytes, more than the"
                f" {self.budget.limit_bytes} that may be decompressed"
            )
        return 0

    cdef object refuse(self, uint64_t size):
        """The error for what the last walk found, over so many bytes."""
        if is_of_record(&self.found, size):
            self.refused_record = self.found.count
        return refused(self.found.status, self.found.count)


cdef object refused(int status, int64_t record):
    return InvalidMessageError(f"the batch is damaged at its record {record}: {REASONS[status]}")

"""Messages of Kafka 0.7 as records of today: a message that ends at byte ``q`` of its partition's stream is the record ``q - 1``.

0.7 calls the byte behind a message the next offset. Today's consumers commit the offset of a record plus one, which is the same
number, so both worlds go on from each other's commits. Of a compressed set of n messages that ends at q, message i gets
``q - n + i``: the last one is where it would be without compression, and none shares its offset with another as long as there
are no more messages than bytes. A set that has more (equal messages compress to less than a byte each) cannot be told in
offsets: it is refused, not thinned out.

Records have a null key, no headers, and the payload as value, also an empty one. The checksum of each message is looked at, as
its bytes get another one.

Source: Kafka 0.7.2 (ByteBufferMessageSet, MessageAndOffset); Apache Kafka 4.2 (DefaultRecordBatch, DefaultRecord).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from fastlog._batch_header cimport (
    AT_ATTRIBUTES, AT_BASE_OFFSET, AT_BASE_SEQUENCE, AT_BASE_TIMESTAMP, AT_COUNT, AT_CRC, AT_EPOCH, AT_LAST_DELTA,
    AT_LENGTH, AT_MAGIC, AT_MAX_TIMESTAMP, AT_PRODUCER_EPOCH, AT_PRODUCER_ID, BATCH_HEADER_BYTES, LENGTH_END,
    RECORD_BATCH_MAGIC,
)
from fastlog._bytes cimport GIL_SPAN_BYTES, be32, put16, put32, put64
from fastlog._crc cimport crc32_span
from fastlog._crc32c cimport crc32c_span
from fastlog._segment cimport (
    CODEC_MASK, ENTRY_HEADER_BYTES, LAST_CODEC, LEAST_ENTRY_BYTES, LENGTH_BYTES, SCAN_OK, SCAN_TAIL, Scan, scan_set,
)

from fastlog import batch_codecs, codecs
from fastlog.errors import DecompressionLimitError, InvalidMessageError, MessageTooLargeError, UnfitSetError

cdef enum:
    KEPT_BYTES = 1 << 20         # of a set that is opened: what is kept from counting on, so as not to be opened again
    STEP_SETS = 128              # opened in one step, inside of each other or beside


# The names of the .pxd's enum are C constants here; Python gets the same numbers under the same names.
globals().update(
    CONVERTED=<int>CONVERTED,
    CONVERT_FULL=<int>CONVERT_FULL,
    CONVERT_CUT=<int>CONVERT_CUT,
    CONVERT_WRAPPER=<int>CONVERT_WRAPPER,
    CONVERT_DAMAGED=<int>CONVERT_DAMAGED,
)


cdef inline uint8_t* put_varint(uint8_t* p, uint32_t value) noexcept nogil:
    """A number that is not negative, as zigzag makes it."""
    value <<= 1
    while value >= 0x80:
        p[0] = <uint8_t>(value & 0x7F | 0x80)
        p += 1
        value >>= 7
    p[0] = <uint8_t>value
    return p + 1


cdef inline uint32_t varint_bytes(uint32_t value) noexcept nogil:
    """How many bytes that takes."""
    return 1 + (value >= 1 << 6) + (value >= 1 << 13) + (value >= 1 << 20) + (value >= 1 << 27)


cdef int grow(Making* m, uint64_t least) noexcept nogil:
    """Make room for so many bytes; 0, or -1 without memory."""
    cdef uint64_t room = max(m.room * 2, <uint64_t>4096)
    cdef uint8_t* larger
    # not beyond what it may have, unless one record takes more
    room = max(min(room, m.most + BATCH_HEADER_BYTES), least)
    larger = <uint8_t*>realloc(m.data, room)
    if larger == NULL:
        return -1
    m.data = larger
    m.room = room
    return 0


cdef int add_message(Making* m, int64_t offset, const uint8_t* payload, uint64_t size) noexcept nogil:
    cdef uint32_t delta, fields
    cdef uint64_t end
    cdef uint8_t* p
    if m.count == 0:
        m.size = max(m.size, <uint64_t>BATCH_HEADER_BYTES)
        m.base = offset
    elif offset - m.base > INT32_MAX // 2 or m.count == INT32_MAX:
        return CONVERT_FULL
    delta = <uint32_t>(offset - m.base)
    # attributes, time, key and number of headers take a byte each
    fields = 4 + varint_bytes(delta) + varint_bytes(<uint32_t>size)
    end = m.size + varint_bytes(fields + <uint32_t>size) + fields + size
    if end > m.most and (m.count or not m.first_whole):
        return CONVERT_FULL
    if end > m.room and grow(m, end) != 0:
        return CONVERT_NO_MEMORY
    p = put_varint(m.data + m.size, fields + <uint32_t>size)
    p[0] = 0
    p[1] = 0
    p = put_varint(p + 2, delta)
    p[0] = 1                                        # -1: no key
    p = put_varint(p + 1, <uint32_t>size)
    if size:
        memcpy(p, payload, size)
    p[size] = 0
    m.size = end
    m.last = offset
    m.count += 1
    return CONVERTED


cdef int add_messages(Making* m, const uint8_t* p, uint64_t n, int64_t at, int64_t wanted, Converted* out) noexcept nogil:
    cdef uint64_t position = 0, left, size, header
    cdef const uint8_t* entry
    cdef int status = CONVERTED
    out.needed = 0
    while position < n:
        left = n - position
        if left < LENGTH_BYTES:
            out.needed = LENGTH_BYTES
            status = CONVERT_CUT
            break
        entry = p + position
        size = <uint64_t>be32(entry) + LENGTH_BYTES     # a claim, until it is compared with what is left
        if size < LEAST_ENTRY_BYTES or size > <uint64_t>INT32_MAX:
            status = CONVERT_DAMAGED
            break
        if at + <int64_t>(position + size) <= wanted and size <= left:
            position += size                            # before the one that is wanted
            continue
        if left < ENTRY_HEADER_BYTES and left < size:
            out.needed = size
            status = CONVERT_CUT
            break
        header = LEAST_ENTRY_BYTES
        if entry[4] == 1:
            header = ENTRY_HEADER_BYTES
            if size < ENTRY_HEADER_BYTES or entry[5] > LAST_CODEC:
                status = CONVERT_DAMAGED
                break
        elif entry[4] != 0:
            status = CONVERT_DAMAGED
            break
        if size > left:
            out.needed = size
            status = CONVERT_CUT
            break
        if crc32_span(0, entry + header, size - header) != be32(entry + header - 4):
            status = CONVERT_DAMAGED
            break
        if header == ENTRY_HEADER_BYTES and entry[5] != 0:
            out.needed = size
            status = CONVERT_WRAPPER
            break
        status = add_message(m, at + <int64_t>(position + size) - 1, entry + header, size - header)
        if status != CONVERTED:
            break
        position += size
    out.used = position
    return status


cdef int add_inner(Making* m, const uint8_t* p, uint64_t n, int64_t* offset, int64_t wanted, Converted* out) noexcept nogil:
    cdef uint64_t position = 0, size, header
    cdef const uint8_t* entry
    cdef int status = CONVERTED
    out.needed = 0
    while position < n:
        entry = p + position
        size = <uint64_t>be32(entry) + LENGTH_BYTES
        header = LEAST_ENTRY_BYTES + (entry[4] & 1)
        if size < header or size > n - position:
            status = CONVERT_DAMAGED                    # the bytes have changed since they were checked
            break
        if offset[0] >= wanted:
            status = add_message(m, offset[0], entry + header, size - header)
            if status != CONVERTED:
                break
        offset[0] += 1
        position += size
    out.used = position
    return status


cdef int finish(Making* m, int64_t wanted, int64_t next_offset, int32_t epoch, int64_t time_ms) noexcept nogil:
    cdef uint8_t* p
    if m.size < BATCH_HEADER_BYTES:
        m.size = BATCH_HEADER_BYTES
    if m.room < BATCH_HEADER_BYTES and grow(m, BATCH_HEADER_BYTES) != 0:
        return -1
    if m.count == 0:
        m.base = wanted
        # as after compaction: no records, and where to go on
        m.size = BATCH_HEADER_BYTES
    p = m.data
    put64(p + AT_BASE_OFFSET, <uint64_t>m.base)
    put32(p + AT_LENGTH, <uint32_t>(m.size - LENGTH_END))
    put32(p + AT_EPOCH, <uint32_t>epoch)
    p[AT_MAGIC] = RECORD_BATCH_MAGIC
    put16(p + AT_ATTRIBUTES, 0)
    put32(p + AT_LAST_DELTA, <uint32_t>(next_offset - 1 - m.base))
    put64(p + AT_BASE_TIMESTAMP, <uint64_t>time_ms)
    put64(p + AT_MAX_TIMESTAMP, <uint64_t>time_ms)
    put64(p + AT_PRODUCER_ID, <uint64_t>-1)
    put16(p + AT_PRODUCER_EPOCH, <int>0xFFFF)
    put32(p + AT_BASE_SEQUENCE, <uint32_t>0xFFFFFFFF)
    put32(p + AT_COUNT, <uint32_t>m.count)
    put32(p + AT_CRC, crc32c_span(0, p + AT_ATTRIBUTES, m.size - AT_ATTRIBUTES))
    return 0


cdef void discard(Making* m) noexcept nogil:
    free(m.data)
    m.data = NULL
    m.size = m.room = 0
    m.count = 0


cdef class _Level:
    """A compressed set that is being walked: the outermost one, or one in it."""

    cdef object slices           # what is still to come out of it
    cdef bytes span              # whole messages that came out
    cdef Py_ssize_t at, end      # in the span
    cdef list held               # the beginning of a message that is not whole yet
    cdef Py_ssize_t held_bytes, needed_bytes
    cdef Py_ssize_t position     # of the held bytes in the set
    cdef object failure          # what is wrong behind the span

    def __cinit__(self, slices):
        self.slices = slices
        self.held = []
        self.needed_bytes = LENGTH_BYTES

    cdef int take(self, bytes part, budget) except -1:
        """One more slice: its whole messages become the span once the next one is complete."""
        cdef Scan found
        cdef bytes span
        cdef const uint8_t* p
        cdef Py_ssize_t size
        self.held.append(part)
        self.held_bytes += len(part)
        if self.held_bytes < self.needed_bytes:
            return 0
        span = part if len(self.held) == 1 else b"".join(self.held)
        p = span
        size = len(span)
        if size >= GIL_SPAN_BYTES:
            with nogil:
                scan_set(p, size, -1, &found)
        else:
            scan_set(p, size, -1, &found)
        budget.take_messages(found.count)
        if found.status != SCAN_OK and found.status != SCAN_TAIL:
            self.failure = InvalidMessageError(
                f"the message at byte {self.position + found.valid_bytes} of what it holds is damaged"
            )
        self.span = span
        self.at = 0
        self.end = found.valid_bytes
        self.position += found.valid_bytes
        self.held_bytes = size - found.valid_bytes
        self.held = [span[found.valid_bytes :]] if self.held_bytes else []
        self.needed_bytes = LENGTH_BYTES
        if self.held_bytes >= LENGTH_BYTES:
            self.needed_bytes += be32(p + found.valid_bytes)
        return 0


cdef class OpenedSet:
    """See the ``.pyi``."""

    def __init__(self, payload, int codec, int64_t offset, int64_t next_offset, limits):
        self.payload, self.codec, self.limits = payload, codec, limits
        self.offset, self.next_offset = offset, next_offset
        self.kept = []
        self.begin()

    cdef int begin(self) except -1:
        """Open it, from its beginning on."""
        self.budget = Budget(self.limits)
        self.budget.enter(1)
        self.levels = [_Level(codecs.decompress_slices(self.codec, self.payload, self.budget))]

    cdef bint next_run(self, Py_ssize_t* done, int64_t* count) except -1:
        """The next messages in a row, which stay until the next call: False at the end, or when a step's worth is ``done``."""
        cdef _Level level
        cdef const uint8_t* p
        cdef Py_ssize_t begin, size
        self.run = NULL
        while self.levels and done[0] > 0:
            level = <_Level>self.levels[len(self.levels) - 1]
            if level.at < level.end:
                p = level.span
                begin = level.at
                count[0] = 0
                while level.at < level.end:
                    if p[level.at + 4] == 1 and p[level.at + 5] & CODEC_MASK:
                        break
                    level.at += LENGTH_BYTES + <Py_ssize_t>be32(p + level.at)
                    count[0] += 1
                if level.at > begin:
                    self.run = p + begin
                    self.run_bytes = level.at - begin
                    self.run_owner = level.span
                    return True
                size = LENGTH_BYTES + <Py_ssize_t>be32(p + begin)
                level.at += size
                self.budget.enter(len(self.levels) + 1)
                data = memoryview(level.span)[begin + ENTRY_HEADER_BYTES : begin + size]
                self.levels.append(_Level(codecs.decompress_slices(p[begin + 5] & CODEC_MASK, data, self.budget)))
                done[0] -= KEPT_BYTES // STEP_SETS      # opening takes time, whatever comes out
            elif level.failure is not None:
                raise level.failure
            else:
                part = next(level.slices, None)
                if part is None:
                    if level.held_bytes >= LENGTH_BYTES and not level.position:
                        raise InvalidMessageError("the first message of the compressed set is longer than the set")
                    self.levels.pop()                   # a message that is cut off behind others is none, as in 0.7
                else:
                    done[0] -= len(<bytes>part)
                    level.take(<bytes>part, self.budget)
        return False

    cdef bint count_more(self, Py_ssize_t most_bytes) except -1:
        """Count for one step; whether all are counted. Raises UnfitSetError, DecompressionLimitError, InvalidMessageError."""
        cdef int64_t count = 0
        cdef Py_ssize_t left = most_bytes
        while self.next_run(&left, &count):
            self.count += count
            if self.kept is not None:
                self.kept_bytes += self.run_bytes
                if self.kept_bytes > KEPT_BYTES:
                    self.kept = None
                else:
                    begin = self.run - <const uint8_t*><bytes>self.run_owner
                    self.kept.append((self.run_owner, begin, self.run_bytes))
        if self.levels:
            return False
        if self.count > self.next_offset - self.offset:
            raise UnfitSetError(
                f"a compressed set of {self.next_offset - self.offset} bytes holds {self.count} messages: more than there are"
                f" offsets for them"
            )
        self.is_counted = True
        self.at = self.next_offset - self.count
        if self.kept is None:
            self.begin()
        return True

    cdef int add(self, Making* m, int64_t wanted, Py_ssize_t most_bytes) except -1:
        """Add its messages from ``wanted`` on, for one step: CONVERTED, CONVERT_FULL, CONVERT_MORE, CONVERT_NO_MEMORY.

        After CONVERT_FULL it goes on with the message that did not fit.
        """
        cdef Converted out
        cdef int64_t count = 0
        cdef Py_ssize_t left = most_bytes, begin, size, used
        cdef const uint8_t* p
        cdef int status = CONVERTED
        if not self.is_counted and not self.count_more(most_bytes):
            return CONVERT_MORE
        if self.kept is not None:
            while self.taken < len(self.kept):
                owner, begin, size = self.kept[self.taken]
                p = <const uint8_t*><bytes>owner + begin
                with nogil:
                    status = add_inner(m, p, <uint64_t>size, &self.at, wanted, &out)
                if status != CONVERTED:
                    used = <Py_ssize_t>out.used
                    self.kept[self.taken] = (owner, begin + used, size - used)
                    return status
                self.taken += 1
            return CONVERTED
        while self.run != NULL or self.next_run(&left, &count):
            with nogil:
                status = add_inner(m, self.run, <uint64_t>self.run_bytes, &self.at, wanted, &out)
            if status != CONVERTED:
                self.run += out.used
                self.run_bytes -= <Py_ssize_t>out.used
                return status
            self.run = NULL
        return CONVERT_MORE if self.levels else CONVERTED

    def convert(self, int64_t wanted, Py_ssize_t most_bytes=-1):
        """``(batch, next offset, is it all)`` of the messages from ``wanted`` on; for tests."""
        cdef Making m
        cdef int status
        memset(&m, 0, sizeof(m))
        m.most = <uint64_t>most_bytes if most_bytes >= 0 else <uint64_t>1 << 62
        m.first_whole = True
        try:
            while True:
                status = self.add(&m, wanted, KEPT_BYTES)
                if status != CONVERT_MORE:
                    break
            return result(&m, wanted, self.at, status)
        finally:
            discard(&m)


class Budget(codecs.DecompressionBudget):
    """The limits for one compressed set, used up across all that are in it."""

    __slots__ = ("max_depth", "max_messages", "messages_left")

    def __init__(self, limits):
        super().__init__(limits.max_inflated_bytes)
        self.max_depth = limits.max_depth
        self.max_messages = self.messages_left = limits.max_messages

    def enter(self, depth):
        """Open one at this depth."""
        if depth > self.max_depth:
            raise DecompressionLimitError(f"compressed sets are nested more than {self.max_depth} deep")

    def take_messages(self, count):
        """So many came out."""
        self.messages_left -= count
        if self.messages_left < 0:
            raise DecompressionLimitError(f"the compressed set holds more than {self.max_messages} messages")


cdef tuple result(Making* m, int64_t wanted, int64_t next_offset, int status):
    if status == CONVERT_NO_MEMORY or finish(m, wanted, next_offset, 0, -1) != 0:
        raise MemoryError
    return (<char*>m.data)[:m.size], next_offset, status == CONVERTED


def convert(buffer, int64_t offset, int64_t wanted, limits, int64_t most_bytes=-1):
    cdef Py_buffer view
    cdef Making m
    cdef Converted out
    cdef OpenedSet opened
    cdef const uint8_t* p
    cdef int64_t at = offset, header
    cdef int status
    memset(&m, 0, sizeof(m))
    m.most = <uint64_t>most_bytes if most_bytes >= 0 else <uint64_t>1 << 62
    m.first_whole = True
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while True:
            p = <const uint8_t*>view.buf + (at - offset)
            with nogil:
                status = add_messages(&m, p, <uint64_t>(view.len - (at - offset)), at, wanted, &out)
            at += <int64_t>out.used
            if status != CONVERT_WRAPPER:
                break
            p += out.used
            header = p - <const uint8_t*>view.buf + ENTRY_HEADER_BYTES
            data = memoryview(buffer).cast("B")[header : header - ENTRY_HEADER_BYTES + <int64_t>out.needed]
            opened = OpenedSet(data, p[5], at, at + <int64_t>out.needed, limits)
            while True:
                status = opened.add(&m, wanted, KEPT_BYTES)
                if status != CONVERT_MORE:
                    break
            if status != CONVERTED:
                at = max(at, opened.at)
                break
            at = opened.next_offset
        made = result(&m, wanted, at, status)[0] if at > wanted or m.count else b""
        return made, at, status
    finally:
        PyBuffer_Release(&view)
        discard(&m)


cdef class SetBatches:
    """See the ``.pyi``."""

    cdef object entries, limits
    cdef const uint8_t[::1] view
    cdef Py_ssize_t at
    cdef OpenedSet opened
    cdef Making making
    cdef int64_t next, time_ms
    cdef int codec
    cdef list batches
    cdef readonly int64_t count

    def __init__(self, entries, int64_t time_ms, int64_t most_bytes, limits):
        self.entries, self.limits, self.time_ms = entries, limits, time_ms
        self.view = entries
        self.making.most = <uint64_t>max(most_bytes, 0)
        self.batches = []

    def __dealloc__(self):
        discard(&self.making)

    @property
    def made(self):
        return b"".join(self.batches)

    def step(self, Py_ssize_t most_bytes):
        cdef Py_ssize_t left = most_bytes, begin, size
        cdef int64_t count = 0
        while left > 0:
            if self.opened is not None:
                if self.opened.next_run(&left, &count):
                    self.add(self.opened.run, self.opened.run_bytes)
                elif not self.opened.levels:
                    self.opened = None
                continue
            if self.at == self.view.shape[0]:
                self.close()
                return True
            begin = self.at
            size = self.run_of(begin, left)
            if size:
                self.at += size
                left -= size
                self.add(&self.view[begin], size)
                continue
            size = LENGTH_BYTES + <Py_ssize_t>be32(&self.view[begin])
            self.at += size
            # as Kafka does with sets of its older formats: what came compressed is stored so
            self.codec = self.codec or self.view[begin + 5]
            data = memoryview(self.entries)[begin + ENTRY_HEADER_BYTES : begin + size]
            self.opened = OpenedSet(data, self.view[begin + 5], 0, 0, self.limits)
        return False

    cdef Py_ssize_t run_of(self, Py_ssize_t begin, Py_ssize_t most_bytes):
        """How many bytes of messages in a row begin here, before a compressed set or when there are enough of them."""
        cdef Py_ssize_t end = begin
        while end < self.view.shape[0] and end - begin < most_bytes:
            if self.view[end + 4] == 1 and self.view[end + 5]:
                break
            end += LENGTH_BYTES + <Py_ssize_t>be32(&self.view[end])
        return end - begin

    cdef int add(self, const uint8_t* p, Py_ssize_t size) except -1:
        """Put messages in a row into batches."""
        cdef Converted out
        cdef int status = CONVERTED
        cdef uint64_t used = 0
        while used < <uint64_t>size:
            with nogil:
                status = add_inner(&self.making, p + used, <uint64_t>size - used, &self.next, 0, &out)
            used += out.used
            if status == CONVERT_FULL and self.making.count == 0:
                raise MessageTooLargeError(
                    f"a message of {be32(p + used) - LEAST_ENTRY_BYTES + LENGTH_BYTES} bytes, as a record more than the"
                    f" {self.making.most} that a batch of this topic may have"
                )
            if status == CONVERT_FULL:
                self.close()
            elif status == CONVERT_NO_MEMORY:
                raise MemoryError
            elif status != CONVERTED:
                raise InvalidMessageError("the set is damaged")
        return 0

    cdef int close(self) except -1:
        """Finish the batch at hand, if there is one."""
        cdef Making* m = &self.making
        cdef bytes records
        if m.count == 0:
            return 0
        self.count += m.count
        if finish(m, 0, m.last + 1, 0, self.time_ms) != 0:
            raise MemoryError
        if self.codec:
            records = batch_codecs.compress(self.codec, (<char*>m.data)[BATCH_HEADER_BYTES : m.size])
            self.batches.append(with_records(m, records, self.codec))
        else:
            self.batches.append((<char*>m.data)[: m.size])
        m.size = 0
        m.count = 0
        self.next = 0
        return 0


cdef bytes with_records(Making* m, bytes records, int codec):
    """A finished batch with its records compressed."""
    cdef bytearray made = bytearray((<char*>m.data)[:BATCH_HEADER_BYTES])
    cdef uint8_t* p
    made += records
    p = made
    put32(p + AT_LENGTH, <uint32_t>(len(made) - LENGTH_END))
    put16(p + AT_ATTRIBUTES, <int>codec)
    put32(p + AT_CRC, crc32c_span(0, p + AT_ATTRIBUTES, len(made) - AT_ATTRIBUTES))
    return bytes(made)

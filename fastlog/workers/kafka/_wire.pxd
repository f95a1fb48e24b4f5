from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from fastlog._bytes cimport be16, be32, be64, put16, put32, put64

cdef enum:
    MOST_TAGS = 16               # tagged fields in one place; clients send none or one
    MOST_ITEMS = 65536           # topics, or partitions of all topics, in one request: no broker holds more partitions
    FRAME_HEAD = 4               # bytes of a frame's size

# Reads a request, never past its bytes: what is cut short, or claims more than is there, sets ``bad``, and from then on
# every value is 0 or empty.
cdef struct Reader:
    const uint8_t* p
    size_t size
    size_t at
    bint flexible                # lengths are varints with one added, and tagged fields follow each struct
    bint bad


cdef inline void spoil(Reader* r) noexcept nogil:
    r.bad = True
    r.at = r.size


cdef inline const uint8_t* take(Reader* r, size_t n) noexcept nogil:
    """The next ``n`` bytes; NULL, and ``bad``, when they are not there."""
    cdef const uint8_t* here = r.p + r.at
    if n > r.size - r.at:
        spoil(r)
        return NULL
    r.at += n
    return here


cdef inline int get8(Reader* r) noexcept nogil:
    cdef const uint8_t* p = take(r, 1)
    return p[0] if p != NULL else 0


cdef inline int get16(Reader* r) noexcept nogil:
    cdef const uint8_t* p = take(r, 2)
    return <int16_t>be16(p) if p != NULL else 0


cdef inline int32_t get32(Reader* r) noexcept nogil:
    cdef const uint8_t* p = take(r, 4)
    return <int32_t>be32(p) if p != NULL else 0


cdef inline int64_t get64(Reader* r) noexcept nogil:
    cdef const uint8_t* p = take(r, 8)
    return <int64_t>be64(p) if p != NULL else 0


cdef inline uint32_t get_varint(Reader* r) noexcept nogil:
    """An unsigned varint of at most 32 bits; a fifth byte above 15 would be more."""
    cdef uint32_t value = 0
    cdef int shift, byte
    for shift in range(0, 35, 7):
        byte = get8(r)
        if r.bad or (shift == 28 and byte > 15):
            break
        value |= <uint32_t>(byte & 0x7f) << shift
        if byte < 0x80:
            return value
    spoil(r)
    return 0


cdef inline int64_t get_length(Reader* r, bint wide) noexcept nogil:
    """The length of a string, of bytes or of an array: -1 for null; ``wide`` where one that is not flexible has 4 bytes."""
    cdef int64_t size
    if r.flexible:
        size = <int64_t>get_varint(r) - 1
    else:
        size = get32(r) if wide else get16(r)
    if r.bad or size < -1:
        spoil(r)
        return 0
    return size


cdef inline int get_string(Reader* r, const uint8_t** out) noexcept nogil:
    """The bytes of a string, and their number: -1 for null."""
    cdef int64_t size = get_length(r, False)
    out[0] = NULL
    if size < 0:
        return -1
    if size > 0x7fff:
        spoil(r)
        return 0
    out[0] = take(r, <size_t>size)
    return <int>size if not r.bad else 0


cdef inline int64_t get_bytes(Reader* r, const uint8_t** out) noexcept nogil:
    """The same of bytes."""
    cdef int64_t size = get_length(r, True)
    out[0] = NULL
    if size < 0:
        return -1
    out[0] = take(r, <size_t>size)
    return size if not r.bad else 0


cdef inline int get_array(Reader* r) noexcept nogil:
    """The number of items of an array: -1 for null. Each takes a byte at least, so there are no more than bytes left."""
    cdef int64_t count = get_length(r, True)
    if count > <int64_t>(r.size - r.at) or count > MOST_ITEMS:
        spoil(r)
        return 0
    return <int>count


cdef inline void skip_tags(Reader* r) noexcept nogil:
    """Pass over the tagged fields at the end of a struct, where there may be some."""
    cdef uint32_t i, count
    if not r.flexible:
        return
    count = get_varint(r)
    if count > MOST_TAGS:
        spoil(r)
        return
    for i in range(count):
        get_varint(r)
        take(r, get_varint(r))


# Writes an answer into memory that grows; without memory ``failed`` is set and nothing more is written.
cdef struct Writer:
    uint8_t* data
    size_t size
    size_t room
    bint flexible
    bint failed


cdef inline uint8_t* room_for(Writer* w, size_t n) noexcept nogil:
    """Room for ``n`` bytes more, which count as written; NULL without memory."""
    cdef size_t room
    cdef uint8_t* larger
    if w.failed:
        return NULL
    if n > w.room - w.size:
        room = max(w.room * 2, <size_t>1024)
        while room - w.size < n:
            room *= 2
        larger = <uint8_t*>realloc(w.data, room)
        if larger == NULL:
            w.failed = True
            return NULL
        w.data = larger
        w.room = room
    w.size += n
    return w.data + w.size - n


cdef inline void add8(Writer* w, int value) noexcept nogil:
    cdef uint8_t* p = room_for(w, 1)
    if p != NULL:
        p[0] = <uint8_t>value


cdef inline void add16(Writer* w, int value) noexcept nogil:
    cdef uint8_t* p = room_for(w, 2)
    if p != NULL:
        put16(p, <uint16_t>value)


cdef inline void add32(Writer* w, int32_t value) noexcept nogil:
    cdef uint8_t* p = room_for(w, 4)
    if p != NULL:
        put32(p, <uint32_t>value)


cdef inline void add64(Writer* w, int64_t value) noexcept nogil:
    cdef uint8_t* p = room_for(w, 8)
    if p != NULL:
        put64(p, <uint64_t>value)


cdef inline void add_bytes(Writer* w, const void* bytes, size_t n) noexcept nogil:
    """Bytes as they are."""
    cdef uint8_t* p = room_for(w, n)
    if p != NULL and n:
        memcpy(p, bytes, n)


cdef inline void add_varint(Writer* w, uint32_t value) noexcept nogil:
    while value >= 0x80:
        add8(w, <int>(value & 0x7f | 0x80))
        value >>= 7
    add8(w, <int>value)


cdef inline void add_array(Writer* w, int count) noexcept nogil:
    """The number of items of an array, -1 for null."""
    if w.flexible:
        add_varint(w, <uint32_t>(count + 1))
    else:
        add32(w, count)


cdef inline void add_string(Writer* w, const void* bytes, int size) noexcept nogil:
    """A string of ``size`` bytes; -1 for null."""
    if w.flexible:
        add_varint(w, <uint32_t>(size + 1))
    else:
        add16(w, size)
    if size > 0:
        add_bytes(w, bytes, <size_t>size)


cdef inline void add_tags(Writer* w) noexcept nogil:
    """No tagged fields, where there may be some."""
    if w.flexible:
        add8(w, 0)


cdef inline void begin_answer(Writer* w, int32_t correlation, bint flexible, bint flexible_head) noexcept nogil:
    """Begin the frame of an answer, in place of what was written before."""
    w.size = 0
    w.failed = False
    w.flexible = flexible
    add32(w, 0)
    add32(w, correlation)
    if flexible_head:
        add8(w, 0)


cdef inline void writer_free(Writer* w) noexcept nogil:
    free(w.data)
    w.data = NULL
    w.size = w.room = 0

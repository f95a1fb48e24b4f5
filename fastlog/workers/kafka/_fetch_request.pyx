"""What a FETCH asks for: its limits, and for each partition where to begin. Versions 4 to 16, as Kafka's FetchRequest has them."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memset

from fastlog.workers.kafka._exchange cimport Fetching, FetchPart, FetchTopic, Head
from fastlog.workers.kafka._topics cimport ID_BYTES
from fastlog.workers.kafka._wire cimport MOST_ITEMS, Reader, get8, get32, get64, get_array, get_string, skip_tags, take

cdef enum:
    IDS_SINCE = 13               # version
    COMMITTED = 1                # isolation level
    MOST_BYTES = 1 << 30         # of records in an answer, whose size is a signed 32-bit number


cdef int read_fetch(const uint8_t* p, size_t size, const Head* head, Fetching* out, int* session, bint fills) noexcept nogil:
    """Read a request to its end: count its topics and partitions, and store them where ``fills`` says so. -1: it is malformed.

    ``p`` stands at the api key. ``until_ns`` takes the time that it may wait, in ms, and ``session`` what it says of one.
    """
    cdef Reader r
    cdef const uint8_t* text
    cdef FetchTopic topic
    cdef FetchPart part
    cdef int version = head.version, topics, parts, i, k
    r.p, r.size, r.at, r.bad, r.flexible = p, size, head.body, False, head.flexible
    memset(&part, 0, sizeof(part))
    out.topic_count = out.part_count = 0
    if version < 15:
        get32(&r)  # the replica that asks: none does here
    out.until_ns = <uint64_t>max(get32(&r), 0)
    out.min_bytes = get32(&r)
    out.max_bytes = min(<uint64_t>max(get32(&r), 0), <uint64_t>MOST_BYTES)
    out.is_committed = get8(&r) == COMMITTED
    if version >= 7:
        session[0] = get32(&r)
        get32(&r)
    topics = get_array(&r)
    if topics < 0:
        return -1
    for i in range(topics):
        topic.name_size = -1
        topic.name_at = topic.id_at = r.at
        if version >= IDS_SINCE:
            take(&r, ID_BYTES)
        else:
            topic.name_size = get_string(&r, &text)
            topic.name_at = r.at - <size_t>max(topic.name_size, 0)
            if topic.name_size < 0:
                return -1
        parts = get_array(&r)
        if r.bad or parts < 0 or out.part_count + parts > MOST_ITEMS:
            return -1
        topic.parts = parts
        for k in range(parts):
            part.topic = i
            part.partition = get32(&r)
            part.epoch = get32(&r) if version >= 9 else -1
            part.offset = get64(&r)
            if version >= 12:
                get32(&r)  # the epoch of what was fetched last: a log that was cut back raises its own
            if version >= 5:
                get64(&r)  # of a replica
            part.limit = get32(&r)
            skip_tags(&r)
            if fills:
                out.parts[out.part_count] = part
            out.part_count += 1
        skip_tags(&r)
        if fills:
            out.topics[i] = topic
        out.topic_count += 1
    if version >= 7:
        for i in range(get_array(&r)):
            if version >= IDS_SINCE:
                take(&r, ID_BYTES)
            else:
                get_string(&r, &text)
            for k in range(get_array(&r)):
                get32(&r)
            skip_tags(&r)
            if r.bad:
                return -1
    if version >= 11:
        get_string(&r, &text)
    skip_tags(&r)
    return -1 if r.bad else 0

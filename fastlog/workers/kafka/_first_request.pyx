"""A connection before its first request, which decides what it speaks from then on; nothing of this is met again later.

| the first bytes | the connection |
|---|---|
| api key 17 or 18 (SaslHandshake, ApiVersions) at 4 | speaks today's protocol |
| an api key that is served and is none of 0.7's, in a version that is served | speaks today's protocol |
| one of 0.7's too (0 to 4), in a version that is served, and a correlation id below 65,536 | speaks today's protocol |
| ``16 03`` (a TLS hello), the name of an HTTP method or ``SSH-`` | closes, and one line of the log says what came |
| any others | speaks Kafka 0.7, or fastlog's own requests, which refuses what is neither |

Clients ask for the versions first, but not on each of their connections: kafkajs does once, on its first one. The third line
takes nothing from 0.7. Where a correlation id has its upper half, a request of 0.7 has the first two bytes of a topic's name,
or, if it names several topics, the length of the first name; and no topic has an empty name or one with NUL in it.

    today   size 4 | key 2 | version 2 | correlation id 4      | length of the client id 2 | ...
    0.7     size 4 | id 2  | length 2  | name ...                                            (PRODUCE, FETCH, OFFSETS)
    0.7     size 4 | id 2  | count 2   | length 2 | name ...                                 (MULTIFETCH, MULTIPRODUCE)
"""

cimport cython
from libc.stdint cimport int16_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from fastlog.log._layout cimport fl_bump
from fastlog.log._shared_memory cimport N_STRANGERS
from fastlog.workers._engine cimport Engine
from fastlog.workers.kafka._kinds cimport API_VERSIONS, SASL_HANDSHAKE, ApiVersions, Kinds, api_of
from fastlog._bytes cimport be16, be32
from fastlog.workers.net._connection cimport Conn
from fastlog.workers.net._protocol cimport CLOSES, GOES_ON, Protocol

cdef enum:
    SIZE_BYTES = 4               # in them stands what else may come to a port
    HEAD_BYTES = 14              # what a request of today begins with, up to the client id
    LAST_OF_07 = 4               # its request ids are 0 to this
    NO_CLIENT_ID = -1


cdef const char* foreign(const uint8_t* p) noexcept nogil:
    """What begins with these 4 bytes and is no request of Kafka; NULL: it may be one."""
    if p[0] == 0x16 and p[1] == 3:
        return "a TLS handshake came to a listener in plain text: the client is to use PLAINTEXT"
    if memcmp(p, b"SSH-", SIZE_BYTES) == 0:
        return "an SSH client came to a port of Kafka's protocols"
    if memcmp(p, b"GET ", SIZE_BYTES) == 0 or memcmp(p, b"POST", SIZE_BYTES) == 0 or memcmp(p, b"PUT ", SIZE_BYTES) == 0 \
            or memcmp(p, b"HEAD", SIZE_BYTES) == 0 or memcmp(p, b"DELE", SIZE_BYTES) == 0 \
            or memcmp(p, b"OPTI", SIZE_BYTES) == 0 or memcmp(p, b"CONN", SIZE_BYTES) == 0 \
            or memcmp(p, b"PATC", SIZE_BYTES) == 0 or memcmp(p, b"PRI ", SIZE_BYTES) == 0:
        return "an HTTP request came to a port of Kafka's protocols: health and metrics have monitor.address"
    return NULL


cdef bint is_of_today(Kinds kinds, const uint8_t* p, size_t n) noexcept nogil:
    """Whether a request begins with these bytes that only today's protocol has; as many as decide, or all of it."""
    cdef int key = <int16_t>be16(p + SIZE_BYTES)
    cdef const ApiVersions* api = api_of(kinds, key)
    cdef int64_t size = <int64_t>be32(p)
    cdef int version, client_size
    if key == API_VERSIONS or key == SASL_HANDSHAKE:
        return True
    if api == NULL or n < HEAD_BYTES or size < HEAD_BYTES - SIZE_BYTES:
        return False
    version = <int16_t>be16(p + SIZE_BYTES + 2)
    client_size = <int16_t>be16(p + SIZE_BYTES + 8)
    if not api.first <= version <= api.last or not NO_CLIENT_ID <= client_size <= size - (HEAD_BYTES - SIZE_BYTES):
        return False
    # version 0 would be a name of no bytes, or no topics at all
    return key > LAST_OF_07 or (version > 0 and be16(p + SIZE_BYTES + 4) == 0)


@cython.final
@cython.no_gc_clear  # connections are closed when their processor is freed
cdef class FirstRequest(Protocol):
    """Gives each connection of one processor's listeners to one of two protocols, as soon as it has sent 14 bytes or a request.

    What is foreign is looked for among sizes that the old protocol refuses alone, so that none of its requests is taken
    for something else, however large a request may be.
    """

    def __cinit__(self, Engine engine, Protocol old, Protocol today):
        self.old = old
        self.today = today
        self.kinds = Kinds()
        self.reports = engine.reports
        self.counters = engine.counters

    cdef void begin_turn(self) noexcept nogil:
        self.old.begin_turn()
        self.today.begin_turn()

    cdef bint forget_gone(self, uint64_t now) noexcept nogil:
        return self.old.forget_gone(now) and self.today.forget_gone(now)

    cdef uint64_t next_size(self, const uint8_t* data, size_t n) noexcept nogil:
        # a size that is refused is refused as soon as it is there
        return min(self.old.next_size(data, n), <uint64_t>HEAD_BYTES)

    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, uint64_t now_ns, size_t* used) noexcept nogil:
        cdef void* chosen = <void*>self.old
        used[0] = 0
        if n < self.next_size(data, n):
            return GOES_ON
        if self.old.next_size(data, n) <= SIZE_BYTES:
            if foreign(data) != NULL:
                fl_bump(&self.counters[<int>N_STRANGERS], 1)
                self.reports.refused(c, foreign(data), 0)
                return CLOSES
        elif is_of_today(self.kinds, data, n):
            chosen = <void*>self.today
        if (<Protocol>chosen).open(c) != 0:
            return CLOSES
        c.protocol = chosen
        return (<Protocol>chosen).process_bytes(c, data, n, now_ns, used)

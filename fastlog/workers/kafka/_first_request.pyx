"""A connection before its first request, which decides what it speaks from then on; nothing of this is met again later.

| the first bytes | the connection |
|---|---|
| api key 17 or 18 (SaslHandshake, ApiVersions) at 4 | speaks today's protocol |
| ``16 03`` (a TLS hello), the name of an HTTP method or ``SSH-`` | closes, and one line of the log says what came |
| any others | speaks Kafka 0.7, or fastlog's own requests, which refuses what is neither |

A client of today that is told not to ask for versions opens with Metadata, whose api key is that of 0.7's MULTIPRODUCE: it
needs a listener that is pinned to today's protocol.
"""

from libc.stdint cimport int16_t, uint8_t, uint64_t
from libc.string cimport memcmp

from fastlog.log._arena cimport N_STRANGERS, fl_bump
from fastlog.workers._engine cimport Engine
from fastlog.workers.kafka._kinds cimport API_VERSIONS, SASL_HANDSHAKE
from fastlog._bytes cimport be16
from fastlog.workers.net._connection cimport Conn
from fastlog.workers.net._protocol cimport CLOSES, GOES_ON, Protocol

cdef enum:
    SIZE_BYTES = 4               # in them stands what else may come to a port
    DECIDED_BYTES = 6            # with the api key


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


cdef class FirstRequest(Protocol):
    """Gives each connection of one processor's listeners to one of two protocols, as soon as it has sent 6 bytes.

    What is foreign is looked for among sizes that the old protocol refuses alone, so that none of its requests is taken
    for something else, however large a request may be.
    """

    def __cinit__(self, Engine engine, Protocol old, Protocol today):
        self.old = old
        self.today = today
        self.reports = engine.reports
        self.counters = engine.counters

    cdef void begin_turn(self) noexcept nogil:
        self.old.begin_turn()
        self.today.begin_turn()

    cdef bint forget_gone(self, uint64_t now) noexcept nogil:
        return self.old.forget_gone(now) and self.today.forget_gone(now)

    cdef uint64_t next_size(self, const uint8_t* data, size_t n) noexcept nogil:
        # a size that is refused is refused as soon as it is there
        return min(self.old.next_size(data, n), <uint64_t>DECIDED_BYTES)

    cdef int process_bytes(self, Conn* c, uint8_t* data, size_t n, uint64_t now_ns, size_t* used) noexcept nogil:
        cdef void* chosen = <void*>self.old
        cdef int key
        used[0] = 0
        if n < self.next_size(data, n):
            return GOES_ON
        if self.old.next_size(data, n) <= SIZE_BYTES:
            if foreign(data) != NULL:
                fl_bump(&self.counters[<int>N_STRANGERS], 1)
                self.reports.refused(c, foreign(data), 0)
                return CLOSES
        else:
            key = <int16_t>be16(data + SIZE_BYTES)
            if key == API_VERSIONS or key == SASL_HANDSHAKE:
                chosen = <void*>self.today
        if (<Protocol>chosen).open(c) != 0:
            return CLOSES
        c.protocol = chosen
        return (<Protocol>chosen).process_bytes(c, data, n, now_ns, used)

"""One connection's memory: received bytes, and answers to send.

An idle connection holds no buffer: bytes are received into the loop's own, and only what is left of an incomplete or
waiting request is kept, in memory that grows with the bytes that came.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EHOSTUNREACH, EINTR, ENETDOWN, ENETUNREACH, EPIPE, ETIMEDOUT, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

from fastlog.log._files cimport file_pread_nowait, file_sendfile
from fastlog.log._segments cimport SegmentFiles

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int, const void*, size_t, int)
    int MSG_NOSIGNAL, MSG_MORE, MSG_DONTWAIT

cdef extern from "<unistd.h>" nogil:
    int close(int)

cdef enum:
    PROBE_STEP = 64 << 10
    KEPT_ROOM = 16               # spans that a connection that rests keeps room for
    KEPT_OUTPUT = 256 << 10      # bytes of output that a connection at work keeps room for


cdef Conn* conn_new(int fd, uint64_t name, uint64_t now_ns, Pool* pool) noexcept nogil:
    """A connection of a socket that was accepted, with no buffer yet; NULL without memory."""
    cdef Conn* c = <Conn*>calloc(1, sizeof(Conn))
    if c != NULL:
        c.pool = pool
        c.fd = fd
        c.name = name
        c.active_ns = now_ns
    return c


cdef void conn_release_buffer(Conn* c) noexcept nogil:
    """Free the buffer for what was received, with all that is in it."""
    cdef Pool* pool = c.pool
    pool.used -= c.room
    free(c.buffer)
    c.buffer = NULL
    c.room = c.start = c.end = 0
    if pool.over == c:
        pool.over = NULL


cdef int conn_reserve(Conn* c, size_t room) noexcept nogil:
    """Make the connection's own buffer at least ``room`` bytes, keeping buffer[start:end]; 0 or -1 without memory."""
    cdef uint8_t* larger
    if c.start and (c.end == c.start or c.room < room + c.start):
        memmove(c.buffer, c.buffer + c.start, c.end - c.start)
        c.end -= c.start
        c.start = 0
    if c.room >= room + c.start:
        return 0
    larger = <uint8_t*>realloc(c.buffer, room)
    if larger == NULL:
        return -1
    c.pool.used += room - c.room
    c.buffer = larger
    c.room = room
    return 0


cdef void conn_trim(Conn* c) noexcept nogil:
    """Give back what the answers of a busier time needed, when nothing is owed."""
    if not out_pending(c):
        out_forget(c, 0)


cdef void out_forget(Conn* c, size_t keep) noexcept nogil:
    """After everything has left: give back what the answers took, but for an output buffer of at most ``keep`` bytes."""
    if c.out_room > keep:
        answers_give(c, c.out_room)
        free(c.out)
        c.out = NULL
        c.out_room = 0
    if c.span_room > KEPT_ROOM:
        answers_give(c, c.span_room * sizeof(Span))
        free(c.spans)
        c.spans = NULL
        c.span_room = 0


cdef bint answer_admitted(Conn* c, uint64_t size) noexcept nogil:
    """Whether an answer of about ``size`` bytes may be made now; small ones always, large ones within the budget, and
    one at a time above it. One that may not waits for WAIT_ROOM."""
    cdef Pool* pool = c.pool
    if size <= <uint64_t>LARGE_ANSWER or pool.answers <= pool.budget or pool.answering == c:
        return True
    if pool.answering == NULL:
        pool.answering = c
        return True
    return False


cdef void conn_free(Conn* c, SegmentFiles files) noexcept nogil:
    """Free a connection that its protocol has closed."""
    out_discard(c, files)
    if c.pool.answering == c:
        c.pool.answering = NULL
    answers_give(c, c.answers)
    conn_release_buffer(c)
    if c.fd >= 0:
        close(c.fd)
    free(c.out)
    free(c.spans)
    free(c)


cdef int grow_spans(Conn* c) noexcept nogil:
    cdef int room
    cdef Span* larger
    if c.span_end < c.span_room:
        return 0
    room = c.span_room * 2 if c.span_room else 8
    larger = <Span*>realloc(c.spans, room * sizeof(Span))
    if larger == NULL:
        return -1
    answers_take(c, <uint64_t>(room - c.span_room) * sizeof(Span))
    c.spans = larger
    c.span_room = room
    return 0


cdef uint8_t* out_bytes(Conn* c, size_t n) noexcept nogil:
    """Room for ``n`` bytes of answer behind what is already owed; NULL without memory."""
    cdef size_t room
    cdef uint8_t* larger
    if grow_spans(c) != 0:
        return NULL
    if c.out_end + n > c.out_room:
        room = c.out_room * 2 if c.out_room else 1024
        while room < c.out_end + n:
            room *= 2
        larger = <uint8_t*>realloc(c.out, room)
        if larger == NULL:
            return NULL
        answers_take(c, room - c.out_room)
        c.out = larger
        c.out_room = room
    if c.span_end > c.span_start and c.spans[c.span_end - 1].entry < 0:
        c.spans[c.span_end - 1].size += n
    else:
        c.spans[c.span_end].entry = -1
        c.spans[c.span_end].position = 0
        c.spans[c.span_end].size = n
        c.span_end += 1
    c.out_end += n
    return c.out + c.out_end - n


cdef void out_give_back(Conn* c, size_t n) noexcept nogil:
    """Take back the last ``n`` bytes of room; they are part of the last span."""
    c.out_end -= n
    c.spans[c.span_end - 1].size -= n
    if c.spans[c.span_end - 1].size == 0:
        c.span_end -= 1


cdef int out_file(Conn* c, SegmentFiles files, int entry, uint64_t position, uint64_t size) noexcept nogil:
    """Add a span of a segment file to the answer and pin its descriptor; 0 or -1 without memory."""
    if grow_spans(c) != 0:
        return -1
    files.pin(entry)
    c.spans[c.span_end].entry = entry
    c.spans[c.span_end].position = position
    c.spans[c.span_end].size = size
    c.span_end += 1
    c.has_files = True
    return 0


cdef void out_discard(Conn* c, SegmentFiles files) noexcept nogil:
    """Drop what is owed: there is nobody to send it to."""
    while c.span_start < c.span_end:
        if c.spans[c.span_start].entry >= 0:
            files.unpin(c.spans[c.span_start].entry)
        c.span_start += 1
    # what is still to be answered to nobody takes the same place again
    out_end(c)


cdef void out_end(Conn* c) noexcept nogil:
    """No bytes wait to be sent: what is owed next is put at the beginning of the output buffer and of the spans."""
    c.span_start = c.span_end = 0
    c.out_start = c.out_end = 0
    c.has_files = False
    if c.pool.answering == c:
        c.pool.answering = NULL
    if c.pool.answers > c.pool.budget:
        out_forget(c, 0)
    elif c.out_room > KEPT_OUTPUT:
        out_forget(c, KEPT_OUTPUT)


cdef bint resident(int fd, uint64_t position, uint64_t size) noexcept nogil:
    """Whether a span looks to be in the page cache; where the file system cannot say, it counts as being there."""
    cdef uint8_t byte
    cdef uint64_t at = 0
    cdef int64_t r
    while at < size:
        r = file_pread_nowait(fd, &byte, 1, position + at)
        if r == -EAGAIN:
            return False
        if r < 0:
            return True
        at += PROBE_STEP
    return file_pread_nowait(fd, &byte, 1, position + size - 1) != -EAGAIN


cdef bint is_gone(int error) noexcept nogil:
    """Whether sending failed because of the network or the other end, and not of what was to be sent."""
    return (error == EPIPE or error == ECONNRESET or error == ETIMEDOUT or error == EHOSTUNREACH
            or error == ENETUNREACH or error == ENETDOWN)


cdef int out_send(Conn* c, SegmentFiles files, uint64_t slice, uint64_t* sent) noexcept nogil:
    """Send what is owed, file bytes at most ``slice`` of them; a SendStatus.

    On SEND_READ_AHEAD ``reading`` says which bytes are missing in memory.
    """
    cdef Span* span
    cdef int64_t r
    cdef uint64_t n, seen
    cdef int flags
    sent[0] = 0
    while c.span_start < c.span_end:
        span = &c.spans[c.span_start]
        if span.entry < 0:
            flags = MSG_NOSIGNAL | MSG_DONTWAIT
            if c.span_start + 1 < c.span_end:
                # size, error and the first bytes of the set leave in one segment: old clients read them as one
                flags |= MSG_MORE
            r = send(c.fd, c.out + c.out_start, span.size, flags)
            if r < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    return SENT_SOME
                return SEND_GONE if is_gone(errno) else SEND_FAILED
            c.out_start += <size_t>r
            span.size -= <uint64_t>r
        else:
            if slice == 0:
                return SENT_SOME
            n = min(span.size, slice)
            seen = max(c.probed_to, span.position)
            if c.read_for_send and seen > span.position:
                n = min(n, seen - span.position)
            elif seen < span.position + n:
                c.read_for_send = False
                c.probed_to = span.position + n
                if not resident(files.fd(span.entry), seen, span.position + n - seen):
                    # asked for once: what is gone again after that is waited for here
                    n = min(n, <uint64_t>READ_AHEAD_BYTES)
                    c.read_for_send = True
                    c.probed_to = span.position + n
                    c.reading.entry = span.entry
                    c.reading.position = span.position
                    c.reading.count = n
                    return SEND_READ_AHEAD
            r = file_sendfile(c.fd, files.fd(span.entry), span.position, n)
            if r == -EAGAIN:
                return SENT_SOME
            if r == -EINTR:
                continue
            if r <= 0:
                if is_gone(<int>-r):
                    return SEND_GONE
                c.read_error = <int>-r
                return SEND_UNREADABLE
            span.position += <uint64_t>r
            span.size -= <uint64_t>r
            slice -= <uint64_t>r
        sent[0] += <uint64_t>r
        if span.size == 0:
            if span.entry >= 0:
                files.unpin(span.entry)
            c.span_start += 1
            c.probed_to = 0
    out_end(c)
    return SENT_ALL

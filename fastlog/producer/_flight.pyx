"""What one connection has on its way: chunks in order, how far they are written, and which answers have come.

Everything here belongs to the thread that owns the connection. Without acknowledgements a frame is finished when the
kernel has all of it; with them when its answer came. After a break ``rewind`` puts the writing place back to the first
frame that is not finished.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.string cimport memmove

from fastlog._bytes cimport be32, be64
from fastlog.producer._frames cimport Chunk, Frame, monotonic_ns
from fastlog.producer._tickets cimport Ticket

import os

from fastlog.errors import ProtocolError


cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    ssize_t c_recv "recv"(int fd, void* target, size_t n, int flags)
    int MSG_NOSIGNAL
    int MSG_DONTWAIT

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int c_poll "poll"(pollfd* watched, unsigned long count, int timeout_ms)
    short POLLIN
    short POLLOUT
    short POLLERR
    short POLLHUP

cdef extern from "<string.h>" nogil:
    void* memset(void* target, int value, size_t n)

cdef enum:
    SPANS = 32                    # chunks in one write
    ANSWER_BYTES = 26             # correlation id 4, error 2, partition 4, base offset 8, next offset 8
    LEAST_ANSWER_BYTES = 6
    SLICE_NS = 100000000          # how long a write goes on without a look at anything else


cdef class Flight:
    def __init__(self, bint acknowledged):
        self.chunks = []
        self.events = []
        self.outcomes = []
        self.failures = []
        self.retried = frozenset()
        self.watched = set()
        self.acknowledged = acknowledged

    def add(self, Chunk chunk):
        """Take a chunk in, behind all others."""
        if chunk.frame_count == 0:
            return
        self.chunks.append(chunk)
        self.added_chunks += 1
        chunk.sequence = self.added_chunks
        self.messages += chunk.messages
        self.bytes += chunk.size

    def has_unsent(self):
        return self.cursor < len(self.chunks)

    def has_answers(self):
        return self.inbox_used >= SIZE_BYTES

    def is_torn(self):
        """Whether a frame is written in part."""
        cdef Chunk chunk
        if self.cursor >= len(self.chunks):
            return False
        chunk = <Chunk>self.chunks[self.cursor]
        return chunk.written > frame_start(chunk, chunk.written_frames)

    def head(self):
        """The oldest chunk that is not finished, or None."""
        return self.chunks[self.first] if self.first < len(self.chunks) else None

    def finished_up_to(self):
        """The highest sequence number such that no chunk with it or a lower one is left."""
        return (<Chunk>self.chunks[self.first]).sequence - 1 if self.first < len(self.chunks) else self.added_chunks

    def unfinished_frames(self):
        """Frames written and not finished: requests without an answer yet."""
        cdef Py_ssize_t i
        cdef long long found = 0
        for i in range(self.first, min(self.cursor + 1, len(self.chunks))):
            found += (<Chunk>self.chunks[i]).written_frames - (<Chunk>self.chunks[i]).finished_frames
        return found

    def take_events(self):
        """What happened since the last call: (ticket or None, chunk, messages, error, partition, base, next, position,
        first), the error being None, a code or an exception."""
        cdef list events = self.events
        if events:
            self.events = []
        return events

    def take_outcomes(self):
        """Answers that decide about other tries: (topic, partition, code, chunk), with a refused frame as a chunk."""
        cdef list outcomes = self.outcomes
        if outcomes:
            self.outcomes = []
        return outcomes

    def take_failures(self):
        """The frames that failed since the last call, each a chunk, when ``keep_failed`` is set."""
        cdef list failures = self.failures
        if failures:
            self.failures = []
        return failures

    def write(self, int fd, long long max_frames):
        """Hand frames to the kernel until none is left, ``max_frames`` are written, the inbox is full, or 100 ms are over.

        Answers that come meanwhile are put by for ``receive``. Returns the bytes written. Raises OSError when the
        connection is broken.
        """
        cdef iovec spans[SPANS]
        cdef Chunk chunk
        cdef Py_ssize_t i, total = 0, sent, limit
        cdef long long frames_left = max_frames, here, admitted
        cdef int count, failure = 0
        cdef long long until = monotonic_ns() + SLICE_NS
        while self.cursor < len(self.chunks) and frames_left > 0:
            count = 0
            i = self.cursor
            here = frames_left
            while i < len(self.chunks) and count < SPANS and here > 0:
                chunk = <Chunk>self.chunks[i]
                limit = chunk.size
                admitted = self.admit(chunk, min(here, <long long>(chunk.frame_count - chunk.written_frames)), count == 0)
                if admitted == 0:
                    break
                if admitted < chunk.frame_count - chunk.written_frames:
                    limit = chunk.frames[chunk.written_frames + admitted - 1].end
                    here = admitted                       # nothing comes before the rest of it
                here -= admitted
                spans[count].iov_base = chunk.memory + chunk.written
                spans[count].iov_len = <size_t>(limit - chunk.written)
                count += 1
                i += 1
            if count == 0:
                break
            with nogil:
                sent = self.write_spans(fd, spans, count, until, &failure)
            total += sent
            frames_left -= self.move_on(sent)
            if failure == EAGAIN:
                break
            if failure:
                raise OSError(failure, os.strerror(failure))
        return total

    cdef Py_ssize_t write_spans(self, int fd, iovec* spans, int count, long long until, int* failure) noexcept nogil:
        """Write spans whole, reading what comes meanwhile; ``failure`` EAGAIN when something else has to be done first.

        The GIL is not taken in between: a program that sends in a loop gives it up every 5 ms only, in which the broker
        could take 5 MB.
        """
        cdef msghdr message
        cdef pollfd watched
        cdef Py_ssize_t total = 0, step
        cdef ssize_t sent
        cdef long long left
        while count:
            memset(&message, 0, sizeof(message))
            message.msg_iov = spans
            message.msg_iovlen = <size_t>count
            sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                failure[0] = errno
                if errno != EAGAIN and errno != EINTR:
                    return total
                failure[0] = EAGAIN
                left = until - monotonic_ns()
                watched.fd = fd
                watched.events = POLLOUT | POLLIN
                watched.revents = 0
                if left <= 0 or c_poll(&watched, 1, <int>(left // 1000000) + 1) <= 0:
                    return total
                # The end, an error, and an answer to no request are for receive() to find.
                if watched.revents & POLLIN and not (self.acknowledged and self.fill_inbox(fd) > 0):
                    return total
                if watched.revents & (POLLERR | POLLHUP):
                    return total
                failure[0] = 0
                continue
            total += sent
            while count and sent >= <ssize_t>spans[0].iov_len:
                sent -= <ssize_t>spans[0].iov_len
                spans += 1
                count -= 1
            if count:
                spans[0].iov_base = <unsigned char*>spans[0].iov_base + sent
                spans[0].iov_len -= <size_t>sent
        return total

    cdef ssize_t fill_inbox(self, int fd) noexcept nogil:
        """Read what fits; as recv() returns, -2 when nothing fits."""
        cdef ssize_t got
        if self.inbox_used == INBOX_BYTES:
            return -2
        got = c_recv(fd, self.inbox + self.inbox_used, <size_t>(INBOX_BYTES - self.inbox_used), MSG_DONTWAIT)
        if got > 0:
            self.inbox_used += got
        return got

    cdef long long move_on(self, Py_ssize_t sent) except -1:
        """Note that ``sent`` more bytes are written; returns how many frames that completed."""
        cdef Chunk chunk
        cdef Py_ssize_t step
        cdef long long completed = 0
        cdef int before
        while sent > 0:
            chunk = <Chunk>self.chunks[self.cursor]
            step = min(sent, chunk.size - chunk.written)
            chunk.written += step
            sent -= step
            before = chunk.written_frames
            while chunk.written_frames < chunk.frame_count and chunk.frames[chunk.written_frames].end <= chunk.written:
                self.handed_over += chunk.frames[chunk.written_frames].messages
                chunk.written_frames += 1
            self.note_written(chunk, chunk.written_frames - before)
            completed += chunk.written_frames - before
            if not self.acknowledged:
                while chunk.finished_frames < chunk.written_frames:
                    self.finish(chunk, None, chunk.partition, -1, -1)
            if chunk.written == chunk.size:
                self.cursor += 1
        self.written_frames += completed
        self.compact()
        return completed

    def receive(self, int fd):
        """Read what has come and finish the frames it answers; the bytes read, 0 at the end, -1 when nothing was there.

        Raises OSError when the connection is broken, and ProtocolError when what came is no answer to what was sent.
        """
        cdef Py_ssize_t before = self.inbox_used
        # With the GIL held: it does not wait, and to get the GIL back could take 5 ms.
        cdef ssize_t got = self.fill_inbox(fd)
        cdef int failure = errno if got == -1 else EAGAIN
        if got > 0 and not self.acknowledged:
            raise ProtocolError(f"{got} bytes came that answer nothing")
        if self.inbox_used:
            self.read_answers()
        if got < 0:
            if failure != EAGAIN and failure != EINTR:
                raise OSError(failure, os.strerror(failure))
            return before if before else -1
        return got

    cdef long long admit(self, Chunk chunk, long long frames, bint is_first) except -1:
        """How many of the next ``frames`` of a chunk may be written now; ``is_first``: they begin a write."""
        return frames

    cdef int note_written(self, Chunk chunk, int frames) except -1:
        """Called when ``frames`` more of a chunk's are written."""
        return 0

    cdef int read_answers(self) except -1:
        """Finish the frames that whole answers in the inbox are for. Raises ProtocolError for what answers none."""
        cdef Py_ssize_t position = 0
        cdef int32_t size
        cdef const unsigned char* p
        cdef int error
        while self.inbox_used - position >= SIZE_BYTES:
            p = self.inbox + position
            size = <int32_t>be32(p)
            if size < LEAST_ANSWER_BYTES or size > ANSWER_BYTES:
                raise ProtocolError(f"an answer of {size} bytes came to a produce request")
            if self.inbox_used - position - SIZE_BYTES < size:
                break
            error = <int16_t>((p[8] << 8) | p[9])
            if size != ANSWER_BYTES and not error:
                raise ProtocolError(f"an answer of {size} bytes came to a produce request")
            if size == ANSWER_BYTES:
                self.answered(<int32_t>be32(p + 4), error, <int32_t>be32(p + 10), <int64_t>be64(p + 14), <int64_t>be64(p + 22))
            else:
                self.answered(<int32_t>be32(p + 4), error, -1, -1, -1)
            position += SIZE_BYTES + size
        self.inbox_used -= position
        memmove(self.inbox, self.inbox + position, <size_t>self.inbox_used)
        self.compact()
        return 0

    cdef Chunk asked(self):
        """The chunk whose frame the next answer is for. Raises ProtocolError where none waits for one."""
        cdef Chunk chunk
        if self.first >= len(self.chunks):
            raise ProtocolError("an answer came that nothing was asked for")
        chunk = <Chunk>self.chunks[self.first]
        if chunk.finished_frames >= chunk.written_frames:
            raise ProtocolError("an answer came that nothing was asked for")
        return chunk

    cdef int answered(self, int32_t correlation_id, int error, int32_t partition, int64_t base, int64_t next) except -1:
        """Finish the frame that waits longest, as its answer says. Raises ProtocolError when that is another's."""
        cdef Chunk chunk = self.asked()
        if chunk.frames[chunk.finished_frames].correlation_id != correlation_id:
            raise ProtocolError(
                f"the answer to request {chunk.frames[chunk.finished_frames].correlation_id} says it is for {correlation_id}"
            )
        self.finish(chunk, error if error else None, partition, base, next)
        return 0

    cdef int finish(self, Chunk chunk, object error, int32_t partition, int64_t base, int64_t next) except -1:
        """Finish the first unfinished frame of the first unfinished chunk; ``error`` is None, a code or an exception."""
        cdef int index = chunk.finished_frames
        self.finished_frames += 1
        self.messages -= chunk.frames[index].messages
        if error is not None and error in self.retried:
            self.watched.add((chunk.topic, chunk.partition))
            self.outcomes.append((chunk.topic, chunk.partition, error, chunk.part(index, index + 1)))
            chunk.finished_frames += 1
            while chunk.tickets is not None and chunk.next_ticket < len(chunk.tickets) \
                    and (<Ticket>chunk.tickets[chunk.next_ticket]).frame == index:
                chunk.next_ticket += 1        # they went with the copy
        else:
            if self.watched and (chunk.topic, chunk.partition) in self.watched:
                self.outcomes.append((chunk.topic, chunk.partition, error, None))
            self.note(chunk, error, partition, base, next)
        if chunk.finished_frames == chunk.frame_count:
            self.first += 1
            self.bytes -= chunk.size
        return 0

    cdef int note(self, Chunk chunk, object error, int32_t partition, int64_t base, int64_t next) except -1:
        """Count the first unfinished frame of a chunk as finished, and add the events for its tickets."""
        cdef int index = chunk.finished_frames
        cdef int messages = chunk.frames[index].messages
        cdef Ticket ticket
        chunk.finished_frames += 1
        if error is None:
            self.delivered += messages
        else:
            self.failed += messages
            if self.keep_failed:
                self.failures.append(chunk.part(index, index + 1))
        if chunk.tickets is not None:
            while chunk.next_ticket < len(chunk.tickets):
                ticket = <Ticket>chunk.tickets[chunk.next_ticket]
                if ticket.frame != index:
                    break
                chunk.next_ticket += 1
                if ticket.is_function and error is None:
                    ticket.settle(self.delivery_type, chunk.topic, self.broker, partition, base, next)
                    self.events.append(ticket)
                else:
                    self.events.append(
                        (ticket.to, chunk, ticket.messages, error, partition, base, next, ticket.position, ticket.first)
                    )
        if self.report or error is not None:
            self.events.append((None, chunk, messages, error, partition, base, next, 0, -1))
        return 0

    cdef int compact(self) except -1:
        """Let finished chunks go, which frees their memory."""
        cdef Py_ssize_t i, count = min(self.first, self.cursor)
        if count:
            del self.chunks[:count]
            self.first -= count
            self.cursor -= count
        return 0

    def rewind(self):
        """Go back, after a break, to the first frame that is not finished; the messages that may be stored already."""
        cdef Py_ssize_t i
        cdef int frame
        cdef Chunk chunk
        cdef long long doubtful = 0
        for i in range(self.first, min(self.cursor + 1, len(self.chunks))):
            chunk = <Chunk>self.chunks[i]
            for frame in range(chunk.finished_frames, chunk.written_frames):
                doubtful += chunk.frames[frame].messages
            if chunk.written > frame_start(chunk, chunk.finished_frames):
                chunk.attempts += 1
            chunk.written_frames = chunk.finished_frames
            chunk.written = frame_start(chunk, chunk.finished_frames)
        self.cursor = self.first
        self.inbox_used = 0
        self.handed_over = 0
        self.compact()
        return doubtful

    def drop_head(self, error):
        """Fail what is left of the oldest chunk. Only after ``rewind``, or when nothing of it is written."""
        cdef Chunk chunk = <Chunk>self.chunks[self.first]
        if chunk.written > frame_start(chunk, chunk.finished_frames):
            raise ValueError("the chunk is being written")
        while chunk.finished_frames < chunk.frame_count:
            self.finish(chunk, error, chunk.partition, -1, -1)
        if self.cursor < self.first:
            self.cursor = self.first
        self.compact()

    def give_up(self, Chunk chunk, error):
        """Fail a chunk that is not among those on their way."""
        while chunk.finished_frames < chunk.frame_count:
            self.note(chunk, error, chunk.partition, -1, -1)

    def number(self, Chunk chunk):
        """Give a chunk that is held back elsewhere a sequence number behind all others."""
        self.added_chunks += 1
        chunk.sequence = self.added_chunks

    def has_any(self, str topic, int partition):
        """Whether anything for a partition is on its way."""
        cdef Py_ssize_t i
        cdef Chunk chunk
        for i in range(self.first, len(self.chunks)):
            chunk = <Chunk>self.chunks[i]
            if chunk.partition == partition and chunk.topic == topic:
                return True
        return False

    def pull_back(self, str topic, int partition):
        """Take out, as chunks, all frames for a partition of which nothing is written."""
        cdef list kept = self.chunks[:self.cursor], found = []
        cdef Chunk chunk, rest
        cdef int keep
        for chunk in self.chunks[self.cursor:]:
            if chunk.partition != partition or chunk.topic != topic:
                kept.append(chunk)
                continue
            keep = chunk.written_frames + (chunk.written > frame_start(chunk, chunk.written_frames))
            if keep == 0:
                found.append(chunk)
                self.messages -= chunk.messages
                self.bytes -= chunk.size
                continue
            kept.append(chunk)
            if keep == chunk.frame_count:
                continue
            rest = chunk.part(keep, chunk.frame_count)
            found.append(rest)
            chunk.frame_count = keep
            chunk.size -= rest.size
            chunk.messages -= rest.messages
            if chunk.tickets is not None:
                chunk.tickets = [ticket for ticket in chunk.tickets if (<Ticket>ticket).frame < keep]
            self.messages -= rest.messages
            self.bytes -= rest.size
            if chunk.finished_frames == keep:     # only the first one can be finished so far
                self.bytes -= chunk.size
                self.first += 1
            if chunk.written == chunk.size:
                self.cursor += 1
        self.chunks = kept
        self.compact()
        return found

    def remove_movable(self):
        """Take out the untouched chunks whose partition the broker chooses: any other broker may have them as well."""
        cdef list kept = [], found = []
        cdef Chunk chunk
        if self.cursor != 0 or self.first != 0:
            raise ValueError("something is on its way")
        for chunk in self.chunks:
            if chunk.partition == -1 and not chunk.written and not chunk.finished_frames:
                found.append(chunk)
                self.messages -= chunk.messages
                self.bytes -= chunk.size
            else:
                kept.append(chunk)
        self.chunks = kept
        return found

"""The life of a connection: received, handled, sent, watched and closed. Compiled, without the GIL.

A connection is read only while nothing of it waits: a request that cannot go on keeps its place, the read interest is
dropped, and the requests behind it wait in order.
"""

cimport cython
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from fastlog.log._arena cimport (
    N_OVER_BUDGET, N_RECEIVED, N_REFUSED, N_SENT, N_SHORT_SENDS, Arena, fl_bump, fl_cell_at, fl_store,
)
from fastlog.log._segments cimport SegmentFiles
from fastlog.workers.net._bytes cimport be32
from fastlog.workers.net._connection cimport (
    PARK_ANSWER, PARK_BUDGET, PARK_CREATE, PARK_HELPER, PARK_HOLD, PARK_LOCK, PARK_TURN, SEND_FAILED, SEND_GONE, SEND_READ_AHEAD,
    SEND_UNREADABLE, Conn, Pool, conn_free, conn_new, conn_release_buffer, conn_reserve, out_discard, out_enough, out_pending, out_send,
    turn_begins,
)
from fastlog.workers.net._helper cimport HELP_ANSWER, HELP_READ_AHEAD, QUEUE_CREATE
from fastlog.workers.kafka07._requests cimport Requests
from fastlog.workers._writes cimport FRAME_CLOSE

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int, void*, size_t, int)
    int setsockopt(int, int, int, const void*, unsigned int)
    int SOL_SOCKET, SO_SNDBUF, SO_RCVBUF, MSG_DONTWAIT

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY, TCP_QUICKACK
    int IPPROTO_TCP

cdef extern from "<netinet/in.h>" nogil:
    pass

cdef extern from "<fcntl.h>" nogil:
    int fcntl(int, int, ...)
    int F_SETFL, F_GETFL, O_NONBLOCK

cdef extern from "<unistd.h>" nogil:
    int close(int)

cdef extern from "_handoff.h" nogil:
    # makes the most of a connection whose other end is on this machine
    void fl_tune_local(int)

cdef enum:
    SCRATCH_BYTES = 256 << 10
    OWN_BUFFER_FROM = 64 << 10      # a request this large gets a buffer of its own
    FIRST_BUFFER = 128 << 10
    SLICE_BYTES = 256 << 10         # file bytes one connection may send while others wait
    LAST_CALL_BYTES = 8 << 20
    QUICK_BYTES = 2048
    SEEN_NS = 250000000             # how long bytes of a file that were in memory count as being there
    TURNS = 16                      # answers one connection may get before others have a turn
    OVER_BUDGET_READ = 16 << 10     # what is received at once while the memory for requests is used up


@cython.no_gc_clear  # __dealloc__ gives back to files and runs
cdef class Connections:
    """The connections of one processor, its epoll, and what they wait for; the loop's thread only."""

    def __cinit__(self, Arena arena, Requests requests, SegmentFiles files, int process, connection_limit, send_buffer,
                  receive_buffer, retry_ms):
        self.arena = arena
        self.requests = requests
        self.runs = requests.runs
        self.files = files
        self.process = process
        self.connection_limit = connection_limit
        self.send_buffer = send_buffer or 0
        self.receive_buffer = receive_buffer or 0
        self.counters = fl_cell_at(arena.header, process).counters
        self.scratch = <uint8_t*>malloc(SCRATCH_BYTES)
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.next_number = 1
        self.retry_ns = retry_ms * 1000000
        if self.scratch == NULL or self.epoll < 0:
            raise MemoryError

    def __dealloc__(self):
        cdef Conn* c = self.first
        cdef Conn* after
        while c != NULL:
            after = c.next
            if not c.helper_busy:
                conn_free(c, self.files, &self.runs.pool)
            c = after
        free(self.scratch)
        free(self.by_fd)
        if self.epoll >= 0:
            close(self.epoll)

    cdef void add(self, int fd, const fl_handover* taken) noexcept nogil:
        cdef int one = 1
        cdef epoll_event event
        cdef Conn* c
        if self.count >= self.connection_limit:
            fl_bump(&self.counters[<int>N_REFUSED], 1)
            close(fd)
            return
        c = conn_new(fd, self.next_number << FD_BITS | <uint64_t>fd, self.now, &self.runs.pool)
        if c == NULL:
            close(fd)
            return
        self.next_number += 1
        c.listener = taken.listener
        c.principal = taken.principal
        c.transport = taken.transport
        memcpy(c.host, taken.host, sizeof(c.host))
        c.port = taken.port
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL, 0) | O_NONBLOCK)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(int))
        fl_tune_local(fd)
        if self.send_buffer:
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &self.send_buffer, sizeof(int))
        if self.receive_buffer:
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &self.receive_buffer, sizeof(int))
        c.interest = EPOLLIN
        event.events = c.interest
        event.data.u64 = c.name
        if self.enter(c) != 0 or epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) != 0:
            conn_free(c, self.files, &self.runs.pool)
            return
        self.by_fd[fd] = c
        c.next = self.first
        if self.first != NULL:
            self.first.previous = c
        self.first = c
        self.count += 1
        fl_store(&fl_cell_at(self.arena.header, self.process).connections, self.count)
        if self.finishing:
            self.finish(c)

    cdef void remove(self, Conn* c) noexcept nogil:
        """Close a connection; its memory goes at the end of this turn, because callers still look at it."""
        self.unwatch(c)
        self.requests.fetches.forget_parts(c)
        if c.previous != NULL:
            c.previous.next = c.next
        else:
            self.first = c.next
        if c.next != NULL:
            c.next.previous = c.previous
        # closing is not enough: as long as another process has the socket open (the acceptor closes its copy when it
        # comes to it), epoll goes on naming a connection that is gone, and nobody can take it out any more
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, c.fd, NULL)
        close(c.fd)
        self.by_fd[c.fd] = NULL
        c.fd = -1
        c.dead = True
        c.next = self.graveyard
        self.graveyard = c
        self.count -= 1
        fl_store(&fl_cell_at(self.arena.header, self.process).connections, self.count)

    cdef void bury(self) noexcept nogil:
        cdef Conn* c = self.graveyard
        cdef Conn* after
        self.graveyard = NULL
        while c != NULL:
            after = c.next
            conn_free(c, self.files, &self.runs.pool)
            c = after

    cdef int enter(self, Conn* c) noexcept nogil:
        """Make room for the connection's descriptor in the table of names; 0, or -1 without memory."""
        cdef uint64_t room = self.by_fd_room
        cdef Conn** larger
        if <uint64_t>c.fd >= room:
            if c.fd >> FD_BITS:
                return -1
            room = max(room * 2, <uint64_t>c.fd + 64)
            larger = <Conn**>realloc(self.by_fd, room * sizeof(Conn*))
            if larger == NULL:
                return -1
            memset(larger + self.by_fd_room, 0, (room - self.by_fd_room) * sizeof(Conn*))
            self.by_fd = larger
            self.by_fd_room = room
        return 0

    cdef Conn* named(self, uint64_t name) noexcept nogil:
        """The open connection an event is for; NULL when it has been closed, whoever has its descriptor now."""
        cdef uint64_t fd = name & ((<uint64_t>1 << FD_BITS) - 1)
        cdef Conn* c = self.by_fd[fd] if fd < self.by_fd_room else NULL
        return c if c != NULL and c.name == name else NULL

    cdef void watch(self, Conn* c) noexcept nogil:
        if not c.watched:
            c.watched = True
            c.watch_previous = NULL
            c.watch_next = self.watching
            if self.watching != NULL:
                self.watching.watch_previous = c
            self.watching = c

    cdef void unwatch(self, Conn* c) noexcept nogil:
        if c.watched:
            c.watched = False
            if c.watch_previous != NULL:
                c.watch_previous.watch_next = c.watch_next
            else:
                self.watching = c.watch_next
            if c.watch_next != NULL:
                c.watch_next.watch_previous = c.watch_previous

    cdef void set_interest(self, Conn* c, uint32_t events) noexcept nogil:
        cdef epoll_event event
        if c.interest != events:
            c.interest = events
            event.events = events
            event.data.u64 = c.name
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, c.fd, &event)

    # -- one connection's work ---------------------------------------------------------------------------------------

    cdef void readable(self, Conn* c) noexcept nogil:
        """Receive once and handle what is whole."""
        cdef Pool* pool = &self.runs.pool
        cdef size_t left = c.end - c.start
        cdef size_t used = 0, room, most = SCRATCH_BYTES
        cdef uint64_t need = 0
        cdef ssize_t r
        cdef int status
        cdef bint own
        cdef int one = 1
        if left >= 4:
            need = 4 + <uint64_t>be32(c.buffer + c.start)
        own = need > OWN_BUFFER_FROM or left >= OWN_BUFFER_FROM
        if pool.used > pool.budget and pool.over != c:
            # small requests go on, and of a large one no more than its beginning is taken in
            most = left + OVER_BUDGET_READ
            if own and pool.over != NULL:
                fl_bump(&self.counters[<int>N_OVER_BUDGET], 1)
                c.park |= PARK_BUDGET
                self.budget_waiters = True
                self.settle(c)
                return
        if own:
            # doubles with the bytes that came, up to the size that was announced
            room = <size_t>min(need, <uint64_t>max(left * 2, <size_t>FIRST_BUFFER))
            if room <= left:
                room = left + FIRST_BUFFER
            if conn_reserve(c, room, pool) != 0:
                self.remove(c)
                return
            if pool.used > pool.budget and pool.over == NULL:
                pool.over = c  # the one that passed the budget is the one that may be over it
            r = recv(c.fd, c.buffer + c.end, c.room - c.end, MSG_DONTWAIT)
        else:
            if left:  # a connection of which nothing is kept has no buffer
                memcpy(self.scratch, c.buffer + c.start, left)
            r = recv(c.fd, self.scratch + left, min(most, <size_t>SCRATCH_BYTES) - left, MSG_DONTWAIT)
        if r < 0 and (errno == EAGAIN or errno == EINTR):
            return
        if r <= 0:
            c.leaving = True
            c.ended = True
            c.dead = c.dead or r < 0
            if self.settle(c):
                self.pump(c)
            return
        c.active_ns = self.now
        fl_bump(&self.counters[<int>N_RECEIVED], <uint64_t>r)
        if own:
            c.end += <size_t>r
            self.pump(c)
            return
        left += <size_t>r
        turn_begins(c)
        status = self.requests.process_bytes(c, self.scratch, left, False, self.now, &used)
        if status == FRAME_CLOSE:
            c.closing = True
            used = left
        c.start = c.end = 0
        if used != left:
            left -= used
            if conn_reserve(c, (left + 4095) // 4096 * 4096, pool) != 0:
                self.remove(c)
                return
            memcpy(c.buffer, self.scratch + used, left)
            c.end = left
        if r < QUICK_BYTES and not out_pending(c):
            # old clients write size and body apart, and small produces one by one: the next write of such a client
            # waits for our acknowledgement, and no answer carries it
            setsockopt(c.fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof(int))
        if used:
            c.frame_since_ns = 0
        if c.closing:
            self.advance(c)
        if self.settle(c):
            self.pump(c)

    cdef void pump(self, Conn* c) noexcept nogil:
        """Go on with what was received: after a wait, after an answer has left, after more bytes came."""
        cdef int turns
        turn_begins(c)
        for turns in range(TURNS):
            self.advance(c)
            if not self.settle(c):
                return
        # others have a turn before the next of its requests
        c.park |= PARK_TURN
        self.watch(c)
        self.retry_at = self.now
        self.set_interest(c, EPOLLONESHOT)

    cdef void advance(self, Conn* c) noexcept nogil:
        """Handle received requests until one waits, an answer must leave first, or none is whole."""
        cdef size_t used
        cdef int status
        while not c.helper_busy:
            if c.ack_head != c.ack_tail and self.runs.emit_acks(c) == FRAME_CLOSE:
                c.closing = True
            c.park = c.park & PARK_HOLD
            if c.runs != NULL:
                status = self.runs.commit(c)
                if status == FRAME_CLOSE:
                    c.closing = True
                if c.runs != NULL:
                    return
            if c.closing or c.start == c.end:
                return
            if out_enough(c) and c.parts == NULL and not c.dead:
                return
            c.park = 0
            used = 0
            status = self.requests.process_bytes(c, c.buffer + c.start, c.end - c.start, True, self.now, &used)
            c.start += used
            if used:
                c.frame_since_ns = 0
            if status == FRAME_CLOSE:
                c.closing = True
            if used == 0 or c.park:
                return

    cdef void gone(self, Conn* c) noexcept nogil:
        """Nothing can be sent any more: what was received is still handled, but nothing is read to answer nobody."""
        c.dead = c.leaving = True
        if c.helper_busy and (c.helper_kind == HELP_READ_AHEAD
                              or (c.helper_kind == HELP_ANSWER and c.helper_queue != QUEUE_CREATE)):
            self.requests.helper.cancel(c)

    cdef bint settle(self, Conn* c) noexcept nogil:
        """After any work on a connection: start the helper, send, decide what it waits for next, or close it.

        True when nothing holds up the requests that were received: the caller goes on with them.
        """
        cdef uint64_t sent = 0
        cdef int status
        cdef uint32_t events
        if c.park & PARK_HELPER and not c.helper_busy and not c.helper_done:
            self.start_helper(c)
        if out_pending(c):
            if c.dead:
                out_discard(c, self.files)
            elif c.parts == NULL and not (c.helper_busy and c.has_files):
                # one job at a time: sending from files may need the helper itself
                if self.now - c.active_ns > <uint64_t>SEEN_NS:
                    c.probed_to = 0
                status = out_send(c, self.files, SLICE_BYTES if self.events_now > 1 else 8 * SLICE_BYTES, &sent)
                if sent:
                    c.active_ns = self.now
                    fl_bump(&self.counters[<int>N_SENT], sent)
                if status == SEND_UNREADABLE:
                    self.requests.fetches.unreadable.failed(
                        c.spans[c.span_start].entry, c.spans[c.span_start].position, c.read_error
                    )
                if status == SEND_FAILED or status == SEND_GONE or status == SEND_UNREADABLE:
                    if status != SEND_GONE:
                        fl_bump(&self.counters[<int>N_SHORT_SENDS], 1)
                        c.ended = True
                    self.gone(c)
                    out_discard(c, self.files)
                elif status == SEND_READ_AHEAD:
                    if self.requests.fetches.queue_read(c, c.helper_entry, c.helper_position, c.helper_size) == 0:
                        c.park |= PARK_HELPER
        if c.park == 0 and not c.closing and not out_pending(c) and self.requests.whole_frame(c):
            return True
        if c.start == c.end:
            c.frame_since_ns = 0
        elif c.frame_since_ns == 0:
            c.frame_since_ns = self.now
        if c.runs == NULL and c.start == c.end and c.room and c.park == 0:
            conn_release_buffer(c, &self.runs.pool)
        if (c.closing or (c.ended and c.park == 0)) and c.runs == NULL and not c.helper_busy and not out_pending(c):
            # what was received is done: no whole frame is left here, see above
            if c.dead or c.ack_head == c.ack_tail:
                self.remove(c)
                return False
        if c.park or c.ack_head != c.ack_tail:
            self.watch(c)
            if c.park & PARK_TURN:
                self.retry_at = self.now
            if c.park & PARK_ANSWER:
                self.answer_waiters = True
            if c.park & (PARK_LOCK | PARK_CREATE):
                self.retry_at = min(self.retry_at, self.now + self.retry_ns)
            if c.hold_until_ns:
                self.deadline = min(self.deadline, c.hold_until_ns)
        else:
            self.unwatch(c)
        if c.park:
            events = EPOLLONESHOT
            if c.park & PARK_HOLD and not c.leaving:
                events |= EPOLLRDHUP
            if out_pending(c) and c.parts == NULL and not (c.helper_busy and c.has_files):
                events |= EPOLLOUT
        elif out_pending(c):
            events = EPOLLOUT
        elif c.ended or c.closing:
            events = EPOLLONESHOT
        else:
            events = EPOLLIN
        self.set_interest(c, events)
        return False

    cdef void start_helper(self, Conn* c) noexcept nogil:
        """Hand a part of the request to the helper: now that its bytes stand in the connection's own buffer."""
        cdef const uint8_t* data = c.buffer + c.start + 4 + c.helper_offset
        if self.requests.helper.submit(c, c.helper_queue, -1, c.helper_position, c.helper_size, data) != 0:
            self.retry_at = min(self.retry_at, self.now + self.retry_ns)

    cdef void take_jobs(self) noexcept nogil:
        """Go on with the connections whose jobs are finished."""
        cdef Conn* c = self.requests.helper.take_done()
        cdef Conn* after
        while c != NULL:
            after = c.job.next
            c.helper_busy = 0
            c.helper_done = 1
            c.park &= ~(<int>PARK_HELPER)
            if c.helper_kind == HELP_READ_AHEAD:
                self.files.unpin(c.helper_entry)
                if out_pending(c):
                    c.helper_done = 0
            self.pump(c)
            c = after

    cdef void finish(self, Conn* c) noexcept nogil:
        cdef uint64_t before, total = 0
        if c.ended:
            return
        while not c.park and not c.ended and not c.closing and c.fd >= 0 and total < LAST_CALL_BYTES:
            before = self.counters[<int>N_RECEIVED]
            self.readable(c)
            if self.counters[<int>N_RECEIVED] == before:
                break
            total += self.counters[<int>N_RECEIVED] - before
        if c.fd >= 0:
            c.leaving = True
            # one that waits reads on when its turn comes: more may have arrived by then
            c.ended = c.park == 0
            if not c.ended:
                self.retry_at = min(self.retry_at, self.now + self.retry_ns)
            self.pump(c)

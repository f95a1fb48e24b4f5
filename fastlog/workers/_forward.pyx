"""Requests of connections that the coordinator answers: a processor's end of the socket pair between the two.

A frame goes out in pieces, straight from the connection's buffer, one frame after the other; so what waits here takes no
memory, and what is on its way is bounded by the socket's. ``coordinator.frames`` has the table of a piece. When the
coordinator has died, which its incarnation in the arena tells, the frames that it had got some of end without an answer;
the others go to its successor.
"""

cimport cython
from libc.errno cimport EAGAIN, EINTR, ENOBUFS, ENOMEM, errno
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport FL_COORDINATOR, fl_cell_at, fl_load
from fastlog.workers._jobs cimport ANSWER_MADE, ANSWER_NONE
from fastlog.workers.net._connection cimport Conn, Job, answers_give, answers_take
from fastlog.workers.net._remote cimport QUEUE_REMOTE, Remote

cdef extern from "<sys/socket.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int, const msghdr*, int)
    ssize_t recv(int, void*, size_t, int)
    int MSG_DONTWAIT, MSG_NOSIGNAL

cdef enum:
    PIECE_BYTES = 64 << 10       # a piece is no longer, its head included
    MOST_REQUEST_BYTES = 16 << 20
    MOST_ANSWER_BYTES = 64 << 20
    PIECES_PER_TURN = 16         # received before connections have a turn
    PLACE_BITS = 24              # of a frame's number
    FIRST_ROOM = 16

# What both ends agree on; Python gets the same numbers under the same names.
globals().update(
    PIECE_BYTES=<int>PIECE_BYTES,
    MOST_REQUEST_BYTES=<int>MOST_REQUEST_BYTES,
)

cdef packed struct PieceHead:
    uint64_t number
    uint64_t connection
    uint64_t processor
    uint64_t coordinator
    uint32_t total
    uint32_t place
    int32_t principal
    uint16_t listener
    uint16_t port
    char[46] host
    uint16_t zero


cdef inline uint64_t place_of(uint64_t number) noexcept nogil:
    """Where the frame of this number stands in the table."""
    return number & ((<uint64_t>1 << PLACE_BITS) - 1)


@cython.final
cdef class Forward(Remote):
    """For the loop's thread of one processor."""

    def __cinit__(self, Arena arena, int process, int fd):
        self.arena = arena
        self.process = process
        self.fd = fd
        self.own = fl_load(&fl_cell_at(arena.header, process).incarnation)
        self.other = fl_load(&fl_cell_at(arena.header, FL_COORDINATOR).incarnation)
        self.scratch = <uint8_t*>malloc(PIECE_BYTES)
        if self.scratch == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.table)
        free(self.scratch)

    cdef int ask(self, Conn* c, ForwardJob* job, size_t at, size_t size) noexcept nogil:
        """Have the coordinator answer a request: ``size`` bytes from ``at`` on, counted from the beginning of the request.

        These begin behind the request's size. The request waits for WAIT_JOB; its protocol's ``job_done`` takes the answer. 0,
        or -1 for one that is longer than the coordinator takes: it cannot be answered.
        """
        if size == 0 or size > <size_t>MOST_REQUEST_BYTES:
            return -1
        job.job.step = NULL
        job.job.owner = <void*>self
        job.job.queue = QUEUE_REMOTE
        job.job.at = at
        job.job.size = size
        job.job.pins = False  # where a job stood that did
        job.job.for_answer = True
        job.state = ANSWER_NONE
        job.answer = NULL
        job.size = job.sent = job.received = 0
        c.job = &job.job
        return 0

    # -- what the loop calls -------------------------------------------------------------------------------------------

    cdef int submit(self, Conn* c, Job* job) noexcept nogil:
        if self.enter(<ForwardJob*>job) != 0:
            return -1
        c.job = job
        c.busy = True
        job.conn = c
        job.data = c.buffer + c.start + job.at
        job.cancelled = 0
        job.next = NULL
        if self.last != NULL:
            self.last.next = job
        else:
            self.first = job
        self.last = job
        self.send()
        return 0

    cdef void cancel(self, Job* job) noexcept nogil:
        """What has been received is handled, so the request still goes out; nobody waits for the answer to it."""
        cdef ForwardJob* asked = <ForwardJob*>job
        if job.cancelled or self.table[place_of(asked.number)] != asked:
            return  # it has ended by itself, and is taken after this turn
        job.cancelled = 1
        if asked.sent == job.size:
            self.finish(asked, ANSWER_NONE)

    cdef void look(self) noexcept nogil:
        cdef uint64_t now = fl_load(&fl_cell_at(self.arena.header, FL_COORDINATOR).incarnation)
        cdef uint64_t place
        cdef ForwardJob* asked
        if now != self.other:
            self.other = now
            for place in range(self.room):
                asked = self.table[place]
                if asked != NULL and asked.sent:
                    if asked.sent < asked.job.size:
                        self.unlink(&asked.job)
                    self.finish(asked, ANSWER_NONE)
        if self.first != NULL and not self.wants_room:
            self.send()

    cdef void ready(self) noexcept nogil:
        cdef ssize_t r
        cdef int n
        for n in range(PIECES_PER_TURN):
            r = recv(self.fd, self.scratch, PIECE_BYTES, MSG_DONTWAIT)
            if r <= 0:
                break
            self.take_piece(self.scratch, <size_t>r)
        self.send()

    cdef Job* take_finished(self) noexcept nogil:
        cdef Job* found = self.finished
        self.finished = NULL
        return found

    cdef int jobs(self) noexcept nogil:
        return <int>self.used

    # -- frames --------------------------------------------------------------------------------------------------------

    cdef int enter(self, ForwardJob* job) noexcept nogil:
        """Give a frame its number and its place in the table; 0, or -1 without memory."""
        cdef uint64_t place, room = self.room
        cdef ForwardJob** larger
        if self.used == room:
            room = room * 2 if room else FIRST_ROOM
            if room >> PLACE_BITS:
                return -1
            larger = <ForwardJob**>realloc(self.table, room * sizeof(ForwardJob*))
            if larger == NULL:
                return -1
            memset(larger + self.room, 0, (room - self.room) * sizeof(ForwardJob*))
            self.table = larger
            self.room = room
        self.count += 1
        place = self.count & (room - 1)  # most often free: frames end in about the order in which they began
        while self.table[place] != NULL:
            place = (place + 1) & (room - 1)
        self.table[place] = job
        self.used += 1
        job.number = self.count << PLACE_BITS | place
        return 0

    cdef void unlink(self, Job* job) noexcept nogil:
        """Take a job out of those that are to be sent; it is the first of them, or it stays."""
        if self.first == job:
            self.first = job.next
            if self.first == NULL:
                self.last = NULL

    cdef void finish(self, ForwardJob* job, int state) noexcept nogil:
        """A job that is not to be sent any more has come to its end."""
        self.table[place_of(job.number)] = NULL
        self.used -= 1
        if job.answer != NULL:
            answers_give(job.job.conn, job.size)
        if state != ANSWER_MADE:
            free(job.answer)
            job.answer = NULL
            job.size = 0
        job.state = state
        job.job.next = self.finished
        self.finished = &job.job

    cdef void send(self) noexcept nogil:
        """Send as much as the socket has room for."""
        cdef PieceHead head
        cdef iovec[2] parts
        cdef msghdr message
        cdef Job* job
        cdef ForwardJob* asked
        cdef size_t n
        cdef ssize_t r
        self.wants_room = False
        while self.first != NULL:
            job = self.first
            asked = <ForwardJob*>job
            n = min(job.size - asked.sent, <size_t>PIECE_BYTES - sizeof(PieceHead))
            memset(&head, 0, sizeof(head))
            head.number = asked.number
            head.connection = job.conn.name
            head.processor = self.own
            head.coordinator = self.other
            head.total = <uint32_t>job.size
            head.place = <uint32_t>asked.sent
            head.principal = job.conn.principal
            head.listener = <uint16_t>job.conn.listener
            head.port = <uint16_t>job.conn.port
            memcpy(head.host, job.conn.host, sizeof(head.host))
            memset(&message, 0, sizeof(message))
            parts[0].iov_base = &head
            parts[0].iov_len = sizeof(head)
            parts[1].iov_base = <void*>(job.data + asked.sent)
            parts[1].iov_len = n
            message.msg_iov = parts
            message.msg_iovlen = 2
            r = sendmsg(self.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if r < 0 and errno == EINTR:
                continue
            if r < 0 and errno == EAGAIN:
                self.wants_room = True
                return
            if r < 0 and (errno == ENOBUFS or errno == ENOMEM):
                return  # tried again in the next turn, at a heartbeat at the latest
            asked.sent += n
            if r < 0 or asked.sent == job.size:
                self.unlink(job)
                if r < 0 or job.cancelled:
                    self.finish(asked, ANSWER_NONE)

    cdef void take_piece(self, const uint8_t* piece, size_t size) noexcept nogil:
        """Add a piece to the answer it belongs to; one that is for nobody here is dropped."""
        cdef PieceHead head
        cdef uint64_t place
        cdef ForwardJob* asked
        if size < sizeof(head):
            return
        memcpy(&head, piece, sizeof(head))
        size -= sizeof(head)
        place = place_of(head.number)
        if head.processor != self.own or head.coordinator != self.other or place >= self.room:
            return
        asked = self.table[place]
        if asked == NULL or asked.number != head.number or asked.job.conn.name != head.connection or asked.sent < asked.job.size:
            return
        if head.total == 0 or head.total > <uint32_t>MOST_ANSWER_BYTES or head.place != asked.received \
                or size == 0 or size > head.total - head.place or (asked.received and head.total != asked.size):
            self.finish(asked, ANSWER_NONE)
            return
        if asked.received == 0:
            asked.answer = <uint8_t*>malloc(head.total)
            if asked.answer == NULL:
                self.finish(asked, ANSWER_NONE)
                return
            asked.size = head.total
            answers_take(asked.job.conn, asked.size)
        memcpy(asked.answer + asked.received, piece + sizeof(head), size)
        asked.received += size
        if asked.received == asked.size:
            self.finish(asked, ANSWER_MADE)

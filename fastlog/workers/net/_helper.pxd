from libc.stdint cimport uint8_t, uint64_t

from fastlog.log._arena cimport Arena
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers.net._connection cimport Conn

cdef enum HelperKind:
    HELP_INFLATE = 1     # count the messages of the compressed sets in data[:size]
    HELP_READ_AHEAD = 2  # bring size bytes of fd at position into memory
    HELP_ANSWER = 3      # make the answer to the request in data[:size]
    HELP_CREATE = 4      # make partition ``position`` of the topic whose name is data[:size]

# What became of HELP_CREATE, when it is not the number of a slot.
cdef enum CreateState:
    CREATE_AGAIN = -2    # another process creates a partition: ask again when woken
    CREATE_FAILED = -3   # for example a full disk
    CREATE_REFUSED = -4  # it may not be made

# What became of HELP_ANSWER.
cdef enum AnswerState:
    ANSWER_NONE = 0      # it cannot be answered: the connection closes
    ANSWER_MADE = 1
    ANSWER_AGAIN = 2     # another process creates a partition: ask again when woken

# Queues, each with a thread of its own: what waits for one kind of work never waits for another kind.
cdef enum Queue:
    QUEUE_CONTROL = 0    # answers from memory alone
    QUEUE_CHECK = 1      # what decompresses
    QUEUE_CREATE = 2     # what makes files
    QUEUE_DISK = 3       # what reads files: one for each log directory, from this number on

cdef enum:
    READ_AHEAD_BYTES = 256 << 10  # of one job: a reader of much takes turns with the readers of little

cdef struct JobQueue:
    Conn* first
    Conn* last
    int waiting
    int begun            # jobs taken out that are not done
    bint looks           # the one that was begun looks at partitions
    uint64_t ended       # jobs, and steps of jobs, that were begun and are done
    uint64_t to_pass     # how many have to be before the thread is past what was marked
    bint started         # its thread is there
    void* ready

cdef class Helper:
    cdef Arena arena
    cdef Authorizer authorizer
    cdef object validate
    cdef object make_answer
    cdef object make_partition
    cdef dict checks             # by the name of the connection: what has been begun and waits for its next turn
    cdef JobQueue* queues
    cdef int queue_count
    cdef void* mutex             # of everything in the queues, and of ``done``
    cdef Conn* done              # finished jobs that the loop has not taken yet
    cdef int eventfd             # tells the loop of them
    cdef bint closing
    cdef readonly uint64_t steps # how often a thread took a job up

    cdef int submit(self, Conn* c, int queue, int fd, uint64_t position, uint64_t size, const uint8_t* data) noexcept nogil
    cdef int start(self, int queue) noexcept nogil
    cdef void push(self, int queue, Conn* c) noexcept nogil
    cdef Conn* take_done(self) noexcept nogil
    cdef void cancel(self, Conn* c) noexcept nogil
    cdef void close(self) noexcept nogil
    cdef int jobs(self) noexcept nogil
    cdef void mark(self) noexcept nogil
    cdef bint is_past(self) noexcept nogil
    cdef bint work_on(self, Conn* c, int queue, void* scratch) noexcept nogil
    cdef bint inflate(self, Conn* c) noexcept with gil
    cdef bint answer(self, Conn* c, int queue) noexcept with gil
    cdef long long create(self, Conn* c) noexcept with gil
    cdef void read_ahead(self, Conn* c, void* scratch) noexcept nogil

from libc.stdint cimport uint64_t

from fastlog.log._arena cimport Arena
from fastlog.workers._connection cimport Conn

cdef enum HelperKind:
    HELP_INFLATE = 1     # count_deep over buffer[start + helper_offset:][:helper_size]
    HELP_READ_AHEAD = 2  # bring helper_size bytes of helper_entry at helper_position into memory
    HELP_ANSWER = 3      # make the answer to the request of helper_size bytes at buffer[start + 4:]
    HELP_CREATE = 4      # make partition helper_position of the topic whose name is helper_size bytes of the request

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

cdef struct HelperJob:
    Conn* conn
    int kind
    int fd
    uint64_t position
    uint64_t size
    const unsigned char* data

cdef class Helper:
    cdef Arena arena
    cdef int process
    cdef object validate
    cdef object make_answer
    cdef object make_partition
    cdef object thread
    cdef HelperJob* ring
    cdef uint64_t room, head, tail
    cdef void* mutex
    cdef void* ready
    cdef int submit(self, HelperJob job) noexcept nogil
    cdef long long inflate(self, HelperJob job) noexcept with gil
    cdef void answer(self, HelperJob job) noexcept with gil
    cdef long long create(self, HelperJob job) noexcept with gil
    cdef void read_ahead(self, HelperJob job, void* scratch) noexcept nogil

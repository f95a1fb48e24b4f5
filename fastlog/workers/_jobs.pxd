from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers.net._connection cimport Conn, Job
from fastlog.workers.net._helper cimport Helper

# Decompresses and checks what the request's bytes are: compressed sets of messages, or one batch of records.
cdef struct CountJob:
    Job job
    bint is_batch
    long long count      # how many messages there are; of a batch 1 + their largest time; or a CountState
    int64_t record       # of a batch: the first record with that time, or the one that was refused; -1: not known

cdef enum CountState:
    COUNT_REFUSED = -1
    COUNT_OFF_LOOP = -2  # not looked at: it takes too long for the loop
    COUNT_TOO_LARGE = -3 # of a batch: more comes out of it than the limits allow
    COUNT_MISTIMED = -4  # of a batch: its largest time is none

# Makes record batches of the set of messages that the request's bytes are.
cdef struct RecordsJob:
    Job job
    int state            # a RecordsState
    int64_t time_ms      # that records get
    int64_t most         # bytes of a batch
    uint8_t* made        # the batches, which whoever takes them frees
    size_t size
    int64_t count        # records

cdef enum RecordsState:
    RECORDS_REFUSED = 1  # the set is damaged
    RECORDS_TOO_LARGE = 2 # a message alone takes more than a batch may have
    RECORDS_MADE = 3

# Makes a partition of the topic whose name the request's bytes are.
cdef struct CreateJob:
    Job job
    int32_t partition
    long long made       # its slot, or a CreateState

cdef enum CreateState:
    CREATE_UNASKED = -1
    CREATE_AGAIN = -2    # another process creates a partition: ask again when woken
    CREATE_FAILED = -3   # for example a full disk
    CREATE_REFUSED = -4  # it may not be made

# Makes the answer to a request.
cdef struct AnswerJob:
    Job job
    int state            # an AnswerState
    uint8_t* answer      # the bytes to send, which whoever takes them frees
    size_t size

cdef enum AnswerState:
    ANSWER_NONE = 0      # it cannot be answered: the connection closes
    ANSWER_MADE = 1
    ANSWER_AGAIN = 2     # another process creates a partition: ask again when woken

cdef class Answering

cdef class Jobs:
    cdef Helper helper
    cdef Authorizer authorizer
    cdef object services
    cdef dict begun              # by the name of the connection: counts that wait for their next step
    cdef uint64_t spent_ns       # on counting on the loop's thread, since the last wait

    cdef void begin_turn(self) noexcept nogil
    cdef long long count_here(self, Conn* c, const uint8_t* data, size_t size) noexcept nogil
    cdef long long check_here(self, Conn* c, const uint8_t* data, size_t size, int64_t* record) noexcept nogil
    cdef long long look(self, Conn* c, const uint8_t* data, size_t size, int64_t* record) noexcept nogil
    cdef void count(self, Conn* c, CountJob* job, size_t at, size_t size, bint is_batch) noexcept nogil
    cdef void convert(self, Conn* c, RecordsJob* job, size_t at, size_t size, int64_t time_ms, int64_t most) noexcept nogil
    cdef void create(self, Conn* c, CreateJob* job, size_t at, size_t size, int32_t partition) noexcept nogil
    cdef void answer(self, Conn* c, AnswerJob* job, Answering answering, int queue, size_t at, size_t size) noexcept nogil
    cdef bint count_step(self, CountJob* job) noexcept with gil
    cdef bint convert_step(self, RecordsJob* job) noexcept with gil
    cdef void create_step(self, CreateJob* job) noexcept with gil

# The requests of one protocol that Python answers.
cdef class Answering:
    cdef Jobs jobs
    cdef object make
    cdef bint step(self, AnswerJob* job) noexcept with gil

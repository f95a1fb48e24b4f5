"""What requests have threads of the helper do, besides reading: counting messages, making partitions, making answers."""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from fastlog.log._layout cimport fl_monotonic_ns
from fastlog.workers._authorizer cimport Authorizer
from fastlog.workers.net._connection cimport Conn, Job
from fastlog.workers.net._helper cimport QUEUE_CHECK, QUEUE_CREATE, Helper

cdef enum:
    COUNT_NS = 10000000          # counting on the loop's thread in one turn; more of it is the helper's


cdef bint do_count(Job* job, void* scratch) noexcept nogil:
    return (<Jobs>job.owner).count_step(<CountJob*>job)


cdef bint do_convert(Job* job, void* scratch) noexcept nogil:
    return (<Jobs>job.owner).convert_step(<RecordsJob*>job)


cdef bint do_create(Job* job, void* scratch) noexcept nogil:
    (<Jobs>job.owner).create_step(<CreateJob*>job)
    return False


cdef bint do_answer(Job* job, void* scratch) noexcept nogil:
    return (<Answering>job.owner).step(<AnswerJob*>job)


cdef class Jobs:
    """Asks for the jobs of one processor; its loop's thread only, but for the steps, which its helper's threads do.

    ``services`` counts and creates: ``count_deep(memoryview, name, begun)`` counts deep messages and returns their number,
    COUNT_REFUSED, or what is to be given as ``begun`` for the next step, which is None for the first; ``check_batch`` does
    the same with a batch of records, and returns a ``CountJob``'s ``count`` and ``record``, ``make_batches`` makes batches of a set.
    ``create_partition(name, number)`` gives the number of the slot or a ``CreateState``. What raises is reported to its
    ``unexpected``, and its request is refused, has failed or has no answer.
    """

    def __cinit__(self, Helper helper, Authorizer authorizer, services):
        self.helper = helper
        self.authorizer = authorizer
        self.services = services
        self.begun = {}
        helper.keep(self)

    cdef void begin_turn(self) noexcept nogil:
        self.spent_ns = 0

    cdef long long count_here(self, Conn* c, const uint8_t* data, size_t size) noexcept nogil:
        """Count the messages inside compressed sets when they decompress to little; COUNT_OFF_LOOP else."""
        return self.look(c, data, size, NULL)

    cdef long long check_here(self, Conn* c, const uint8_t* data, size_t size, int64_t* record) noexcept nogil:
        """The same with the records of a batch, of which ``record`` gets a number, see ``CountJob``."""
        record[0] = -1
        return self.look(c, data, size, record)

    cdef long long look(self, Conn* c, const uint8_t* data, size_t size, int64_t* record) noexcept nogil:
        """Both of them; ``record`` is NULL for sets of messages."""
        cdef uint64_t began
        cdef long long found
        # many small sets in one turn keep the other connections waiting as long as a large one does
        if self.spent_ns >= COUNT_NS:
            return COUNT_OFF_LOOP
        began = fl_monotonic_ns()
        with gil:
            try:
                view = PyMemoryView_FromMemory(<char*>data, <Py_ssize_t>size, PyBUF_READ)
                if record == NULL:
                    found = self.services.count_deep_small(view, c.name)
                else:
                    found, record[0] = self.services.check_batch_small(view, c.name)
            except Exception as error:
                self.services.unexpected(error)
                found = COUNT_REFUSED
        self.spent_ns += fl_monotonic_ns() - began
        return found

    cdef void count(self, Conn* c, CountJob* job, size_t at, size_t size, bint is_batch) noexcept nogil:
        """Have a thread do the same with the sets, or the batch, among the request's bytes, however large."""
        job.is_batch = is_batch
        job.record = -1
        self.helper.ask(c, &job.job, do_count, <void*>self, QUEUE_CHECK, at, size)

    cdef void convert(self, Conn* c, RecordsJob* job, size_t at, size_t size, int64_t time_ms, int64_t most) noexcept nogil:
        """Have a thread make batches of at most ``most`` bytes of the set among the request's bytes."""
        job.state = RECORDS_REFUSED
        job.made = NULL
        job.time_ms, job.most = time_ms, most
        self.helper.ask(c, &job.job, do_convert, <void*>self, QUEUE_CHECK, at, size)

    cdef void create(self, Conn* c, CreateJob* job, size_t at, size_t size, int32_t partition) noexcept nogil:
        """Have a thread make a partition, since that waits for the disk; the topic's name is among the request's bytes."""
        job.partition = partition
        self.helper.ask(c, &job.job, do_create, <void*>self, QUEUE_CREATE, at, size)
        job.job.looks = True

    cdef void answer(self, Conn* c, AnswerJob* job, Answering answering, int queue, size_t at, size_t size) noexcept nogil:
        """Have the thread of a queue make the answer to the request's bytes."""
        job.state = ANSWER_NONE
        job.answer = NULL
        self.helper.ask(c, &job.job, do_answer, <void*>answering, queue, at, size)
        job.job.looks = True
        # what makes files is done for whoever asks later, too
        job.job.for_answer = queue != QUEUE_CREATE

    # -- the threads' side ---------------------------------------------------------------------------------------------

    cdef bint count_step(self, CountJob* job) noexcept with gil:
        try:
            view = PyMemoryView_FromMemory(<char*>job.job.data, <Py_ssize_t>job.job.size, PyBUF_READ)
            name = job.job.conn.name
            check = self.services.check_batch if job.is_batch else self.services.count_deep
            found = check(view, name, self.begun.pop(name, None))
            if isinstance(found, int):
                job.count = found
                return False
            if isinstance(found, tuple):
                job.count, job.record = found
                return False
            self.begun[name] = found
            return True
        except BaseException as error:
            job.count = COUNT_REFUSED
            self.services.unexpected(error)
            return False

    cdef bint convert_step(self, RecordsJob* job) noexcept with gil:
        cdef Py_ssize_t size
        try:
            view = PyMemoryView_FromMemory(<char*>job.job.data, <Py_ssize_t>job.job.size, PyBUF_READ)
            name = job.job.conn.name
            found = self.services.make_batches(view, name, self.begun.pop(name, None), job.time_ms, job.most)
            if isinstance(found, int):
                job.state = found
                return False
            if not isinstance(found, tuple):
                self.begun[name] = found
                return True
            made, job.count = found
            size = len(<bytes>made)
            job.made = <uint8_t*>malloc(size)
            if job.made != NULL:
                memcpy(job.made, <char*>(<bytes>made), size)
                job.size = size
                job.state = RECORDS_MADE
        except BaseException as error:
            job.state = RECORDS_REFUSED
            self.services.unexpected(error)
        return False

    cdef void create_step(self, CreateJob* job) noexcept with gil:
        try:
            job.made = self.services.create_partition(<bytes>job.job.data[:job.job.size], job.partition)
        except BaseException as error:
            job.made = CREATE_FAILED
            self.services.unexpected(error)


cdef class Answering:
    """``make(bytes, queue, client)`` gives the answer to a request, False when it should be asked again after a wake-up,
    True when it has done a step and goes on in the next, None when there is no answer.
    """

    def __cinit__(self, Jobs jobs, make):
        self.jobs = jobs
        self.make = make
        jobs.helper.keep(self)

    cdef bint step(self, AnswerJob* job) noexcept with gil:
        cdef Py_ssize_t size
        job.state = ANSWER_NONE
        try:
            made = self.make(
                <bytes>job.job.data[:job.job.size], job.job.queue, self.jobs.authorizer.client(job.job.conn)
            )
            if made is True:
                return True
            if made is False:
                job.state = ANSWER_AGAIN
            elif made is not None:
                size = len(<bytes>made)
                job.answer = <uint8_t*>malloc(size)
                if job.answer != NULL:
                    memcpy(job.answer, <char*>(<bytes>made), size)
                    job.size = size
                    job.state = ANSWER_MADE
        except BaseException as error:
            job.state = ANSWER_NONE
            self.jobs.services.unexpected(error)
        return False

"""The memory that the processes of a broker share: one sparse ``memfd``, made at each start and never reused.

The layout, and who may write which word, stand in ``_arena.h``. This module makes the memory and has what belongs to
processes: their places, wake-ups and cells with the counters. Partitions have their slots in ``_arena``.
"""

cimport cython
from libc.stdint cimport int16_t, uint64_t
from libc.stdlib cimport calloc, free

from fastlog.log._layout cimport (
    FL_ACCEPTOR, FL_ARENA_MAGIC, FL_ARENA_VERSION, FL_COORDINATOR, FL_COUNTERS, FL_FIRST_PROCESSOR, FL_FLUSHER, FL_HEADER_PAGE,
    FL_KEEPER, FL_KEYS, FL_MAX_PROCESSES, FL_OTHER_REFUSALS, FL_REFUSALS, FL_SEEN_ALL, FL_SLOT_PAGE, FL_SPARE_SLOTS,
    FL_STAGE_COORDINATOR, FL_STAGE_FLUSHER, FL_STAGE_KEEPER, FL_STAGE_PROCESSORS, FL_SUPERVISOR, FL_TABLE_WORDS,
    fl_block_owner, fl_bump, fl_cell, fl_cell_at, fl_header, fl_is_reserved, fl_load, fl_monotonic_ns, fl_mutex_init,
    fl_producer_block, fl_refused, fl_set_stopping, fl_store, fl_wake, fl_wake_taken,
)

import os

from fastlog.errors import LogError

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void*, size_t, int, int, int, long)
    int munmap(void*, size_t)
    int PROT_READ, PROT_WRITE, MAP_SHARED
    void* MAP_FAILED
    int memfd_create(const char*, unsigned int)
    unsigned int MFD_CLOEXEC, MFD_ALLOW_SEALING

cdef extern from "<fcntl.h>" nogil:
    int fcntl(int, int, ...)
    int F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int, int)
    int EFD_NONBLOCK, EFD_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    int ftruncate(int, long)
    int close(int)

FLUSH_BUCKETS_US = (250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000)
COUNTERS = (
    "produce_requests", "fetch_requests", "offsets_requests", "own_requests", "failed_produce_requests",
    "failed_fetch_requests", "messages_in", "bytes_in", "bytes_out", "received_bytes", "sent_bytes",
    "too_large_messages", "invalid_requests", "invalid_messages", "idle_closed", "append_waits", "lock_waits",
    "suspicious_messages", "appends", "repairs", "rolls", "over_budget_waits", "held_fetches", "inflated_off_loop",
    "read_ahead", "protocol_strangers", "short_sends_closed", "flushes", "flush_failures",
    "flushes_without_room", "flushes_without_files", "flush_ns", "flushed_bytes", "rewritten_bytes", "handovers",
    "accept_pauses", "refused_connections", "read_failures", "kafka_requests",
    "duplicate_batches", "out_of_sequence_batches", "producers_forgotten_early", "fetch_looks", "zookeeper_sessions",
    "zookeeper_registrations", "zookeeper_failures", *(f"flushes_within_{us}_us" for us in FLUSH_BUCKETS_US),
)
assert len(COUNTERS) <= FL_COUNTERS
COUNTER_NUMBER = {name: number for number, name in enumerate(COUNTERS)}

FLUSHER = FL_FLUSHER
KEEPER = FL_KEEPER
ACCEPTOR = FL_ACCEPTOR
COORDINATOR = FL_COORDINATOR
FIRST_PROCESSOR = FL_FIRST_PROCESSOR
SUPERVISOR = FL_SUPERVISOR
STAGE_PROCESSORS = FL_STAGE_PROCESSORS
STAGE_COORDINATOR = FL_STAGE_COORDINATOR
STAGE_FLUSHER = FL_STAGE_FLUSHER
STAGE_KEEPER = FL_STAGE_KEEPER
MAX_PROCESSORS = FL_SUPERVISOR - FL_FIRST_PROCESSOR
PRODUCER_BLOCKS = 4096
"""Of 16 producers of one partition each, 7 kB where they are used."""
PRODUCER_EXPIRY_MS = 86_400_000


@cython.no_gc_clear  # others ask it in their __dealloc__
cdef class SharedMemory:
    """What of the arena belongs to no partition: its pages, how processes wake and watch each other, how far a stop has come."""

    def __cinit__(self):
        self.header = NULL
        self.fd = -1
        self.directories = NULL

    def __init__(self, log_dirs, int processes, int max_partitions, int table_entries, uint64_t producer_blocks=PRODUCER_BLOCKS,
                 uint64_t producer_expiry_ms=PRODUCER_EXPIRY_MS):
        """Map a new arena.

        Args:
            log_dirs: the log directories, in the order slots name them.
            processes: how many places for processes it has, those of the flusher, keeper, acceptor and coordinator and
                those that are reserved included.
            max_partitions: the number of slots; memory is taken only as slots are used.
            table_entries: segments a partition can hold; rounded up to a power of two.
            producer_blocks: how many blocks of entries all partitions share for producers that number their batches.
            producer_expiry_ms: after so long without a batch such a producer is one that nobody knows.

        Raises:
            LogError: the kernel gives no memory.
        """
        if not FL_FIRST_PROCESSOR < processes <= FL_SUPERVISOR:
            raise LogError(f"a broker has 1 to {MAX_PROCESSORS} processors")
        cdef uint64_t entries = 16
        while entries < <uint64_t>table_entries:
            entries *= 2
        cdef uint64_t slot_bytes = FL_SLOT_PAGE + FL_TABLE_WORDS * 8 * entries
        cdef uint64_t dirty_offset = FL_HEADER_PAGE
        cdef uint64_t bitmap_bytes = (<uint64_t>max_partitions + FL_SPARE_SLOTS + 63) // 64 * 8
        cdef uint64_t moved_offset = dirty_offset + (bitmap_bytes + 4095) // 4096 * 4096
        cdef uint64_t cells_offset = moved_offset + (bitmap_bytes * <uint64_t>processes + 4095) // 4096 * 4096
        cdef uint64_t slots_offset = cells_offset + (sizeof(fl_cell) * FL_MAX_PROCESSES + 4095) // 4096 * 4096
        cdef uint64_t slots = <uint64_t>max_partitions + FL_SPARE_SLOTS
        cdef uint64_t producers_offset = slots_offset + slot_bytes * slots
        cdef uint64_t total = producers_offset + (sizeof(fl_block_owner) + sizeof(fl_producer_block)) * producer_blocks
        self.fd = memfd_create("fastlog-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING)
        if self.fd < 0 or ftruncate(self.fd, <long>total) != 0:
            raise LogError(f"the kernel gives no shared memory of {total} bytes")
        # sealed, so that no process can shrink it under another one's feet (that would be a SIGBUS)
        fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        cdef void* memory = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, self.fd, 0)
        if memory == MAP_FAILED:
            raise LogError(f"cannot map {total} bytes of shared memory")
        cdef fl_header* h = <fl_header*>memory
        h.magic = FL_ARENA_MAGIC
        h.version = FL_ARENA_VERSION
        h.max_partitions = <unsigned int>slots
        h.table_entries = <unsigned int>entries
        h.processes = processes
        h.slot_bytes = slot_bytes
        h.dirty_offset = dirty_offset
        h.moved_offset = moved_offset
        h.cells_offset = cells_offset
        h.slots_offset = slots_offset
        h.total_bytes = total
        h.producers_offset = producers_offset
        h.producer_blocks = producer_blocks
        h.producer_expiry_ms = producer_expiry_ms
        if fl_mutex_init(&h.create_lock) != 0:
            raise LogError("the system has no robust process-shared mutexes")
        self.header = h
        cdef int i
        for i in range(FL_MAX_PROCESSES):
            self.eventfds[i] = -1
            fl_cell_at(h, i).seen = FL_SEEN_ALL
        for i in range(processes):
            if fl_is_reserved(i):
                continue
            self.eventfds[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
            if self.eventfds[i] < 0:
                raise LogError("no descriptor left for the wake-up of a process")
        self._directory_bytes = [os.fsencode(os.path.abspath(path)) for path in log_dirs]
        self.directories = <char**>calloc(len(self._directory_bytes), sizeof(char*))
        if self.directories == NULL:
            raise MemoryError
        for i in range(len(self._directory_bytes)):
            self.directories[i] = self._directory_bytes[i]

    def __dealloc__(self):
        cdef int i
        if self.header != NULL:
            munmap(self.header, self.header.total_bytes)
            for i in range(FL_MAX_PROCESSES):
                if self.eventfds[i] >= 0:
                    close(self.eventfds[i])
        if self.fd >= 0:
            close(self.fd)
        free(self.directories)

    @property
    def log_dirs(self):
        return [os.fsdecode(path) for path in self._directory_bytes]

    @property
    def processes(self):
        return self.header.processes

    @property
    def other_broker(self):
        cdef uint64_t found = fl_load(&self.header.other_broker)
        return <object>None if found == 0 else found - 1

    def set_other_broker(self, broker):
        """Say that ZooKeeper shows another broker, by its id, or None; the keeper alone calls it."""
        fl_store(&self.header.other_broker, 0 if broker is None else <uint64_t>broker + 1)

    @property
    def stopping(self):
        return fl_load(&self.header.stopping)

    def set_stopping(self, int stage):
        """Tell every process how far the stop has come: one of the ``STAGE_`` numbers."""
        fl_set_stopping(self.header, self.eventfds, stage)

    @property
    def ending(self):
        return bool(fl_load(&self.header.ending))

    def set_ending(self):
        fl_store(&self.header.ending, 1)

    def set_stalled(self, uint64_t now_ns):
        fl_store(&self.header.stalled_ns, now_ns)

    def eventfd(self, int process):
        return self.eventfds[process]

    def wake(self, int process):
        fl_wake(self.header, self.eventfds, process)

    def wake_all(self):
        cdef unsigned int i
        for i in range(self.header.processes):
            if not fl_is_reserved(i):
                fl_wake(self.header, self.eventfds, i)

    def wake_taken(self, int process):
        """Take the wake-ups of ``process`` (itself); call it before looking at the shared words."""
        fl_wake_taken(self.header, self.eventfds, process)

    # -- process cells -------------------------------------------------------------------------------------------

    def clear_cell(self, int process, uint64_t pid, uint64_t now_ns):
        """Begin a process's cell afresh (the supervisor, right after it started the process).

        Counters go on; ``holding`` stays for the successor, who finishes the append it names.
        """
        cdef fl_cell* c = fl_cell_at(self.header, process)
        fl_store(&c.heartbeat_ns, now_ns)
        fl_store(&c.busy_permille, 0)
        fl_store(&c.connections, 0)
        fl_store(&c.disk_ns, 0)
        fl_store(&c.pid, pid)

    def incarnation(self, int process):
        """How many processes in this place have died; what they sent, or were sent, is void."""
        return fl_load(&fl_cell_at(self.header, process).incarnation)

    def end_incarnation(self, int process):
        """Say that the process in this place has died (the supervisor, before it starts a successor).

        It may have moved a slot and not come to say so: waiters for any are to be woken, and to look at all of them.
        """
        cdef fl_cell* c = fl_cell_at(self.header, process)
        fl_store(&c.incarnation, c.incarnation + 1)
        fl_store(&self.header.moves_lost, self.header.moves_lost + 1)

    def beat(self, int process):
        """Say that ``process`` (itself) is alive, now."""
        fl_store(&fl_cell_at(self.header, process).heartbeat_ns, fl_monotonic_ns())

    def disk_since(self, int process):
        """Monotonic time when this process began to wait for a disk; 0: it does not."""
        return fl_load(&fl_cell_at(self.header, process).disk_ns)

    def cell(self, int process):
        """``(pid, heartbeat_ns, busy_permille, connections, holding)`` of one process."""
        cdef fl_cell* c = fl_cell_at(self.header, process)
        return (fl_load(&c.pid), fl_load(&c.heartbeat_ns), fl_load(&c.busy_permille), fl_load(&c.connections),
                fl_load(&c.holding))

    def counters(self, int process):
        """The counters of one process by name; they survive the process."""
        cdef fl_cell* c = fl_cell_at(self.header, process)
        return {name: fl_load(&c.counters[number]) for number, name in enumerate(COUNTERS)}

    def count(self, int process, str name, uint64_t by=1):
        """Add to a counter of ``process`` (itself)."""
        fl_bump(&fl_cell_at(self.header, process).counters[COUNTER_NUMBER[name]], by)

    def requests(self, int process):
        """How often a process has been asked with each api key of today's protocol, of those that it was asked with."""
        cdef fl_cell* c = fl_cell_at(self.header, process)
        cdef int key
        return {key: fl_load(&c.requests[key]) for key in range(FL_KEYS) if fl_load(&c.requests[key])}

    def refusals(self, int process):
        """How often a process has answered an error to such a request: by api key and code.

        Those that it had no place for stand under None.
        """
        cdef fl_cell* c = fl_cell_at(self.header, process)
        cdef uint64_t what
        cdef int i
        found = {}
        for i in range(FL_REFUSALS):
            what = fl_load(&c.refusals[i].what)
            if what == 0:
                break
            name = None if what == FL_OTHER_REFUSALS else (<int>((what - 1) >> 16), <int><int16_t>(what - 1))
            found[name] = fl_load(&c.refusals[i].count)
        return found

    def count_refusal(self, int process, int key, int code):
        """Count an error that ``process`` (itself) answers to a request of today's protocol."""
        fl_refused(fl_cell_at(self.header, process), key, code)

    def handed_over(self, int process):
        return fl_load(&fl_cell_at(self.header, process).handed_over)

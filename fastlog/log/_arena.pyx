"""The arena: one sparse ``memfd`` that the processes of a broker share, made at each start and never reused.

The layout, and who may write which word, stand in ``_arena.h``. This module makes the memory, hands out slots, and
shows them to Python; what moves the words lives in ``_append`` (log end, table), ``_flush`` (flushed and visible end) and
``retention`` (log start).
"""

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from fastlog.log._files cimport (
    AT_CREATE_LIVES, AT_CREATE_PUBLISHED, AT_CREATE_SLOT, AT_LEAVING_READ, AT_RETENTION_START, AT_RETENTION_UNLINKED,
    AT_RETURN_ELSEWHERE, AT_RETURN_REVIVED, AT_SEGMENTS_READ,
    AT_SEGMENTS_TAIL, AT_VIEW_ENDS, failpoint,
)
from fastlog.log._producers cimport Hints, forget_producers, put_producer, version_at

import os
from typing import NamedTuple

from fastlog.errors import LogError, PartitionGoneError

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
STATE_READ_ONLY = FL_STATE_READ_ONLY
STATE_OFFLINE = FL_STATE_OFFLINE
STATE_NO_FLUSH = FL_STATE_NO_FLUSH
WHY_START = FL_WHY_START
WHY_NAME = FL_WHY_NAME
WHY_ROOM = FL_WHY_ROOM
WHY = {
    FL_WHY_START: "found damaged at start",
    FL_WHY_FLUSH: "a flush failed",
    FL_WHY_CUT: "cutting back a failed write failed",
    FL_WHY_REPAIR: "repair after a dead process failed",
    FL_WHY_CHECK: "bytes whose flush was lost could not be read back as they were written",
    FL_WHY_NAME: "a file with the name of the next segment already holds bytes",
    FL_WHY_ROOM: "the disk was full at start",
}


MAX_MS = 2**63 - 1


class SlotView(NamedTuple):
    """What one partition's slot said at one moment; words of different writers may be a moment apart.

    ``*_end`` are positions, with the offset and the count of messages that belong to each; starts are offsets:
    ``log_start`` where readers begin, ``kept_start`` what is written down of it, ``wanted_start`` what is to be.
    """

    index: int
    life: int
    topic: str
    partition: int
    directory: int
    format: int
    created_ms: int
    log_start: int
    flushed_end: int
    flushed_offset: int
    visible_end: int
    visible_offset: int
    log_end: int
    log_offset: int
    state: int
    table_head: int
    table_tail: int
    appended_messages: int
    flushed_messages: int
    dir_synced_tail: int
    unflushed_since_ns: int
    epoch: int
    topic_id: bytes
    retention_ms: int
    retention_bytes: int | None
    max_message_bytes: int
    append_time: bool
    kept_start: int
    wanted_start: int
    settled: bool


class Leaving(NamedTuple):
    """A partition that has gone, whose files may still be there."""

    index: int
    topic: str
    partition: int
    directory: int


class IndexState(NamedTuple):
    """What the end of a log says of the newest segment's indexes; the words stand in ``fl_end`` (``_arena.h``)."""

    unindexed: int = 0
    index_entries: int = 0
    time_entries: int = 0
    indexed_ms: int = 0
    largest_ms: int = 0
    largest_offset: int = 0


class Numbered(NamedTuple):
    """A batch that its producer has numbered: last number, offset of its first record, records less one, time."""

    last_sequence: int
    offset: int
    delta: int
    time_ms: int


class ProducerState(NamedTuple):
    """What a partition knows of a producer: its last batches, oldest first, how long ago it was heard of, and where
    its open transaction begins."""

    id: int
    epoch: int
    batches: tuple[Numbered, ...]
    age_ms: int = 0
    open_offset: int | None = None


PRODUCER_BLOCKS = 4096
"""Of 16 producers of one partition each, 7 kB where they are used."""
PRODUCER_EXPIRY_MS = 86_400_000


class SlotSettings(NamedTuple):
    """What the configuration of its topic says of a partition; it may change while the partition is there."""

    segment_bytes: int
    roll_ms: int
    flush_messages: int
    flush_bytes: int
    flush_ns: int
    retention_ms: int
    retention_bytes: int | None
    max_message_bytes: int
    append_time: bool


class SlotSpec(NamedTuple):
    """What a new slot is made of: the partition, where it lies, its segments, its limits."""

    topic: str
    partition: int
    directory: int
    format: int
    created_ms: int
    segment_bytes: int
    roll_ms: int
    flush_messages: int
    flush_bytes: int
    flush_ns: int
    segments: list[tuple[int, int, int]]  # (base offset, first append ms, last append ms)
    log_end: int  # the offset of the next message
    state: int = 0
    durable: bool = True  # the directory entries of segments and partition have been synced
    flushed_base: int | None = None  # what the flushed mark on the disk names
    starts: list[int] | None = None  # positions of the segments and of the log end; None where offsets are positions
    indexes: IndexState = IndexState()
    epoch: int = 0
    topic_id: bytes = bytes(16)
    retention_ms: int = MAX_MS
    retention_bytes: int | None = None
    max_message_bytes: int = 0
    append_time: bool = False
    producers: tuple[ProducerState, ...] = ()
    log_start: int = 0  # what is written down; the log begins there, or at its first segment where that is later
    settled: bool = True  # it is written down that the partition is there, or nobody writes that down


class Segment(NamedTuple):
    """One entry of a segment table: index (never reused), base offset, times of its first and last append, position.

    While it is empty, the last time is 0 and the first one that of its making (0: unknown). ``start`` is the position
    of its first byte: what lies between two of them, or one and an end, are bytes of its file.
    """

    index: int
    base: int
    first_ms: int
    last_ms: int
    start: int


cdef int set_settings(fl_slot* s, spec) except -1:
    """What the configuration of its topic says of a partition. Each word holds by itself: others may read them meanwhile."""
    fl_store(&s.segment_bytes, spec.segment_bytes)
    fl_store(&s.roll_ms, spec.roll_ms)
    fl_store(&s.flush_messages, spec.flush_messages)
    fl_store(&s.flush_bytes, spec.flush_bytes)
    fl_store(&s.flush_ns, spec.flush_ns)
    fl_store(&s.retention_ms, spec.retention_ms)
    fl_store(&s.retention_bytes, FL_NO_LIMIT if spec.retention_bytes is None else spec.retention_bytes)
    s.max_message_bytes = spec.max_message_bytes
    s.append_time = spec.append_time
    return 0


cdef void copy_settings(fl_slot* s, const fl_slot* like) noexcept:
    s.segment_bytes = like.segment_bytes
    s.roll_ms = like.roll_ms
    s.flush_messages = like.flush_messages
    s.flush_bytes = like.flush_bytes
    s.flush_ns = like.flush_ns
    s.retention_ms = like.retention_ms
    s.retention_bytes = like.retention_bytes
    s.max_message_bytes = like.max_message_bytes
    s.append_time = like.append_time


cdef int load_producers(fl_header* h, fl_slot* s, rows) except -1:
    """What a log that was recovered says of producers; those that were heard of last are loaded last, and stay."""
    cdef fl_producer state
    cdef Hints hints
    cdef uint64_t age, now = fl_used_now_ms()
    cdef uint32_t i
    memset(&hints, 0, sizeof(hints))
    for row in sorted(rows, key=lambda row: -row.age_ms):
        kept = row.batches[-<int>FL_KEPT_BATCHES:]
        memset(&state, 0, sizeof(state))
        state.id = row.id
        state.epoch = row.epoch
        state.count = len(kept)
        state.open = 0 if row.open_offset is None else row.open_offset + 1
        for i in range(state.count):
            state.batches[i].last_sequence, state.batches[i].offset, state.batches[i].delta, state.batches[i].time = kept[i]
        age = min(row.age_ms, FL_USED_ORIGIN_MS)
        put_producer(h, s, &hints, &state, now - age)
    return 0


@cython.no_gc_clear  # others ask it in their __dealloc__
cdef class Arena:
    """The shared memory of one broker. Made once by the supervisor; every child inherits it through fork."""

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

    cdef fl_slot* slot(self, uint64_t index) except NULL:
        if index >= fl_load(&self.header.slot_count):
            raise IndexError(f"no partition slot {index}")
        return fl_slot_at(self.header, index)

    @property
    def log_dirs(self):
        return [os.fsdecode(path) for path in self._directory_bytes]

    @property
    def processes(self):
        return self.header.processes

    @property
    def max_partitions(self):
        return self.header.max_partitions - FL_SPARE_SLOTS

    @property
    def slots(self):
        return self.header.max_partitions

    @property
    def table_entries(self):
        return self.header.table_entries

    @property
    def slot_count(self):
        return fl_load(&self.header.slot_count)

    @property
    def retention_generation(self):
        return fl_load(&self.header.retention_generation)

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

    def create_lock(self):
        """Try for the lock of partition creation; ``True`` when held. A dead owner's lock is taken over."""
        cdef int r = pthread_mutex_trylock(&self.header.create_lock)
        if r == EOWNERDEAD:
            # a life is stored last, so what a dead owner left behind is at most a half-written slot that nobody sees, and one
            # that lives, or does not any more, and that nobody was told of
            fl_announce_all(self.header)
            pthread_mutex_consistent(&self.header.create_lock)
            return True
        return r == 0

    def create_unlock(self):
        pthread_mutex_unlock(&self.header.create_lock)
        fl_wake_waiters(self.header, self.eventfds, &self.header.create_waiters)

    def wake_creators(self):
        """Wake whoever waits for a partition to appear or to go."""
        fl_wake_waiters(self.header, self.eventfds, &self.header.create_waiters)

    def wait_for_creation(self, int process):
        """Ask to be woken when the creation lock is released or a partition appears; look again afterwards."""
        fl_ask(&self.header.create_waiters, 1ULL << process)

    cdef fl_slot* take_free_slot(self):
        """A slot whose partition has gone, with its append lock; NULL when there is none."""
        cdef fl_header* h = self.header
        cdef uint64_t index
        cdef fl_slot* s
        cdef bint busy = False
        cdef int r
        if h.free_count == 0:
            return NULL
        for index in range(h.slot_count):
            s = fl_slot_at(h, index)
            if fl_lives(s) or s.leaving:
                continue
            r = pthread_mutex_trylock(&s.lock)
            if r == EOWNERDEAD:
                r = pthread_mutex_consistent(&s.lock)
            if r == 0:
                h.free_count -= 1
                return s
            busy = True  # somebody comes too late with an append, and goes at once
        if not busy:
            h.free_count = 0
        return NULL

    cdef fl_slot* take_new_slot(self, bint spare) except NULL:
        """The first slot that was never used, with its append lock."""
        cdef fl_header* h = self.header
        cdef fl_slot* s
        if h.slot_count >= (h.max_partitions if spare else h.max_partitions - FL_SPARE_SLOTS):
            raise LogError(f"all {self.max_partitions} partition slots are taken: raise max.partitions and start again")
        s = fl_slot_at(h, h.slot_count)
        memset(s, 0, sizeof(fl_slot))
        if fl_mutex_init(&s.lock) != 0 or pthread_mutex_trylock(&s.lock) != 0:
            raise LogError("the system has no robust process-shared mutexes")
        s.index = h.slot_count
        return s

    @property
    def room(self):
        """How many partitions more may be made, at most; the creation lock makes it exact."""
        return max(0, self.max_partitions - self.header.slot_count + fl_load(&self.header.free_count))

    def add(self, spec, bint spare=False, like=None):
        """Write a partition into a slot and publish it; the caller holds the creation lock. Returns the slot's index.

        ``spare``: one of the spare slots may be taken, for a partition that has been there and whose own slot is free soon.
        ``like``: the slot whose settings hold, instead of those of ``spec``.

        Raises:
            LogError: every slot is taken, or the partition has more segments than a table holds.
        """
        cdef fl_header* h = self.header
        cdef bytes name = spec.topic.encode()
        if len(name) > FL_NAME_BYTES:
            raise LogError("topic name too long", found=len(name), expected=FL_NAME_BYTES)
        cdef bytes topic_id = spec.topic_id
        if len(topic_id) != 16:
            raise LogError("a topic id that is not of 16 bytes", found=len(topic_id), expected=16)
        if not spec.segments or len(spec.segments) > h.table_entries:
            raise LogError(
                f"{spec.topic}-{spec.partition} has {len(spec.segments)} segments: raise max.segments.per.partition "
                f"(now {h.table_entries}) and start again"
            )
        cdef fl_slot* s = NULL
        if spare or self.room:
            s = self.take_free_slot()
        if s == NULL:
            s = self.take_new_slot(spare)
        # positions and table indexes go on where the last life ended; of a slot that is used first that is 0
        cdef uint64_t origin = s.log_end, index = s.index, i = s.table_tail
        cdef fl_end end
        s.partition = spec.partition
        s.directory = spec.directory
        s.name_bytes = len(name)
        s.format = spec.format
        s.created_ms = spec.created_ms
        if like is not None:
            copy_settings(s, self.slot(like))
        else:
            set_settings(s, spec)
        s.epoch = spec.epoch
        memcpy(s.topic_id, <char*>topic_id, 16)
        memcpy(s.name, <char*>name, len(name))
        s.table_head = i
        starts = spec.starts or [*(base for base, _, _ in spec.segments), spec.log_end]
        for (base, first_ms, last_ms), start in zip(spec.segments, starts):
            fl_base_at(h, s, i)[0] = base
            fl_start_at(h, s, i)[0] = origin + <uint64_t>start
            fl_generation_at(h, s, i)[0] = 0
            fl_first_ms_at(h, s, i)[0] = first_ms
            fl_last_ms_at(h, s, i)[0] = last_ms
            i += 1
        s.table_tail = i
        end.position = origin + <uint64_t>starts[len(spec.segments)]
        end.offset = spec.log_end
        end.messages = 0
        state = spec.indexes
        end.unindexed, end.index_entries, end.time_entries = state.unindexed, state.index_entries, state.time_entries
        end.indexed_ms, end.largest_ms, end.largest_offset = state.indexed_ms, state.largest_ms, state.largest_offset
        for i in range(2):
            s.log_ends[i].position = s.flushed_ends[i].position = s.visible_ends[i].position = FL_NO_POSITION
        fl_end_publish(&s.log_end, s.log_ends, &end)
        fl_end_publish(&s.flushed_end, s.flushed_ends, &end)
        fl_end_publish(&s.visible_end, s.visible_ends, &end)
        s.settled = spec.settled if like is None else fl_load(&self.slot(like).settled)
        s.kept_start = spec.log_start
        s.wanted_start = fl_load(&self.slot(like).wanted_start) if like is not None else 0
        s.log_start = max(<uint64_t>spec.segments[0][0], min(<uint64_t>spec.log_start, <uint64_t>spec.log_end))
        s.flushed_base = FL_NO_MARK if spec.flushed_base is None else spec.flushed_base
        s.state = spec.state
        if spec.state:
            s.state |= FL_STATE_NO_FLUSH | (0 if spec.state >> 8 else FL_WHY_START << 8)
        forget_producers(h, s)
        load_producers(h, s, spec.producers)
        fl_store(&s.sequenced, len(spec.producers) > 0)
        s.dirty_since_ns = s.torn = s.last_flush_ns = s.flush_in_progress = s.demand = 0
        s.dir_synced_tail = s.table_tail if spec.durable else s.table_head
        s.parent_synced = 1 if spec.durable else 0
        failpoint(AT_CREATE_SLOT)
        if index == h.slot_count:
            fl_store(&h.slot_count, index + 1)
        fl_store(&s.life, s.life + 1)
        failpoint(AT_CREATE_LIVES)
        pthread_mutex_unlock(&s.lock)
        fl_announce(h, index)
        failpoint(AT_CREATE_PUBLISHED)
        if not spec.durable:
            fl_mark_dirty(h, index)
        fl_wake_waiters(h, self.eventfds, &h.create_waiters)
        return index

    def producers(self, uint64_t index):
        """What one slot says of producers, as ``ProducerState`` rows by id; for tests, while nobody appends."""
        cdef fl_slot* s = self.slot(index)
        cdef fl_header* h = self.header
        cdef uint64_t block, now = fl_used_now_ms()
        entries = list(range(FL_OWN_PRODUCERS))
        for block in range(h.producer_blocks):
            if fl_load(&fl_owner_at(h, block).owner) == index + 1:
                first = FL_OWN_PRODUCERS + block * FL_BLOCK_PRODUCERS
                entries += range(first, first + FL_BLOCK_PRODUCERS)
        cdef fl_producer* state
        rows = []
        for entry in entries:
            state = version_at(fl_producers_at(h, s, entry), fl_load(&s.log_end))
            if state == NULL or fl_key_at(h, s, entry).id == 0:
                continue
            kept = tuple(
                Numbered(state.batches[i].last_sequence, state.batches[i].offset, state.batches[i].delta, state.batches[i].time)
                for i in range(state.count)
            )
            age = max(0, <int64_t>(now - fl_key_at(h, s, entry).used_ms))
            rows.append(ProducerState(state.id, state.epoch, kept, age, state.open - 1 if state.open else None))
        return sorted(rows)

    def producer_ends(self, uint64_t index):
        """The positions behind the batches that ``producers`` tells of, by producer; for tests."""
        cdef fl_slot* s = self.slot(index)
        cdef fl_producer* state
        ends = {}
        for entry in range(FL_OWN_PRODUCERS):
            state = version_at(fl_producers_at(self.header, s, entry), fl_load(&s.log_end))
            if state != NULL:
                ends[state.id] = [state.batches[i].end for i in range(state.count)]
        return ends

    @property
    def producer_blocks_taken(self):
        """How many blocks of the pool are some slot's."""
        cdef uint64_t block
        return sum(fl_load(&fl_owner_at(self.header, block).owner) != 0 for block in range(self.header.producer_blocks))

    def sequenced(self, uint64_t index):
        """Whether the log of a slot has batches of producers that number them, as far as that is known."""
        return bool(fl_load(&self.slot(index).sequenced))

    @property
    def largest_producer(self):
        """The largest producer id that was met in a log which was recovered; -1: none."""
        return <int64_t>fl_load(&self.header.largest_producer) - 1

    def meet_producer(self, int64_t producer):
        """Such an id was met; by the supervisor before it forks, then by the keeper alone."""
        if producer + 1 > <int64_t>self.header.largest_producer:
            fl_store(&self.header.largest_producer, <uint64_t>producer + 1)

    # -- lives ---------------------------------------------------------------------------------------------------

    @property
    def change_count(self):
        """How many lives of slots have begun or ended so far."""
        return fl_load(&self.header.change_count)

    def changed(self, uint64_t seen):
        """``(change_count, slots whose lives began or ended since)`` it was ``seen``; None: any slot may have."""
        cdef uint64_t[FL_CHANGES] slots
        cdef uint64_t now
        cdef int n = fl_changed(self.header, seen, &now, slots)
        return now, (None if n < 0 else [slots[i] for i in range(n)])

    def see(self, int process, uint64_t change_count):
        """Say that ``process`` (itself) looks with none of its threads at a slot as it was before these changes."""
        fl_store(&fl_cell_at(self.header, process).seen, change_count)

    def seen(self, int process):
        """The changes that ``process`` is past with all its threads."""
        return fl_load(&fl_cell_at(self.header, process).seen)

    def see_all(self, int process):
        """Say that nobody is in the place of ``process`` (the supervisor, before it starts somebody there)."""
        fl_store(&fl_cell_at(self.header, process).seen, FL_SEEN_ALL)

    def want_deletion(self):
        """Have the keeper look for wishes that a topic be deleted."""
        fl_add(&self.header.deletions_wanted, 1)
        fl_wake(self.header, self.eventfds, FL_KEEPER)

    def want_start(self, uint64_t index, uint64_t offset):
        """Let a partition begin at an offset that is visible, for readers at once; the keeper writes it down and drops what is
        before it. For a process that is not past the partition's life.
        """
        fl_raise(&self.slot(index).wanted_start, offset)
        fl_add(&self.header.starts_wanted, 1)
        fl_wake(self.header, self.eventfds, FL_KEEPER)

    def settle(self, uint64_t index):
        """Show a partition to clients of today: it is written down that it is there. The coordinator alone calls it."""
        fl_store(&self.slot(index).settled, 1)

    def change_settings(self, uint64_t index, uint64_t life, settings):
        """Give a partition other settings, unless it has gone. Under the creation lock: no slot is taken meanwhile."""
        cdef fl_slot* s = self.slot(index)
        if fl_load(&s.life) == life:
            set_settings(s, settings)

    @property
    def starts_wanted(self):
        """How often somebody has wanted a partition to begin later."""
        return fl_load(&self.header.starts_wanted)

    def unkept_starts(self):
        """The slots whose partitions are to begin at an offset that is not written down yet."""
        cdef uint64_t index
        cdef fl_slot* s
        rows = []
        for index in range(fl_load(&self.header.slot_count)):
            s = fl_slot_at(self.header, index)
            if fl_load(&s.wanted_start) > fl_load(&s.kept_start) and fl_lives(s):
                rows.append(index)
        return rows

    def publish_start(self, uint64_t index, uint64_t start):
        """Say that the start of one slot is written down, and let its log begin there; the keeper alone calls it."""
        cdef fl_slot* s = self.slot(index)
        cdef fl_end visible, flushed
        fl_end_read(&s.visible_end, s.visible_ends, &visible)
        fl_end_read(&s.flushed_end, s.flushed_ends, &flushed)
        if start > min(visible.offset, flushed.offset) or start < s.kept_start:
            raise LogError("a log start that is written down may only grow, up to what is flushed and visible", found=start)
        if start > s.log_start:
            fl_store(&s.log_start, start)
        fl_store(&s.kept_start, start)
        fl_wake_slot(self.header, self.eventfds, s)

    @property
    def deletions_wanted(self):
        """How often somebody has wanted a topic to be deleted."""
        return fl_load(&self.header.deletions_wanted)

    def leaving(self):
        """The partitions that have gone and whose slots are not free yet, as ``Leaving`` rows."""
        return self.ended(False)

    def returning(self):
        """The partitions whose lives have ended to be recovered, as ``Leaving`` rows."""
        return self.ended(True)

    cdef list ended(self, bint returns):
        cdef fl_slot* s
        cdef uint64_t index, change
        cdef char[FL_NAME_BYTES] name
        cdef uint32_t name_bytes
        rows = []
        for index in range(fl_load(&self.header.slot_count) if fl_load(&self.header.leaving_count) else 0):
            s = fl_slot_at(self.header, index)
            change = fl_load(&s.leaving)
            if change == 0 or fl_lives(s) or fl_load(&s.returns) != returns:
                continue
            name_bytes = min(s.name_bytes, <uint32_t>FL_NAME_BYTES)
            memcpy(name, s.name, name_bytes)
            place = s.partition, s.directory
            failpoint(AT_LEAVING_READ)
            fl_fence()
            if fl_load(&s.leaving) == change:  # else it is free by now, and may be another partition's
                rows.append(Leaving(index, (<bytes>name[:name_bytes]).decode(), *place))
        return rows

    def succeed(self, uint64_t index):
        """Let a partition that was to return leave this slot, because it lives in another one; under the creation lock."""
        cdef fl_slot* s = self.slot(index)
        if fl_lives(s) or s.returns == 0:
            raise LogError(f"slot {index} has no partition that is to return")
        fl_store(&s.leaving, self.header.change_count + 1)
        fl_store(&s.returns, 0)
        failpoint(AT_RETURN_ELSEWHERE)
        fl_announce(self.header, index)
        # whoever waits for the partition finds it in its new slot
        fl_wake_slot(self.header, self.eventfds, s)
        self.retention_done()

    def revive(self, uint64_t index):
        """Let a partition live on in this slot as it was, because it could not be recovered; under the creation lock."""
        cdef fl_slot* s = self.slot(index)
        if fl_lives(s) or s.returns == 0:
            raise LogError(f"slot {index} has no partition that is to return")
        fl_store(&s.life, s.life + 1)
        failpoint(AT_RETURN_REVIVED)
        fl_store(&s.returns, 0)
        fl_store(&s.leaving, 0)
        fl_store(&self.header.leaving_count, self.header.leaving_count - 1)
        fl_announce(self.header, index)
        fl_wake_slot(self.header, self.eventfds, s)
        self.wake_all()

    def is_past(self, uint64_t index):
        """Whether every process is past the end of this slot's life."""
        cdef uint64_t change = fl_load(&self.slot(index).leaving)
        cdef unsigned int i
        for i in range(self.header.processes):
            if fl_load(&fl_cell_at(self.header, i).seen) < change:
                return False
        return True

    def free(self, uint64_t index):
        """Let a slot be used again whose partition has gone; the caller holds the creation lock, and all are past it."""
        cdef fl_slot* s = self.slot(index)
        if fl_lives(s) or s.leaving == 0 or s.returns:
            raise LogError(f"slot {index} has no partition that has gone")
        forget_producers(self.header, s)
        # an owner of the lock that dies in between has both counted anew
        fl_store(&self.header.free_count, self.header.free_count + 1)
        fl_store(&s.leaving, 0)
        fl_store(&self.header.leaving_count, self.header.leaving_count - 1)

    def shown_view(self, uint64_t index):
        """The words of one slot as a ``SlotView``, None when it is no partition (any more). One that is to return is one:
        until then it is read as it was, and its life is even.

        Read in the order that keeps visible ≤ flushed ≤ log end.
        """
        cdef fl_slot* s = self.slot(index)
        cdef fl_end visible, flushed, end
        cdef uint64_t life = fl_load(&s.life)
        cdef uint64_t start
        cdef char[FL_NAME_BYTES] name
        cdef uint32_t name_bytes = min(s.name_bytes, <uint32_t>FL_NAME_BYTES)
        if not fl_is_shown(s):
            return None
        memcpy(name, s.name, name_bytes)
        start = fl_first_offset(s)
        fl_end_read(&s.visible_end, s.visible_ends, &visible)
        fl_end_read(&s.flushed_end, s.flushed_ends, &flushed)
        failpoint(AT_VIEW_ENDS)
        fl_end_read(&s.log_end, s.log_ends, &end)
        # By position: with names it takes three times as long, and whoever asks for all topics asks for all slots.
        row = (
            s.partition, s.directory, s.format, s.created_ms,
            start, flushed.position, flushed.offset, visible.position, visible.offset, end.position, end.offset,
            fl_load(&s.state), fl_load(&s.table_head), fl_load(&s.table_tail), end.messages, flushed.messages,
            fl_load(&s.dir_synced_tail), max(fl_load(&s.dirty_since_ns), fl_load(&s.last_flush_ns)),
            s.epoch, (<char*>s.topic_id)[:16], s.retention_ms,
            None if s.retention_bytes == FL_NO_LIMIT else s.retention_bytes, s.max_message_bytes, bool(s.append_time),
            fl_load(&s.kept_start), fl_load(&s.wanted_start), bool(fl_load(&s.settled)),
        )
        fl_fence()
        if fl_load(&s.life) != life or not fl_is_shown(s):
            return None
        return SlotView._make((index, life, (<bytes>name[:name_bytes]).decode(), *row))

    def live_view(self, uint64_t index):
        """The same, None also for one that is to return."""
        view = self.shown_view(index)
        return view if view is not None and view.life & 1 else None

    def view(self, uint64_t index):
        """The same for a partition that is there.

        Raises:
            PartitionGoneError: it is not any more.
        """
        view = self.live_view(index)
        if view is None:
            raise PartitionGoneError(f"the partition of slot {index} has been deleted")
        return view

    def views(self):
        """All partitions there are, as ``SlotView`` rows."""
        return [view for index in range(self.slot_count) if (view := self.live_view(index)) is not None]

    def segments(self, uint64_t index):
        """The segments of one slot that are still held, oldest first, as ``Segment`` rows.

        For who is not past the slot's life: of a slot that is used again meanwhile they would be another partition's.
        """
        cdef fl_slot* s = self.slot(index)
        cdef uint64_t i, tail
        while True:
            tail = fl_load(&s.table_tail)
            failpoint(AT_SEGMENTS_TAIL)
            rows = [
                Segment(i, fl_load(fl_base_at(self.header, s, i)), fl_load(fl_first_ms_at(self.header, s, i)),
                        fl_load(fl_last_ms_at(self.header, s, i)), fl_load(fl_start_at(self.header, s, i)))
                for i in range(fl_load(&s.table_head), tail)
            ]
            failpoint(AT_SEGMENTS_READ)
            fl_fence()
            head = fl_load(&s.table_head)
            # a table is never empty: when all that was read is gone, there is a newer tail
            if head < tail:
                return [row for row in rows if row.index >= head]

    def describe_state(self, uint64_t state):
        """One phrase for a slot's state word."""
        if not state & (FL_STATE_READ_ONLY | FL_STATE_OFFLINE):
            return "ok"
        text = "offline" if state & FL_STATE_OFFLINE else "read-only"
        text += f": {WHY.get((state >> 8) & 0xff, 'unknown reason')}"
        number = (state >> 16) & 0xffff
        text += f" ({os.strerror(number)})" if number else ""
        if state & FL_STATE_NO_FLUSH and (state >> 8) & 0xff in (FL_WHY_CUT, FL_WHY_REPAIR, FL_WHY_NAME):
            text += ", then a flush failed"
        return text

    def publish_retention(self, uint64_t index, uint64_t new_head, uint64_t new_start):
        """Move the log start of one slot up; the keeper alone calls it, and before it unlinks a file."""
        cdef fl_slot* s = self.slot(index)
        cdef fl_end visible, flushed
        fl_end_read(&s.visible_end, s.visible_ends, &visible)
        fl_end_read(&s.flushed_end, s.flushed_ends, &flushed)
        if new_start > min(visible.offset, flushed.offset) or new_start < s.log_start or new_head < s.table_head:
            raise LogError("log start may only grow, up to what is flushed and visible", found=new_start)
        fl_store(&s.log_start, new_start)
        failpoint(AT_RETENTION_START)
        fl_store(&s.table_head, new_head)
        fl_fence()

    def retention_done(self):
        """Tell every process to close descriptors of segments that are gone."""
        failpoint(AT_RETENTION_UNLINKED)
        fl_store(&self.header.retention_generation, self.header.retention_generation + 1)
        self.wake_all()

    def wait_for_end(self, uint64_t index, int process):
        """Ask to be woken when the flushed end, the visible end or the state of a slot moves; look again afterwards."""
        fl_ask(&self.slot(index).waiters, 1ULL << process)

    def demand_flush(self, uint64_t index):
        """Ask the flusher to flush one partition soon."""
        cdef fl_slot* s = self.slot(index)
        fl_or(&s.demand, 1)
        fl_wake_flusher(self.header, self.eventfds, index)

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

        It may have moved a slot and not come to say so: who waits for any is to look at all of them, and is to be woken.
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

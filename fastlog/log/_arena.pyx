"""The arena: the shared memory of one broker with the slots of its partitions.

The layout, and who may write which word, stand in ``_arena.h``. This module hands out slots and shows them to Python; what
moves the words is in ``_append`` (log end, table), ``_flush`` (flushed and visible end) and ``retention`` (log start).
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from fastlog.log._files cimport (
    AT_CREATE_LIVES, AT_CREATE_PUBLISHED, AT_CREATE_SLOT, AT_LEAVING_READ, AT_RETENTION_START, AT_RETENTION_UNLINKED,
    AT_RETURN_ELSEWHERE, AT_RETURN_REVIVED, AT_SEGMENTS_READ,
    AT_SEGMENTS_TAIL, AT_VIEW_ENDS, failpoint,
)
from fastlog.log._layout cimport (
    EOWNERDEAD, FL_BLOCK_PRODUCERS, FL_CHANGES, FL_KEEPER, FL_KEPT_BATCHES, FL_NAME_BYTES, FL_NO_LIMIT, FL_NO_MARK,
    FL_NO_POSITION, FL_OWN_PRODUCERS, FL_SEEN_ALL, FL_SPARE_SLOTS, FL_STATE_NO_FLUSH, FL_STATE_OFFLINE, FL_STATE_READ_ONLY,
    FL_USED_ORIGIN_MS, FL_WHY_CHECK, FL_WHY_CUT, FL_WHY_FLUSH, FL_WHY_NAME, FL_WHY_REPAIR, FL_WHY_ROOM, FL_WHY_START, fl_add,
    fl_announce, fl_announce_all, fl_ask, fl_base_at, fl_cell_at, fl_changed, fl_end, fl_end_publish, fl_end_read, fl_fence,
    fl_first_ms_at, fl_first_offset, fl_generation_at, fl_header, fl_is_shown, fl_key_at, fl_last_ms_at, fl_lives, fl_load,
    fl_mark_dirty, fl_mutex_init, fl_or, fl_owner_at, fl_producer, fl_producers_at, fl_raise, fl_slot, fl_slot_at, fl_start_at,
    fl_store, fl_used_now_ms, fl_wake, fl_wake_flusher, fl_wake_slot, fl_wake_waiters, pthread_mutex_consistent,
    pthread_mutex_trylock, pthread_mutex_unlock,
)
from fastlog.log._producers cimport Hints, forget_producers, put_producer, version_at

import os

from fastlog.errors import LogError, PartitionGoneError
from fastlog.log.slots import Leaving, Numbered, ProducerState, Segment, SlotView

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
cdef class Arena(SharedMemory):
    """The shared memory of one broker. Made once by the supervisor; every child inherits it through fork."""

    cdef fl_slot* slot(self, uint64_t index) except NULL:
        """The slot with this number, which was used at least once. Raises ``IndexError``."""
        if index >= fl_load(&self.header.slot_count):
            raise IndexError(f"no partition slot {index}")
        return fl_slot_at(self.header, index)

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

    def create_lock(self):
        """Try for the lock of partition creation; ``True`` when held. A dead owner's lock is taken over."""
        cdef int r = pthread_mutex_trylock(&self.header.create_lock)
        if r == EOWNERDEAD:
            # a life is stored last, so what a dead owner left behind is at most a half-written slot that nobody sees, and one
            # that is alive, or no longer, without an announcement
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
        """Have the keeper look for deletion markers."""
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
        """A slot's state word in words, for messages."""
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

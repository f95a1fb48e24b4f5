"""The producers of one log as its batches tell of them: what a start and the keeper make of snapshots and heads of batches.

Shared memory is none of its business: a start fills it from here, before anybody appends.

Source: Apache Kafka 4.2 (ProducerStateManager, ProducerAppendInfo).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport strerror

from fastlog.log._layout cimport fl_producer
from fastlog.log._files cimport file_pread
from fastlog.log._producers cimport take_in
from fastlog.log.formats._table cimport EntryHead, Format, Sequenced, format_of

from typing import NamedTuple

from fastlog.log.slots import Numbered, ProducerState

cdef enum:
    WINDOW = 8192                # bytes that a walk reads at once


class SnapshotEntry(NamedTuple):
    """A producer in a snapshot: with its last batch alone. ``last_offset`` -1: it has none; times in ms."""

    id: int
    epoch: int
    last_sequence: int
    last_offset: int
    delta: int
    time_ms: int
    coordinator_epoch: int = -1
    open_offset: int = -1


cdef class Known:
    """One producer; all of it is 0 at first, as Cython has it."""

    cdef fl_producer state
    cdef int64_t seen_ms         # when it was heard of last
    cdef int32_t coordinator_epoch


cdef class ProducerTable:
    """The producers of one partition, by id; not thread-safe."""

    cdef dict known              # by id

    def __init__(self, entries=()):
        """``entries`` are those of a snapshot."""
        cdef Known one
        self.known = {}
        for entry in entries:
            one = Known()
            one.state.n = 1
            one.state.id = entry.id
            one.state.epoch = entry.epoch
            one.state.open = entry.open_offset + 1
            one.coordinator_epoch = entry.coordinator_epoch
            one.seen_ms = entry.time_ms
            if entry.last_offset >= 0:
                one.state.count = 1
                one.state.batches[0].last_sequence = <uint32_t>(entry.last_sequence & 0x7FFFFFFF)
                one.state.batches[0].delta = <uint32_t>entry.delta
                one.state.batches[0].offset = <uint64_t>(entry.last_offset - entry.delta)
                one.state.batches[0].time = entry.time_ms
            self.known[entry.id] = one

    def __len__(self):
        return len(self.known)

    def replay(self, int fd, int format_number, uint64_t start, uint64_t end, int64_t seen_ms):
        """Take in the batches of an open segment between two positions; the position where that ended: ``end``, or before what
        can be no batch. ``seen_ms`` is when the last of them came.

        Raises:
            OSError: the file cannot be read.
        """
        cdef const Format* made = format_of(<uint32_t>format_number)
        cdef uint8_t[WINDOW] window
        cdef uint64_t position = start, read_at = 0, have = 0
        cdef EntryHead head
        cdef Sequenced batch
        cdef int64_t r = 0
        cdef Known one
        while True:
            with nogil:
                batch.producer = -1
                while batch.producer < 0 and position + made.head_bytes <= end:
                    if position < read_at or position + made.head_bytes > read_at + have:
                        r = file_pread(fd, window, min(<uint64_t>WINDOW, end - position), position)
                        if r < <int64_t>made.head_bytes:
                            break
                        read_at = position
                        have = <uint64_t>r
                    if not made.head(window + (position - read_at), &head) or head.bytes > end - position:
                        break
                    made.sequenced(window + (position - read_at), &batch)
                    position += head.bytes
            if r < 0:
                raise OSError(-r, strerror(<int>-r).decode())
            if batch.producer < 0:
                return position
            found = self.known.get(batch.producer)
            if found is None:
                one = Known()
                one.coordinator_epoch = -1
                self.known[batch.producer] = one
            else:
                one = found
            take_in(&one.state, &batch, head.offset, 0)
            one.seen_ms = seen_ms

    def update(self, ProducerTable newer):
        """What a table says of whole stretches of the log that are at least as new counts instead."""
        self.known.update(newer.known)

    def forget_before(self, int64_t time_ms):
        """Forget producers that were heard of last at this time or before, but for those with open transactions."""
        cdef Known one
        for producer, one in list(self.known.items()):
            if one.seen_ms <= time_ms and one.state.open == 0:
                del self.known[producer]

    def entries(self):
        """The entries of a snapshot of this table, by producer id."""
        cdef Known one
        rows = []
        for producer, one in sorted(self.known.items()):
            last = -1, -1, 0
            if one.state.count:
                newest = one.state.batches[one.state.count - 1]
                last = newest.last_sequence, newest.offset + newest.delta, newest.delta
            rows.append(SnapshotEntry(
                producer, one.state.epoch, *last, one.seen_ms, one.coordinator_epoch, <int64_t>one.state.open - 1
            ))
        return rows

    def states(self, int64_t now_ms):
        """The same for shared memory, with the last five batches of each as far as they are known."""
        cdef Known one
        cdef uint32_t i
        rows = []
        for producer, one in sorted(self.known.items()):
            kept = tuple(
                Numbered(one.state.batches[i].last_sequence, one.state.batches[i].offset, one.state.batches[i].delta,
                         one.state.batches[i].time)
                for i in range(one.state.count)
            )
            open_offset = one.state.open - 1 if one.state.open else None
            rows.append(ProducerState(producer, one.state.epoch, kept, max(0, now_ms - one.seen_ms), open_offset))
        return tuple(rows)

    @property
    def has_open(self):
        """Whether a transaction is open."""
        cdef Known one
        for one in self.known.values():
            if one.state.open:
                return True
        return False

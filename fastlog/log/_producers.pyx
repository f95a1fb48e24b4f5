"""Producers that number their batches: what each partition knows of them, in shared memory of a bounded size.

A batch that comes again is found by its numbers and not appended, and one that comes too early is refused. The words stand in
``_arena.h``; all of them are for the holder of the append lock, who judges a batch before it is written, and writes down what
follows from it behind the write and before the log end is published. What a state was written for is an end of the log: a
version whose end the log has not reached does not count.

A slot has a few entries of its own, and takes blocks from a pool as it needs them. When the pool has none left, or one
partition has its share of it, the producer that was used longest ago is forgotten: no append fails for want of an entry. A
producer that nobody knows may begin with any number, as in Kafka.

Source: Apache Kafka 4.2 (ProducerAppendInfo, ProducerStateEntry).
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastlog.log._layout cimport (
    FL_BLOCK_PRODUCERS, FL_KEPT_BATCHES, FL_OWN_PRODUCERS, fl_block_at, fl_key_at, fl_load, fl_owner_at, fl_producer_key,
    fl_producers_at, fl_store, fl_take_block,
)
from fastlog.log._files cimport AT_PRODUCER_BEGUN, AT_PRODUCER_BLOCK, AT_PRODUCER_WRITTEN, failpoint

cdef enum:
    SHARE = 8                    # partitions that can have a full share of the pool
    LATELY_MS = 120000           # Kafka's delivery.timeout.ms: so long a producer tries to send a batch again
    NO_ENTRY = 0xFFFFFFFF
    SEQUENCE_MASK = 0x7FFFFFFF   # behind 2^31 - 1 they begin anew at 0


# -- one producer ----------------------------------------------------------------------------------------------------------------

cdef int judge(const fl_producer* state, const Sequenced* batch, const fl_sequenced** original) noexcept nogil:
    cdef uint32_t i
    cdef const fl_sequenced* kept
    if state.n == 0:
        return IN_SEQUENCE
    if batch.epoch < state.epoch:
        return OLD_EPOCH
    if batch.epoch > state.epoch:
        return IN_SEQUENCE if batch.first == 0 else OUT_OF_SEQUENCE
    for i in range(state.count):
        kept = &state.batches[i]
        if kept.last_sequence == batch.last and kept.delta == batch.delta:
            original[0] = kept
            return IS_DUPLICATE
    if state.count == 0:
        return IN_SEQUENCE if batch.first == 0 else OUT_OF_SEQUENCE
    if batch.first == (state.batches[state.count - 1].last_sequence + 1) & SEQUENCE_MASK:
        return IN_SEQUENCE
    return OUT_OF_SEQUENCE


cdef void take_in(fl_producer* state, const Sequenced* batch, uint64_t offset, uint64_t end) noexcept nogil:
    cdef uint32_t i
    cdef fl_sequenced* newest
    if state.n == 0 or state.epoch != batch.epoch:
        state.count = 0
    if state.n == 0:
        state.open = 0
    state.n += 1
    state.end = end
    state.id = batch.producer
    state.epoch = batch.epoch
    if batch.is_marker:
        state.open = 0
        return
    if batch.in_transaction and state.open == 0:
        state.open = offset + 1
    if state.count == FL_KEPT_BATCHES:
        for i in range(FL_KEPT_BATCHES - 1):
            state.batches[i] = state.batches[i + 1]
        state.count -= 1
    newest = &state.batches[state.count]
    newest.end = end
    newest.offset = offset
    newest.time = batch.time
    newest.last_sequence = batch.last
    newest.delta = batch.delta
    state.count += 1


# -- entries ---------------------------------------------------------------------------------------------------------------------

cdef fl_producer* version_at(fl_producer* versions, uint64_t log_end) noexcept nogil:
    cdef fl_producer* best = NULL
    cdef int i
    for i in range(2):
        if versions[i].n and versions[i].end <= log_end and (best == NULL or versions[i].n > best.n):
            best = &versions[i]
    return best


cdef inline uint32_t* hint(Hints* hints, const fl_slot* s, int64_t producer) noexcept nogil:
    return &hints.entries[(<uint64_t>producer * 31 + s.index) & (HINTS - 1)]


cdef inline uint32_t next_entry(fl_header* h, fl_slot* s, uint32_t entry) noexcept nogil:
    """The entry of a slot behind one; NO_ENTRY behind the last."""
    cdef uint64_t block
    entry += 1
    if entry < FL_OWN_PRODUCERS or (entry > FL_OWN_PRODUCERS and (entry - FL_OWN_PRODUCERS) % FL_BLOCK_PRODUCERS):
        return entry
    if entry == FL_OWN_PRODUCERS:
        block = s.blocks
    else:
        block = fl_owner_at(h, (entry - 1 - FL_OWN_PRODUCERS) // FL_BLOCK_PRODUCERS).next
    return <uint32_t>(FL_OWN_PRODUCERS + (block - 1) * FL_BLOCK_PRODUCERS) if block else <uint32_t>NO_ENTRY


cdef uint32_t entry_of(fl_header* h, fl_slot* s, Hints* hints, int64_t producer) noexcept nogil:
    """The entry of a producer; NO_ENTRY: it has none."""
    cdef uint32_t* place = hint(hints, s, producer)
    cdef uint32_t entry = place[0]
    if entry < FL_OWN_PRODUCERS or (
            entry < FL_OWN_PRODUCERS + h.producer_blocks * FL_BLOCK_PRODUCERS
            and fl_load(&fl_owner_at(h, (entry - FL_OWN_PRODUCERS) // FL_BLOCK_PRODUCERS).owner) == s.index + 1):
        if fl_key_at(h, s, entry).id == <uint64_t>producer + 1:
            return entry
    entry = 0
    while entry != NO_ENTRY:
        if fl_key_at(h, s, entry).id == <uint64_t>producer + 1:
            place[0] = entry
            return entry
        entry = next_entry(h, s, entry)
    return NO_ENTRY


cdef inline bint is_over(fl_header* h, const fl_producer_key* key, const fl_producer* state, uint64_t used_ms) noexcept nogil:
    """Whether a producer was not heard of for so long that it is one that nobody knows."""
    return state.open == 0 and used_ms > key.used_ms and used_ms - key.used_ms >= h.producer_expiry_ms


cdef uint32_t take_block(fl_header* h, fl_slot* s, uint64_t most) noexcept nogil:
    """The first entry of a block that is nobody's, one of the first ``most``; NO_ENTRY: there is none."""
    cdef uint64_t block, i
    for block in range(most):
        if not fl_take_block(h, block, s.index):
            continue
        for i in range(FL_BLOCK_PRODUCERS):
            clear_entry(h, s, <uint32_t>(FL_OWN_PRODUCERS + block * FL_BLOCK_PRODUCERS + i))
        fl_owner_at(h, block).next = s.blocks
        failpoint(AT_PRODUCER_BLOCK)
        fl_store(&s.blocks, block + 1)
        return <uint32_t>(FL_OWN_PRODUCERS + block * FL_BLOCK_PRODUCERS)
    return NO_ENTRY


cdef void clear_entry(fl_header* h, fl_slot* s, uint32_t entry) noexcept nogil:
    cdef fl_producer* versions = fl_producers_at(h, s, entry)
    fl_store(&fl_key_at(h, s, entry).id, 0)
    fl_store(&versions[0].n, 0)
    fl_store(&versions[1].n, 0)


cdef uint32_t take_entry(fl_header* h, fl_slot* s, uint64_t used_ms, bint* early) noexcept nogil:
    """An entry for a producer that has none: a free one, that of a producer that is over, one of another block, or that of
    the producer that was used longest ago. NO_ENTRY: all have open transactions."""
    cdef uint32_t entry = 0, oldest = NO_ENTRY
    cdef uint64_t oldest_ms = <uint64_t>-1, held = 0, blocks
    cdef fl_producer_key* key
    cdef fl_producer* known
    while entry != NO_ENTRY:
        key = fl_key_at(h, s, entry)
        if key.id == 0:
            return entry
        held += 1
        known = version_at(fl_producers_at(h, s, entry), s.log_end)
        # those that were written for this very append stay: there are at most as many as a slot has entries of its own, less one
        if known != NULL and known.open == 0 and key.used_ms < oldest_ms and not is_new(fl_producers_at(h, s, entry), s.log_end):
            oldest = entry
            oldest_ms = key.used_ms
        entry = next_entry(h, s, entry)
    if oldest != NO_ENTRY and used_ms > oldest_ms and used_ms - oldest_ms >= h.producer_expiry_ms:
        return oldest
    # beyond its share a partition takes from the pool only while half of that is free
    blocks = h.producer_blocks
    if (held - FL_OWN_PRODUCERS) * SHARE >= blocks * FL_BLOCK_PRODUCERS:
        blocks //= 2
    entry = take_block(h, s, blocks)
    if entry != NO_ENTRY:
        return entry
    early[0] = oldest != NO_ENTRY and used_ms < oldest_ms + LATELY_MS
    return oldest


cdef inline bint is_new(const fl_producer* versions, uint64_t log_end) noexcept nogil:
    return (versions[0].n != 0 and versions[0].end > log_end) or (versions[1].n != 0 and versions[1].end > log_end)


cdef bint put_producer(fl_header* h, fl_slot* s, Hints* hints, const fl_producer* state, uint64_t used_ms) noexcept nogil:
    cdef bint early = False
    cdef uint32_t entry = entry_of(h, s, hints, state.id)
    cdef fl_producer* versions
    cdef fl_producer* counts
    cdef fl_producer* other
    cdef uint64_t n
    cdef uint32_t i
    if entry == NO_ENTRY:
        entry = take_entry(h, s, used_ms, &early)
        if entry == NO_ENTRY:
            return True  # the producer stays one that nobody knows
    versions = fl_producers_at(h, s, entry)
    counts = version_at(versions, s.log_end)
    other = &versions[0] if counts != &versions[0] else &versions[1]
    n = counts.n + 1 if counts != NULL else 1
    # in this order: until n is there again, there is no such version
    fl_store(&other.n, 0)
    failpoint(AT_PRODUCER_BEGUN)
    other.end = state.end
    other.id = state.id
    other.epoch = state.epoch
    other.count = state.count
    other.open = state.open
    for i in range(state.count):
        other.batches[i] = state.batches[i]
    fl_store(&other.n, n)
    fl_store(&fl_key_at(h, s, entry).used_ms, used_ms)
    fl_store(&fl_key_at(h, s, entry).id, <uint64_t>state.id + 1)
    failpoint(AT_PRODUCER_WRITTEN)
    hint(hints, s, state.id)[0] = entry
    return early


cdef void repair_producers(fl_header* h, fl_slot* s) noexcept nogil:
    cdef uint32_t entry = 0
    cdef uint64_t block, mine = s.index + 1, linked
    cdef fl_producer* versions
    cdef fl_producer* counts
    cdef int i
    while entry != NO_ENTRY:
        versions = fl_producers_at(h, s, entry)
        for i in range(2):
            if versions[i].end > s.log_end:
                fl_store(&versions[i].n, 0)
        counts = version_at(versions, s.log_end)
        fl_store(&fl_key_at(h, s, entry).id, <uint64_t>counts.id + 1 if counts != NULL else 0)
        entry = next_entry(h, s, entry)
    # a block that was taken and not put into the chain
    for block in range(h.producer_blocks):
        if fl_load(&fl_owner_at(h, block).owner) == mine:
            linked = s.blocks
            while linked and linked != block + 1:
                linked = fl_owner_at(h, linked - 1).next
            if not linked:
                fl_store(&fl_owner_at(h, block).owner, 0)


cdef void forget_producers(fl_header* h, fl_slot* s) noexcept nogil:
    cdef uint64_t block
    cdef uint32_t entry
    fl_store(&s.blocks, 0)
    for entry in range(FL_OWN_PRODUCERS):
        clear_entry(h, s, entry)
    for block in range(h.producer_blocks):
        if fl_load(&fl_owner_at(h, block).owner) == s.index + 1:
            fl_store(&fl_owner_at(h, block).owner, 0)


# -- one write -------------------------------------------------------------------------------------------------------------------

cdef int follow(Followed* followed, fl_header* h, fl_slot* s, Hints* hints, const Sequenced* batch, uint64_t offset, uint64_t end,
                uint64_t used_ms, const fl_sequenced** original) noexcept nogil:
    cdef fl_producer* state = NULL
    cdef fl_producer* known = NULL
    cdef fl_producer_key* key
    cdef uint32_t i, entry
    cdef int judgement
    for i in range(followed.count):
        if followed.states[i].id == batch.producer:
            state = &followed.states[i]
    if state == NULL:
        if followed.count == MOST_TOGETHER:
            return TOO_MANY
        state = &followed.states[followed.count]
        state.n = 0
        entry = entry_of(h, s, hints, batch.producer)
        if entry != NO_ENTRY:
            key = fl_key_at(h, s, entry)
            known = version_at(fl_producers_at(h, s, entry), s.log_end)
            if known != NULL and not is_over(h, key, known, used_ms):
                state[0] = known[0]
                fl_store(&key.used_ms, used_ms)
        judgement = judge(state, batch, original)
        if judgement == IS_DUPLICATE:
            # of what is published: the state in hand is not kept
            original[0] = &known.batches[original[0] - state.batches]
        if judgement != IN_SEQUENCE:
            return judgement
        followed.count += 1
    else:
        judgement = judge(state, batch, original)
        if judgement != IN_SEQUENCE:
            return judgement
    take_in(state, batch, offset, end)
    return IN_SEQUENCE

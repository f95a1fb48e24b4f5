"""From a topic and a partition to a slot of the arena, with one process's own table over the shared slots."""

cimport cython
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from fastlog.log._arena cimport Arena
from fastlog.log._files cimport AT_PROCESSOR_LOOKS, failpoint
from fastlog.log._layout cimport (
    FL_CHANGES, fl_changed, fl_header, fl_is_shown, fl_lives, fl_load, fl_monotonic_ns, fl_slot, fl_slot_at,
)
from fastlog.log.formats._table cimport Format, format_of

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef enum:
    LONGEST_NAME = 253           # bytes: the name of a directory has two more at least


cdef inline uint64_t hash_of(const uint8_t* name, int size, int32_t partition) noexcept nogil:
    cdef uint64_t h = <uint64_t>0xcbf29ce484222325 ^ <uint32_t>partition
    cdef int i
    for i in range(size):
        h = (h ^ name[i]) * <uint64_t>0x100000001b3
    return h ^ (h >> 29)


@cython.final
cdef class Partitions:
    """One thread's view of which partitions exist; ``services`` tells what is configured."""

    def __cinit__(self, Arena arena, services):
        cdef uint64_t room = 16
        self.arena = arena
        while room < <uint64_t>arena.header.max_partitions * 2:
            room *= 2
        self.mask = room - 1
        self.table = <uint32_t*>calloc(room, sizeof(uint32_t))
        self.counts_room = 64
        self.counts = <TopicCount*>calloc(self.counts_room, sizeof(TopicCount))
        if self.table == NULL or self.counts == NULL:
            raise MemoryError
        self.random_state = fl_monotonic_ns() ^ (<uint64_t>getpid() << 32) | 1
        self.most_units, self.default_count = services.max_name_units, services.partitions
        self.configured = [(name.encode(), count) for name, count in services.partitions_by_topic.items()]
        # first the count, then the slots: what changes in between is looked at again
        self.known = fl_load(&arena.header.change_count)
        if self.learn_all() != 0:
            raise MemoryError

    def __dealloc__(self):
        free(self.counts)
        free(self.table)

    cdef TopicCount* place_of(self, const uint8_t* name, int size) noexcept nogil:
        """Where the count of a topic stands, or the empty place where it would."""
        cdef uint64_t at = hash_of(name, size, -1)
        while True:
            at &= self.counts_room - 1
            if self.counts[at].name == NULL or (self.counts[at].size == size
                                                and memcmp(self.counts[at].name, name, size) == 0):
                return &self.counts[at]
            at += 1

    cdef int put_count(self, const uint8_t* name, int size, int32_t least) noexcept nogil:
        """Record that a topic has at least ``least`` partitions; the name must stay where it is. -1 without memory."""
        cdef TopicCount* place = self.place_of(name, size)
        cdef TopicCount* old = self.counts
        cdef uint64_t i, room = self.counts_room
        if place.name != NULL:
            place.count = max(place.count, least)
            return 0
        if (self.count_total + 1) * 2 > room:
            self.counts = <TopicCount*>calloc(room * 2, sizeof(TopicCount))
            if self.counts == NULL:
                self.counts = old
                return -1
            self.counts_room = room * 2
            for i in range(room):
                if old[i].name != NULL:
                    self.place_of(old[i].name, old[i].size)[0] = old[i]
            free(old)
            place = self.place_of(name, size)
        self.count_total += 1
        place.name = name
        place.size = size
        place.count = least
        return 0

    cdef void learn(self) noexcept nogil:
        """Take what has changed since the last look into the tables: partitions that appeared, and those that have gone."""
        cdef fl_header* h = self.arena.header
        cdef uint64_t[FL_CHANGES] slots
        cdef uint64_t now
        cdef int i, n
        if fl_load(&h.change_count) == self.known:
            return
        self.last = NULL
        self.counted = NULL
        n = fl_changed(h, self.known, &now, slots)
        for i in range(n):
            if not fl_is_shown(fl_slot_at(h, slots[i])):
                n = -1
                break
            if self.enter(fl_slot_at(h, slots[i])) != 0:
                return
        if n < 0 and self.learn_all() != 0:
            return
        self.known = now

    cdef int learn_all(self) noexcept nogil:
        """Make the tables anew: of a partition that has gone, neither the slot nor the name in it may be looked at again.

        0, or -1 without memory, with what there was room for.
        """
        cdef uint64_t index
        cdef int r
        self.last = NULL
        memset(self.table, 0, (self.mask + 1) * sizeof(uint32_t))
        memset(self.counts, 0, self.counts_room * sizeof(TopicCount))
        self.count_total = 0
        with gil:
            r = self.put_configured()
        for index in range(fl_load(&self.arena.header.slot_count)):
            if r == 0 and fl_is_shown(fl_slot_at(self.arena.header, index)):
                r = self.enter(fl_slot_at(self.arena.header, index))
        return r

    cdef int put_configured(self):
        cdef bytes name
        cdef int r = 0
        for name, count in self.configured:
            if self.is_legal(name, <int>len(name)) and r == 0:
                r = self.put_count(name, <int>len(name), count)
        return r

    cdef int enter(self, fl_slot* s) noexcept nogil:
        """Take a partition into the tables, if it is not there; 0, or -1 without memory."""
        cdef uint64_t at
        # a topic may have more partitions than the settings say
        if self.put_count(s.name, <int>s.name_bytes, max(<int32_t>s.partition + 1, self.default_of(s))) != 0:
            return -1
        at = hash_of(s.name, <int>s.name_bytes, <int32_t>s.partition) & self.mask
        while self.table[at]:
            if self.table[at] == s.index + 1:
                return 0
            at = (at + 1) & self.mask
        self.table[at] = <uint32_t>s.index + 1
        self.largest = max(self.largest, <uint64_t>s.partition + 1)
        return 0

    cdef int32_t default_of(self, fl_slot* s) noexcept nogil:
        """The configured count of a topic that the table may not have yet."""
        cdef TopicCount* place = self.place_of(s.name, <int>s.name_bytes)
        return place.count if place.name != NULL else self.default_count

    cdef fl_slot* find(self, const uint8_t* name, int size, int32_t partition) noexcept nogil:
        """The slot of a partition that is there; NULL: there is none now."""
        cdef fl_slot* s
        cdef uint64_t known
        if fl_load(&self.arena.header.change_count) != self.known:
            self.learn()
        s = self.last
        if s != NULL and <int32_t>s.partition == partition and <int>s.name_bytes == size \
                and memcmp(s.name, name, size) == 0:
            return s
        failpoint(AT_PROCESSOR_LOOKS)
        s = self.look_up(name, size, partition)
        while s == NULL and fl_load(&self.arena.header.change_count) != self.known:
            # it may have come back into service since, in another slot
            known = self.known
            self.learn()
            if self.known == known:
                break  # there is no memory for it
            s = self.look_up(name, size, partition)
        return s

    cdef fl_slot* look_up(self, const uint8_t* name, int size, int32_t partition) noexcept nogil:
        """What the table says: the slot it lives in, else the one that it is to return from."""
        cdef fl_slot* s
        cdef fl_slot* returning = NULL
        cdef uint64_t at
        at = hash_of(name, size, partition) & self.mask
        while self.table[at]:
            s = fl_slot_at(self.arena.header, self.table[at] - 1)
            if fl_is_shown(s) and <int32_t>s.partition == partition and <int>s.name_bytes == size \
                    and memcmp(s.name, name, size) == 0:
                if fl_lives(s):
                    self.last = s
                    return s
                returning = s  # unless it is back already, in another slot
            at = (at + 1) & self.mask
        return returning

    cdef bint exists(self, const uint8_t* name, int size) noexcept nogil:
        """Whether a topic has any partition; looks for each that it may have."""
        cdef int partition
        for partition in range(self.partition_count(name, size)):
            if self.find(name, size, partition) != NULL:
                return True
        return False

    cdef int partition_count(self, const uint8_t* name, int size) noexcept nogil:
        """How many partitions the topic has here, at least 1; -1 when the name is illegal."""
        cdef TopicCount* place
        if fl_load(&self.arena.header.change_count) != self.known:
            self.learn()
        place = self.counted
        if place != NULL and place.size == size and memcmp(place.name, name, size) == 0:
            return place.count
        place = self.place_of(name, size)
        if place.name != NULL:
            self.counted = place
            return place.count
        return self.default_count if self.is_legal(name, size) else -1

    cdef bint is_legal(self, const uint8_t* name, int size) noexcept nogil:
        """What ``fastlog.topics.valid_topic`` says of these bytes in UTF-8."""
        cdef int at = 0, more, i, units = 0
        cdef uint32_t letter
        if size == 0 or size > LONGEST_NAME or (name[0] == c"." and (size == 1 or (size == 2 and name[1] == c"."))):
            return False
        while at < size:
            letter = name[at]
            at += 1
            units += 1
            if letter < 0x80:
                if letter < 0x20 or letter == 0x7f or letter == c"/":
                    return False
                continue
            # a lead byte for four, or none, is of a letter that is refused, or of no letter
            if letter < 0xc2 or letter > 0xef:
                return False
            more = 1 if letter < 0xe0 else 2
            letter &= 0x1f if more == 1 else 0x0f
            if at + more > size:
                return False
            for i in range(more):
                if name[at] & 0xc0 != 0x80:
                    return False
                letter = letter << 6 | (name[at] & 0x3f)
                at += 1
            if letter < 0xa0 or (more == 2 and letter < 0x800) or 0xd800 <= letter <= 0xf8ff or letter >= 0xfff0:
                return False
        return units <= self.most_units

    cdef int32_t draw(self, int count) noexcept nogil:
        """One of ``count`` partitions, at random."""
        self.random_state ^= self.random_state << 13
        self.random_state ^= self.random_state >> 7
        self.random_state ^= self.random_state << 17
        return <int32_t>(self.random_state % <uint64_t>count)

    cdef int resolve(self, const uint8_t* name, int size, int32_t* partition, int purpose, int clients,
                     fl_slot** out) noexcept nogil:
        """Find the partition; a ``Resolved``, or a ``Problem`` of the topic or the partition.

        Partition -1 of a produce means that the broker chooses one at random (0.7). What lies on disk is served also
        above the configured count. ``clients``, one of ``Clients``: for whom.
        """
        cdef int count
        cdef const Format* made
        out[0] = NULL
        if size > LONGEST_NAME:
            return PROBLEM_TOPIC
        if partition[0] == -1 and purpose != TO_READ:
            count = self.partition_count(name, size)
            if count < 1:
                return PROBLEM_TOPIC
            partition[0] = self.draw(count) if count > 1 else 0
        if partition[0] >= 0:
            out[0] = self.find(name, size, partition[0])
            if out[0] != NULL:
                made = format_of(out[0].format)
                # of a format that is not known here, which is out of service, that is said
                if made == NULL or made.clients & clients:
                    return RESOLVED
                out[0] = NULL
                return PROBLEM_FORMAT
        count = self.partition_count(name, size)
        if count < 1:
            return PROBLEM_TOPIC
        if partition[0] < 0 or partition[0] >= count:
            return PROBLEM_PARTITION
        return RESOLVE_ABSENT

"""From an offset to a segment and a position, and the open segment files of one process.

Source: paper, section 3.1 (simple storage): a message is addressed by its logical offset; finding it takes a search over
the segments' base offsets, which are their file names.
"""

from libc.errno cimport EACCES, EMFILE, ENAMETOOLONG, ENFILE, EPERM, EROFS
from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free

from fastlog.log._arena cimport Arena
from fastlog.log._layout cimport (
    fl_base_at, fl_end, fl_end_read, fl_fence, fl_find_segment, fl_first_offset, fl_header, fl_lives, fl_load, fl_slot,
    fl_slot_at, fl_start_at,
)
from fastlog.log.formats._table cimport Format, format_of
from fastlog.log._files cimport (
    AT_LOCATE_ENTRY, AT_LOCATE_HEAD, AT_LOCATE_TAIL, AT_LOCATE_WATERMARK, failpoint, file_open,
)

from fastlog.errors import OffsetOutOfRangeError

cdef extern from "<fcntl.h>" nogil:
    int O_RDWR, O_RDONLY

cdef extern from "<unistd.h>" nogil:
    int close(int)


cdef int locate(fl_header* h, fl_slot* s, uint64_t offset, fl_end* visible, Place* out) noexcept nogil:
    """Find ``offset`` among the visible bytes of a partition; takes no lock and never waits.

    The order of the reads (visible end, tail, entries, head) makes what it returns consistent: when the head that is read
    last is above where the search began, the search may have met entries that are gone or used again, and what it found
    says nothing. Then it looks again; each time retention must have dropped more, so that this ends.
    """
    cdef uint64_t tail, head, index
    cdef const Format* made
    while True:
        fl_end_read(&s.visible_end, s.visible_ends, visible)
        failpoint(AT_LOCATE_WATERMARK)
        tail = fl_load(&s.table_tail)
        failpoint(AT_LOCATE_TAIL)
        head = fl_load(&s.table_head)
        failpoint(AT_LOCATE_HEAD)
        if offset > visible.offset or offset < fl_first_offset(s):
            return LOCATE_OUT_OF_RANGE
        index = fl_find_segment(h, s, head, tail, offset)
        if index >= tail:
            continue  # the tail was read before a roll, the head after retention: a table is never empty
        out.index = index
        out.base = fl_load(fl_base_at(h, s, index))
        out.start = fl_load(fl_start_at(h, s, index))
        out.sealed = index + 1 < tail
        out.end = visible.position
        if out.sealed:
            out.end = min(visible.position, fl_load(fl_start_at(h, s, index + 1)))
        failpoint(AT_LOCATE_ENTRY)
        fl_fence()
        if fl_load(&s.table_head) != head:
            continue
        if offset < out.base:
            return LOCATE_OUT_OF_RANGE
        if offset == visible.offset:
            return LOCATE_EMPTY
        made = format_of(s.format)
        out.walked = made.locate == NULL
        out.position = 0 if out.walked else made.locate(out.base, offset)
        return LOCATED


cdef void partition_path(Arena arena, fl_slot* s, char* out, size_t room) noexcept nogil:
    """Write the path of the directory of a partition that has a file there, whose path is longer and fits."""
    snprintf(out, room, "%s/%.*s-%u", arena.directories[s.directory], <int>s.name_bytes, <char*>s.name, s.partition)


cdef int segment_path(Arena arena, fl_slot* s, uint64_t base, char* out, size_t room) noexcept nogil:
    """Write a segment file's path; 0, or -1 when it does not fit or nobody knows the format."""
    return file_path(arena, s, base, LOG_FILE, out, room)


cdef int file_path(Arena arena, fl_slot* s, uint64_t base, int kind, char* out, size_t room) noexcept nogil:
    """The same for any of a segment's files."""
    cdef const Format* found = format_of(s.format)
    cdef const char* suffix
    cdef int n
    if found == NULL:
        return -1
    suffix = found.suffix
    if kind != LOG_FILE:
        suffix = ".index" if kind == OFFSET_INDEX else ".timeindex"
    n = snprintf(out, room, "%s/%.*s-%u/%020llu%s", arena.directories[s.directory], <int>s.name_bytes,
                 <char*>s.name, s.partition, <unsigned long long>base, suffix)
    return 0 if 0 < n < <int>room else -1


cdef int flushed_mark_path(Arena arena, fl_slot* s, uint64_t base, char* out, size_t room) noexcept nogil:
    """Write the path of the partition's flushed mark when it names this segment; 0, or -1 when it does not fit."""
    cdef int n = snprintf(out, room, "%s/%.*s-%u/.flushed-%020llu", arena.directories[s.directory], <int>s.name_bytes,
                          <char*>s.name, s.partition, <unsigned long long>base)
    return 0 if 0 < n < <int>room else -1


cdef int marks_path(Arena arena, int directory, char* out, size_t room) noexcept nogil:
    """Write the path of a log directory's flush marks; 0, or -1 when it does not fit."""
    cdef int n = snprintf(out, room, "%s/.fastlog-flushing", arena.directories[directory])
    return 0 if 0 < n < <int>room else -1


cdef class SegmentFiles:
    """Open descriptors by (slot, segment index, kind of file), at most ``capacity``; a pinned one is never closed."""

    def __cinit__(self, Arena arena, int capacity):
        cdef int i
        self.arena = arena
        self.capacity = max(capacity, 4)
        self.newest = self.oldest = -1  # first: what is refused memory below is closed all the same
        self.bucket_count = 16
        while self.bucket_count < self.capacity * 2:
            self.bucket_count *= 2
        self.entries = <FdEntry*>calloc(self.capacity, sizeof(FdEntry))
        self.buckets = <int*>calloc(self.bucket_count, sizeof(int))
        if self.entries == NULL or self.buckets == NULL:
            raise MemoryError
        for i in range(self.bucket_count):
            self.buckets[i] = -1
        for i in range(self.capacity):
            self.entries[i].chain = i + 1
        self.entries[self.capacity - 1].chain = -1
        self.free_list = 0
        self.generation = fl_load(&arena.header.retention_generation)

    def __dealloc__(self):
        cdef int entry
        if self.entries != NULL:
            entry = self.newest
            while entry >= 0:
                close(self.entries[entry].fd)
                entry = self.entries[entry].older
        free(self.entries)
        free(self.buckets)

    cdef int bucket(self, uint64_t slot, uint64_t index, int kind) noexcept nogil:
        cdef uint64_t mixed = slot * <uint64_t>0x9E3779B97F4A7C15 + (index * 4 + <uint64_t>kind) * <uint64_t>0xC2B2AE3D27D4EB4F
        return <int>(mixed >> 33) & (self.bucket_count - 1)

    cdef void unlink_lru(self, int e) noexcept nogil:
        cdef FdEntry* x = &self.entries[e]
        if x.newer >= 0:
            self.entries[x.newer].older = x.older
        else:
            self.newest = x.older
        if x.older >= 0:
            self.entries[x.older].newer = x.newer
        else:
            self.oldest = x.newer

    cdef void push_newest(self, int e) noexcept nogil:
        cdef FdEntry* x = &self.entries[e]
        x.newer = -1
        x.older = self.newest
        if self.newest >= 0:
            self.entries[self.newest].newer = e
        self.newest = e
        if self.oldest < 0:
            self.oldest = e

    cdef int find(self, fl_slot* s, uint64_t index, int kind) noexcept nogil:
        """The entry of an open file of a segment, made the most recent one; -1 when it is not open."""
        cdef int e = self.buckets[self.bucket(s.index, index, kind)]
        while e >= 0:
            if self.entries[e].slot == s.index and self.entries[e].index == index and self.entries[e].kind == kind:
                if e != self.newest:
                    self.unlink_lru(e)
                    self.push_newest(e)
                return e
            e = self.entries[e].chain
        return -1

    cdef int insert(self, fl_slot* s, uint64_t index, int kind, int fd) noexcept nogil:
        """Keep an open descriptor; -1 when every entry is pinned (the caller keeps the descriptor then)."""
        cdef int e = self.free_list
        cdef int b
        if e < 0:
            if not self.give_back():
                return -1
            e = self.free_list
        self.free_list = self.entries[e].chain
        self.entries[e].fd = fd
        self.entries[e].pins = 0
        self.entries[e].doomed = 0
        self.entries[e].slot = s.index
        self.entries[e].index = index
        self.entries[e].kind = kind
        b = self.bucket(s.index, index, kind)
        self.entries[e].chain = self.buckets[b]
        self.buckets[b] = e
        self.push_newest(e)
        self.open_count += 1
        return e

    cdef int victim(self) noexcept nogil:
        """The entry to close next, -1 when all are pinned: the oldest one whose bytes are flushed, else the oldest one.

        The kernel reports a failed write-back to descriptors that are open; with the last of them it may forget it. So
        one that has seen unflushed writes goes only when there is no other.
        """
        cdef fl_header* h = self.arena.header
        cdef fl_slot* s
        cdef uint64_t index, end
        cdef int e = self.oldest, second = -1
        while e >= 0:
            if self.entries[e].pins == 0:
                s = fl_slot_at(h, self.entries[e].slot)
                index = self.entries[e].index
                end = fl_load(fl_start_at(h, s, index + 1)) if index + 1 < fl_load(&s.table_tail) else fl_load(&s.log_end)
                if self.entries[e].kind != LOG_FILE or end <= fl_load(&s.flushed_end) or index < fl_load(&s.table_head) or not fl_lives(s):
                    return e
                if second < 0:
                    second = e
            e = self.entries[e].newer
        return second

    cdef bint give_back(self) noexcept nogil:
        """Close one descriptor, because there are no more here or in this process; False when all are pinned."""
        cdef int e = self.victim()
        if e < 0:
            return False
        self.drop(e)
        return True

    cdef int acquire(self, fl_slot* s, uint64_t index, uint64_t base) noexcept nogil:
        """The entry of a segment, opened if need be; -errno on failure."""
        return self.acquire_kind(s, index, base, LOG_FILE, O_RDWR)

    cdef int acquire_kind(self, fl_slot* s, uint64_t index, uint64_t base, int kind, int flags) noexcept nogil:
        """The same for any of its files; ``flags`` are those to open it with."""
        cdef char[PATH_BYTES] path
        cdef int fd, e = self.find(s, index, kind)
        if e >= 0:
            return e
        if file_path(self.arena, s, base, kind, path, PATH_BYTES) != 0:
            return -ENAMETOOLONG
        fd = file_open(path, flags, 0o644)
        if fd == -EACCES or fd == -EPERM or fd == -EROFS:
            fd = file_open(path, O_RDONLY, 0)
        if (fd == -EMFILE or fd == -ENFILE) and self.give_back():
            # descriptors ran out elsewhere in this process: with one of ours given back, once more
            fd = file_open(path, flags, 0o644)
        if fd < 0:
            return fd
        e = self.insert(s, index, kind, fd)
        if e < 0:
            close(fd)
            return -EMFILE
        return e

    cdef void pin(self, int entry) noexcept nogil:
        """Keep the descriptor of an entry open until as many calls of ``unpin``."""
        self.entries[entry].pins += 1

    cdef void unpin(self, int entry) noexcept nogil:
        """Take one ``pin`` of an entry back; the last one closes its descriptor where the segment has gone."""
        self.entries[entry].pins -= 1
        if self.entries[entry].pins == 0 and self.entries[entry].doomed:
            self.drop(entry)

    cdef void drop(self, int entry) noexcept nogil:
        """Close an entry that nobody has pinned."""
        cdef FdEntry* x = &self.entries[entry]
        cdef int b = self.bucket(x.slot, x.index, x.kind)
        cdef int e = self.buckets[b], before = -1
        while e != entry:
            before = e
            e = self.entries[e].chain
        if before < 0:
            self.buckets[b] = x.chain
        else:
            self.entries[before].chain = x.chain
        self.unlink_lru(entry)
        close(x.fd)
        x.chain = self.free_list
        self.free_list = entry
        self.open_count -= 1

    def close_unused(self):
        """Close every descriptor that is not in use; for processes that open segments now and then."""
        cdef int after, e = self.newest
        while e >= 0:
            after = self.entries[e].older
            if self.entries[e].pins == 0:
                self.drop(e)
            e = after

    cdef void close_retired(self) noexcept nogil:
        """After segments were unlinked or a partition was deleted: close their descriptors, those in use with their last reader."""
        cdef fl_slot* s
        cdef uint64_t generation = fl_load(&self.arena.header.retention_generation)
        cdef int e, after
        if generation == self.generation:
            return
        self.generation = generation
        e = self.newest
        while e >= 0:
            after = self.entries[e].older
            s = fl_slot_at(self.arena.header, self.entries[e].slot)
            # an index is never used again, also not in the slot's next life
            if self.entries[e].index < fl_load(&s.table_head) or not fl_lives(s):
                if self.entries[e].pins == 0:
                    self.drop(e)
                else:
                    self.entries[e].doomed = 1
            e = after


def locate_offset(Arena arena, uint64_t slot, uint64_t offset):
    """Where the flushed bytes from ``offset`` on lie: ``(index, base, position, end)``; for tools and tests."""
    cdef fl_slot* s = arena.slot(slot)
    cdef Place place
    cdef fl_end visible
    cdef int r
    with nogil:
        r = locate(arena.header, s, offset, &visible, &place)
    if r == LOCATE_OUT_OF_RANGE:
        raise OffsetOutOfRangeError(f"offset {offset} is not in the log, whose visible end is {visible.offset}")
    return None if r == LOCATE_EMPTY else (place.index, place.base, place.position, place.end)

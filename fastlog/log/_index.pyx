"""The indexes of a segment of record batches: from an offset to a place near it, and to the entry itself by a walk.

Files, byte for byte as Apache Kafka has them, beside the segment of the same name:

    .index      for about every 4 kB of the log, or every fifth of larger batches, the last offset of a batch (less the
                segment's base) and where it begins
    .timeindex  at the same moments, the largest time so far and the last offset of the batch that has it

The holder of the append lock writes their entries behind the log's bytes and before it publishes the log end, whose words
count them: what it wrote and did not publish is written over, and repair cuts it off. An index is a help: nothing is refused
because it could not be written, an entry that it lacks makes a walk longer, and one that is wrong is found out, because it
has to name the last offset of the batch at its place.

Source: Apache Kafka 4.2 (LogSegment, OffsetIndex, TimeIndex).
"""

from libc.errno cimport EAGAIN
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset, strerror

from fastlog._bytes cimport be32, be64, put32, put64
from fastlog.log._layout cimport fl_end, fl_slot
from fastlog.log._files cimport file_cut, file_open, file_pread, file_pread_nowait, file_pwrite
from fastlog.log._segments cimport OFFSET_INDEX, TIME_INDEX, SegmentFiles
from fastlog.log.formats._table cimport EntryHead, Format, format_of

cdef extern from "<fcntl.h>" nogil:
    int O_RDWR, O_CREAT, O_TRUNC

cdef extern from "<sys/stat.h>" nogil:
    struct stat_t "stat":
        long st_size
    int fstat(int, stat_t*)

cdef enum:
    BLOCK = 512                  # bytes of an index that are read at once
    MOST_ADDED = 64              # entries by one append; what it has beyond that is found by a longer walk


cdef uint64_t FOR_EVER = <uint64_t>-1


cdef inline int64_t take(int fd, void* out, size_t n, uint64_t position, bint wait) noexcept nogil:
    """Read up to ``n`` bytes; -EAGAIN when that would mean to wait for a disk."""
    cdef int64_t r = -EAGAIN
    if not wait:
        r = file_pread_nowait(fd, out, n, position)
        if r >= 0 or r == -EAGAIN:
            return r
    return file_pread(fd, out, n, position)


# -- from an offset to a place ---------------------------------------------------------------------------------------------------

cdef int walk_to(int fd, const Format* made, uint8_t* window, uint64_t start, uint64_t end, uint64_t offset, bint wait,
                 uint64_t most, Walk* out) noexcept nogil:
    cdef uint64_t read_at = 0, have = 0, spent = 0
    cdef EntryHead head
    cdef int64_t r
    out.position = start
    out.next_offset = 0
    while True:
        if out.position + made.head_bytes > end:
            return WALK_END if out.position == end else WALK_DAMAGED
        if not read_at <= out.position or out.position + made.head_bytes > read_at + have:
            if spent >= most:
                return WALK_FAR
            r = take(fd, window, min(<uint64_t>WINDOW, end - out.position), out.position, wait)
            if r == -EAGAIN:
                return WALK_COLD
            if r < 0:
                return <int>r
            if <uint64_t>r < made.head_bytes:
                # what does not wait ends before the first page that is not in memory, too
                return WALK_DAMAGED if wait else WALK_COLD
            read_at = out.position
            have = <uint64_t>r
            spent += have
        if not made.head(window + (out.position - read_at), &head) or head.bytes > end - out.position:
            return WALK_DAMAGED
        if head.offset < out.next_offset:
            return WALK_DAMAGED
        if head.next_offset > offset:
            return WALKED
        out.next_offset = head.next_offset
        out.position += head.bytes


cdef int index_floor(int fd, uint64_t base, uint64_t offset, bint wait, uint64_t* position, uint64_t* last) noexcept nogil:
    """``last`` is the offset that the entry at ``position`` ends with, if the index is right."""
    cdef uint8_t[BLOCK] block
    cdef stat_t found
    cdef uint64_t low = 0, high, middle, wanted = offset - base, i, n
    cdef int64_t r
    position[0] = last[0] = 0
    if fstat(fd, &found) != 0 or offset <= base:
        return WALKED
    high = <uint64_t>found.st_size // OFFSET_ENTRY
    # the block of entries that has the last one that is not behind the offset; one of zeros is none (preallocated by others)
    while (high - low) * OFFSET_ENTRY > BLOCK:
        middle = low + (high - low) // 2
        r = take(fd, block, OFFSET_ENTRY, middle * OFFSET_ENTRY, wait)
        if r != OFFSET_ENTRY:
            return WALK_COLD if r == -EAGAIN else <int>min(r, <int64_t>0)
        if be32(block) <= wanted and be64(block):
            low = middle
        else:
            high = middle
    if high == low:
        return WALKED
    r = take(fd, block, (high - low) * OFFSET_ENTRY, low * OFFSET_ENTRY, wait)
    if r < 0:
        return WALK_COLD if r == -EAGAIN else <int>r
    n = <uint64_t>r // OFFSET_ENTRY
    for i in range(n):
        if be32(block + i * OFFSET_ENTRY) > wanted or be64(block + i * OFFSET_ENTRY) == 0:
            break
        last[0] = base + be32(block + i * OFFSET_ENTRY)
        position[0] = be32(block + i * OFFSET_ENTRY + 4)
    return WALKED


cdef int seek_entry(int log_fd, int index_fd, const Format* made, uint8_t* window, uint64_t base, uint64_t end, uint64_t offset,
                    bint wait, uint64_t most, Walk* out) noexcept nogil:
    cdef uint64_t position = 0, last = 0
    cdef EntryHead head
    cdef int64_t r
    cdef int status
    if index_fd >= 0:
        status = index_floor(index_fd, base, offset, wait, &position, &last)
        if status == WALK_COLD:
            return WALK_COLD
        if status < 0:
            position = 0  # it helps no more
    if position:
        if position + made.head_bytes > end:
            position = 0
        else:
            r = take(log_fd, window, made.head_bytes, position, wait)
            if r == -EAGAIN:
                return WALK_COLD
            if r < 0:
                return <int>r
            if <uint64_t>r < made.head_bytes and not wait:
                return WALK_COLD
            if <uint64_t>r < made.head_bytes or not made.head(window, &head) or head.next_offset != last + 1:
                position = 0
    status = walk_to(log_fd, made, window, position, end, offset, wait, most, out)
    if status == WALK_DAMAGED and position:
        status = walk_to(log_fd, made, window, 0, end, offset, wait, most, out)
    return status


# -- what appends add ------------------------------------------------------------------------------------------------------------

cdef void begin_segment(fl_end* end) noexcept nogil:
    """The end moves into a segment that is empty."""
    end.unindexed = end.index_entries = end.time_entries = end.indexed_ms = end.largest_ms = end.largest_offset = 0


cdef void add_time(Additions* added, fl_end* end, uint64_t base) noexcept nogil:
    if end.largest_ms <= end.indexed_ms or added.times == MOST_ADDED:
        return
    put64(added.times_bytes + added.times * TIME_ENTRY, end.largest_ms - 1)
    put32(added.times_bytes + added.times * TIME_ENTRY + 8, <uint32_t>(end.largest_offset - base))
    added.times += 1
    end.indexed_ms = end.largest_ms


cdef void add_entry(Additions* added, fl_end* end, uint64_t base, uint64_t position, uint64_t size, uint64_t last_offset,
                    int64_t largest_ms) noexcept nogil:
    """An entry of the log was written at this place of the file; ``end`` is of the segment it was written to."""
    if largest_ms >= 0 and <uint64_t>largest_ms + 1 > end.largest_ms:
        end.largest_ms = <uint64_t>largest_ms + 1
        end.largest_offset = last_offset
    # a walk costs by the batch, an entry two writes: large batches share one, up to where a walk would wait for much of a disk
    cdef uint64_t interval = min(max(4 * size, <uint64_t>INDEX_INTERVAL), <uint64_t>MOST_INDEX_INTERVAL)
    if end.unindexed > interval and added.entries < MOST_ADDED and last_offset - base <= <uint64_t>0x7FFFFFFF:
        put32(added.offsets_bytes + added.entries * OFFSET_ENTRY, <uint32_t>(last_offset - base))
        put32(added.offsets_bytes + added.entries * OFFSET_ENTRY + 4, <uint32_t>position)
        added.entries += 1
        add_time(added, end, base)
        end.unindexed = 0
    end.unindexed += size


cdef bint put_at_end(SegmentFiles files, fl_slot* s, uint64_t index, uint64_t base, int kind, const uint8_t* data, size_t size,
                     uint64_t position) noexcept nogil:
    cdef int entry = files.acquire_kind(s, index, base, kind, O_RDWR | O_CREAT)
    if entry < 0:
        return False
    if position == 0 and file_cut(files.fd(entry), 0) != 0:  # of a segment of this name that was cut away
        return False
    return file_pwrite(files.fd(entry), data, size, position) == <int64_t>size


cdef void write_additions(SegmentFiles files, fl_slot* s, uint64_t index, uint64_t base, const Additions* added,
                          fl_end* end) noexcept nogil:
    """Under the append lock: write what is to be added, and count it in ``end``, which is published afterwards."""
    if added.entries and put_at_end(files, s, index, base, OFFSET_INDEX, added.offsets_bytes,
                                    <size_t>added.entries * OFFSET_ENTRY, end.index_entries * OFFSET_ENTRY):
        end.index_entries += <uint64_t>added.entries
    if added.times and put_at_end(files, s, index, base, TIME_INDEX, added.times_bytes,
                                  <size_t>added.times * TIME_ENTRY, end.time_entries * TIME_ENTRY):
        end.time_entries += <uint64_t>added.times


cdef void seal(SegmentFiles files, fl_slot* s, uint64_t index, uint64_t base, fl_end* end) noexcept nogil:
    """Under the append lock, before the next segment begins: the time index ends with the segment's largest time."""
    cdef Additions added
    added.entries = added.times = 0
    add_time(&added, end, base)
    write_additions(files, s, index, base, &added, end)


cdef void cut_indexes(SegmentFiles files, fl_slot* s, uint64_t index, uint64_t base, const fl_end* end) noexcept nogil:
    """In a repair: nothing stands behind the entries that belong to the log end. What cannot be cut is written over later."""
    cdef int entry = files.acquire_kind(s, index, base, OFFSET_INDEX, O_RDWR)
    if entry >= 0:
        file_cut(files.fd(entry), end.index_entries * OFFSET_ENTRY)
    entry = files.acquire_kind(s, index, base, TIME_INDEX, O_RDWR)
    if entry >= 0:
        file_cut(files.fd(entry), end.time_entries * TIME_ENTRY)


# -- for recovery and tools ----------------------------------------------------------------------------------------------------

STATUS = {WALKED: "found", WALK_END: "end", WALK_DAMAGED: "damaged"}


def seek(int fd, int index_fd, int format_number, uint64_t base, uint64_t end, uint64_t offset):
    """``(status, position, next offset)`` of the entry that holds an offset in an open segment of ``end`` bytes.

    ``found`` with its position; ``end`` or ``damaged`` with the place where the walk ended. The next offset is the one
    behind the entries before it, 0 where none was walked. ``index_fd`` -1: there is no index.

    Raises:
        OSError: the file cannot be read.
    """
    cdef uint8_t[WINDOW] window
    cdef Walk walked
    cdef int status
    with nogil:
        status = seek_entry(fd, index_fd, format_of(<uint32_t>format_number), window, base, end, offset, True, FOR_EVER, &walked)
    if status < 0:
        raise OSError(-status, strerror(-status).decode())
    return STATUS[status], walked.position, walked.next_offset


def boundary(int fd, int format_number, uint64_t start, uint64_t target, uint64_t end, uint64_t most_bytes):
    """The first position at or behind ``target`` where an entry begins, walking from one at ``start``; less far where the walk
    ends early: at ``end``, before what can be no entry, and once it has passed ``most_bytes``.

    Raises:
        OSError: the file cannot be read.
    """
    cdef const Format* made = format_of(<uint32_t>format_number)
    cdef uint8_t[BLOCK] window
    cdef EntryHead head
    cdef uint64_t position = start
    cdef int64_t r = 0
    with nogil:
        while position < target and position - start < most_bytes and position + made.head_bytes <= end:
            r = file_pread(fd, window, made.head_bytes, position)
            if r < <int64_t>made.head_bytes or not made.head(window, &head) or head.bytes > end - position:
                break
            position += head.bytes
    if r < 0:
        raise OSError(-r, strerror(<int>-r).decode())
    return position


def entries(int fd, int format_number, uint64_t base, uint64_t end, bint is_sealed):
    """What belongs into the indexes of an open segment of ``end`` bytes: ``(.index, .timeindex, (unindexed, entries, times,
    1 + the last indexed time, 1 + the largest time, its offset))``, as appends make them. Ends before what is no entry. Of a
    sealed one, the time index ends with the largest time.

    Raises:
        OSError: the file cannot be read.
    """
    cdef const Format* made = format_of(<uint32_t>format_number)
    cdef uint8_t[BLOCK] window
    cdef EntryHead head
    cdef fl_end state
    cdef Additions added
    cdef uint64_t position = 0
    cdef int64_t r = 0
    cdef bytearray offsets = bytearray(), times = bytearray()
    memset(&state, 0, sizeof(state))
    added.entries = added.times = 0
    while position + made.head_bytes <= end:
        with nogil:
            while position + made.head_bytes <= end and added.entries < MOST_ADDED:
                r = file_pread(fd, window, made.head_bytes, position)
                if r < <int64_t>made.head_bytes or not made.head(window, &head) or head.bytes > end - position \
                        or head.offset < base:
                    end = position
                    break
                add_entry(&added, &state, base, position, head.bytes, head.next_offset - 1, head.max_timestamp)
                position += head.bytes
        offsets += (<char*>added.offsets_bytes)[:added.entries * OFFSET_ENTRY]
        times += (<char*>added.times_bytes)[:added.times * TIME_ENTRY]
        added.entries = added.times = 0
    if r < 0:
        raise OSError(-r, strerror(<int>-r).decode())
    if is_sealed:
        add_time(&added, &state, base)
        times += (<char*>added.times_bytes)[:added.times * TIME_ENTRY]
    return bytes(offsets), bytes(times), (
        state.unindexed, len(offsets) // OFFSET_ENTRY, len(times) // TIME_ENTRY, state.indexed_ms, state.largest_ms,
        state.largest_offset,
    )


INTERVAL = INDEX_INTERVAL


def ends_with(int fd, int format_number, uint64_t position, uint64_t end, uint64_t last_offset):
    """Whether an entry begins at a position of an open segment of ``end`` bytes whose last offset is this.

    Raises:
        OSError: the file cannot be read.
    """
    cdef const Format* made = format_of(<uint32_t>format_number)
    cdef uint8_t[BLOCK] window
    cdef EntryHead head
    cdef int64_t r = file_pread(fd, window, made.head_bytes, position)
    if r < 0:
        raise OSError(-r, strerror(<int>-r).decode())
    return r == <int64_t>made.head_bytes and made.head(window, &head) and head.bytes <= end - position \
        and head.next_offset == last_offset + 1


def walk_times(int fd, int format_number, uint64_t start, uint64_t end, int64_t time_ms, uint64_t most_bytes):
    """Walk from an entry at ``start`` of an open segment to the first whose largest time is not before this one.

    ``(position, bytes of it)``; the bytes are 0 where the walk ended without it: at ``end``, before what is no entry, or
    behind ``most_bytes``.

    Raises:
        OSError: the file cannot be read.
    """
    cdef const Format* made = format_of(<uint32_t>format_number)
    cdef uint8_t[BLOCK] window
    cdef EntryHead head
    cdef uint64_t position = start, found = 0
    cdef int64_t r = 0
    with nogil:
        while position - start <= most_bytes and position + made.head_bytes <= end:
            r = file_pread(fd, window, made.head_bytes, position)
            if r < <int64_t>made.head_bytes or not made.head(window, &head) or head.bytes > end - position:
                break
            if head.max_timestamp >= time_ms:
                found = head.bytes
                break
            position += head.bytes
    if r < 0:
        raise OSError(-r, strerror(<int>-r).decode())
    return position, found

"""Which messages of a topic have been seen, by producer and number, and how many in which window. No object for any.

The numbers of a producer are bits in pages of 32768; a page whose bits are all set is kept as that fact alone. So a
message costs a bit, and nothing once its neighbours are there.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove, memset

from fastlog._bytes cimport be64
from fastlog._batch cimport Entry, next_entry
from fastlog._envelope cimport PARSED, Parts, parse


cdef extern from *:
    int popcount "__builtin_popcountll"(uint64_t word) nogil

cdef enum:
    PAGE_SHIFT = 15
    PAGE_NUMBERS = 1 << PAGE_SHIFT
    PAGE_WORDS = PAGE_NUMBERS // 64
    PAGE_SIZE = PAGE_NUMBERS // 8
    ID_BYTES = 17
    ID_KIND = 0x01
    FIRST_TRACKS = 64
    BOUNDS = 17
    NO_TIME = -1

cdef int64_t[BOUNDS] bounds_ms = [
    1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 7_200_000,
]
LATENCY_BOUNDS_MS = tuple(bounds_ms[i] for i in range(BOUNDS))

cdef uint64_t OTHERS = <uint64_t>1 << 63    # with a server's id: its messages without a number


cdef struct Cell:
    int64_t start                  # of the window, ms
    int64_t messages
    int64_t duplicates


cdef struct Page:
    int64_t number                 # the first number in it is this times PAGE_NUMBERS
    uint64_t* bits                 # NULL: all are set
    int32_t count                  # bits that are set
    int32_t published              # of these, when it was last published


cdef struct Track:
    uint64_t key                   # the producer's id, or OTHERS and a server's
    uint32_t server_id
    Cell* cells
    Py_ssize_t cell_count
    Py_ssize_t cell_capacity
    Py_ssize_t cell                # the last one used
    Page* pages                    # ascending
    Py_ssize_t page_count
    Py_ssize_t page_capacity
    Py_ssize_t page                # the last one used
    int64_t part                   # of the topic, in which it was last seen
    int64_t first                  # the first number in that part


cdef void* with_room(void* items, Py_ssize_t count, Py_ssize_t* capacity, size_t size) noexcept nogil:
    """An array of ``count`` items of ``size`` bytes, with room for one more; NULL, and unchanged, without memory."""
    if count == capacity[0]:
        items = realloc(items, <size_t>(2 * count + 4) * size)
        if items != NULL:
            capacity[0] = 2 * count + 4
    return items


cdef Cell* cell_at(Track* track, int64_t start) noexcept nogil:
    """The cell of a window; NULL when there is no memory."""
    cdef Py_ssize_t i
    cdef Cell* cells
    if track.cell < track.cell_count and track.cells[track.cell].start == start:
        return &track.cells[track.cell]
    i = track.cell_count
    while i and track.cells[i - 1].start > start:
        i -= 1
    if not i or track.cells[i - 1].start != start:
        cells = <Cell*>with_room(track.cells, track.cell_count, &track.cell_capacity, sizeof(Cell))
        if cells == NULL:
            return NULL
        track.cells = cells
        memmove(&track.cells[i + 1], &track.cells[i], <size_t>(track.cell_count - i) * sizeof(Cell))
        memset(&track.cells[i], 0, sizeof(Cell))
        track.cells[i].start = start
        track.cell_count += 1
        i += 1
    track.cell = i - 1
    return &track.cells[i - 1]


cdef Py_ssize_t find_page(const Track* track, int64_t number) noexcept nogil:
    """The index of the page with this number, or the one at which it would have to be inserted."""
    cdef Py_ssize_t low = 0, high = track.page_count, middle
    while low < high:
        middle = (low + high) >> 1
        if track.pages[middle].number < number:
            low = middle + 1
        else:
            high = middle
    return low


cdef Page* page_at(Track* track, int64_t number) noexcept nogil:
    """The page with this number, made if need be; NULL when there is no memory."""
    cdef Py_ssize_t i
    cdef Page* pages
    cdef uint64_t* bits
    if track.page < track.page_count and track.pages[track.page].number == number:
        return &track.pages[track.page]
    i = find_page(track, number)
    if i == track.page_count or track.pages[i].number != number:
        pages = <Page*>with_room(track.pages, track.page_count, &track.page_capacity, sizeof(Page))
        if pages == NULL:
            return NULL
        track.pages = pages
        bits = <uint64_t*>calloc(PAGE_WORDS, sizeof(uint64_t))
        if bits == NULL:
            return NULL
        memmove(&track.pages[i + 1], &track.pages[i], <size_t>(track.page_count - i) * sizeof(Page))
        track.pages[i].number, track.pages[i].bits = number, bits
        track.pages[i].count = track.pages[i].published = 0
        track.page_count += 1
    track.page = i
    return &track.pages[i]


cdef inline void fill_up(Page* page) noexcept nogil:
    """Free the bits of a page once all of them are set."""
    if page.count == PAGE_NUMBERS and page.bits != NULL:
        free(page.bits)
        page.bits = NULL


cdef int mark(Track* track, int64_t number) noexcept nogil:
    """Note that a number was seen: 1 for the first time, 0 not, -1 when there is no memory."""
    cdef Page* page = page_at(track, number >> PAGE_SHIFT)
    cdef uint64_t bit = <uint64_t>1 << (number & 63)
    cdef Py_ssize_t word = (number & (PAGE_NUMBERS - 1)) >> 6
    if page == NULL:
        return -1
    if page.bits == NULL or page.bits[word] & bit:
        return 0
    page.bits[word] |= bit
    page.count += 1
    fill_up(page)
    return 1


cdef int64_t seen_in(const Page* page, int64_t first, int64_t last) noexcept nogil:
    """How many of the page's numbers first … last (0 … 32767) were seen."""
    cdef int64_t found = 0, word
    cdef uint64_t bits
    if page.bits == NULL:
        return last - first + 1
    for word in range(first >> 6, (last >> 6) + 1):
        bits = page.bits[word]
        if word == first >> 6:
            bits &= ~<uint64_t>0 << (first & 63)
        if word == last >> 6:
            bits &= ~<uint64_t>0 >> (63 - (last & 63))
        found += popcount(bits)
    return found


cdef class Tally:
    cdef int64_t window_ms
    cdef Track** slots             # by hash of the key, NULL where nothing is
    cdef Py_ssize_t slot_count     # a power of two
    cdef Py_ssize_t track_count
    cdef Track* last               # the last one used
    cdef int64_t part
    cdef int64_t now_ms            # of the messages that are being counted; NO_TIME: it is not asked how old they are
    cdef int64_t[BOUNDS + 1] ages  # messages by their age: up to each bound, and beyond the last
    cdef double age_ms             # of all of these
    cdef readonly int64_t messages
    cdef readonly int64_t unwrapped

    def __cinit__(self, int64_t window_ms):
        if window_ms < 1:
            raise ValueError("a window is at least one millisecond long")
        self.window_ms = window_ms
        self.slots = <Track**>calloc(FIRST_TRACKS, sizeof(Track*))
        if self.slots == NULL:
            raise MemoryError
        self.slot_count = FIRST_TRACKS

    def __dealloc__(self):
        cdef Py_ssize_t i, j
        cdef Track* track
        for i in range(self.slot_count):
            track = self.slots[i]
            if track != NULL:
                for j in range(track.page_count):
                    free(track.pages[j].bits)
                free(track.pages)
                free(track.cells)
                free(track)
        free(self.slots)

    # -- counting ------------------------------------------------------------------------------------------------------

    cdef Py_ssize_t slot_of(self, uint64_t key) noexcept nogil:
        """The slot that has a key's track, or the free one where it belongs."""
        cdef uint64_t mixed = (key ^ (key >> 31)) * <uint64_t>0x9E3779B97F4A7C15
        cdef Py_ssize_t i = <Py_ssize_t>((mixed >> 32) & <uint64_t>(self.slot_count - 1))
        while self.slots[i] != NULL and self.slots[i].key != key:
            i = (i + 1) & (self.slot_count - 1)
        return i

    cdef Track* track_of(self, uint64_t key, uint32_t server_id) noexcept nogil:
        """The track of a producer, made if need be; NULL when there is no memory."""
        cdef Track** old = self.slots
        cdef Track** slots
        cdef Track* track
        cdef Py_ssize_t i, old_count = self.slot_count
        if self.last != NULL and self.last.key == key:
            return self.last
        i = self.slot_of(key)
        if self.slots[i] != NULL:
            self.last = self.slots[i]
            return self.last
        if 2 * (self.track_count + 1) > self.slot_count:
            slots = <Track**>calloc(2 * <size_t>old_count, sizeof(Track*))
            if slots == NULL:
                return NULL
            self.slots, self.slot_count = slots, 2 * old_count
            for i in range(old_count):
                if old[i] != NULL:
                    slots[self.slot_of(old[i].key)] = old[i]
            free(old)
            i = self.slot_of(key)
        track = <Track*>calloc(1, sizeof(Track))
        if track == NULL:
            return NULL
        track.key, track.server_id, track.part, track.first = key, server_id, -1, -1
        self.slots[i] = self.last = track
        self.track_count += 1
        return track

    cdef int note(self, const unsigned char* p, Py_ssize_t size, bint again) noexcept nogil:
        """Count one payload; -1 when there is no memory."""
        cdef Parts parts
        cdef Track* track
        cdef Cell* cell
        cdef const unsigned char* identity
        cdef int64_t start, number = -1
        cdef uint64_t key
        cdef int fresh = 1
        self.messages += 1
        if parse(p, size, &parts) != PARSED:
            self.unwrapped += 1
            return 0
        key = OTHERS | parts.server_id
        identity = p + parts.deduplication
        # What is not ours in the field may have any length, and any bytes.
        if parts.deduplication_bytes == ID_BYTES and identity[0] == ID_KIND and identity[1] < 0x80 and identity[9] < 0x80:
            key = be64(identity + 1)
            number = <int64_t>be64(identity + 9)
        track = self.track_of(key, parts.server_id)
        if track == NULL:
            return -1
        if number >= 0:
            fresh = mark(track, number)
            if fresh < 0:
                return -1
            if track.part != self.part:
                track.part, track.first = self.part, number
        if again and not fresh:
            return 0
        start = parts.time_ms % self.window_ms
        if start < 0:
            start += self.window_ms
        cell = cell_at(track, parts.time_ms - start)
        if cell == NULL:
            return -1
        cell.messages += 1
        cell.duplicates += not fresh
        if fresh and self.now_ms != NO_TIME:
            self.note_age(<double>self.now_ms - <double>parts.time_ms)
        return 0

    cdef void note_age(self, double age) noexcept nogil:
        """Count the age of a message in ms, whatever its producer says; one from the future, as clocks differ, has none."""
        cdef int i = 0
        if age < 0:
            age = 0
        while i < BOUNDS and age > bounds_ms[i]:
            i += 1
        self.ages[i] += 1
        self.age_ms += age

    def latencies(self):
        """How many messages were how old when they were counted: up to each of LATENCY_BOUNDS_MS, beyond; all ages in ms."""
        return tuple(self.ages[i] for i in range(BOUNDS + 1)), self.age_ms

    def count_entries(self, entries, Py_ssize_t count, bint again=False, int64_t now_ms=NO_TIME):
        cdef Py_buffer view
        cdef Entry entry
        cdef Py_ssize_t at = 0, i
        cdef int status = 0
        self.now_ms = now_ms
        PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                for i in range(count):
                    if not next_entry(<const unsigned char*>view.buf + at, view.len - at, &entry):
                        status = -2
                        break
                    if self.note(entry.payload, entry.payload_bytes, again):
                        status = -1
                        break
                    at += entry.entry_bytes
        finally:
            PyBuffer_Release(&view)
        if status == -1:
            raise MemoryError
        if status == -2:
            raise BufferError("the bytes changed while they were read, or there are fewer messages")

    def count_columns(self, buffer, const int64_t[::1] starts not None, const int32_t[::1] lengths not None,
                      bint again=False, int64_t now_ms=NO_TIME):
        cdef Py_buffer view
        cdef Py_ssize_t i, count = starts.shape[0]
        cdef int status = 0
        if lengths.shape[0] != count:
            raise ValueError("starts and lengths have different lengths")
        self.now_ms = now_ms
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                for i in range(count):
                    if starts[i] < 0 or lengths[i] < 0 or starts[i] > view.len - lengths[i]:
                        status = -2
                        break
                    if self.note(<const unsigned char*>view.buf + starts[i], lengths[i], again):
                        status = -1
                        break
        finally:
            PyBuffer_Release(&view)
        if status == -1:
            raise MemoryError
        if status == -2:
            raise ValueError("a message lies outside the buffer")

    def begin_part(self):
        """The next messages come from another part of the topic, in the order in which they were stored."""
        self.part += 1

    def firsts(self):
        """The first number of each producer in the part that was begun last."""
        return {
            self.slots[i].key: self.slots[i].first
            for i in range(self.slot_count)
            if self.slots[i] != NULL and self.slots[i].part == self.part
        }

    # -- asking --------------------------------------------------------------------------------------------------------

    def producers(self):
        found = [
            (self.slots[i].key, self.slots[i].server_id)
            for i in range(self.slot_count)
            if self.slots[i] != NULL and not self.slots[i].key & OTHERS
        ]
        found.sort()
        return found

    def cells(self):
        cdef Track* track
        cdef Py_ssize_t i, j
        cdef list found = []
        for i in range(self.slot_count):
            track = self.slots[i]
            if track != NULL:
                key = None if track.key & OTHERS else track.key
                for j in range(track.cell_count):
                    found.append((
                        key, track.server_id, track.cells[j].start, track.cells[j].messages, track.cells[j].duplicates
                    ))
        return found

    cdef Track* known(self, uint64_t producer_id):
        return self.slots[self.slot_of(producer_id)]

    def seen(self, uint64_t producer_id, int64_t first, int64_t last):
        cdef Track* track = self.known(producer_id)
        cdef Py_ssize_t i
        cdef int64_t found = 0, base
        if track == NULL or first > last:
            return 0
        for i in range(find_page(track, first >> PAGE_SHIFT), track.page_count):
            base = track.pages[i].number << PAGE_SHIFT
            if base > last:
                break
            found += seen_in(&track.pages[i], max(first - base, 0), min(last - base, <int64_t>PAGE_NUMBERS - 1))
        return found

    def missing(self, uint64_t producer_id, int64_t first, int64_t last, Py_ssize_t most=100):
        cdef Track* track = self.known(producer_id)
        cdef Py_ssize_t i = 0
        cdef int64_t at = first, base, stop, begun
        cdef Page* page
        cdef list found = []
        if track != NULL:
            i = find_page(track, first >> PAGE_SHIFT)
        begun = -1
        while at <= last:
            page = NULL
            if track != NULL and i < track.page_count:
                page = &track.pages[i]
                base = page.number << PAGE_SHIFT
                if at < base:
                    page = NULL
                    stop = min(base - 1, last)
                else:
                    stop = min(base + PAGE_NUMBERS - 1, last)
                    i += 1
            else:
                stop = last
            if page == NULL:
                if begun < 0:
                    begun = at
            elif page.bits == NULL:
                if begun >= 0:
                    found.append((begun, at - 1))
                    begun = -1
            else:
                while True:
                    if page.bits[(at - base) >> 6] >> ((at - base) & 63) & 1:
                        if begun >= 0:
                            found.append((begun, at - 1))
                            begun = -1
                            if len(found) >= most:
                                return found
                    elif begun < 0:
                        begun = at
                    if at == stop:
                        break
                    at += 1
            if stop == last:
                break               # it may be the highest number there is
            at = stop + 1
        if begun >= 0:
            found.append((begun, last))
        return found[:most]

    # -- pages, for those who count elsewhere --------------------------------------------------------------------------

    def changed_pages(self):
        cdef Track* track
        cdef Page* page
        cdef Py_ssize_t i, j
        cdef list found = []
        for i in range(self.slot_count):
            track = self.slots[i]
            if track == NULL or track.key & OTHERS:
                continue
            for j in range(track.page_count):
                page = &track.pages[j]
                if page.count != page.published:
                    bits = b"\xff" * PAGE_SIZE if page.bits == NULL else \
                        PyBytes_FromStringAndSize(<const char*>page.bits, PAGE_SIZE)
                    found.append((track.key, track.server_id, page.number, page.count, bits))
        return found

    def note_published(self, pages):
        cdef Track* track
        cdef Py_ssize_t i
        for producer_id, _, number, count, _ in pages:
            track = self.known(producer_id)
            if track != NULL:
                i = find_page(track, number)
                if i < track.page_count and track.pages[i].number == number:
                    track.pages[i].published = count

    def merge_page(self, uint64_t producer_id, uint32_t server_id, int64_t number, bytes bits not None):
        cdef Track* track
        cdef Page* page
        cdef const unsigned char* source = <const unsigned char*>PyBytes_AS_STRING(bits)
        cdef uint64_t word
        cdef Py_ssize_t i
        if PyBytes_GET_SIZE(bits) != PAGE_SIZE or producer_id & OTHERS or not 0 <= number < <int64_t>1 << 48:
            raise ValueError("no page of a producer")
        track = self.track_of(producer_id, server_id)
        page = page_at(track, number) if track != NULL else NULL
        if page == NULL:
            raise MemoryError
        if page.bits == NULL:
            return
        for i in range(PAGE_WORDS):
            memcpy(&word, source + 8 * i, 8)
            word &= ~page.bits[i]
            page.bits[i] |= word
            page.count += popcount(word)
        fill_up(page)

"""Envelopes for what a producer sends, and the numbers of its messages.

A ``Stamp`` belongs to one topic of one producer. Each message gets the time of the call and, when the producer is
audited, the stamp's id and the message's number, counted from 0. Which numbers fell into which window of time is kept.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from fastlog._bytes cimport put64
from fastlog._envelope cimport (
    DEDUPLICATION_LENGTH_BYTES, HAS_DEDUPLICATION, HAS_KEY, HEAD_BYTES, KEY_LENGTH_BYTES, put_deduplication, put_head,
    put_key,
)

from fastlog.errors import ArgumentError

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* now)
    int CLOCK_REALTIME

cdef enum:
    NUMBER_BYTES = 17             # kind 1, the stamp's id 8, the message's number 8
    NUMBER_KIND = 0x01


cdef Py_ssize_t find_key(object key, const unsigned char** p) except -2:
    cdef Py_ssize_t size = -1
    p[0] = NULL
    if type(key) is str:
        try:
            p[0] = <const unsigned char*>PyUnicode_AsUTF8AndSize(key, &size)
        except UnicodeEncodeError:
            raise ArgumentError(f"a key that is text has a form in UTF-8, not {ascii(key)}") from None
    elif PyBytes_CheckExact(key):
        p[0] = <const unsigned char*>PyBytes_AS_STRING(key)
        size = PyBytes_GET_SIZE(key)
    return size


cdef class Stamp:
    def __init__(self, str topic, uint32_t server_id, int64_t producer_id, int64_t window_ms, bint numbered):
        if window_ms < 1:
            raise ValueError("a window is at least one millisecond long")
        self.topic, self.server_id, self.producer_id = topic, server_id, producer_id
        self.window_ms, self.numbered = window_ms, numbered
        self.held = []
        self.voids = []

    def __dealloc__(self):
        free(self.runs)

    cdef Py_ssize_t extra(self, Py_ssize_t key_bytes) noexcept:
        """The bytes that an envelope adds to a payload; ``key_bytes`` is -1 where there is no key."""
        cdef Py_ssize_t size = HEAD_BYTES
        if key_bytes >= 0:
            size += KEY_LENGTH_BYTES + key_bytes
        if self.numbered:
            size += DEDUPLICATION_LENGTH_BYTES + NUMBER_BYTES
        return size

    def size_with(self, Py_ssize_t size, key):
        """How many bytes a payload of ``size`` bytes has with its envelope."""
        cdef const unsigned char* p
        return size + self.extra(find_key(key, &p))

    cdef int finish_run(self) except -1:
        """Keep the run of numbers that is being given, if it has any, and begin another one."""
        cdef Run* runs
        cdef Py_ssize_t capacity
        if self.first < self.next:
            if self.run_count == self.run_capacity:
                capacity = max(<Py_ssize_t>8, 2 * self.run_capacity)
                runs = <Run*>realloc(self.runs, capacity * sizeof(Run))
                if runs == NULL:
                    raise MemoryError
                self.runs, self.run_capacity = runs, capacity
            self.runs[self.run_count].window = self.window
            self.runs[self.run_count].first = self.first
            self.runs[self.run_count].end = self.next
            self.run_count += 1
            self.first = self.next
        return 0

    cdef int turn(self, int64_t now) except -1:
        """Finish the run, and begin one in the window of the time ``now``, in ms since 1970."""
        cdef int64_t past = now % self.window_ms
        self.finish_run()
        self.window = now - past - (self.window_ms if past < 0 else 0)
        self.window_end = self.window + self.window_ms
        return 0

    cdef bytes wrap(self, object value, const unsigned char* key, Py_ssize_t key_bytes):
        """The value, which is bytes, in an envelope of now with the next number; ``key_bytes`` -1: without a key."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value), at = HEAD_BYTES
        cdef bytes made = PyBytes_FromStringAndSize(NULL, size + self.extra(key_bytes))
        cdef unsigned char* out = <unsigned char*>PyBytes_AS_STRING(made)
        cdef unsigned char number[NUMBER_BYTES]
        cdef timespec clock
        cdef int64_t now
        clock_gettime(CLOCK_REALTIME, &clock)
        now = clock.tv_sec * <int64_t>1000 + clock.tv_nsec // 1000000 + self.shift_ms
        put_head(
            out, (HAS_KEY if key_bytes >= 0 else 0) | (HAS_DEDUPLICATION if self.numbered else 0), now, self.server_id
        )
        if key_bytes >= 0:
            at += put_key(out + at, key, key_bytes)
        if self.numbered:
            if now < self.window or now >= self.window_end:
                self.turn(now)
            number[0] = NUMBER_KIND
            put64(number + 1, <uint64_t>self.producer_id)
            put64(number + 9, <uint64_t>self.next)
            at += put_deduplication(out + at, number, NUMBER_BYTES)
            self.next += 1
        memcpy(out + at, PyBytes_AS_STRING(value), <size_t>size)
        return made

    def wrap_all(self, list values not None, key, list keys=None):
        cdef const unsigned char* p
        cdef Py_ssize_t key_bytes = find_key(key, &p), i, count = len(values)
        cdef list made
        cdef bytes one
        if keys is not None:
            for i in range(count):
                find_key(keys[i], &p)
        for i in range(count):
            if not PyBytes_CheckExact(values[i]):
                raise ArgumentError(f"a payload is bytes, not {type(values[i]).__name__}")
        # The only step here that may run other code, since a collection of garbage may begin: no number is given yet.
        made = PyList_New(count)
        for i in range(count):
            if keys is not None:
                key_bytes = find_key(keys[i], &p)
            one = self.wrap(values[i], p, key_bytes)
            Py_INCREF(one)
            PyList_SET_ITEM(made, i, one)
        return made

    cdef void take_back(self, int64_t count) noexcept:
        """Take the last ``count`` numbers back: no message has them, and nothing else has run since they were given."""
        self.next -= count
        # Runs that were begun meanwhile: they end at the number to be given next, and empty ones go.
        while self.run_count and self.runs[self.run_count - 1].end > self.next:
            self.runs[self.run_count - 1].end = self.next
            if self.runs[self.run_count - 1].first >= self.next:
                self.run_count -= 1
            else:
                break
        if self.first > self.next:
            self.first = self.next

    def hold(self):
        self.held.append(self.next)
        return self.next

    def release(self, int64_t number):
        self.held.remove(number)

    def begin(self, sending, list values not None, key, list keys=None):
        cdef list made = self.wrap_all(values, key, keys)
        cdef int64_t first = self.next - (len(made) if self.numbered else 0)
        self.held.append(first)
        sending.payloads, sending.held = made, first

    def end(self, sending):
        cdef int64_t unsent = len(sending.payloads) - sending.sent
        if sending.held is None:
            return
        if self.numbered:
            self.void(sending.held + sending.sent, unsent)
        self.release(sending.held)
        sending.held = None

    def void(self, int64_t first, int64_t count):
        if count > 0:
            self.voids.append((first, first + count))

    def take_voids(self):
        voids, self.voids = self.voids, []
        return voids

    def take_runs(self):
        cdef int64_t limit = self.next, end
        cdef Py_ssize_t i, kept = 0
        cdef list found = []
        cdef Run run
        for number in self.held:
            limit = min(limit, <int64_t>number)
        self.finish_run()
        self.window = self.window_end = 0
        for i in range(self.run_count):
            run = self.runs[i]
            end = min(run.end, limit)
            if run.first < end:
                found.append((run.window, run.first, end))
            if end < run.end:
                run.first = max(run.first, end)
                self.runs[kept] = run
                kept += 1
        self.run_count = kept
        return found

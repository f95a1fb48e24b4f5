"""Counts the messages of a set with its wrappers opened, in steps of bounded work.

What a wrapper costs does not depend on what is in it alone: one that is empty takes a decompressor all the same. So a
step ends by bytes or by wrappers, whichever comes first, and whoever counts for many takes one step of each in turn.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, uint32_t

from fastlog._bytes cimport GIL_SPAN_BYTES, be32
from fastlog._segment cimport CODEC_MASK, ENTRY_HEADER_BYTES, LENGTH_BYTES, SCAN_OK, SCAN_TAIL, Scan, scan_set

from fastlog import codecs
from fastlog.errors import InvalidMessageError


cdef class _Level:
    """A set that is being walked: the one that was given, or what comes out of one wrapper."""

    cdef object slices           # what is still to come out of the wrapper; None at the top
    cdef object span             # whole entries, among which wrappers are looked for
    cdef Py_ssize_t at, end      # in the span
    cdef object held             # the beginning of an entry that is not whole yet: a list of bytes
    cdef Py_ssize_t held_bytes, needed_bytes
    cdef Py_ssize_t position     # of the held bytes in the set
    cdef object failure          # what is wrong behind the span

    def __cinit__(self, slices):
        self.slices = slices
        self.held = []
        self.needed_bytes = LENGTH_BYTES


cdef class DeepCount:
    """See the ``.pyi``."""

    cdef object budget
    cdef object damaged
    cdef list levels
    cdef Py_ssize_t wrapper_at   # at the top, where the wrapper begins that is open
    cdef readonly long long count

    def __init__(self, entries, long long plain, Py_ssize_t valid_bytes, budget, damaged):
        cdef _Level top = _Level(None)
        self.budget = budget
        self.damaged = damaged
        self.count = plain
        top.span = entries
        top.end = valid_bytes
        self.levels = [top]

    def step(self, Py_ssize_t most_bytes, Py_ssize_t most_wrappers):
        cdef Py_ssize_t done_bytes = 0, done_wrappers = 0
        cdef _Level level
        try:
            while self.levels:
                level = <_Level>self.levels[len(self.levels) - 1]
                if level.at < level.end:
                    if self.enter(level):
                        done_wrappers += 1
                elif level.failure is not None:
                    raise level.failure
                elif level.slices is None:
                    self.levels.pop()
                else:
                    part = next(level.slices, None)
                    if part is None:
                        if level.held_bytes:
                            raise InvalidMessageError(
                                f"the compressed set ends inside the message at byte {level.position}"
                            )
                        self.levels.pop()
                    else:
                        done_bytes += len(<bytes>part)
                        self.take(level, <bytes>part)
                if done_bytes > most_bytes or done_wrappers > most_wrappers:
                    return False
        except InvalidMessageError as error:
            self.levels = []
            # positions inside decompressed bytes help nobody: the wrapper at the top is named
            raise type(error)(f"{error}; in the wrapper at byte {self.wrapper_at}") from error
        return True

    cdef bint enter(self, _Level level) except -1:
        """Open the next wrapper of the span; False when there is none."""
        cdef Py_buffer view
        cdef const unsigned char* entry
        cdef int32_t size
        cdef Py_ssize_t start = -1
        cdef int codec = 0
        PyObject_GetBuffer(level.span, &view, PyBUF_SIMPLE)
        try:
            while level.end - level.at >= LENGTH_BYTES + 5:
                entry = <const unsigned char*>view.buf + level.at
                size = <int32_t>be32(entry)
                if size < 5 or size > level.end - level.at - LENGTH_BYTES:
                    break
                if entry[4] == 1 and size >= 6 and entry[5] & CODEC_MASK:
                    start = level.at
                    codec = entry[5] & CODEC_MASK
                    level.at += LENGTH_BYTES + size
                    break
                level.at += LENGTH_BYTES + size
        finally:
            PyBuffer_Release(&view)
        if start < 0:
            level.at = level.end
            return False
        if level.slices is None:
            self.wrapper_at = start
        self.budget.enter(len(self.levels))
        data = memoryview(level.span)[start + ENTRY_HEADER_BYTES : level.at]
        self.levels.append(_Level(codecs.decompress_slices(codec, data, self.budget)))
        return True

    cdef int take(self, _Level level, bytes part) except -1:
        """One more slice of a set: count its whole entries once the next one is complete, so that a long one is not
        copied again and again."""
        cdef Scan found
        cdef bytes span
        cdef const unsigned char* p
        cdef Py_ssize_t size
        level.held.append(part)
        level.held_bytes += len(part)
        if level.held_bytes < level.needed_bytes:
            return 0
        span = part if len(level.held) == 1 else b"".join(level.held)
        p = span
        size = len(span)
        if size >= GIL_SPAN_BYTES:
            with nogil:
                scan_set(p, size, -1, &found)
        else:
            scan_set(p, size, -1, &found)
        self.budget.take_messages(found.count)
        self.count += found.count - found.wrappers
        if found.status != SCAN_OK and found.status != SCAN_TAIL:
            # what lies before the damage is looked at first: its error is the first one
            level.failure = self.damaged(found.status, level.position + found.valid_bytes)
        level.position += found.valid_bytes
        level.held_bytes = size - found.valid_bytes
        level.needed_bytes = LENGTH_BYTES
        level.held = [span[found.valid_bytes :]] if level.held_bytes else []
        if level.held_bytes >= LENGTH_BYTES:
            level.needed_bytes += be32(p + found.valid_bytes)
        level.span = span if found.wrappers else b""
        level.at = 0
        level.end = found.valid_bytes if found.wrappers else 0
        return 0

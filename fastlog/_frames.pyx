"""Reads how much a frame of lz4 or zstd may hold from the headers of its blocks, and opens none of them.

lz4, all numbers little-endian: magic 04 22 4d 18, flags, block sizes, [8 bytes content size], header checksum; blocks of
4 bytes length (bit 31: stored as it is), data, [4 bytes checksum]; 4 bytes 0; [4 bytes content checksum].

zstd: magic 28 b5 2f fd, descriptor, [window], [dictionary id], [content size]; blocks of 3 bytes (bit 0: the last one,
bits 1-2: kind, then 21 bits size), data; [4 bytes checksum]; perhaps another frame.

Checksums are left to the library that decompresses.

Source: LZ4 Frame Format 1.6.1; RFC 8878, section 3.
"""

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport UINT64_MAX, uint8_t, uint32_t, uint64_t

from fastlog.errors import InvalidMessageError

cdef enum:
    MAGIC_BYTES = 4
    CHECKSUM_BYTES = 4

    LZ4_MAGIC = 0x184D2204
    LZ4_HEADER_BYTES = 7          # with the magic and without a content size
    LZ4_VERSION_MASK = 0xC0
    LZ4_VERSION = 0x40
    LZ4_INDEPENDENT = 0x20
    LZ4_BLOCK_CHECKSUM = 0x10
    LZ4_CONTENT_SIZE = 0x08
    LZ4_CONTENT_CHECKSUM = 0x04
    LZ4_RESERVED = 0x03           # bit 0 tells of a dictionary, which nobody here has
    LZ4_SIZES_RESERVED = 0x8F
    LZ4_LENGTH_BYTES = 4
    LZ4_CONTENT_SIZE_BYTES = 8

    ZSTD_MAGIC = 0xFD2FB528
    ZSTD_SINGLE_SEGMENT = 0x20
    ZSTD_RESERVED = 0x08
    ZSTD_CHECKSUM = 0x04
    ZSTD_DICTIONARY = 0x03
    ZSTD_BLOCK_BYTES = 3
    ZSTD_MOST_BLOCK = 131072
    ZSTD_RAW = 0
    ZSTD_RUN = 1
    ZSTD_COMPRESSED = 2

    FRAME_OK = 0
    FRAME_CUT = 1
    FRAME_UNKNOWN = 2
    FRAME_LINKED = 3
    FRAME_DICTIONARY = 4
    FRAME_RESERVED = 5
    FRAME_BLOCK = 6
    FRAME_LEFT = 7
    FRAME_CLAIM = 8

REASONS = {
    FRAME_CUT: "it ends early",
    FRAME_UNKNOWN: "no frame begins there",
    FRAME_LINKED: "its blocks depend on each other",
    FRAME_DICTIONARY: "it needs a dictionary",
    FRAME_RESERVED: "a reserved bit is set",
    FRAME_BLOCK: "a block is larger than the frame allows, or of no known kind",
    FRAME_LEFT: "bytes follow it",
    FRAME_CLAIM: "it claims to hold more than its blocks can",
}

cdef struct Frames:
    uint64_t frames
    uint64_t most_bytes     # that may come out; UINT64_MAX stands for anything above it
    uint64_t position       # where it was found that a frame is none


cdef inline uint64_t little(const uint8_t* p, int count) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(count):
        value |= <uint64_t>p[i] << (8 * i)
    return value


cdef int lz4_frame(const uint8_t* p, uint64_t n, Frames* found) noexcept nogil:
    cdef uint64_t at = LZ4_HEADER_BYTES, most_block, size
    cdef uint32_t length
    cdef uint8_t flags
    if n < LZ4_HEADER_BYTES:
        return FRAME_CUT
    if little(p, MAGIC_BYTES) != <uint64_t>LZ4_MAGIC:
        return FRAME_UNKNOWN
    flags = p[4]
    if flags & LZ4_VERSION_MASK != LZ4_VERSION or p[5] < 0x40:
        return FRAME_UNKNOWN
    if flags & LZ4_RESERVED or p[5] & LZ4_SIZES_RESERVED:
        return FRAME_RESERVED
    if not flags & LZ4_INDEPENDENT:
        return FRAME_LINKED
    if flags & LZ4_CONTENT_SIZE:
        at += LZ4_CONTENT_SIZE_BYTES
    most_block = <uint64_t>1 << (8 + 2 * (p[5] >> 4))           # 64 KiB for 4, four times as much for each one more
    found.frames = 1
    while True:
        found.position = at
        if at > n or n - at < LZ4_LENGTH_BYTES:
            return FRAME_CUT
        length = <uint32_t>little(p + at, LZ4_LENGTH_BYTES)
        at += LZ4_LENGTH_BYTES
        if length == 0:
            break
        size = length & <uint32_t>0x7FFFFFFF
        if size == 0 or size > most_block:                      # a stored block of no bytes is the end to some readers
            return FRAME_BLOCK
        found.most_bytes += size if length >> 31 else most_block
        if flags & LZ4_BLOCK_CHECKSUM:
            size += CHECKSUM_BYTES
        if size > n - at:
            return FRAME_CUT
        at += size
    if flags & LZ4_CONTENT_CHECKSUM:
        at += CHECKSUM_BYTES
    found.position = at
    if at != n:
        return FRAME_CUT if at > n else FRAME_LEFT
    return FRAME_OK


cdef int zstd_frame(const uint8_t* p, uint64_t n, Frames* found) noexcept nogil:
    """Walk the frame at found.position, and leave the place behind it there."""
    cdef uint64_t at = found.position, window, most_block, most = 0, claim = UINT64_MAX, size
    cdef uint32_t block
    cdef uint8_t descriptor
    cdef int claim_bytes, kind
    if n - at < MAGIC_BYTES + 1:
        return FRAME_CUT
    if little(p + at, MAGIC_BYTES) != <uint64_t>ZSTD_MAGIC:
        return FRAME_UNKNOWN
    descriptor = p[at + MAGIC_BYTES]
    at += MAGIC_BYTES + 1
    if descriptor & ZSTD_RESERVED:
        return FRAME_RESERVED
    if descriptor & ZSTD_DICTIONARY:
        return FRAME_DICTIONARY
    claim_bytes = (1 << (descriptor >> 6)) if descriptor >> 6 else (1 if descriptor & ZSTD_SINGLE_SEGMENT else 0)
    size = <uint64_t>claim_bytes + (0 if descriptor & ZSTD_SINGLE_SEGMENT else 1)
    if size > n - at:
        return FRAME_CUT
    if not descriptor & ZSTD_SINGLE_SEGMENT:
        window = <uint64_t>1 << (10 + (p[at] >> 3))
        window += (window >> 3) * (p[at] & 7)
        at += 1
    if claim_bytes:
        claim = little(p + at, claim_bytes)
        if claim_bytes == 2:
            claim += 256
        at += <uint64_t>claim_bytes
    if descriptor & ZSTD_SINGLE_SEGMENT:
        window = claim
    most_block = window if window < ZSTD_MOST_BLOCK else ZSTD_MOST_BLOCK
    while True:
        if n - at < ZSTD_BLOCK_BYTES:
            return FRAME_CUT
        block = <uint32_t>little(p + at, ZSTD_BLOCK_BYTES)
        at += ZSTD_BLOCK_BYTES
        kind = (block >> 1) & 3
        size = block >> 3
        if size > most_block:
            return FRAME_BLOCK
        if kind == ZSTD_RAW:
            most += size
        elif kind == ZSTD_RUN:
            most += size
            size = 1
        elif kind == ZSTD_COMPRESSED:
            most += most_block
        else:
            return FRAME_BLOCK
        if size > n - at:
            return FRAME_CUT
        at += size
        if block & 1:
            break
    if descriptor & ZSTD_CHECKSUM:
        if n - at < CHECKSUM_BYTES:
            return FRAME_CUT
        at += CHECKSUM_BYTES
    if claim_bytes and claim > most:
        return FRAME_CLAIM
    found.most_bytes += claim if claim_bytes else most
    found.frames += 1
    found.position = at
    return FRAME_OK


cdef object refused(str kind, int status, uint64_t position):
    return InvalidMessageError(f"the {kind} data is damaged at byte {position}: {REASONS[status]}")


def lz4_most_bytes(const unsigned char[::1] data not None):
    cdef Frames found = Frames(0, 0, 0)
    cdef const uint8_t* p = &data[0] if data.shape[0] else NULL
    cdef uint64_t n = <uint64_t>data.shape[0]
    cdef int status
    with nogil:
        status = lz4_frame(p, n, &found)
    if status != FRAME_OK:
        raise refused("lz4", status, found.position)
    return found.most_bytes


def zstd_most_bytes(const unsigned char[::1] data not None):
    cdef Frames found = Frames(0, 0, 0)
    cdef uint64_t n = <uint64_t>data.shape[0]
    cdef const uint8_t* p = &data[0] if n else NULL
    cdef int status = FRAME_OK
    with nogil:
        while status == FRAME_OK and (found.position < n or not found.frames):
            status = zstd_frame(p, n, &found)
    if status != FRAME_OK:
        raise refused("zstd", status, found.position)
    return found.frames, found.most_bytes


def unwritten(Py_ssize_t size):
    if size < 0:
        raise ValueError(f"{size} bytes cannot be had")
    return PyByteArray_FromStringAndSize(NULL, size)

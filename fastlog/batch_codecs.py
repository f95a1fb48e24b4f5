"""Compression of record batches by codec number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.

gzip and snappy are those of ``fastlog.codecs``, with nothing behind the last gzip member. lz4 is one frame (LZ4 Frame
Format) whose blocks do not depend on each other, since Kafka reads no other; zstd is one frame or several (RFC 8878).

What lz4, zstd or a snappy block holds comes out in one piece: ``whole_bytes`` tells how large it may be before
anything is decompressed, and the buffer for it never is larger than the budget. Safe in any thread and process; a
budget belongs to one caller.

Source: Apache Kafka 4.2 (its compression package); JDK, snappy-java, zstd-jni for what their readers take.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastlog import codecs
from fastlog._frames import lz4_most_bytes, unwritten, zstd_most_bytes
from fastlog.codecs import DecompressionBudget
from fastlog.errors import DecompressionLimitError, InvalidMessageError, MissingCodecError, UnknownCodecError

if TYPE_CHECKING:
    from types import ModuleType

    from typing_extensions import Buffer

NONE = codecs.NONE
GZIP = codecs.GZIP
SNAPPY = codecs.SNAPPY
LZ4 = 3
ZSTD = 4

CODEC_NAMES = {**codecs.CODEC_NAMES, LZ4: "lz4", ZSTD: "zstd"}

# Version 1, independent blocks of at most 64 KiB, no checksums; then the checksum of these two bytes.
LZ4_HEADER = bytes.fromhex("04224d18 6040 82")
LZ4_BLOCK_BYTES = 65536
LZ4_STORED = 1 << 31
_LZ4_LENGTH = struct.Struct("<I")


def compress(codec: int, data: Buffer) -> bytes:
    """Return the data compressed: one gzip member with time 0, snappy in Java's framing, or one frame; codec 0 copies.

    Raises:
        UnknownCodecError: the codec is not 0 … 4.
        MissingCodecError: the library for it is not installed.
    """
    if codec == LZ4:
        return _lz4_frame(memoryview(data).cast("B"))
    if codec == ZSTD:
        return bytes(_cramjam().zstd.compress(data))
    if codec not in CODEC_NAMES:
        raise _unknown(codec)
    return codecs.compress(codec, data)


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """Return what the compressed data holds, at most ``limit`` bytes.

    Raises:
        InvalidMessageError: the data is damaged or cut short, or bytes follow it.
        DecompressionLimitError: it holds more than ``limit`` bytes.
        UnknownCodecError, MissingCodecError: as for ``compress``.
    """
    return b"".join(slices(codec, data, DecompressionBudget(limit)))


def slices(codec: int, data: Buffer, budget: DecompressionBudget) -> Iterator[Buffer]:
    """Yield what ``decompress`` returns, piece by piece, each taken from the budget before it is yielded.

    Pieces are at most 256 KiB, except for lz4, zstd and a snappy block, each of which comes whole. None is held here
    once it was yielded.
    """
    if codec == LZ4:
        budget.take_piece()
        return _whole(codec, data, lz4_most_bytes(data), budget)
    if codec == ZSTD:
        frames, most_bytes = zstd_most_bytes(data)
        for _ in range(min(frames, budget.pieces_left + 1)):
            budget.take_piece()
        return _whole(codec, data, most_bytes, budget)
    if codec not in CODEC_NAMES:
        raise _unknown(codec)
    return codecs.decompress_slices(codec, data, budget, strict=True)


def whole_bytes(codec: int, data: Buffer) -> int:
    """Return how many bytes may have to be decompressed at once, whatever comes out: 0 where slices are small.

    Raises:
        InvalidMessageError: the frames of lz4 or zstd are damaged where that is seen without opening a block.
    """
    if codec == LZ4:
        return lz4_most_bytes(data)
    if codec == ZSTD:
        return zstd_most_bytes(data)[1]
    return codecs.largest_block(data) if codec == SNAPPY else 0


def _whole(codec: int, data: Buffer, most_bytes: int, budget: DecompressionBudget) -> Iterator[Buffer]:
    library = _cramjam()
    frames = library.lz4 if codec == LZ4 else library.zstd
    size = min(most_bytes, budget.bytes_left)
    out = unwritten(size)
    try:
        count: int = frames.decompress_into(data, out)
    except library.DecompressionError as error:
        if most_bytes > size:
            limit = f"or holds more than a limit of {budget.limit_bytes} bytes admits"
            raise DecompressionLimitError(f"the {CODEC_NAMES[codec]} data is damaged, {limit}: {error}") from None
        raise InvalidMessageError(f"the {CODEC_NAMES[codec]} data is damaged: {error}") from None
    budget.take_bytes(count)
    if count:
        parts = [memoryview(out)[:count]]
        del out  # while this is paused, the caller alone holds what came out
        yield parts.pop()


def _lz4_frame(view: memoryview) -> bytes:
    """A frame as Kafka's own clients write it; ``cramjam.lz4.compress`` links the blocks, which Kafka does not read."""
    lz4 = _cramjam().lz4
    parts = [LZ4_HEADER]
    for start in range(0, len(view), LZ4_BLOCK_BYTES):
        stored = view[start : start + LZ4_BLOCK_BYTES]
        block = bytes(lz4.compress_block(stored, store_size=False))
        if len(block) < len(stored):
            parts += (_LZ4_LENGTH.pack(len(block)), block)
        else:
            parts += (_LZ4_LENGTH.pack(len(stored) | LZ4_STORED), bytes(stored))
    parts.append(_LZ4_LENGTH.pack(0))
    return b"".join(parts)


def _unknown(codec: int) -> UnknownCodecError:
    return UnknownCodecError(f"codec {codec} is not 0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4 (zstd)")


def _cramjam() -> ModuleType:
    """The library, imported when it is first needed: a broker that sees none of these does not hold it in memory."""
    try:
        import cramjam
    except ImportError as error:
        raise MissingCodecError("lz4 and zstd are not installed: pip install cramjam") from error
    return cramjam

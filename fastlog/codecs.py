"""Compression by codec number: 0 none, 1 gzip, 2 snappy.

gzip is RFC 1952 and snappy is the stream framing of the Java library that Kafka 0.7.1 and later use:

    position   bytes  field
    0          8      82 'SNAPPY' 00
    8          4      version, 1
    12         4      oldest version that can read it, 1
    16         4      bytes of the next block, then the raw snappy block; repeated to the end, no terminator

A payload that does not begin so is one raw snappy block. Decompressing bad or hostile bytes costs at most what an
``DecompressionBudget`` admits; output comes in pieces, so memory does not follow the size that the bytes claim.
Safe in any thread and process; a budget belongs to one caller.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastlog.errors import DecompressionLimitError, InvalidMessageError, MissingCodecError, UnknownCodecError

if TYPE_CHECKING:
    from types import ModuleType

    from typing_extensions import Buffer

NONE = 0
GZIP = 1
SNAPPY = 2

CODEC_NAMES = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy"}

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
XERIAL_HEADER_BYTES = len(XERIAL_HEADER)
XERIAL_BLOCK_BYTES = 32768

GZIP_FORMAT = 31  # zlib's window bits for "gzip header and trailer, largest window"
GZIP_MAGIC = b"\x1f\x8b\x08"
INPUT_SLICE_BYTES = 65536
OUTPUT_SLICE_BYTES = 262144

_INT = struct.Struct(">i")

# Three bytes of a raw block make at most 64 bytes: a preamble that claims more is damage, seen before allocating.
SNAPPY_MAX_RATIO = 22

# A gzip member or snappy block costs time even when nothing comes out of it; this many bytes of the limit admit one.
BYTES_PER_PIECE = 128
FREE_PIECES = 1024


class DecompressionBudget:
    """What may still come out of compressed bytes, shared by everything that is decompressed under one limit.

    ``bytes_left`` falls with each piece of output. A piece is a gzip member or a snappy block; their number is limited
    too, so that millions of empty ones cannot keep a processor busy.
    """

    __slots__ = ("bytes_left", "limit_bytes", "pieces_left")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes_left = limit_bytes
        self.pieces_left = FREE_PIECES + limit_bytes // BYTES_PER_PIECE

    def take_piece(self, claimed_bytes: int = 0) -> None:
        """Admit one more member or block that claims ``claimed_bytes``, or raise ``DecompressionLimitError``."""
        if claimed_bytes > self.bytes_left:
            raise self._exceeded()
        if self.pieces_left <= 0:
            raise DecompressionLimitError(
                f"more gzip members or snappy blocks than a limit of {self.limit_bytes} bytes admits"
            )
        self.pieces_left -= 1

    def take_bytes(self, count: int) -> None:
        """Count ``count`` bytes of output, or raise ``DecompressionLimitError``."""
        if count > self.bytes_left:
            raise self._exceeded()
        self.bytes_left -= count

    def _exceeded(self) -> DecompressionLimitError:
        return DecompressionLimitError(f"the compressed bytes decompress to more than {self.limit_bytes} bytes")


def compress(codec: int, data: Buffer) -> bytes:
    """Return the data compressed: one gzip member with time 0, or snappy in xerial framing; codec 0 copies.

    Raises:
        UnknownCodecError: the codec is not 0, 1 or 2.
        MissingCodecError: python-snappy is not installed.
    """
    if codec == GZIP:
        return zlib.compress(data, wbits=GZIP_FORMAT)
    if codec == SNAPPY:
        snappy = _snappy()
        view = memoryview(data).cast("B")
        parts = [XERIAL_HEADER]
        for start in range(0, len(view), XERIAL_BLOCK_BYTES):
            block: bytes = snappy.compress(view[start : start + XERIAL_BLOCK_BYTES])
            parts += (_INT.pack(len(block)), block)
        return b"".join(parts)
    if codec == NONE:
        return bytes(data)
    raise UnknownCodecError(f"codec {codec} is not 0 (none), 1 (gzip) or 2 (snappy)")


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """Return what the compressed data holds, at most ``limit`` bytes.

    gzip may have several members; bytes after a member that do not begin another one are ignored.

    Raises:
        InvalidMessageError: the data is damaged or cut short.
        DecompressionLimitError: it holds more than ``limit`` bytes.
        UnknownCodecError, MissingCodecError: as for ``compress``.

    Source: Kafka 0.7.2, which reads with the JDK's GZIPInputStream and xerial's SnappyInputStream.
    """
    return b"".join(decompress_slices(codec, data, DecompressionBudget(limit)))


def decompress_slices(
    codec: int, data: Buffer, budget: DecompressionBudget, *, strict: bool = False
) -> Iterator[bytes]:
    """Yield what ``decompress`` returns, piece by piece, each taken from the budget before it is yielded.

    Pieces are not empty, and at most 256 KiB except for a snappy block, which comes whole; none of these is held here
    once it was yielded. With ``strict`` bytes behind the last gzip member are damage.
    """
    view = memoryview(data).cast("B")
    if codec == GZIP:
        return _gzip_slices(view, budget, strict)
    if codec == SNAPPY:
        return _snappy_slices(view, budget)
    if codec != NONE:
        raise UnknownCodecError(f"codec {codec} is not 0 (none), 1 (gzip) or 2 (snappy)")
    budget.take_bytes(len(view))
    return iter((bytes(view),) if view else ())


def largest_block(data: Buffer) -> int:
    """Return how many bytes the largest block of snappy data claims to hold; damaged data may claim anything.

    Of more blocks than ``FREE_PIECES`` the most that one of them could hold: finding out would take long.
    """
    view = memoryview(data).cast("B")
    if not is_xerial(view):
        return _snappy_claim(view)
    position, largest, looked_at = XERIAL_HEADER_BYTES, 0, 0
    while position + 4 < len(view):
        looked_at += 1
        if looked_at > FREE_PIECES:
            return SNAPPY_MAX_RATIO * len(view)
        size = int.from_bytes(view[position : position + 4], "big")
        largest = max(largest, _snappy_claim(view[position + 4 : position + 9]))
        position += 4 + size
    return largest


def _gzip_slices(view: memoryview, budget: DecompressionBudget, strict: bool) -> Iterator[bytes]:
    position = 0
    while True:
        budget.take_piece()
        member = zlib.decompressobj(wbits=GZIP_FORMAT)
        pending: Buffer = b""
        while not member.eof:
            if not pending:
                # Small slices: zlib copies what it did not consume, once for each slice of output.
                pending = view[position : position + INPUT_SLICE_BYTES]
                position += len(pending)
            at_end = not pending
            try:
                # One byte more than is left, so that going over the limit is seen; 0 would mean no limit to zlib.
                out = member.decompress(pending, min(OUTPUT_SLICE_BYTES, budget.bytes_left + 1))
            except zlib.error as error:
                raise InvalidMessageError(f"the gzip data is damaged: {error}") from None
            pending = member.unconsumed_tail
            if out:
                budget.take_bytes(len(out))
                yield out
            elif at_end and not member.eof:
                raise InvalidMessageError(f"the gzip data ends early, after {len(view)} bytes")
        position -= len(member.unused_data)
        if view[position : position + 3] != GZIP_MAGIC:
            if strict and position < len(view):
                raise InvalidMessageError(f"the gzip data has bytes behind its last member, at byte {position}")
            return  # the end, or bytes after the member that the JDK ignores too


def _snappy_slices(view: memoryview, budget: DecompressionBudget) -> Iterator[bytes]:
    snappy = _snappy()
    total = len(view)
    if not is_xerial(view):
        parts = [_snappy_block(snappy, view, budget)]
        if parts[0]:
            yield parts.pop()
        return
    version: int = _INT.unpack_from(view, 8)[0]
    if version < 1:
        raise InvalidMessageError(f"the snappy data has framing version {version}")
    position = XERIAL_HEADER_BYTES
    while position < total:
        if total - position < 4:
            raise InvalidMessageError(f"the snappy data ends inside a block length at byte {position}")
        size: int = _INT.unpack_from(view, position)[0]
        position += 4
        if not 0 < size <= total - position:
            raise InvalidMessageError(
                f"the snappy data has a block of {size} bytes at byte {position}, {total - position} are left"
            )
        parts = [_snappy_block(snappy, view[position : position + size], budget)]
        if parts[0]:
            yield parts.pop()  # not held beside the next one, nor for somebody who takes that later
        position += size


def _snappy_block(snappy: ModuleType, block: memoryview, budget: DecompressionBudget) -> bytes:
    claim = _snappy_claim(block)
    budget.take_piece(claim)
    if claim > SNAPPY_MAX_RATIO * len(block):
        raise InvalidMessageError(f"a snappy block of {len(block)} bytes claims to hold {claim}")
    try:
        out: bytes = snappy.decompress(block)
    except snappy.UncompressError as error:
        raise InvalidMessageError(f"the snappy data is damaged: {error.__cause__ or error}") from None
    budget.take_bytes(len(out))
    return out


def _snappy_claim(block: memoryview) -> int:
    """The decompressed size in a raw block's preamble (a varint), or 0 when it has none."""
    claim = shift = 0
    for byte in block[:5]:
        claim |= (byte & 0x7F) << shift
        if byte < 0x80:
            return claim
        shift += 7
    return 0


def is_xerial(data: Buffer) -> bool:
    """Whether snappy data is in the Java library's framing; else it is one raw block."""
    view = memoryview(data).cast("B")
    return len(view) >= XERIAL_HEADER_BYTES and view[:8] == XERIAL_MAGIC


def _snappy() -> ModuleType:
    """The snappy library, imported when it is first needed: a broker that sees no snappy does not hold it in memory."""
    try:
        import snappy  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise MissingCodecError("snappy is not installed: pip install python-snappy") from error
    module: ModuleType = snappy
    return module

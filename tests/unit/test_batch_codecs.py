"""Codecs of record batches: what other libraries wrote is read, what is no whole frame is refused, bombs end early."""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import batch_codecs, codecs
from fastlog._frames import lz4_most_bytes, unwritten, zstd_most_bytes
from fastlog.batch_codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress, whole_bytes
from fastlog.errors import DecompressionLimitError, InvalidMessageError, MissingCodecError, UnknownCodecError
from tests import reference

ALL = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
MIB = 1 << 20
INT = struct.Struct("<I")
BLOCK_64 = 4 << 4
INDEPENDENT = 0x60

texts = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 30_000)).map(lambda pair: pair[0] * pair[1]),
)


def lz4_frame(
    *blocks: bytes, flags: int = INDEPENDENT, sizes: int = BLOCK_64, extra: bytes = b"", end: bytes = b""
) -> bytes:
    """A frame from parts; the checksum of its header is right for the usual flags alone."""
    head = INT.pack(0x184D2204) + bytes([flags, sizes]) + extra + b"\x82"
    return head + b"".join(blocks) + INT.pack(0) + end


def stored(data: bytes) -> bytes:
    return INT.pack(len(data) | 1 << 31) + data


def zstd_frame(*blocks: tuple[int, int, bytes], descriptor: int = 0, header: bytes = b"\x38") -> bytes:
    """A frame of blocks ``(kind, size, data)``; the window is 128 KiB unless ``header`` says another."""
    parts = [INT.pack(0xFD2FB528), bytes([descriptor]), header]
    for number, (kind, size, data) in enumerate(blocks):
        last = number == len(blocks) - 1
        parts += (INT.pack(size << 3 | kind << 1 | last)[:3], data)
    return b"".join(parts)


@given(texts, st.sampled_from(ALL))
def test_there_and_back(data: bytes, codec: int) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), len(data) + 7) == data
    assert whole_bytes(codec, packed) >= (len(data) if codec in (LZ4, ZSTD) else 0)


@given(texts)
def test_what_other_libraries_wrote(data: bytes) -> None:
    """pyarrow's lz4 frame and zstd, and frames of zstd without their size, as Java's streams write them."""
    if data:
        assert decompress(ZSTD, pyarrow.compress(data, "zstd", asbytes=True), len(data)) == data
    stream = cramjam.zstd.Compressor()
    stream.compress(data)
    assert decompress(ZSTD, bytes(stream.finish()), len(data)) == data
    writer = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    writer.compress(data)
    assert decompress(LZ4, bytes(writer.finish()), len(data)) == data


@given(texts)
def test_what_we_write_other_libraries_read(data: bytes) -> None:
    assert bytes(cramjam.lz4.decompress(compress(LZ4, data))) == data
    assert bytes(cramjam.zstd.decompress(compress(ZSTD, data))) == data
    if data:
        sink = pyarrow.BufferReader(compress(LZ4, data))
        assert pyarrow.CompressedInputStream(sink, "lz4").read() == data
    assert zlib.decompress(compress(GZIP, data), 31) == data
    assert reference.inflate(SNAPPY, compress(SNAPPY, data)) == data


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_every_cut_is_refused(codec: int) -> None:
    packed = compress(codec, b"some text, and some text again; " * 20)
    for end in range(len(packed)):
        if codec == SNAPPY and end in (0, codecs.XERIAL_HEADER_BYTES):
            continue  # a stream of no blocks; nothing at all is a raw block without its size
        with pytest.raises(InvalidMessageError):
            decompress(codec, packed[:end], MIB)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("tail", [b"\0", b"x", b"garbage!" * 9, b"\0" * 64])
def test_bytes_behind_are_refused(codec: int, tail: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        decompress(codec, compress(codec, b"text " * 50) + tail, MIB)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_every_byte_flipped(codec: int) -> None:
    """Refused, or no more bytes than allowed: a codec without a checksum cannot know of each."""
    data = bytes(range(256)) * 3 + b"text " * 40
    packed = compress(codec, data)
    for place in range(len(packed)):
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(packed)
            damaged[place] ^= flip
            with contextlib.suppress(InvalidMessageError):
                assert len(decompress(codec, damaged, 5000)) <= 5000


def test_gzip_members_and_zstd_frames_are_read_one_after_the_other() -> None:
    parts = [b"first ", b"", b"second " * 9000]
    for codec in (GZIP, ZSTD):
        packed = b"".join(compress(codec, part) for part in parts)
        assert decompress(codec, packed, MIB) == b"".join(parts)
        with pytest.raises(InvalidMessageError):
            decompress(codec, packed + compress(codec, b"third")[:-1], MIB)


def test_only_one_frame_of_lz4_is_read() -> None:
    """As by Kafka, whose clients would not see what is in the others."""
    frame = compress(LZ4, b"text")
    with pytest.raises(InvalidMessageError, match="bytes follow it"):
        decompress(LZ4, frame + frame, MIB)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_the_limit_is_exact(codec: int) -> None:
    for size in (1, 1000, 65536, 65537, 400_000):
        packed = compress(codec, b"x" * size)
        assert decompress(codec, packed, size) == b"x" * size
        with pytest.raises(DecompressionLimitError):
            decompress(codec, packed, size - 1)
        with pytest.raises(DecompressionLimitError):
            decompress(codec, packed, 0)


def bomb(codec: int) -> bytes:
    """64 MiB of zeros, in the form that claims nothing beforehand where there is one."""
    if codec == SNAPPY:
        return codecs.XERIAL_HEADER + b"".join(
            len(block).to_bytes(4, "big") + block for block in [reference.snappy_run(b"\0", 32768)] * 2048
        )
    if codec == ZSTD:
        return zstd_frame(*[(1, 131072, b"\0")] * 512)
    return compress(codec, bytes(64 * MIB))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_bomb_costs_no_more_than_the_limit(codec: int) -> None:
    packed = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionLimitError):
            decompress(codec, packed, 4 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 9 * MIB  # what came out, and once more while it is joined


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, ZSTD])
def test_many_pieces_that_hold_nothing_are_refused(codec: int) -> None:
    pieces = {GZIP: compress(GZIP, b""), SNAPPY: b"\0\0\0\1\0", ZSTD: compress(ZSTD, b"")}[codec]
    packed = (codecs.XERIAL_HEADER if codec == SNAPPY else b"") + pieces * 50_000
    budget = codecs.DecompressionBudget(MIB)
    with pytest.raises(DecompressionLimitError, match="more gzip members"):
        b"".join(batch_codecs.slices(codec, packed, budget))
    assert decompress(codec, packed, 8 * MIB) == b""


@pytest.mark.parametrize("codec", [-1, 5, 6, 7, 255])
def test_unknown_codecs(codec: int) -> None:
    for call in (lambda: compress(codec, b"x"), lambda: decompress(codec, b"x", 10)):
        with pytest.raises(UnknownCodecError):
            call()


def test_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = {codec: compress(codec, b"x") for codec in (LZ4, ZSTD)}
    monkeypatch.setitem(sys.modules, "cramjam", None)
    for codec in (LZ4, ZSTD):
        with pytest.raises(MissingCodecError, match="pip install cramjam"):
            compress(codec, b"x")
        with pytest.raises(MissingCodecError, match="pip install cramjam"):
            decompress(codec, packed[codec], 9)


# -- frames ------------------------------------------------------------------------------------------------------------


def test_lz4_says_how_much_it_may_hold() -> None:
    assert lz4_most_bytes(lz4_frame()) == 0
    assert lz4_most_bytes(lz4_frame(stored(b"abc"))) == 3
    assert lz4_most_bytes(lz4_frame(stored(b"abc"), INT.pack(3) + b"abc")) == 3 + 65536
    for code, size in ((4, 1 << 16), (5, 1 << 18), (6, 1 << 20), (7, 1 << 22)):
        assert lz4_most_bytes(lz4_frame(INT.pack(1) + b"\0", sizes=code << 4)) == size
        with pytest.raises(InvalidMessageError, match="larger than the frame allows"):
            lz4_most_bytes(lz4_frame(INT.pack(size + 1) + bytes(size + 1), sizes=code << 4))
    checked = lz4_frame(stored(b"abc") + b"sum.", flags=INDEPENDENT | 0x10)
    assert lz4_most_bytes(checked) == 3
    assert lz4_most_bytes(lz4_frame(stored(b"abc"), flags=INDEPENDENT | 0x08, extra=bytes(8))) == 3
    assert lz4_most_bytes(lz4_frame(stored(b"abc"), flags=INDEPENDENT | 0x04, end=b"sum.")) == 3


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "ends early"),
        (lz4_frame()[:6], "ends early"),
        (b"\x03" + lz4_frame()[1:], "no frame"),
        (lz4_frame(flags=0x20), "no frame"),
        (lz4_frame(flags=0xA0), "no frame"),
        (lz4_frame(sizes=0x30), "no frame"),
        (lz4_frame(sizes=0xC0), "reserved"),
        (lz4_frame(sizes=0x41), "reserved"),
        (lz4_frame(flags=0x61), "reserved"),
        (lz4_frame(flags=0x62), "reserved"),
        (lz4_frame(flags=0x40), "depend on each other"),
        (lz4_frame(INT.pack(1 << 31)), "larger than"),
        (lz4_frame(INT.pack(0x7FFFFFFF)), "larger than"),
        (lz4_frame(stored(b"abc"))[:-1], "ends early"),
        (lz4_frame(stored(b"abc"))[:-5], "ends early"),
        (lz4_frame(stored(b"abc"), flags=0x64), "ends early"),
        (lz4_frame(stored(b"abc"), flags=0x64, end=b"sum.."), "bytes follow"),
        (lz4_frame(flags=0x68)[:9], "ends early"),
    ],
)
def test_lz4_frames_that_are_none(frame: bytes, reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        lz4_most_bytes(frame)
    with pytest.raises(InvalidMessageError):
        decompress(LZ4, frame, MIB)


def test_linked_blocks_of_lz4_are_refused() -> None:
    """Kafka does not read them, though the library does."""
    linked = bytes(cramjam.lz4.compress(b"text " * 50_000))
    assert bytes(cramjam.lz4.decompress(linked)) == b"text " * 50_000
    with pytest.raises(InvalidMessageError, match="depend on each other"):
        decompress(LZ4, linked, MIB)


def test_lz4_checksums_are_checked() -> None:
    data = b"abc" * 50
    writer = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    writer.compress(data)
    whole = bytearray(bytes(writer.finish()))
    assert decompress(LZ4, whole, MIB) == data
    whole[-1] ^= 1
    with pytest.raises(InvalidMessageError, match="damaged"):
        decompress(LZ4, whole, MIB)
    header = bytearray(compress(LZ4, data))
    header[6] ^= 1
    with pytest.raises(InvalidMessageError, match="damaged"):
        decompress(LZ4, header, MIB)


def test_zstd_says_how_much_it_may_hold() -> None:
    assert zstd_most_bytes(zstd_frame((0, 3, b"abc"))) == (1, 3)
    assert zstd_most_bytes(zstd_frame((0, 3, b"abc"), (1, 70_000, b"x"))) == (1, 70_003)
    assert zstd_most_bytes(zstd_frame((2, 3, b"abc"))) == (1, 131072)
    assert zstd_most_bytes(zstd_frame((2, 3, b"abc"), header=b"\x00")) == (1, 1024)
    assert zstd_most_bytes(zstd_frame((2, 3, b"abc"), header=b"\x07")) == (1, 1024 + 7 * 128)
    assert zstd_most_bytes(zstd_frame((2, 3, b"abc"), header=b"\xff")) == (1, 131072)
    frame = zstd_frame((0, 3, b"abc"), descriptor=0x20, header=b"\x03")
    assert zstd_most_bytes(frame) == (1, 3)
    assert zstd_most_bytes(frame * 3) == (3, 9)
    assert zstd_most_bytes(zstd_frame((1, 256, b"x"), descriptor=0x60, header=b"\0\0")) == (1, 256)
    assert zstd_most_bytes(zstd_frame((1, 300, b"x"), descriptor=0xA0, header=INT.pack(300))) == (1, 300)
    assert zstd_most_bytes(zstd_frame((1, 300, b"x"), descriptor=0xE0, header=INT.pack(300) + bytes(4))) == (1, 300)
    assert zstd_most_bytes(zstd_frame((0, 3, b"abc"), descriptor=0x04) + b"sum.") == (1, 3)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "ends early"),
        (INT.pack(0xFD2FB528), "ends early"),
        (INT.pack(0xFD2FB527) + bytes(9), "no frame"),
        (INT.pack(0x184D2A50) + INT.pack(4) + b"skip", "no frame"),
        (zstd_frame((0, 3, b"abc"), descriptor=0x08), "reserved"),
        (zstd_frame((0, 3, b"abc"), descriptor=0x01, header=b"\x38\x05"), "dictionary"),
        (zstd_frame((3, 3, b"abc")), "no known kind"),
        (zstd_frame((0, 131073, bytes(131073))), "larger than"),
        (zstd_frame((1, 131073, b"x")), "larger than"),
        (zstd_frame((0, 1025, bytes(1025)), header=b"\0"), "larger than"),
        (zstd_frame((0, 4, b"abc")), "ends early"),
        (zstd_frame((0, 0, b""))[:-1], "ends early"),
        (zstd_frame(descriptor=0xE0, header=bytes(7)), "ends early"),
        (zstd_frame((0, 3, b"abc"), descriptor=0x04) + b"sum", "ends early"),
        (zstd_frame((0, 3, b"abc")) + b"\0\0\0\0\0", "no frame"),
        (zstd_frame((0, 3, b"abc"), descriptor=0xC0, header=b"\x38" + b"\xff" * 8), "claims to hold more"),
        (zstd_frame((0, 3, b"abc"), descriptor=0x80, header=b"\x38" + INT.pack(4)), "claims to hold more"),
    ],
)
def test_zstd_frames_that_are_none(frame: bytes, reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        zstd_most_bytes(frame)
    with pytest.raises(InvalidMessageError):
        decompress(ZSTD, frame, MIB)


@given(st.binary(max_size=80), st.sampled_from([b"", compress(ZSTD, b"text")[:9], compress(LZ4, b"text")[:7]]))
def test_any_bytes(data: bytes, front: bytes) -> None:
    """Nothing but a refusal comes of them, and what the frames claim is never less than what comes out."""
    for codec, most in ((LZ4, lz4_most_bytes), (ZSTD, lambda bytes_: zstd_most_bytes(bytes_)[1])):
        with contextlib.suppress(InvalidMessageError):
            claimed = most(front + data)
            assert len(decompress(codec, front + data, MIB)) <= claimed


@pytest.mark.parametrize("call", [lz4_most_bytes, zstd_most_bytes])
@pytest.mark.parametrize("bad", [None, "text", memoryview(bytes(20))[::2]])
def test_what_is_no_buffer_is_refused(call: Callable[[object], object], bad: object) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        call(bad)


def test_unwritten_bytes() -> None:
    assert len(unwritten(0)) == 0
    buffer = unwritten(100)
    assert io.BytesIO(b"x" * 100).readinto(buffer) == 100
    assert buffer == b"x" * 100
    with pytest.raises(ValueError, match="cannot be had"):
        unwritten(-1)

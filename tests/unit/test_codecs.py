"""Compression by number: what others wrote is read, what is damaged or too large is refused within bounded memory."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import codecs
from fastlog.errors import DecompressionLimitError, InvalidMessageError, MissingCodecError, UnknownCodecError
from tests import reference

MIB = 1024 * 1024
GOLDEN_SET = bytes.fromhex("0000000901007a6c86f16f6e6500000009010011ca8a6674776f0000000b010046c5d8f57468726565")
GOLDEN_SNAPPY = bytes.fromhex(
    "82534e415050590000000001000000010000002829300000000901007a6c86f16f6e65090d5411ca8a6674776f"
    "0000000b010046c5d8f57468726565"
)
TEXT = b"".join(b"line %d of a text that compresses, but not to nothing\n" % index for index in range(3000))
NOISE = random.Random(3).randbytes(100_000)


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP, codecs.SNAPPY])
@pytest.mark.parametrize("data", [b"", b"x", GOLDEN_SET, TEXT, NOISE, bytes(70_000)], ids=len)
def test_round_trip(codec: int, data: bytes) -> None:
    """What is compressed comes back at a limit of exactly its size, and the twin reads it too."""
    packed = codecs.compress(codec, data)
    assert codecs.decompress(codec, packed, len(data)) == data
    assert codecs.decompress(codec, memoryview(bytearray(packed)), len(data)) == data
    if codec:
        assert reference.inflate(codec, packed) == data
    if data:
        with pytest.raises(DecompressionLimitError):
            codecs.decompress(codec, packed, len(data) - 1)


def test_golden_snappy() -> None:
    """Bytes of the Java library are read; ours have its framing and its block size."""
    assert codecs.decompress(codecs.SNAPPY, GOLDEN_SNAPPY, 100) == GOLDEN_SET
    packed = codecs.compress(codecs.SNAPPY, bytes(70_000))
    assert packed[:16] == bytes.fromhex("82534e41505059000000000100000001")
    sizes, position = [], 16
    while position < len(packed):
        (length,) = struct.unpack(">i", packed[position : position + 4])
        sizes.append(len(reference.unsnappy_block(packed[position + 4 : position + 4 + length])))
        position += 4 + length
    assert sizes == [32768, 32768, 4464]


def test_gzip_is_one_member_without_a_time() -> None:
    packed = codecs.compress(codecs.GZIP, TEXT)
    assert packed[:8] == bytes.fromhex("1f8b080000000000")
    assert gzip.decompress(packed) == TEXT
    assert packed == codecs.compress(codecs.GZIP, TEXT)


@pytest.mark.parametrize("length", [*range(1, 60), 1000])
def test_raw_snappy_without_framing(length: int) -> None:
    """Two old clients put one raw block into a wrapper; it is read like a framed stream, however short."""
    data = NOISE[:length]
    assert codecs.decompress(codecs.SNAPPY, reference.snappy_literal(data), length) == data


def test_a_raw_block_that_begins_like_the_framing_is_told_apart() -> None:
    """82 is also the first byte of a raw block of 130, 258, ... bytes: only the whole magic means framing."""
    data = NOISE[:130]
    block = reference.snappy_literal(data)
    assert block[0] == 0x82
    assert codecs.decompress(codecs.SNAPPY, block, 130) == data


def test_framed_snappy_of_nothing() -> None:
    assert codecs.decompress(codecs.SNAPPY, reference.xerial(), 0) == b""
    assert codecs.decompress(codecs.SNAPPY, reference.xerial(b"\0", reference.snappy_literal(b"x")), 1) == b"x"
    assert codecs.decompress(codecs.SNAPPY, b"\0", 0) == b""


@pytest.mark.parametrize("version", [-1, 0, 1, 2, 2**31 - 1])
def test_framing_versions(version: int) -> None:
    packed = bytearray(GOLDEN_SNAPPY)
    packed[8:12] = struct.pack(">i", version)
    if version >= 1:
        assert codecs.decompress(codecs.SNAPPY, packed, 100) == GOLDEN_SET
    else:
        with pytest.raises(InvalidMessageError, match="version"):
            codecs.decompress(codecs.SNAPPY, packed, 100)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 1, 39, 41, 2**31 - 1])
def test_block_length_claims(length: int) -> None:
    """T-19: a block length that is not that of the block is refused, however large."""
    packed = GOLDEN_SNAPPY[:16] + struct.pack(">i", length) + GOLDEN_SNAPPY[20:]
    with pytest.raises(InvalidMessageError):
        codecs.decompress(codecs.SNAPPY, packed, MIB)


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY])
def test_truncated_at_every_byte(codec: int) -> None:
    """A stream cut anywhere is damage, except framed snappy cut between blocks, which has no end mark."""
    data = GOLDEN_SET * 5
    packed = codecs.compress(codec, data)
    for cut in range(len(packed)):
        if codec == codecs.SNAPPY and cut == 16:
            assert codecs.decompress(codec, packed[:cut], MIB) == b""
            continue
        with pytest.raises(InvalidMessageError):
            codecs.decompress(codec, packed[:cut], MIB)


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY])
def test_every_bit_flipped(codec: int) -> None:
    """T-14: a flip gives the declared error, or the output that the twin reads too, and never more than the limit."""
    packed = codecs.compress(codec, GOLDEN_SET)
    for bit in range(len(packed) * 8):
        data = bytearray(packed)
        data[bit // 8] ^= 1 << (bit % 8)
        try:
            ours: bytes | None = codecs.decompress(codec, data, 1000)
        except InvalidMessageError:
            ours = None
        try:
            theirs: bytes | None = reference.inflate(codec, bytes(data))
        except reference.DamagedError:
            theirs = None
        assert ours == theirs, f"bit {bit}"


@given(st.sampled_from([codecs.GZIP, codecs.SNAPPY]), st.binary(max_size=60), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_any_bytes_give_output_or_the_declared_error(codec: int, data: bytes, prefix: int) -> None:
    """T-18: nothing but the two declared errors leaves the decoder."""
    data = (b"", b"\x1f\x8b\x08\0\0\0\0\0\0\3", reference.XERIAL_HEADER, b"\x05")[prefix] + data
    with contextlib.suppress(InvalidMessageError):
        assert len(codecs.decompress(codec, data, 500)) <= 500


def test_several_gzip_members() -> None:
    """Members are read one after the other, also past an empty one and past the borders of input slices."""
    parts = [b"first ", b"", NOISE, b"second ", TEXT]
    packed = b"".join(zlib.compress(part, wbits=31) for part in parts)
    assert codecs.decompress(codecs.GZIP, packed, MIB) == b"".join(parts)
    with pytest.raises(DecompressionLimitError):
        codecs.decompress(codecs.GZIP, packed, len(b"".join(parts)) - 1)


@pytest.mark.parametrize("garbage", [b"\0", b"\0" * 50, b"\x1f\x8b", b"garbage" * 20, b"\x1f\x8b\x07" + b"x" * 30])
def test_bytes_after_a_gzip_member_are_ignored(garbage: bytes) -> None:
    """As the JDK does; but what begins like a member must be one."""
    packed = zlib.compress(TEXT, wbits=31)
    assert codecs.decompress(codecs.GZIP, packed + garbage, len(TEXT)) == TEXT
    with pytest.raises(InvalidMessageError):
        codecs.decompress(codecs.GZIP, packed + b"\x1f\x8b\x08" + garbage, 2 * len(TEXT))


def test_gzip_headers_of_other_writers() -> None:
    """Name, comment, extra field, time and header checksum are all accepted."""
    body = zlib.compress(GOLDEN_SET, wbits=-15)
    trailer = struct.pack("<II", zlib.crc32(GOLDEN_SET), len(GOLDEN_SET))
    header = b"\x1f\x8b\x08\x1f\x01\x02\x03\x04\x00\xff" + b"\x03\x00abc" + b"name\0" + b"comment\0"
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    assert codecs.decompress(codecs.GZIP, header + body + trailer, 100) == GOLDEN_SET


@pytest.mark.parametrize("wrong", [0, 1], ids=["checksum", "size"])
def test_gzip_trailer_is_checked(wrong: int) -> None:
    packed = bytearray(zlib.compress(TEXT, wbits=31))
    packed[-8 + 4 * wrong] ^= 1
    with pytest.raises(InvalidMessageError, match="damaged"):
        codecs.decompress(codecs.GZIP, packed, MIB)


def repeated_gzip(unit: bytes, times: int) -> bytes:
    """A gzip stream of ``unit`` over and over, made without compressing more than one; its trailer is missing."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = packer.compress(unit) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(unit) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * (times - 1)


@pytest.mark.parametrize("limit", [0, 1, 1000, 4 * MIB])
def test_gzip_bomb_costs_the_limit_and_no_more(limit: int) -> None:
    """T-20: one megabyte that inflates to a gigabyte is stopped at the limit, in output and in memory."""
    bomb = repeated_gzip(bytes(MIB), 1024)
    assert len(bomb) < 1.2 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionLimitError):
            codecs.decompress(codecs.GZIP, bomb, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit + 2 * MIB


@pytest.mark.parametrize("claim", [1001, 2**20, 2**30, 2**32 - 1])
def test_snappy_claims_are_compared_with_the_limit_first(claim: int) -> None:
    """T-20: a preamble above the limit costs neither memory nor time, framed or raw, alone or after good blocks."""
    block = reference.varint(claim) + reference.snappy_run(b"x", 500)[2:]
    good = reference.snappy_literal(b"good")
    tracemalloc.start()
    try:
        for packed in (block, reference.xerial(block), reference.xerial(good, block)):
            with pytest.raises(DecompressionLimitError):
                codecs.decompress(codecs.SNAPPY, packed, 1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert codecs.largest_block(reference.xerial(good, block)) == claim


def test_snappy_claims_beyond_what_a_block_can_hold() -> None:
    """A claim within the limit but beyond the densest encoding is damage, not an allocation."""
    packed = reference.varint(60 * MIB) + b"\0x" * 10
    with pytest.raises(InvalidMessageError, match="claims") as caught:
        codecs.decompress(codecs.SNAPPY, packed, 64 * MIB)
    assert not isinstance(caught.value, DecompressionLimitError)
    densest = reference.snappy_run(b"x", 1 + 64 * 5000)
    assert codecs.decompress(codecs.SNAPPY, densest, MIB) == b"x" * (1 + 64 * 5000)


def test_snappy_bomb_stops_at_the_limit() -> None:
    block = reference.snappy_run(b"\0", 32768)
    with pytest.raises(DecompressionLimitError):
        codecs.decompress(codecs.SNAPPY, reference.xerial(*[block] * 600), 4 * MIB)


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY])
def test_millions_of_empty_pieces_are_refused(codec: int) -> None:
    """T-20: pieces that hold nothing cost time all the same, so a limit on output limits their number too."""
    packed = zlib.compress(b"", wbits=31) * 50_000 if codec == codecs.GZIP else reference.xerial(*[b"\0"] * 50_000)
    with pytest.raises(DecompressionLimitError, match="members or snappy blocks"):
        codecs.decompress(codec, packed, MIB)
    assert codecs.decompress(codec, packed, 8 * MIB) == b""


def test_slices_do_not_follow_the_size_of_the_output() -> None:
    """What comes out comes in slices, each taken from the budget before it is seen."""
    budget = codecs.DecompressionBudget(8 * MIB)
    sizes = []
    for part in codecs.decompress_slices(codecs.GZIP, zlib.compress(bytes(3 * MIB), wbits=31), budget):
        sizes.append(len(part))
        assert budget.bytes_left == 8 * MIB - sum(sizes)
    assert sum(sizes) == 3 * MIB
    assert 0 < min(sizes) <= max(sizes) <= codecs.OUTPUT_SLICE_BYTES


@pytest.mark.parametrize("codec", [-1, 3, 4, 255])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(UnknownCodecError):
        codecs.compress(codec, b"x")
    with pytest.raises(UnknownCodecError):
        codecs.decompress(codec, b"x", 10)


def test_missing_snappy_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-21: without the library one clear error names what to install; gzip goes on working."""
    monkeypatch.setitem(sys.modules, "snappy", None)
    with pytest.raises(MissingCodecError, match="pip install python-snappy"):
        codecs.compress(codecs.SNAPPY, b"x")
    with pytest.raises(MissingCodecError, match="pip install python-snappy"):
        codecs.decompress(codecs.SNAPPY, GOLDEN_SNAPPY, 100)
    assert codecs.decompress(codecs.GZIP, codecs.compress(codecs.GZIP, b"x"), 1) == b"x"


@pytest.mark.parametrize("data", [b"", b"\x1f", b"\x1f\x8b\x08", b"\x82SNAPPY\0", b"\xff" * 40, b"\x80\x80"])
def test_payloads_too_short_to_be_anything(data: bytes) -> None:
    for codec in (codecs.GZIP, codecs.SNAPPY):
        with pytest.raises(InvalidMessageError):
            codecs.decompress(codec, data, MIB)


# -- limits to the byte ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 127, 128, 129, 1000])
def test_pieces_that_a_limit_admits(limit: int) -> None:
    """1024 of them, and one more for each 128 bytes; the next one is refused."""
    budget = codecs.DecompressionBudget(limit)
    for _ in range(1024 + limit // 128):
        budget.take_piece()
    with pytest.raises(DecompressionLimitError, match=f"than a limit of {limit} bytes admits"):
        budget.take_piece()
    assert budget.bytes_left == limit


def test_bytes_that_a_limit_admits() -> None:
    """A claim is compared with what is left and takes nothing; what came out is taken, to the last byte."""
    budget = codecs.DecompressionBudget(10)
    budget.take_piece(10)
    budget.take_bytes(4)
    for call in (budget.take_piece, budget.take_bytes):
        with pytest.raises(DecompressionLimitError, match="decompress to more than 10 bytes"):
            call(7)
    budget.take_piece(6)
    budget.take_bytes(6)
    budget.take_bytes(0)
    assert budget.bytes_left == 0


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY])
@pytest.mark.parametrize("pieces", [1023, 1024, 1025])
def test_pieces_of_a_stream_are_counted(codec: int, pieces: int) -> None:
    """One too many is refused, whether or not anything comes out of them."""
    one = zlib.compress(b"", wbits=31) if codec == codecs.GZIP else b"\0"
    packed = one * pieces if codec == codecs.GZIP else reference.xerial(*[one] * pieces)
    if pieces <= 1024:
        assert codecs.decompress(codec, packed, 0) == b""
    else:
        with pytest.raises(DecompressionLimitError, match="members or snappy blocks"):
            codecs.decompress(codec, packed, 0)


@pytest.mark.parametrize("claim", [65, 66, 67])
def test_a_raw_block_may_claim_so_much_and_no_more(claim: int) -> None:
    """22 times its size: a block of three bytes may claim 66, and be wrong; 67 are not believed."""
    block = reference.varint(claim) + b"\0x"
    said = "claims to hold" if claim > 22 * len(block) else "damaged"
    with pytest.raises(InvalidMessageError, match=said):
        codecs.decompress(codecs.SNAPPY, block, MIB)


@pytest.mark.parametrize("size", [65535, 65536, 65537, 262_143, 262_144, 262_145, 524_288])
def test_sizes_around_those_of_the_slices(size: int) -> None:
    """Of what goes in (which does not compress) and of what comes out (which does)."""
    for data in (random.Random(size).randbytes(size), bytes(size)):
        packed = zlib.compress(data, wbits=31)
        budget = codecs.DecompressionBudget(size)
        found = list(codecs.decompress_slices(codecs.GZIP, packed, budget))
        assert b"".join(found) == data and budget.bytes_left == 0
        assert all(0 < len(part) <= codecs.OUTPUT_SLICE_BYTES for part in found)
        assert codecs.decompress(codecs.GZIP, packed + packed, 2 * size) == data + data


@pytest.mark.parametrize("size", [32767, 32768, 32769, 65536, 65537])
def test_blocks_of_a_snappy_stream(size: int) -> None:
    data = random.Random(size).randbytes(size)
    packed = codecs.compress(codecs.SNAPPY, data)
    assert reference.inflate(codecs.SNAPPY, packed) == codecs.decompress(codecs.SNAPPY, packed, size) == data
    blocks, position = 0, 16
    while position < len(packed):
        position += 4 + int.from_bytes(packed[position : position + 4], "big")
        blocks += 1
    assert blocks == -(-size // 32768) and position == len(packed)


@pytest.mark.parametrize(
    ("preamble", "claim"),
    [(b"", 0), (b"\x7f", 127), (b"\x80", 0), (b"\x80\x01", 128), (b"\xff\xff\xff\xff\x0f", 2**32 - 1),
     (b"\xff\xff\xff\xff\x7f", 2**35 - 1), (b"\xff\xff\xff\xff\xff\x01", 0), (b"\x81\x80\x80\x80\x00", 1)],
)  # fmt: skip
def test_the_claim_of_a_raw_block(preamble: bytes, claim: int) -> None:
    assert codecs.largest_block(preamble) == claim


def test_what_is_not_compressed_is_taken_from_the_limit_as_well() -> None:
    assert list(codecs.decompress_slices(codecs.NONE, b"abc", codecs.DecompressionBudget(3))) == [b"abc"]
    assert list(codecs.decompress_slices(codecs.NONE, b"", codecs.DecompressionBudget(0))) == []
    with pytest.raises(DecompressionLimitError):
        codecs.decompress(codecs.NONE, b"abc", 2)

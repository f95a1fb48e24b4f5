"""CRC-32C agrees with its definition, bit by bit, in every way of computing it that this machine has."""

import random

import pytest

from fastlog._crc32c import crc32c, crc32c_with, implementation, implementations

POLYNOMIAL = 0x82F63B78
LONGEST = 1500
ALIGNMENTS = 64

each_way = pytest.mark.parametrize("way", implementations())


def _after_a_byte(crc: int) -> int:
    for _ in range(8):
        crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
    return crc


TABLE = [_after_a_byte(byte) for byte in range(256)]


def prefix_sums(data: bytes, start: int = 0) -> list[int]:
    """The sums of the first 0, 1, … bytes, a byte at a time."""
    crc = start ^ 0xFFFFFFFF
    sums = [start]
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
        sums.append(crc ^ 0xFFFFFFFF)
    return sums


@each_way
def test_equals_the_definition_at_every_length_and_alignment(way: str) -> None:
    whole = random.Random(1).randbytes(LONGEST + ALIGNMENTS)
    for alignment in range(ALIGNMENTS):
        span = memoryview(whole)[alignment : alignment + LONGEST]
        expected = prefix_sums(bytes(span))
        assert [crc32c_with(way, span[:length]) for length in range(LONGEST + 1)] == expected, f"alignment {alignment}"


@each_way
@pytest.mark.parametrize("start", [1, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF])
def test_goes_on_from_a_start_value(way: str, start: int) -> None:
    data = random.Random(2).randbytes(700)
    expected = prefix_sums(data, start)
    assert [crc32c_with(way, data[:length], start) for length in range(len(data) + 1)] == expected


@each_way
@pytest.mark.parametrize("byte", [b"\x00", b"\xff", b"\x01", b"\x80"])
def test_uniform_bytes(way: str, byte: bytes) -> None:
    data = byte * 600
    assert [crc32c_with(way, data[:length]) for length in range(601)] == prefix_sums(data)


@each_way
@pytest.mark.parametrize("size", [16383, 16384, (1 << 20) + 13])
def test_large_buffers(way: str, size: int) -> None:
    """Spans around and above the size from which the GIL is released agree."""
    data = random.Random(size).randbytes(size)
    assert crc32c_with(way, data) == prefix_sums(data)[-1]


def test_the_fastest_way_is_the_default() -> None:
    assert implementation() == implementations()[0]
    assert crc32c(b"123456789") == 0xE3069283  # the check value every catalogue of CRCs gives for this one
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_refuses_what_it_cannot_sum() -> None:
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        crc32c(b"", 2**32)
    with pytest.raises(ValueError, match="portable"):
        crc32c_with("abacus", b"")

"""CRC-32 agrees with zlib, in every way of computing it that this machine has."""

import ctypes
import mmap
import platform
import random
import threading
import zlib
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog._crc import crc32, crc32_with, implementation, implementations

LONGEST = 5000
ALIGNMENTS = 64
PROT_NONE = 0

each_way = pytest.mark.parametrize("way", implementations())


@pytest.mark.slow
@each_way
def test_equals_zlib_at_every_length_and_alignment(way: str) -> None:
    """No length 0 … 5000 at no alignment 0 … 63 gives another number than zlib's."""
    with mmap.mmap(-1, LONGEST + ALIGNMENTS) as pages:  # an anonymous map starts on a page, so alignments are true
        pages.write(random.Random(1).randbytes(len(pages)))
        compared = 0
        with memoryview(pages) as whole:
            for alignment in range(ALIGNMENTS):
                spans = [whole[alignment : alignment + length] for length in range(LONGEST + 1)]
                found = list(map(crc32_with, repeat(way), spans))
                assert found == list(map(zlib.crc32, spans)), f"alignment {alignment}"
                compared += len(found)
                for span in spans:
                    span.release()
    assert compared == (LONGEST + 1) * ALIGNMENTS


@each_way
@pytest.mark.parametrize("start", [1, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF])
def test_goes_on_from_a_start_value(way: str, start: int) -> None:
    """A start value counts for every length, also where it is longer than the bytes or spills over a block's end."""
    data = random.Random(2).randbytes(1200)
    for length in range(len(data) + 1):
        assert crc32_with(way, data[:length], start) == zlib.crc32(data[:length], start), f"length {length}"


@each_way
def test_a_cut_anywhere_changes_nothing(way: str) -> None:
    """The sum of the whole is the sum of the rest, started from the sum of the front."""
    data = random.Random(3).randbytes(700)
    whole = zlib.crc32(data)
    for cut in range(len(data) + 1):
        assert crc32_with(way, data[cut:], crc32_with(way, data[:cut])) == whole, f"cut at {cut}"


@each_way
def test_uniform_bytes(way: str) -> None:
    """Runs of one byte, where a term too many can cancel out or stand alone, agree as well."""
    for byte in (b"\x00", b"\xff", b"\x01", b"\x80"):
        for length in range(600):
            assert crc32_with(way, byte * length) == zlib.crc32(byte * length), f"{length} times {byte!r}"


@each_way
@pytest.mark.parametrize("size", [16383, 16384, 1 << 20, (9 << 20) + 13])
def test_large_buffers(way: str, size: int) -> None:
    """Spans around and above the size from which the GIL is released agree."""
    data = random.Random(size).randbytes(size)
    assert crc32_with(way, data) == zlib.crc32(data)


@each_way
@given(data=st.binary(max_size=3000), start=st.integers(0, 2**32 - 1), skipped=st.integers(0, 70))
def test_equals_zlib_on_random_input(way: str, data: bytes, start: int, skipped: int) -> None:
    """Any bytes from any start value agree."""
    span = memoryview(data)[skipped:]
    assert crc32_with(way, span, start) == zlib.crc32(span, start)


@each_way
def test_reads_nothing_outside_the_span(way: str) -> None:
    """Spans that touch pages nobody may read, in front and behind, are summed without a fault."""
    page = mmap.PAGESIZE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    with mmap.mmap(-1, 3 * page) as pages:
        pages[page : 2 * page] = random.Random(4).randbytes(page)
        anchor = ctypes.c_char.from_buffer(pages)
        start = ctypes.addressof(anchor)
        for closed in (start, start + 2 * page):
            assert protect(ctypes.c_void_p(closed), ctypes.c_size_t(page), PROT_NONE) == 0, ctypes.get_errno()
        with memoryview(pages) as whole:
            for length in range(page + 1):
                for first in {page, 2 * page - length}:
                    with whole[first : first + length] as span:
                        assert crc32_with(way, span) == zlib.crc32(span)
        del anchor


def test_the_fastest_way_is_the_default() -> None:
    """``crc32`` goes the first way of the list; the portable one is always its last."""
    assert implementation() == implementations()[0]
    assert implementations()[-1] == "portable"
    assert crc32(b"123456789") == 0xCBF43926  # the check value every catalogue of CRCs gives for this one
    assert crc32(b"6789", crc32(b"12345")) == 0xCBF43926


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other ways are of x86-64")
def test_the_ways_follow_from_the_cpu() -> None:
    """A CPU that says it multiplies without carry is not left with the portable way."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as info:  # noqa: PTH123 - no ordinary file
        flags = set(next((line for line in info if line.startswith("flags")), "").split())
    assert ("pclmul" in implementations()) == ({"pclmulqdq", "sse4_1"} <= flags)
    assert ("avx512" in implementations()) == ({"pclmulqdq", "avx512f", "avx512bw", "vpclmulqdq"} <= flags)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_takes_any_contiguous_buffer(kind: type) -> None:
    """bytes, bytearray and memoryview give the same number, and an empty one gives the start value back."""
    assert crc32(kind(b"some bytes")) == zlib.crc32(b"some bytes")
    assert crc32(kind(b"")) == 0
    assert crc32(kind(b""), 77) == 77


def test_a_wider_item_is_summed_as_its_bytes() -> None:
    """A buffer of wider items is the bytes behind it."""
    assert crc32(memoryview(b"01234567").cast("I")) == zlib.crc32(b"01234567")


def test_refuses_what_it_cannot_sum() -> None:
    """Text, gaps in the buffer, a start value out of range and an unknown way are errors, not numbers."""
    with pytest.raises(TypeError):
        crc32("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        crc32(memoryview(b"some bytes")[::2])
    with pytest.raises(OverflowError):
        crc32(b"", -1)
    with pytest.raises(OverflowError):
        crc32(b"", 2**32)
    with pytest.raises(ValueError, match="portable"):
        crc32_with("abacus", b"")


def test_a_refused_call_lets_go_of_the_buffer() -> None:
    """A bytearray can be resized after the call: nothing holds its buffer."""
    data = bytearray(b"some bytes")
    crc32(data)
    with pytest.raises(OverflowError):
        crc32(data, -1)
    data.append(0)
    assert crc32(data) == zlib.crc32(b"some bytes\x00")


def test_long_spans_from_several_threads() -> None:
    """Threads that sum at the same time, with the GIL released, do not disturb each other."""
    spans = [random.Random(seed).randbytes(200_000 + seed) for seed in range(4)]
    found: list[list[int]] = [[] for _ in spans]

    def sum_often(which: int) -> None:
        found[which] = [crc32(spans[which]) for _ in range(50)]

    threads = [threading.Thread(target=sum_often, args=(which,)) for which in range(len(spans))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[zlib.crc32(span)] * 50 for span in spans]

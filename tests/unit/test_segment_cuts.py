"""Walking a set by its lengths alone: where it may be cut for sending, and where the first entry behind a place begins.

Nothing is checked but lengths there: both run over bytes that a scan has found whole, or that are somebody's claim.
"""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import _segment
from fastlog._segment import SCAN_OK, ScanResult, cut, find_wrapper, pack, scan, skip_to
from tests import reference

INT32 = struct.Struct(">i")
SETS = st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=12)), max_size=7).map(
    lambda items: [reference.encode(payload, magic) for magic, payload in items]
)


def bounds(entries: list[bytes]) -> list[int]:
    """Where each entry begins, and the end."""
    return [0, *itertools.accumulate(map(len, entries))]


# -- skipping ----------------------------------------------------------------------------------------------------------


@given(SETS)
def test_the_first_entry_at_or_behind_any_place(entries: list[bytes]) -> None:
    data, starts = b"".join(entries), bounds(entries)
    for target in range(-1, len(data) + 3):
        expected = next((start for start in starts if start >= target), len(data))
        assert skip_to(data, target) == expected


@given(SETS, st.data())
def test_skipping_ends_where_an_entry_is_cut(entries: list[bytes], data: st.DataObject) -> None:
    whole, starts = b"".join(entries), bounds(entries)
    end = data.draw(st.integers(0, len(whole)))
    last = max(start for start in starts if start <= end)
    for target in (0, end, len(whole) + 1):
        expected = next((start for start in starts if target <= start <= last), last)
        assert skip_to(whole[:end], target) == expected


@pytest.mark.parametrize(
    ("length", "there", "end"),
    [
        (5, 5, 9), (4, 5, 0), (0, 5, 0), (-1, 5, 0), (-(2**31), 5, 0), (2**31 - 1, 5, 0),
        (6, 5, 0), (6, 6, 10), (5, 6, 9), (256, 256, 260), (256, 255, 0), (65536, 65536, 65540),
        (1 << 24, 1 << 24, 4 + (1 << 24)),
    ],
)  # fmt: skip
def test_a_length_is_a_claim(length: int, there: int, end: int) -> None:
    """One that is too small, or longer than what is left, ends the walk where it stands, alone or behind an entry."""
    data = INT32.pack(length) + bytes(there)
    assert skip_to(data, end or 1) == end
    good = reference.encode(b"good")
    assert skip_to(good + data, len(good) + (end or 1)) == len(good) + end
    pieces = cut(good + data, 1 << 30, 1 << 30)
    if end:
        assert pieces[0][0] >= len(good) + end
    else:
        assert pieces == [(len(good), 1, False)]


@pytest.mark.parametrize("left", range(9))
def test_fewer_bytes_than_a_length_or_an_entry_end_the_walk(left: int) -> None:
    good = reference.encode(b"good")
    rest = (INT32.pack(5) + bytes(5))[:left]
    assert skip_to(good + rest, len(good) + 1) == len(good)
    assert cut(good + rest, 100, 100) == [(len(good), 1, False)]


def test_nothing_is_walked() -> None:
    assert skip_to(b"", 0) == skip_to(b"", 100) == 0
    assert cut(b"", 100, 100) == []
    assert cut(b"\0" * 8, 100, 100) == []


# -- cutting -----------------------------------------------------------------------------------------------------------


def cut_slowly(entries: list[tuple[int, bytes]], max_bytes: int, max_payload: int) -> list[tuple[int, int, bool]]:
    """What ``cut`` is to give: as many as fit ``max_bytes``, at least one; one that is too large stands alone."""
    pieces: list[tuple[int, int, bool]] = []
    at = held = count = 0
    for magic, payload in entries:
        size = len(payload) + 9 + magic
        if len(payload) > max_payload:
            if count:
                pieces.append((at, count, False))
            pieces.append((at + size, 1, True))
            held = count = 0
        else:
            if count and held + size > max_bytes:
                pieces.append((at, count, False))
                held = count = 0
            held, count = held + size, count + 1
        at += size
    return [*pieces, (at, count, False)] if count else pieces


@given(
    st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=12)), max_size=8), st.integers(1, 70), st.integers(0, 14)
)
def test_pieces_are_those_of_the_slow_twin(entries: list[tuple[int, bytes]], max_bytes: int, max_payload: int) -> None:
    data = b"".join(reference.encode(payload, magic) for magic, payload in entries)
    assert cut(data, max_bytes, max_payload) == cut_slowly(entries, max_bytes, max_payload)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_piece_may_be_as_large_as_allowed_and_a_payload_too(magic: int) -> None:
    entry = reference.encode(b"12345", magic)
    size = len(entry)
    for count in (1, 2, 3):
        assert cut(entry * 3, size * count, 5)[0] == (size * count, count, False)
        assert cut(entry * 3, size * count + size - 1, 5)[0] == (size * count, count, False)
    assert cut(entry * 3, 1, 5) == [(size, 1, False), (2 * size, 1, False), (3 * size, 1, False)]
    assert cut(entry * 2, 1000, 4) == [(size, 1, True), (2 * size, 1, True)]
    assert cut(entry * 2, 1000, 5) == [(2 * size, 2, False)]


def test_what_stands_before_and_behind_one_that_is_too_large() -> None:
    small, large = reference.encode(b"s"), reference.encode(b"large")
    data = small + small + large + small
    one = len(small)
    assert cut(data, 1000, 4) == [(2 * one, 2, False), (2 * one + len(large), 1, True), (len(data), 1, False)]
    # what fits is counted from behind it on
    assert cut(large + small * 3, 2 * one, 4) == [
        (len(large), 1, True), (len(large) + 2 * one, 2, False), (len(large) + 3 * one, 1, False),
    ]  # fmt: skip


@pytest.mark.parametrize("bad", [None, "text", memoryview(bytes(20))[::2]])
def test_what_is_no_buffer_is_refused(bad: object) -> None:
    for call in (lambda: skip_to(bad, 0), lambda: cut(bad, 1, 1)):  # type: ignore[arg-type]
        with pytest.raises((TypeError, ValueError, BufferError)):
            call()


# -- finding wrappers --------------------------------------------------------------------------------------------------


def test_a_wrapper_as_small_as_can_be_is_found_and_one_byte_less_is_none() -> None:
    smallest = INT32.pack(6) + b"\1\1" + bytes(4)
    assert find_wrapper(smallest) == (10, 10, 1)
    for size in range(10):
        assert find_wrapper(smallest[:size]) is None
    # five bytes cannot have attributes, whatever the sixth one is
    assert find_wrapper(INT32.pack(5) + b"\1\1" + bytes(3)) is None
    assert find_wrapper(INT32.pack(5) + b"\1\1\0\0\0" + smallest) == (19, 19, 1)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 4, 7, 2**31 - 1])
def test_a_claim_ends_the_search(length: int) -> None:
    assert find_wrapper(INT32.pack(length) + b"\1\1" + bytes(4)) is None


def test_only_messages_of_magic_1_are_wrappers() -> None:
    wrapper = pack([b"x"], 2)
    old = pack([b"\2\2\2\2\2"], 0, 0)
    assert find_wrapper(old) is None
    assert find_wrapper(old + wrapper) == (len(old + wrapper), len(old) + 10, 2)
    assert find_wrapper(wrapper, len(wrapper)) is None
    assert find_wrapper(wrapper, len(wrapper) + 1) is None


# -- long spans -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [65535, 65536, 65537, 200_000])
def test_spans_around_the_size_for_which_the_lock_is_given_away(size: int) -> None:
    """The same result on both sides, in every function, and the buffer is free again after each."""
    data = bytearray(reference.encode(b"x" * 90) * (size // 100) + reference.encode(b"x" * (size % 100 + 90)))
    data = data if len(data) == size else bytearray(reference.encode(b"y" * (size - 10)))
    count = len(reference.walk(bytes(data))[0])
    assert scan(data) == ScanResult(len(data), count, 0, 0, SCAN_OK)
    assert len(_segment.payloads(data)) == len(_segment.entries(data)) == count
    assert skip_to(data, size) == len(data)
    data.append(0)

"""The walk over a batch's records: what is whole, what is refused and why, compared with a slow independent reading."""

from __future__ import annotations

import ctypes
import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import _records
from fastlog._records import RecordsResult, walk
from tests.harness import raw_records
from tests.harness.raw_records import Record, encode, encode_fields, sized, varint

MIN_64, MAX_64 = -(2**63), 2**63 - 1
NOTHING = (0, 0, None, None)

fields = st.one_of(st.none(), st.binary(max_size=20), st.sampled_from([b"", b"x" * 63, b"x" * 64, b"y" * 200]))
headers = st.lists(st.tuples(st.binary(max_size=8), fields), max_size=4)
times = st.one_of(st.integers(-3, 300), st.integers(-(2**40), 2**40))
records = st.builds(Record, times, fields, fields, headers, st.integers(0, 255))
batches = st.lists(records, max_size=6)


def expected(data: bytes, count: int, base_timestamp: int = 0) -> RecordsResult:
    """What the slow reading finds."""
    found, position, status = raw_records.decode(data, count, base_timestamp)
    times = [record.timestamp for record in found]
    latest = max(times, default=None)
    return RecordsResult(status, position, len(found), latest, None if latest is None else times.index(latest))


def test_statuses_have_the_same_numbers() -> None:
    names = ["OK", "TAIL", "LEFT", "COUNT", "VARINT", "LENGTH", "FIELD", "OFFSET", "TIMESTAMP"]
    assert [getattr(_records, f"RECORDS_{name}") for name in names] == list(range(9))
    assert [getattr(raw_records, name) for name in names] == list(range(9))


def test_a_record_byte_by_byte() -> None:
    """One record as Kafka's documentation draws it, written by hand."""
    data = bytes.fromhex("20 00 0a 00 02 6b 04 7631 04 02 61 01 02 62 02 63")
    assert walk(data, 1, 1000) == (_records.RECORDS_OK, 17, 1, 1005, 0)
    assert raw_records.decode(data, 1, 1000)[0] == [Record(1005, b"k", b"v1", [(b"a", None), (b"b", b"c")])]


@given(batches, times)
def test_whole_batches(batch: list[Record], base: int) -> None:
    data = encode(batch, base)
    found = walk(data, len(batch), base)
    assert found == expected(data, len(batch), base)
    assert found[:3] == (_records.RECORDS_OK, len(data), len(batch))


@given(st.lists(records, min_size=1, max_size=4), st.integers(-2, 2), st.binary(max_size=3))
def test_another_count_and_bytes_behind(batch: list[Record], more: int, tail: bytes) -> None:
    data = encode(batch) + tail
    assert walk(data, len(batch) + more) == expected(data, len(batch) + more)


@given(st.lists(records, min_size=1, max_size=3))
def test_every_cut(batch: list[Record]) -> None:
    data = encode(batch)
    for end in range(len(data)):
        found = walk(data[:end], len(batch))
        assert found == expected(data[:end], len(batch))
        assert found.status == _records.RECORDS_TAIL


@given(st.lists(records, min_size=1, max_size=3), st.integers(1, 255))
def test_every_byte_flipped(batch: list[Record], flip: int) -> None:
    data = encode(batch)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= flip
        assert walk(damaged, len(batch)) == expected(bytes(damaged), len(batch))


@given(st.binary(max_size=60), st.integers(-1, 9), st.integers(MIN_64, MAX_64))
def test_any_bytes(data: bytes, count: int, base: int) -> None:
    assert walk(data, count, base) == expected(data, count, base)


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 12, 14, 16, 0x80, 0xFF]), max_size=40), st.integers(0, 3))
def test_bytes_that_look_like_fields(data: list[int], count: int) -> None:
    assert walk(bytes(data), count) == expected(bytes(data), count)


def record_of(*parts: bytes) -> bytes:
    return sized(b"".join(parts))


NULL, EMPTY, NONE = varint(-1), varint(0), varint(0)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, NONE), "OK"),
        (record_of(b"\xff", varint(0), varint(0), NULL, EMPTY, NONE), "OK"),
        # numbers with more bytes than they need, and with more than there can be
        (record_of(b"\0", varint(0, 10), varint(0, 5), varint(-1, 5), varint(0, 5), varint(0, 5)), "OK"),
        (varint(6, 5) + b"\0\0\0\1\1\0", "OK"),
        (record_of(b"\0", varint(0, 11), varint(0), NULL, NULL, NONE), "VARINT"),
        (record_of(b"\0", varint(0), varint(0, 6), NULL, NULL, NONE), "VARINT"),
        (record_of(b"\0", varint(0), varint(0), varint(0, 6), NULL, NONE), "VARINT"),
        (record_of(b"\0", varint(0), varint(0), NULL, varint(0, 6), NONE), "VARINT"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(0, 6)), "VARINT"),
        (varint(6, 6) + b"\0\0\0\1\1\0", "VARINT"),
        (b"\x80\x80\x80\x80\x10" + bytes(9), "VARINT"),  # 2^32, whose low 32 bits are 0
        (record_of(b"\0", b"\x80" * 9 + b"\x02", varint(0), NULL, NULL, NONE), "VARINT"),
        (record_of(b"\0", varint(0), b"\x80\x80\x80\x80\x10", NULL, NULL, NONE), "VARINT"),
        # a number that ends with the record
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, b"\x80"), "LENGTH"),
        (record_of(b"\0", varint(0), varint(0), NULL, b"\xff\xff"), "LENGTH"),
        # lengths
        (varint(-1), "LENGTH"),
        (varint(-(2**31)), "LENGTH"),
        (varint(0), "LENGTH"),
        (varint(5) + b"\0\0\0\1\1", "LENGTH"),
        (varint(2**31 - 1) + bytes(40), "TAIL"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, NONE, b"\0"), "LENGTH"),
        (record_of(b"\0", varint(0), varint(0), varint(1), NULL, NONE), "LENGTH"),
        (record_of(b"\0", varint(0), varint(0), varint(2**31 - 1), NULL, NONE), "LENGTH"),
        (record_of(b"\0", varint(0), varint(0), varint(-2), NULL, NONE), "FIELD"),
        (record_of(b"\0", varint(0), varint(0), varint(-(2**31)), NULL, NONE), "FIELD"),
        (record_of(b"\0", varint(0), varint(0), NULL, varint(-2), NONE), "FIELD"),
        # headers
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(-1)), "FIELD"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(-(2**31))), "FIELD"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(1)), "LENGTH"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(1), b"\0"), "LENGTH"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(1), b"\0\0"), "OK"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(2**31 - 1), b"\0\0"), "LENGTH"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(1), NULL, NULL), "FIELD"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(1), EMPTY, varint(-2)), "FIELD"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(1), EMPTY, varint(1)), "LENGTH"),
        (record_of(b"\0", varint(0), varint(0), NULL, NULL, varint(1), EMPTY, NULL, b"\0"), "LENGTH"),
        # offset deltas
        (record_of(b"\0", varint(0), varint(1), NULL, NULL, NONE), "OFFSET"),
        (record_of(b"\0", varint(0), varint(-1), NULL, NULL, NONE), "OFFSET"),
        (record_of(b"\0", varint(0), varint(2**31 - 1), NULL, NULL, NONE), "OFFSET"),
    ],
)
def test_each_rule(data: bytes, status: str) -> None:
    """Alone, and behind records that are good: what they are found with stays."""
    found = walk(data, 1)
    assert found == expected(data, 1)
    assert found.status == getattr(_records, f"RECORDS_{status}")
    good = encode([Record(3), Record(2)])
    third = walk(good + data, 3)
    assert third == expected(good + data, 3)
    assert third[1:] == (len(good), 2, 3, 0)


@pytest.mark.parametrize(
    ("base", "delta", "fits"),
    [
        (0, MAX_64, True), (0, MIN_64, True), (1, MAX_64, False), (-1, MIN_64, False), (MAX_64, 0, True),
        (MAX_64, 1, False), (MIN_64, -1, False), (MIN_64, 0, True), (MIN_64, MAX_64, True), (MAX_64, MIN_64, True),
        (-1, 0, True), (MIN_64, MIN_64, False), (MAX_64, MAX_64, False),
    ],
)  # fmt: skip
def test_timestamps_stay_within_64_bits(base: int, delta: int, fits: bool) -> None:
    data = sized(b"\0" + varint(delta) + varint(0) + NULL + NULL + NONE)
    if fits:
        assert walk(data, 1, base) == (_records.RECORDS_OK, len(data), 1, base + delta, 0)
    else:
        assert walk(data, 1, base) == (_records.RECORDS_TIMESTAMP, *NOTHING)


def test_the_first_of_the_largest_timestamps_is_told() -> None:
    data = encode([Record(timestamp) for timestamp in (5, 9, 7, 9)])
    assert walk(data, 4) == (_records.RECORDS_OK, len(data), 4, 9, 1)
    data = encode([Record(timestamp) for timestamp in (-9, -5, -5)])
    assert walk(data, 3) == (_records.RECORDS_OK, len(data), 3, -5, 1)
    smallest = sized(b"\0" + varint(MIN_64) + varint(0) + NULL + NULL + NONE)
    assert walk(smallest, 1) == (_records.RECORDS_OK, len(smallest), 1, MIN_64, 0)


def test_offset_deltas_of_many_records() -> None:
    """Across the places where a delta needs one byte more."""
    for count in (64, 65, 8192, 8193, 20_000):
        data = encode([Record(value=None)] * count)
        assert walk(data, count) == (_records.RECORDS_OK, len(data), count, 0, 0)
        assert walk(data, count - 1).status == _records.RECORDS_LEFT
        assert walk(data, count + 1).status == _records.RECORDS_TAIL
        again = data + sized(encode_fields(Record(), count - 1))
        assert walk(again, count + 1) == (_records.RECORDS_OFFSET, len(data), count, 0, 0)


@pytest.mark.parametrize("count", [-1, MIN_64, 2**31, MAX_64])
def test_counts_that_no_batch_has(count: int) -> None:
    assert walk(b"", count) == walk(encode([Record()]), count) == (_records.RECORDS_COUNT, *NOTHING)


def test_no_records_at_all() -> None:
    assert walk(b"", 0) == (_records.RECORDS_OK, *NOTHING)
    assert walk(b"\0", 0) == (_records.RECORDS_LEFT, *NOTHING)
    assert walk(b"", 2**31 - 1) == (_records.RECORDS_TAIL, *NOTHING)


@pytest.mark.parametrize("size", [65535, 65536, 65537, 300_000])
def test_spans_around_the_size_for_which_the_lock_is_given_away(size: int) -> None:
    """The same result on both sides, and the buffer is free again afterwards."""
    fixed = len(sized(encode_fields(Record(value=b"x" * (size - 20)), 0)))
    data = bytearray(encode([Record(value=b"x" * (size - 20 + size - fixed))]))
    assert len(data) == size
    assert walk(data, 1) == (_records.RECORDS_OK, size, 1, 0, 0)
    data.append(0)
    assert walk(data, 1).status == _records.RECORDS_LEFT


def test_nothing_is_read_behind_the_end() -> None:
    """Bytes that end with a page, the next of which may not be read: a wrong read ends the process."""
    page = mmap.PAGESIZE
    whole = encode([Record(7, b"key", b"value", [(b"h", b"1"), (b"i", None)]), Record(8)])
    claims = [whole, *(whole[:end] + bytes([last]) for end in range(len(whole)) for last in (0x7E, 0x80, 0xFF))]
    with mmap.mmap(-1, 2 * page, prot=mmap.PROT_READ | mmap.PROT_WRITE) as area:
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        assert protect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 0) == 0
        try:
            for data in claims:
                area[page - len(data) : page] = data
                with memoryview(area)[page - len(data) : page] as view:
                    assert walk(view, 2) == expected(data, 2)
        finally:
            both = mmap.PROT_READ | mmap.PROT_WRITE
            assert protect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), both) == 0


@pytest.mark.parametrize("bad", [None, "text", memoryview(bytes(20))[::2]])
def test_what_is_no_buffer_is_refused(bad: object) -> None:
    with pytest.raises((TypeError, BufferError)):
        walk(bad, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "base"), [(2**63, 0), (0, 2**63), (0, MIN_64 - 1)])
def test_numbers_beyond_64_bits_are_refused(count: int, base: int) -> None:
    with pytest.raises(OverflowError):
        walk(b"", count, base)

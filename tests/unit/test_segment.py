"""The compiled walkers: golden bytes, limits of every field, and agreement with a slow twin on good and bad bytes."""

from __future__ import annotations

import mmap
import random
import struct
import sys
import threading
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import _segment
from fastlog._segment import (
    SCAN_CODEC,
    SCAN_CRC,
    SCAN_MAGIC,
    SCAN_OK,
    SCAN_SIZE,
    SCAN_TAIL,
    SCAN_TOO_LARGE,
    ScanResult,
)
from tests import reference, strategies

HELLO_0 = bytes.fromhex("0000000a003610a68668656c6c6f")
HELLO_1 = bytes.fromhex("0000000b01003610a68668656c6c6f")
EMPTY_1 = bytes.fromhex("00000006010000000000")
ONE_TWO_THREE = bytes.fromhex("0000000901007a6c86f16f6e6500000009010011ca8a6674776f0000000b010046c5d8f57468726565")
SMALL_SET = HELLO_0 + EMPTY_1 + HELLO_1 + reference.encode(b"\x1f\x8b\x08not really gzip") + HELLO_0


def agrees(data: bytes, max_payload: int = -1, base: int = 0) -> None:
    """Every walker says of these bytes what the twin says."""
    found, _ = reference.walk(data, base=base)
    assert tuple(_segment.scan(data, max_payload)) == reference.scan(data, max_payload)
    expected = [(e.offset, e.next_offset, e.magic, e.attributes, e.payload) for e in found]
    assert _segment.entries(data, base) == expected
    assert _segment.payloads(data) == [entry.payload for entry in found]


@pytest.mark.parametrize(
    ("data", "magic", "payload"), [(HELLO_0, 0, b"hello"), (HELLO_1, 1, b"hello"), (EMPTY_1, 1, b"")]
)
def test_golden_messages(data: bytes, magic: int, payload: bytes) -> None:
    """The recorded bytes of 0.7 are read and written exactly."""
    assert _segment.pack([payload], 0, magic) == data
    assert _segment.entries(data, 7) == [(7, 7 + len(data), magic, 0, payload)]
    assert _segment.scan(data) == ScanResult(len(data), 1, 0, 0, SCAN_OK)


def test_golden_set() -> None:
    assert _segment.payloads(ONE_TWO_THREE) == [b"one", b"two", b"three"]
    assert _segment.pack([b"one", b"two", b"three"]) == ONE_TWO_THREE


def test_empty_input_is_a_whole_set() -> None:
    """No bytes are a valid set without messages, in every function."""
    assert _segment.scan(b"") == ScanResult(0, 0, 0, 0, SCAN_OK)
    assert (_segment.entries(b""), _segment.payloads(b""), _segment.pack([])) == ([], [], b"")
    assert _segment.find_wrapper(b"") is None


def test_status_numbers_are_those_of_the_format_description() -> None:
    statuses = (SCAN_OK, SCAN_TAIL, SCAN_SIZE, SCAN_MAGIC, SCAN_CODEC, SCAN_CRC, SCAN_TOO_LARGE)
    assert statuses == (0, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("stray", [b"\0" * n for n in (1, 2, 3)] + [HELLO_1[:n] for n in range(4, 15)])
def test_stray_bytes_after_two_entries_are_not_counted(stray: bytes) -> None:
    """Conformance 9 and 13: the valid bytes end before a cut entry, wherever it is cut."""
    data = HELLO_1 + HELLO_0 + stray
    result = _segment.scan(data)
    assert (result.valid_bytes, result.count, result.status) == (len(HELLO_1 + HELLO_0), 2, SCAN_TAIL)


@pytest.mark.parametrize("zeros", [4, 5, 6])
def test_zero_bytes_at_the_tail_are_damage(zeros: int) -> None:
    """Conformance 9: a length of zero is no message; what precedes it stays."""
    result = _segment.scan(HELLO_1 + bytes(zeros))
    assert (result.valid_bytes, result.status) == (len(HELLO_1), SCAN_SIZE)


LENGTHS = [
    (-(2**31), SCAN_SIZE),
    (-1, SCAN_SIZE),
    (0, SCAN_SIZE),
    (1, SCAN_SIZE),
    (4, SCAN_SIZE),
    (5, SCAN_SIZE),  # magic 1 needs 6
    (6, SCAN_CRC),
    (10, SCAN_CRC),
    (11, SCAN_OK),
    (12, SCAN_TAIL),
    (2**31 - 5, SCAN_TAIL),
    (2**31 - 1, SCAN_TAIL),
]


@pytest.mark.parametrize(("length", "status"), LENGTHS)
def test_length_claims(length: int, status: int) -> None:
    """T-19: a length is a claim; none makes the walk leave its bytes, alone or after a good entry."""
    claim = struct.pack(">i", length) + HELLO_1[4:]
    for before in (b"", HELLO_0):
        result = _segment.scan(before + claim)
        assert result.status == status
        assert result.valid_bytes == len(before) + (len(claim) if status == SCAN_OK else 0)
        agrees(before + claim)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 1, 2, 3, 4, 5, 9, 10, 11, 2**31 - 1])
def test_length_claims_of_magic_0(length: int) -> None:
    """T-19: the same for magic 0, whose smallest message is one byte shorter, whatever bytes follow."""
    status = SCAN_SIZE if length < 5 else SCAN_TAIL if length > 10 else SCAN_OK if length == 10 else SCAN_CRC
    claim = struct.pack(">i", length) + HELLO_0[4:]
    for before in (b"", HELLO_1):
        assert _segment.scan(before + claim).status == status
        agrees(before + claim)
    agrees(struct.pack(">i", length) + bytes(14))


def test_smallest_entries() -> None:
    """Z-3: five bytes are a whole message of magic 0, six of magic 1; five of magic 1 lack room for a checksum."""
    assert _segment.payloads(bytes.fromhex("000000050000000000")) == [b""]
    assert _segment.payloads(EMPTY_1) == [b""]
    assert _segment.scan(bytes.fromhex("000000050100000000")).status == SCAN_SIZE


@pytest.mark.parametrize("magic", [2, 3, 0x7F, 0x80, 0xFF])
def test_other_magics_stop_the_walk(magic: int) -> None:
    data = bytearray(HELLO_1)
    data[4] = magic
    assert _segment.scan(HELLO_0 + data) == ScanResult(len(HELLO_0), 1, 0, 0, SCAN_MAGIC)


@pytest.mark.parametrize("attributes", range(256))
def test_attributes(attributes: int) -> None:
    """Z-2: codec 3 and every reserved bit are refused; they are not covered by the checksum."""
    data = reference.encode(b"payload", 1, attributes)
    result = _segment.scan(data)
    assert result.status == (SCAN_OK if attributes < 3 else SCAN_CODEC)
    assert result.wrappers == (1 if attributes in (1, 2) else 0)
    agrees(data)


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"\x1f\x8b\x08", 1),
        (b"\x1f\x8b\x08 and more", 1),
        (b"\x82SNAPPY", 1),
        (b"\x82SNAPPY\x00\x00\x00\x00\x01", 1),
        (b"\x1f\x8b", 0),
        (b"\x1f\x8b\x07", 0),
        (b"\x82SNAPP", 0),
        (b"\x82SNAPPy", 0),
        (b"", 0),
    ],
)
def test_plain_payloads_that_look_compressed_are_counted(payload: bytes, count: int) -> None:
    """Z-2: a lost codec bit shows as an uncompressed payload with a codec's first bytes."""
    for magic in (0, 1):
        assert _segment.scan(reference.encode(payload, magic)).suspicious == count
    assert _segment.scan(reference.encode(payload, 1, 1)).suspicious == 0


@pytest.mark.parametrize("magic", [0, 1])
def test_largest_payload(magic: int) -> None:
    """The limit itself is allowed, one byte more is not; a negative limit is none."""
    data = HELLO_1 + reference.encode(b"x" * 100, magic)
    assert _segment.scan(data, 100).status == SCAN_OK
    assert _segment.scan(data, 99) == ScanResult(len(HELLO_1), 1, 0, 0, SCAN_TOO_LARGE)
    assert _segment.scan(data, -1).status == SCAN_OK
    assert _segment.scan(EMPTY_1, 0).status == SCAN_OK


def test_order_of_the_checks() -> None:
    """A message wrong in several ways is named after the first: size, fit, magic, attributes, payload size, CRC."""
    data = bytearray(reference.encode(b"x" * 20, 1, 7))
    data[-1] ^= 1
    assert _segment.scan(data, 10).status == SCAN_CODEC
    data[4] = 9
    assert _segment.scan(data, 10).status == SCAN_MAGIC
    assert _segment.scan(data[:-1], 10).status == SCAN_TAIL
    data[4:6] = b"\x01\x00"
    assert _segment.scan(data, 10).status == SCAN_TOO_LARGE
    assert _segment.scan(data, 20).status == SCAN_CRC


def test_truncated_at_every_byte() -> None:
    """T-12: whatever the cut, the walk ends at the last whole entry before it."""
    boundaries = [0, *(entry.next_offset for entry in reference.walk(SMALL_SET)[0])]
    for cut in range(len(SMALL_SET) + 1):
        agrees(SMALL_SET[:cut])
        result = _segment.scan(SMALL_SET[:cut])
        assert result.valid_bytes == max(boundary for boundary in boundaries if boundary <= cut)
        assert result.status == (SCAN_OK if cut in boundaries else SCAN_TAIL)


def test_every_bit_flipped() -> None:
    """T-14: each flip ends the walk at the flipped entry, but for the codec bits of a magic 1 attributes byte."""
    starts = [entry.offset for entry in reference.walk(SMALL_SET)[0]]
    unseen = []
    for bit in range(len(SMALL_SET) * 8):
        data = bytearray(SMALL_SET)
        data[bit // 8] ^= 1 << (bit % 8)
        agrees(bytes(data))
        if _segment.scan(data).valid_bytes != max(start for start in starts if start <= bit // 8):
            unseen.append(bit)
    magic_1 = [start for start in starts if SMALL_SET[start + 4] == 1]
    assert unseen == [(start + 5) * 8 + bit for start in magic_1 for bit in (0, 1)]


def test_garbage_tails() -> None:
    """T-13: random bytes, zeros and shifted copies after a good set never become messages, and the walk ends."""
    rng = random.Random(7)
    tails = [rng.randbytes(rng.randrange(1, 80)) for _ in range(150)] + [bytes(n) for n in range(1, 40)]
    tails += [SMALL_SET[shift:] for shift in range(1, len(HELLO_0))]
    for tail in tails:
        result = _segment.scan(SMALL_SET + tail)
        assert result.valid_bytes == len(SMALL_SET)
        assert result.status != SCAN_OK
        agrees(SMALL_SET + tail)


@given(strategies.message_sets, st.integers(0, 2**40), st.integers(-1, 60))
@settings(max_examples=150, deadline=None)
def test_valid_sets_agree_with_the_twin(data: bytes, base: int, max_payload: int) -> None:
    assert _segment.scan(data).status == SCAN_OK
    agrees(data, max_payload, base)


@given(st.one_of(strategies.damaged_sets(), st.binary(max_size=80)), st.integers(-1, 60))
@settings(max_examples=300, deadline=None)
def test_damaged_sets_agree_with_the_twin(data: bytes, max_payload: int) -> None:
    agrees(data, max_payload)


@given(st.lists(st.binary(max_size=50), max_size=20), st.sampled_from([0, 1]))
@settings(max_examples=100, deadline=None)
def test_pack_writes_what_the_twin_writes(items: list[bytes], magic: int) -> None:
    packed = _segment.pack(items, 0, magic)
    assert packed == reference.encode_all(items, magic)
    assert _segment.payloads(packed) == items
    assert _segment.pack(tuple(items), 0, magic) == packed


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(b"x" + data))[1:]])
def test_every_kind_of_buffer(make) -> None:  # type: ignore[no-untyped-def]
    assert _segment.payloads(make(ONE_TWO_THREE)) == [b"one", b"two", b"three"]
    assert _segment.scan(make(ONE_TWO_THREE)).count == 3


def test_mapped_memory() -> None:
    with mmap.mmap(-1, 4096) as mapped:
        mapped[: len(SMALL_SET)] = SMALL_SET
        assert _segment.scan(mapped).valid_bytes == len(SMALL_SET)
        assert _segment.payloads(mapped) == _segment.payloads(SMALL_SET)


@pytest.mark.parametrize("bad", ["text", None, 7, [b"list"], memoryview(bytes(20))[::2]])
def test_what_is_no_buffer_is_refused(bad: object) -> None:
    for function in (_segment.scan, _segment.entries, _segment.payloads, _segment.find_wrapper):
        with pytest.raises((TypeError, BufferError, ValueError)):
            function(bad)  # type: ignore[arg-type]


def test_buffers_are_released_after_errors() -> None:
    """A walk that raises lets go of its buffer: it can be resized afterwards."""
    data = bytearray(HELLO_1)
    with pytest.raises(ValueError, match="base_offset"):
        _segment.entries(data, -1)
    _segment.scan(data)
    data.append(0)


def test_base_offsets_stay_within_64_bits() -> None:
    highest = 2**63 - 1 - len(HELLO_1)
    assert _segment.entries(HELLO_1, highest)[0][:2] == (highest, 2**63 - 1)
    with pytest.raises(ValueError, match="base_offset"):
        _segment.entries(HELLO_1, highest + 1)
    with pytest.raises(OverflowError):
        _segment.entries(HELLO_1, 2**63)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([b"x"], 3), ValueError),
        (([b"x"], -1), ValueError),
        (([b"x"], 1, 0), ValueError),
        (([b"x"], 0, 2), ValueError),
        (([b"x", "text"],), TypeError),
        (([bytearray(b"x")],), TypeError),
        ((7,), TypeError),
    ],
)
def test_pack_refuses_what_it_cannot_write(arguments: tuple, error: type[Exception]) -> None:  # type: ignore[type-arg]
    with pytest.raises(error):
        _segment.pack(*arguments)


def test_pack_writes_the_codec_into_the_attributes() -> None:
    assert _segment.pack([b"a", b"b"], 2) == reference.encode(b"a", 1, 2) + reference.encode(b"b", 1, 2)


def test_find_wrapper_steps_from_wrapper_to_wrapper() -> None:
    first, second = reference.encode(b"gz", 1, 1), reference.encode(b"sn", 1, 2)
    data = HELLO_0 + first + HELLO_1 + second + HELLO_1
    end = len(HELLO_0 + first)
    assert _segment.find_wrapper(data) == (end, end - 2, 1)
    assert _segment.find_wrapper(data, end) == (len(data) - len(HELLO_1), len(data) - len(HELLO_1) - 2, 2)
    assert _segment.find_wrapper(data, len(data) - len(HELLO_1)) is None
    with pytest.raises(ValueError, match="negative"):
        _segment.find_wrapper(data, -1)


@given(st.one_of(strategies.damaged_sets(), st.binary(max_size=60)), st.integers(0, 100))
@settings(max_examples=150, deadline=None)
def test_find_wrapper_stays_inside_any_bytes(data: bytes, position: int) -> None:
    found = _segment.find_wrapper(data, position)
    if found is not None:
        end, start, codec = found
        assert position < start <= end <= len(data)
        assert codec in (1, 2, 3)


def test_long_spans_are_read_in_several_threads_at_once() -> None:
    """A span above the threshold gives the GIL away and every thread still gets its own right answer."""
    items = [bytes([index % 256]) * 300 for index in range(3000)]
    data = _segment.pack(items)
    answers: list[bool] = []

    def read() -> None:
        answers.append(all(_segment.scan(data).count == 3000 and _segment.payloads(data) == items for _ in range(5)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 4


def test_nothing_leaks() -> None:
    """The same call again and again holds no more memory, nor references to its arguments."""
    items = [b"payload %d" % index for index in range(500)]
    data = _segment.pack(items)

    def once() -> None:
        _segment.payloads(data)
        _segment.entries(data)
        _segment.pack(items)
        _segment.scan(data)
        _segment.find_wrapper(data)

    once()
    references = [sys.getrefcount(item) for item in items], sys.getrefcount(data), sys.getrefcount(items)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            once()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 5000
    assert references == ([sys.getrefcount(item) for item in items], sys.getrefcount(data), sys.getrefcount(items))

"""Messages of 0.7 as records: the offsets and bytes that a slow twin gives, whatever is cut, damaged or nested."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastlog import message, record_batches
from fastlog._upconvert import (
    CONVERT_CUT,
    CONVERT_DAMAGED,
    CONVERT_FULL,
    CONVERT_WRAPPER,
    CONVERTED,
    OpenedSet,
    SetBatches,
    convert,
)
from fastlog.errors import DecompressionLimitError, InvalidMessageError, MessageTooLargeError, UnfitSetError
from fastlog.message import DeepLimits
from fastlog.record_batches import BatchHeader
from tests import reference, strategies
from tests.harness import raw_format as raw

LIMITS = DeepLimits()
BASE = 2**40 + 17
SIZES = [0, 1, 9, 55, 56, 57, 63, 64, 119, 120, 121, 8183, 8184, 8191, 8192, 16_370, 16_384, 1_048_560, 1_048_576]


def records_of(batch: bytes) -> list[tuple[int, bytes]]:
    """Offsets and values of a batch, after a check of all that else has one value."""
    if not batch:
        return []
    header = BatchHeader.parse(batch)
    assert (header.size_bytes, header.magic, header.attributes) == (len(batch), 2, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.base_timestamp == header.max_timestamp == -1
    view = memoryview(batch)
    assert record_batches.crc32c(view[record_batches.ATTRIBUTES_AT :]) == header.crc
    found = []
    data = view[record_batches.HEADER_BYTES :]
    at = 0
    while at < len(data):  # offset deltas have gaps here, so this is read by hand, as the format is described
        size, at = zigzag(data, at)
        end = at + size
        assert data[at] == 0 and data[at + 1] == 0
        delta, at = zigzag(data, at + 2)
        key, at = zigzag(data, at)
        length, at = zigzag(data, at)
        value = bytes(data[at : at + length])
        headers, at = zigzag(data, at + length)
        assert key == -1 and headers == 0 and at == end and len(value) == length
        found.append((header.base_offset + delta, value))
    assert len(found) == header.record_count
    assert not found or found[0][0] == header.base_offset
    return found


def zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def read_to_the_end(data: bytes, wanted: int, most_bytes: int) -> list[tuple[int, bytes]]:
    """What a consumer gets that fetches again from behind the last record, ``most_bytes`` at a time."""
    found: list[tuple[int, bytes]] = []
    end = BASE + len(data)
    while wanted < end:
        begin = max(entry.offset for entry in reference.walk(data, base=BASE)[0] if entry.offset <= wanted)
        batch, following, status = convert(data[begin - BASE :], begin, wanted, LIMITS, most_bytes)
        assert status in (CONVERTED, CONVERT_FULL) and following > wanted
        header = BatchHeader.parse(batch)
        assert header.next_offset == following or header.record_count == 0
        got = records_of(batch)
        assert all(wanted <= offset < following for offset, _ in got)
        assert len(batch) <= most_bytes or len(got) <= 1
        found += got
        wanted = following
    return found


@given(strategies.message_sets, st.integers(0, 3000), st.sampled_from([1, 100, 200, 1000, 1 << 20]))
def test_every_set_is_read_as_the_twin_reads_it(data: bytes, back: int, most_bytes: int) -> None:
    """From any offset, in answers of any size: each message once, with its offset, up to the end."""
    expected = reference.as_records(data, BASE)
    wanted = max(BASE, BASE + len(data) - back)
    if expected is None:
        return
    assert read_to_the_end(data, wanted, most_bytes) == [one for one in expected if one[0] >= wanted]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", SIZES)
def test_every_width_of_a_length(magic: int, size: int) -> None:
    payloads = [b"a", random.Random(size).randbytes(size), b"b"]
    data = raw.message_set(payloads, magic)
    assert records_of(convert(data, BASE, BASE, LIMITS)[0]) == reference.as_records(data, BASE)


@pytest.mark.parametrize("far", [1 << 6, 1 << 13, 1 << 20])
def test_every_width_of_an_offset_delta(far: int) -> None:
    """Around each border of a varint."""
    for short in range(-12, 12):
        data = raw.entry(b"") + raw.entry(bytes(far + short)) + raw.entry(b"x")
        assert records_of(convert(data, 0, 0, LIMITS)[0]) == reference.as_records(data)


@given(strategies.message_sets, st.data())
def test_cut_anywhere(data: bytes, draw: st.DataObject) -> None:
    """What is whole before the cut is there; what more is to be given for the next one is said right."""
    cut = draw.draw(st.integers(0, len(data)))
    expected = reference.as_records(data[:cut], BASE)
    if expected is None:
        return
    batch, following, status = convert(data[:cut], BASE, BASE, LIMITS)
    assert records_of(batch) == expected
    entries, _ = reference.walk(data, base=BASE)
    whole = [entry.next_offset for entry in entries if entry.next_offset <= BASE + cut]
    assert following == (whole[-1] if whole else BASE)
    assert status == (CONVERTED if following == BASE + cut else CONVERT_CUT)


@given(strategies.damaged_sets())
def test_damaged_anywhere(data: bytes) -> None:
    """What is valid before the damage, and never anything of what follows it."""
    entries, status = reference.walk(data, base=BASE)
    try:
        expected = reference.as_records(data[: entries[-1].next_offset - BASE] if entries else b"", BASE)
    except reference.DamagedError:
        expected = None
    try:
        batch, following, found = convert(data, BASE, BASE, LIMITS)
    except (InvalidMessageError, UnfitSetError):
        # a set that is cut inside is damage to the twin, and what 0.7 leaves out to us
        assert any(entry.attributes for entry in entries)
        return
    if expected is not None:
        assert records_of(batch) == expected
        assert following == (entries[-1].next_offset if entries else BASE)
    if status == reference.OK:
        assert found == CONVERTED
    elif status == reference.TAIL:
        assert found in (
            CONVERT_CUT,
            CONVERT_DAMAGED,
        )  # a length that cannot be is seen before its bytes are there
    else:
        assert found in (CONVERT_DAMAGED, CONVERT_CUT)


def test_each_bit_of_a_message_counts() -> None:
    """But those of its length, which make it another one, and of 0.7's attributes, which no checksum covers."""
    data = raw.entry(b"one") + raw.entry(b"two")
    first = len(raw.entry(b"one"))
    for at in range(first + 6, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            batch, following, status = convert(bytes(damaged), 0, 0, LIMITS)
            assert (records_of(batch), following, status) == ([(first - 1, b"one")], first, CONVERT_DAMAGED)


@pytest.mark.parametrize("codec", [3, 4, 255])
def test_a_codec_that_is_none_is_damage(codec: int) -> None:
    """Of a message that is whole, and whose checksum is right."""
    data = raw.entry(b"one") + raw.entry(b"two", attributes=codec)
    first = len(raw.entry(b"one"))
    batch, following, status = convert(data, 0, 0, LIMITS)
    assert (records_of(batch), following, status) == ([(first - 1, b"one")], first, CONVERT_DAMAGED)


# -- compressed sets ---------------------------------------------------------------------------------------------------


def test_the_offsets_of_a_set_end_where_it_does() -> None:
    """Each its own, and the middle of the set is a place to go on from."""
    inner = [b"message %d" % at for at in range(30)]
    wrapper = raw.wrapper(raw.message_set(inner), 1)
    data = raw.entry(b"before") + wrapper + raw.entry(b"after")
    end = len(data) - len(raw.entry(b"after"))
    begin = end - len(wrapper)
    found = records_of(convert(data, 0, 0, LIMITS)[0])
    assert found[1:-1] == [(end - 30 + at, inner[at]) for at in range(30)]
    for wanted in range(begin, end):
        part = records_of(convert(data[begin:], begin, wanted, LIMITS)[0])
        assert part == [one for one in found if one[0] >= wanted]


def test_more_messages_than_bytes_are_refused() -> None:
    """They would share offsets: the last set that fits has as many as bytes, and the first that does not one more."""
    count = 1
    while True:
        wrapper = raw.wrapper(raw.message_set([b""] * count, 0), 1)
        if count > len(wrapper):
            break
        assert len(records_of(convert(wrapper, BASE, BASE, LIMITS)[0])) == count
        count += 1
    data = raw.entry(b"before") + wrapper
    with pytest.raises(UnfitSetError, match=f"of {len(wrapper)} bytes holds {count} messages"):
        convert(data, BASE, BASE, LIMITS)
    opened = OpenedSet(wrapper[10:], 1, BASE, BASE + len(wrapper) + 1, LIMITS)
    assert len(records_of(opened.convert(BASE)[0])) == count == opened.count


@pytest.mark.parametrize("empty", [raw.wrapper(b"", 1), raw.wrapper(raw.wrapper(b"", 2), 1)], ids=["empty", "nested"])
def test_an_empty_set_is_passed_over(empty: bytes) -> None:
    """Between messages, and at the end, where the batch says how far it goes: consumers come to the end."""
    data = raw.entry(b"a") + empty + raw.entry(b"b") + empty
    batch, following, status = convert(data, BASE, BASE, LIMITS)
    assert [value for _, value in records_of(batch)] == [b"a", b"b"]
    assert BatchHeader.parse(batch).next_offset == following == BASE + len(data) and status == CONVERTED
    batch, following, _ = convert(empty, BASE, BASE + 3, LIMITS)
    header = BatchHeader.parse(batch)
    assert (header.record_count, header.base_offset) == (0, BASE + 3)
    assert header.next_offset == following == BASE + len(empty)


@pytest.mark.parametrize("size", [10, 2000, 70_000])
@pytest.mark.parametrize("most_bytes", [1, 100_000, 1 << 30])
def test_sets_larger_than_what_is_kept(size: int, most_bytes: int) -> None:
    """They are opened once more for their messages; nothing is lost between two openings."""
    source = random.Random(size)
    inner = [source.randbytes(size // 2) + bytes(size // 2) for _ in range(2_500_000 // (size + 100) or 1)][:3000]
    data = message.encode_set(inner, 1)
    if most_bytes == 1:
        inner = inner[:1]
        batch, following, whole = convert(data, 0, 0, LIMITS, most_bytes)
        assert [value for _, value in records_of(batch)] == inner and following < len(data)
        assert whole == CONVERT_FULL
        return
    assert [value for _, value in read_from_zero(data, most_bytes)] == inner


def read_from_zero(data: bytes, most_bytes: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    wanted = 0
    while wanted < len(data):
        batch, wanted, _ = convert(data, 0, wanted, LIMITS, most_bytes)
        found += records_of(batch)
    return found


def test_what_comes_out_is_bounded() -> None:
    bomb = raw.wrapper(raw.entry(bytes(1 << 20)), 1)
    deep = raw.entry(b"x")
    for _ in range(9):
        deep = raw.wrapper(deep, 1)
    many = raw.wrapper(raw.message_set([b"%d" % at for at in range(100)]), 1)
    for data, limits in (
        (bomb, DeepLimits(max_inflated_bytes=1 << 19)),
        (deep, LIMITS),
        (many, DeepLimits(max_messages=99)),
    ):
        with pytest.raises(DecompressionLimitError):
            convert(data, 0, 0, limits)
    assert len(records_of(convert(many, 0, 0, DeepLimits(max_messages=100))[0])) == 100


@pytest.mark.parametrize(
    "inside",
    [raw.entry(b"x", crc=1), raw.entry(b"x") + raw.entry(b"y", crc=1), raw.entry(bytes(100))[:50]],
    ids=["first", "second", "cut first"],
)
def test_damage_inside_is_an_error(inside: bytes) -> None:
    """Although the wrapper's own checksum is right."""
    with pytest.raises(InvalidMessageError):
        convert(raw.wrapper(inside, 1), 0, 0, LIMITS)


def test_a_message_cut_behind_others_inside_is_left_out() -> None:
    """As 0.7's consumers do; files of 0.7 may have such sets."""
    wrapper = raw.wrapper(raw.entry(b"a") + raw.entry(b"b")[:-1], 1)
    batch, following, _ = convert(wrapper, 0, 0, LIMITS)
    assert records_of(batch) == [(len(wrapper) - 1, b"a")] and following == len(wrapper)


# -- produced sets -----------------------------------------------------------------------------------------------------


def made_of(data: bytes, most_bytes: int, step: int = 1 << 20) -> tuple[list[bytes], list[BatchHeader]]:
    making = SetBatches(data, 77, most_bytes, LIMITS)
    steps = 1
    while not making.step(step):
        steps += 1
    found, headers = [], []
    for header, batch in record_batches.batches(making.made):
        record_batches.check(bytes(batch))
        assert (header.base_offset, header.base_timestamp, header.max_timestamp) == (0, 77, 77)
        found += [record.value or b"" for record in record_batches.records(bytes(batch))]
        headers.append(header)
    assert making.count == len(found)
    return found, headers


@given(strategies.message_sets, st.integers(100, 2000), st.sampled_from([1, 50, 1 << 20]))
@example(raw.entry(bytes(60)) + raw.entry(bytes(240)) + raw.wrapper(b"", 1), 320, 1)
@settings(max_examples=200)
def test_sets_become_batches(data: bytes, most_bytes: int, step: int) -> None:
    """With every message in its order, none of them larger than it may be, in steps of any size.

    They are compressed from the first message on that is, as it is.
    """
    expected = [payload for _, payload in message_payloads(data)]
    if any(len(payload) + 61 + 19 > most_bytes for payload in expected):
        return
    found, headers = made_of(data, most_bytes, step)
    assert found == expected
    codec = next((entry.attributes for entry in reference.walk(data)[0] if entry.attributes), 0)
    made = [header.codec for header in headers]
    assert made == sorted(made) and set(made) <= {0, codec} and made[-1:] in ([], [codec])
    if not codec:
        assert all(header.size_bytes <= most_bytes for header in headers)


def message_payloads(data: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(reference.deep_payloads(data)))


def test_a_batch_is_as_large_as_it_may_be() -> None:
    """The bound holds to the byte."""
    payloads = [bytes(100)] * 10
    (whole,) = made_of(raw.message_set(payloads), 1 << 20)[1]
    assert len(made_of(raw.message_set(payloads), whole.size_bytes)[1]) == 1
    assert len(made_of(raw.message_set(payloads), whole.size_bytes - 1)[1]) == 2
    single = made_of(raw.entry(bytes(100)), 1 << 20)[1][0].size_bytes
    assert made_of(raw.entry(bytes(100)), single)[0] == [bytes(100)]
    for data in (raw.entry(bytes(100)), raw.wrapper(raw.message_set([b"x", bytes(100)]), 1)):
        with pytest.raises(MessageTooLargeError):
            made_of(data, single - 1)


def test_a_produced_set_is_compressed_as_it_came() -> None:
    large = raw.message_set([b"the same again and again"] * 500)
    for codec in (1, 2):
        found, headers = made_of(raw.entry(b"plain") + raw.wrapper(large, codec), 1 << 20)
        assert len(found) == 501 and [header.codec for header in headers] == [codec]
        assert headers[0].size_bytes < 4000
    assert made_of(b"", 1000) == ([], [])
    assert made_of(raw.wrapper(b"", 1), 1000) == ([], [])


@pytest.mark.parametrize(("magic", "size"), [(0, 8), (1, 9)])
def test_a_produced_set_that_changes_behind_its_check_is_damaged(magic: int, size: int) -> None:
    """A message that is shorter than its own fields; what is as long as they are is an empty one."""
    data = raw.entry(b"fine", magic) + struct.pack(">IB", size - 4, magic) + bytes(size - 5)
    with pytest.raises(InvalidMessageError, match="the set is damaged"):
        made_of(data, 1000)
    data = raw.entry(b"fine", magic) + struct.pack(">IB", size - 3, magic) + bytes(size - 4)
    assert made_of(data, 1000)[0] == [b"fine", b""]


def test_numbers_have_their_names() -> None:
    assert list(range(5)) == [CONVERTED, CONVERT_FULL, CONVERT_CUT, CONVERT_WRAPPER, CONVERT_DAMAGED]

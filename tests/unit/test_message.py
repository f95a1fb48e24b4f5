"""Message sets as 0.7 walks them: shallow and deep, offsets of wrappers, stop rules, and the broker's bounded count."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import _segment, codecs, message
from fastlog.errors import (
    DecompressionLimitError,
    InvalidFetchSizeError,
    InvalidMessageError,
    UnknownCodecError,
    UnknownMagicError,
)
from fastlog.message import DeepLimits, Message, MessageAndOffset, count_deep, deep, deep_count, encode_set, shallow
from tests import reference, strategies
from tests.unit.test_codecs import repeated_gzip

MIB = 1024 * 1024
HELLO_0 = bytes.fromhex("0000000a003610a68668656c6c6f")
HELLO_1 = bytes.fromhex("0000000b01003610a68668656c6c6f")
GOLDEN_SET = bytes.fromhex("0000000901007a6c86f16f6e6500000009010011ca8a6674776f0000000b010046c5d8f57468726565")
GOLDEN_WRAPPER = bytes.fromhex(
    "0000004201024231e2d382534e415050590000000001000000010000002829300000000901007a6c86f16f6e65090d5411ca8a6674776f"
    "0000000b010046c5d8f57468726565"
)
FORMS = ["gzip", "gzip members", "raw snappy", "xerial snappy"]


def wrapped(data: bytes, form: str = "gzip") -> bytes:
    return strategies.compressed(data, form)


def nested(data: bytes, depth: int) -> bytes:
    for _ in range(depth):
        data = wrapped(data)
    return data


def pairs(walk) -> list[tuple[bytes, int]]:  # type: ignore[no-untyped-def]
    return [(item.message.payload, item.offset) for item in walk]


def test_golden_wrapper() -> None:
    """The recorded snappy wrapper opens to its three messages; until the last one the offset is the wrapper's."""
    assert pairs(deep(GOLDEN_WRAPPER, 100)) == [(b"one", 100), (b"two", 100), (b"three", 100 + len(GOLDEN_WRAPPER))]
    assert count_deep(GOLDEN_WRAPPER) == 3
    (only,) = shallow(GOLDEN_WRAPPER, 100)
    assert (only.message.codec, only.offset) == (2, 100 + len(GOLDEN_WRAPPER))
    assert only.message.encode() == GOLDEN_WRAPPER


@pytest.mark.parametrize(("data", "magic"), [(HELLO_0, 0), (HELLO_1, 1)])
def test_golden_messages(data: bytes, magic: int) -> None:
    assert list(deep(data, 7)) == [MessageAndOffset(Message(b"hello", magic), 7 + len(data))]
    assert Message(b"hello", magic).encode() == data
    assert Message(b"hello", magic).size_bytes == len(data)
    assert encode_set([b"hello"], 0, magic) == data


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize("magic", [0, 1])
def test_encode_set(codec: int, magic: int) -> None:
    """A codec gives one wrapper of magic 1 around messages of the magic asked for; nothing gives nothing."""
    items = [b"one", b"", b"three"]
    data = encode_set(items, codec, magic)
    found, status = reference.walk(data)
    assert status == reference.OK
    if codec:
        assert [(entry.magic, entry.attributes) for entry in found] == [(1, codec)]
        assert reference.inflate(codec, found[0].payload) == reference.encode_all(items, magic)
    else:
        assert data == reference.encode_all(items, magic)
    assert [item.message.magic for item in deep(data)] == [magic] * 3
    assert encode_set([], codec, magic) == b""


def test_what_cannot_be_encoded() -> None:
    for bad in (Message(b"", 2), Message(b"", -1)):
        with pytest.raises(UnknownMagicError):
            bad.encode()
    for bad in (Message(b"", 1, 3), Message(b"", 1, 4), Message(b"", 0, 1)):
        with pytest.raises(UnknownCodecError):
            bad.encode()
    with pytest.raises(UnknownCodecError):
        encode_set([b"x"], 3)
    with pytest.raises(ValueError, match="magic"):
        encode_set([b"x"], 0, 2)


def test_messages_are_values() -> None:
    assert Message(b"x") == Message(b"x", 1, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Message(b"x").payload = b"y"  # type: ignore[misc]


@pytest.mark.parametrize("form", FORMS)
def test_offsets_of_a_mixed_set(form: str) -> None:
    """Plain messages carry the offset after them; a wrapper's carry its own until the last; an empty wrapper none."""
    wrapper = wrapped(reference.encode(b"a") + reference.encode(b"b", 0) + reference.encode(b"c"), form)
    nothing = wrapped(b"", form)
    data = HELLO_0 + wrapper + nothing + HELLO_1
    start, after = 1000 + len(HELLO_0), 1000 + len(HELLO_0 + wrapper)
    assert pairs(deep(data, 1000)) == [
        (b"hello", start),
        (b"a", start),
        (b"b", start),
        (b"c", after),
        (b"hello", 1000 + len(data)),
    ]
    shallow_offsets = [item.offset for item in shallow(data, 1000)]
    assert shallow_offsets == [start, after, after + len(nothing), 1000 + len(data)]
    assert count_deep(data) == 5


@pytest.mark.parametrize("form", FORMS)
def test_last_message_of_nested_wrappers(form: str) -> None:
    """Only the very last message inside moves the offset on, wherever it lies, also before an empty inner wrapper."""
    inner = wrapped(reference.encode_all([b"x", b"y"]), form)
    for tail, more in ((b"", []), (wrapped(b"", form), []), (reference.encode(b"z"), [b"z"])):
        data = wrapped(reference.encode(b"w") + inner + tail, form)
        expected = [b"w", b"x", b"y", *more]
        offsets = [50] * (len(expected) - 1) + [50 + len(data)]
        assert pairs(deep(data, 50)) == list(zip(expected, offsets, strict=True))
        assert count_deep(data) == len(expected)


@given(strategies.message_sets, st.integers(0, 2**40))
@settings(max_examples=120, deadline=None)
def test_valid_sets_agree_with_the_twin(data: bytes, base: int) -> None:
    assert pairs(deep(data, base)) == reference.deep(data, base)
    assert pairs(shallow(data, base)) == [(e.payload, e.next_offset) for e in reference.walk(data, base=base)[0]]
    assert count_deep(data) == len(reference.deep_payloads(data))


def counted(data: bytes) -> int | None:
    try:
        return count_deep(data)
    except InvalidMessageError:
        return None


def twin_counted(data: bytes) -> int | None:
    try:
        return len(reference.deep_payloads(data))
    except reference.DamagedError:
        return None


@given(
    st.one_of(strategies.damaged_sets(), st.builds(strategies.compressed, strategies.damaged_sets(), st.just("gzip")))
)
@settings(max_examples=200, deadline=None)
def test_damaged_sets_agree_with_the_twin(data: bytes) -> None:
    """Damage at any depth is found exactly when the twin finds it, and no walk raises anything undeclared."""
    assert counted(data) == twin_counted(data)
    for walk in (shallow, deep):
        with contextlib.suppress(InvalidMessageError, InvalidFetchSizeError):
            list(walk(data))


SMALL = HELLO_0 + wrapped(reference.encode_all([b"in", b"side"])) + wrapped(HELLO_1, "xerial snappy") + HELLO_1


def test_truncated_at_every_byte() -> None:
    """A cut drops the cut message and no other; a cut in the first message is an error, less than a length is none."""
    complete = pairs(deep(SMALL))
    assert len(complete) == 5
    for cut in range(len(SMALL)):
        data = SMALL[:cut]
        if 4 <= cut < len(HELLO_0):
            for walk in (shallow, deep):
                with pytest.raises(InvalidFetchSizeError):
                    list(walk(data))
            with pytest.raises(InvalidMessageError):
                count_deep(data)
            continue
        found = pairs(deep(data))
        assert found == [pair for pair in complete[: len(found)] if pair[1] <= cut]
        assert count_deep(data) == len(found) == len(reference.deep_payloads(data))


def test_every_bit_flipped() -> None:
    """T-14: every flip is an error or what the twin reads; what is read before the error is unharmed."""
    for bit in range(len(SMALL) * 8):
        data = bytearray(SMALL)
        data[bit // 8] ^= 1 << (bit % 8)
        assert counted(bytes(data)) == twin_counted(bytes(data)), f"bit {bit}"


def test_first_entry_larger_than_the_bytes() -> None:
    """Conformance 14: ten bytes less than a message, at offset 1000, are a named error, not an empty set."""
    data = reference.encode(b"x" * 100)[:-10]
    for walk in (shallow, deep):
        with pytest.raises(InvalidFetchSizeError, match="offset 1000 is longer than the 100 bytes"):
            list(walk(data, 1000))
    assert InvalidFetchSizeError.code == 4


@pytest.mark.parametrize("stray", [1, 2, 3])
def test_stray_bytes(stray: int) -> None:
    """Conformance 13: fewer bytes than a length are no message, alone or after others, and no error."""
    for before, count in ((b"", 0), (HELLO_1 + HELLO_0, 2)):
        data = before + bytes([0, 0, 1][:stray])
        assert len(list(shallow(data))) == len(list(deep(data))) == count_deep(data) == count


BAD_ENTRIES = {
    "checksum": HELLO_1[:-1] + b"!",
    "length -1": b"\xff\xff\xff\xff" + HELLO_1[4:],
    "length 0": b"\0\0\0\0" + HELLO_1[4:],
    "length 4": b"\0\0\0\4" + HELLO_1[4:],
    "magic": HELLO_1[:4] + b"\2" + HELLO_1[5:],
    "codec 3": HELLO_1[:5] + b"\3" + HELLO_1[6:],
    "reserved bit": HELLO_1[:5] + b"\x80" + HELLO_1[6:],
}


@pytest.mark.parametrize("bad", BAD_ENTRIES.values(), ids=BAD_ENTRIES.keys())
@pytest.mark.parametrize("walk", [shallow, deep])
def test_damage_is_raised_when_it_is_reached(walk, bad: bytes) -> None:  # type: ignore[no-untyped-def]
    """The messages before a bad one are yielded, then error 2 names the offset; a second walk says the same."""
    for _ in range(2):
        items = walk(HELLO_0 + bad + HELLO_1, 500)
        assert next(items).message.payload == b"hello"
        with pytest.raises(InvalidMessageError, match=str(500 + len(HELLO_0))) as caught:
            next(items)
        assert caught.value.code == 2


@pytest.mark.parametrize("bad", BAD_ENTRIES.values(), ids=BAD_ENTRIES.keys())
@pytest.mark.parametrize("form", FORMS)
def test_damage_inside_a_wrapper(form: str, bad: bytes) -> None:
    """A sound wrapper around a bad message is refused at any depth, and the error names the outermost wrapper."""
    for depth in range(3):
        wrapper = nested(wrapped(HELLO_0 + bad, form), depth)
        data = HELLO_1 + wrapper + HELLO_1
        with pytest.raises(InvalidMessageError, match="in the wrapper at byte 15"):
            count_deep(data)
        with pytest.raises(InvalidMessageError, match="in the wrapper at offset 315"):
            list(deep(data, 300))
        assert len(list(shallow(data))) == 3


@pytest.mark.parametrize("form", FORMS)
def test_cut_inside_a_wrapper(form: str) -> None:
    """A produced wrapper whose set is cut is refused; one already stored is read up to the cut, as 0.7 does."""
    inner = HELLO_1 + HELLO_0
    for cut in range(1, len(inner)):
        wrapper = wrapped(inner[:cut], form)
        if cut == len(HELLO_1):
            assert count_deep(wrapper) == 1
            continue
        with pytest.raises(InvalidMessageError, match="ends inside the message"):
            count_deep(wrapper)
        if cut > len(HELLO_1):
            assert pairs(deep(wrapper)) == [(b"hello", len(wrapper))]
        elif cut >= 4:
            with pytest.raises(InvalidFetchSizeError, match="in the wrapper at offset 0"):
                list(deep(wrapper))


@pytest.mark.parametrize("attributes", [1, 2])
@pytest.mark.parametrize("payload", [b"", b"\xffnot compressed at all", b"\x1f\x8b\x08"])
def test_payload_that_its_codec_cannot_read(attributes: int, payload: bytes) -> None:
    data = reference.encode(payload, 1, attributes)
    with pytest.raises(InvalidMessageError):
        count_deep(data)
    with pytest.raises(InvalidMessageError):
        list(deep(data))


def test_wrapper_of_nothing() -> None:
    for form in FORMS:
        assert count_deep(wrapped(b"", form)) == 0
        assert list(deep(wrapped(b"", form))) == []
    assert count_deep(b"") == 0
    assert list(deep(b"")) == list(shallow(b"")) == []


@pytest.mark.parametrize("depth", [1, 2, 7, 8, 9, 10, 50, 99, 100])
def test_nesting(depth: int) -> None:
    """T-20: sets in sets are read to the depth allowed; deeper ones are an error, not a crash."""
    data = HELLO_1 + nested(HELLO_1 + HELLO_0, depth)
    if depth <= 8:
        assert count_deep(data) == 3
        assert [offset for _, offset in pairs(deep(data))] == [15, 15, len(data)]
    else:
        with pytest.raises(DecompressionLimitError, match="nested more than 8 deep"):
            count_deep(data)
        with pytest.raises(DecompressionLimitError, match="nested more than 8 deep"):
            list(deep(data))
    assert count_deep(data, DeepLimits(max_depth=depth)) == 3
    assert len(list(deep(data, limits=DeepLimits(max_depth=depth)))) == 3


@pytest.mark.parametrize(
    ("wrappers", "admitted"), [(1, True), (1023, True), (1030, True), (1040, False), (3000, False)]
)
def test_wrappers_that_a_size_admits(wrappers: int, admitted: bool) -> None:
    """Empty ones in one wrapper compress to nothing: their number is bounded by what was sent, not by the limits."""
    data = wrapped(wrapped(b"", "gzip") * wrappers, "gzip")
    size = len(data)
    assert (wrappers + 1 <= 1024 + size // 16) == admitted
    assert count_deep(data) == 0
    counting = deep_count(data, bytes_per_piece=16)
    if admitted:
        assert counting.step(sys.maxsize, sys.maxsize)
        assert counting.count == 0
    else:
        with pytest.raises(DecompressionLimitError):
            counting.step(sys.maxsize, sys.maxsize)


def test_wrappers_with_something_in_them_are_admitted_in_any_number() -> None:
    """The smallest there are, beside one another: every one is sent, so the size admits it."""
    smallest = wrapped(_segment.pack([b""], 0, 0), "raw snappy")
    assert len(smallest) < 24
    data = smallest * 5000
    counting = deep_count(data, bytes_per_piece=16)
    assert not counting.step(sys.maxsize, 100)
    steps = 1
    while not counting.step(sys.maxsize, 100):
        steps += 1
    assert steps == 5000 // 101
    assert counting.count == 5000


def test_a_depth_of_zero_refuses_wrappers() -> None:
    assert count_deep(HELLO_1, DeepLimits(max_depth=0)) == 1
    with pytest.raises(DecompressionLimitError):
        count_deep(GOLDEN_WRAPPER, DeepLimits(max_depth=0))


def test_inflated_bytes_are_limited_over_the_whole_set() -> None:
    """Every wrapper at every depth draws on one limit; a walk to read has it anew for each top-level wrapper."""
    inner = reference.encode_all([b"x" * 90] * 10)
    data = wrapped(inner) * 3
    assert count_deep(data, DeepLimits(max_inflated_bytes=3000)) == 30
    with pytest.raises(DecompressionLimitError, match="more than 2999 bytes"):
        count_deep(data, DeepLimits(max_inflated_bytes=2999))
    assert len(list(deep(data, limits=DeepLimits(max_inflated_bytes=1000)))) == 30
    twice = wrapped(wrapped(inner))
    needed = 1000 + len(wrapped(inner))
    assert count_deep(twice, DeepLimits(max_inflated_bytes=needed)) == 10
    with pytest.raises(DecompressionLimitError):
        count_deep(twice, DeepLimits(max_inflated_bytes=needed - 1))


def test_messages_are_limited_over_the_whole_set() -> None:
    """What comes out of wrappers is counted, inner wrappers too; what was sent plain is not."""
    inner = reference.encode_all([b""] * 10)
    data = inner * 5 + wrapped(inner) * 2 + wrapped(wrapped(inner))
    assert count_deep(data, DeepLimits(max_messages=31)) == 80
    with pytest.raises(DecompressionLimitError, match="more than 30 messages"):
        count_deep(data, DeepLimits(max_messages=30))


def bomb_of_messages(total_mib: int) -> bytes:
    """A wrapper of about a kilobyte for each mebibyte of valid messages in it."""
    unit = reference.encode(bytes(65536 - 10)) * 16
    return reference.encode(repeated_gzip(unit, total_mib), 1, 1)


def torn(packed: bytes) -> bytes:
    """With a second half that gzip refuses: whoever inflates that far has another error to report."""
    return packed[: len(packed) // 2] + b"\xff" * (len(packed) - len(packed) // 2)


@pytest.mark.slow
def test_bomb_of_a_gigabyte() -> None:
    """T-20: a megabyte that holds a gigabyte of valid messages is refused by the default limits, in little memory."""
    data = bomb_of_messages(1024)
    assert len(data) < 1.5 * MIB
    with pytest.raises(DecompressionLimitError, match="more than 67108864 bytes"):
        count_deep(data)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionLimitError):
            count_deep(data, DeepLimits(max_inflated_bytes=16 * MIB))
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_bomb_in_a_set_in_a_set() -> None:
    """T-20: nesting hides a bomb from the size of the wrapper, not from the limit."""
    bomb = bomb_of_messages(200)
    for depth in (1, 3, 7):
        data = nested(bomb, depth)
        assert len(data) < 30_000
        with pytest.raises(DecompressionLimitError):
            count_deep(data, DeepLimits(max_inflated_bytes=4 * MIB))
        with pytest.raises(DecompressionLimitError):
            for _ in deep(data, limits=DeepLimits(max_inflated_bytes=4 * MIB)):
                pass


def test_bomb_of_zeros_is_refused_at_its_first_slice() -> None:
    """A gigabyte of zeros is no message set: it is given up after one slice of output, whatever the limit."""
    data = reference.encode(torn(repeated_gzip(bytes(MIB), 1024)), 1, 1)
    with pytest.raises(InvalidMessageError, match="length") as caught:
        count_deep(data, DeepLimits(max_inflated_bytes=2**40))
    assert not isinstance(caught.value, DecompressionLimitError)


def test_bomb_of_one_long_message() -> None:
    """One message that claims a gigabyte is collected up to the limit and no further."""
    head = reference.encode(b"")[:4].replace(b"\0\0\0\6", (2**30).to_bytes(4, "big")) + b"\1\0\0\0\0\0"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = packer.compress(head + bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    data = reference.encode(torn(first + again * 1023), 1, 1)
    with pytest.raises(DecompressionLimitError):
        count_deep(data, DeepLimits(max_inflated_bytes=16 * MIB))


def test_bombs_of_messages_and_wrappers_by_number() -> None:
    """T-20: millions of empty messages, or of wrappers with nothing in them, end at the limits on number."""
    with pytest.raises(DecompressionLimitError, match="messages"):
        count_deep(wrapped(reference.encode(b"", 0) * 300_000), DeepLimits(max_messages=200_000))
    empty_wrappers = reference.encode(b"\0", 1, 2) * 20_000
    with pytest.raises(DecompressionLimitError, match="messages"):
        count_deep(wrapped(empty_wrappers), DeepLimits(max_messages=10_000))
    with pytest.raises(DecompressionLimitError, match="snappy blocks"):
        count_deep(empty_wrappers, DeepLimits(max_inflated_bytes=MIB))


def test_counting_makes_no_object_for_a_message() -> None:
    """The memory of a count does not grow with the number of messages in the wrapper."""

    def peak(count: int) -> int:
        data = encode_set([b"m"] * count, codecs.GZIP)
        assert count_deep(data) == count
        tracemalloc.start()
        try:
            count_deep(data)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(200_000), peak(800_000)
    assert many < few + 100_000


def test_long_messages_across_slices() -> None:
    """Messages longer and shorter than a slice of inflated bytes are put together right, in every form."""
    items = [bytes([index]) * length for index, length in enumerate([3, 700_000, 0, 262_144, 262_134, 5, 1_000_000])]
    for codec in (codecs.GZIP, codecs.SNAPPY):
        data = encode_set(items, codec)
        assert count_deep(data) == len(items)
        assert [item.message.payload for item in deep(data)] == items


@pytest.mark.parametrize(
    "limits", [{"max_inflated_bytes": -1}, {"max_depth": -1}, {"max_depth": 101}, {"max_messages": -1}]
)
def test_limits_must_make_sense(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="limit"):
        DeepLimits(**limits)


def test_buffers_of_every_kind() -> None:
    for make in (bytes, bytearray, memoryview):
        assert count_deep(make(SMALL)) == 5
        assert pairs(deep(make(SMALL))) == pairs(deep(SMALL))


def test_public_constant_of_the_header_sizes() -> None:
    for magic, size in message.HEADER_BYTES.items():
        assert len(reference.encode(b"", magic)) == size

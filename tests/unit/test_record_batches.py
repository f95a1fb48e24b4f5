"""Record batches as bytes: built, taken apart, and compared with what a slow independent code makes of them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import _records, record_batches
from fastlog.batch_codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from fastlog.errors import (
    DecompressionLimitError,
    InvalidFetchSizeError,
    InvalidMessageError,
    UnknownCodecError,
    UnknownMagicError,
)
from fastlog.message import DeepLimits
from fastlog.record_batches import BatchHeader, Record, batches, build, check, records
from tests.harness import raw_batches, raw_records

ALL = [NONE, GZIP, SNAPPY, LZ4, ZSTD]

fields = st.one_of(st.none(), st.binary(max_size=40))
pairs = st.lists(st.tuples(st.binary(max_size=6), fields), max_size=3).map(tuple)
items = st.builds(Record, fields, fields, st.integers(-1, 2**42), pairs)
batch_items = st.lists(items, min_size=1, max_size=6)


def raw(item: Record) -> raw_records.Record:
    return raw_records.Record(item.timestamp, item.key, item.value, list(item.headers))


# -- records -----------------------------------------------------------------------------------------------------------


@given(st.lists(items, max_size=6), st.integers(-(2**42), 2**42))
def test_records_are_packed_as_by_the_slow_twin(made: list[Record], base: int) -> None:
    packed = _records.pack([item[:4] for item in made], base)
    assert packed == raw_records.encode([raw(item) for item in made], base)
    found = _records.entries(packed, len(made), base, 7)
    assert found == [(*item[:4], 7 + place) for place, item in enumerate(made)]


@given(st.lists(items, min_size=1, max_size=4), st.data())
def test_entries_end_where_the_walk_does(made: list[Record], data: st.DataObject) -> None:
    packed = bytearray(_records.pack([item[:4] for item in made]))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    count = _records.walk(packed, len(made)).count
    assert len(_records.entries(packed, len(made))) == count
    assert len(_records.entries(packed[:place], len(made))) <= count


def test_many_records_in_a_growing_buffer() -> None:
    made = [(b"k" * (i % 90), b"v" * (i * 7 % 3000), i, ((b"h", b"x" * i),) * (i % 3)) for i in range(700)]
    packed = _records.pack(iter(made))
    assert _records.entries(packed, 700) == [(*entry, i) for i, entry in enumerate(made)]


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (("text", b"", 0, ()), TypeError),
        ((b"", 5, 0, ()), TypeError),
        ((b"", bytearray(b"x"), 0, ()), TypeError),
        ((b"", b"", 0, [(None, b"")]), TypeError),
        ((b"", b"", 0, [("h", b"")]), TypeError),
        ((b"", b"", 0, [(b"h", 5)]), TypeError),
        ((b"", b"", 0, [(b"h",)]), ValueError),
        ((b"", b"", 0), ValueError),
        ((b"", b"", 2**63, ()), OverflowError),
        ((b"", b"", -2, ()), ValueError),  # 2^63 from the base timestamp
    ],
)
def test_what_is_no_record_is_not_packed(record: tuple[object, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        _records.pack([(None, None, 2**63 - 1, ()), record], 2**63 - 1)  # type: ignore[list-item]


@pytest.mark.parametrize("base", [-1, 2**63 - 1])
def test_offsets_stay_within_64_bits(base: int) -> None:
    packed = _records.pack([(None, b"x", 0, ())])
    with pytest.raises(ValueError, match="base_offset"):
        _records.entries(packed, 1, 0, base)
    assert _records.entries(packed, 1, 0, 2**63 - 2)[0][4] == 2**63 - 2


# -- batches -----------------------------------------------------------------------------------------------------------


@given(batch_items, st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_a_batch_is_built_as_by_the_slow_twin(made: list[Record], base_offset: int, epoch: int) -> None:
    data = build(made, base_offset=base_offset, leader_epoch=epoch, producer_id=5, producer_epoch=3, base_sequence=9)
    twin = raw_batches.of(
        [raw(item) for item in made], base_offset=base_offset, leader_epoch=epoch, producer_id=5, producer_epoch=3,
        base_sequence=9,
    )  # fmt: skip
    assert data == twin.encode()


@given(batch_items, st.sampled_from(ALL), st.integers(0, 2**62))
def test_there_and_back(made: list[Record], codec: int, base_offset: int) -> None:
    data = build(made, codec=codec, base_offset=base_offset)
    header = check(data)
    assert header.codec == codec
    assert header.next_offset == base_offset + len(made)
    assert header.size_bytes == len(data)
    assert header.encode() == data[:61]
    assert list(records(data)) == [item._replace(offset=base_offset + place) for place, item in enumerate(made)]


def test_the_fields_of_a_header_stand_where_the_table_says() -> None:
    values = {name: 1 + place for place, name in enumerate(BatchHeader.__slots__)} | {"magic": 2}
    data = BatchHeader(**values).encode()
    assert len(data) == record_batches.HEADER_BYTES == raw_batches.HEADER_BYTES
    for name, (position, width) in raw_batches.FIELDS.items():
        assert int.from_bytes(data[position : position + width], "big") == values[name]
    assert BatchHeader.parse(b"front" + data, 5) == BatchHeader(**values)
    assert [record_batches.LENGTH_AT, record_batches.LEADER_EPOCH_AT, record_batches.MAGIC_AT] == [8, 12, 16]
    assert [record_batches.CRC_AT, record_batches.ATTRIBUTES_AT] == [17, 21]


def test_the_bits_of_the_attributes() -> None:
    data = build([Record(b"k", b"v", 5), Record(b"k", b"v", 7)], codec=GZIP, attributes=0x38)
    header = check(data)
    assert (header.codec, header.is_log_append_time, header.is_transactional, header.is_control) == (
        1,
        True,
        True,
        True,
    )
    assert [record.timestamp for record in records(data)] == [7, 7]
    plain = check(build([Record(b"k", b"v")]))
    assert (plain.codec, plain.is_log_append_time, plain.is_transactional, plain.is_control) == (0, False, False, False)
    for bad in (1, 7, 0x80, 0x100, -1):
        with pytest.raises(ValueError, match="have a bit"):
            build([Record(b"k", b"v")], attributes=bad)


def test_what_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="without a record"):
        build([])
    with pytest.raises(UnknownCodecError):
        build([Record(b"k", b"v")], codec=5)
    with pytest.raises(OverflowError, match="does not fit"):
        build([Record(b"k", b"v")], producer_epoch=2**15)


@given(st.lists(batch_items, max_size=4), st.sampled_from(ALL), st.data())
def test_batches_of_a_fetch(sets: list[list[Record]], codec: int, data: st.DataObject) -> None:
    """Whole ones, one after the other; the one that is cut at the end is left out."""
    made = [build(one, codec=codec, base_offset=100 * place) for place, one in enumerate(sets)]
    whole = b"".join(made)
    assert [(header.base_offset, bytes(view)) for header, view in batches(whole)] == [
        (100 * place, one) for place, one in enumerate(made)
    ]
    end = data.draw(st.integers(0, len(whole)))
    fitting = [one for place, one in enumerate(made) if len(b"".join(made[: place + 1])) <= end]
    if not fitting and end > 12:
        with pytest.raises(InvalidFetchSizeError, match="bytes, "):
            list(batches(whole[:end]))
    else:
        assert [bytes(view) for _, view in batches(whole[:end])] == fitting


@pytest.mark.parametrize("length", [48, 0, -1, -(2**31)])
def test_a_length_that_cannot_be(length: int) -> None:
    good = build([Record(b"k", b"v")])
    bad = bytearray(good)
    struct.pack_into(">i", bad, 8, length)
    found = batches(good + bad)
    assert bytes(next(found)[1]) == good
    with pytest.raises(InvalidMessageError, match=f"the batch at byte {len(good)} "):
        next(found)


def test_another_magic() -> None:
    bad = bytearray(build([Record(b"k", b"v")]))
    bad[16] = 1
    for call in (lambda: list(batches(bad)), lambda: check(bad), lambda: list(records(bad))):
        with pytest.raises(UnknownMagicError, match="magic 1"):
            call()
    with pytest.raises(UnknownMagicError):
        BatchHeader.parse(bad[:17])
    with pytest.raises(InvalidMessageError, match="fewer than"):
        BatchHeader.parse(bad[:16])


@pytest.mark.parametrize("codec", ALL)
def test_every_byte_flipped(codec: int) -> None:
    """Each but those that the broker writes is covered by a check."""
    made = [Record(b"k%d" % i, b"value" * i, 100 + i) for i in range(6)]
    data = build(made, codec=codec)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x04
        if place < 8 or 12 <= place < 16:
            found = list(records(damaged)) if place < 8 else None
            assert found is None or [record[:4] for record in found] == [record[:4] for record in made]
        else:
            with pytest.raises((InvalidMessageError, UnknownMagicError)):
                list(records(damaged))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("record_count", 0, "the batch has 0 records"),
        ("record_count", 3, "the batch has 3 records, the last at its offset 1"),
        ("last_offset_delta", 2, "the batch has 2 records, the last at its offset 2"),
        ("attributes", 0x80, "unknown attributes"),
        ("attributes", 5, "unknown attributes"),
        ("batch_length", 99, "follow its length"),
    ],
)
def test_headers_that_contradict(field: str, value: int, reason: str) -> None:
    data = bytearray(build([Record(b"k", b"v"), Record(b"l", b"w")]))
    position, width = raw_batches.FIELDS[field]
    data[position : position + width] = value.to_bytes(width, "big")
    with pytest.raises(InvalidMessageError, match=reason):
        check(raw_batches.reseal(bytes(data)))


@pytest.mark.parametrize("codec", ALL)
def test_limits_of_reading(codec: int) -> None:
    data = build([Record(None, b"x" * 1000)] * 10, codec=codec)
    size = len(_records.pack([(None, b"x" * 1000, -1, ())] * 10, -1))
    assert len(list(records(data, DeepLimits(size, 1, 10)))) == 10
    with pytest.raises(DecompressionLimitError, match="more than 9 records"):
        list(records(data, DeepLimits(size, 1, 9)))
    if codec:
        with pytest.raises(DecompressionLimitError):
            list(records(data, DeepLimits(size - 1, 1, 10)))


def test_records_that_are_none_are_refused_when_read() -> None:
    for codec in ALL:
        data = raw_batches.Batch(attributes=codec, payload=compress(codec, b"\0\0")).encode()
        with pytest.raises(InvalidMessageError, match="at its record 0: a record is longer or shorter"):
            list(records(data))

"""What a client reads from the batches of a Fetch answer: what a slow twin reads, and nothing behind damage."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import _record_batch as reading
from fastlog._batch import MessageStream, PayloadStream
from fastlog.batch_codecs import CODEC_NAMES, compress
from fastlog.errors import DecompressionLimitError, InvalidFetchSizeError, InvalidMessageError
from fastlog.message import DEFAULT_LIMITS, DeepLimits
from tests.harness import raw_batches, raw_records
from tests.harness.raw_records import Record

APPEND_TIME, CONTROL = 0x08, 0x20
Row = tuple[bytes | None, bytes | None, int, tuple[tuple[bytes, bytes | None], ...], int]

FIELDS = st.none() | st.binary(max_size=20)
RECORDS = st.builds(
    Record,
    st.integers(0, 2**40),
    FIELDS,
    FIELDS,
    st.lists(st.tuples(st.binary(max_size=5), FIELDS), max_size=3),
)


def packed(records: list[Record], deltas: list[int], base_timestamp: int) -> bytes:
    """Records at the offsets that are left to them."""
    return b"".join(
        raw_records.sized(raw_records.encode_fields(record, delta, base_timestamp))
        for record, delta in zip(records, deltas, strict=True)
    )


def batch_of(
    records: list[Record], base: int, *, deltas: list[int] | None = None, last: int | None = None, codec: int = 0,
    flags: int = 0, max_timestamp: int = 77,
) -> bytes:  # fmt: skip
    """A batch whose records may have lost others between them, and behind them."""
    at = list(range(len(records))) if deltas is None else deltas
    payload = packed(records, at, 50)
    return raw_batches.Batch(
        base_offset=base,
        attributes=codec | flags,
        last_offset_delta=(at[-1] if at else 0) if last is None else last,
        base_timestamp=50,
        max_timestamp=max_timestamp,
        record_count=len(records),
        payload=compress(codec, payload) if codec else payload,
    ).encode()


def rows_of(
    records: list[Record], base: int, deltas: list[int] | None = None, append_time: int | None = None
) -> list[Row]:
    return [
        (record.key, record.value, record.timestamp if append_time is None else append_time, tuple(record.headers),
         base + (number if deltas is None else deltas[number]))
        for number, record in enumerate(records)
    ]  # fmt: skip


def read(data: bytes, offset: int = 0, limits: DeepLimits = DEFAULT_LIMITS, *, checked: int = 0) -> list[Row]:
    return [row for span in reading.RecordSpans(data, offset, limits, checked) for row in reading.entries(span)]


def before_damage(data: bytes, offset: int = 0, *, checked: int = 0) -> tuple[list[Row], Exception | None]:
    """What comes before the error, if there is one."""
    found: list[Row] = []
    spans = reading.RecordSpans(data, offset, DEFAULT_LIMITS, checked)
    try:
        for span in spans:
            found += reading.entries(span)
    except (InvalidMessageError, InvalidFetchSizeError) as error:
        with pytest.raises(type(error)):
            next(spans)
        return found, error
    return found, None


def room(count: int) -> tuple[Any, Any]:
    return np.full((6, count), -7, np.int64), np.full((3, count), -7, np.int32)


def rows_in(
    data: bytes | memoryview, places: Any, lengths: Any, count: int, past: list[int] | None = None
) -> list[Row]:
    """The rows that arrays tell of."""

    def field(start: int, size: int) -> bytes | None:
        return None if size < 0 else bytes(data[start : start + size])

    found = []
    for offset, next_offset, value, key, headers, time, value_bytes, key_bytes, header_count in zip(
        *places[:, :count].tolist(), *lengths[:, :count].tolist(), strict=True
    ):
        names = reading.headers_at(data, headers, header_count)
        found.append((field(key, key_bytes), field(value, value_bytes), time, names, offset))
        if past is not None:
            past.append(next_offset)
    return found


@st.composite
def batches(draw: st.DrawFn, codecs: list[int]) -> tuple[bytes, list[Row], list[int]]:
    """Batches one behind the other, with gaps between and inside of them; their rows; and where each goes on."""
    data, rows, ends = b"", list[Row](), list[int]()
    base = draw(st.integers(0, 2**50))
    for _ in range(draw(st.integers(1, 5))):
        base += draw(st.integers(0, 3))
        records = draw(st.lists(RECORDS, max_size=6))
        steps = [draw(st.integers(1, 3)) for _ in records]
        deltas = [sum(steps[: number + 1]) - 1 for number in range(len(steps))]
        last = (deltas[-1] if deltas else 0) + draw(st.integers(0, 2))
        flags = draw(st.sampled_from([0, 0, 0, APPEND_TIME, CONTROL, 0x10, 0x40]))
        codec = draw(st.sampled_from(codecs)) if records else 0
        data += batch_of(records, base, deltas=deltas, last=last, codec=codec, flags=flags)
        if not flags & CONTROL:
            rows += rows_of(records, base, deltas, 77 if flags & APPEND_TIME else None)
        base += last + 1
        ends.append(base)
    return data, rows, ends


@given(batches(list(CODEC_NAMES)), st.data())
def test_records_are_those_of_the_twin(made: tuple[bytes, list[Row], list[int]], data: st.DataObject) -> None:
    """From any offset on, at the beginning of a batch or inside one, with checksums made again or not."""
    stored, rows, ends = made
    assert read(stored) == read(stored, checked=len(stored)) == rows
    offset = data.draw(st.sampled_from([row[4] for row in rows] + ends + [0]))
    expected = [row for row in rows if row[4] >= offset]
    assert read(stored, offset) == expected
    scan = reading.scan_batches(stored, offset)
    assert scan[:3] == (len(stored), len(ends), len(rows))
    assert (scan.next_offset, scan.status) == (max(offset, ends[-1]), reading.BATCHES_OK)
    # each span as arrays of its own
    places, lengths = room(len(rows))
    at = 0
    for span in reading.RecordSpans(stored, offset, DEFAULT_LIMITS):
        then = reading.index_records(span, 1000, at, places, lengths)
        assert then - at == span.count > 0
        shifted = places[:, at:then].copy()
        shifted[2:5] -= 1000
        past: list[int] = []
        assert rows_in(span.records, shifted, lengths[:, at:then], then - at, past) == reading.entries(span)
        assert past[:-1] == [number + 1 for number in places[0, at : then - 1].tolist()]
        assert past[-1] == span.next_offset
        assert span.offset <= places[0, at]
        assert span.start == len(memoryview(span.buffer)) - len(span.records)
        at = then
    assert at == len(expected)


@given(batches([0]), st.data())
def test_arrays_over_what_was_fetched_are_those_of_the_twin(
    made: tuple[bytes, list[Row], list[int]], data: st.DataObject
) -> None:
    stored, rows, ends = made
    offset = data.draw(st.sampled_from([row[4] for row in rows] + ends + [0]))
    expected = [row for row in rows if row[4] >= offset]
    places, lengths = room(reading.scan_batches(stored).records)
    count, next_offset, error = reading.index_batches(stored, offset, 10**6, 0, places, lengths)
    past: list[int] = []
    assert rows_in(stored, places, lengths, count, past) == expected
    assert (next_offset, error) == (max(offset, ends[-1]), None)
    assert all(row[4] < behind for row, behind in zip(expected, past, strict=True))
    assert {behind for row, behind in zip(expected, past, strict=True) if behind != row[4] + 1} <= set(ends)


@given(batches(list(CODEC_NAMES)), st.data())
def test_a_cut_leaves_the_last_batch_out(made: tuple[bytes, list[Row], list[int]], data: st.DataObject) -> None:
    stored, rows, ends = made
    cut = data.draw(st.integers(0, len(stored) - 1))
    first = 12 + struct.unpack(">i", stored[8:12])[0]
    found, error = before_damage(stored[:cut])
    scan = reading.scan_batches(stored[:cut])
    assert scan.status == (reading.BATCHES_OK if scan.valid_bytes == cut else reading.BATCHES_TAIL)
    if 0 < cut < first:
        assert isinstance(error, InvalidFetchSizeError)
        assert str(error) == f"the batch at offset 0 is longer than the {cut} bytes fetched"
        assert error.offset == 0
        assert found == []
        places, lengths = room(0)
        _, _, told = reading.index_batches(stored[:cut], 0, 10**6, 0, places, lengths)
        assert str(told) == str(error)
    else:
        assert error is None
        assert found == [row for row in rows if row[4] < scan.next_offset]
        assert scan.next_offset in (0, *ends)


@given(batches([0, 0, 1]), st.data())
def test_a_changed_byte_is_damage_or_a_field_that_brokers_write(
    made: tuple[bytes, list[Row], list[int]], data: st.DataObject
) -> None:
    """Whatever is changed, nothing comes that was not there, and no walk leaves the bytes."""
    stored, rows, _ = made
    at = data.draw(st.integers(0, len(stored) - 1))
    damaged = bytearray(stored)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    found, error = before_damage(bytes(damaged))
    bodies = [row[:4] for row in rows]
    assert [row[:4] for row in found] == bodies[: len(found)]
    scan = reading.scan_batches(bytes(damaged))
    if error is None:
        assert scan.status in (reading.BATCHES_OK, reading.BATCHES_TAIL)
    elif isinstance(error, InvalidMessageError):
        assert scan.status not in (reading.BATCHES_OK, reading.BATCHES_TAIL)
        assert error.offset == scan.next_offset
    if not scan.compressed:
        places, lengths = room(max(len(rows), scan.records))
        try:
            count, _, told = reading.index_batches(bytes(damaged), 0, 10**6, False, places, lengths)
        except ValueError as refused:  # the damage is in the flags of the first batch, or there is a compressed one
            assert "compressed" in str(refused)
        else:
            assert str(told) == str(error)
            assert rows_in(bytes(damaged), places, lengths, count) == found


RECORD = Record(50, b"k", b"value", [(b"h", b"x"), (b"i", None)])
GOOD = batch_of([RECORD], 7)


def altered(**fields: int) -> bytes:
    """A batch with other fields, and the checksum that fits them."""
    data = bytearray(batch_of([RECORD], 8))
    for name, value in fields.items():
        position, width = raw_batches.FIELDS[name]
        data[position : position + width] = value.to_bytes(width, "big", signed=value < 0)
    return raw_batches.reseal(bytes(data))


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (altered(magic=1), reading.BATCHES_MAGIC, "is of another format than magic 2"),
        (altered(batch_length=48), reading.BATCHES_LENGTH, "has a length that cannot be"),
        (altered(batch_length=-1), reading.BATCHES_LENGTH, "has a length that cannot be"),
        (altered()[:-1] + b"?", reading.BATCHES_CRC, "has a wrong checksum"),
        (altered(attributes=5), reading.BATCHES_ATTRIBUTES, "has an unknown codec or attribute"),
        (altered(attributes=0x80), reading.BATCHES_ATTRIBUTES, "has an unknown codec or attribute"),
        (altered(attributes=0x8000), reading.BATCHES_ATTRIBUTES, "has an unknown codec or attribute"),
        (altered(record_count=-1), reading.BATCHES_COUNT, "has a number of records that cannot be"),
        (altered(record_count=2), reading.BATCHES_COUNT, "has a number of records that cannot be"),
        (altered(last_offset_delta=-1, record_count=0), reading.BATCHES_COUNT, "has a number of records"),
        (altered(last_offset_delta=9, record_count=9), reading.BATCHES_COUNT, "has a number of records"),
        (altered(base_offset=-1), reading.BATCHES_OFFSET, "has an offset that cannot be"),
        (altered(base_offset=7), reading.BATCHES_OFFSET, "lies before the end of the batch before it"),
        (altered(base_offset=2**63 - 2, last_offset_delta=1), reading.BATCHES_OFFSET, "has an offset that cannot be"),
    ],
)
def test_each_fault_of_a_header_has_its_words(data: bytes, status: int, words: str) -> None:
    """What is before it comes, and the error tells from where on there is nothing."""
    whole = GOOD + data
    scan = reading.scan_batches(whole)
    assert scan == (len(GOOD), 1, 1, 0, 8, status)
    found, error = before_damage(whole)
    assert found == rows_of([RECORD], 7)
    assert isinstance(error, InvalidMessageError)
    assert words in str(error)
    assert str(error).startswith("the batch at offset 8 ")
    assert error.offset == 8
    places, lengths = room(1)
    count, next_offset, told = reading.index_batches(whole, 0, 9, 0, places, lengths)
    assert (count, next_offset, str(told)) == (1, 8, str(error))
    assert isinstance(told, InvalidMessageError)
    assert told.offset == 8


def test_checksums_are_made_once() -> None:
    """Of batches that were found whole nobody makes them again, whatever follows these; of what follows, they are."""
    wrong = bytearray(batch_of([RECORD], 8))
    wrong[raw_batches.FIELDS["crc"][0]] ^= 1
    checked = reading.scan_batches(GOOD + wrong).valid_bytes
    assert checked == len(GOOD)
    assert read(bytes(wrong) + GOOD[:30], 8, checked=len(wrong)) == read(batch_of([RECORD], 8))
    found, error = before_damage(GOOD + wrong, checked=checked)
    assert found == rows_of([RECORD], 7)
    assert error is not None
    assert "has a wrong checksum" in str(error)
    places, lengths = room(2)
    assert reading.index_batches(wrong + GOOD[:30], 8, 9, len(wrong), places, lengths)[:2] == (1, 9)
    count, next_offset, told = reading.index_batches(GOOD + wrong, 0, 9, len(GOOD), places, lengths)
    assert (count, next_offset, str(told)) == (1, 8, str(error))


def test_the_last_offset_of_all_can_be_read() -> None:
    data = batch_of([RECORD], 2**63 - 2)
    assert read(data) == rows_of([RECORD], 2**63 - 2)
    assert reading.scan_batches(data).next_offset == 2**63 - 1


def with_records(payload: bytes, count: int, *, codec: int = 0) -> bytes:
    return raw_batches.Batch(
        base_offset=8, record_count=count, last_offset_delta=count - 1 if count else 0, attributes=codec,
        payload=compress(codec, payload) if codec else payload,
    ).encode()  # fmt: skip


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize(
    ("payload", "count", "words"),
    [
        (raw_records.encode([RECORD, RECORD])[:-1], 2, "record 1: its data ends before its last record does"),
        (raw_records.encode([RECORD] * 3), 2, "record 1: bytes are left behind its last record"),
        (b"\0", 0, "record 0: bytes are left behind its last record"),
        (packed([RECORD, RECORD], [1, 1], 0), 2, "record 1: the offset deltas are not 0, 1, 2 and so on"),
        (packed([RECORD, RECORD], [0, 2], 0), 2, "record 1: the offset deltas are not 0, 1, 2 and so on"),
        (raw_records.sized(b"\0" * 5) + b"\0" * 9, 1, "record 0: a record is longer or shorter than its fields"),
        (b"\xff" * 5 + b"\0" * 9, 1, "record 0: a number does not fit its type"),
        (raw_records.sized(b"\0\0\0\1\1\1"), 1, "record 0: the length of a field or the number of headers cannot be"),
    ],
)
def test_damage_inside_a_batch_with_a_right_checksum_has_its_words(
    payload: bytes, count: int, words: str, codec: int
) -> None:
    """None of its records comes: who had some of them could not say where he is."""
    whole = GOOD + with_records(payload, count, codec=codec)
    found, error = before_damage(whole)
    assert found == rows_of([RECORD], 7)
    assert str(error) == f"the batch at offset 8 is damaged at its {words}"
    assert isinstance(error, InvalidMessageError)
    assert error.offset == 8
    if not codec:
        places, lengths = room(5)
        count, next_offset, told = reading.index_batches(whole, 0, 9, len(whole), places, lengths)
        assert (count, next_offset, str(told)) == (1, 8, str(error))


@pytest.mark.parametrize("codec", list(CODEC_NAMES)[1:])
def test_compressed_data_is_opened_within_the_limits(codec: int) -> None:
    data = GOOD + batch_of([Record(50, None, b"x" * 5000)] * 4, 8, codec=codec)
    assert len(read(data)) == 5
    assert reading.scan_batches(data).compressed == 1
    for limits in (DeepLimits(max_inflated_bytes=9000), DeepLimits(max_depth=0), DeepLimits(max_messages=3)):
        spans = reading.RecordSpans(data, 0, limits)
        assert reading.entries(next(spans)) == rows_of([RECORD], 7)
        with pytest.raises(DecompressionLimitError) as caught:
            next(spans)
        if limits.max_messages > 3 and limits.max_depth:
            assert caught.value.offset == 8
    broken = bytearray(data)
    broken[len(GOOD) + 70 :] = bytes(len(data) - len(GOOD) - 70)
    broken[len(GOOD) :] = raw_batches.reseal(bytes(broken[len(GOOD) :]))
    found, error = before_damage(bytes(broken))
    assert len(found) == 1
    assert isinstance(error, InvalidMessageError)
    assert error.offset == 8


def test_the_limit_of_records_is_for_arrays_too() -> None:
    data = GOOD + batch_of([RECORD] * 4, 8)
    places, lengths = room(5)
    count, next_offset, error = reading.index_batches(data, 0, 3, 0, places, lengths)
    assert (count, next_offset) == (1, 8)
    assert str(error) == "the batch at offset 8 holds more than 3 records"
    assert isinstance(error, DecompressionLimitError)
    assert reading.index_batches(data, 0, 4, 0, places, lengths) == (5, 12, None)
    assert read(data, limits=DeepLimits(max_messages=4))


def test_arrays_that_do_not_fit_are_refused() -> None:
    data = GOOD + batch_of([RECORD] * 4, 8)
    span = next(reading.RecordSpans(data, 8, DEFAULT_LIMITS))
    places, lengths = room(4)
    with pytest.raises(ValueError, match="4 records from number 1 on do not fit 4 places"):
        reading.index_records(span, 0, 1, places, lengths)
    with pytest.raises(ValueError, match="the records do not fit 4 places"):
        reading.index_batches(data, 0, 9, 0, places, lengths)
    with pytest.raises(ValueError, match="no place for number 5"):
        reading.index_records(span, 0, 5, places, lengths)
    for other in (places[:5], places[:, :3]):
        with pytest.raises(ValueError, match="6 rows of places and 3 of lengths"):
            reading.index_records(span, 0, 0, np.ascontiguousarray(other), lengths)
    with pytest.raises(ValueError, match="6 rows of places and 3 of lengths"):
        reading.index_records(span, 0, 0, places, np.ascontiguousarray(lengths[:2]))
    assert reading.index_records(span, 0, 0, places, lengths) == 4
    with pytest.raises(ValueError, match="a batch is compressed"):
        reading.index_batches(batch_of([RECORD], 0, codec=1), 0, 9, False, places, lengths)


def test_headers_that_do_not_stand_there_are_refused() -> None:
    with pytest.raises(ValueError, match="do not begin at 3 of 2 bytes"):
        reading.headers_at(b"\0\0", 3, 0)
    with pytest.raises(ValueError, match="do not begin at -1 of 2 bytes"):
        reading.headers_at(b"\0\0", -1, 0)
    with pytest.raises(ValueError, match="at 0 do not stand 2 headers"):
        reading.headers_at(b"\0\0", 0, 2)
    assert reading.headers_at(b"\0\0", 0, 1) == ((b"", b""),)
    assert reading.headers_at(b"\0\0", 2, 0) == ()


@given(batches([0]))
def test_headers_as_arrays_are_those_of_each_record(made: tuple[bytes, list[Row], list[int]]) -> None:
    stored, rows, _ = made
    places, lengths = room(len(rows))
    assert reading.index_batches(stored, 0, len(rows), False, places, lengths)[0] == len(rows)
    expected = [header for row in rows for header in row[3]]
    where, sizes = np.empty((2, len(expected) + 1), np.int64), np.full((2, len(expected) + 1), 77, np.int32)
    assert reading.index_headers(stored, places[4], lengths[2], where, sizes) == len(expected)
    found = [
        tuple(None if size < 0 else stored[start : start + size] for start, size in zip(*pair, strict=True))
        for pair in zip(where.T[: len(expected)].tolist(), sizes.T[: len(expected)].tolist(), strict=True)
    ]
    assert found == expected
    assert all(start == 0 for start, size in zip(where[1], sizes[1], strict=True) if size < 0)
    assert sizes[:, -1].tolist() == [77, 77]


def test_arrays_of_headers_that_do_not_fit_are_refused() -> None:
    data = b"\x02k\x02v\x02K\x01"  # two headers, the second without a value
    places, lengths = np.empty((2, 2), np.int64), np.empty((2, 2), np.int32)

    def index(starts: list[int], counts: list[int], room: int = 2) -> int:
        arrays = np.empty((2, room), np.int64), np.empty((2, room), np.int32)
        return reading.index_headers(data, np.array(starts, np.int64), np.array(counts, np.int32), *arrays)

    assert index([0], [2]) == 2
    assert index([0, 4], [1, 1]) == 2
    assert index([4, 99, -7], [1, 0, 0]) == 1, "what has none may stand anywhere"
    assert index([], [], 0) == 0
    assert reading.index_headers(data, np.zeros(1, np.int64), np.full(1, 2, np.int32), places, lengths) == 2
    assert (places.tolist(), lengths.tolist()) == ([[1, 5], [3, 0]], [[1, 1], [1, -1]])
    for starts, counts, number in (([0], [3], 0), ([0, 6], [1, 1], 1), ([-1], [1], 0), ([8], [1], 0), ([0], [-1], 0)):
        with pytest.raises(ValueError, match=f"headers of record number {number} do not stand"):
            index(starts, counts, 4)
    for room in (0, 1):
        with pytest.raises(ValueError, match=f"do not fit {room} places"):
            index([0], [2], room)
    with pytest.raises(ValueError, match="1 places and 2 numbers"):
        index([0], [1, 1])
    for one, other in ((places[:1], lengths), (places, lengths[:1]), (places, lengths[:, :1].copy())):
        with pytest.raises(ValueError, match="two rows"):
            reading.index_headers(data, np.zeros(1, np.int64), np.ones(1, np.int32), one, other)


def test_bytes_that_change_under_a_span_are_no_wild_read() -> None:
    data = bytearray(batch_of([RECORD] * 4, 0))
    span = next(reading.RecordSpans(data, 0, DEFAULT_LIMITS))
    data[62:] = b"\xff" * (len(data) - 62)
    with pytest.raises(BufferError, match="the bytes changed"):
        reading.entries(span)
    places, lengths = room(4)
    with pytest.raises(BufferError, match="the bytes changed"):
        reading.index_records(span, 0, 0, places, lengths)


@given(batches(list(CODEC_NAMES)), st.data())
def test_payloads_alone_are_those_of_the_messages(
    made: tuple[bytes, list[Row], list[int]], data: st.DataObject
) -> None:
    """One by one and in lists, whose sizes count keys and values."""
    stored, rows, _ = made
    values = [value for _, value, _, _, _ in rows]
    assert list(PayloadStream(reading.RecordSpans(stored, 0, DEFAULT_LIMITS))) == values
    assert [one.payload for one in MessageStream(reading.RecordSpans(stored, 0, DEFAULT_LIMITS))] == values
    stream = PayloadStream(reading.RecordSpans(stored, 0, DEFAULT_LIMITS))
    count, size = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 100))
    found: list[Any] = []
    while taken := stream.take(count, size):
        assert len(taken) <= count
        sizes = [len(key or b"") + len(value or b"") + 8 for key, value, _, _, _ in rows[len(found) :][: len(taken)]]
        assert sum(sizes[:-1]) < size
        found += taken
    assert found == values


@pytest.mark.parametrize("at", range(72, 81))
def test_payloads_of_bytes_that_change_are_no_wild_read(at: int) -> None:
    """Whichever number of the record does not lead to its next field any more, up to the length of the value."""
    stored = bytearray(batch_of([Record(50, b"key", b"v", [])] * 2, 0))
    stream = PayloadStream(reading.RecordSpans(stored, 0, DEFAULT_LIMITS))
    lists = PayloadStream(reading.RecordSpans(stored, 0, DEFAULT_LIMITS))
    assert next(stream) == b"v"
    assert lists.take(1, 1) == [b"v"]
    stored[at:] = b"\xff" * (len(stored) - at)
    with pytest.raises(BufferError, match="the bytes changed"):
        next(stream)
    assert stream.take(1, 1) == []
    with contextlib.suppress(BufferError):  # where values lie is known since they were checked
        assert lists.take(1, 1) == [b"\xff"]
    assert lists.take(1, 1) == []


@pytest.mark.parametrize("count", [65_536, 65_537])
def test_payloads_of_very_many_records_come_in_lists_as_well(count: int) -> None:
    """Of so many it is not kept where each value lies; from an offset inside the batch on."""
    values = [None if number % 7 == 0 else b"%d" % number for number in range(count)]
    stored = batch_of([Record(50, None, value, []) for value in values], 0)
    stream = PayloadStream(reading.RecordSpans(stored, 3, DEFAULT_LIMITS))
    found: list[Any] = [next(stream)]
    while taken := stream.take(5_000, 2**20):
        found += [*taken, *([next(stream)] if len(found) + len(taken) < count - 3 else [])]
    assert found == values[3:]


def test_nothing_is_in_no_bytes() -> None:
    assert read(b"") == []
    assert reading.scan_batches(b"", 5) == (0, 0, 0, 0, 5, reading.BATCHES_OK)
    places, lengths = room(0)
    assert reading.index_batches(b"", 5, 1, 0, places, lengths) == (0, 5, None)


def test_long_batches_are_read_without_the_interpreter_lock() -> None:
    """The paths of long spans: the checksum, the walk, and damage in either."""
    records = [Record(50, None, b"v" * 1000)] * 200
    data = batch_of(records, 0)
    assert len(data) > 3 * 65536
    assert read(data, 100) == rows_of(records, 0)[100:]
    assert before_damage(data[:-1] + b"?")[1] is not None
    _, error = before_damage(with_records(raw_records.encode(records) + b"\0", 200))
    assert str(error) == "the batch at offset 8 is damaged at its record 199: bytes are left behind its last record"


def test_bytes_in_pieces_are_refused() -> None:
    with pytest.raises(BufferError, match="do not lie in one piece"):
        reading.scan_batches(memoryview(bytes(100))[::2])

"""What a mirror makes of fetched batches: as they are, put together, taken apart, without what does not count."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from fastlog import batch_codecs, record_batches
from fastlog._crc32c import crc32c
from fastlog.errors import (
    DecompressionLimitError,
    FastlogError,
    InvalidFetchSizeError,
    InvalidMessageError,
    UnknownMagicError,
)
from fastlog.message import DeepLimits
from fastlog.mirror.records import batches as module
from fastlog.mirror.records.batches import Fetched, Outgoing, numbered
from fastlog.mirror.records.gaps import gapped_records
from fastlog.record_batches import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader, Record

PLENTY = 1 << 20


def record(number: int, size: int = 5) -> Record:
    headers = ((b"h", b"%d" % number), (b"n", None)) if number % 2 else ()
    return Record(
        None if number % 3 == 0 else b"k%d" % number,
        None if number % 7 == 6 else (b"%d-" % number).ljust(size, b"v"),
        1_700_000_000_000 + number,
        headers,
    )


def records(first: int, count: int, size: int = 5) -> list[Record]:
    return [record(number, size) for number in range(first, first + count)]


def batch(first: int, count: int, codec: int = 0, size: int = 5, **options: int) -> bytes:
    return record_batches.build(records(first, count, size), base_offset=first, codec=codec, **options)


def resummed(data: bytearray) -> bytes:
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def compacted(first: int, kept: Sequence[int], count: int, codec: int = 0, attributes: int = 0) -> bytes:
    """A batch of ``count`` records of which the cleaner has left some, by their place in it."""
    rows = []
    for number in kept:
        whole = record_batches.build([record(first + number)])
        body = bytearray(whole[61:])
        rows.append((body, number))
    payload = b"".join(_with_deltas(bytes(body), number) for body, number in rows)
    base = 1_700_000_000_000
    data = bytearray(record_batches.build([Record(b"", b"", base)], base_offset=first, attributes=attributes))[:61]
    data += batch_codecs.compress(codec, payload)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, attributes | codec)
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">q", data, 35, base + first + (kept[-1] if kept else 0))
    struct.pack_into(">i", data, 57, len(kept))
    struct.pack_into(">q", data, 27, base + first)
    return resummed(data)


def _with_deltas(row: bytes, number: int) -> bytes:
    """A record of a batch of its own, as the one with a number in a batch whose times rise by one."""
    at = 1 if row[0] < 0x80 else 2
    body = row[at:]
    assert body[:3] == b"\0\0\0", "attributes, time and offset are 0"
    made = b"\0" + _zigzag(number) + _zigzag(number) + body[3:]
    return _zigzag(len(made)) + made


def _zigzag(number: int) -> bytes:
    number *= 2
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def marker(offset: int, producer: int, *, commits: bool) -> bytes:
    key = struct.pack(">hh", 0, int(commits))
    return record_batches.build(
        [Record(key, struct.pack(">hi", 0, 0), 1)],
        base_offset=offset, attributes=TRANSACTIONAL | CONTROL, producer_id=producer, producer_epoch=0,
    )  # fmt: skip


def fetched(data: bytes, offset: int = 0, aborted: Sequence[tuple[int, int]] = (), **options: object) -> Fetched:
    given = {"most_bytes": PLENTY, **options}
    return Fetched(memoryview(data), offset, aborted, **given)  # type: ignore[arg-type]


def sent(found: Sequence[Outgoing]) -> list[tuple[int, list[Record]]]:
    """The codec of each batch, and its records; what is sent is whole and numbered."""
    made = []
    for one in found:
        data = numbered(one, 5, 2, 2**31 + 3)
        header = record_batches.check(data)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 3)
        assert header.base_offset == 0
        assert header.attributes == header.codec
        assert header.record_count == one.records == sum(count for _, count in one.runs)
        made.append((header.codec, [row._replace(offset=-1) for row in record_batches.records(data)]))
    return made


def shape(one: Outgoing) -> tuple[int, int, int]:
    """How many records, the offset of the first, and that behind the last."""
    return one.records, one.first, one.next


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_batch_is_passed_on_as_it_is(codec: int) -> None:
    data = batch(40, 3, codec, leader_epoch=9, producer_id=11, producer_epoch=1, base_sequence=77)
    walk = fetched(data, 40)
    (one,) = walk.batches()
    assert shape(one) == (3, 40, 43)
    assert bytes(one.data)[61:] == data[61:]
    assert sent([one]) == [(codec, records(40, 3))]
    assert walk.next_offset == 43


def test_small_ones_are_put_together_as_far_as_they_have_one_codec() -> None:
    data = batch(0, 1) + batch(1, 1) + batch(2, 2, 1) + batch(4, 1, 1) + batch(5, 1)
    found = list(fetched(data).batches())
    assert [shape(one) for one in found] == [(2, 0, 2), (3, 2, 5), (1, 5, 6)]
    assert sent(found) == [(0, records(0, 2)), (1, records(2, 3)), (0, records(5, 1))]
    alone = list(fetched(data, gathers=False).batches())
    assert [shape(one) for one in alone] == [(1, 0, 1), (1, 1, 2), (2, 2, 4), (1, 4, 5), (1, 5, 6)]


def test_a_large_one_stays_alone_and_many_are_not_put_into_one(monkeypatch: pytest.MonkeyPatch) -> None:
    large = batch(2, 1, size=module.SMALL_BYTES)
    found = list(fetched(batch(0, 1) + batch(1, 1) + large + batch(3, 1)).batches())
    assert [shape(one) for one in found] == [(2, 0, 2), (1, 2, 3), (1, 3, 4)]
    monkeypatch.setattr(module, "GATHERED_BYTES", 2 * len(batch(0, 1)))
    found = list(fetched(b"".join(batch(number, 1) for number in range(5))).batches())
    assert [one.records for one in found] == [2, 2, 1]


def test_how_much_is_put_together() -> None:
    """Batches below 16 KiB, until there are 128 KiB; exactly so large they stay alone."""

    def of_bytes(number: int, total: int) -> bytes:
        made = (batch(number, 1, size=size) for size in range(total - 150, total))
        return next(found for found in made if len(found) == total)

    for total, counts in ((16 * 1024 - 1, [2]), (16 * 1024, [1, 1])):
        found = fetched(of_bytes(0, total) + of_bytes(1, total)).batches()
        assert [one.records for one in found] == counts
    data = [batch(number, 1, size=10_000) for number in range(30)]  # some of which have nulls
    first = next(count for count in range(30) if sum(map(len, data[:count])) >= 128 * 1024)
    found = list(fetched(b"".join(data)).batches())
    assert found[0].records == first
    assert sum(one.records for one in found) == 30


def test_only_what_is_wanted_of_a_batch_goes() -> None:
    walk = fetched(batch(0, 4) + batch(4, 6, 4) + batch(10, 1), 6)
    found = list(walk.batches())
    assert [shape(one) for one in found] == [(4, 6, 10), (1, 10, 11)]
    assert sent(found) == [(4, records(6, 4)), (0, records(10, 1))]
    assert list(fetched(batch(0, 4), 4).batches()) == []


def test_the_time_of_the_append_becomes_that_of_the_records() -> None:
    data = bytearray(batch(0, 3))
    struct.pack_into(">h", data, 21, LOG_APPEND_TIME)
    struct.pack_into(">q", data, 35, 99)
    (one,) = fetched(resummed(data)).batches()
    assert sent([one]) == [(0, [row._replace(timestamp=99) for row in records(0, 3)])]


def test_what_is_too_large_is_taken_apart() -> None:
    data = batch(0, 10, 1, size=100)
    found = list(fetched(data, most_bytes=140).batches())
    assert [row for _, rows in sent(found) for row in rows] == records(0, 10, 100)
    assert {codec for codec, _ in sent(found)} == {1}
    assert all(len(one.data) <= 140 for one in found)
    assert [one.first for one in found[1:]] == [one.next for one in found[:-1]]
    assert len(found) < 10
    single = list(fetched(data, most_records=1).batches())
    assert [shape(one) for one in single] == [(1, number, number + 1) for number in range(10)]
    assert len(list(fetched(data, most_bytes=1).batches())) == 10, "a single one goes as it is"
    assert len(list(fetched(batch(0, 10), most_records=10).batches())) == 1
    assert len(list(fetched(batch(0, 10), most_bytes=len(batch(0, 10))).batches())) == 1
    assert len(list(fetched(batch(0, 10), most_bytes=len(batch(0, 10)) - 1).batches())) == 2


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_compacted_ones_are_packed_anew(codec: int) -> None:
    walk = fetched(compacted(20, (1, 4, 5), 9, codec), 20)
    (one,) = walk.batches()
    assert shape(one) == (3, 21, 29)
    assert one.runs == ((21, 1), (24, 2))
    assert sent([one]) == [(codec, [record(21), record(24), record(25)])]
    assert walk.next_offset == 29
    (rest,) = fetched(compacted(20, (1, 4, 5), 9, codec), 24).batches()
    assert shape(rest) == (2, 24, 29)
    apart = list(fetched(compacted(20, (1, 4, 5), 9, codec), 20, most_records=1).batches())
    assert [shape(one) for one in apart] == [(1, 21, 24), (1, 24, 25), (1, 25, 29)]


def test_no_batch_has_more_gaps_than_can_be_written_down() -> None:
    kept = tuple(range(0, 4 * module.MOST_GAPS, 2))
    found = list(fetched(compacted(0, kept, 4 * module.MOST_GAPS)).batches())
    assert [len(one.runs) for one in found] == [module.MOST_GAPS] * 2
    assert [offset for one in found for offset, _ in one.runs] == list(kept)


def test_nothing_of_a_compacted_batch_may_be_wanted() -> None:
    walk = fetched(compacted(0, (0, 1), 9) + compacted(9, (), 3) + batch(12, 1), 5)
    found = list(walk.batches())
    assert [shape(one) for one in found] == [(1, 12, 13)]
    walk = fetched(compacted(0, (), 9), 5)
    assert (list(walk.batches()), walk.next_offset) == ([], 9)


def test_the_mark_of_the_cleaner_is_taken_off() -> None:
    data = bytearray(batch(0, 2))
    struct.pack_into(">h", data, 21, DELETE_HORIZON)
    (one,) = fetched(resummed(data)).batches()
    assert sent([one]) == [(0, records(0, 2))]


def test_what_was_aborted_does_not_count() -> None:
    def part(first: int, count: int, producer: int) -> bytes:
        return batch(first, count, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0, base_sequence=0)

    data = (
        part(0, 2, 1)  # aborted
        + part(2, 1, 2)  # committed
        + batch(3, 1)
        + part(4, 1, 1)  # aborted
        + marker(5, 1, commits=False)
        + part(6, 1, 1)  # the next one of the same producer: committed
        + marker(7, 2, commits=True)
        + marker(8, 1, commits=True)
        + part(9, 1, 3)  # aborted
        + marker(10, 3, commits=False)
    )
    walk = fetched(data, aborted=[(3, 9), (1, 0)])
    found = list(walk.batches())
    assert [row for _, rows in sent(found) for row in rows] == [record(2), record(3), record(6)]
    assert [shape(one) for one in found] == [(3, 2, 7)]
    assert found[0].runs == ((2, 2), (6, 1))
    assert walk.next_offset == 11
    assert [row for _, rows in sent(list(fetched(data).batches())) for row in rows] == [
        record(number) for number in (0, 1, 2, 3, 4, 6, 9)
    ]
    # a transaction that begins behind a batch says nothing of it
    (one,) = fetched(part(0, 2, 1), aborted=[(1, 2)]).batches()
    assert one.records == 2
    assert list(fetched(part(0, 2, 1), aborted=[(1, 1)]).batches()) == []
    # one without a transaction counts, whoever sent it
    (one,) = fetched(batch(0, 1, producer_id=1, producer_epoch=0, base_sequence=0), aborted=[(1, 0)]).batches()
    assert one.records == 1


def test_damage_comes_behind_what_is_whole() -> None:
    bad = bytearray(batch(4, 3))
    bad[-1] ^= 1
    walk = fetched(batch(0, 2) + batch(2, 2) + bytes(bad) + batch(7, 1))
    steps = walk.batches()
    assert shape(next(steps)) == (4, 0, 4)
    with pytest.raises(InvalidMessageError, match="offset 4 has the checksum"):
        next(steps)
    assert walk.next_offset == 4
    assert walk.refused_end == 7


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_damage_inside_compressed_bytes(codec: int) -> None:
    """The checksum is right, and what is compressed is not: that is seen where the batch has to be opened."""
    data = bytearray(batch(4, 3, codec))
    data[61:] = b"\xff" * (len(data) - 61)
    bad = resummed(data)
    walk = fetched(batch(0, 4, codec) + bad + batch(7, 1), gathers=False, most_records=2)
    steps = walk.batches()
    assert [next(steps).records, next(steps).records] == [2, 2]
    with pytest.raises(InvalidMessageError):
        next(steps)
    assert (walk.next_offset, walk.refused_end) == (4, 7)
    together = fetched(batch(0, 4, codec) + bad)
    with pytest.raises(InvalidMessageError):
        list(together.batches())
    assert (together.next_offset, together.refused_end) == (0, None), "which of them is not told"


def test_nothing_comes_twice_when_the_second_half_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    real = record_batches.build
    made: list[int] = []

    def build(items: list[Record], *, codec: int) -> bytes:
        made.append(len(items))
        if len(made) == 2:
            raise InvalidMessageError("no")
        return real(items, codec=codec)

    monkeypatch.setattr(record_batches, "build", build)
    steps = fetched(real(records(0, 4)), most_records=2).batches()
    assert next(steps).records == 2
    with pytest.raises(InvalidMessageError):
        next(steps)
    assert list(steps) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: struct.pack_into(">h", data, 21, 0x80), "attributes 0x0080"),
        (lambda data: struct.pack_into(">h", data, 21, 5), "attributes 0x0005"),
        (lambda data: struct.pack_into(">i", data, 57, 4), "4 records, the last at its offset 2"),
        (lambda data: struct.pack_into(">i", data, 57, -1), "-1 records"),
    ],
)
def test_a_header_that_cannot_be_is_refused(change: object, complaint: str) -> None:
    data = bytearray(batch(0, 3))
    change(data)  # type: ignore[operator]
    walk = fetched(resummed(data))
    with pytest.raises(InvalidMessageError, match=complaint):
        list(walk.batches())
    assert (walk.next_offset, walk.refused_end) == (0, 3)


def test_what_is_no_batch_and_what_is_cut() -> None:
    old = bytearray(batch(0, 1))
    old[16] = 1
    with pytest.raises(UnknownMagicError):
        list(fetched(bytes(old)).batches())
    assert [one.records for one in fetched(batch(0, 2) + batch(2, 2)[:-1]).batches()] == [2]
    with pytest.raises(InvalidFetchSizeError):
        list(fetched(batch(0, 2)[:-1]).batches())
    assert list(fetched(b"").batches()) == []


# -- records with gaps -------------------------------------------------------------------------------------------------


def gapped(data: bytes, limits: DeepLimits | None = None) -> list[Record]:
    view = memoryview(data)
    return list(gapped_records(BatchHeader.parse(view), view, limits or DeepLimits()))


def test_records_are_read_as_from_a_batch_without_gaps() -> None:
    data = batch(10, 30, 1, size=200)
    assert gapped(data) == list(record_batches.records(data))
    assert gapped(compacted(5, (2,), 3)) == [record(7)._replace(offset=7)]


def test_a_batch_that_is_cut_or_goes_on_is_damaged() -> None:
    whole = batch(0, 4)
    for end in range(61, len(whole)):
        with pytest.raises(InvalidMessageError, match="damaged at its record"):
            gapped(whole[:end])
    with pytest.raises(InvalidMessageError, match="3 bytes follow"):
        gapped(whole + b"xyz")


def test_every_byte_that_changes_is_noticed_or_changes_a_record() -> None:
    whole = batch(0, 3)
    expected = gapped(whole)
    for at in range(61, len(whole)):
        data = bytearray(whole)
        data[at] ^= 0x55
        try:
            found = gapped(bytes(data))
        except FastlogError:
            continue
        # the attributes of a record are not looked at, as by Kafka
        assert found != expected or data[at] == 0x55


def test_offsets_have_to_rise_within_the_batch() -> None:
    rows = b"".join(_with_deltas(record_batches.build([record(n)])[61:], n) for n in (2, 1))
    data = bytearray(compacted(0, (1, 2), 3))
    data[61:] = rows
    struct.pack_into(">i", data, 8, len(data) - 12)
    with pytest.raises(InvalidMessageError, match="record 1: its length or offset"):
        gapped(bytes(data))
    with pytest.raises(InvalidMessageError, match="record 1: its length or offset"):
        gapped(compacted(0, (0, 3), 3))


def test_limits_hold() -> None:
    with pytest.raises(DecompressionLimitError, match="more than 2 records"):
        gapped(batch(0, 3), DeepLimits(max_messages=2))
    assert len(gapped(batch(0, 3), DeepLimits(max_messages=3))) == 3
    with pytest.raises(DecompressionLimitError):
        gapped(batch(0, 3, 1, size=5000), DeepLimits(max_inflated_bytes=1000))
    endless = bytearray(batch(0, 1))
    endless[61:] = b"\x80" * 40
    with pytest.raises(InvalidMessageError, match="damaged at its record 0"):
        gapped(bytes(endless))

"""The check of a batch's records, whatever they are compressed with: exact, in steps, within limits, on any bytes.

The checksum in the header is 0 nearly everywhere: it has been looked at before.
"""

from __future__ import annotations

import random
import struct
import sys
import tracemalloc
import zlib

import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from fastlog import batch_codecs, codecs
from fastlog.batch_codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from fastlog.errors import DecompressionLimitError, InvalidMessageError
from fastlog.message import DeepLimits
from fastlog.record_batches import DeepBatch, check_deep
from tests.harness import raw_batches, raw_records
from tests.harness.raw_records import Record

ALL = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
COMPRESSED = ALL[1:]
MIB = 1 << 20
LIMITS = DeepLimits()

fields = st.one_of(st.none(), st.binary(max_size=30))
records = st.builds(
    Record, st.integers(-5, 2**41), fields, fields, st.lists(st.tuples(st.binary(max_size=5), fields), max_size=3)
)
batches = st.lists(records, min_size=1, max_size=8)


def made(items: list[Record], codec: int) -> bytes:
    """A batch of these records."""
    plain = raw_records.encode(items, items[0].timestamp)
    return raw_batches.of(items, codec, batch_codecs.compress(codec, plain)).encode(crc=0)


def of_bytes(plain: bytes, count: int, codec: int) -> bytes:
    """A batch whose records are these bytes, whatever they are."""
    packed = batch_codecs.compress(codec, plain)
    return raw_batches.Batch(attributes=codec, record_count=count, payload=packed).encode(crc=0)


def stepped(data: bytes, most_bytes: int, limits: DeepLimits = LIMITS) -> DeepBatch:
    """The check in steps as small as they can be, at the end."""
    checking = DeepBatch(data, limits)
    while not checking.step(most_bytes):
        pass
    return checking


@given(batches, st.sampled_from(ALL))
def test_whole_batches(items: list[Record], codec: int) -> None:
    data = made(items, codec)
    latest = max(item.timestamp for item in items)
    for checking in (check_deep(data), stepped(memoryview(data), 0)):  # type: ignore[arg-type]
        assert checking.count == len(items)
        assert checking.max_timestamp == latest
        assert checking.max_timestamp_delta == [item.timestamp for item in items].index(latest)
        assert checking.held_bytes == 0
        assert checking.step(0)  # the end stays the end


@pytest.mark.parametrize("codec", ALL)
@pytest.mark.parametrize("most_bytes", [0, sys.maxsize])
def test_the_record_that_is_refused_is_told(codec: int, most_bytes: int) -> None:
    """None for what is wrong with the batch as a whole, and before anything is."""
    plain = raw_records.encode([Record(0, b"k", bytes(20))] * 3)
    cases = [(plain + b"\1", 4, 3), (plain[:-1], 3, 2), (plain, 4, None), (plain + b"\1", 3, None), (plain, 3, None)]
    for data, count, refused in cases:
        checking = DeepBatch(of_bytes(data, count, codec), LIMITS)
        assert checking.refused_record is None
        if (data, count) == (plain, 3):
            while not checking.step(most_bytes):
                pass
        else:
            with pytest.raises(InvalidMessageError):
                while not checking.step(most_bytes):
                    pass
        assert checking.refused_record == refused


@given(batches, st.sampled_from(ALL), st.integers(-3, 3), st.binary(max_size=3))
def test_another_count_and_bytes_behind(items: list[Record], codec: int, more: int, tail: bytes) -> None:
    plain = raw_records.encode(items) + tail
    count = len(items) + more
    verdict = raw_records.decode(plain, count)[2]
    data = of_bytes(plain, count, codec)
    if verdict == raw_records.OK and count > 0:
        assert check_deep(data).count == count
    else:
        with pytest.raises(InvalidMessageError, match="record"):
            check_deep(data)


@pytest.mark.parametrize("codec", ALL)
def test_records_across_slices(codec: int) -> None:
    """Slices end inside records, in lengths and in values; a record may be longer than many of them."""
    rng = random.Random(codec)
    for sizes in (
        [300_000] * 9,
        [262_144 - 10] * 4,
        [1_500_000, 5, 1_200_000],
        [rng.randrange(9000) for _ in range(600)],
    ):
        items = [
            Record(i, None, rng.randbytes(100) * (size // 100 + 1), [(b"h", b"x")]) for i, size in enumerate(sizes)
        ]
        data = made(items, codec)
        checking = stepped(data, 0)
        assert (checking.count, checking.max_timestamp) == (len(items), len(items) - 1)
        last = len(items) - 1
        longer = raw_records.sized(raw_records.encode_fields(items[last], last) + b"\0")
        with pytest.raises(InvalidMessageError, match=f"at its record {last}"):
            stepped(of_bytes(raw_records.encode(items[:last]) + longer, len(items), codec), 0)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_byte_of_a_compressed_batch_flipped(codec: int) -> None:
    """Refused; or what came out are whole records all the same, as a slow reading of the same bytes agrees."""
    items = [Record(1000 + i, b"key %d" % i, b"some value " * i, [(b"h", None)]) for i in range(12)]
    data = made(items, codec)
    refused = 0
    for place in range(raw_batches.HEADER_BYTES, len(data)):
        for flip in (0x01, 0x10, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= flip
            try:
                checking = check_deep(damaged)
            except InvalidMessageError:
                refused += 1
                continue
            plain = batch_codecs.decompress(codec, damaged[raw_batches.HEADER_BYTES :], MIB)
            found, _, status = raw_records.decode(plain, len(items), items[0].timestamp)
            assert status == raw_records.OK
            assert checking.max_timestamp == max(record.timestamp for record in found)
    assert refused > len(data)


@pytest.mark.parametrize("codec", ALL)
def test_every_cut(codec: int) -> None:
    """With a header that agrees with what is left."""
    items = [Record(1000 + i, b"key", b"some value " * i) for i in range(8)]
    data = made(items, codec)
    for end in range(raw_batches.HEADER_BYTES, len(data)):
        cut = bytearray(data[:end])
        struct.pack_into(">i", cut, 8, end - 12)
        with pytest.raises(InvalidMessageError):
            check_deep(cut)
        with pytest.raises(InvalidMessageError, match="follow its length"):
            check_deep(data[:end])
    for end in range(raw_batches.HEADER_BYTES):
        with pytest.raises(InvalidMessageError, match="shorter than its header"):
            check_deep(data[:end])


@given(st.binary(max_size=90), st.integers(0, 7), st.integers(-1, 5))
def test_any_bytes(payload: bytes, codec: int, count: int) -> None:
    data = raw_batches.Batch(attributes=codec, record_count=count, payload=payload).encode()
    try:
        checking = check_deep(data)
    except InvalidMessageError:
        return
    plain = batch_codecs.decompress(codec, payload, MIB)
    assert raw_records.decode(plain, count)[2] == raw_records.OK
    assert checking.count == count


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
@pytest.mark.parametrize("codec", ALL)
def test_a_batch_has_a_record(count: int, codec: int) -> None:
    with pytest.raises(InvalidMessageError, match="number of records"):
        check_deep(of_bytes(b"", count, codec))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_there_are_not(codec: int) -> None:
    with pytest.raises(InvalidMessageError, match="no codec has the number"):
        check_deep(raw_batches.Batch(attributes=codec).encode())


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_limits_are_exact(codec: int) -> None:
    items = [Record(value=b"x" * 5000) for _ in range(20)]
    data, size = made(items, codec), len(raw_records.encode(items))
    assert stepped(data, 0, DeepLimits(size, 1, 20)).count == 20
    for limits in (DeepLimits(size - 1, 1, 20), DeepLimits(size, 0, 20), DeepLimits(size, 1, 19), DeepLimits(0, 1, 20)):
        with pytest.raises(DecompressionLimitError):
            stepped(data, 0, limits)


def test_what_is_not_compressed_is_bounded_by_the_request() -> None:
    items = [Record(value=b"x" * 5000) for _ in range(20)]
    assert check_deep(made(items, NONE), DeepLimits(0, 0, 20)).count == 20
    with pytest.raises(DecompressionLimitError, match="more than 19 records"):
        check_deep(made(items, NONE), DeepLimits(0, 0, 19))


def bomb(codec: int, holds: str) -> bytes:
    """A batch of 64 MiB of zeros: none of them records, or all of them the value of one."""
    record = raw_records.varint(60 * MIB) + b"\0" * 4 + raw_records.varint(-1)
    return of_bytes((record if holds == "a record" else b"") + bytes(64 * MIB), 1, codec)


@pytest.mark.slow
@pytest.mark.parametrize("holds", ["zeros", "a record"])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_costs_no_more_than_the_limit(codec: int, holds: str) -> None:
    data = bomb(codec, holds)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMessageError):
            stepped(data, 0, DeepLimits(4 * MIB))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 5 * MIB


def test_records_that_are_none_end_a_bomb_at_its_first_slice() -> None:
    for codec in (GZIP, SNAPPY):
        checking = DeepBatch(of_bytes(bytes(16 * MIB), 5, codec), LIMITS)
        with pytest.raises(InvalidMessageError, match="longer or shorter"):
            checking.step(0)


def test_a_record_that_cannot_be_within_the_limit_is_refused_before_it_comes() -> None:
    """Its length tells: nothing of it is kept."""
    plain = raw_records.varint(5 * MIB) + b"\0" * 5 * MIB
    checking = DeepBatch(of_bytes(plain, 1, GZIP), DeepLimits(4 * MIB))
    with pytest.raises(DecompressionLimitError, match="record 0 of the batch takes"):
        checking.step(0)


def test_pieces_are_bounded_by_what_was_sent() -> None:
    """Members with nothing in them cost time for 20 bytes each; whoever sends more may have more."""
    plain = raw_records.encode([Record()])
    members = zlib.compress(b"", wbits=31) * 3000 + batch_codecs.compress(GZIP, plain)
    data = raw_batches.Batch(attributes=GZIP, payload=members).encode()
    assert check_deep(data).count == 1
    checking = DeepBatch(data, LIMITS, bytes_per_piece=100)
    with pytest.raises(DecompressionLimitError, match="more gzip members"):
        while not checking.step(sys.maxsize):
            pass
    assert codecs.FREE_PIECES + len(data) // 16 > 3001
    checking = DeepBatch(data, LIMITS, bytes_per_piece=16)
    assert checking.step(sys.maxsize)


# -- steps -------------------------------------------------------------------------------------------------------------


def test_a_step_ends_where_it_is_told_to() -> None:
    items = [Record(value=b"x" * 1000) for _ in range(2000)]
    checking = DeepBatch(made(items, GZIP), LIMITS)
    counts = []
    while not checking.step(200_000):
        counts.append(checking.count)
    assert len(counts) >= 7
    assert counts == sorted(set(counts))
    assert checking.count == 2000
    assert DeepBatch(made(items, GZIP), LIMITS).step(sys.maxsize)


def test_what_comes_whole_is_told_beforehand() -> None:
    items = [Record(value=b"x" * 1000) for _ in range(2000)]
    size = len(raw_records.encode(items))
    for codec in (NONE, GZIP):
        assert DeepBatch(made(items, codec), LIMITS).whole_bytes == 0
    assert DeepBatch(made(items, SNAPPY), LIMITS).whole_bytes == 32768
    assert DeepBatch(made(items, ZSTD), LIMITS).whole_bytes == size
    assert size <= DeepBatch(made(items, LZ4), LIMITS).whole_bytes <= size + 65536
    raw = snappy.compress(raw_records.encode(items))
    batch = raw_batches.of(items, SNAPPY, raw).encode()
    assert DeepBatch(batch, LIMITS).whole_bytes == size
    assert check_deep(batch).count == 2000


def test_the_largest_of_many_blocks_is_not_looked_for() -> None:
    """Of hundreds of thousands that would take long, in a loop that serves others."""
    for count in (codecs.FREE_PIECES, codecs.FREE_PIECES + 1):
        stream = codecs.XERIAL_HEADER + b"\0\0\0\1\0" * count
        batch = raw_batches.Batch(attributes=SNAPPY, payload=stream).encode(crc=0)
        found = DeepBatch(batch, LIMITS).whole_bytes
        assert found == (0 if count == codecs.FREE_PIECES else codecs.SNAPPY_MAX_RATIO * len(stream))


@pytest.mark.parametrize("codec", [SNAPPY, LZ4, ZSTD])
def test_nothing_that_came_whole_is_kept_between_steps(codec: int) -> None:
    """Many checks may wait for their next step at once."""
    data = made([Record(value=bytes(30_000))] * 300, codec)
    if codec == SNAPPY:
        payload = snappy.compress(raw_records.encode([Record(value=bytes(30_000))] * 300))
        framed = codecs.XERIAL_HEADER + len(payload).to_bytes(4, "big") + payload
        data = raw_batches.of([Record(value=b"")] * 300, codec, framed).encode(crc=0)
    tracemalloc.start()
    try:
        checking = DeepBatch(data, LIMITS)
        assert not checking.step(0)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < MIB < 8 * MIB < peak
    assert checking.step(0)


def test_what_is_kept_between_steps_is_told() -> None:
    items = [Record(value=b"x" * 2_000_000), Record()]
    checking = DeepBatch(made(items, GZIP), LIMITS)
    most = 0
    while not checking.step(0):
        most = max(most, checking.held_bytes)
    assert 1_500_000 < most <= 2_000_100
    assert checking.held_bytes == 0


@pytest.mark.parametrize("codec", ALL)
def test_a_refusal_stays_one(codec: int) -> None:
    """Whoever asks once more is refused once more, and nothing is kept."""
    items = [Record(value=b"x" * 1000) for _ in range(20)]
    for data in (
        of_bytes(raw_records.encode(items) + b"\0", 20, codec),
        of_bytes(raw_records.encode(items), 21, codec),
        of_bytes(b"\1" + raw_records.encode(items), 20, codec),
    ):
        checking = DeepBatch(data, LIMITS)
        for _ in range(3):
            with pytest.raises(InvalidMessageError):
                while not checking.step(0):
                    pass
        assert checking.held_bytes < 30_000


@pytest.mark.parametrize("bad", [None, "text", memoryview(bytes(200))[::2]])
def test_what_is_no_buffer_is_refused(bad: object) -> None:
    with pytest.raises((TypeError, BufferError)):
        DeepBatch(bad, LIMITS)  # type: ignore[arg-type]

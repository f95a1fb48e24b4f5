"""Batches that clients make are read, and ours by them: kafka-python, and Apache Kafka's where its jars are named."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import cramjam
import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from fastlog.batch_codecs import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from fastlog.errors import InvalidMessageError, MissingDependencyError
from fastlog.java import find_java
from fastlog.record_batches import Record, batches, build, check, check_deep, records
from tests.harness import raw_batches, raw_records

ALL = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
JARS = "FASTLOG_KAFKA_CLASSPATH"
PROGRAM = Path(__file__).parents[1] / "harness" / "KafkaBatches.java"
SECONDS = 120

MADE = [
    Record(None, None, 1_700_000_000_000),
    Record(b"", b"", 1_700_000_000_005, ((b"", None),)),
    Record(b"key", b"value", 1_699_999_999_000, ((b"a", b"1"), (b"b", b""), (b"\xc3\xa4", b"3"))),
    *(Record(b"k%d" % i, b"some text, and more of it " * (i % 40), 1_700_000_000_100 + i % 7) for i in range(3000)),
]


def without_offsets(found: list[Record]) -> list[Record]:
    return [record._replace(offset=-1) for record in found]


@pytest.mark.parametrize("codec", ALL)
def test_what_kafka_python_wrote(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, False, 17, 3, 40, 10_000_000)
    for place, record in enumerate(MADE):
        headers = [(name.decode(), value) for name, value in record.headers]
        builder.append(place, record.timestamp, record.key, record.value, headers)
    data = bytes(builder.build())
    header = check(data)
    assert (header.codec, header.producer_id, header.producer_epoch, header.base_sequence) == (codec, 17, 3, 40)
    assert without_offsets(list(records(data))) == MADE
    checking = check_deep(data)
    assert (checking.count, checking.max_timestamp) == (len(MADE), header.max_timestamp)


@pytest.mark.parametrize("codec", ALL)
def test_what_kafka_python_reads(codec: int) -> None:
    data = build(MADE, codec=codec, base_offset=1000)
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    found = [
        Record(
            record.key, record.value, record.timestamp, tuple((name.encode(), value) for name, value in record.headers),
            record.offset,
        )
        for record in batch
    ]  # fmt: skip
    assert found == [record._replace(offset=1000 + place) for place, record in enumerate(MADE)]


# -- Java --------------------------------------------------------------------------------------------------------------


def java(*arguments: str | Path) -> str:
    """What the program beside the harness prints, given Kafka's jars."""
    jars = os.environ.get(JARS)
    if not jars:
        pytest.skip(f"{JARS} does not name the jars of kafka-clients and of the codecs it needs")
    try:
        command = [find_java(), "-cp", jars, PROGRAM, *arguments]
    except MissingDependencyError as error:
        pytest.skip(str(error))
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def line(record: Record) -> str:
    """A record as the program prints it."""

    def shown(data: bytes | None) -> str:
        return "null" if data is None else data.hex()

    headers = ",".join(f"{shown(name)}={shown(value)}" for name, value in record.headers)
    return f"{record.offset} {record.timestamp} {shown(record.key)} {shown(record.value)} [{headers}]"


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("codec", ALL)
def test_what_java_wrote(codec: int, tmp_path: Path) -> None:
    """Batches with 1, 10 and 5,000 records, printed by the client that made them."""
    path = tmp_path / "batches"
    printed = java("write", CODEC_NAMES[codec], path).splitlines()
    found = list(batches(path.read_bytes()))
    assert [header.record_count for header, _ in found] == [1, 10, 5000]
    assert {header.codec for header, _ in found} == {codec}
    assert [line(record) for _, view in found for record in records(view)] == printed
    for header, view in found:
        checking = check_deep(view)
        assert (checking.count, checking.max_timestamp) == (header.record_count, header.max_timestamp)


PLAIN = raw_records.encode([raw_records.Record(value=b"text " * 200)] * 3)
HALVES = PLAIN[:1000], PLAIN[1000:]


def linked() -> bytes:
    """A frame of lz4 whose blocks depend on each other."""
    return bytes(cramjam.lz4.compress(PLAIN))


def lz4_with_checksum(damage: int) -> bytes:
    """A frame with a checksum of its content, right when ``damage`` is 0."""
    writer = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    writer.compress(PLAIN)
    frame = bytearray(bytes(writer.finish()))
    frame[-1] ^= damage
    return bytes(frame)


def odd(*, number: bytes = raw_records.varint(-1), delta: int = 1, header: bytes = b"", attributes: int = 0) -> bytes:
    """Three records, the second one of which is written in another way."""
    body = bytes([attributes]) + b"\0" + raw_records.varint(delta) + number + b"\x02v" + (header or b"\0")
    first, last = (raw_records.sized(raw_records.encode_fields(raw_records.Record(), at)) for at in (0, 2))
    return first + raw_records.sized(body) + last


STRANGE: dict[str, tuple[int, bytes, bool, bool]] = {
    # codec, payload, whether we take it, whether Apache Kafka's client reads it
    "gzip in two members": (GZIP, b"".join(compress(GZIP, half) for half in HALVES), True, True),
    "gzip and garbage": (GZIP, compress(GZIP, PLAIN) + b"garbage", False, True),
    "snappy in one raw block": (SNAPPY, bytes(cramjam.snappy.compress_raw(PLAIN)), True, True),
    "snappy and garbage": (SNAPPY, compress(SNAPPY, PLAIN) + b"garbage", False, False),
    "lz4 in two frames": (LZ4, b"".join(compress(LZ4, half) for half in HALVES), False, False),
    "lz4 and garbage": (LZ4, compress(LZ4, PLAIN) + b"garbage", False, True),
    "lz4 with linked blocks": (LZ4, linked(), False, False),
    "lz4 with a checksum": (LZ4, lz4_with_checksum(0), True, True),
    "lz4 with a wrong checksum": (LZ4, lz4_with_checksum(1), False, True),
    "zstd in two frames": (ZSTD, b"".join(compress(ZSTD, half) for half in HALVES), True, True),
    "zstd and garbage": (ZSTD, compress(ZSTD, PLAIN) + b"garbage", False, False),
    "zstd and a frame to skip": (
        ZSTD,
        compress(ZSTD, PLAIN) + bytes.fromhex("502a4d18 04000000 00000000"),
        False,
        True,
    ),
    **{
        f"{CODEC_NAMES[codec]}, {name}": (codec, compress(codec, data), taken, read)
        for codec in ALL
        for name, data, taken, read in (
            ("as it should be", odd(), True, True),
            ("a record fewer", raw_records.encode([raw_records.Record()] * 2), False, False),
            ("a record more", raw_records.encode([raw_records.Record()] * 4), False, False),
            ("a byte more", PLAIN + b"\0", False, False),
            ("attributes", odd(attributes=255), True, True),
            ("null as -2", odd(number=raw_records.varint(-2)), False, True),
            ("a length with zeros on top", odd(number=raw_records.varint(-1, 5)), True, True),
            ("a length beyond 32 bits", odd(number=b"\x81\x80\x80\x80\x10"), False, True),
            ("a length of six bytes", odd(number=raw_records.varint(-1, 6)), False, False),
            ("a delta twice", odd(delta=0), False, True),
            ("a header without a key", odd(header=b"\x02\x01\x01"), False, False),
            ("fewer headers than none", odd(header=b"\x01"), False, False),
        )
    },
}
"""Where the two differ we are stricter: clients do not agree on what such bytes mean, and none writes them."""


def strange_batch(codec: int, payload: bytes) -> bytes:
    return raw_batches.Batch(attributes=codec, record_count=3, last_offset_delta=2, payload=payload).encode()


@pytest.mark.parametrize("name", list(STRANGE))
def test_strange_batches_are_taken_or_not(name: str) -> None:
    codec, payload, taken, _ = STRANGE[name]
    if taken:
        assert check_deep(strange_batch(codec, payload)).count == 3
    else:
        with pytest.raises(InvalidMessageError):
            check_deep(strange_batch(codec, payload))


@pytest.mark.java
@pytest.mark.slow
def test_what_java_says_of_strange_batches(tmp_path: Path) -> None:
    """It reads everything that we take, and what it does with the others is written down."""
    path = tmp_path / "batches"
    path.write_bytes(b"".join(strange_batch(codec, payload) for codec, payload, _, _ in STRANGE.values()))
    printed = dict(zip(STRANGE, java("judge", path).splitlines(), strict=True))
    assert {name: printed[name] == "3" for name in STRANGE} == {name: read for name, (*_, read) in STRANGE.items()}, (
        printed
    )
    assert all(read for _, _, taken, read in STRANGE.values() if taken)


@pytest.mark.java
@pytest.mark.slow
def test_what_java_reads(tmp_path: Path) -> None:
    """All codecs in one file; its checksums and counts are checked there."""
    path = tmp_path / "batches"
    made = [build(MADE, codec=codec, base_offset=codec * len(MADE)) for codec in ALL]
    path.write_bytes(b"".join(made))
    printed = java("read", path).splitlines()
    assert printed == [line(record) for data in made for record in records(data)]

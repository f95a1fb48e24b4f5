"""Batches that clients make are read, and ours by them: kafka-python, and Apache Kafka's where its jars are named."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from fastlog.batch_codecs import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD
from fastlog.errors import MissingDependencyError
from fastlog.java import find_java
from fastlog.record_batches import Record, batches, build, check, check_deep, records

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


@pytest.mark.java
@pytest.mark.slow
def test_what_java_reads(tmp_path: Path) -> None:
    """All codecs in one file; its checksums and counts are checked there."""
    path = tmp_path / "batches"
    made = [build(MADE, codec=codec, base_offset=codec * len(MADE)) for codec in ALL]
    path.write_bytes(b"".join(made))
    printed = java("read", path).splitlines()
    assert printed == [line(record) for data in made for record in records(data)]

"""The files of a topic of record batches are Apache Kafka's: its tools read ours, it goes on with ours, we with its."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from fastlog.log.files import FileOps
from fastlog.log.kafka_files import read_topic_id
from fastlog.record_batches import Record, build, records
from tests.harness import real_kafka
from tests.harness.shared_log import DONE
from tests.harness.stored_batches import batch
from tests.unit.test_record_batch_log import BatchLog, some_batches

pytestmark = [real_kafka.is_there, pytest.mark.timeout(600)]

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def kafka(tmp_path: Path) -> real_kafka.Kafka:
    return real_kafka.Kafka(tmp_path / "kafka")


@contextmanager
def producer(kafka: real_kafka.Kafka, codec: str | None = None) -> Iterator[KafkaProducer]:
    made = KafkaProducer(bootstrap_servers=kafka.address, compression_type=codec, acks="all", linger_ms=5)
    try:
        yield made
    finally:
        made.close()


def consumed(kafka: real_kafka.Kafka, topic: str, count: int) -> list[tuple[int, bytes]]:
    """Offset and value of so many records from the beginning."""
    consumer = KafkaConsumer(bootstrap_servers=kafka.address, consumer_timeout_ms=60_000, check_crcs=True)
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        found = []
        for record in consumer:
            found.append((record.offset, record.value))
            if len(found) == count:
                break
        return found
    finally:
        consumer.close()


def stored(log: BatchLog) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for one in log.batches() for record in records(one.data)]


def test_its_tool_reads_ours_without_a_complaint(tmp_path: Path) -> None:
    """Segments to the last record, and indexes: compared with the batches they name, and by their own checks."""
    log = BatchLog(tmp_path, **{"log.file.size": "60000"})
    sent = some_batches(200)
    for number, data in enumerate(sent):
        assert log.append(data)[0] == DONE
        if number % 40 == 20:
            packed = build([Record(None, b"x" * 3000, 1_700_000_100_000 + number)], codec=1 + number // 40 % 4)
            assert log.append(packed)[0] == DONE
    log.log.flush()
    files = sorted(log.folder.glob("*.log")) + sorted(log.folder.glob("*.*index"))
    assert len(files) >= 9
    names = ",".join(map(str, files))
    said = real_kafka.run("kafka.tools.DumpLogSegments", "--files", names, "--deep-iteration", "--verify-index-only")
    assert said.count("| offset: ") == log.view.log_offset
    assert "isvalid: false" not in said
    for complaint in ("Mismatches", "Found", "not found", "Non-consecutive", "out of order"):
        assert complaint not in said, said[-3000:]
    said = real_kafka.run("kafka.tools.DumpLogSegments", "--files", names, "--index-sanity-check")
    assert said.count("passed sanity check") == len(files) - len(list(log.folder.glob("*.log")))


def test_it_goes_on_with_ours(tmp_path: Path, kafka: real_kafka.Kafka) -> None:
    """A topic made there, its files exchanged for ours: it reads all records, and writes behind them."""
    with kafka, producer(kafka) as made:
        made.send("t", b"its own").get(60)
    folder = kafka.log_dir / "t-0"
    log = BatchLog(tmp_path / "ours", **{"log.file.size": "60000"})
    for data in some_batches(150):
        assert log.append(data)[0] == DONE
    log.log.flush()
    ours = stored(log)
    for path in folder.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in log.folder.iterdir():
        if path.suffix in (".log", ".index", ".timeindex"):
            shutil.copy(path, folder)
    with kafka:
        assert consumed(kafka, "t", len(ours)) == ours
        with producer(kafka, "zstd") as made:
            assert made.send("t", b"after").get(60).offset == len(ours)
        assert consumed(kafka, "t", len(ours) + 1) == [*ours, (len(ours), b"after")]


def test_we_go_on_with_its(tmp_path: Path, kafka: real_kafka.Kafka) -> None:
    """Its directory with batches of each codec is recovered whole, found by offset, and appended to."""
    with kafka:
        for codec in CODECS:
            with producer(kafka, codec) as made:
                futures = [made.send("t", f"{codec} {number}".encode() * 20) for number in range(200)]
                assert [future.get(60).offset for future in futures]
        theirs = consumed(kafka, "t", 1000)
    log = BatchLog(tmp_path / "ours")
    shutil.rmtree(log.folder)
    shutil.copytree(kafka.log_dir / "t-0", log.folder)
    log.start({})
    assert (log.view.state, log.view.log_offset) == (0, 1000)
    assert log.view.topic_id == read_topic_id(log.folder, FileOps()) != bytes(16)
    assert stored(log) == theirs
    assert log.append(batch(b"ours")) == (DONE, [1000], 1001)
    assert log.batches()[-1].epoch > log.batches()[-2].epoch
    log.check_indexes()

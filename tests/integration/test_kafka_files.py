"""The files of a topic of record batches are Apache Kafka's: its tools read ours, it goes on with ours, we with its."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from fastlog.log import producer_snapshots
from fastlog.log.files import FileOps
from fastlog.log.kafka_files import read_topic_id
from fastlog.record_batches import Record, build, records
from tests.harness import real_kafka
from tests.harness.batch_load import Client
from tests.harness.kafka_python import sockets_may_stay_open
from tests.harness.shared_log import DONE
from tests.harness.stored_batches import batch
from tests.unit.test_producer_snapshots import DUPLICATE, Numbered
from tests.unit.test_producer_states import checkpoint, keeper_of
from tests.unit.test_producers import OLD_EPOCH, OUT_OF_SEQUENCE, Model
from tests.unit.test_record_batch_log import BatchLog, some_batches

pytestmark = [real_kafka.is_there, pytest.mark.timeout(600)]

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
NOT_LEADER = 6


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


@sockets_may_stay_open()
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


def numbered(producer: int, epoch: int, first: int, count: int) -> bytes:
    return batch(*[b"x"] * count, producer_id=producer, epoch=epoch, sequence=first)


def test_its_tool_reads_our_snapshots(tmp_path: Path) -> None:
    log = Numbered(tmp_path)
    for first in range(3):
        log.send(5, first, 2**3)
        log.send(2**62, 7, epoch=2)
    for producer in range(100, 120):
        log.send(producer, 0, 2)
    log.snapshot()
    (offset,) = log.snapshots()
    said = real_kafka.run("kafka.tools.DumpLogSegments", "--files", str(log.path(offset)))
    lines = [line for line in said.splitlines() if line.startswith("producerId: ")]
    entries = producer_snapshots.parse(log.path(offset).read_bytes())
    assert entries is not None
    assert len(lines) == len(entries) == 22
    for line, entry in zip(sorted(lines), sorted(entries, key=lambda one: f"producerId: {one.id} "), strict=True):
        assert line.startswith(f"producerId: {entry.id} producerEpoch: {entry.epoch} ")
        assert f"lastTimestamp: {entry.time_ms} " in line
        assert f"lastSequence: {entry.last_sequence}" in line
        assert f"lastOffset: {entry.last_offset}" in line
        assert f"offsetDelta: {entry.delta}" in line


@pytest.mark.parametrize("seed", range(2))
def test_it_judges_batches_as_the_model_does(kafka: real_kafka.Kafka, seed: int) -> None:
    """The model that ours is held against: the same answers to whatever producers number."""
    rng = random.Random(seed)
    codes = {DONE: 0, DUPLICATE: 0, OUT_OF_SEQUENCE: 45, OLD_EPOCH: 47}
    with kafka:
        client = Client(kafka.port)
        client.make_topic("t")
        model = Model()
        seen = set()
        for _ in range(300):
            producer, count = 1000 + rng.randrange(3), rng.randrange(1, 4)
            epoch, kept = model.producers.get(producer, (0, []))
            first = (kept[-1][0] + kept[-1][1]) % 2**31 if kept else rng.choice([0, 5, 2**31 - 3])
            kind = rng.random()
            if kind < 0.25 and kept:
                first, count, _ = rng.choice(kept[-8:])
            elif kind < 0.4:
                first = (first + rng.choice([-2, -1, 1, 2, 77])) % 2**31
            elif kind < 0.5:
                epoch = max(0, epoch + rng.choice([-1, 1, 1]))
                first = rng.choice([0, 0, 1])
            status, base = model.append(producer, epoch, first, count)
            found = (NOT_LEADER, -1)
            while found == (NOT_LEADER, -1):  # it has made the topic, and leads it a moment later
                found = client.produce(("t", 0), numbered(producer, epoch, first, count), -1)
            assert found == (codes[status], base)
            seen.add(status)
        client.close()
    assert seen == set(codes)


def test_it_knows_our_producers(tmp_path: Path, kafka: real_kafka.Kafka) -> None:
    """From our snapshot, also of a segment that has gone, and the batches behind it."""
    with kafka, producer(kafka) as made:
        made.send("t", b"its own").get(60)
    folder = kafka.log_dir / "t-0"
    log = Numbered(tmp_path / "ours", **{"log.file.size": "6000"})
    keeper = keeper_of(log)
    log.time_ms = time.time_ns() // 1_000_000  # there it is the time of records by which producers expire
    log.send(8, 5)
    for first in range(15):
        log.send(7, first, size=1000)
    assert len(log.segments()) == 3
    checkpoint(log, keeper)
    log.send(7, 15)
    log.log.flush()
    gone = log.segments()[0].path
    for path in (gone, gone.with_suffix(".index"), gone.with_suffix(".timeindex")):
        path.unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in log.folder.iterdir():
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            shutil.copy(path, folder)
    with kafka:
        client = Client(kafka.port)
        answers = [
            client.produce(("t", 0), numbered(*sent), -1)
            for sent in ((8, 0, 5, 1), (7, 0, 15, 1), (8, 0, 7, 1), (7, 0, 16, 1), (8, 0, 6, 1))
        ]
        client.close()
    assert answers == [(0, 0), (0, 16), (45, -1), (0, 17), (0, 18)]


def test_we_know_its_producers(tmp_path: Path, kafka: real_kafka.Kafka) -> None:
    """From its snapshot of a clean stop, and from its batches alone; and new ids begin above them."""
    with kafka:
        client = Client(kafka.port)
        client.make_topic("t")
        for sent in ((7, 0, 0, 3), (8, 4, 5, 1), (7, 0, 3, 1)):
            assert client.produce(("t", 0), numbered(*sent), -1)[0] == 0
        client.close()
    for case in ("whole", "without its snapshots"):
        log = Numbered(tmp_path / case)
        shutil.rmtree(log.folder)
        shutil.copytree(kafka.log_dir / "t-0", log.folder)
        assert log.snapshots()
        if case != "whole":
            for offset in log.snapshots():
                log.path(offset).unlink()
        log.start({})
        assert (log.view.state, log.view.log_offset, log.arena.largest_producer) == (0, 5, 8)
        assert [log.send(7, 3), log.send(8, 5, epoch=4), log.send(8, 5, epoch=3)] == [DUPLICATE, DUPLICATE, OLD_EPOCH]
        assert [log.send(7, 5), log.send(7, 4), log.send(8, 6, epoch=4)] == [OUT_OF_SEQUENCE, DONE, DONE]

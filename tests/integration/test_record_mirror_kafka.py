"""``fastlog mirror`` between an Apache Kafka and fastlog, both ways, with kill -9 of mirrors and brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fastlog import testing
from fastlog.testing import RunningBroker
from tests.harness import real_kafka
from tests.harness.broker import wait_until
from tests.harness.mirrors import MirrorProgram
from tests.harness.timing import PATIENCE

pytestmark = [real_kafka.is_there, pytest.mark.timeout(600)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOW_MS = round(time.time() * 1000)
"""Older records would go by their age."""
SESSION_MS = "1000"
SECONDS = 120.0
SETTINGS = {
    "group.min.session.timeout.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "log.cleaner.backoff.ms": 100,
    "log.initial.task.delay.ms": 100,
    "log.retention.check.interval.ms": 300,
}


class Row(NamedTuple):
    """A record as a consumer gets it, without its offset."""

    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_kafka.Kafka]:
    with real_kafka.Kafka(tmp_path_factory.mktemp("kafka"), settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(properties={"group.min.session.timeout.ms": "500"}) as running:
        yield running


def create(address: str, topic: str, partitions: int = 1, **settings: str) -> None:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, config=named)])[topic].result(SECONDS)


def read(address: str, topic: str, partition: int = 0) -> list[tuple[int, Row]]:
    """Offset and record of all that is committed in a partition; nothing where there is no topic."""
    settings = {"bootstrap.servers": address, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    found: list[tuple[int, Row]] = []
    try:
        if topic not in consumer.list_topics(timeout=SECONDS).topics:
            return []
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            one = consumer.poll(SECONDS)
            assert one is not None
            if one.error():
                return found
            headers: Any = tuple(one.headers() or ())
            offset: Any = one.offset()
            found.append((offset, Row(one.key(), one.value(), one.timestamp()[1], headers)))
    finally:
        consumer.close()


def rows(address: str, topic: str, partition: int = 0) -> list[Row]:
    return [row for _, row in read(address, topic, partition)]


def produce(
    address: str,
    topic: str,
    count: int,
    *,
    codec: str = "none",
    word: str = "",
    with_keys: bool = False,
    later_ms: int = 0,
) -> None:
    """``with_keys``: each has one, as topics that are compacted want it."""
    producer = Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 2})
    for number in range(count):
        producer.produce(
            topic,
            key=None if number % 4 == 0 and not with_keys else f"{word}{number % 7}".encode(),
            value=None if number % 9 == 8 else f"{word} {codec} {number} ".encode() * 5,
            timestamp=NOW_MS + later_ms + number,
            headers=[("n", str(number).encode()), ("none", None)] if number % 3 == 0 else None,
        )
    assert producer.flush(SECONDS) == 0


def mirror(source: str, target: str, topics: str, directory: Path) -> MirrorProgram:
    consumer = {
        "bootstrap.servers": source,
        "groupid": f"mirror-{topics}".replace(",", "-"),
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": "100",
        "metadata.max.age.ms": "300",
        "autocommit.interval.ms": "100",
        "fetch.size": "20000",
    }
    told = {
        "sources": {"source": consumer},
        "target": {"bootstrap.servers": target},
        "settings": {"mirror.topics.whitelist": topics},
        "report": str(directory / "report.json"),
    }
    return MirrorProgram(told, directory / "mirror.said")


def wait_same(program: MirrorProgram, what: str, is_so: Callable[[], bool]) -> None:
    try:
        wait_until(what, is_so, SECONDS, 0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{program.said}") from None


def has_gaps(address: str, topic: str) -> bool:
    """Whether offsets are left out between the first and the last."""
    offsets = [offset for offset, _ in read(address, topic)]
    return bool(offsets) and offsets[-1] - offsets[0] >= len(offsets)


def wait_last(program: MirrorProgram, address: str, topic: str, last: Row) -> None:
    wait_same(program, "all is there", lambda: rows(address, topic)[-1:] == [last])


def wait_count(program: MirrorProgram, address: str, topic: str, partition: int, count: int) -> None:
    wait_same(program, "all is there", lambda: len(rows(address, topic, partition)) >= count)


def test_from_kafka(kafka: real_kafka.Kafka, broker: RunningBroker, tmp_path: Path) -> None:
    """Every codec, keys, headers, times and nulls, while the mirror is killed again and again."""
    create(kafka.address, "plain", 2)
    with mirror(kafka.address, broker.address, "plain", tmp_path) as program:
        for codec in CODECS:
            program.start()
            produce(kafka.address, "plain", 1000, codec=codec)
            wait_same(program, "it goes on", lambda: len(rows(broker.address, "plain")) > 0)
            program.kill()
        program.start()
        produce(kafka.address, "plain", 10, word="last")
        for partition in (0, 1):
            wanted = rows(kafka.address, "plain", partition)
            assert len(wanted) > 1000
            wait_count(program, broker.address, "plain", partition, len(wanted))
            assert rows(broker.address, "plain", partition) == wanted, program.said
        assert program.stop() == 0


def test_transactions_and_what_was_compacted(kafka: real_kafka.Kafka, broker: RunningBroker, tmp_path: Path) -> None:
    """Offsets have gaps: ends of transactions, those that were aborted, and what the cleaner took; with kills."""
    create(kafka.address, "gaps", 1, cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01")
    create(kafka.address, "bank", 1)
    for turn in range(8):  # a segment ends where a record is later than its first by segment.ms
        produce(
            kafka.address,
            "gaps",
            40,
            word=f"{turn} " if turn % 3 == 0 else "same",
            with_keys=True,
            later_ms=1000 * (turn - 9),
        )
    wait_until("the cleaner has taken something", lambda: has_gaps(kafka.address, "gaps"), SECONDS, 0.5)
    with mirror(kafka.address, broker.address, "gaps,bank", tmp_path) as program:
        producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "t", "linger.ms": 2})
        producer.init_transactions(SECONDS)
        for turn in range(12):
            program.start()
            for part in range(4):
                producer.begin_transaction()
                for number in range(25):
                    producer.produce(
                        "bank", key=b"k", value=b"%d.%d.%d" % (turn, part, number), timestamp=NOW_MS + turn
                    )
                if part % 3 == 1:
                    producer.abort_transaction(SECONDS)
                else:
                    producer.commit_transaction(SECONDS)
            produce(
                kafka.address,
                "gaps",
                40,
                word=f"{turn} " if turn % 3 == 0 else "same",
                codec=CODECS[turn % 5],
                with_keys=True,
            )
            time.sleep(0.05 * turn)
            program.kill()
        program.start()
        for topic in ("bank", "gaps"):
            # the cleaner goes on, so of a compacted topic each key's last record is what both have to have
            produce(kafka.address, topic, 1, word="the end", with_keys=True)
            last = rows(kafka.address, topic)[-1]
            wait_last(program, broker.address, topic, last)
        wanted = rows(kafka.address, "bank")
        assert len(wanted) == 12 * 3 * 25 + 1
        assert rows(broker.address, "bank") == wanted, program.said
        left, there = read(kafka.address, "gaps"), rows(broker.address, "gaps")
        behind = iter(there)
        assert all(row in behind for _, row in left), "what is left there is here, in its order"
        assert program.stop() == 0


def test_into_kafka(kafka: real_kafka.Kafka, broker: RunningBroker, tmp_path: Path) -> None:
    """The way back, while the mirror and the Kafka are killed."""
    create(broker.address, "back", 2)
    with mirror(broker.address, kafka.address, "back", tmp_path) as program:
        for codec in CODECS:
            program.start()
            produce(broker.address, "back", 1000, codec=codec)
            time.sleep(0.3)
            program.kill()
        program.start()
        produce(broker.address, "back", 1000, word="b")
        wait_same(program, "it goes on", lambda: len(rows(kafka.address, "back")) > 0)
        assert kafka.process is not None
        kafka.process.kill()
        kafka.process.wait(PATIENCE)
        produce(broker.address, "back", 1000, word="c")
        kafka.__enter__()
        for partition in (0, 1):
            wanted = rows(broker.address, "back", partition)
            wait_count(program, kafka.address, "back", partition, len(wanted))
            assert rows(kafka.address, "back", partition) == wanted, program.said
        assert program.stop() == 0


def test_from_a_cluster_whose_brokers_lead_partitions_each(
    kafka: real_kafka.Kafka, broker: RunningBroker, tmp_path: Path
) -> None:
    """Each partition comes from its leader; one whose leader is away waits for it, and the others do not."""
    with real_kafka.Kafka(tmp_path / "second", settings=SETTINGS, beside=kafka) as second:
        admin = AdminClient({"bootstrap.servers": kafka.address})
        wait_until("both brokers are there", lambda: len(admin.list_topics(timeout=SECONDS).brokers) == 2, SECONDS)
        topic = NewTopic("led", 4, replica_assignment=[[1], [2], [2], [1]])
        admin.create_topics([topic])["led"].result(SECONDS)
        with mirror(kafka.address, broker.address, "led", tmp_path) as program:
            program.start()
            produce(kafka.address, "led", 2000, codec="lz4")
            for partition in range(4):
                wanted = rows(kafka.address, "led", partition)
                assert wanted
                wait_count(program, broker.address, "led", partition, len(wanted))
            second.__exit__(None, None, None)
            producer = Producer({"bootstrap.servers": kafka.address})
            producer.produce("led", b"while one is away", partition=3, timestamp=NOW_MS)
            assert producer.flush(SECONDS) == 0
            one = Row(None, b"while one is away", NOW_MS, ())
            wait_same(program, "the others go on", lambda: rows(broker.address, "led", 3)[-1:] == [one])
            second.__enter__()
            produce(kafka.address, "led", 2000, word="after")
            for partition in range(4):
                wanted = rows(kafka.address, "led", partition)
                wait_count(program, broker.address, "led", partition, len(wanted))
                assert rows(broker.address, "led", partition) == wanted, program.said
            assert program.stop() == 0

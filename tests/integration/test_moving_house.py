"""A whole Apache Kafka moves here and back again: topics, records, producers, groups, settings; see docs/moving.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from fastlog import testing
from tests.harness import real_kafka
from tests.harness.checkout import ROOT
from tests.harness.command_line import Commands
from tests.harness.timing import PATIENCE

pytestmark = [real_kafka.is_there, pytest.mark.timeout(900)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
SETTINGS = {"retention.ms": "86400000000", "segment.bytes": "1048576", "max.message.bytes": "500000"}


class Read(NamedTuple):
    """A record as a consumer gets it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: tuple[tuple[str, bytes], ...]


def all_of(address: str, topic: str) -> list[Read]:
    """Every record of a topic, partition by partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found, ends = [], set()
    while len(ends) < PARTITIONS:
        one = consumer.poll(PATIENCE)
        assert one is not None
        if one.error():
            ends.add(one.partition())
        else:
            fields = (one.partition(), one.offset(), one.key(), one.value(), one.timestamp()[1], tuple(one.headers()))
            found.append(Read(*fields))
    consumer.close()
    return sorted(found, key=lambda each: each[:2])


def produce(address: str, topic: str, count: int, *, codec: str = "none", word: str = "", **settings: object) -> None:
    producer = Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 5, **settings})
    failed = []
    for number in range(count):
        producer.produce(
            topic,
            f"{word}{codec} {number}".encode() * 10,
            key=str(number).encode(),
            partition=number % PARTITIONS,
            headers=[("n", str(number).encode())],
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(PATIENCE) == 0
    assert failed == []


def commit_half(address: str, group: str, topic: str, count: int) -> dict[int, int]:
    """Read some records in a group, and where it stands then."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    for _ in range(count):
        one = consumer.poll(PATIENCE)
        assert one is not None and not one.error()
    consumer.commit(asynchronous=False)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found = {row.partition: row.offset for row in consumer.committed(places, PATIENCE)}
    consumer.close()
    return found


def committed(address: str, group: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found = {row.partition: row.offset for row in consumer.committed(places, PATIENCE)}
    consumer.close()
    return found


def settings_of(address: str, topic: str) -> dict[str, str]:
    client = AdminClient({"bootstrap.servers": address})
    (future,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    found = future.result(PATIENCE)
    return {name: found[name].value for name in SETTINGS}


def topic_id(address: str, topic: str) -> str:
    client = AdminClient({"bootstrap.servers": address})
    (future,) = client.describe_topics(TopicCollection([topic])).values()
    return str(future.result(PATIENCE).topic_id)


@pytest.fixture
def kafka(tmp_path: Path) -> real_kafka.Kafka:
    return real_kafka.Kafka(tmp_path / "kafka")


@pytest.fixture
def fastlog(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def make_orders(address: str) -> None:
    """A topic with settings, and records in each codec, numbered by their producers and not."""
    client = AdminClient({"bootstrap.servers": address})
    for future in client.create_topics([NewTopic("orders", PARTITIONS, 1, config=SETTINGS)]).values():
        future.result(PATIENCE)
    for codec in CODECS:
        produce(address, "orders", 3000, codec=codec)
        produce(address, "orders", 300, codec=codec, word="i", **{"enable.idempotence": True})


def sound(log_directory: Path) -> None:
    """Kafka's own tool reads each segment and index of the topic without a complaint."""
    found = sorted(log_directory.glob("orders-*/*"))
    names = ",".join(str(path) for path in found if path.suffix in (".log", ".index", ".timeindex"))
    said = real_kafka.run("kafka.tools.DumpLogSegments", "--files", names, "--deep-iteration", "--verify-index-only")
    assert "isvalid: false" not in said
    for complaint in ("Mismatches", "Found", "not found", "Non-consecutive", "out of order"):
        assert complaint not in said, said[-3000:]


def of_the_guide(word: str, places: dict[str, Path]) -> list[list[str]]:
    """The words behind ``fastlog`` of each command of docs/moving.md that begins so, with paths of the test's own."""
    text = (ROOT / "docs" / "moving.md").read_text()
    lines = re.findall(rf"^ *fastlog ({word} .*)$", text, re.MULTILINE)
    for there, here in places.items():
        lines = [line.replace(there, str(here)) for line in lines]
    assert len(lines) == 2 and not any("/var/" in line for line in lines), lines
    return [shlex.split(line) for line in lines]


def test_there_and_back(tmp_path: Path, kafka: real_kafka.Kafka, fastlog: Commands) -> None:
    with kafka:
        make_orders(kafka.address)
        there = all_of(kafka.address, "orders")
        stood = commit_half(kafka.address, "billing", "orders", 5000)
        identity = topic_id(kafka.address, "orders")
    assert len(there) == 5 * 3300
    before = contents(kafka.log_dir)
    house = tmp_path / "fastlog"
    for words in of_the_guide("import", {"/var/lib/kafka/data": kafka.log_dir, "/var/lib/fastlog/logs": house}):
        assert not house.exists()
        done = fastlog(*words)
        assert done.code == 0, done

    with testing.broker(directory=tmp_path / "run", log_dirs=[str(house)]) as broker:
        assert all_of(broker.address, "orders") == there
        assert settings_of(broker.address, "orders") == SETTINGS
        assert topic_id(broker.address, "orders") == identity
        assert committed(broker.address, "billing", "orders") == stood
        for codec in CODECS:
            produce(broker.address, "orders", 900, codec=codec, word="ours", **{"enable.idempotence": True})
        here = all_of(broker.address, "orders")
        assert len(here) == len(there) + 5 * 900 and set(there) < set(here)
        went_on = commit_half(broker.address, "billing", "orders", 2000)
        assert went_on != stood and all(went_on[each] >= stood[each] for each in stood)
        log = broker.log_text()
        assert " WARNING " not in log and " ERROR " not in log, log
    assert contents(kafka.log_dir) == before

    ours = contents(house)
    back = real_kafka.Kafka(tmp_path / "back")
    for words in of_the_guide("export", {"/var/lib/fastlog/logs": house, "/var/lib/kafka-new/data": back.log_dir}):
        assert len(contents(back.log_dir)) == 2
        done = fastlog(*words)
        assert done.code == 0, done
    with back:
        assert all_of(back.address, "orders") == here
        assert settings_of(back.address, "orders") == SETTINGS
        assert topic_id(back.address, "orders") == identity
        assert committed(back.address, "billing", "orders") == went_on
        produce(back.address, "orders", 300, codec="zstd", word="there", **{"enable.idempotence": True})
        assert len(all_of(back.address, "orders")) == len(here) + 300
        assert commit_half(back.address, "billing", "orders", 1000) != went_on
    sound(back.log_dir)
    assert contents(house) == ours

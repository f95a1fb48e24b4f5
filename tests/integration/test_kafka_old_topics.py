"""Clients of today, unchanged, at topics of Kafka 0.7: they read to the end, from anywhere, and in groups."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions

from fastlog import SimpleConsumer
from tests import reference
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.timing import PATIENCE
from tests.integration.test_kafka_clients import KCAT, READERS, Client, needs_kcat

kafka = pytest.importorskip("kafka", reason="kafka-python is installed")
KINDS = ["plain-0", "plain-1", "gzip", "snappy", "nested", "empty"]
COUNT = 60


def payloads(kind: str) -> list[bytes]:
    if kind == "empty":
        return [b""] * 5
    return [b"%s message %d " % (kind.encode(), number) * (number % 4) for number in range(COUNT)]


def stored(kind: str) -> bytes:
    """What a producer of 0.7 sends of these."""
    sent = payloads(kind)
    if kind in ("gzip", "snappy"):
        codec = 1 if kind == "gzip" else 2
        return b"".join(raw.wrapper(raw.message_set(sent[at : at + 20]), codec) for at in range(0, COUNT, 20))
    if kind == "nested":
        inner = raw.entry(sent[0]) + raw.wrapper(raw.message_set(sent[1:-1], 0), 2) + raw.entry(sent[-1])
        return raw.wrapper(inner, 1)
    return raw.message_set(sent, 0 if kind == "plain-0" else 1)


def expected(kind: str) -> list[tuple[int, bytes]]:
    found = reference.as_records(stored(kind))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"num.partitions": 1, "topic.partition.count.map": "spread:3"}
    with Broker(tmp_path_factory.mktemp("old"), processors=2, settings=settings) as running:
        for kind in KINDS:
            put(running, kind, stored(kind))
        yield running


def put(broker: Broker, topic: str, data: bytes, partition: int = 0) -> int:
    with broker.connect() as old:
        told = old.produce_ack(topic, partition, data, raw.FLUSHED)
        assert told.error == 0
    return told.next_offset


@pytest.fixture(scope="module")
def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_reads_all_and_stops_at_the_end(address: str, kind: str, reader: Client) -> None:
    """With checksums looked at; null keys, and no times."""
    found = reader.read(address, kind, 0)
    assert [(one.offset, one.value or b"") for one in found] == expected(kind)
    assert {(one.key, one.headers, one.time_ms) for one in found} == {(None, (), -1)}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["plain-1", "gzip", "nested"])
def test_each_begins_anywhere(address: str, kind: str, reader: Client) -> None:
    """Inside of a message, of a compressed set, and at the end, where there is nothing."""
    every = expected(kind)
    for offset in (every[7][0] - 1, every[7][0], every[31][0] + 1, every[-1][0], every[-1][0] + 1):
        found = reader.read(address, kind, offset)
        assert [(one.offset, one.value or b"") for one in found] == [one for one in every if one[0] >= offset]


@needs_kcat
def test_the_last_ones_as_consoles_ask_for_them(address: str) -> None:
    """kcat's -o -5 is 5 bytes before the end here: the last message."""
    command = [str(KCAT), "-b", address, "-C", "-t", "plain-1", "-p", "0", "-o", "-5", "-e", "-q", "-J"]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["offset"] for line in lines] == [expected("plain-1")[-1][0]]


def test_a_group_commits_and_goes_on_whoever_reads(address: str, broker: Broker) -> None:
    """In the middle of a set, from one client to another; and fastlog's own, from the number that stands there."""
    every = expected("gzip")
    settings = {"bootstrap.servers": address, "group.id": "both", "auto.offset.reset": "earliest"}
    confluent = Consumer(settings | {"enable.auto.commit": False})
    confluent.subscribe(["gzip"])
    found = []
    until = time.monotonic() + PATIENCE
    while len(found) < 33 and time.monotonic() < until:
        message = confluent.poll(0.2)
        if message is not None and not message.error():
            found.append((message.offset(), message.value() or b""))
            last = message
    confluent.commit(last, asynchronous=False)
    confluent.close()
    python = kafka.KafkaConsumer(
        "gzip",
        bootstrap_servers=address,
        group_id="both",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE * 1000),
    )
    while len(found) < 47:
        one = next(python)
        found.append((one.offset, one.value or b""))
    python.commit({kafka.TopicPartition("gzip", 0): kafka.OffsetAndMetadata(every[39][0] + 1, "", -1)})
    python.close()
    assert found == every[:47]
    (committed,) = Consumer(settings).committed([TopicPartition("gzip", 0)], timeout=PATIENCE)
    assert committed.offset == every[39][0] + 1
    with SimpleConsumer("127.0.0.1", broker.port) as own:
        assert [one.payload for one in own.fetch("gzip", 0, committed.offset)] == [value for _, value in every[40:]]


def test_times_lead_to_segments(address: str) -> None:
    python = kafka.KafkaConsumer(bootstrap_servers=address, group_id=None)
    place = kafka.TopicPartition("plain-0", 0)
    now = round(time.time() * 1000)
    assert python.offsets_for_times({place: now - 3_600_000})[place].offset == 0
    assert python.offsets_for_times({place: now + 3_600_000})[place] is None
    assert python.end_offsets([place])[place] == expected("plain-0")[-1][0] + 1
    python.close()


def test_a_topic_is_shown_grown_and_deleted(address: str, broker: Broker) -> None:
    """By consoles of today; what it is stands among its settings, which they cannot change."""
    put(broker, "spread", raw.entry(b"x"), 1)
    admin = AdminClient({"bootstrap.servers": address})
    assert set(admin.list_topics(timeout=PATIENCE).topics["spread"].partitions) == {0, 1, 2}
    resource = ConfigResource("TOPIC", "spread")
    (found,) = admin.describe_configs([resource]).values()
    settings = {name: entry.value for name, entry in found.result(PATIENCE).items()}
    assert (settings["fastlog.format"], settings["fastlog.offsets"]) == ("messages", "bytes")
    assert all(entry.is_read_only for entry in found.result().values())
    for name, count in (("spread", 3), ("spread", 4)):
        grown = admin.create_partitions([NewPartitions(name, count)])[name]
        if count == 3:
            with pytest.raises(KafkaException, match="no increase"):
                grown.result(PATIENCE)
        else:
            grown.result(PATIENCE)
    assert set(admin.list_topics("spread", PATIENCE).topics["spread"].partitions) == {0, 1, 2, 3}
    with broker.connect() as old:
        assert old.produce_ack("spread", 3, raw.entry(b"y"), raw.FLUSHED).error == 0
    admin.delete_topics(["spread"])["spread"].result(PATIENCE)
    wait_until("it is gone", lambda: "spread" not in admin.list_topics(timeout=PATIENCE).topics)
    wait_until("its files are gone", lambda: not list(broker.log_dirs[0].glob("spread-*/*.kafka")))


def test_a_producer_of_today_is_told_at_once(address: str) -> None:
    errors = []
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": False})
    producer.produce("plain-0", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE) == 0
    assert [error.code() for error in errors] == [43]


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_reading_survives_any_process(tmp_path_factory: pytest.TempPathFactory, reader: Client) -> None:
    """Processors and the whole broker are killed; whoever reads again finds the same records at the same offsets."""
    data = b"".join(stored(kind) for kind in KINDS) * 5
    records = reference.as_records(data)
    with Broker(tmp_path_factory.mktemp("killed"), processors=2, settings={"num.partitions": 1}) as broker:
        put(broker, "t", data)
        for role in ("processor-0", "processor-1", "coordinator", None):
            found = reader.read(f"127.0.0.1:{broker.port}", "t", 0)
            assert [(one.offset, one.value or b"") for one in found] == records
            if role is not None:
                broker.wait_replaced(role, broker.kill(role))
        broker.kill_all()
        broker.start()
        found = reader.read(f"127.0.0.1:{broker.port}", "t", 0)
        assert [(one.offset, one.value or b"") for one in found] == records

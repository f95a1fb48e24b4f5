"""Clients of today, unchanged: each writes with every codec what each of the others reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.harness.broker import KEPT, Broker
from tests.harness.raw_client import entry
from tests.harness.timing import PATIENCE

kafka = pytest.importorskip("kafka", reason="kafka-python is installed")
KCAT = shutil.which("kcat")
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COUNT = 300
FIRST_MS = 1_700_000_000_000


class Message(NamedTuple):
    """A record as every client knows it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    time_ms: int = -1


def messages(count: int = COUNT) -> list[Message]:
    """With keys, headers and tombstones, and every one at a time of its own."""
    return [
        Message(
            number,
            None if number % 10 == 3 else b"key-%d" % number,
            None if number % 5 == 2 else b"value %d " % number * (number % 11),
            (("h", b"%d" % number), ("empty", b"")) if number % 3 == 1 else (),
            FIRST_MS + number,
        )
        for number in range(count)
    ]


class Client(Protocol):
    """What the tests ask of a client."""

    def produce(self, address: str, topic: str, codec: str, sent: list[Message], acks: str) -> None:
        """Send all to partition 0 and wait for the acknowledgements."""

    def read(self, address: str, topic: str, offset: int) -> list[Message]:
        """All from an offset up to the end, where the client stops by itself."""


class Confluent:
    """confluent-kafka, which is librdkafka."""

    def produce(self, address: str, topic: str, codec: str, sent: list[Message], acks: str) -> None:
        errors: list[Any] = []
        offsets: list[int] = []

        def told(error: Any, message: Any) -> None:
            (errors if error else offsets).append(error or message.offset())

        settings = {"bootstrap.servers": address, "compression.codec": codec, "acks": acks, "linger.ms": 20}
        producer = Producer(settings | {"enable.idempotence": acks == "all"})
        for one in sent:
            producer.produce(
                topic, one.value, one.key, 0, on_delivery=told, timestamp=one.time_ms, headers=list(one.headers)
            )
        assert producer.flush(PATIENCE) == 0
        assert not errors
        if acks != "0":
            assert offsets == list(range(offsets[0], offsets[0] + len(sent)))

    def read(self, address: str, topic: str, offset: int) -> list[Message]:
        found = []
        settings = {"bootstrap.servers": address, "group.id": "none", "enable.partition.eof": True}
        consumer = Consumer(settings | {"enable.auto.commit": False, "fetch.wait.max.ms": 100})
        consumer.assign([TopicPartition(topic, 0, offset)])
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                assert message.error().name() == "_PARTITION_EOF"
                assert consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=False)[1] == message.offset()
                break
            headers = tuple(message.headers() or ())
            stamp = message.timestamp()[1]
            found.append(Message(message.offset(), message.key(), message.value(), headers, stamp))
        consumer.close()
        return found


class KafkaPython:
    """kafka-python, which has no C."""

    def produce(self, address: str, topic: str, codec: str, sent: list[Message], acks: str) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=acks == "all",  # which is its default
            linger_ms=20,
        )
        futures = [
            producer.send(topic, one.value, one.key, list(one.headers), partition=0, timestamp_ms=one.time_ms)
            for one in sent
        ]
        producer.flush(PATIENCE)
        offsets = [future.get(PATIENCE).offset for future in futures]
        producer.close()
        if acks != "0":
            assert offsets == list(range(offsets[0], offsets[0] + len(sent)))

    def read(self, address: str, topic: str, offset: int) -> list[Message]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=address, group_id=None, enable_auto_commit=False, consumer_timeout_ms=int(PATIENCE * 1000)
        )
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, offset)
        end = consumer.end_offsets([place])[place]
        found = []
        while consumer.position(place) < end:
            one = next(consumer)
            found.append(Message(one.offset, one.key, one.value, tuple(one.headers), one.timestamp))
        consumer.close()
        return found


class Kcat:
    """kcat, as Debian has it: librdkafka of 2022, which compresses nothing for a broker that offers no Produce 0."""

    def produce(self, address: str, topic: str, codec: str, sent: list[Message], acks: str) -> None:
        lines = b"".join(b"%b\t%b\n" % (one.key or b"", one.value or b"") for one in sent)
        self._run(
            address, "-P", "-t", topic, "-p", "0", "-K", "\t", "-Z", "-z", codec, "-X", f"acks={acks}", data=lines
        )

    def read(self, address: str, topic: str, offset: int) -> list[Message]:
        data = self._run(address, "-C", "-t", topic, "-p", "0", "-o", str(offset), "-e", "-q", "-J")
        found = []
        for line in data.decode().splitlines():
            one = json.loads(line)
            headers = one.get("headers") or []
            pairs = tuple((name, value.encode()) for name, value in zip(headers[::2], headers[1::2], strict=True))
            key, value = (None if one[name] is None else one[name].encode() for name in ("key", "payload"))
            found.append(Message(one["offset"], key, value, pairs, one["ts"]))
        return found

    def _run(self, address: str, *arguments: str, data: bytes = b"") -> bytes:
        command = [str(KCAT), "-b", address, *arguments]
        done = subprocess.run(command, input=data, capture_output=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


needs_kcat = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")
WRITERS = [Confluent(), KafkaPython()]
READERS = [
    pytest.param(Confluent(), id="confluent"),
    pytest.param(KafkaPython(), id="kafka-python"),
    pytest.param(Kcat(), id="kcat", marks=needs_kcat),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("today"), processors=2, settings={"num.partitions": 1} | KEPT) as running:
        yield running


@pytest.fixture(scope="module")
def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def name_of(client: Client) -> str:
    return type(client).__name__


@pytest.fixture(scope="module")
def written(address: str) -> dict[tuple[str, str], str]:
    """Topics by writer and codec, each with all messages."""
    found = {}
    for number, (writer, codec) in enumerate((writer, codec) for writer in WRITERS for codec in CODECS):
        topic = f"{name_of(writer)}-{codec}"
        writer.produce(address, topic, codec, messages(), ("all", "1")[number % 2])
        found[name_of(writer), codec] = topic
    return found


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS, ids=name_of)
def test_what_one_writes_every_other_reads(
    address: str, written: dict[tuple[str, str], str], writer: Client, codec: str, reader: Client
) -> None:
    """From the beginning to the end, where it stops: keys, headers, tombstones and times are as they were."""
    topic = written[name_of(writer), codec]
    assert reader.read(address, topic, 0) == messages()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("offset", [1, 150, COUNT - 1, COUNT])
def test_reading_begins_where_it_is_wanted(
    address: str, written: dict[tuple[str, str], str], offset: int, reader: Client
) -> None:
    """Inside a batch too; at the end there is nothing."""
    assert reader.read(address, written["Confluent", "zstd"], offset) == messages()[offset:]


def test_seeking_by_time(address: str, written: dict[tuple[str, str], str]) -> None:
    topic = written["KafkaPython", "lz4"]
    python = kafka.KafkaConsumer(bootstrap_servers=address, group_id=None)
    place = kafka.TopicPartition(topic, 0)
    confluent = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    for asked, offset in ((0, 0), (FIRST_MS + 123, 123), (FIRST_MS + COUNT - 1, COUNT - 1)):
        found = python.offsets_for_times({place: asked})[place]
        assert (found.offset, found.timestamp) == (offset, FIRST_MS + offset)
        (told,) = confluent.offsets_for_times([TopicPartition(topic, 0, asked)], timeout=PATIENCE)
        assert told.offset == offset
    assert python.offsets_for_times({place: FIRST_MS + COUNT})[place] is None
    assert python.beginning_offsets([place]) == {place: 0}
    assert python.end_offsets([place]) == {place: COUNT}
    python.close()
    confluent.close()


@pytest.mark.parametrize("writer", WRITERS, ids=name_of)
def test_without_acknowledgements(address: str, writer: Client) -> None:
    topic = f"silent-{name_of(writer)}"
    writer.produce(address, topic, "gzip", messages(50), "1")
    writer.produce(address, topic, "gzip", messages(50), "0")
    until = time.monotonic() + PATIENCE
    while len(found := Confluent().read(address, topic, 50)) < 50 and time.monotonic() < until:
        pass
    assert [one.value for one in found] == [one.value for one in messages(50)]


@needs_kcat
@pytest.mark.parametrize("codec", CODECS)
def test_lines_that_kcat_sends(broker: Broker, address: str, codec: str) -> None:
    """They are compressed on their way and in the log: what is stored is a part of what was sent.

    librdkafka of that time compresses only where Produce 0 is offered, and with lz4 only where FindCoordinator is.
    """
    topic = f"kcat-{codec}"
    sent = [one._replace(value=b"a line that is long enough " * 5 if one.value else None) for one in messages()]
    Kcat().produce(address, topic, codec, sent, "all")
    found = Confluent().read(address, topic, 0)
    assert [(one.offset, one.key, one.value) for one in found] == [(one.offset, one.key, one.value) for one in sent]
    size = sum(len(one.key or b"") + len(one.value or b"") for one in sent)
    stored = sum(path.stat().st_size for path in broker.log_dirs[0].glob(f"{topic}-0/*.log"))
    assert (stored < size) == (codec != "none")


def test_what_there_is_can_be_listed(address: str, written: dict[tuple[str, str], str], broker: Broker) -> None:
    """Topics of 0.7 as well as those of today."""
    with broker.connect() as old:
        assert old.produce_ack("of-0.7", 0, entry(b"x")).error == 0
    admin = AdminClient({"bootstrap.servers": address})
    listed = admin.list_topics(timeout=PATIENCE)
    assert set(written.values()) <= set(listed.topics)
    assert set(listed.topics["of-0.7"].partitions) == {0}
    assert listed.cluster_id and list(listed.brokers) == [0]
    python = kafka.KafkaConsumer(bootstrap_servers=address, group_id=None)
    assert set(written.values()) <= python.topics()
    assert python.partitions_for_topic(written["Confluent", "none"]) == {0}
    python.close()


def test_consoles_make_and_delete_topics(address: str) -> None:
    """confluent-kafka's and kafka-python's; each sees what the other made, and that it is gone."""
    confluent = AdminClient({"bootstrap.servers": address})
    python = kafka.KafkaAdminClient(bootstrap_servers=address)
    confluent.create_topics([NewTopic("made-c", 3, 1)])["made-c"].result(PATIENCE)
    python.create_topics({"made-p": {"num_partitions": 2, "replication_factor": 1}})
    found = {row["name"]: len(row["partitions"]) for row in python.describe_topics(["made-c", "made-p"])}
    assert found == {"made-c": 3, "made-p": 2}
    assert len(confluent.list_topics("made-p", PATIENCE).topics["made-p"].partitions) == 2
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        confluent.create_topics([NewTopic("made-p", 3, 1)])["made-p"].result(PATIENCE)
    confluent.delete_topics(["made-p"])["made-p"].result(PATIENCE)
    python.delete_topics(["made-c"])
    assert not {"made-c", "made-p"} & (set(python.list_topics()) | set(confluent.list_topics(timeout=PATIENCE).topics))
    python.close()


def test_consoles_change_settings(address: str) -> None:
    """confluent-kafka's and kafka-python's; each sees what the other made of them."""
    confluent = AdminClient({"bootstrap.servers": address})
    python = kafka.KafkaAdminClient(bootstrap_servers=address)
    confluent.create_topics([NewTopic("changed", 2, 1, config={"retention.ms": "60000"})])["changed"].result(PATIENCE)
    place = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "changed")

    def change(kind: AlterConfigOpType, name: str, value: str | None) -> None:
        entry = ConfigEntry(name, value, incremental_operation=kind)
        wanted = ConfigResource(ConfigResource.Type.TOPIC, "changed", incremental_configs=[entry])
        confluent.incremental_alter_configs([wanted])[wanted].result(PATIENCE)

    def own() -> dict[str, str]:
        rows = python.describe_configs([place])["topic"]["changed"]
        return {name: row["value"] for name, row in rows.items() if row["config_source"] == "DYNAMIC_TOPIC_CONFIG"}

    change(AlterConfigOpType.APPEND, "cleanup.policy", "compact")
    change(AlterConfigOpType.DELETE, "retention.ms", None)
    assert own() == {"cleanup.policy": "delete,compact"}
    python.alter_configs([kafka.admin.ConfigResource(place.resource_type, place.name, {"segment.bytes": "5000"})])
    assert own() == {"cleanup.policy": "delete,compact", "segment.bytes": "5000"}
    with pytest.raises(KafkaException, match="Unknown topic config name"):
        change(AlterConfigOpType.SET, "nobody.knows", "1")
    wanted = ConfigResource(ConfigResource.Type.TOPIC, "changed", set_config={"flush.ms": "9"})
    with pytest.warns(DeprecationWarning):
        confluent.alter_configs([wanted])[wanted].result(PATIENCE)
    assert own() == {"flush.ms": "9"}
    python.close()


def test_records_are_deleted(address: str, broker: Broker) -> None:
    """By confluent-kafka; every client begins behind them, and a start keeps that."""
    sent = messages(50)
    Confluent().produce(address, "to-delete", "none", sent, "1")
    admin = AdminClient({"bootstrap.servers": address})
    place = TopicPartition("to-delete", 0, 20)
    assert admin.delete_records([place])[place].result(PATIENCE).low_watermark == 20
    beyond = TopicPartition("to-delete", 0, 51)
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        admin.delete_records([beyond])[beyond].result(PATIENCE)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    assert consumer.get_watermark_offsets(TopicPartition("to-delete", 0), PATIENCE) == (20, 50)
    consumer.close()
    for client in (Confluent(), KafkaPython()):
        assert [one.offset for one in client.read(address, "to-delete", 20)] == list(range(20, 50))
    whole = TopicPartition("to-delete", 0, -1)
    assert admin.delete_records([whole])[whole].result(PATIENCE).low_watermark == 50
    assert (broker.log_dirs[0] / "log-start-offset-checkpoint").read_text() == "0\n1\nto-delete 0 50\n"


def test_several_partitions_are_read_to_their_ends(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("several")
    with Broker(directory, processors=2, settings={"num.partitions": 5}) as running:
        address = f"127.0.0.1:{running.port}"
        producer = Producer({"bootstrap.servers": address, "acks": "all"})
        for number in range(1000):
            producer.produce("five", b"%d" % number, b"%d" % number)
        assert producer.flush(PATIENCE) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "none",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition("five", partition, 0) for partition in range(5)])
        ended: set[int] = set()
        values = []
        while len(ended) < 5:
            message = consumer.poll(PATIENCE)
            assert message is not None
            if message.error():
                ended.add(message.partition())
            else:
                values.append(int(message.value()))
        consumer.close()
        assert sorted(values) == list(range(1000))


def test_a_topic_nobody_may_make(start_broker: Any) -> None:
    broker = start_broker(settings={"auto.create.topics": "false"})
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}", "message.timeout.ms": 500})
    errors: list[Any] = []
    producer.produce("none", b"x", on_delivery=lambda error, _: errors.append(error.name()))
    assert producer.flush(PATIENCE) == 0
    assert errors in (["_UNKNOWN_TOPIC"], ["_MSG_TIMED_OUT"], ["UNKNOWN_TOPIC_OR_PART"])
    with pytest.raises(KafkaException):
        Consumer({"bootstrap.servers": f"127.0.0.1:{broker.port}", "group.id": "g"}).get_watermark_offsets(
            TopicPartition("none", 0), timeout=2, cached=False
        )

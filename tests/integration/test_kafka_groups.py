"""Groups of today's clients, unchanged: members that come, go and are killed, what they commit, who owns what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.kafka_python import sockets_may_stay_open
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE
from tests.harness.today_members import KINDS, Members, produce
from tests.harness.today_static import static_members_come_back

PARTITIONS = 4
ILLEGAL_TOPIC = 100
SETTINGS = {"num.partitions": PARTITIONS, "group.initial.rebalance.delay.ms": 0}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("groups"), processors=2, settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def all_of(count: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(count)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "kafka-python-cooperative"])
def test_a_member_is_killed_and_then_the_coordinator(broker: Broker, address: str, kind: str, tmp_path: Path) -> None:
    """The others read on, nothing is left out, and nobody begins below what was committed."""
    topic = f"killed-{kind}"
    produce(address, topic, PARTITIONS, 100)
    with Members(address, kind, topic, tmp_path, group=topic) as members:
        first, *others = [members.start() for _ in range(3)]
        wait_until("all is read", lambda: members.seen() == all_of(100))
        wait_until("each has a part", lambda: all(diary for diary in members.diaries()))
        members.kill(first)
        produce(address, topic, PARTITIONS, 100)
        wait_until("all is read", lambda: members.seen() == all_of(200))
        pid = broker.pids()["coordinator"]
        broker.kill("coordinator")
        broker.wait_replaced("coordinator", pid)
        produce(address, topic, PARTITIONS, 100)
        wait_until("all is read", lambda: members.seen() == all_of(300))
        assert [members.end(member) for member in others] == [0, 0], members.errors()
        assert members.wrong() == []


@pytest.mark.parametrize("kind", ["confluent", "kafka-python"])
def test_a_member_reads_on_after_the_broker_was_killed(kind: str, tmp_path: Path) -> None:
    """The leader epoch is another one then, and clients ask how far that of the last record goes."""
    with Broker(tmp_path / "broker", processors=1, settings=SETTINGS, port=unused_port()) as broker:
        address = f"127.0.0.1:{broker.port}"
        produce(address, "t", PARTITIONS, 10)
        with Members(address, kind, "t", tmp_path / "members") as members:
            member = members.start()
            for count in (10, 20, 30):
                wait_until("all is read", lambda count=count: members.seen() == all_of(count))  # type: ignore[misc]
                if count < 30:
                    broker.kill_all()
                    broker.start()
                    produce(address, "t", PARTITIONS, 10)
            assert members.end(member) == 0, members.errors()
            assert members.wrong() == []


def consumer(address: str, group: str, **more: Any) -> Consumer:
    settings = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer(settings | {"enable.auto.commit": False, "session.timeout.ms": 6000} | more)


@sockets_may_stay_open()
def read_by_kafka_python(address: str, topic: str, count: int) -> list[int]:
    """So many numbers of a topic, by a member of the group of its name, which then commits and leaves."""
    from kafka import KafkaConsumer

    member = KafkaConsumer(
        topic, bootstrap_servers=address, group_id=topic, enable_auto_commit=False, consumer_timeout_ms=30_000
    )
    found = [int(next(member).value) for _ in range(count)]
    member.commit()
    member.close()
    return found


def test_reading_goes_on_behind_what_was_committed(address: str) -> None:
    """In the middle of a batch, by another client's reader, with the text that was committed."""
    pytest.importorskip("kafka")
    producer = Producer({"bootstrap.servers": address, "linger.ms": 100})
    for number in range(10):
        producer.produce("middle", b"%d" % number, partition=0)
    assert producer.flush(PATIENCE) == 0
    first = consumer(address, "middle")
    first.subscribe(["middle"])
    read: list[int] = []
    while len(read) < 4:
        read += [int(message.value()) for message in first.consume(1, PATIENCE)]
    kept = first.commit(offsets=[TopicPartition("middle", 0, 4, metadata="so far")], asynchronous=False)
    assert [(row.offset, row.error) for row in kept] == [(4, None)]
    (row,) = first.committed([TopicPartition("middle", 0)], PATIENCE)
    assert (row.offset, row.metadata) == (4, "so far")
    first.close()
    assert read_by_kafka_python(address, "middle", 6) == [4, 5, 6, 7, 8, 9]
    third = consumer(address, "middle")
    (row,) = third.committed([TopicPartition("middle", 0)], PATIENCE)
    assert row.offset == 10
    third.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "kafka-python-cooperative"])
def test_a_static_member_starts_again_and_nobody_notices(address: str, kind: str, tmp_path: Path) -> None:
    """In the same partitions, while the other one reads on in its own."""
    static_members_come_back(address, kind, tmp_path / f"static-{kind}")


def test_consoles_see_groups_and_delete_them(address: str) -> None:
    produce(address, "seen", PARTITIONS, 1)
    member = consumer(address, "seen")
    member.subscribe(["seen"])
    wait_until("it is assigned", lambda: member.poll(0.1) is not None or bool(member.assignment()))
    member.commit(offsets=[TopicPartition("seen", 1, 1)], asynchronous=False)
    admin = AdminClient({"bootstrap.servers": address})
    listed = {each.group_id: each.state for each in admin.list_consumer_groups().result(PATIENCE).valid}
    assert listed["seen"] == ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups(["seen"])["seen"].result(PATIENCE)
    (one,) = described.members
    assert {(each.topic, each.partition) for each in one.assignment.topic_partitions} == {
        ("seen", number) for number in range(PARTITIONS)
    }
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["seen"])["seen"].result(PATIENCE)
    member.close()
    wait_until("it has left", lambda: _state(admin, "seen") is ConsumerGroupState.EMPTY)
    admin.delete_consumer_groups(["seen"])["seen"].result(PATIENCE)
    assert "seen" not in {each.group_id for each in admin.list_consumer_groups().result(PATIENCE).valid}


def _state(admin: AdminClient, group: str) -> ConsumerGroupState:
    found: ConsumerGroupState = admin.describe_consumer_groups([group])[group].result(PATIENCE).state
    return found


def test_transactions_fail_at_once(address: str) -> None:
    """Not after a time-out: a client that is told of another coordinator would look for it until then."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": "x"})
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(PATIENCE)
    assert raised.value.args[0].fatal()


def test_clients_of_0_7_leave_the_brokers_own_topics_alone(broker: Broker, address: str) -> None:
    """They neither delete them nor make one of such a name; what is there goes on."""
    produce(address, "own", PARTITIONS, 1)
    reader = consumer(address, "own")
    reader.commit(offsets=[TopicPartition("own", 0, 1)], asynchronous=False)
    with broker.connect() as client:
        for name in ("__consumer_offsets", "__fastlog_metadata"):
            assert client.delete_topic(name)[0] == ILLEGAL_TOPIC
            assert client.produce_ack(name, 0, raw.entry(b"x")).error != 0
        assert client.create_topic("__mine", 1)[0] == ILLEGAL_TOPIC
        assert client.produce_ack("__mine", 0, raw.entry(b"x")).error != 0
        assert client.produce_ack("mine", 0, raw.entry(b"x")).error == 0
    reader.commit(offsets=[TopicPartition("own", 1, 1)], asynchronous=False)
    kept = reader.committed([TopicPartition("own", number) for number in (0, 1)], PATIENCE)
    assert [row.offset for row in kept] == [1, 1]
    reader.close()
    assert not list(broker.log_dirs[0].glob("__mine*")) and list(broker.log_dirs[0].glob("mine-0"))

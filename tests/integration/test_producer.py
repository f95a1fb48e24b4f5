"""The producer with real brokers, real processes, and a proxy between them."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from fastlog import codecs, testing
from fastlog._segment import payloads
from fastlog.producer import Crc32Partitioner, Delivery, Producer, SyncProducer
from tests.harness.broker import Broker, wait_until
from tests.harness.ports import unused_port
from tests.harness.producers import PARTITIONS, all_messages, messages_of
from tests.harness.proxy import Proxy
from tests.harness.timing import PATIENCE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
def test_lines_by_key(
    broker: Broker, new_topic: Callable[[], str], data_lines: tuple[bytes, ...], kind: str, codec: str
) -> None:
    """Lines by client address: each is in the partition of its key, in order, once."""
    topic = new_topic()
    lines = data_lines[:2000]
    expected: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    with Producer(f"127.0.0.1:{broker.port}", producer_type=kind, compression=codec) as producer:
        for line in lines:
            key = line.split(b" ", 1)[0]
            producer.send(topic, line, key=key)
            expected[Crc32Partitioner().partition(key, PARTITIONS)].append(line)
        if kind == "async":
            producer.flush()
        assert producer.stats().delivered == len(lines)
    assert {number: messages_of(broker, topic, number) for number in range(PARTITIONS)} == expected
    first = payloads(broker.stored_bytes(topic, max(expected, key=lambda number: len(expected[number]))))
    assert first[0].startswith({"none": b"", "gzip": codecs.GZIP_MAGIC, "snappy": codecs.XERIAL_MAGIC}[codec])


@pytest.mark.parametrize("acks", ["none", "appended", "flushed"])
def test_acknowledgements(broker: Broker, topic: str, acks: str) -> None:
    """Each kind delivers; ``flushed`` means visible at once, and the offsets are those of the log."""
    with Producer(f"127.0.0.1:{broker.port}", acks=acks) as producer:
        (delivery,) = producer.send(topic, [b"a", b"b"], partition=1)
        if acks == "flushed":
            with broker.connect() as client:
                assert payloads(client.fetch(topic, 1, delivery.offset).body) == [b"a", b"b"]
        if acks != "none":
            assert (delivery.offset, delivery.next_offset) == (0, 22)
            assert producer.send(topic, b"c", partition=1)[0].offset == 22
    assert messages_of(broker, topic, 1)[:2] == [b"a", b"b"]


def test_messages_without_a_key_go_everywhere(broker: Broker, topic: str) -> None:
    """The broker chooses a partition for each request."""
    with Producer(f"127.0.0.1:{broker.port}", producer_type="async", batch_messages=5) as producer:
        for number in range(1000):
            producer.send(topic, b"%d" % number)
    assert sorted(map(int, all_messages(broker, topic))) == list(range(1000))
    assert all(messages_of(broker, topic, partition) for partition in range(PARTITIONS))


def test_from_many_threads(broker: Broker, topic: str) -> None:
    """Threads share one producer; the order of each thread holds in a partition."""
    with Producer(f"127.0.0.1:{broker.port}", producer_type="async", queue_messages=50, batch_messages=7) as producer:

        def send(thread: int) -> None:
            for number in range(1000):
                producer.send(topic, b"%d %d" % (thread, number), partition=2)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [tuple(map(int, payload.split())) for payload in messages_of(broker, topic, 2)]
    assert len(found) == 4000
    for thread_number in range(4):
        assert [number for thread, number in found if thread == thread_number] == list(range(1000))


@pytest.mark.slow
@pytest.mark.parametrize("acks", ["none", "appended"])
def test_behind_a_load_balancer(start_broker: Callable[..., Broker], topic: str, acks: str) -> None:
    """Two brokers behind a plain proxy, partition -1, a new connection every few requests: both get their share, and
    nothing is lost or stored twice on the way from one to the other."""
    settings = {"num.partitions": PARTITIONS}
    first = start_broker(settings=settings, processors=1)
    second = start_broker(settings=settings, processors=1)
    with Proxy([first.port, second.port]) as proxy:
        with Producer(
            {
                "broker.list": f"0:{proxy.address}",
                "producer.type": "async",
                "reconnect.interval": "20",
                "batch.size": "3",
            },
            acks=acks,
        ) as producer:
            for number in range(1500):
                producer.send(topic, b"%d" % number)
            producer.flush()
            stats = producer.stats()
        assert stats.connections >= 25
        assert stats.possible_duplicates == 0
        with Producer(proxy.address, acks=acks, reconnect_time_interval_ms=20) as producer:
            sent = itertools.count(1500)

            def go_on() -> bool:
                producer.send(topic, b"%d" % next(sent))
                return producer.stats().connections >= 3

            wait_until("it has connected anew twice", go_on, pause=0.005)
    shares = [all_messages(each, topic) for each in (first, second)]
    assert sorted(int(payload) for share in shares for payload in share) == list(range(next(sent)))
    assert min(map(len, shares)) > 400


@pytest.mark.slow
def test_processors_are_killed_meanwhile(start_broker: Callable[..., Broker], topic: str) -> None:
    """With acks no message is lost, and there are no more duplicates than were counted."""
    broker = start_broker(settings={"num.partitions": PARTITIONS}, processors=2)
    stop = threading.Event()
    kills = [0]

    def kill() -> None:
        while not stop.wait(0.4):
            role = f"processor-{kills[0] % 2}"
            if broker.is_alive(role):
                broker.kill(role)
                kills[0] += 1

    with Producer(f"127.0.0.1:{broker.port}", producer_type="async", batch_messages=20) as producer:
        producer.send(topic, b"0")
        killer = threading.Thread(target=kill)
        killer.start()
        sent = 1
        end = time.monotonic() + 2.5
        while time.monotonic() < end or kills[0] < 3:
            for _ in range(200):
                producer.send(topic, b"%d" % sent)
                sent += 1
            time.sleep(0.005)
        stop.set()
        killer.join()
        producer.flush(30)
        stats = producer.stats()
    found = Counter(map(int, all_messages(broker, topic)))
    assert set(found) == set(range(sent))
    assert sum(found.values()) - sent <= stats.possible_duplicates
    assert stats.delivered == sent
    assert stats.failed == 0
    assert stats.connections > 1


@pytest.mark.slow
def test_the_broker_was_away(start_broker: Callable[..., Broker], topic: str) -> None:
    """R-27: messages queued while the broker is down arrive after its return."""
    broker = start_broker(settings={"num.partitions": 1}, processors=1, port=unused_port())
    with Producer(f"127.0.0.1:{broker.port}", producer_type="async", queue_time_ms=10) as producer:
        producer.send(topic, b"before")
        producer.flush()
        broker.stop()
        for number in range(100):
            producer.send(topic, b"%d" % number)
        time.sleep(0.2)
        broker.start()
        producer.flush(30)
    assert messages_of(broker, topic, 0) == [b"before", *(b"%d" % number for number in range(100))]


@pytest.mark.slow
def test_a_broker_of_a_list_returns() -> None:
    """R-27: messages without a key go to the other one while it is away, and to it again once it is back."""
    with (
        testing.broker() as one,
        testing.broker() as two,
        Producer(f"1:{one.address},2:{two.address}", connect_timeout_ms=1000) as producer,
    ):
        wait_until("both are used", lambda: producer.send("t", b"x")[0].broker == 1)
        wait_until("both are used", lambda: producer.send("t", b"x")[0].broker == 2)
        two.kill()
        for _ in range(50):
            assert producer.send("t", b"x")[0].broker == 1
        two.start()
        wait_until("it is used again", lambda: producer.send("t", b"x")[0].broker == 2)


@pytest.mark.slow
@pytest.mark.parametrize("acks", ["appended", "flushed"])
def test_the_disk_was_full(acks: str) -> None:
    """Messages sent before, while and after every write fails are all stored, once, in order; reading goes on."""
    with testing.broker(processors=2, partitions=2) as running:
        with Producer(
            running.address,
            producer_type="async",
            acks=acks,
            batch_messages=5,
            queue_time_ms=1,
            delivery_timeout_ms=60_000,
        ) as producer:
            sent = 0

            def send_for(seconds: float) -> None:
                nonlocal sent
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    for _ in range(20):
                        producer.send("t", b"%d" % sent, partition=sent % 2)
                        sent += 1
                    time.sleep(0.005)

            send_for(0.1)
            wait_until("some are stored", lambda: producer.stats().delivered > 0)
            if acks == "flushed":  # what is appended is not refused any more: it is flushed once there is room
                producer.flush(PATIENCE)
            running.fill_disk()
            send_for(0.2)
            wait_until("each partition tries one request alone", lambda: _both_wait(producer))
            stored = producer.stats().delivered
            running.free_disk()
            send_for(0.1)
            producer.flush(60)
            stats = producer.stats()
        assert 0 < stored < stats.delivered == sent
        assert (stats.failed, stats.possible_duplicates) == (0, 0)
        with running.consumer() as consumer:
            for partition in range(2):
                found = [int(message.payload) for message in consumer.messages("t", partition)]
                assert found == list(range(partition, sent, 2))


def _both_wait(producer: Producer) -> bool:
    """Whether every request was refused that was on its way: one that is stored behind a refused one would fail it."""
    found = []
    for link in producer._router.links.values():
        for place, hold in list(link._refusals._holds.items()):
            found.append(hold.probe is not None or not link._flight.has_any(*place))
    return found == [True, True]


@pytest.mark.slow
def test_no_byte_of_one_topic_in_another(broker: Broker, new_topic: Callable[[], str]) -> None:
    """T-43: requests that time out while they are being written never appear in another topic, and none of them counts
    as delivered without being stored."""
    chooser = random.Random(43)
    topics = {new_topic(): bytes([65 + number]) for number in range(6)}
    deliveries: list[Delivery] = []
    with Proxy([broker.port]) as proxy:
        producer = Producer(
            proxy.address,
            producer_type="async",
            batch_messages=4,
            delivery_timeout_ms=150,
            send_buffer_bytes=10_000,
            on_delivery=deliveries.append,
        )
        for topic in topics:
            producer.send(topic, b"first")
        producer.flush(30)
        for turn in range(24):
            if turn % 2:
                proxy.stall_after(chooser.randrange(300_000))
            for _ in range(40):
                topic = chooser.choice(list(topics))
                producer.send(topic, topics[topic] * chooser.randrange(1, 30_000))
            producer.flush(30)
            proxy.go_on()
        producer.close()
        stats = producer.stats()
    assert stats.failed > 100
    assert stats.delivered > 100
    assert stats.delivered + stats.failed == stats.accepted
    for topic, marker in topics.items():
        found = all_messages(broker, topic)
        assert all(payload in (b"first", marker * len(payload)) for payload in found)
        delivered = sum(each.messages for each in deliveries if each.topic == topic and each.error is None)
        assert len(found) >= delivered


@pytest.mark.slow
def test_sync_producer(broker: Broker, topic: str) -> None:
    """0.7's plain producer against the real broker, with connections changed on the way."""
    with SyncProducer("127.0.0.1", broker.port, reconnect_interval_sends=5) as producer:
        for number in range(50):
            producer.send(topic, b"%d" % number, 0)
        producer.send(topic, [b"a"] * 10, 1, codec=codecs.GZIP)
        producer.multi_send([(topic, 2, [b"b", b"c"]), (topic, 3, b"d")])
    assert [messages_of(broker, topic, partition) for partition in range(PARTITIONS)] == [
        [b"%d" % number for number in range(50)],
        [b"a"] * 10,
        [b"b", b"c"],
        [b"d"],
    ]
